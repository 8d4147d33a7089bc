// How numbers are written.

const MINUS = "\u2212";

/** A fixed number of digits and a true minus; tiny values keep two digits of theirs. */
export function fixed(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return `${MINUS}∞`;
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : `${MINUS}∞`;
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return scientific(value);
  return signed(value.toFixed(digits));
}

/** As short as a label is: of what is too small for its digits, that it is; <0.01 */
export function brief(value: number, digits = 2): string {
  if (!Number.isFinite(value)) return fixed(value);
  const least = 10 ** -digits;
  return value > 0 && value < least / 2 ? `<${least.toFixed(digits)}` : signed(value.toFixed(digits));
}

/** As short as a cell is: tiny values are 0. */
export function rounded(value: number | null, digits = 2): string {
  return value === null || !Number.isFinite(value) ? fixed(value) : signed(value.toFixed(digits));
}

/** 1.2 × 10⁻⁷ */
export function scientific(value: number): string {
  if (value === 0) return "0";
  const [mantissa = "0", exponent = "0"] = value.toExponential(1).split("e");
  const raised = String(Number(exponent)).replace(/[-\d]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]!));
  return `${signed(mantissa)} × 10${raised}`;
}

function signed(text: string): string {
  if (Number(text) === 0) return text.replace("-", "");
  return text.replace("-", MINUS);
}

/** 12,300,000 as 12.3 M */
export function short(count: number): string {
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  return count >= 1e3 ? `${Math.round(count / 1e3)} k` : String(count);
}

/** 1 arc, 2 arcs */
export const plural = (count: number, noun: string) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const WORDS: Record<string, number> = { NaN: NaN, Infinity: Infinity };

/** An answer that has numbers and no texts of people: where JSON has no number, a word stands for it. */
export function real<T>(value: T): T {
  if (typeof value === "string") return (WORDS[value] ?? value) as T;
  if (Array.isArray(value)) return (value.some((one) => typeof one !== "number") ? value.map(real) : value) as T;
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, real(one)])) as T;
}

/** NaN stands before all others: it is what is to be seen. */
export const rank = (value: number) => (Number.isNaN(value) ? Infinity : value);

/** The larger first. */
export const order = (a: number, b: number) => Number(rank(b) > rank(a)) - Number(rank(b) < rank(a));

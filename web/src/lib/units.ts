// Units are what is shown and clicked: tokens as the model has them, or whole words. Rows of weights follow.

import { order, rank } from "./numbers";
import type { Side, Span, Token } from "./types";
import type { Sink } from "./selection";

export interface Unit {
  label: string;
  /** The tokens that it is made of. */
  tokens: number[];
  /** Word index, -1 for <s> and </s>. */
  word: number;
  special: boolean;
  /** Not the first piece of its word. */
  continues: boolean;
}

/** Tokens, or with `words` whole words, in order. */
export function units(side: Side, words: boolean): Unit[] {
  const characters = Array.from(side.text); // offsets count characters, not UTF-16 units
  const found: Unit[] = [];
  side.tokens.forEach((token, index) => {
    const special = token.word < 0;
    const last = found.at(-1);
    const continues = !special && last !== undefined && last.word === token.word;
    if (words && continues) {
      last.tokens.push(index);
      return;
    }
    const label = words && !special ? (side.words[token.word]?.text ?? token.text) : pieceLabel(side.tokens, index, characters);
    found.push({ label, tokens: [index], word: token.word, special, continues });
  });
  return found;
}

const INVISIBLE = /^[\p{Cf}\u{FE00}-\u{FE0F}]+$/u;

const codePoints = (piece: string) => Array.from(piece, (c) => `U+${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`).join(" ");

/** A token as text. Several that stand for one character, as its bytes may, are numbered: 😀 1/4. */
export function pieceLabel(tokens: readonly Token[], index: number, characters: readonly string[]): string {
  const token = tokens[index]!;
  const piece = token.word < 0 ? "" : characters.slice(token.start, token.end).join("").trim();
  const label = INVISIBLE.test(piece) ? codePoints(piece) : piece || token.text.trim() || "␣";
  if (token.word < 0 || token.end <= token.start) return label;
  const same = (at: number) => tokens[at]?.word === token.word && tokens[at]!.start === token.start && tokens[at]!.end === token.end;
  let [first, end] = [index, index + 1];
  while (same(first - 1)) first -= 1;
  while (same(end)) end += 1;
  return end - first > 1 ? `${label} ${index - first + 1}/${end - first}` : label;
}

/** Words as units, where there are no tokens. */
export function wordUnits(words: readonly Span[]): Unit[] {
  return words.map(({ text }, word) => ({ label: text, tokens: [word], word, special: false, continues: false }));
}

/** Which unit a token is in; the first if it is in none. */
export function unitOf(all: Unit[], token: number): number {
  return Math.max(
    0,
    all.findIndex((unit) => unit.tokens.includes(token)),
  );
}

/** Values per token as values per unit: the pieces of a word are added up, as regard.align.word_weights does. */
export function fold(values: number[], all: Unit[]): number[] {
  return all.map((unit) => unit.tokens.reduce((sum, token) => sum + (values[token] ?? 0), 0));
}

/** Rows of one word's pieces as one row: their mean. */
export function meanRows(rows: number[][]): number[] {
  const first = rows[0] ?? [];
  return first.map((_, column) => rows.reduce((sum, row) => sum + (row[column] ?? 0), 0) / rows.length);
}

export function sumRows(rows: number[][]): number[] {
  const first = rows[0] ?? [];
  return first.map((_, column) => rows.reduce((sum, row) => sum + (row[column] ?? 0), 0));
}

const PUNCTUATION = /^[\p{P}\p{S}]+$/u;

/** Whether a key is a sink that the reader asked to hide. */
export function isSink(unit: Unit, index: number, hide: readonly Sink[]): boolean {
  return (
    (hide.includes("special") && unit.special) ||
    (hide.includes("punctuation") && !unit.special && PUNCTUATION.test(unit.label)) ||
    (hide.includes("first") && index === 0)
  );
}

export interface Part {
  index: number;
  value: number;
}

export interface Shown {
  /** The largest, largest first. */
  parts: Part[];
  /** What the others hold that are neither shown nor hidden, and how many they are. */
  rest: number;
  others: number;
  /** What the hidden sinks hold, and how many they are. */
  hidden: number;
  sinks: number;
}

/** The `top` largest values (0: all) that are not hidden, and what is left; parts + rest + hidden = the row's sum. */
export function strongest(values: readonly number[], top: number, hidden: (index: number) => boolean = () => false): Shown {
  const open: Part[] = [];
  const sunk: Part[] = [];
  values.forEach((value, index) => (hidden(index) ? sunk : open).push({ index, value }));
  open.sort((a, b) => order(a.value, b.value) || a.index - b.index);
  const positive = open.filter((part) => rank(part.value) > 0);
  const parts = top > 0 ? positive.slice(0, top) : positive;
  const rest = total(open.slice(parts.length));
  return { parts, rest, others: open.length - parts.length, hidden: total(sunk), sinks: sunk.length };
}

const total = (parts: Part[]) => parts.reduce((sum, part) => sum + part.value, 0);

const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;
const STRONG = /\p{L}/u;

/** The direction of a text, by its first letter. */
export function direction(text: string): "ltr" | "rtl" {
  const first = STRONG.exec(text)?.[0] ?? "";
  return RIGHT_TO_LEFT.test(first) ? "rtl" : "ltr";
}

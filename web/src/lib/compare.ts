// Two matrices of attention beside each other, made comparable: every row is shares of 1.

import { type Choice, clamp } from "./choice";
import { roleOf } from "./kinds";
import type { Beside, Head, Selection } from "./selection";
import type { Source } from "./source";
import type { Kind, Trace } from "./types";
import { fold, meanRows, type Unit } from "./units";

export const TRAINED = "trained";

/** The measures that a source has for a kind. */
export function measuresOf(source: Source, always: readonly string[], kind: string): string[] {
  const rolled = source.can.rollout && roleOf(kind) === "self" && !always.includes("rollout") ? ["rollout"] : [];
  return [...always, ...rolled].filter((one) => one !== "rollout" || roleOf(kind) === "self");
}

/** The selection's own side. */
export function firstOf(selection: Selection, choice: Choice, measures: readonly string[]): Beside {
  const { kind, layer, head } = choice;
  const measure = measures.includes(selection.measure) ? selection.measure : "weights";
  return settled({ kind: kind.kind, layer, head, measure, score: selection.score });
}

/** Another score is for one head's weights; a rollout is of no head. */
export function settled(side: Beside): Beside {
  if (side.score !== TRAINED) return { ...side, measure: "weights", head: side.head === "mean" ? 0 : side.head };
  return side.measure === "rollout" ? { ...side, head: "mean" } : side;
}

/** What is beside the first if nobody chose: the next head, or layer, or what the values make of the weights. */
export function usual(first: Beside, kind: Kind): Beside {
  const plain = { ...first, measure: "weights", score: TRAINED };
  if (first.measure !== "weights" || first.score !== TRAINED) return plain;
  if (kind.heads > 1 && first.head !== "mean") return { ...plain, head: (first.head + 1) % kind.heads };
  if (kind.layers > 1) return { ...plain, layer: (first.layer + 1) % kind.layers };
  return { ...plain, measure: "norms" };
}

/** A side inside the ranges of a trace, which may be another model's. */
export function fitted(side: Beside, trace: Trace): Beside {
  const kind = trace.kinds.find((one) => one.kind === side.kind) ?? trace.kinds[0]!;
  const head: Head = side.head === "mean" ? side.head : clamp(side.head, kind.heads);
  return settled({ ...side, kind: kind.kind, layer: clamp(side.layer, kind.layers), head });
}

/** Each row divided by its sum, as weights are already; a row of nothing stays so. */
export function shares(rows: number[][]): number[][] {
  return rows.map((row) => {
    const sum = row.reduce((a, b) => a + b, 0);
    return sum > 0 ? row.map((x) => x / sum) : row;
  });
}

/** Rows and columns of tokens as those of words: rows averaged, columns added up. */
export function folded(matrix: number[][], rows: Unit[], columns: Unit[]): number[][] {
  return rows.map((unit) => fold(meanRows(unit.tokens.map((token) => matrix[token] ?? [])), columns));
}

export const difference = (first: number[][], second: number[][]) => first.map((row, r) => row.map((x, c) => x - (second[r]?.[c] ?? 0)));

/** Why two matrices have no difference; "" where they do. */
export function mismatch(first: { rows: Unit[]; columns: Unit[] }, second: { rows: Unit[]; columns: Unit[] }): string {
  const same = (a: Unit[], b: Unit[]) => a.length === b.length && a.every((unit, i) => unit.label === b[i]!.label);
  if (!same(first.rows, second.rows)) return "The two have different words that look, so they have no difference.";
  return same(first.columns, second.columns) ? "" : "The two attend to different words, so there is no difference to show.";
}

export const MOST = 512;
const AT_ONCE = 6;

/** A whole matrix of shares: at once where it is weights, else a row at a time. */
export async function load(source: Source, id: string, side: Beside, queries: number, signal: AbortSignal): Promise<number[][]> {
  const { kind, layer, head, measure, score } = side;
  if (measure === "weights" && score === TRAINED) {
    const { values, width, height } = await source.tile(id, { kind, layer, head }, {}, signal);
    return Array.from({ length: height }, (_, r) => Array.from(values.subarray(r * width, (r + 1) * width)));
  }
  const rows: number[][] = [];
  const one = async (query: number) => {
    const place = { kind, layer, head, query };
    if (score !== TRAINED) return (await source.steps(id, place, 0, score, signal)).weights;
    return (await source.row(id, place, measure, signal)).values;
  };
  for (let at = 0; at < queries; at += AT_ONCE) {
    const some = Array.from({ length: Math.min(AT_ONCE, queries - at) }, (_, i) => one(at + i));
    rows.push(...(await Promise.all(some)));
  }
  return shares(rows);
}

const MEASURE_NAMES: Record<string, string> = { weights: "weights", norms: "norms, as shares", rollout: "rollout", gradient: "gradient" };

/** “layer 0, head 3, norms, as shares” */
export function sideName({ layer, head, measure, score }: Beside): string {
  const heads = measure === "rollout" ? "" : head === "mean" ? ", mean of all heads" : `, head ${head}`;
  const what = MEASURE_NAMES[measure] ?? measure;
  return `${measure === "rollout" ? "up to layer" : "layer"} ${layer}${heads}, ${score === TRAINED ? what : `${score} score, counterfactual`}`;
}

// What the service computes from a trace, computed here from the numbers of a static page: attention for one query,
// alignments from cross-attention, pooled pictures of matrices.

import type { Alignment, Link, Side, Steps } from "./types";
import { meanRows } from "./units";

export const entropy = (weights: readonly number[]) => weights.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0);

/** exp of each over the sum of all; null is −∞. All zeros where nothing may be looked at. */
export function softmax(scores: readonly (number | null)[]): number[] {
  const top = scores.reduce<number>((most, x) => (x === null ? most : Math.max(most, x)), -Infinity);
  const raised = scores.map((x) => (x === null ? 0 : Math.exp(x - top)));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((x) => (sum ? x / sum : 0));
}

export interface Vectors {
  query_input: number[] | null;
  key_input: number[] | null;
  q: number[];
  k: number[][];
  v: number[][];
  /** Of a score that is no plain dot product. */
  products?: number[][];
  scaled?: number[];
  allowed: (key: number) => boolean;
  recorded: number[] | null;
  output: number[] | null;
  score: string;
  formula: string;
  terms: string;
  scale: number | null;
}

const add = (row: readonly number[]) => row.reduce((sum, x) => sum + x, 0);

/** Every number on the way from a query to its context, as regard's QuerySteps. */
export function follow(given: Vectors): Steps {
  const { q, k, v, recorded, allowed, scale, ...others } = given;
  const products = given.products ?? k.map((row) => row.map((x, d) => x * q[d]!));
  const similarity = products.map(add);
  const scaled = given.scaled ?? similarity.map((x) => x * (scale ?? 1));
  const masked = scaled.map((x, j) => (allowed(j) ? x : null));
  const weights = softmax(masked);
  const weighted = v.map((row, j) => row.map((x) => x * weights[j]!));
  const context = (v[0] ?? []).map((_, d) => add(weighted.map((row) => row[d]!)));
  const difference = recorded && context.reduce((most, x, d) => Math.max(most, Math.abs(x - recorded[d]!)), 0);
  const { query_input, key_input, output, score, formula, terms } = others;
  return {
    query_input, key_input, q, k, v, products, similarity, scaled, masked, weights, weighted, context,
    output, recorded, difference, score, formula, terms, scale, counterfactual: false,
  };
}

/** Word weights [target words][source words] and their links, as regard.align makes them; rows are <s> y₁ … */
export function aligned(weights: number[][], source: Side, target: Side, shift: boolean): Pick<Alignment, "weights" | "links"> {
  const matrix = target.words.map((_, word) => {
    const rows = target.tokens.flatMap((token, t) => (token.word === word ? [weights[shift ? t : t - 1] ?? []] : []));
    const row = meanRows(rows);
    return source.words.map((_, i) => add(source.tokens.map((token, s) => (token.word === i ? (row[s] ?? 0) : 0))));
  });
  const links = matrix.flatMap((row, j): Link[] => {
    const most = Math.max(...row, 0);
    return most > 0 ? [[row.indexOf(most), j]] : [];
  });
  return { weights: matrix, links };
}

/** A matrix in at most height × width cells of one size, the last ones maybe smaller, as regard's tiles. */
export function pooled(matrix: number[][], height: number, width: number, pool: "max" | "sum") {
  const [down, across] = [matrix.length, matrix[0]?.length ?? 0];
  const [tall, wide] = [Math.max(1, Math.ceil(down / height)), Math.max(1, Math.ceil(across / width))];
  const [rows, columns] = [Math.ceil(down / tall), Math.ceil(across / wide)];
  const values = new Float32Array(rows * columns);
  matrix.forEach((row, r) =>
    row.forEach((value, c) => {
      const at = Math.floor(r / tall) * columns + Math.floor(c / wide);
      values[at] = pool === "max" ? Math.max(values[at]!, value) : values[at]! + value;
    }),
  );
  return { values, height: rows, width: columns, exact: true };
}

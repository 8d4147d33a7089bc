// One row of the matrix: where its weight goes, and its strongest keys, without reading all of it.

import type { Fetch } from "./loader";

export interface Found {
  key: number;
  value: number;
}

export interface RowFacts {
  row: number;
  /** The largest weight of each stretch of `cell` keys. */
  profile: Float32Array;
  cell: number;
  strongest: Found[];
  /** The weight of all other keys. */
  rest: number;
}

/** The service gives at most so many cells at once. */
export const WIDTH = 512;

/**
 * Stretches of keys that hold the `most` strongest: those of the `most` largest maxima, since every stretch left out has
 * `most` keys before it. Neighbours are joined as long as a request can hold them.
 */
export function candidates(profile: ArrayLike<number>, cell: number, keys: number, most: number): [number, number][] {
  const order = Array.from(profile, (value, at) => ({ value, at })).sort((a, b) => b.value - a.value);
  const chosen = order.slice(0, most).map(({ at }) => at).sort((a, b) => a - b);
  const out: [number, number][] = [];
  for (const at of chosen) {
    const [first, end] = [at * cell, Math.min((at + 1) * cell, keys)];
    const last = out.at(-1);
    if (last && last[1] === first && end - last[0] <= WIDTH) last[1] = end;
    else for (let from = first; from < end; from += WIDTH) out.push([from, Math.min(from + WIDTH, end)]);
  }
  return out;
}

/** The `most` strongest keys of a row, exactly, and its profile. */
export async function readRow(row: number, keys: number, most: number, fetch: Fetch, signal: AbortSignal): Promise<RowFacts> {
  const rows: [number, number] = [row, row + 1];
  const ask = (columns: [number, number], width: number) => fetch({ rows, columns, height: 1, width, samples: null }, signal);
  const cell = Math.ceil(keys / WIDTH);
  const profile = (await ask([0, keys], Math.min(keys, WIDTH))).values;
  const found: Found[] = [];
  for (const [first, end] of candidates(profile, cell, keys, most)) {
    const { values } = await ask([first, end], end - first);
    values.forEach((value, at) => found.push({ key: first + at, value }));
  }
  found.sort((a, b) => b.value - a.value);
  const strongest = found.slice(0, most).filter(({ value }) => value > 0);
  return { row, profile, cell, strongest, rest: Math.max(0, 1 - strongest.reduce((sum, { value }) => sum + value, 0)) };
}

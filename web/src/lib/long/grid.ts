// The matrix as a pyramid: at level z a cell is 2^z × 2^z tokens, a tile 256 × 256 cells.

export const TILE = 256;

/** Rows are queries, columns keys, in tokens. */
export interface Size {
  rows: number;
  columns: number;
}

export interface Address {
  z: number;
  /** Which tile, from the top and from the left. */
  row: number;
  column: number;
}

export const cellOf = (z: number) => 2 ** z;
export const nameOf = ({ z, row, column }: Address) => `${z}/${row}/${column}`;

/** The level at which one tile holds everything. */
export function topLevel({ rows, columns }: Size): number {
  return Math.max(0, Math.ceil(Math.log2(Math.max(rows, columns, 1) / TILE)));
}

/** The tile of the next level that covers this one. */
export function parent({ z, row, column }: Address): Address {
  return { z: z + 1, row: row >> 1, column: column >> 1 };
}

/** How many cells a tile has; fewer at the edges. */
export function cells({ z, row, column }: Address, size: Size): { height: number; width: number } {
  const count = (at: number, length: number) => Math.max(0, Math.min(TILE, Math.ceil(length / cellOf(z)) - at * TILE));
  return { height: count(row, size.rows), width: count(column, size.columns) };
}

/** A part of an axis that the service cuts into `count` cells of the level's size, or into one smaller last cell. */
export interface Segment {
  first: number;
  end: number;
  count: number;
}

/**
 * Cells `from` … `to` − 1 of an axis as what can be asked for. The service makes all cells of a span alike, so the last
 * cell, where it is not full, is asked for by itself: the cells of all tiles stay on one grid.
 */
export function segments(from: number, to: number, z: number, length: number): Segment[] {
  const cell = cellOf(z);
  const full = Math.min(to, Math.floor(length / cell));
  const out: Segment[] = [];
  if (full > from) out.push({ first: from * cell, end: full * cell, count: full - from });
  if (to > full && full * cell < length) out.push({ first: full * cell, end: length, count: 1 });
  return out;
}

/** The tokens that cell `at` of an axis holds, the end not included. */
export function tokensOf(at: number, z: number, length: number): [first: number, end: number] {
  return [at * cellOf(z), Math.min((at + 1) * cellOf(z), length)];
}

/** 2^26 scores are a fraction of a second on one core: while cells are made exact, nobody waits longer than that. */
const PAIRS = 2 ** 26;

/** Whether a row of cells can be made exact in seconds; beyond that (a million tokens, seen from afar) it stays sampled. */
export const refinable = (z: number, keys: number) => keys * cellOf(z) <= 16 * PAIRS;

/** How many rows of cells to refine at once. A row costs its whole length, since its weights share one softmax. */
export function stripHeight(z: number, keys: number): number {
  return Math.max(1, Math.min(TILE, Math.floor(PAIRS / (Math.max(keys, 1) * cellOf(z)))));
}

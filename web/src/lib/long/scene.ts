// What is drawn: tiles, or parts of coarser ones in their place, at their pixels.

import { order, rank } from "../numbers";
import { cellOf, nameOf, tokensOf, TILE, type Size } from "./grid";
import { standIn, type Tile } from "./tiles";
import { levelOf, span, visible, type Viewport } from "./viewport";

/** A part of a tile on the screen, in CSS pixels. */
export interface Sprite {
  tile: Tile;
  left: number;
  top: number;
  right: number;
  bottom: number;
  /** The cell at the left and at the top edge; fractions count. */
  x: number;
  y: number;
  /** Pixels per cell. */
  size: number;
  /** How many levels coarser than wanted. */
  coarser: number;
}

/** Everything known of what is on the screen; each wanted tile once. */
export function scene(view: Viewport, size: Size, get: (name: string) => Tile | undefined): Sprite[] {
  const z = levelOf(view, size);
  const out: Sprite[] = [];
  for (const address of visible(view, size, z)) {
    const tile = standIn(address, size, get);
    if (tile) out.push(sprite(tile, address, view, size));
  }
  return out;
}

function sprite(tile: Tile, wanted: { z: number; row: number; column: number }, view: Viewport, size: Size): Sprite {
  const wide = TILE * cellOf(wanted.z);
  const edge = (at: number, length: number, from: number, seen: number) =>
    [Math.max(0, (at * wide - from) * view.scale), Math.min(seen, (Math.min((at + 1) * wide, length) - from) * view.scale)] as const;
  const [left, right] = edge(wanted.column, size.columns, view.x, view.width);
  const [top, bottom] = edge(wanted.row, size.rows, view.y, view.height);
  const cell = cellOf(tile.z);
  return {
    tile,
    left,
    top,
    right,
    bottom,
    x: (view.x + left / view.scale) / cell - tile.column * TILE,
    y: (view.y + top / view.scale) / cell - tile.row * TILE,
    size: cell * view.scale,
    coarser: tile.z - wanted.z,
  };
}

/** A cell: which tokens, what value, and whether all its pairs were looked at. */
export interface Cell {
  rows: [number, number];
  columns: [number, number];
  value: number;
  exact: boolean;
}

function cellIn(tile: Tile, row: number, column: number, size: Size): Cell {
  return {
    rows: tokensOf(tile.row * TILE + row, tile.z, size.rows),
    columns: tokensOf(tile.column * TILE + column, tile.z, size.columns),
    value: tile.values[row * tile.width + column] ?? 0,
    exact: tile.exact[row] === 1,
  };
}

/** The cell that is shown for a pair of tokens. */
export function cellAt(row: number, column: number, z: number, size: Size, get: (name: string) => Tile | undefined): Cell | null {
  const wide = TILE * cellOf(z);
  const tile = standIn({ z, row: Math.floor(row / wide), column: Math.floor(column / wide) }, size, get);
  if (!tile) return null;
  const within = (at: number, first: number) => Math.floor(at / cellOf(tile.z)) - first * TILE;
  return cellIn(tile, within(row, tile.row), within(column, tile.column), size);
}

export interface Summary {
  /** The strongest first. */
  cells: Cell[];
  /** Of all shown, for the colours. */
  largest: number;
  /** Which part of the cells of the wanted level is exact, and which is there at all. */
  exact: number;
  known: number;
}

/** The strongest `most` cells on the screen, of the wanted level alone. */
export function summary(view: Viewport, size: Size, get: (name: string) => Tile | undefined, most: number): Summary {
  const z = levelOf(view, size);
  const cell = cellOf(z);
  const seen = span(view, size);
  const top: { tile: Tile; row: number; column: number; value: number }[] = [];
  let [least, exact, known, all] = [0, 0, 0, 0];
  for (const address of visible(view, size, z)) {
    const [firstRow, firstColumn] = [address.row * TILE, address.column * TILE];
    const range = ([from, to]: [number, number], first: number) => {
      return [Math.max(0, Math.floor(from / cell) - first), Math.min(TILE, Math.ceil(to / cell) - first)] as const;
    };
    const [top0, top1] = range(seen.rows, firstRow);
    const [left0, left1] = range(seen.columns, firstColumn);
    const wide = left1 - left0;
    all += (top1 - top0) * wide;
    const tile = get(nameOf(address));
    if (!tile) continue;
    for (let row = top0; row < top1; row += 1) {
      known += wide;
      if (tile.exact[row]) exact += wide;
      for (let column = left0; column < left1; column += 1) {
        const value = tile.values[row * tile.width + column]!;
        if (value <= least) continue;
        top.push({ tile, row, column, value });
        if (top.length >= 4 * most) least = cut(top, most);
      }
    }
  }
  cut(top, most);
  return {
    cells: top.map(({ tile, row, column }) => cellIn(tile, row, column, size)),
    largest: top.find(({ value }) => !Number.isNaN(value))?.value ?? 0,
    exact: all ? exact / all : 0,
    known: all ? known / all : 0,
  };
}

function cut(top: { value: number }[], most: number): number {
  top.sort((a, b) => order(a.value, b.value));
  top.length = Math.min(top.length, most);
  return top.length < most ? 0 : rank(top[most - 1]!.value);
}

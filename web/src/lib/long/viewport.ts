// What part of the matrix is on the screen, in tokens and CSS pixels.

import { cellOf, type Address, type Size, TILE, topLevel } from "./grid";

export interface Viewport {
  /** The token at the left and at the top edge; fractions count. */
  x: number;
  y: number;
  /** Pixels per token. */
  scale: number;
  width: number;
  height: number;
}

/** The selection's form: the token in the middle, and log₂ of tokens per pixel. */
export interface Place {
  x: number;
  y: number;
  z: number;
}

export const MOST = 64;
const MARGIN = 24;

/** The scale at which everything is seen. */
export function least(size: Size, width: number, height: number): number {
  const fit = Math.min((width - 2) / Math.max(size.columns, 1), (height - 2) / Math.max(size.rows, 1));
  return Math.min(MOST, Math.max(fit, 1e-6));
}

export function whole(size: Size, width: number, height: number): Viewport {
  return inside({ x: 0, y: 0, scale: least(size, width, height), width, height }, size);
}

/** The same, kept on the matrix: what is smaller than the screen stands at its left and top, beside its marks. */
export function inside(view: Viewport, size: Size): Viewport {
  const scale = Math.min(MOST, Math.max(view.scale, least(size, view.width, view.height)));
  return { ...view, scale, x: along(view.x, view.width / scale, size.columns, scale), y: along(view.y, view.height / scale, size.rows, scale) };
}

function along(at: number, seen: number, length: number, scale: number): number {
  if (length <= seen) return 0;
  const margin = Math.min(MARGIN / scale, length - seen);
  return Math.max(-margin, Math.min(at, length - seen + margin));
}

export function pan(view: Viewport, dx: number, dy: number, size: Size): Viewport {
  return inside({ ...view, x: view.x + dx / view.scale, y: view.y + dy / view.scale }, size);
}

/** Zooms by a factor; the token under the pixel (px, py) stays there, unless an edge is in the way. */
export function zoom(view: Viewport, factor: number, px: number, py: number, size: Size): Viewport {
  const scale = Math.min(MOST, Math.max(view.scale * factor, least(size, view.width, view.height)));
  const x = view.x + px / view.scale - px / scale;
  const y = view.y + py / view.scale - py / scale;
  return inside({ ...view, x, y, scale }, size);
}

/** The same, begun at a whole device pixel: cells of whole pixels are then drawn sharp. */
export function snapped(view: Viewport, ratio: number): Viewport {
  const per = view.scale * ratio;
  return { ...view, x: Math.round(view.x * per) / per, y: Math.round(view.y * per) / per };
}

export function toPlace(view: Viewport): Place {
  return {
    x: view.x + view.width / view.scale / 2,
    y: view.y + view.height / view.scale / 2,
    z: -Math.log2(view.scale),
  };
}

export function fromPlace(place: Place, width: number, height: number, size: Size): Viewport {
  const scale = Math.min(MOST, Math.max(2 ** -place.z, least(size, width, height)));
  return inside({ x: place.x - width / scale / 2, y: place.y - height / scale / 2, scale, width, height }, size);
}

/** The level whose cells are at least a pixel and less than two, or single tokens. */
export function levelOf(view: Viewport, size: Size): number {
  const z = Math.ceil(-Math.log2(view.scale) - 1e-9);
  return Math.max(0, Math.min(z, topLevel(size)));
}

/** The tokens on the screen, whole and inside the matrix; ends not included. */
export function span(view: Viewport, size: Size): { rows: [number, number]; columns: [number, number] } {
  const range = (at: number, seen: number, length: number): [number, number] => [
    Math.min(length, Math.max(0, Math.floor(at))),
    Math.max(0, Math.min(length, Math.ceil(at + seen))),
  ];
  return {
    rows: range(view.y, view.height / view.scale, size.rows),
    columns: range(view.x, view.width / view.scale, size.columns),
  };
}

/** The tiles of a level on the screen, those nearest to its middle first. */
export function visible(view: Viewport, size: Size, z: number): Address[] {
  const { rows, columns } = span(view, size);
  const wide = TILE * cellOf(z);
  const middle = toPlace(view);
  const out: { address: Address; far: number }[] = [];
  for (let row = Math.floor(rows[0] / wide); row * wide < rows[1]; row += 1) {
    for (let column = Math.floor(columns[0] / wide); column * wide < columns[1]; column += 1) {
      const far = Math.hypot((column + 0.5) * wide - middle.x, (row + 0.5) * wide - middle.y);
      out.push({ address: { z, row, column }, far });
    }
  }
  return out.sort((a, b) => a.far - b.far).map(({ address }) => address);
}

/** 1, 2 or 5 times a power of ten, so that marks stand at least `apart` pixels from each other. */
export function tickStep(scale: number, apart: number): number {
  const least = Math.max(1, apart / scale);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((by) => by * power).find((step) => step >= least - 1e-9) ?? 10 * power;
}

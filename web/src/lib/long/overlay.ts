// What stands over and beside the cells: marks, token texts, badges, the chosen row, the cursor, numbers in large cells.

import { inkOn } from "../colour";
import { rounded } from "../numbers";
import type { Axis } from "./api";
import { stepOf, type Mapping } from "./colour";
import type { Size } from "./grid";
import { cellAt, type Sprite } from "./scene";
import type { Tile } from "./tiles";
import { span, tickStep, type Viewport } from "./viewport";

export interface Theme {
  ink: string;
  muted: string;
  line: string;
  surface: string;
  query: string;
  key: string;
  font: string;
  /** Of the texts, in pixels. */
  size: number;
}

export interface Scene {
  view: Viewport;
  size: Size;
  sprites: Sprite[];
  get: (name: string) => Tile | undefined;
  label: (side: Axis, at: number) => string | null;
  map: Mapping;
  ramp: Uint8Array;
  row: number | null;
  /** The pair under the cursor. */
  cursor: { row: number; column: number } | null;
  matches: number[];
}

/** Pixels of a token from which on its text is shown, and from which on its cells have numbers. */
export const TEXT = 13;
const NUMBERS = 34;
/** What is less is left to the readout: a wall of zeros says nothing. */
const SMALLEST = 1e-4;

export interface Gutter {
  left: number;
  top: number;
}

export function drawOverlay(context: CanvasRenderingContext2D, scene: Scene, gutter: Gutter, theme: Theme, ratio: number): void {
  const { view } = scene;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, gutter.left + view.width, gutter.top + view.height);
  context.save();
  context.beginPath();
  context.rect(gutter.left, gutter.top, view.width, view.height);
  context.clip();
  context.translate(gutter.left, gutter.top);
  if (view.scale >= NUMBERS) numbers(context, scene, theme);
  badges(context, scene, theme);
  chosen(context, scene, theme);
  context.restore();
  frame(context, scene, gutter, theme);
  axis(context, scene, gutter, theme, "rows");
  axis(context, scene, gutter, theme, "columns");
}

function numbers(context: CanvasRenderingContext2D, { view, size, get, map, ramp }: Scene, theme: Theme): void {
  const { rows, columns } = span(view, size);
  context.font = `${Math.min(theme.size, view.scale * 0.31)}px ${theme.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = rows[0]; row < rows[1]; row += 1) {
    for (let column = columns[0]; column < columns[1]; column += 1) {
      const cell = cellAt(row, column, 0, size, get);
      if (!cell || cell.rows[1] - cell.rows[0] > 1 || cell.value < SMALLEST) continue;
      const at = 4 * stepOf(cell.value, map);
      context.fillStyle = inkOn(`rgb(${ramp[at]}, ${ramp[at + 1]}, ${ramp[at + 2]})`);
      const text = cell.value < 0.005 ? cell.value.toExponential(0).replace("e-", "e−") : rounded(cell.value, 2);
      context.fillText(text, (column + 0.5 - view.x) * view.scale, (row + 0.5 - view.y) * view.scale);
    }
  }
}

/** In the corner of each tile, once per wanted tile; the first row that is not exact has a fine line. */
function badges(context: CanvasRenderingContext2D, { sprites }: Scene, theme: Theme): void {
  context.font = `${theme.size * 0.86}px ${theme.font}`;
  context.textAlign = "end";
  context.textBaseline = "middle";
  for (const { tile, left, top, right, bottom, coarser } of sprites) {
    const done = tile.exact.reduce((sum, one) => sum + one, 0);
    const text = coarser ? "coming …" : done === tile.height ? "exact" : done ? `exact ${Math.floor((100 * done) / tile.height)} %` : "sampled";
    const wide = context.measureText(text).width + 10;
    const high = theme.size * 1.35;
    if (right - left < wide + 16 || bottom - top < high + 12) continue;
    context.globalAlpha = 0.78;
    context.fillStyle = theme.surface;
    context.beginPath();
    context.roundRect(right - wide - 5, top + 5, wide, high, 4);
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = text === "exact" ? theme.muted : theme.ink;
    context.fillText(text, right - 10, top + 5 + high / 2 + 0.5);
  }
}

function chosen(context: CanvasRenderingContext2D, { view, row, cursor, matches }: Scene, theme: Theme): void {
  const thick = Math.max(1, view.scale);
  const across = (at: number, colour: string, alpha: number) => {
    const y = (at - view.y) * view.scale;
    context.strokeStyle = colour;
    context.globalAlpha = alpha;
    context.lineWidth = view.scale >= 4 ? 1.5 : 1.25;
    if (view.scale >= 4) context.strokeRect(-4, y - 0.5, view.width + 8, thick + 1);
    else line(context, 0, y + thick / 2, view.width, y + thick / 2);
  };
  for (const match of matches) {
    const y = (match + 0.5 - view.y) * view.scale;
    if (y < 0 || y > view.height) continue;
    context.globalAlpha = 0.9;
    context.fillStyle = theme.key;
    context.beginPath();
    context.moveTo(0, y - 4);
    context.lineTo(6, y);
    context.lineTo(0, y + 4);
    context.fill();
  }
  if (row !== null) across(row, theme.query, 1);
  if (cursor) {
    context.globalAlpha = 0.65;
    context.strokeStyle = theme.key;
    context.lineWidth = 1;
    const [x, y] = [(cursor.column - view.x) * view.scale, (cursor.row - view.y) * view.scale];
    if (view.scale >= 4) {
      context.lineWidth = 2;
      context.globalAlpha = 1;
      context.strokeRect(x, y, view.scale, view.scale);
    } else {
      line(context, x, 0, x, view.height);
      line(context, 0, y, view.width, y);
    }
  }
  context.globalAlpha = 1;
}

function line(context: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** The edges of the matrix, and what its axes are. */
function frame(context: CanvasRenderingContext2D, { view, size }: Scene, gutter: Gutter, theme: Theme): void {
  const [left, top] = [-view.x * view.scale, -view.y * view.scale];
  context.save();
  context.beginPath();
  context.rect(gutter.left - 1, gutter.top - 1, view.width + 1, view.height + 1);
  context.clip();
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.strokeRect(gutter.left + left - 0.5, gutter.top + top - 0.5, size.columns * view.scale + 1, size.rows * view.scale + 1);
  context.restore();
  context.font = `600 ${theme.size}px ${theme.font}`;
  context.fillStyle = theme.muted;
  context.textAlign = "end";
  context.textBaseline = "alphabetic";
  context.fillText("keys →", gutter.left - 10, theme.size);
  context.fillText("queries ↓", gutter.left - 10, theme.size * 2.3);
}

/** Token texts where there is room for them, else numbers at round distances. */
function axis(context: CanvasRenderingContext2D, scene: Scene, gutter: Gutter, theme: Theme, side: Axis): void {
  const { view, size, cursor, row } = scene;
  const down = side === "rows";
  const [first, end] = span(view, size)[side];
  const texts = view.scale >= TEXT;
  const step = texts ? 1 : tickStep(view.scale, down ? 56 : 84);
  const at = (token: number) => (token - (down ? view.y : view.x)) * view.scale;
  context.save();
  context.beginPath();
  if (down) context.rect(0, gutter.top - theme.size / 2, gutter.left, view.height + theme.size / 2);
  else context.rect(gutter.left - 2 * theme.size, 0, view.width + 2 * theme.size, gutter.top);
  context.clip();
  context.textBaseline = "middle";
  for (let token = Math.ceil(first / step) * step; token < end; token += step) {
    const chosen = down && token === row;
    const pointed = token === (down ? cursor?.row : cursor?.column);
    context.font = `${chosen || pointed ? 650 : 400} ${theme.size}px ${theme.font}`;
    context.fillStyle = chosen ? theme.query : pointed ? theme.key : texts ? theme.ink : theme.muted;
    const number = token.toLocaleString("en");
    const text = texts ? (scene.label(side, token) ?? number) : number;
    const middle = at(token) + (texts ? view.scale / 2 : 0);
    context.strokeStyle = theme.line;
    if (down) place(context, text, gutter.left - 9, gutter.top + middle, 0, gutter.left - 12, "end");
    else if (texts) place(context, text, gutter.left + middle, gutter.top - 9, -Math.PI / 2, gutter.top - 12, "start");
    else place(context, text, gutter.left + middle, gutter.top - 14, 0, 80, "center");
    if (down) line(context, gutter.left - 5, gutter.top + middle, gutter.left - 1, gutter.top + middle);
    else line(context, gutter.left + middle, gutter.top - 5, gutter.left + middle, gutter.top - 1);
  }
  context.restore();
}

function place(context: CanvasRenderingContext2D, text: string, x: number, y: number, turn: number, most: number, align: CanvasTextAlign): void {
  context.save();
  context.translate(x, y);
  context.rotate(turn);
  context.textAlign = align;
  let short = text;
  while (short.length > 1 && context.measureText(short).width > most) short = `${short.slice(0, -2)}…`;
  context.fillText(short, 0, 0);
  context.restore();
}

// The cells on the screen, in Python.

import { quoted } from "../python";
import { cellOf, type Size } from "./grid";
import { levelOf, span, type Viewport } from "./viewport";

/** A trace from its file. */
export const opened = (name: string) => ["import regard.trace", "", `trace = regard.trace.load(${quoted(name)})`];

/** Whole cells only: those that the tile method makes of the same size as the page does. */
export function tileCode(made: string[], calls: string, kind: string, layer: number, head: number, pool: string, view: Viewport, size: Size): string {
  const cell = cellOf(levelOf(view, size));
  const seen = span(view, size);
  const whole = ([from, to]: [number, number], length: number): [number, number] => {
    const first = Math.floor(from / cell) * cell;
    const end = Math.min(Math.ceil(to / cell), Math.floor(length / cell)) * cell;
    return end > first ? [first, end] : [first, length];
  };
  const rows = whole(seen.rows, size.rows);
  const columns = whole(seen.columns, size.columns);
  const count = ([first, end]: [number, number]) => Math.ceil((end - first) / cell);
  const options = [`rows=(${rows.join(", ")})`, `cols=(${columns.join(", ")})`, `size=(${count(rows)}, ${count(columns)})`];
  return [
    ...made,
    `cells = trace.tile(${layer}, ${head}, ${options.join(", ")}, pool="${pool}", kind="${kind}"${calls})`,
    `print(cells)  # [${count(rows)}, ${count(columns)}], cells of ${cell} × ${cell} tokens`,
    "",
  ].join("\n");
}

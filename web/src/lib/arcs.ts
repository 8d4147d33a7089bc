// Where arcs go. Boxes are those of words on the page, in pixels of the chart; y grows downwards.

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Geometry {
  path: string;
  /** The highest point of the curve, for a label. */
  top: number;
}

export const MAX_WIDTH = 22;

/** Line width of a weight; `full` is the weight of the widest line. Any positive weight can be seen. */
export function arcWidth(weight: number, full: number): number {
  if (!(weight > 0) || !(full > 0)) return 0;
  return Math.max(1.25, MAX_WIDTH * Math.min(1, weight / full));
}

const centre = (box: Box) => box.x + box.width / 2;
const round = (value: number) => Math.round(value * 10) / 10;

/**
 * An arc from the query's word to the key's: over the line if both stand on it, between lines if not. `under` is the room
 * that a word's number takes below it.
 */
export function arc(from: Box, to: Box, room: number, under = 0): Geometry {
  const [x1, x2] = [centre(from), centre(to)];
  if (from === to) return loop(x1, from.y, Math.min(room, 46));
  if (sameLine(from, to)) return arch(x1, x2, Math.min(from.y, to.y), room);
  const foot = (box: Box) => box.y + box.height + under;
  return to.y < from.y ? link(x1, from.y, x2, foot(to)) : link(x1, foot(from), x2, to.y);
}

export function sameLine(a: Box, b: Box): boolean {
  return Math.abs(a.y + a.height / 2 - b.y - b.height / 2) < Math.max(a.height, b.height) / 2;
}

/** Higher when longer, and never above `room`. A cubic rises to 3/4 of its control points. */
function arch(x1: number, x2: number, y: number, room: number): Geometry {
  const height = Math.min(room, 14 + Math.abs(x2 - x1) * 0.42);
  const control = round(y - height / 0.75);
  const lean = (x2 - x1) * 0.12;
  return {
    path: `M${round(x1)},${round(y)}C${round(x1 + lean)},${control} ${round(x2 - lean)},${control} ${round(x2)},${round(y)}`,
    top: round(y - height),
  };
}

function loop(x: number, y: number, height: number): Geometry {
  const control = round(y - height / 0.75);
  return {
    path: `M${round(x - 5)},${round(y)}C${round(x - 26)},${control} ${round(x + 26)},${control} ${round(x + 5)},${round(y)}`,
    top: round(y - height),
  };
}

/** Between two lines of text: leaves and arrives upright. */
export function link(x1: number, y1: number, x2: number, y2: number): Geometry {
  const middle = round((y1 + y2) / 2);
  return {
    path: `M${round(x1)},${round(y1)}C${round(x1)},${middle} ${round(x2)},${middle} ${round(x2)},${round(y2)}`,
    top: Math.min(y1, y2),
  };
}

/** Between two columns of words: leaves and arrives level. */
export function across(x1: number, y1: number, x2: number, y2: number): Geometry {
  const middle = round((x1 + x2) / 2);
  return {
    path: `M${round(x1)},${round(y1)}C${middle},${round(y1)} ${middle},${round(y2)} ${round(x2)},${round(y2)}`,
    top: Math.min(y1, y2),
  };
}

/** About how long a line of words is, in units of the font's size; wide scripts count double. */
export function lineLength(labels: string[]): number {
  const wide = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Extended_Pictographic}]/u;
  const word = (label: string) => Array.from(label).reduce((sum, c) => sum + (wide.test(c) ? 1.15 : 0.6), 0);
  return labels.reduce((sum, label) => sum + Math.max(2.2, word(label) + 1.4) + 0.4, 0);
}

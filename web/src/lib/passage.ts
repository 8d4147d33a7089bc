// A text in pieces that are drawn alike: words, what is between them, and the places that are marked.

import type { Passage } from "./types";

export type MarkName = "answer" | "candidate" | "copied";

/** Characters [start, end) of a text. */
export interface Mark {
  start: number;
  end: number;
  name: MarkName;
}

export interface Piece {
  text: string;
  /** The word that it is of, or a part of; −1 between words. */
  word: number;
  marks: MarkName[];
  /** The first, and the last, of what is in a frame: of all marks but candidates. */
  first: boolean;
  last: boolean;
}

/** All of a text, cut where a word or a mark begins or ends. */
export function pieces({ text, words }: Passage, marks: readonly Mark[]): Piece[] {
  const characters = Array.from(text); // offsets count characters, not UTF-16 units
  const cuts = new Set([0, characters.length]);
  for (const { start, end } of [...words, ...marks]) cuts.add(start).add(end);
  const places = [...cuts].filter((place) => place >= 0 && place <= characters.length).sort((a, b) => a - b);
  const found: Piece[] = [];
  let word = 0;
  for (let i = 0; i + 1 < places.length; i += 1) {
    const [start, end] = [places[i]!, places[i + 1]!];
    while (word < words.length && words[word]!.end <= start) word += 1;
    const inside = word < words.length && words[word]!.start <= start;
    const here = marks.filter((one) => one.start <= start && end <= one.end);
    const frame = here.find((one) => one.name !== "candidate");
    found.push({
      text: characters.slice(start, end).join("").replaceAll("\r", ""), // a line ends once
      word: inside ? word : -1,
      marks: here.map((one) => one.name),
      first: frame?.start === start,
      last: frame?.end === end,
    });
  }
  return found;
}

/** What a word looks at, or all of them together, their mean. */
export function lookedAt(rows: readonly (readonly number[])[], row: number | null, columns: number): readonly number[] {
  return row === null ? meanRow(rows, columns) : (rows[row] ?? []);
}

/** The mean of rows. */
export function meanRow(rows: readonly (readonly number[])[], columns: number): number[] {
  return Array.from({ length: columns }, (_, c) => rows.reduce((sum, row) => sum + (row[c] ?? 0), 0) / Math.max(1, rows.length));
}

// Where the page's numbers come from: the service, a document inside the page, or a notebook's kernel. Views ask a
// Source and nobody else; what a source cannot do is in `can`, and its controls are not shown.

import type { Head, View } from "./selection";
import type { Alignment, Answer, Effects, HeadMeasures, KindName, Knockout, Models, Named, Row, Steps, Summary, Tile, Tokens, Trace } from "./types";

/** Every failure of a source, with a text that a person understands. */
export class SourceError extends Error {
  constructor(
    message: string,
    /** As HTTP has them; 0 where nobody answered. */
    readonly status: number,
    /** Seconds after which to try again by oneself; null is never. */
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }
}

export interface HeadPlace {
  kind: KindName;
  layer: number;
  head: number;
}

export interface Abilities {
  /** Reads any sentence, with any of its models; else there is the one trace `opened`. */
  translate: boolean;
  /** Runs the model without some heads. */
  knockout: boolean;
  /** What every head's absence changes: of all kinds, or of these. */
  effects: boolean | readonly KindName[];
  /** Attention rollout of encoder self-attention as a measure. */
  rollout: boolean;
  views: readonly View[];
  /** Heads whose steps can be followed; null is all. */
  steps: readonly HeadPlace[] | null;
}

export interface Sentence {
  text: string;
  target?: string;
  model?: string;
}

export interface Document {
  text: string;
  /** Words that the summary should have, about. */
  length?: number | null;
  model?: string;
}

export interface Question {
  context: string;
  question: string;
  model?: string;
}

export interface Matrix {
  kind: KindName;
  layer: number;
  head: Head;
}

export interface Place extends Matrix {
  query: number;
}

/** A part of a matrix at a size; what is left out is the whole matrix at its own. */
export interface Area {
  rows?: readonly [number, number];
  cols?: readonly [number, number];
  height?: number;
  width?: number;
  pool?: "max" | "sum";
  /** Rows that are looked at in each cell; without it all. */
  samples?: number;
}

export interface AlignChoice {
  layer: number | null;
  head: Head | null;
  shift: boolean | null;
  gold: string;
}

export type Labels = "rows" | "columns";

export interface Source {
  readonly can: Abilities;
  /** The trace that there is without asking for one; null where a sentence makes it. */
  readonly opened: string | null;
  /** What is to be said about the numbers under every chart, such as how they are stored; "" for nothing. */
  readonly note: string;
  models(signal: AbortSignal): Promise<Models>;
  traces(signal: AbortSignal): Promise<Named[]>;
  /** A trace that has no sentence, or is too long for one. */
  named(id: string, signal: AbortSignal): Promise<Named>;
  trace(sentence: Sentence, signal: AbortSignal): Promise<Trace>;
  described(id: string, signal: AbortSignal): Promise<Trace>;
  row(id: string, place: Place, measure: string, signal: AbortSignal): Promise<Row>;
  tile(id: string, matrix: Matrix, area: Area, signal: AbortSignal): Promise<Tile>;
  steps(id: string, place: Place, key: number, score: string, signal: AbortSignal): Promise<Steps>;
  align(id: string, choice: AlignChoice, signal: AbortSignal): Promise<Alignment>;
  heads(id: string, kind: KindName, signal: AbortSignal): Promise<HeadMeasures>;
  /** Of one layer, the only row of `change` then; or of all (null). */
  effects(id: string, kind: KindName, layer: number | null, signal: AbortSignal): Promise<Effects>;
  knockout(id: string, heads: readonly HeadPlace[], signal: AbortSignal): Promise<Knockout>;
  tokens(id: string, kind: KindName, side: Labels, from: number, to: number, signal: AbortSignal): Promise<Tokens>;
  search(id: string, kind: KindName, side: Labels, text: string, signal: AbortSignal): Promise<{ matches: number[]; more: boolean }>;
  /** What other tasks than translation do, where there are models of them. */
  summarize?(document: Document, signal: AbortSignal): Promise<Summary>;
  answer?(question: Question, signal: AbortSignal): Promise<Answer>;
}

/** An alignment's choice as parameters; no head is the model's own, which need not be the mean. */
export const alignParameters = ({ layer, head, shift, gold }: AlignChoice) => ({
  layer,
  head,
  shift: shift === null ? null : Number(shift),
  gold,
});

/** A tile's area as parameters. */
export const areaParameters = ({ rows, cols, ...others }: Area) => ({
  rows: rows?.join(":"),
  cols: cols?.join(":"),
  ...others,
});

/** Worth keeping by the source: the Long view has large tiles, and keeps them itself, merged. */
export const isSmall = ({ height = Infinity, width = Infinity }: Area) => height * width <= 64 * 64;

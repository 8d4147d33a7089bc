// What the page works with: what the service answers (answers.ts, written from its description), under the page's own
// names, and more exactly where the page knows more. Offsets are in characters (code points), the end not included.

import type * as answers from "./answers";

export type { Answer, Candidate, Copied, Effects, Kind, Model, Models, Passage, Side, Summary, Token, Tokens } from "./answers";
export type { Word as Span } from "./answers";

/** "self", "decoder" or "cross", after the name of a tower where there are several; see kinds.ts. */
export type KindName = answers.Kind["kind"];
/** "source", "target", or the name of a tower. */
export type SideName = answers.Kind["rows"];
export type Task = answers.Model["task"];
/** Log-probabilities of the target, with all heads and without some. */
export type Knockout = answers.Without;

export type Link = [source: number, target: number];

export interface Alignment extends Omit<answers.Alignment, "links"> {
  links: Link[];
}

/** A trace of short texts, with its words. */
export interface Trace extends Omit<answers.Trace, "name" | "source" | "target" | "sides" | "alignment"> {
  source: answers.Side;
  target: answers.Side;
  /** Those of towers, by name. */
  sides?: Record<string, answers.Side>;
  /** null where there are no words on two sides. */
  alignment: Alignment | null;
}

/** A trace that was given to the service when it started. */
export interface Named extends answers.Named {
  kinds: (answers.Kind & { queries: number; keys: number })[];
}

export type Row = Pick<answers.Row, "values" | "query" | "entropy">;

/** One query, one head; S keys. The names are those of regard's QuerySteps. */
export type Steps = Omit<answers.Steps, "key_inputs" | "added">;

/** What each head is like, [layers][heads]: means over its queries. */
export type HeadMeasures = Omit<answers.Heads, "queries" | "rows">;

/** Weights as a picture: `values` are [height, width], row by row. */
export interface Tile {
  values: Float32Array;
  height: number;
  width: number;
  exact: boolean;
}

// What the service answers; see regard/explorer for the other side.

/** "self", "decoder" or "cross", after the name of a tower where there are several; see kinds.ts. */
export type KindName = string;
/** "source", "target", or the name of a tower. */
export type SideName = string;

export interface Span {
  text: string;
  /** Offsets in the side's text, in characters (code points), the end not included. */
  start: number;
  end: number;
}

export interface Token extends Span {
  /** Index into the side's words; -1 for <s> and </s>. */
  word: number;
}

export interface Side {
  text: string;
  tokens: Token[];
  words: Span[];
}

export interface Kind {
  kind: KindName;
  layers: number;
  heads: number;
  rows: SideName;
  columns: SideName;
  score: string;
}

export type Task = "translation" | "summarization" | "qa";

export interface Model {
  name: string;
  task: Task;
  architecture: string;
  parameters: number;
  /** Of its task. */
  default: boolean;
  kinds: Kind[];
  limit: number;
}

export interface Models {
  models: Model[];
  scores: string[];
  measures: string[];
  version: string;
}

export type Link = [source: number, target: number];

export interface Alignment {
  /** [target words][source words] */
  weights: number[][];
  links: Link[];
  layer: number | null;
  head: number | null;
  shift: boolean;
  aer: number | null;
}

export interface Trace {
  id: string;
  translation: string;
  model: string;
  source: Side;
  target: Side;
  /** Those of towers, by name. */
  sides?: Record<string, Side>;
  kinds: Kind[];
  /** null where there are no words on two sides. */
  alignment: Alignment | null;
  note: string;
}

/** A text and its words. */
export interface Passage {
  text: string;
  words: Span[];
}

/** How likely a word is a copy, and the source word that it then is; null where none of its pieces stands there. */
export interface Copied {
  probability: number;
  position: number | null;
}

export interface Summary {
  summary: string;
  source: Passage;
  target: Passage;
  /** [summary words][source words] */
  attention: number[][];
  copied: Copied[];
  score: number;
  log_prob: number;
  model: string;
  note: string;
}

export interface Candidate extends Span {
  score: number;
}

export interface Answer {
  /** Characters [start, end) of the context; "" and null where the context does not tell. */
  answer: string;
  start: number | null;
  end: number | null;
  score: number;
  no_answer: number;
  candidates: Candidate[];
  context: Passage;
  question: Passage;
  /** [question words][context words] */
  attention: number[][];
  model: string;
  note: string;
}

/** A trace that was given to the service when it started. */
export interface Named {
  id: string;
  name: string;
  kinds: (Kind & { queries: number; keys: number })[];
}

export interface Row {
  values: number[];
  query: number;
  entropy: number;
}

/** One query, one head; S keys. The names are those of regard's QuerySteps. */
export interface Steps {
  query_input: number[] | null;
  key_input: number[] | null;
  q: number[];
  k: number[][];
  v: number[][];
  products: number[][];
  similarity: number[];
  scaled: number[];
  masked: (number | null)[];
  weights: number[];
  weighted: number[][];
  context: number[];
  output: number[] | null;
  recorded: number[] | null;
  difference: number | null;
  score: string;
  counterfactual: boolean;
  formula: string;
  /** What the products are the terms of: the part of the formula that is summed before it is scaled. */
  terms: string;
  scale: number | null;
}

/** Weights as a picture: `values` are [height, width], row by row. */
export interface Tile {
  values: Float32Array;
  height: number;
  width: number;
  exact: boolean;
}

/** What each head is like, [layers][heads]: means over its queries. */
export interface HeadMeasures {
  kind: KindName;
  layers: number;
  heads: number;
  /** In nats. */
  entropy: number[][];
  /** How much is looked at the first key. */
  sink: number[][];
  /** How far away what is looked at is, in tokens. */
  distance: number[][];
}

/** How the target's log-probability changes without each head, [layers][heads]. */
export interface Effects {
  kind: KindName;
  base: number;
  change: number[][];
}

export interface Knockout {
  base: number;
  log_prob: number;
  change: number;
  /** Per target token that is predicted: the second of the target's tokens first. */
  tokens: number[];
}

export interface Tokens {
  tokens: string[];
  from: number;
  count: number;
}

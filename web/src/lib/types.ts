// What the service answers; see regard/explorer for the other side.

export type KindName = "self" | "decoder" | "cross";
export type SideName = "source" | "target";

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

export interface Model {
  name: string;
  architecture: string;
  parameters: number;
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
  kinds: Kind[];
  alignment: Alignment;
  note: string;
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
  scale: number | null;
}

// What the service answers. Written by `python dev/answers.py` from regard/explorer/http/replies.py.

export interface Health {
  /** 503 but for ok */
  status: "ok" | "stuck" | "stopping";
  /** the problem, in words */
  problem?: string;
}

export interface Word {
  text: string;
  start: number;
  end: number;
}

export interface Token {
  text: string;
  start: number;
  end: number;
  /** index into words; -1 for none */
  word: number;
}

export interface Side {
  text: string;
  tokens: Token[];
  words: Word[];
}

export interface Kind {
  /** one of self, decoder, cross, after the name of a tower where a model has several */
  kind: string;
  layers: number;
  heads: number;
  /** source, target, or one of a trace's sides */
  rows: string;
  /** source, target, or one of a trace's sides */
  columns: string;
  score: string;
  /** rows of its matrices; of a trace, not of a model */
  queries?: number;
  keys?: number;
}

export interface Model {
  name: string;
  task: "translation" | "summarization" | "qa";
  architecture: string;
  parameters: number;
  /** of its task */
  default: boolean;
  /** what a trace of it has; of translators alone */
  kinds: Kind[];
  /** subwords that a sentence, a document or a question may have */
  limit: number;
}

export interface Models {
  models: Model[];
  scores: string[];
  measures: string[];
  version: string;
}

export interface Alignment {
  /** a row per target word, a column per source word */
  weights: number[][];
  links: number[][];
  layer: number | null;
  /** null: the mean over heads */
  head: number | null;
  /** a word's attention is read at the step that receives it as input */
  shift: boolean;
  aer: number | null;
}

export interface Translation {
  translation: string;
  model: string;
  source: Side;
  target: Side;
  alignment: Alignment;
  /** what was done to the text, or empty */
  note: string;
}

export interface Passage {
  text: string;
  words: Word[];
}

export interface Copied {
  /** that the word was copied, not generated */
  probability: number;
  /** the word of the text it is most likely a copy of */
  position: number | null;
}

export interface Summary {
  summary: string;
  source: Passage;
  target: Passage;
  /** how much each summary word (a row) attends to each word of the text */
  attention: number[][];
  copied: Copied[];
  /** what the search ranks by */
  score: number;
  log_prob: number;
  model: string;
  note: string;
}

export interface Candidate {
  text: string;
  start: number;
  end: number;
  score: number;
}

export interface Answer {
  /** context[start:end]; empty if the context has no answer */
  answer: string;
  /** in characters of the context; null where there is no answer */
  start: number | null;
  end: number | null;
  /** the answer's probability among all places and no answer */
  score: number;
  no_answer: number;
  candidates: Candidate[];
  context: Passage;
  question: Passage;
  /** how much each question word (a row) attends to each context word, in the window of the first candidate */
  attention: number[][];
  model: string;
  note: string;
}

export interface Trace {
  translation: string;
  model: string;
  /** null where it is too long: see tokens */
  source: Side | null;
  target: Side | null;
  alignment: Alignment | null;
  /** what was done to the text, or empty */
  note: string;
  name: string;
  kinds: Kind[];
  /** of towers, in the place of source and target */
  sides?: Record<string, Side | null>;
  id: string;
}

export interface Named {
  id: string;
  name: string;
  kinds: Kind[];
}

export interface Traces {
  traces: Named[];
}

export interface Row {
  values: number[];
  query: number;
  /** one of self, decoder, cross, after the name of a tower where a model has several */
  kind: string;
  layer: number;
  head: number | string;
  measure: "weights" | "norms" | "rollout" | "gradient";
  /** of the weights, in nats */
  entropy: number;
}

export interface Tokens {
  tokens: string[];
  from: number;
  /** of all there are */
  count: number;
}

export interface Found {
  /** the first token of each place */
  matches: number[];
  more: boolean;
}

export interface Heads {
  /** one of self, decoder, cross, after the name of a tower where a model has several */
  kind: string;
  layers: number;
  heads: number;
  queries: number;
  /** how many of the queries were measured */
  rows: number;
  /** means over these, a row per layer; in nats */
  entropy: number[][];
  /** the weight of the first key */
  sink: number[][];
  /** tokens between a query and the keys it attends to */
  distance: number[][];
}

export interface Effects {
  /** one of self, decoder, cross, after the name of a tower where a model has several */
  kind: string;
  /** log p of the target */
  base: number;
  /** how it changes without each head, a row per layer asked for */
  change: number[][];
}

export interface Without {
  /** log p of the target */
  base: number;
  /** log p without these heads */
  log_prob: number;
  change: number;
  /** the change of each token that is predicted, </s> being the last */
  tokens: number[];
}

export interface Steps {
  query_input: number[] | null;
  /** ask for one with key= */
  key_inputs: null;
  key_input: number[] | null;
  q: number[];
  k: number[][];
  v: number[][];
  products: number[][];
  similarity: number[];
  /** what positions and biases add to the scaled similarity */
  added: (number | null)[];
  scaled: (number | null)[];
  /** null where the mask hides the key */
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
  /** what the products are the terms of, before it is scaled; or empty */
  terms: string;
  scale: number | null;
}

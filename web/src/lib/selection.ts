// The one selection, and its form in the URL's hash: #/view?name=value&…

import { kindOf } from "./kinds";
import type { KindName } from "./types";

export type View = "sentence" | "steps" | "align" | "heads" | "compare" | "long" | "summary" | "answer";
export type Head = number | "mean";
export type Sink = "special" | "punctuation" | "first";
export type Sort = "layer" | "entropy" | "sink" | "distance" | "effect";
export type Mode = "side" | "difference";

/** A head, as `self.0.3`. */
export interface Out {
  kind: KindName;
  layer: number;
  head: number;
}

/** What Compare sets beside the selection, as `cross.1.mean.norms.trained`; the last two may be left out. */
export interface Beside {
  kind: KindName;
  layer: number;
  head: Head;
  measure: string;
  score: string;
}

export interface Selection {
  view: View;
  text: string;
  /** Read instead of translating; "" translates. */
  target: string;
  /** "" is the server's default. */
  model: string;
  /** A second model in Align; "" is none. */
  second: string;
  /** null is the first kind that the model has. */
  kind: KindName | null;
  layer: number | null;
  head: Head | null;
  /** Query tokens, summed when several; empty is the page's choice. */
  query: number[];
  key: number | null;
  measure: string;
  score: string;
  words: boolean;
  hide: Sink[];
  /** How many arcs; 0 is all. */
  top: number;
  /** Row convention of Align: true where a word is the decoder's input; null is the model's own. */
  shift: boolean | null;
  gold: string;
  /** Order of the heads. */
  sort: Sort;
  /** Heads that are knocked out. */
  out: Out[];
  /** null is the page's choice. */
  with: Beside | null;
  /** The model of what is beside; "" is the same. */
  other: string;
  mode: Mode;
  /** Long: which trace ("" is the first), the token in the middle of each axis, log₂ of tokens per pixel; null is all. */
  trace: string;
  x: number | null;
  y: number | null;
  z: number | null;
  pool: "max" | "sum";
  scale: "log" | "linear";
  row: number | null;
  /** Summary: the text, about how many words to make of it (null: as many as it likes), the word that is looked at. */
  document: string;
  length: number | null;
  word: number | null;
  /** Answer: the text, the question, the word of it that is looked at (null: all), the place that is (null: the answer). */
  context: string;
  question: string;
  asked: number | null;
  candidate: number | null;
}

export const VIEWS: readonly View[] = ["sentence", "steps", "align", "heads", "compare", "long", "summary", "answer"];
export const SORTS: readonly Sort[] = ["layer", "entropy", "sink", "distance", "effect"];
export const SINKS: readonly Sink[] = ["special", "punctuation", "first"];

export const EXAMPLE = "The cat sat on the mat because it was tired.";
export const DOCUMENT =
  "Mara: Are you still coming on Friday?\nTom: Yes, but my train gets in at eight.\n" +
  "Mara: Then I will fetch you from the station.\nTom: Thanks! I will bring a cake.";
export const CONTEXT =
  "The lighthouse on the cape was built in 1871 by two brothers from Porto. Its lamp burned whale oil until 1904, when it " +
  "was replaced by an electric one. Since then the tower has been painted red and white.";
export const QUESTION = "When was the lighthouse built?";

export function initial(): Selection {
  return {
    view: "sentence",
    text: EXAMPLE,
    target: "",
    model: "",
    second: "",
    kind: null,
    layer: null,
    head: null,
    query: [],
    key: null,
    measure: "weights",
    score: "trained",
    words: false,
    hide: [],
    top: 5,
    shift: null,
    gold: "",
    sort: "layer",
    out: [],
    with: null,
    other: "",
    mode: "side",
    trace: "",
    x: null,
    y: null,
    z: null,
    pool: "max",
    scale: "log",
    row: null,
    document: DOCUMENT,
    length: null,
    word: null,
    context: CONTEXT,
    question: QUESTION,
    asked: null,
    candidate: null,
  };
}

/** A hash as a selection. What is missing or makes no sense has its default: a shared address never breaks the page. */
export function parse(hash: string): Selection {
  const found = initial();
  const [path = "", search = ""] = splitOnce(hash.replace(/^#?\/?/, ""), "?");
  found.view = VIEWS.find((view) => view === path) ?? found.view;
  const given = new URLSearchParams(search);
  found.text = given.get("text") ?? found.text;
  for (const name of ["target", "model", "second", "measure", "score", "gold", "other", "trace", "document", "context", "question"] as const) {
    found[name] = given.get(name) ?? found[name];
  }
  found.kind = kindOf(given.get("kind") ?? undefined);
  found.layer = count(given.get("layer"));
  found.head = given.get("head") === "mean" ? "mean" : count(given.get("head"));
  found.key = count(given.get("key"));
  found.query = numbers(given.get("query"));
  found.words = given.get("words") === "1";
  found.hide = SINKS.filter((sink) => given.get("hide")?.split(",").includes(sink));
  found.top = count(given.get("top")) ?? found.top;
  found.shift = given.has("shift") ? given.get("shift") === "1" : null;
  found.sort = SORTS.find((sort) => sort === given.get("sort")) ?? found.sort;
  found.out = outs(given.get("out"));
  found.with = beside(given.get("with"));
  found.mode = given.get("mode") === "difference" ? "difference" : found.mode;
  for (const name of ["x", "y", "z"] as const) found[name] = decimal(given.get(name));
  found.pool = given.get("pool") === "sum" ? "sum" : "max";
  found.scale = given.get("scale") === "linear" ? "linear" : "log";
  for (const name of ["row", "length", "word", "asked", "candidate"] as const) found[name] = count(given.get(name));
  return found;
}

/** The texts that a view is about; an address says them even where they are those that the page opens with. */
type Text = "text" | "document" | "context" | "question";
const TEXTS: Partial<Record<View, readonly Text[]>> = { long: [], summary: ["document"], answer: ["context", "question"] };

/**
 * The hash of a selection; defaults are left out, except the texts, so that an address says what it shows. A page with one
 * sentence in it says that by itself: no texts.
 */
export function format(selection: Selection, { text = true } = {}): string {
  const plain = initial();
  const said = TEXTS[selection.view] ?? ["text"];
  const out = new URLSearchParams();
  for (const name of ["text", "document", "context", "question"] as const) {
    const wanted = said.includes(name) || selection[name] !== plain[name];
    if (text && wanted) out.set(name, selection[name]);
  }
  const put = (name: string, value: string, usual: string) => value !== usual && out.set(name, value);
  for (const name of ["target", "model", "second"] as const) put(name, selection[name], "");
  put("kind", selection.kind ?? "", "");
  put("layer", selection.layer?.toString() ?? "", "");
  put("head", selection.head?.toString() ?? "", "");
  put("query", selection.query.join(","), "");
  put("key", selection.key?.toString() ?? "", "");
  put("measure", selection.measure, plain.measure);
  put("score", selection.score, plain.score);
  put("words", selection.words ? "1" : "0", "0");
  put("hide", selection.hide.join(","), "");
  put("top", selection.top.toString(), plain.top.toString());
  put("shift", selection.shift === null ? "" : selection.shift ? "1" : "0", "");
  put("gold", selection.gold, "");
  put("sort", selection.sort, plain.sort);
  put("out", selection.out.map(({ kind, layer, head }) => `${kind}.${layer}.${head}`).join(","), "");
  put("with", selection.with ? besideText(selection.with) : "", "");
  put("other", selection.other, "");
  put("mode", selection.mode, plain.mode);
  put("trace", selection.trace, "");
  for (const name of ["x", "y", "z"] as const) put(name, selection[name]?.toString() ?? "", "");
  put("pool", selection.pool, plain.pool);
  put("scale", selection.scale, plain.scale);
  for (const name of ["row", "length", "word", "asked", "candidate"] as const) put(name, selection[name]?.toString() ?? "", "");
  return `#/${selection.view}?${out.toString()}`;
}

function splitOnce(text: string, mark: string): [string, string] {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + mark.length)];
}

function count(text: string | null): number | null {
  return text !== null && /^\d{1,6}$/.test(text) ? Number(text) : null;
}

function decimal(text: string | null): number | null {
  return text !== null && /^-?\d{1,9}(\.\d{1,6})?$/.test(text) ? Number(text) : null;
}

function numbers(text: string | null): number[] {
  const found = (text ?? "").split(",").map(count);
  return [...new Set(found.filter((value) => value !== null))].slice(0, 64);
}

function outs(text: string | null): Out[] {
  const found = new Map<string, Out>();
  for (const part of (text ?? "").split(",")) {
    const [kind, layer, head] = part.split(".");
    const one = { kind: kindOf(kind), layer: count(layer ?? null), head: count(head ?? null) };
    if (one.kind !== null && one.layer !== null && one.head !== null) found.set(part, one as Out);
  }
  return [...found.values()].slice(0, 256);
}

function beside(text: string | null): Beside | null {
  const [kind, layer, head, measure = "weights", score = "trained"] = (text ?? "").split(".");
  const one = { kind: kindOf(kind), layer: count(layer ?? null), head: head === "mean" ? head : count(head ?? null) };
  if (one.kind === null || one.layer === null || one.head === null) return null;
  return { ...one, measure, score } as Beside;
}

function besideText({ kind, layer, head, measure, score }: Beside): string {
  const more = score !== "trained" ? [measure, score] : measure !== "weights" ? [measure] : [];
  return [kind, layer, head, ...more].join(".");
}

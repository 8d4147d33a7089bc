// The one selection, and its form in the URL's hash: #/view?name=value&…

import type { KindName } from "./types";

export type View = "sentence" | "steps" | "align" | "heads" | "compare";
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
}

export const VIEWS: readonly View[] = ["sentence", "steps", "align", "heads", "compare"];
export const SORTS: readonly Sort[] = ["layer", "entropy", "sink", "distance", "effect"];
export const SINKS: readonly Sink[] = ["special", "punctuation", "first"];
const KINDS: readonly KindName[] = ["self", "decoder", "cross"];

export const EXAMPLE = "The cat sat on the mat because it was tired.";

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
  };
}

/** A hash as a selection. What is missing or makes no sense has its default: a shared address never breaks the page. */
export function parse(hash: string): Selection {
  const found = initial();
  const [path = "", search = ""] = splitOnce(hash.replace(/^#?\/?/, ""), "?");
  found.view = VIEWS.find((view) => view === path) ?? found.view;
  const given = new URLSearchParams(search);
  found.text = given.get("text") ?? found.text;
  for (const name of ["target", "model", "second", "measure", "score", "gold", "other"] as const) {
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
  return found;
}

/**
 * The hash of a selection; defaults are left out, except the text, so that an address says what it shows. A page with one
 * sentence in it says that by itself: no `text`.
 */
export function format(selection: Selection, { text = true } = {}): string {
  const plain = initial();
  const out = new URLSearchParams(text ? { text: selection.text } : {});
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
  return `#/${selection.view}?${out.toString()}`;
}

function splitOnce(text: string, mark: string): [string, string] {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + mark.length)];
}

function count(text: string | null): number | null {
  return text !== null && /^\d{1,6}$/.test(text) ? Number(text) : null;
}

function numbers(text: string | null): number[] {
  const found = (text ?? "").split(",").map(count);
  return [...new Set(found.filter((value) => value !== null))].slice(0, 64);
}

const kindOf = (text: string | undefined) => KINDS.find((kind) => kind === text) ?? null;

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

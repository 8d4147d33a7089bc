// A document inside the page as a source: nothing is asked of anyone.

import { aligned, entropy, follow, pooled } from "./attention";
import { bytes, type Document, type Packed, type PackedHead, type PackedLayer, type Stored, unpacked, VERSION } from "./document";
import { sideOf } from "./kinds";
import { scientific } from "./numbers";
import { type View, VIEWS } from "./selection";
import { type Abilities, type AlignChoice, type Area, type Matrix, type Place, type Source, SourceError } from "./source";
import type { Alignment, Effects, KindName, Models, Row, Steps, Tile, Trace } from "./types";
import { meanRows } from "./units";

export const ID = "embedded";

const missing = (what: string) => new SourceError(`This page was made without ${what}.`, 409);
const range = (count: number) => [...Array(count).keys()];

class Embedded implements Source {
  readonly can: Abilities;
  readonly opened = ID;
  readonly note: string;
  readonly #trace: Trace;
  #read = new WeakMap<Packed, number[][]>();

  constructor(readonly document: Document) {
    this.#trace = { ...document.trace, id: ID };
    this.can = abilities(document);
    this.note = told(document);
  }

  async models(): Promise<Models> {
    const { model, kinds } = this.#trace;
    const measures = ["weights", ...(["norms", "rollout"] as const).filter((name) => this.document[name])];
    const one = { name: model, task: "translation" as const, architecture: "", parameters: 0, default: true, kinds, limit: 0 };
    return { models: [one], scores: ["trained"], measures, version: this.document.regard };
  }

  traces = async () => [];

  async named(): Promise<never> {
    throw missing("long traces");
  }

  described = async () => this.#trace;
  trace = async () => this.#trace;

  async row(_: string, place: Place, measure: string): Promise<Row> {
    const { query } = place;
    const at = (matrix: number[][]) => matrix[query] ?? [];
    const weights = at(this.#matrix(place, "weights"));
    const values = measure === "weights" ? weights : at(this.#measured(place, measure));
    return { values, query, entropy: entropy(weights) };
  }

  async tile(_: string, place: Matrix, area: Area): Promise<Tile> {
    const matrix = this.#matrix(place, "weights");
    const [rows, cols] = [area.rows ?? [0, matrix.length], area.cols ?? [0, matrix[0]?.length ?? 0]];
    const part = matrix.slice(...rows).map((row) => row.slice(...cols));
    return pooled(part, area.height ?? 512, area.width ?? 512, area.pool ?? "max");
  }

  async steps(_: string, place: Place, key: number): Promise<Steps> {
    const layer = this.document.steps?.find((one) => one.kind === place.kind && one.layer === place.layer);
    const head = layer?.heads.find((one) => one.head === place.head);
    if (!layer || !head) throw missing("the steps of this head");
    return this.#followed(layer, head, place.query, key);
  }

  async align(_: string, { layer, head, shift }: AlignChoice): Promise<Alignment> {
    const { alignment, source, target } = this.#trace;
    if (!alignment) throw missing("an alignment");
    const at = { layer: layer ?? alignment.layer ?? 0, head: head === "mean" ? null : (head ?? alignment.head), shift: shift ?? alignment.shift };
    const own = at.layer === alignment.layer && at.head === alignment.head && at.shift === alignment.shift;
    if (own) return { ...alignment, aer: null };
    const weights = this.#matrix({ kind: "cross", layer: at.layer, head: at.head ?? "mean" }, "weights");
    return { ...aligned(weights, source, target, at.shift), ...at, aer: null };
  }

  heads = async (_: string, kind: KindName) => found(this.document.heads, kind, "the measures of its heads");

  async effects(_: string, kind: KindName, layer: number | null): Promise<Effects> {
    const all = found(this.document.effects, kind, "the effects of its heads");
    return layer === null ? all : { ...all, change: all.change.slice(layer, layer + 1) };
  }

  async knockout(): Promise<never> {
    throw missing("a model to run again");
  }

  async tokens(_: string, kind: KindName, side: "rows" | "columns", from: number, to: number) {
    const all = this.#labels(kind, side);
    return { tokens: all.slice(from, to), from, count: all.length };
  }

  async search(_: string, kind: KindName, side: "rows" | "columns", text: string) {
    const matches = this.#labels(kind, side).flatMap((label, index) => (label.includes(text) ? [index] : []));
    return { matches: matches.slice(0, 1000), more: matches.length > 1000 };
  }

  #labels(kind: KindName, side: "rows" | "columns"): string[] {
    const one = this.#trace.kinds.find((one) => one.kind === kind);
    return one ? sideOf(this.#trace, one[side]).tokens.map((token) => token.text) : [];
  }

  #unpacked(packed: Packed): number[][] {
    const known = this.#read.get(packed);
    if (known) return known;
    const made = unpacked(packed);
    this.#read.set(packed, made);
    return made;
  }

  #measured(place: Matrix, measure: string): number[][] {
    if (measure === "norms") return this.#matrix(place, "norms");
    const packed = measure === "rollout" && place.kind === "self" ? this.document.rollout?.[place.layer] : undefined;
    if (!packed) throw missing(measure);
    return this.#unpacked(packed);
  }

  #matrix({ kind, layer, head }: Matrix, measure: "weights" | "norms"): number[][] {
    const heads = this.document[measure]?.[kind]?.[layer];
    if (!heads) throw missing(`the ${measure} of this layer`);
    if (head !== "mean") return this.#unpacked(heads[head] ?? heads[0]!);
    const all = heads.map((one) => this.#unpacked(one));
    return range(all[0]!.length).map((r) => meanRows(all.map((matrix) => matrix[r]!)));
  }

  #followed(layer: PackedLayer, head: PackedHead, query: number, key: number): Steps {
    const all = (packed: Packed) => this.#unpacked(packed);
    const row = (packed: Packed | null | undefined, index: number) => (packed ? (all(packed)[index] ?? null) : null);
    const keys = head.k.shape[0];
    const bits = head.allowed && head.allowed !== "causal" ? bytes(head.allowed) : null;
    return follow({
      query_input: row(layer.query_inputs, query),
      key_input: row(layer.key_inputs, key),
      q: row(head.q, query) ?? [],
      k: all(head.k),
      v: all(head.v),
      ...(head.products ? { products: all(head.products).slice(query * keys, (query + 1) * keys) } : {}),
      ...(head.scaled ? { scaled: row(head.scaled, query) ?? [] } : {}),
      allowed: (j) => (bits ? bits[query * keys + j] === 1 : head.allowed !== "causal" || j <= query),
      recorded: row(head.recorded, query),
      output: row(head.output, query),
      score: layer.score,
      formula: layer.formula,
      terms: layer.terms,
      scale: layer.scale,
    });
  }
}

function found<T extends { kind: KindName }>(all: T[] | null | undefined, kind: KindName, what: string): T {
  const one = all?.find((one) => one.kind === kind);
  if (!one) throw missing(what);
  return one;
}

function abilities({ trace, steps, heads, effects, rollout }: Document): Abilities {
  const followed = (steps ?? []).flatMap(({ kind, layer, heads }) => heads.map(({ head }) => ({ kind, layer, head })));
  const there: Partial<Record<View, boolean>> = {
    sentence: true,
    compare: true,
    steps: followed.length > 0,
    heads: Boolean(heads?.length),
    align: trace.alignment !== null,
  };
  return {
    translate: false,
    knockout: false,
    effects: (effects ?? []).map((one) => one.kind),
    rollout: Boolean(rollout),
    views: VIEWS.filter((view) => there[view]),
    steps: followed,
  };
}

/** How exact the stored numbers are, as a sentence. */
function told({ stored }: Document): string {
  const one = (name: string, { bits, error }: Stored) => `${name} ${bits} bits a number, largest error ${scientific(error)}`;
  const parts = [
    one("weights are stored with", stored.weights),
    ...(stored.norms ? [one("norms with", stored.norms)] : []),
    ...(stored.rollout ? [one("rollout with", stored.rollout)] : []),
    ...(stored.steps ? [one("the vectors of Steps with", stored.steps)] : []),
  ];
  const text = parts.join("; ");
  return `In this page ${text}; each row has a scale of its own.`;
}

export function embeddedSource(document: Document): Source {
  if (document.version !== VERSION) {
    throw new Error(`this page reads documents of version ${VERSION}, and found version ${document.version}: export it again`);
  }
  return new Embedded(document);
}

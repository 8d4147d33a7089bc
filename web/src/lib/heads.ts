// Heads by what they do: measures, orders, and sets of those that are knocked out.

import { fixed, scientific } from "./numbers";
import type { Out, Sort } from "./selection";
import type { Source } from "./source";
import type { Effects, HeadMeasures, Kind, Side } from "./types";
import { pieceLabel } from "./units";

export interface OneHead {
  layer: number;
  head: number;
  entropy: number;
  sink: number;
  distance: number;
  /** null while it is not computed. */
  effect: number | null;
}

export interface Measured {
  name: string;
  unit: string;
  digits: number;
  about: string;
}

export const MEASURES: Record<Exclude<Sort, "layer">, Measured> = {
  entropy: { name: "entropy", unit: "nats", digits: 2, about: "how spread out its attention is, averaged over all queries; 0: all on one key" },
  sink: { name: "sink mass", unit: "", digits: 2, about: "the share of attention on the first key, averaged over all queries" },
  distance: { name: "distance", unit: "tokens", digits: 1, about: "the distance to the keys it attends to, averaged over all queries" },
  effect: { name: "effect", unit: "Δ log p", digits: 3, about: "the translation’s log-probability without the head, minus that with it" },
};

/** Every head of a kind in an order: largest first, effects by size whatever their sign; equals stay as the model has them. */
export function ordered(measures: HeadMeasures, effects: Effects | null, sort: Sort): OneHead[] {
  const all = measures.entropy.flatMap((heads, layer) =>
    heads.map((entropy, head) => ({
      layer,
      head,
      entropy,
      sink: measures.sink[layer]![head]!,
      distance: measures.distance[layer]![head]!,
      effect: effects?.change[layer]?.[head] ?? null,
    })),
  );
  if (sort === "layer" || (sort === "effect" && !effects)) return all;
  const size = (one: OneHead) => (sort === "effect" ? Math.abs(one.effect ?? 0) : one[sort]);
  return all.sort((a, b) => size(b) - size(a));
}

/** “1.20 nats” */
export function told(one: OneHead, by: keyof typeof MEASURES): string {
  const { unit, digits } = MEASURES[by];
  const value = one[by];
  if (value === null) return "not computed";
  return `${by === "effect" && value > 0 ? "+" : ""}${fixed(value, digits)}${unit && ` ${unit}`}`;
}

/** Effects of all heads, a layer at a time: `told` hears how many layers are done. */
export async function effectsOf(source: Source, id: string, kind: Kind, signal: AbortSignal, told: (layers: number) => void): Promise<Effects> {
  const change: number[][] = [];
  let base = 0;
  for (let layer = 0; layer < kind.layers; layer += 1) {
    told(layer);
    const one = await source.effects(id, kind.kind, layer, signal);
    base = one.base;
    change.push(...one.change);
  }
  return { kind: kind.kind, base, change };
}

/** “layer 5, head 4 (Δ log p −2.205)”: the head whose absence changes most. */
export function largestEffect({ change }: Effects): string {
  const all = change.flatMap((heads, layer) => heads.map((value, head) => ({ layer, head, value })));
  const most = all.reduce((a, b) => (Math.abs(b.value) > Math.abs(a.value) ? b : a));
  return `layer ${most.layer}, head ${most.head} (Δ log p ${signed(most.value, 3)})`;
}

export const signed = (value: number, digits: number) => `${value > 0 ? "+" : ""}${fixed(value, digits)}`;

/** “9.1 times less likely” */
export function likelihood(change: number): string {
  const times = Math.exp(Math.abs(change));
  return `${times < 1000 ? fixed(times, times < 1.1 ? 3 : 1) : scientific(times)} times ${change < 0 ? "less" : "more"} likely`;
}

export const sameHead = (a: Out, b: Out) => a.kind === b.kind && a.layer === b.layer && a.head === b.head;

/** With the head if it was not there, without it if it was. */
export function toggled(out: readonly Out[], one: Out): Out[] {
  const without = out.filter((other) => !sameHead(other, one));
  return without.length === out.length ? [...out, one] : without;
}

/** What each step of the decoder writes: the target's tokens after <s>, then the end. */
export function written(target: Side, count: number): string[] {
  const characters = Array.from(target.text);
  const label = (at: number) => (target.tokens[at] ? pieceLabel(target.tokens, at, characters) : "end");
  return Array.from({ length: count }, (_, t) => label(t + 1));
}

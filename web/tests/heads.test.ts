import { describe, expect, it } from "vitest";
import { effectsOf, largestEffect, likelihood, ordered, told, toggled, written } from "../src/lib/heads";
import { headsCode, headSet, knockoutCode } from "../src/lib/python";
import type { Out } from "../src/lib/selection";
import type { Source } from "../src/lib/source";
import type { HeadMeasures, Kind, Side, Trace } from "../src/lib/types";

const measures: HeadMeasures = {
  kind: "self",
  layers: 2,
  heads: 2,
  entropy: [[1, 3], [2, 3]],
  sink: [[0.1, 0.2], [0.9, 0]],
  distance: [[4, 3], [2, 1]],
};
const effects = { kind: "self" as const, base: -5, change: [[-0.5, 0.1], [0, -2]] };
const names = (sort: Parameters<typeof ordered>[2], given: typeof effects | null = effects) =>
  ordered(measures, given, sort).map((one) => `${one.layer}.${one.head}`);

describe("heads", () => {
  it("stand largest first, equals as the model has them, effects by size", () => {
    expect(names("layer")).toEqual(["0.0", "0.1", "1.0", "1.1"]);
    expect(names("entropy")).toEqual(["0.1", "1.1", "1.0", "0.0"]);
    expect(names("sink")).toEqual(["1.0", "0.1", "0.0", "1.1"]);
    expect(names("distance")).toEqual(["0.0", "0.1", "1.0", "1.1"]);
    expect(names("effect")).toEqual(["1.1", "0.0", "0.1", "1.0"]);
    expect(names("effect", null)).toEqual(["0.0", "0.1", "1.0", "1.1"]);
  });

  it("say their number", () => {
    const [first, second] = ordered(measures, effects, "layer");
    expect(told(first!, "entropy")).toBe("1.00 nats");
    expect(told(first!, "effect")).toBe("−0.500 Δ log p");
    expect(told(second!, "effect")).toBe("+0.100 Δ log p");
    expect(told(ordered(measures, null, "layer")[0]!, "effect")).toBe("not computed");
  });

  it("have effects that come a layer at a time", async () => {
    const kind: Kind = { kind: "self", layers: 2, heads: 2, rows: "source", columns: "source", score: "Dot()" };
    const source = { effects: async (_: string, name: string, layer: number | null) => ({ kind: name, base: -5, change: [effects.change[layer!]!] }) };
    const done: number[] = [];
    const all = await effectsOf(source as unknown as Source, "x", kind, new AbortController().signal, (layers) => done.push(layers));
    expect(all).toEqual(effects);
    expect(done).toEqual([0, 1]);
    expect(largestEffect(all)).toBe("layer 1, head 1 (Δ log p −2.000)");
  });

  it("make a text more or less likely", () => {
    expect([-2, 2, 0.05, -9].map(likelihood)).toEqual([
      "7.4 times less likely", "7.4 times more likely", "1.051 times more likely", "8.1 × 10³ times less likely",
    ]);
  });

  it("go out and come back", () => {
    const one: Out = { kind: "self", layer: 0, head: 3 };
    const two: Out = { kind: "cross", layer: 0, head: 3 };
    expect(toggled([one], two)).toEqual([one, two]);
    expect(toggled([one, two], { ...one })).toEqual([two]);
  });

  it("change what is written: the tokens after <s>, then the end", () => {
    const token = (text: string, start: number, end: number) => ({ text, start, end, word: 0 });
    const target: Side = { text: "le chat", words: [], tokens: [token("<s>", 0, 0), token("▁le", 0, 2), token("▁chat", 2, 7)] };
    expect(written(target, 3)).toEqual(["le", "chat", "end"]);
    expect(written(target, 2)).toEqual(["le", "chat"]);
  });
});

describe("copied Python", () => {
  const side: Side = { text: "a", tokens: [], words: [] };
  const trace: Trace = {
    id: "t", translation: "a", model: "toy", source: side, target: side, alignment: null, note: "",
    kinds: [{ kind: "self", layers: 2, heads: 2, rows: "source", columns: "source", score: "Dot()" }],
  };

  it("knocks out a set of heads", () => {
    const out: Out[] = [{ kind: "self", layer: 0, head: 3 }, { kind: "cross", layer: 1, head: 2 }, { kind: "self", layer: 0, head: 1 }];
    expect(headSet(out)).toBe('{("self", 0): [3, 1], ("cross", 1): [2]}');
    expect(knockoutCode(trace, out)).toContain(`log_prob(${headSet(out)}) - log_prob({})`);
  });

  it("measures every head", () => {
    expect(headsCode(trace, "self", "sink")).toContain('trace.sink(layer, head, kind="self").mean().item()');
    expect(headsCode(trace, "self", "effect")).toContain('log_prob({("self", layer): [head]})');
    expect(headsCode({ ...trace, translation: "" }, "self", "sink")).not.toContain("regard.load");
  });
});

import { describe, expect, it } from "vitest";
import { aligned, follow, pooled, softmax } from "../src/lib/attention";
import { type Document, type Packed, unpacked } from "../src/lib/document";
import { embeddedSource } from "../src/lib/embedded";
import { SourceError } from "../src/lib/source";
import type { Side } from "../src/lib/types";
import { Messages, type WidgetModel, widgetSource } from "../src/lib/widget";

const signal = new AbortController().signal;
const base64 = (array: ArrayBufferView) =>
  btoa(String.fromCharCode(...new Uint8Array(array.buffer, array.byteOffset, array.byteLength)));

/** As FORMAT.md says: a scale per row. */
function packed(rows: number[][], signed: boolean, bits: 8 | 16 = 16): Packed {
  const top = 2 ** (bits - Number(signed)) - 1;
  const scale = Float32Array.from(rows, (row) => Math.max(...row.map(Math.abs)) / top || 1);
  const numbers = rows.flatMap((row, r) => row.map((x) => Math.round(x / scale[r]!)));
  const data = { "8": Uint8Array, "16": Uint16Array, "8s": Int8Array, "16s": Int16Array }[`${bits}${signed ? "s" : ""}`]!;
  const shape: [number, number] = [rows.length, rows[0]!.length];
  return { shape, bits, signed, scale: base64(scale), data: base64(data.from(numbers)) };
}

function near(found: number[][], wanted: number[][], error: number): void {
  expect(found.map((row) => row.length)).toEqual(wanted.map((row) => row.length));
  found.forEach((row, r) => row.forEach((x, c) => expect(Math.abs(x - wanted[r]![c]!)).toBeLessThanOrEqual(error)));
}

describe("a packed matrix", () => {
  const weights = [[0.7, 0.2, 0.1], [0, 0, 0], [1e-4, 2e-4, 3e-5]];

  it("comes back within half a step of each row", () => {
    near(unpacked(packed(weights, false)), weights, 0.7 / 65535 / 2 + 1e-9);
    near(unpacked(packed(weights, false, 8)), weights, 0.7 / 255 / 2 + 1e-7);
    near(unpacked(packed(weights, false)).slice(2), weights.slice(2), 2e-4 / 65535);
  });

  it("has signs", () => {
    near(unpacked(packed([[-3, 2, 0.5], [1, -1, 0]], true)), [[-3, 2, 0.5], [1, -1, 0]], 3 / 32767);
    near(unpacked(packed([[-3, 2]], true, 8)), [[-3, 2]], 3 / 127);
  });

  it("may be plain floats, from known bytes", () => {
    expect(unpacked({ shape: [1, 2], bits: 32, data: "AACAPwAAAMA=" })).toEqual([[1, -2]]);
    expect(unpacked({ shape: [1, 2], bits: 16, signed: false, scale: "AACAPw==", data: "AQAAAQ==" })).toEqual([[1, 256]]);
  });

  it("refuses what does not fit its shape", () => {
    expect(() => unpacked({ shape: [2, 2], bits: 32, data: "AACAPw==" })).toThrow("2 × 2");
  });
});

describe("attention computed here", () => {
  it("follows a query", () => {
    const steps = follow({
      query_input: null, key_input: null, q: [1, 2], k: [[3, 4], [5, -6], [9, 9]], v: [[1, 0], [0, 1], [7, 7]],
      allowed: (j) => j < 2, recorded: [1, 0.001], output: null, score: "Dot()", formula: "q·k", terms: "q·k", scale: 0.5,
    });
    expect(steps.products[1]).toEqual([5, -12]);
    expect(steps.similarity).toEqual([11, -7, 27]);
    expect(steps.scaled).toEqual([5.5, -3.5, 13.5]);
    expect(steps.masked).toEqual([5.5, -3.5, null]);
    expect(steps.weights[1]).toBeCloseTo(1 / (1 + Math.exp(9)), 12);
    expect(steps.weights[2]).toBe(0);
    expect(steps.context[0]).toBeCloseTo(steps.weights[0]!, 12);
    expect(steps.difference).toBeCloseTo(0.001 - steps.weights[1]!, 9);
    expect(softmax([null, null])).toEqual([0, 0]);
  });

  it("uses products and scores that are given", () => {
    const steps = follow({
      query_input: null, key_input: null, q: [1], k: [[1], [1]], v: [[1], [2]], products: [[0.5, 0.25], [1, 1]], scaled: [0, 0],
      allowed: () => true, recorded: null, output: null, score: "Additive()", formula: "", terms: "", scale: null,
    });
    expect(steps.similarity).toEqual([0.75, 2]);
    expect(steps.weights).toEqual([0.5, 0.5]);
    expect(steps.difference).toBeNull();
  });

  it("pools cells of one size, the last maybe smaller", () => {
    const matrix = [[1, 2, 3], [4, 5, 6], [7, 8, 9]];
    expect(pooled(matrix, 2, 2, "max")).toMatchObject({ height: 2, width: 2, values: Float32Array.of(5, 6, 8, 9) });
    expect(pooled(matrix, 2, 2, "sum").values).toEqual(Float32Array.of(12, 9, 15, 9));
    expect(pooled(matrix, 9, 9, "max").values).toHaveLength(9);
  });
});

const word = (text: string, word: number) => ({ text, start: 0, end: 0, word });
const source: Side = { text: "a bc", tokens: [word("a", 0), word("b", 1), word("c", 1), word("</s>", -1)], words: [word("a", 0), word("bc", 1)] };
const target: Side = { text: "xy z", tokens: [word("<s>", -1), word("x", 0), word("y", 0), word("z", 1)], words: [word("xy", 0), word("z", 1)] };
const cross = [
  [0.9, 0.05, 0.05, 0],
  [0.2, 0.3, 0.4, 0.1],
  [0.6, 0.2, 0.2, 0],
  [0.1, 0.1, 0.1, 0.7],
];
const even = cross.map((row) => row.map(() => 0.25));

describe("alignments", () => {
  it("add up the pieces of a source word and average those of a target word", () => {
    const { weights, links } = aligned(cross, source, target, true);
    near(weights, [[0.4, 0.55], [0.1, 0.2]], 1e-12);
    expect(links).toEqual([[1, 0], [1, 1]]);
    near(aligned(cross, source, target, false).weights, [[0.55, 0.4], [0.6, 0.4]], 1e-12);
  });

  it("have no link where nothing is looked at", () => {
    expect(aligned(cross.map((row) => row.map(() => 0)), source, target, true).links).toEqual([]);
  });
});

const q = [[1, 0], [0, 1], [1, 1], [2, 0]];
const document: Document = {
  version: 1,
  regard: "0.1",
  trace: {
    translation: "xy z", model: "toy", source, target, note: "",
    kinds: [{ kind: "cross", layers: 1, heads: 2, rows: "target", columns: "source", score: "Dot()" }],
    alignment: { ...aligned(cross, source, target, true), layer: 0, head: 0, shift: true, aer: null },
  },
  stored: { weights: { bits: 16, error: 7.6e-6 } },
  weights: { cross: [[packed(cross, false), packed(even, false)]] },
  steps: [
    {
      kind: "cross", layer: 0, score: "Dot()", formula: "q·k / √d", terms: "q·k", scale: Math.SQRT1_2, query_inputs: null, key_inputs: null,
      heads: [{ head: 1, q: packed(q, true), k: packed(q, true), v: packed(q, true), allowed: "causal" }],
    },
  ],
  heads: [{ kind: "cross", layers: 1, heads: 2, entropy: [[1, 2]], sink: [[0, 0]], distance: [[1, 1]] }],
};

describe("a document in the page", () => {
  const data = embeddedSource(document);
  const place = { kind: "cross" as const, layer: 0, query: 1 };

  it("says what it can and what it holds", async () => {
    expect(data.can).toMatchObject({ translate: false, knockout: false, effects: [] });
    expect(data.can.steps).toEqual([{ kind: "cross", layer: 0, head: 1 }]);
    expect(data.can.views).toEqual(["sentence", "steps", "align", "heads", "compare"]);
    expect(embeddedSource({ ...document, steps: null, heads: null, trace: { ...document.trace, alignment: null } }).can.views)
      .toEqual(["sentence", "compare"]);
    expect((await data.models(signal)).scores).toEqual(["trained"]);
    expect((await data.models(signal)).measures).toEqual(["weights"]);
    expect(data.note).toContain("16 bits");
    expect(data.note).toContain("7.6 × 10⁻⁶");
    expect((await data.described(data.opened!, signal)).translation).toBe("xy z");
  });

  it("answers rows, of a head and of the mean of all", async () => {
    const row = await data.row("", { ...place, head: 0 }, "weights", signal);
    near([row.values], [cross[1]!], 1e-5);
    expect(row.entropy).toBeCloseTo(-[0.2, 0.3, 0.4, 0.1].reduce((a, p) => a + p * Math.log(p), 0), 4);
    near([(await data.row("", { ...place, head: "mean" }, "weights", signal)).values], [[0.225, 0.275, 0.325, 0.175]], 1e-5);
    await expect(data.row("", { ...place, head: 0 }, "norms", signal)).rejects.toThrow("without");
  });

  it("answers tiles, alignments, steps and heads", async () => {
    const tile = await data.tile("", { kind: "cross", layer: 0, head: 0 }, { height: 2, width: 2 }, signal);
    expect([tile.height, tile.width]).toEqual([2, 2]);
    expect(tile.values[3]).toBeCloseTo(0.7, 4);
    const part = await data.tile("", { kind: "cross", layer: 0, head: 0 }, { rows: [1, 2], cols: [0, 2] }, signal);
    expect([part.height, part.width]).toEqual([1, 2]);
    const own = await data.align("", { layer: null, head: null, shift: null, gold: "" }, signal);
    expect(own).toEqual(document.trace.alignment);
    const other = await data.align("", { layer: 0, head: 1, shift: false, gold: "" }, signal);
    near(other.weights, [[0.25, 0.5], [0.25, 0.5]], 1e-5);
    expect(other).toMatchObject({ layer: 0, head: 1, shift: false });
    const steps = await data.steps("", { ...place, head: 1 }, 0, "trained", signal);
    expect(steps.masked.map((x) => x === null)).toEqual([false, false, true, true]);
    await expect(data.steps("", { ...place, head: 0 }, 0, "trained", signal)).rejects.toThrow(SourceError);
    expect((await data.heads("", "cross", signal)).entropy).toEqual([[1, 2]]);
    await expect(data.effects("", "cross", null, signal)).rejects.toThrow("without");
    expect(await data.search("", "cross", "columns", "b", signal)).toEqual({ matches: [1], more: false });
  });

  it("of another version is refused", () => {
    expect(() => embeddedSource({ ...document, version: 2 })).toThrow("export it again");
  });
});

class FakeModel implements WidgetModel {
  sent: { id: number; method: string; params: Record<string, unknown> }[] = [];
  heard: ((...given: unknown[]) => void)[] = [];
  get = (name: string) => ({ trace: "t0", can: { knockout: true } })[name];
  send = (content: unknown) => void this.sent.push(content as (typeof this.sent)[number]);
  on = (_: string, listen: (...given: never[]) => void) => void this.heard.push(listen as (...given: unknown[]) => void);
  off = (_: string, listen: (...given: never[]) => void) => void (this.heard = this.heard.filter((one) => one !== listen));
  reply = (message: object, buffers: DataView[] = []) => this.heard.forEach((listen) => listen(message, buffers));
}

describe("a notebook's kernel", () => {
  it("is asked by messages, and answers may come in any order", async () => {
    const model = new FakeModel();
    const data = widgetSource(model);
    expect(data.can).toMatchObject({ translate: false, knockout: true });
    const row = data.row("t0", { kind: "self", layer: 0, head: "mean", query: 2 }, "weights", signal);
    const heads = data.heads("t0", "self", signal);
    await Promise.resolve();
    expect(model.sent.map((one) => one.method)).toEqual(["row", "heads"]);
    expect(model.sent[0]!.params).toEqual({ trace: "t0", kind: "self", layer: 0, head: "mean", query: 2, measure: "weights" });
    model.reply({ id: model.sent[1]!.id, ok: { kind: "self" } });
    model.reply({ id: model.sent[0]!.id, ok: { values: [1] } });
    expect(await row).toEqual({ values: [1] });
    expect(await heads).toEqual({ kind: "self" });
    await data.row("t0", { kind: "self", layer: 0, head: "mean", query: 2 }, "weights", signal);
    expect(model.sent).toHaveLength(2); // rows are kept
  });

  it("sends tiles as buffers, at any place in a longer one", async () => {
    const model = new FakeModel();
    const tile = widgetSource(model).tile("t0", { kind: "self", layer: 0, head: 1 }, { rows: [0, 4], height: 1 }, signal);
    expect(model.sent[0]!.params).toEqual({ trace: "t0", kind: "self", layer: 0, head: 1, rows: "0:4", height: 1 });
    const buffer = new ArrayBuffer(9);
    new DataView(buffer).setFloat32(1, 0.25, true);
    new DataView(buffer).setFloat32(5, 0.75, true);
    model.reply({ id: model.sent[0]!.id, ok: { shape: [1, 2], exact: "sampled" } }, [new DataView(buffer, 1, 8)]);
    expect(await tile).toEqual({ values: Float32Array.of(0.25, 0.75), height: 1, width: 2, exact: false });
  });

  it("refuses in words, and is not waited for after a cancel or the end", async () => {
    const model = new FakeModel();
    const messages = new Messages(model);
    const data = widgetSource(model, messages);
    const refused = data.knockout("t0", [], signal);
    model.reply({ id: model.sent[0]!.id, error: "there is no model to run again", status: 409 });
    await expect(refused).rejects.toMatchObject({ message: "there is no model to run again", status: 409 });
    const control = new AbortController();
    const cancelled = data.models(control.signal);
    control.abort();
    await expect(cancelled).rejects.toThrow();
    model.reply({ id: model.sent[1]!.id, ok: {} });
    const last = data.models(signal);
    messages.close();
    await expect(last).rejects.toThrow("not connected");
    expect(model.heard).toEqual([]);
  });

  it("does not mix up two views of one model", async () => {
    const model = new FakeModel();
    const [one, two] = [widgetSource(model), widgetSource(model)];
    const answers = [one.models(signal), two.models(signal)];
    model.reply({ id: model.sent[1]!.id, ok: "two" });
    model.reply({ id: model.sent[0]!.id, ok: "one" });
    expect(await Promise.all(answers)).toEqual(["one", "two"]);
  });
});

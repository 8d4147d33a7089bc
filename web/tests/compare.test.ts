import { describe, expect, it } from "vitest";
import { difference, fitted, folded, load, measuresOf, mismatch, settled, shares, sideName, usual } from "../src/lib/compare";
import { compareCode } from "../src/lib/python";
import type { Beside } from "../src/lib/selection";
import type { Source } from "../src/lib/source";
import type { Kind, Side, Trace } from "../src/lib/types";
import type { Unit } from "../src/lib/units";

const side = (change: Partial<Beside> = {}): Beside => ({ kind: "self", layer: 0, head: 0, measure: "weights", score: "trained", ...change });
const kind: Kind = { kind: "self", layers: 2, heads: 2, rows: "source", columns: "source", score: "Dot()" };
const words: Side = { text: "a b", tokens: [{ text: "a", start: 0, end: 1, word: 0 }, { text: "b", start: 2, end: 3, word: 1 }], words: [] };
const trace: Trace = { id: "t", translation: "x", model: "toy", source: words, target: words, kinds: [kind], alignment: null, note: "" };
const signal = new AbortController().signal;

describe("what is beside", () => {
  it("is the next head, or layer, or the norms; of something else its plain weights", () => {
    expect(usual(side({ head: 1 }), kind)).toEqual(side({ head: 0 }));
    expect(usual(side({ head: "mean" }), kind)).toEqual(side({ head: "mean", layer: 1 }));
    expect(usual(side(), { ...kind, heads: 1, layers: 1 })).toEqual(side({ measure: "norms" }));
    expect(usual(side({ measure: "norms" }), kind)).toEqual(side());
    expect(usual(side({ score: "additive" }), kind)).toEqual(side());
  });

  it("fits the trace that it is in", () => {
    expect(fitted(side({ kind: "cross", layer: 9, head: 9 }), trace)).toEqual(side({ layer: 1, head: 1 }));
    expect(settled(side({ head: "mean", measure: "norms", score: "dot" }))).toEqual(side({ score: "dot" }));
    expect(settled(side({ head: 1, measure: "rollout" }))).toEqual(side({ head: "mean", measure: "rollout" }));
  });

  it("is measured by what there is", () => {
    const source = (rollout: boolean) => ({ can: { rollout } }) as Source;
    expect(measuresOf(source(true), ["weights", "norms"], "self")).toEqual(["weights", "norms", "rollout"]);
    expect(measuresOf(source(true), ["weights", "rollout"], "self")).toEqual(["weights", "rollout"]);
    expect(measuresOf(source(true), ["weights", "rollout"], "cross")).toEqual(["weights"]);
    expect(measuresOf(source(false), ["weights"], "self")).toEqual(["weights"]);
  });

  it("has a name", () => {
    expect(sideName(side({ layer: 2, head: 3, measure: "norms" }))).toBe("layer 2, head 3, norms, as shares");
    expect(sideName(side({ layer: 1, head: "mean", measure: "rollout" }))).toBe("up to layer 1, rollout");
    expect(sideName(side({ score: "additive" }))).toBe("layer 0, head 0, additive score, counterfactual");
  });
});

describe("matrices", () => {
  const unit = (label: string, ...tokens: number[]): Unit => ({ label, tokens, word: 0, special: false, continues: false });

  it("have rows of shares, and a difference", () => {
    expect(shares([[1, 3], [0, 0]])).toEqual([[0.25, 0.75], [0, 0]]);
    expect(difference([[0.5, 0.5]], [[0.75, 0.25]])).toEqual([[-0.25, 0.25]]);
  });

  it("fold into words: rows averaged, columns added up", () => {
    const matrix = [[0.2, 0.3, 0.5], [0.4, 0.4, 0.2], [1, 0, 0]];
    const folds = folded(matrix, [unit("ab", 0, 1), unit("c", 2)], [unit("ab", 0, 1), unit("c", 2)]);
    expect(folds[0]![0]).toBeCloseTo(0.65, 12);
    expect(folds[0]![1]).toBeCloseTo(0.35, 12);
    expect(folds[1]).toEqual([1, 0]);
  });

  it("of different words have no difference, and it is said why", () => {
    const [one, two] = [[unit("a", 0)], [unit("b", 0)]];
    expect(mismatch({ rows: one, columns: one }, { rows: one, columns: one })).toBe("");
    expect(mismatch({ rows: one, columns: one }, { rows: two, columns: one })).toContain("words that look");
    expect(mismatch({ rows: one, columns: one }, { rows: one, columns: two })).toContain("attend to different");
  });

  it("are loaded at once, by rows, or by steps", async () => {
    const asked: string[] = [];
    const source = {
      tile: async () => (asked.push("tile"), { values: Float32Array.of(1, 0, 0.5, 0.5), height: 2, width: 2, exact: true }),
      row: async (_: string, { query }: { query: number }) => (asked.push(`row ${query}`), { values: [query + 1, 1], query, entropy: 0 }),
      steps: async (_: string, { query }: { query: number }) => (asked.push(`steps ${query}`), { weights: [1, 0] }),
    } as unknown as Source;
    expect(await load(source, "t", side(), 2, signal)).toEqual([[1, 0], [0.5, 0.5]]);
    expect(await load(source, "t", side({ measure: "norms" }), 2, signal)).toEqual([[0.5, 0.5], [2 / 3, 1 / 3]]);
    expect(await load(source, "t", side({ score: "dot" }), 1, signal)).toEqual([[1, 0]]);
    expect(asked).toEqual(["tile", "row 0", "row 1", "steps 0"]);
  });
});

describe("copied Python", () => {
  it("makes both and subtracts them", () => {
    const code = compareCode(trace, side(), trace, side({ head: "mean", measure: "norms" }));
    expect(code).toContain('first = trace.weights(0, 0, kind="self")');
    expect(code).toContain('second = trace.norms(0, None, kind="self").mean(0)');
    expect(code).toContain("second = second / second.sum(-1, keepdim=True)");
    expect(code).toContain("print(first - second)");
  });

  it("knows rollout, other scores and other models", () => {
    expect(compareCode(trace, side(), trace, side({ measure: "rollout", layer: 1 }))).toContain("trace.rollout(row, layer=1) for row in range(2)");
    expect(compareCode(trace, side(), trace, side({ score: "additive" }))).toContain("score = Additive(dim, dim, dim).eval()");
    expect(compareCode(trace, side(), { ...trace, id: "u", model: "rnn" }, side())).toContain('t2 = regard.load("rnn")');
  });
});

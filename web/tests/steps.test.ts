import { describe, expect, it } from "vitest";
import { choose, type Turn, turned } from "../src/lib/choice";
import { inkOn, rooted, sequential } from "../src/lib/colour";
import { alignCode, quoted, sentenceCode, stepsCode } from "../src/lib/python";
import { kindOf, kindTitle } from "../src/lib/kinds";
import { format, initial, parse, type Selection } from "../src/lib/selection";
import { explain, isDot, isScaled, operands } from "../src/lib/steps";
import type { Kind, Side, Steps, Trace } from "../src/lib/types";

const side = (text: string, extra: "before" | "after"): Side => {
  let start = 0;
  const words = text.split(" ").map((word) => {
    const span = { text: word, start, end: start + word.length };
    start += word.length + 1;
    return span;
  });
  const tokens = words.map((word, index) => ({ ...word, word: index }));
  const mark = { text: extra === "after" ? "</s>" : "<s>", start: 0, end: 0, word: -1 };
  return { text, words, tokens: extra === "after" ? [...tokens, mark] : [mark, ...tokens] };
};
const kind = (name: Kind["kind"], rows: Kind["rows"], columns: Kind["columns"]): Kind => {
  return { kind: name, layers: 2, heads: 4, rows, columns, score: "Dot()" };
};
const trace: Trace = {
  id: "x",
  translation: "il dort",
  model: "toy",
  source: side("now it sleeps", "after"),
  target: side("il dort", "before"),
  kinds: [kind("self", "source", "source"), kind("decoder", "target", "target"), kind("cross", "target", "source")],
  alignment: { weights: [], links: [], layer: 1, head: null, shift: true, aer: null },
  note: "",
};

describe("a choice", () => {
  it("is made where the selection leaves it open", () => {
    const chosen = choose(initial(), trace)!;
    expect([chosen.kind.kind, chosen.layer, chosen.head, chosen.query]).toEqual(["self", 0, 0, [1]]); // "it"
    const cross = choose({ ...initial(), kind: "cross" }, trace)!;
    expect([cross.layer, cross.query]).toEqual([1, [1]]); // the model's own layer, and no "it": the first word
    expect(cross.columns).toBe(trace.source);
  });

  it("stays inside what there is", () => {
    const chosen = choose({ ...initial(), kind: "decoder", layer: 9, head: 9, query: [2, 77], key: 99 }, trace)!;
    expect([chosen.layer, chosen.head, chosen.query, chosen.key]).toEqual([1, 3, [2], 2]);
    expect(choose(initial(), { ...trace, kinds: [] })).toBeNull();
  });
});

describe("another kind", () => {
  const aligned = { ...trace, alignment: { ...trace.alignment!, links: [[2, 1]] as [number, number][] } }; // sleeps, dort
  const turn = (selection: Partial<Selection>, to: string, last: Turn | null = null) => {
    const now = { ...initial(), ...selection };
    return turned(aligned, choose(now, aligned)!, now, to, last);
  };

  it("keeps layer and head, and shows the word that is linked", () => {
    const { change, turn: made } = turn({ layer: 1, head: 3, query: [2] }, "cross");
    expect(change).toEqual({ kind: "cross", key: null, query: [2] }); // <s> il dort
    expect(turn({ kind: "cross", query: [2] }, "decoder", made).change).toEqual({ kind: "decoder", key: null });
  });

  it("shows what was left, unless another word was chosen meanwhile", () => {
    const { turn: made } = turn({ query: [0, 2] }, "cross");
    expect(turn({ kind: "cross", query: [2] }, "self", made).change.query).toEqual([0, 2]);
    expect(turn({ kind: "cross", query: [2] }, "self", null).change.query).toEqual([2]);
    expect(turn({ kind: "cross", query: [1] }, "self", made).change.query).toEqual([]); // “il” has no link
  });

  it("has a name, of its tower too", () => {
    expect(["self", "text self", "vision_1 cross"].map(kindTitle)).toEqual(["Self-attention", "Text self-attention", "Vision_1 cross-attention"]);
    expect(["self", "text self", "x", "a b self", ""].map(kindOf)).toEqual(["self", "text self", null, null, null]);
    const towers = { ...trace, sides: { text: trace.source }, kinds: [kind("text self", "text", "text")] };
    expect(choose(initial(), towers)!.rows).toBe(trace.source);
    expect(parse(format({ ...initial(), kind: "text self", out: [{ kind: "text self", layer: 0, head: 3 }] }))).toMatchObject({
      kind: "text self",
      out: [{ kind: "text self", layer: 0, head: 3 }],
    });
  });
});

const dot: Steps = {
  query_input: [1],
  key_input: [1],
  q: [1, 2],
  k: [[3, 4], [5, -6]],
  v: [[1, 0], [0, 1]],
  products: [[3, 8], [5, -12]],
  similarity: [11, -7],
  scaled: [5.5, -3.5],
  masked: [5.5, null],
  weights: [1, 0],
  weighted: [[1, 0], [0, 0]],
  context: [1, 0],
  output: [1],
  recorded: [1, 0],
  difference: 0,
  score: "Dot()",
  counterfactual: false,
  terms: "q·k",
  formula: "q·k / √d",
  scale: 0.5,
};

describe("steps", () => {
  it("know a dot product and a plain scale by their numbers", () => {
    expect(isDot(dot)).toBe(true);
    expect(isDot({ ...dot, products: [[3, 8], [5, 12]] })).toBe(false);
    expect(isScaled(dot)).toBe(true);
    expect(isScaled({ ...dot, scaled: [5.6, -3.5] })).toBe(false);
    expect(isScaled({ ...dot, scale: null })).toBe(false);
  });

  it("light what a number was made of", () => {
    expect(operands({ step: "products", index: 1, dim: 0 }, dot)).toContainEqual({ step: "k", index: 1, dim: 0 });
    expect(operands({ step: "weights", index: 1, dim: null }, dot)).toEqual([{ step: "masked" }]);
    expect(operands({ step: "context", index: 1, dim: null }, dot)).toEqual([{ step: "weighted", dim: 1 }]);
    expect(operands({ step: "query_input", index: 0, dim: null }, dot)).toEqual([]);
  });

  it("tell it in numbers", () => {
    const told = (step: string, index: number, dim: number | null = null) => explain({ step, index, dim }, dot, ["a", "b"]);
    expect(told("products", 1, 1)).toBe("q[1] × k[b, 1] = 2.0000 × −6.0000 = −12.0000");
    expect(told("scaled", 0)).toBe("11.0000 × 0.5000 = 5.5000");
    expect(told("masked", 1)).toContain("−∞");
    expect(told("weighted", 0, 0)).toBe("α[a] × v[a, 0] = 1.0000 × 1.0000 = 1.0000");
  });
});

describe("copied Python", () => {
  const chosen = choose(initial(), trace)!;

  it("quotes whatever a sentence holds", () => {
    expect(quoted('a "b" \\ \n')).toBe('"a \\"b\\" \\\\ \\n"');
    expect(quoted("\u2028")).toBe('"\\u2028"');
  });

  it("asks the trace for what is shown", () => {
    const code = sentenceCode(trace, chosen, initial(), [[1]]);
    expect(code).toContain('t = regard.load("toy")');
    expect(code).toContain('rows = trace.weights(0, 0, rows=[1], kind="self")');
    const mean = sentenceCode(trace, { ...chosen, head: "mean" }, { ...initial(), measure: "norms" }, [[1, 2], [0]]);
    expect(mean).toContain('trace.norms(0, None, rows=[1, 2, 0], kind="self").mean(0)');
    expect(mean).toContain("values = rows[[0, 1]].mean(0) + rows[[2]].mean(0)");
  });

  it("makes a counterfactual score as the service does", () => {
    expect(stepsCode(trace, chosen, "trained", 8)).not.toContain("score=");
    expect(stepsCode(trace, chosen, "additive", 8)).toContain("score = Additive(8, 8, 8).eval()");
  });

  it("aligns by the layer, head and rows that are shown", () => {
    const code = alignCode(trace, { layer: 1, head: null, shift: false, gold: "0-0" });
    expect(code).toContain("layer=1, shift=False)");
    expect(code).toContain('regard.align.parse("0-0")');
    // a model may have a head of its own, so the mean has to be asked for
    const mean = alignCode(trace, { layer: null, head: "mean", shift: true, gold: "" });
    expect(mean).toContain('translations[0], head="mean", shift=True)');
  });
});

describe("colours", () => {
  it("go from light to dark, and to light on dark", () => {
    expect(inkOn(sequential(1, false)(0))).toBe("#000000");
    expect(inkOn(sequential(1, false)(1))).toBe("#ffffff");
    expect(inkOn(sequential(1, true)(1))).toBe("#000000");
  });

  it("by the square root have half the way for a quarter", () => {
    expect(rooted(2, false)(0.5)).toBe(sequential(1, false)(0.5));
    expect(rooted(1, false)(0)).toBe(sequential(1, false)(0));
    expect(rooted(1, false)(1)).toBe(sequential(1, false)(1));
  });
});

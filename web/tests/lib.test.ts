import { describe, expect, it } from "vitest";
import { across, arc, arcWidth, lineLength, MAX_WIDTH, sameLine } from "../src/lib/arcs";
import { brief, fixed, rounded, scientific } from "../src/lib/numbers";
import { errorRate, formatLinks, parseLinks } from "../src/lib/pharaoh";
import { EXAMPLE, format, initial, parse, type Selection } from "../src/lib/selection";
import type { Side } from "../src/lib/types";
import { direction, fold, isSink, meanRows, strongest, sumRows, unitOf, units } from "../src/lib/units";

describe("the selection in the URL", () => {
  const full: Selection = {
    view: "align",
    text: "a & b = c? #1 日本 <img onerror=x> 100%",
    target: "un + deux",
    model: "en-fr-small",
    second: "rnn",
    kind: "cross",
    layer: 2,
    head: "mean",
    query: [3, 5],
    key: 0,
    measure: "norms",
    score: "additive",
    words: true,
    hide: ["special", "first"],
    top: 0,
    shift: false,
    gold: "0-0 1p2",
    sort: "effect",
    out: [
      { kind: "self", layer: 0, head: 3 },
      { kind: "cross", layer: 1, head: 2 },
    ],
    with: { kind: "cross", layer: 1, head: "mean", measure: "norms", score: "trained" },
    other: "rnn",
    mode: "difference",
    trace: "a/b",
    x: 1234.5,
    y: 0,
    z: -3.25,
    pool: "sum",
    scale: "linear",
    row: 99_999,
    document: "Ann: hi\nBo: hello & bye",
    length: 12,
    word: 3,
    context: "",
    question: "Who?",
    asked: 0,
    candidate: 2,
  };

  it("comes back as it was", () => {
    expect(parse(format(full))).toEqual(full);
    expect(parse(format({ ...full, shift: true, head: 7 }))).toEqual({ ...full, shift: true, head: 7 });
    expect(parse(format(initial()))).toEqual(initial());
  });

  it("keeps an emptied text empty", () => {
    expect(parse(format({ ...initial(), text: "" })).text).toBe("");
    expect(parse("").text).toBe(EXAMPLE);
  });

  it("says the texts that its view is about", () => {
    const plain = initial();
    expect(format(plain)).toMatch(/^#\/sentence\?text=[^&]*$/);
    expect(format({ ...plain, view: "summary" })).toMatch(/^#\/summary\?document=[^&]*$/);
    expect(format({ ...plain, view: "answer" })).toMatch(/^#\/answer\?context=[^&]*&question=[^&]*$/);
    expect(format({ ...plain, view: "long", question: "Who?" })).toBe("#/long?question=Who%3F");
  });

  it("takes the contract's form", () => {
    const found = parse("#/steps?text=Hi%20you&kind=decoder&layer=1&head=0&query=3&key=5&score=rotary&words=1");
    expect(found).toMatchObject({ view: "steps", text: "Hi you", kind: "decoder", layer: 1, head: 0, query: [3], key: 5 });
    expect(found).toMatchObject({ score: "rotary", words: true });
  });

  it("says which heads are out and what is beside", () => {
    const found = parse("#/heads?out=self.0.3,cross.1.2,self.0.3,evil.1.1,self.x.1,self.1&with=self.2.0.weights.additive&sort=sink");
    expect(found.out).toEqual(full.out);
    expect(found.with).toEqual({ kind: "self", layer: 2, head: 0, measure: "weights", score: "additive" });
    expect(format(found)).toContain("with=self.2.0.weights.additive");
    expect(parse("#/compare?with=self.2").with).toBeNull();
    expect(format(full, { text: false })).not.toContain("text=");
  });

  it("has defaults for nonsense", () => {
    const found = parse("#/nowhere?layer=-1&head=x&query=1,,2,1,z&kind=evil&hide=all,first&top=abc");
    expect(found).toEqual({ ...initial(), query: [1, 2], hide: ["first"] });
  });
});

const side: Side = {
  text: "🙂unhappy cats.",
  tokens: [
    { text: "<s>", start: 0, end: 0, word: -1 },
    { text: "x", start: 0, end: 1, word: 0 },
    { text: "Ġun", start: 1, end: 3, word: 0 },
    { text: "happy", start: 3, end: 8, word: 0 },
    { text: "Ġcats", start: 8, end: 13, word: 1 },
    { text: ".", start: 13, end: 14, word: 1 },
    { text: "</s>", start: 14, end: 14, word: -1 },
  ],
  words: [
    { text: "🙂unhappy", start: 0, end: 8 },
    { text: "cats.", start: 9, end: 14 },
  ],
};

describe("pieces of one character", () => {
  const token = (start: number, end: number, word: number) => ({ text: "", start, end, word });
  const labels = (text: string, tokens: Side["tokens"]) =>
    units({ text, tokens, words: [{ text, start: 0, end: text.length }] }, false).map((unit) => unit.label);

  it("are numbered", () => {
    expect(labels("a😀b", [token(0, 1, 0), token(1, 2, 0), token(1, 2, 0), token(1, 2, 0), token(2, 3, 0)])).toEqual(["a", "😀 1/3", "😀 2/3", "😀 3/3", "b"]);
    expect(labels("aa", [token(0, 1, 0), token(1, 2, 0)])).toEqual(["a", "a"]); // two letters
    expect(labels("x", [token(0, 0, -1), token(0, 0, -1), token(0, 1, 0)]).at(-1)).toBe("x"); // marks are no pieces
  });

  it("have a name where nothing can be seen", () => {
    expect(labels("a\u200d\ufe0f", [token(0, 1, 0), token(1, 2, 0), token(2, 3, 0)])).toEqual(["a", "U+200D", "U+FE0F"]);
  });
});

describe("units", () => {
  it("are tokens by their characters, not by UTF-16 units", () => {
    expect(units(side, false).map((unit) => unit.label)).toEqual(["<s>", "🙂", "un", "happy", "cats", ".", "</s>"]);
    expect(units(side, false).map((unit) => unit.continues)).toEqual([false, false, true, true, false, true, false]);
  });

  it("are words with their tokens", () => {
    const words = units(side, true);
    expect(words.map((unit) => unit.label)).toEqual(["<s>", "🙂unhappy", "cats.", "</s>"]);
    expect(words.map((unit) => unit.tokens)).toEqual([[0], [1, 2, 3], [4, 5], [6]]);
    expect([0, 3, 5, 6, 99].map((token) => unitOf(words, token))).toEqual([0, 1, 2, 3, 0]);
  });

  it("fold weights without losing any", () => {
    const values = [0.1, 0.2, 0.05, 0.05, 0.3, 0.1, 0.2];
    const folded = fold(values, units(side, true));
    [0.1, 0.3, 0.4, 0.2].forEach((value, i) => expect(folded[i]).toBeCloseTo(value, 12));
  });

  it("average the rows of a word and add up rows of several", () => {
    expect(meanRows([[1, 0], [0, 1]])).toEqual([0.5, 0.5]);
    expect(sumRows([[1, 0], [0, 1], [1, 1]])).toEqual([2, 2]);
    expect(meanRows([])).toEqual([]);
  });

  it("are sinks only when asked", () => {
    const all = units(side, false);
    const hidden = (...hide: ("special" | "punctuation" | "first")[]) =>
      all.flatMap((unit, index) => (isSink(unit, index, hide) ? [index] : []));
    expect(hidden()).toEqual([]);
    expect(hidden("special")).toEqual([0, 6]);
    expect(hidden("punctuation")).toEqual([1, 5]);
    expect(hidden("first")).toEqual([0]);
  });

  it("read right to left when the first letter does", () => {
    expect(direction("123 שלום abc")).toBe("rtl");
    expect(direction("« Bonjour » مرحبا")).toBe("ltr");
    expect(direction("")).toBe("ltr");
  });
});

describe("the strongest", () => {
  const values = [0.05, 0.4, 0.1, 0.25, 0.2];

  it("are the largest, the rest is what is left", () => {
    const shown = strongest(values, 2);
    expect(shown.parts.map((part) => part.index)).toEqual([1, 3]);
    expect(shown.rest).toBeCloseTo(0.35, 12);
    expect(shown.others).toBe(3);
  });

  it("do not count what is hidden, and say how much that is", () => {
    const shown = strongest(values, 2, (index) => index === 1);
    expect(shown.parts.map((part) => part.index)).toEqual([3, 4]);
    expect(shown.hidden).toBeCloseTo(0.4, 12);
    expect(shown.sinks).toBe(1);
    const sum = shown.parts.reduce((a, part) => a + part.value, 0) + shown.rest + shown.hidden;
    expect(sum).toBeCloseTo(1, 12);
  });

  it("are all of them for 0, except those that are nothing", () => {
    expect(strongest([0, 0.5, 0.5], 0).parts).toHaveLength(2);
    expect(strongest([NaN, 0.5, 0], 1).parts).toEqual([{ index: 0, value: NaN }]); // it is to be seen
    expect(strongest([], 5)).toEqual({ parts: [], rest: 0, others: 0, hidden: 0, sinks: 0 });
  });
});

describe("gold links", () => {
  it("are sure or possible, in every spelling", () => {
    const gold = parseLinks("0-0 1p2, 2?1 3-3p");
    expect([...gold.sure]).toEqual(["0-0"]);
    expect([...gold.possible]).toEqual(["0-0", "1-2", "2-1", "3-3"]);
    expect(formatLinks(gold)).toBe("0-0 1p2 2p1 3p3");
    expect(gold.problem).toBe("");
  });

  it("say what is wrong and keep the rest", () => {
    expect(parseLinks("0-0 x 1-").problem).toContain("“x”");
    expect(parseLinks("0-0 5-0", 3, 3).problem).toContain("“5-0”");
    expect([...parseLinks("0-0 5-0", 3, 3).sure]).toEqual(["0-0"]);
  });

  it("give the error rate of regard.align's own example", () => {
    expect(errorRate([[0, 0], [1, 1]], parseLinks("0-0 1p1 2-1"))).toBeCloseTo(0.25, 12);
    expect(errorRate([], parseLinks(""))).toBe(0);
    expect(errorRate([[0, 1]], parseLinks("0-0"))).toBe(1);
  });
});

describe("arcs", () => {
  const a = { x: 0, y: 200, width: 20, height: 30 };
  const b = { x: 100, y: 200, width: 40, height: 30 };

  it("start and end at the middle of their words", () => {
    expect(arc(a, b, 100).path).toMatch(/^M10,200C.* 120,200$/);
  });

  it("rise with their length and stay in the room there is", () => {
    expect(arc(a, b, 1000).top).toBeLessThan(arc(a, { ...b, x: 30 }, 1000).top);
    expect(arc(a, { ...b, x: 5000 }, 90).top).toBe(110);
  });

  it("join lines from the side that faces the other", () => {
    const above = { ...b, y: 100 };
    expect(sameLine(a, above)).toBe(false);
    expect(arc(a, above, 100).path).toMatch(/^M10,200C.* 120,130$/);
    expect(arc(above, a, 100).path).toMatch(/^M120,130C.* 10,200$/);
  });

  it("loop when a word looks at itself", () => {
    expect(arc(a, a, 100).path).toMatch(/^M5,200C.* 15,200$/);
  });

  it("go level between columns", () => {
    expect(across(0, 10, 100, 30).path).toBe("M0,10C50,10 50,30 100,30");
  });

  it("know a long line before it is drawn", () => {
    expect(lineLength(["日本語"])).toBeGreaterThan(lineLength(["abc"]));
    expect(lineLength(["a", "b"])).toBeCloseTo(2 * lineLength(["a"]), 9);
  });

  it("have a width in proportion to the weight", () => {
    expect(arcWidth(1, 1)).toBe(MAX_WIDTH);
    expect(arcWidth(0.5, 1)).toBe(MAX_WIDTH / 2);
    expect(arcWidth(1e-6, 1)).toBeGreaterThan(0);
    expect(arcWidth(0, 1)).toBe(0);
    expect(arcWidth(0.5, 0)).toBe(0);
  });
});

describe("numbers", () => {
  it("are as short as a label", () => {
    expect([0.25, 0.005, 0.0049, 1e-9, 0, 12.345, -0.25].map((x) => brief(x))).toEqual(["0.25", "0.01", "<0.01", "<0.01", "0.00", "12.35", "−0.25"]);
  });

  it("have a true minus and no minus zero", () => {
    expect(fixed(-1.5, 2)).toBe("−1.50");
    expect(fixed(-0, 2)).toBe("0.00");
    expect(fixed(null)).toBe("−∞");
    expect(fixed(0.00001)).toBe("1.0 × 10⁻⁵");
    expect(scientific(0)).toBe("0");
    expect(rounded(-0.001)).toBe("0.00");
    expect(rounded(null)).toBe("−∞");
  });
});

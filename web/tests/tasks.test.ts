import { describe, expect, it } from "vitest";
import { meanRow, pieces } from "../src/lib/passage";
import { answerCode, summaryCode } from "../src/lib/python";
import { VIEWS } from "../src/lib/selection";
import { modelFor, modelsOf, viewsOf } from "../src/lib/tabs";
import type { Answer, Models, Passage, Summary, Task } from "../src/lib/types";

function passage(text: string): Passage {
  const characters = Array.from(text);
  const words = [];
  for (let at = 0; at < characters.length; ) {
    let to = at;
    while (to < characters.length && !/\s/.test(characters[to]!)) to += 1;
    if (to > at) words.push({ text: characters.slice(at, to).join(""), start: at, end: to });
    at = Math.max(to, at + 1);
  }
  return { text, words };
}

describe("a passage in pieces", () => {
  it("is the whole text, in order", () => {
    const text = " The 🐈 has\n\nan egg. ";
    expect(pieces(passage(text), []).map((piece) => piece.text).join("")).toBe(text);
    expect(pieces(passage(text), []).filter((piece) => piece.word >= 0).map((piece) => piece.text)).toEqual(["The", "🐈", "has", "an", "egg."]);
    expect(pieces(passage(""), [])).toEqual([]);
  });

  it("is cut where a mark begins and ends, in the middle of a word too", () => {
    const found = pieces(passage("🐈 has an egg."), [{ start: 6, end: 12, name: "answer" }]);
    const marked = found.filter((piece) => piece.marks.includes("answer"));
    expect(marked.map((piece) => piece.text)).toEqual(["an", " ", "egg"]);
    expect(marked.map((piece) => piece.word)).toEqual([2, -1, 3]);
    expect(marked.map((piece) => [piece.first, piece.last])).toEqual([[true, false], [false, false], [false, true]]);
    expect(found.at(-1)).toMatchObject({ text: ".", word: 3, marks: [] });
  });

  it("has marks that overlap, and a frame around the answer alone", () => {
    const found = pieces(passage("a b c"), [
      { start: 2, end: 3, name: "candidate" },
      { start: 0, end: 5, name: "answer" },
    ]);
    expect(found.map((piece) => piece.marks.length)).toEqual([1, 1, 2, 1, 1]);
    expect(found.map((piece) => piece.first)).toEqual([true, false, false, false, false]);
    expect(found.map((piece) => piece.last)).toEqual([false, false, false, false, true]);
    expect(pieces(passage("ab"), [{ start: 1, end: 99, name: "answer" }]).map((piece) => piece.text).join("")).toBe("ab");
  });

  it("has a mean of rows", () => {
    expect(meanRow([[1, 0], [0, 0.5]], 2)).toEqual([0.5, 0.25]);
    expect(meanRow([], 2)).toEqual([0, 0]);
  });
});

describe("models of several tasks", () => {
  const model = (name: string, task: Task) => ({ name, task, architecture: "", parameters: 0, default: true, kinds: [], limit: 0 });
  const served = (...tasks: Task[]): Models => ({ models: tasks.map((task) => model(`a ${task}`, task)), scores: [], measures: [], version: "" });
  const trace = { id: "t", name: "t", kinds: [] };

  it("have the views that they can do", () => {
    const translation = ["sentence", "steps", "align", "heads", "compare", "long"];
    expect(viewsOf(VIEWS, "sentence", served("translation"), [])).toEqual(translation);
    expect(viewsOf(VIEWS, "sentence", served("qa"), [])).toEqual(["answer"]);
    expect(viewsOf(VIEWS, "sentence", served("qa", "summarization"), [])).toEqual(["summary", "answer"]);
    expect(viewsOf(VIEWS, "sentence", served("qa"), [trace])).toEqual(["long", "answer"]);
    expect(viewsOf(VIEWS, "sentence", served(), [])).toEqual(["long"]);
    expect(viewsOf(VIEWS, "sentence", served("translation", "qa"), [])).toEqual([...translation, "answer"]);
  });

  it("show what is asked for until they are known", () => {
    expect(viewsOf(VIEWS, "answer", null, [])).toContain("answer");
    expect(viewsOf(VIEWS, "sentence", null, [])).not.toContain("answer");
  });

  it("are chosen for their own task", () => {
    const known = served("translation", "qa");
    expect(modelsOf(known, "qa").map((one) => one.name)).toEqual(["a qa"]);
    expect(modelFor(known, "a qa", "qa")).toBe("a qa");
    expect(modelFor(known, "a qa", "translation")).toBe("");
    expect(modelFor(known, "nobody", "qa")).toBe("nobody"); // the service tells
  });
});

describe("Python of other tasks", () => {
  it("asks for what is shown", () => {
    const summary = { source: passage('say "hi"'), model: "m" } as Summary;
    expect(summaryCode(summary, 7, 2)).toContain('summary = s.summarize(text, beam=5, no_repeat=3, length=7)');
    expect(summaryCode(summary, null, 2)).toContain("summary.attention[2]");
    expect(summaryCode(summary, null, null)).toContain('text = "say \\"hi\\""');
    const answer = { context: passage("a"), question: passage("b"), model: "m" } as Answer;
    expect(answerCode(answer, null)).toContain("answer.attention.mean(0)");
    expect(answerCode(answer, 1)).toContain('a.answer(context, "b", n_best=5, attention=True)');
  });
});

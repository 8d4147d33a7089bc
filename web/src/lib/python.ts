// "Copy as Python": code whose output is the numbers on the screen.

import type { Choice } from "./choice";
import type { Selection } from "./selection";
import type { Trace } from "./types";

/** A Python string. JSON's escapes are Python's too, except that Python has no surrogate pairs. */
export function quoted(text: string): string {
  return JSON.stringify(text).replace(/[\u2028\u2029\u0085]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function loaded(trace: Trace): string[] {
  return [
    "import regard",
    "",
    `t = regard.load(${quoted(trace.model)})`,
    `source = ${quoted(trace.source.text)}`,
    `target = ${quoted(trace.target.text)}`,
  ];
}

function recorded(trace: Trace): string[] {
  return [...loaded(trace), "with regard.record(t.model) as trace:", "    t.forced([(source, target)])"];
}

/** A recurrent decoder makes a call per step; `call=None` reads them as one. */
const every = (trace: Trace) => (trace.kinds.some((kind) => kind.kind !== "cross") ? "" : ", call=None");

const list = (values: number[]) => `[${values.join(", ")}]`;

/** The row, or the sum of rows, of the Sentence view: per token, as the model has them. */
export function sentenceCode(trace: Trace, choice: Choice, selection: Selection, tokens: number[][]): string {
  const head = choice.head === "mean" ? "None" : String(choice.head);
  const mean = choice.head === "mean" ? ".mean(0)" : "";
  const all = tokens.flat();
  const lines = recorded(trace);
  const call = `trace.${selection.measure}(${choice.layer}, ${head}, rows=${list(all)}, kind="${choice.kind.kind}"${every(trace)})${mean}`;
  lines.push(`rows = ${call}  # [${all.length}, ${choice.columns.tokens.length}]`);
  const groups = tokens.map((group) => list(group.map((token) => all.indexOf(token))));
  const summed = groups.map((group) => `rows[${group}].mean(0)`).join(" + ");
  lines.push(tokens.some((group) => group.length > 1) ? `values = ${summed}` : "values = rows.sum(0)", "print(values)");
  if (selection.words) lines.push("# on the page the pieces of a word are then added up");
  return lines.join("\n") + "\n";
}

const SCORES: Record<string, (dim: number) => string> = {
  dot: () => "Dot()",
  additive: (dim) => `Additive(${dim}, ${dim}, ${dim})`,
  general: (dim) => `General(${dim}, ${dim})`,
  bilinear: (dim) => `Bilinear(${dim}, ${dim}, ${dim})`,
  location: (dim) => `Location(${dim}, 16)`,
  relative: (dim) => `Relative(${dim}, 16)`,
  rotary: () => "Rotary(Dot())",
};
const SEED = 20_170_612; // as in regard/explorer/scores.py

export function stepsCode(trace: Trace, choice: Choice, score: string, dim: number): string {
  const lines = recorded(trace);
  const other = SCORES[score];
  if (other) lines.push("", "import torch", "from regard.score import *", `torch.manual_seed(${SEED})`, `score = ${other(dim)}.eval()`);
  const given = other ? ", score=score" : "";
  lines.push(
    `steps = trace.steps(${choice.layer}, ${choice.head}, ${choice.query[0]}, kind="${choice.kind.kind}"${every(trace)}${given})`,
    "print(steps.q, steps.products, steps.similarity, steps.scaled, steps.masked, steps.weights, steps.context)",
    "print(steps.difference)",
  );
  return lines.join("\n") + "\n";
}

export interface AlignCode {
  layer: number | null;
  head: number | "mean" | null;
  shift: boolean;
  gold: string;
}

export function alignCode(trace: Trace, choice: AlignCode): string {
  const { layer, head, shift, gold } = choice;
  const where = [
    ...(layer === null ? [] : [`layer=${layer}`]),
    ...(head === null || head === "mean" ? [] : [`head=${head}`]),
    `shift=${shift ? "True" : "False"}`,
  ].join(", ");
  const lines = loaded(trace);
  lines.push(
    "[output] = t.forced([(source, target)], attention=True)",
    `weights = t.word_weights(output.translations[0], ${where})  # [target words, source words]`,
    "links = regard.align.links(weights)",
    "print(weights, regard.align.pharaoh(links))",
  );
  if (gold) lines.push(`print(regard.align.quality([links], [regard.align.parse(${quoted(gold)})]))`);
  return lines.join("\n").replace("import regard\n", "import regard\nimport regard.align\n") + "\n";
}

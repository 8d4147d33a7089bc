// "Copy as Python": code whose output is the numbers on the screen.

import type { Choice } from "./choice";
import { roleOf, sideOf } from "./kinds";
import type { Beside, Out, Selection } from "./selection";
import type { Answer, Summary, Trace } from "./types";

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

export function recorded(trace: Trace): string[] {
  if (!trace.translation) return ["# with regard.record(model) as trace:", "#     model(…)"];
  return [...loaded(trace), "with regard.record(t.model) as trace:", "    t.forced([(source, target)])"];
}

/** A recurrent decoder makes a call per step; `call=None` reads them as one. */
export const every = (trace: Trace) => (trace.kinds.some((kind) => roleOf(kind.kind) !== "cross") ? "" : ", call=None");

const list = (values: number[]) => `[${values.join(", ")}]`;

/** The row, or the sum of rows, of the Sentence view: per token, as the model has them. */
export function sentenceCode(trace: Trace, choice: Choice, selection: Selection, tokens: number[][]): string {
  const head = choice.head === "mean" ? "None" : String(choice.head);
  const mean = choice.head === "mean" ? ".mean(0)" : "";
  const all = tokens.flat();
  const lines = recorded(trace);
  if (selection.measure === "rollout") return rolloutCode(lines, choice, all);
  const call = `trace.${selection.measure}(${choice.layer}, ${head}, rows=${list(all)}, kind="${choice.kind.kind}"${every(trace)})${mean}`;
  lines.push(`rows = ${call}  # [${all.length}, ${choice.columns.tokens.length}]`);
  const groups = tokens.map((group) => list(group.map((token) => all.indexOf(token))));
  const summed = groups.map((group) => `rows[${group}].mean(0)`).join(" + ");
  lines.push(tokens.some((group) => group.length > 1) ? `values = ${summed}` : "values = rows.sum(0)", "print(values)");
  if (selection.words) lines.push("# on the page the pieces of a word are then added up");
  return lines.join("\n") + "\n";
}

/** `rollout` is of the kind "self", unless another one is named. */
const rolledKind = (kind: string) => (kind === "self" ? "" : `, kind="${kind}"`);

function rolloutCode(lines: string[], { kind, layer }: Choice, tokens: number[]): string {
  lines.push(`print(sum(trace.rollout(row, layer=${layer}${rolledKind(kind.kind)}) for row in ${list(tokens)}))`);
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
    ...(head === null ? [] : [head === "mean" ? 'head="mean"' : `head=${head}`]),
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

const MEASURE_CALLS: Record<string, string> = { entropy: "trace.entropy", sink: "trace.sink", distance: "trace.distance" };

/** How sure the model is of each token of the target, and of its end, without some heads; `ablate({})` takes nothing away. */
function logProb(trace: Trace): string[] {
  const taken = ["def log_prob(heads):", "    return trace.ablate(heads)[0].double().log_softmax(-1)[range(len(ids)), ids]"];
  if (!trace.translation) return [...recorded(trace), "# ids: what each position should predict", ...taken];
  return [
    ...loaded(trace),
    "",
    "import torch",
    "ids = [*t.subwords.encode(target).ids, t.model.eos_id]",
    "read = torch.tensor([[*t.subwords.encode(source).ids, t.model.eos_id]], device=t.device)",
    "given = torch.tensor([[t.model.bos_id, *ids[:-1]]], device=t.device)",
    "with torch.no_grad(), regard.record(t.model) as trace:",
    "    t.model(read, given)",
    ...taken,
  ];
}

/** The numbers under the pictures of the Heads view: [layers, heads]. */
export function headsCode(trace: Trace, kind: string, by: string): string {
  const call = MEASURE_CALLS[by];
  const lines = call ? recorded(trace) : logProb(trace);
  const loop = (value: string) => `[[${value} for head in range(trace.shape(layer, kind="${kind}")[1])] for layer in range(trace.kinds["${kind}"])]`;
  if (call) lines.push(`print(${loop(`${call}(layer, head, kind="${kind}"${every(trace)}).mean().item()`)})`);
  else lines.push("base = log_prob({})", `print(${loop(`(log_prob({("${kind}", layer): [head]}) - base).sum().item()`)})`);
  return lines.join("\n") + "\n";
}

/** A set of heads as `{("self", 0): [3]}`. */
export function headSet(out: readonly Out[]): string {
  const found = new Map<string, number[]>();
  for (const { kind, layer, head } of out) {
    const key = `("${kind}", ${layer})`;
    found.set(key, [...(found.get(key) ?? []), head]);
  }
  return `{${[...found].map(([key, heads]) => `${key}: ${list(heads)}`).join(", ")}}`;
}

export function knockoutCode(trace: Trace, out: readonly Out[]): string {
  const lines = logProb(trace);
  lines.push(`change = log_prob(${headSet(out)}) - log_prob({})`, "print(change.sum(), change)");
  return lines.join("\n") + "\n";
}

/** Lines that leave a matrix of shares in `name`. */
function sideCode(name: string, of: Trace, trace: string, side: Beside): string[] {
  const { kind, layer, head, measure, score } = side;
  const where = `kind="${kind}"${every(of)}`;
  const queries = sideOf(of, of.kinds.find((one) => one.kind === kind)?.rows ?? "source").tokens.length;
  if (measure === "rollout") return [`${name} = torch.stack([${trace}.rollout(row, layer=${layer}${rolledKind(kind)}) for row in range(${queries})])`];
  const other = SCORES[score];
  if (other) {
    return [
      `dim = len(${trace}.steps(${layer}, ${head}, 0, ${where}).q)`,
      `torch.manual_seed(${SEED})`,
      `score = ${other(NaN).replaceAll("NaN", "dim")}.eval()`,
      `${name} = torch.stack([${trace}.steps(${layer}, ${head}, row, ${where}, score=score).weights for row in range(${queries})])`,
    ];
  }
  const mean = head === "mean" ? ".mean(0)" : "";
  const lines = [`${name} = ${trace}.${measure}(${layer}, ${head === "mean" ? "None" : head}, ${where})${mean}`];
  return measure === "weights" ? lines : [...lines, `${name} = ${name} / ${name}.sum(-1, keepdim=True)`];
}

/** Both matrices of the Compare view, token by token, and their difference. */
export function compareCode(trace: Trace, first: Beside, beside: Trace, second: Beside): string {
  const lines = recorded(trace);
  const scores = [first, second].some((side) => SCORES[side.score]);
  lines.push("", "import torch", ...(scores ? ["from regard.score import *"] : []), ...sideCode("first", trace, "trace", first));
  const same = beside.id === trace.id;
  if (!same) {
    lines.push("", `t2 = regard.load(${quoted(beside.model)})`, "with regard.record(t2.model) as trace2:", "    t2.forced([(source, target)])");
  }
  lines.push(...sideCode("second", beside, same ? "trace" : "trace2", second));
  const comparable = same && first.kind === second.kind;
  lines.push(comparable ? "print(first - second)" : "print(first, second)");
  if (!same) lines.push("# on the page rows and columns are then those of words");
  return lines.join("\n") + "\n";
}

/** A summary, and what one of its words, or all of them on average, looked at. */
export function summaryCode(summary: Summary, length: number | null, word: number | null): string {
  const lines = [
    "import regard",
    "",
    `s = regard.load(${quoted(summary.model)})`,
    `text = ${quoted(summary.source.text)}`,
    `summary = s.summarize(text, beam=5, no_repeat=3${length === null ? "" : `, length=${length}`})`,
    "print(summary.text)",
    word === null ? "values = summary.attention.mean(0)" : `values = summary.attention[${word}]`,
    "print([(word.text, float(value)) for word, value in zip(summary.source, values)])",
    word === null ? "print(summary.copied)" : `print(summary.copied[${word}])`,
  ];
  return lines.join("\n") + "\n";
}

/** An answer, its candidates, and what one word of the question, or all of them on average, attended to. */
export function answerCode(answer: Answer, word: number | null): string {
  const lines = [
    "import regard",
    "",
    `a = regard.load(${quoted(answer.model)})`,
    `context = ${quoted(answer.context.text)}`,
    `answer = a.answer(context, ${quoted(answer.question.text)}, n_best=5, attention=True)`,
    "print(answer.text, answer.start, answer.end, answer.score, answer.no_answer)",
    "print(answer.candidates)",
    word === null ? "values = answer.attention.mean(0)" : `values = answer.attention[${word}]`,
    "print(list(zip(context.split(), values.tolist())))",
  ];
  return lines.join("\n") + "\n";
}

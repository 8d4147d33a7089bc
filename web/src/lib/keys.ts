// Keys that work anywhere on the page, except where one types or moves in a grid.

import { choose, type Choice } from "./choice";
import type { Page } from "./store.svelte";
import type { Head } from "./selection";
import type { Trace } from "./types";
import { direction, unitOf, units } from "./units";

/** What arrows move in the view at hand; Align has its own. */
export function moveQuery({ selection }: Page, choice: Choice, step: number): void {
  const all = units(choice.rows, selection.now.words);
  const forward = direction(choice.rows.text) === "rtl" ? -step : step;
  const next = all[unitOf(all, choice.query.at(-1)!) + forward];
  if (next) selection.set({ query: [next.tokens[0]!] }, { replace: true });
}

export function moveKey({ selection }: Page, choice: Choice, step: number): void {
  const key = choice.key + step;
  if (key >= 0 && key < choice.columns.tokens.length) selection.set({ key }, { replace: true });
}

function turn<T>(all: T[], now: T, step: number): T {
  return all[(all.indexOf(now) + step + all.length) % all.length]!;
}

function moveHead({ selection }: Page, choice: Choice, step: number): void {
  const mean: Head[] = selection.now.view === "steps" || choice.kind.heads < 2 ? [] : ["mean"];
  const all: Head[] = [...Array(choice.kind.heads).keys(), ...mean];
  selection.set({ kind: choice.kind.kind, layer: choice.layer, head: turn(all, choice.head, step) });
}

function moveLayer({ selection }: Page, choice: Choice, step: number): void {
  const layer = turn([...Array(choice.kind.layers).keys()], choice.layer, step);
  selection.set({ kind: choice.kind.kind, layer, head: choice.head });
}

/** Answers true when the key was for us. */
export function press(page: Page, event: KeyboardEvent, help: () => void): boolean {
  const { selection, trace, keys } = page;
  if (event.altKey || event.ctrlKey || event.metaKey || typing(event)) return false;
  if (!event.key.startsWith("Arrow") && !keys.on) return false;
  if (event.key === "?") return (help(), true);
  const other = page.views[Number(event.key) - 1];
  if (other) return (selection.set({ view: other }), true);
  const { view } = page;
  if (view === "long") return false; // it has keys of its own
  if (view === "summary" || view === "answer") return moveWord(page, event.key, view);
  if (event.key === "w") return (selection.set({ words: !selection.now.words }), true);
  if (!trace.value) return false;
  const now = selection.now;
  if (view === "align") return alignKey(page, event.key, trace.value);
  const choice = choose(now, trace.value);
  if (!choice) return false;
  if (placeKey(page, event.key, choice)) return true;
  if (event.key === "ArrowLeft") return (moveQuery(page, choice, -1), true);
  if (event.key === "ArrowRight") return (moveQuery(page, choice, 1), true);
  if (view !== "steps") return false;
  if (event.key === "ArrowUp") return (moveKey(page, choice, -1), true);
  if (event.key === "ArrowDown") return (moveKey(page, choice, 1), true);
  return false;
}

/** The word of the summary, or of the question, that is looked at. */
function moveWord({ selection, summary, answer }: Page, key: string, view: "summary" | "answer"): boolean {
  const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const line = view === "summary" ? summary.value?.target : answer.value?.question;
  if (!along || !line) return false;
  const name = view === "summary" ? "word" : "asked";
  const step = direction(line.text) === "rtl" ? -along : along;
  const next = (selection.now[name] ?? (step > 0 ? -1 : line.words.length)) + step;
  if (next >= 0 && next < line.words.length) selection.set({ [name]: next }, { replace: true });
  return true;
}

function placeKey(page: Page, key: string, choice: Choice): boolean {
  if (key === "[") return (moveHead(page, choice, -1), true);
  if (key === "]") return (moveHead(page, choice, 1), true);
  if (key === ",") return (moveLayer(page, choice, -1), true);
  if (key === ".") return (moveLayer(page, choice, 1), true);
  return false;
}

/** Align is about cross-attention, whatever kind the other views show; arrows move the target word. */
function alignKey(page: Page, key: string, of: Trace): boolean {
  const { selection } = page;
  const ours = selection.now.kind === "cross";
  const usual = ours ? {} : { kind: "cross" as const, layer: null, head: null, query: [] };
  const choice = choose({ ...selection.now, ...usual }, of);
  if (choice?.kind.kind !== "cross") return false;
  if (placeKey(page, key, choice)) return true;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (!step) return false;
  const now = of.target.tokens[(ours ? selection.now.query[0] : undefined) ?? -1]?.word ?? -1;
  const word = now + (direction(of.target.text) === "rtl" ? -step : step);
  const token = of.target.tokens.findIndex((one) => one.word >= 0 && one.word === word);
  if (token >= 0) selection.set({ ...usual, query: [token] }, { replace: true });
  return true;
}

export function typing(event: KeyboardEvent): boolean {
  const skip = event.key.startsWith("Arrow") ? "input, textarea, select, dialog, pre, [data-grid]" : "input, textarea, select, dialog";
  const [target] = event.composedPath(); // inside a shadow too, which some notebooks draw widgets in
  return target instanceof Element && target.closest(skip) !== null;
}

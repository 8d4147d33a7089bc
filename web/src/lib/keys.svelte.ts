// Keys that work anywhere on the page, except where one types or moves in a grid.

import { choose, type Choice } from "./choice";
import { selection, trace } from "./store.svelte";
import { type Head, VIEWS } from "./selection";
import type { Trace } from "./types";
import { direction, unitOf, units } from "./units";

class Keys {
  /** Single letters can be switched off, for those who talk to their computer. */
  on: boolean = $state(true);
}

export const keys = new Keys();

/** What arrows move in the view at hand; Align has its own. */
export function moveQuery(choice: Choice, step: number): void {
  const all = units(choice.rows, selection.now.words);
  const forward = direction(choice.rows.text) === "rtl" ? -step : step;
  const next = all[unitOf(all, choice.query.at(-1)!) + forward];
  if (next) selection.set({ query: [next.tokens[0]!] }, { replace: true });
}

export function moveKey(choice: Choice, step: number): void {
  const key = choice.key + step;
  if (key >= 0 && key < choice.columns.tokens.length) selection.set({ key }, { replace: true });
}

function turn<T>(all: T[], now: T, step: number): T {
  return all[(all.indexOf(now) + step + all.length) % all.length]!;
}

function moveHead(choice: Choice, step: number): void {
  const mean: Head[] = selection.now.view === "steps" || choice.kind.heads < 2 ? [] : ["mean"];
  const all: Head[] = [...Array(choice.kind.heads).keys(), ...mean];
  selection.set({ kind: choice.kind.kind, layer: choice.layer, head: turn(all, choice.head, step) });
}

function moveLayer(choice: Choice, step: number): void {
  const layer = turn([...Array(choice.kind.layers).keys()], choice.layer, step);
  selection.set({ kind: choice.kind.kind, layer, head: choice.head });
}

/** Answers true when the key was for us. */
export function press(event: KeyboardEvent, help: () => void): boolean {
  if (event.altKey || event.ctrlKey || event.metaKey || typing(event)) return false;
  if (!event.key.startsWith("Arrow") && !keys.on) return false;
  if (event.key === "?") return (help(), true);
  const view = VIEWS[Number(event.key) - 1];
  if (view) return (selection.set({ view }), true);
  if (selection.now.view === "long") return false; // it has keys of its own
  if (event.key === "w") return (selection.set({ words: !selection.now.words }), true);
  if (!trace.value) return false;
  const now = selection.now;
  if (now.view === "align") return alignKey(event.key, trace.value);
  const choice = choose(now, trace.value);
  if (!choice) return false;
  if (placeKey(event.key, choice)) return true;
  if (event.key === "ArrowLeft") return (moveQuery(choice, -1), true);
  if (event.key === "ArrowRight") return (moveQuery(choice, 1), true);
  if (now.view !== "steps") return false;
  if (event.key === "ArrowUp") return (moveKey(choice, -1), true);
  if (event.key === "ArrowDown") return (moveKey(choice, 1), true);
  return false;
}

function placeKey(key: string, choice: Choice): boolean {
  if (key === "[") return (moveHead(choice, -1), true);
  if (key === "]") return (moveHead(choice, 1), true);
  if (key === ",") return (moveLayer(choice, -1), true);
  if (key === ".") return (moveLayer(choice, 1), true);
  return false;
}

/** Align is about cross-attention, whatever kind the other views show; arrows move the target word. */
function alignKey(key: string, of: Trace): boolean {
  const ours = selection.now.kind === "cross";
  const usual = ours ? {} : { kind: "cross" as const, layer: null, head: null, query: [] };
  const choice = choose({ ...selection.now, ...usual }, of);
  if (choice?.kind.kind !== "cross") return false;
  if (placeKey(key, choice)) return true;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (!step) return false;
  const now = of.target.tokens[(ours ? selection.now.query[0] : undefined) ?? -1]?.word ?? -1;
  const word = now + (direction(of.target.text) === "rtl" ? -step : step);
  const token = of.target.tokens.findIndex((one) => one.word >= 0 && one.word === word);
  if (token >= 0) selection.set({ ...usual, query: [token] }, { replace: true });
  return true;
}

function typing(event: KeyboardEvent): boolean {
  const skip = event.key.startsWith("Arrow") ? "input, textarea, select, dialog, pre, [data-grid]" : "input, textarea, select, dialog";
  return event.target instanceof Element && event.target.closest(skip) !== null;
}

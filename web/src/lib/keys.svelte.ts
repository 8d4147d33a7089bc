// Keys that work anywhere on the page, except where one types or moves in a grid.

import { choose, type Choice } from "./choice";
import { selection, trace } from "./store.svelte";
import { type Head, VIEWS } from "./selection";
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
  if (event.altKey || event.ctrlKey || event.metaKey || typing(event.target)) return false;
  if (!event.key.startsWith("Arrow") && !keys.on) return false;
  if (event.key === "?") return (help(), true);
  const view = VIEWS[Number(event.key) - 1];
  if (view) return (selection.set({ view }), true);
  if (event.key === "w") return (selection.set({ words: !selection.now.words }), true);
  const choice = trace.value && choose(selection.now, trace.value);
  if (!choice || selection.now.view === "align") return false;
  if (event.key === "ArrowLeft") return (moveQuery(choice, -1), true);
  if (event.key === "ArrowRight") return (moveQuery(choice, 1), true);
  if (event.key === "[") return (moveHead(choice, -1), true);
  if (event.key === "]") return (moveHead(choice, 1), true);
  if (event.key === ",") return (moveLayer(choice, -1), true);
  if (event.key === ".") return (moveLayer(choice, 1), true);
  if (selection.now.view !== "steps") return false;
  if (event.key === "ArrowUp") return (moveKey(choice, -1), true);
  if (event.key === "ArrowDown") return (moveKey(choice, 1), true);
  return false;
}

function typing(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, textarea, select, dialog, [data-grid], pre") !== null;
}

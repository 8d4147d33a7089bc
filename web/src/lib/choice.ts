// What a selection means for a trace: every index inside its range, every "page's choice" made.

import type { Head, Selection } from "./selection";
import type { Kind, KindName, Side, Trace } from "./types";

export interface Choice {
  kind: Kind;
  layer: number;
  head: Head;
  rows: Side;
  columns: Side;
  /** Query tokens; the last is the one that arrows move. */
  query: number[];
  key: number;
}

export const KIND_NAMES: Record<KindName, string> = {
  self: "Self-attention",
  decoder: "Decoder self-attention",
  cross: "Cross-attention",
};

export function choose(selection: Selection, trace: Trace): Choice | null {
  const kind = trace.kinds.find((one) => one.kind === selection.kind) ?? trace.kinds[0];
  if (!kind) return null;
  const [rows, columns] = [trace[kind.rows], trace[kind.columns]];
  const usual = (kind.kind === "cross" && trace.alignment) || { layer: null, head: null };
  const layer = clamp(selection.layer ?? usual.layer ?? 0, kind.layers);
  const wanted = selection.head ?? usual.head ?? 0;
  const head = wanted === "mean" ? wanted : clamp(wanted, kind.heads);
  const inside = selection.query.filter((token) => token < rows.tokens.length);
  const query = inside.length ? inside : [firstQuery(rows)];
  return { kind, layer, head, rows, columns, query, key: clamp(selection.key ?? firstKey(columns, query), columns.tokens.length) };
}

/** "it" if the sentence has one, the question everyone asks first; else its first word. */
function firstQuery(side: Side): number {
  const it = side.tokens.findIndex((token) => /^\W*it\W*$/i.test(side.words[token.word]?.text ?? ""));
  if (it >= 0) return it;
  return Math.max(0, side.tokens.findIndex((token) => token.word >= 0));
}

const firstKey = (side: Side, query: number[]) => Math.min(query[0] ?? 0, side.tokens.length - 1);

export function clamp(index: number, size: number): number {
  return Math.max(0, Math.min(index, size - 1));
}

/** The words for a choice, as in "layer 0, head 3 of encoder self-attention". */
export function placeName(choice: Choice): string {
  const head = choice.head === "mean" ? "mean of all heads" : `head ${choice.head}`;
  return `${KIND_NAMES[choice.kind.kind].toLowerCase()}, layer ${choice.layer}, ${head}`;
}

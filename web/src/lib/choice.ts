// What a selection means for a trace: every index inside its range, every "page's choice" made.

import type { Head, Selection } from "./selection";
import { kindPhrase, sideOf } from "./kinds";
import type { Kind, KindName, Side, SideName, Trace } from "./types";

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

export function choose(selection: Selection, trace: Trace): Choice | null {
  const kind = trace.kinds.find((one) => one.kind === selection.kind) ?? trace.kinds[0];
  if (!kind) return null;
  const [rows, columns] = [sideOf(trace, kind.rows), sideOf(trace, kind.columns)];
  const { layer, head } = headOf(selection, trace, kind);
  const inside = selection.query.filter((token) => token < rows.tokens.length);
  const query = inside.length ? inside : [firstQuery(rows)];
  return { kind, layer, head, rows, columns, query, key: clamp(selection.key ?? firstKey(columns, query), columns.tokens.length) };
}

/** The layer and head that are meant, of cross-attention those that align words where none are chosen. */
export function headOf(selection: Selection, trace: Trace | null, kind: { kind: KindName; layers: number; heads: number }): { layer: number; head: Head } {
  const usual = (kind.kind === "cross" && trace?.alignment) || { layer: null, head: null };
  const head = selection.head ?? usual.head ?? 0;
  return { layer: clamp(selection.layer ?? usual.layer ?? 0, kind.layers), head: head === "mean" ? head : clamp(head, kind.heads) };
}

/** "it" if the sentence has one, the question everyone asks first; else its first word. */
function firstQuery(side: Side): number {
  const it = side.tokens.findIndex((token) => /^\W*it\W*$/i.test(side.words[token.word]?.text ?? ""));
  if (it >= 0) return it;
  return Math.max(0, side.tokens.findIndex((token) => token.word >= 0));
}

const firstKey = (side: Side, query: number[]) => Math.min(query[0] ?? 0, side.tokens.length - 1);

/** Which words one turned away from, and what was chosen instead: who turns back finds what was left. */
export interface Turn {
  trace: string;
  from: { side: SideName; query: number[] };
  to: { side: SideName; query: number[] };
}

/**
 * The change that shows another kind. Layer and head stay, and so does the word; where other words look there, those that
 * the alignment links it with.
 */
export function turned(trace: Trace, choice: Choice, selection: Selection, to: KindName, last: Turn | null): { change: Partial<Selection>; turn: Turn | null } {
  const kind = trace.kinds.find((one) => one.kind === to) ?? choice.kind;
  const key = kind.columns === choice.kind.columns ? selection.key : null;
  const [from, into] = [choice.kind.rows, kind.rows];
  if (from === into) return { change: { kind: to, key }, turn: last };
  const back = last?.trace === trace.id && last.to.side === from && last.from.side === into && String(last.to.query) === String(choice.query);
  const query = back ? last.from.query : linked(trace, choice.query, from, into);
  return { change: { kind: to, key, query }, turn: { trace: trace.id, from: { side: from, query: choice.query }, to: { side: into, query } } };
}

/** The words of the other side that tokens are linked with, as their first tokens. */
function linked(trace: Trace, tokens: number[], from: SideName, into: SideName): number[] {
  const sides = ["source", "target"];
  const [at, other] = [sides.indexOf(from), sides.indexOf(into)];
  if (at < 0 || other < 0 || !trace.alignment) return [];
  const [own, theirs] = [sideOf(trace, from).tokens, sideOf(trace, into).tokens];
  const words = tokens.map((token) => own[token]?.word ?? -1);
  const found = words.flatMap((word) => trace.alignment!.links.filter((link) => link[at] === word).map((link) => link[other]));
  const first = found.map((word) => theirs.findIndex((token) => token.word === word)).filter((token) => token >= 0);
  return [...new Set(first)].slice(0, tokens.length);
}

export function clamp(index: number, size: number): number {
  return Math.max(0, Math.min(index, size - 1));
}

/** The words for a choice, as in "layer 0, head 3 of encoder self-attention". */
export function placeName(choice: Choice): string {
  const head = choice.head === "mean" ? "mean of all heads" : `head ${choice.head}`;
  return `${kindPhrase(choice.kind.kind)}, layer ${choice.layer}, ${head}`;
}

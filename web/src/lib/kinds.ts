// Kinds of attention by name: a role, or where a model has several towers, a tower and a role, as in "text self".

import type { KindName, Side, SideName, Trace } from "./types";

export type Role = "self" | "decoder" | "cross";

const NAMES: Record<Role, string> = {
  self: "Self-attention",
  decoder: "Decoder self-attention",
  cross: "Cross-attention",
};
const KIND = /^(?:([\p{L}\p{N}_-]+) )?(self|decoder|cross)$/u;

/** A kind that an address names; null where it is none. */
export const kindOf = (text: string | undefined): KindName | null => (text !== undefined && KIND.test(text) ? text : null);

export const roleOf = (kind: KindName): Role | null => (KIND.exec(kind)?.[2] as Role | undefined) ?? null;

/** “Cross-attention”, “Text self-attention” */
export function kindTitle(kind: KindName): string {
  const [, tower, role] = KIND.exec(kind) ?? [];
  if (!role) return kind;
  const name = NAMES[role as Role];
  return tower ? `${tower[0]!.toUpperCase()}${tower.slice(1)} ${name.toLowerCase()}` : name;
}

/** “cross-attention”, within a sentence. */
export const kindPhrase = (kind: KindName): string => kindTitle(kind).toLowerCase();

/** Source, target, or the side of a tower. */
export const sideOf = (trace: Trace, name: SideName): Side => trace.sides?.[name] ?? trace[name as "source" | "target"];

// The document inside a static page, and its matrices; web/FORMAT.md says the same in words.

import type { Effects, HeadMeasures, KindName, Trace } from "./types";

export const VERSION = 1;

/** R × C numbers, a row after the other: data × the row's scale, or float32 as they are. */
export type Packed =
  | { shape: [number, number]; bits: 8 | 16; signed: boolean; scale: string; data: string }
  | { shape: [number, number]; bits: 32; data: string };

export interface Stored {
  bits: number;
  /** The largest absolute difference to what was stored. */
  error: number;
}

export interface PackedHead {
  head: number;
  q: Packed;
  k: Packed;
  v: Packed;
  recorded?: Packed | null;
  output?: Packed | null;
  /** queries·keys bytes in base64, 1 where a query may look. */
  allowed?: string | null;
  products?: Packed | null;
  scaled?: Packed | null;
}

export interface PackedLayer {
  kind: KindName;
  layer: number;
  score: string;
  formula: string;
  terms: string;
  scale: number | null;
  query_inputs?: Packed | null;
  key_inputs?: Packed | null;
  heads: PackedHead[];
}

export type PackedHeads = Partial<Record<KindName, Packed[][]>>;

export interface Document {
  version: number;
  regard: string;
  trace: Omit<Trace, "id">;
  stored: { weights: Stored; norms?: Stored | null; rollout?: Stored | null; steps?: Stored | null };
  weights: PackedHeads;
  norms?: PackedHeads | null;
  rollout?: Packed[] | null;
  steps?: PackedLayer[] | null;
  heads?: HeadMeasures[] | null;
  effects?: Effects[] | null;
  start?: string | null;
}

export function bytes(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

type Read = (view: DataView, at: number) => number;
const READ: Record<string, Read> = {
  "8": (view, at) => view.getUint8(at),
  "8s": (view, at) => view.getInt8(at),
  "16": (view, at) => view.getUint16(at, true),
  "16s": (view, at) => view.getInt16(at, true),
  "32": (view, at) => view.getFloat32(at, true),
};

/** The rows of a packed matrix. */
export function unpacked(packed: Packed): number[][] {
  const [rows, columns] = packed.shape;
  const size = packed.bits / 8;
  const read = READ[`${packed.bits}${packed.bits !== 32 && packed.signed ? "s" : ""}`];
  const data = bytes(packed.data);
  if (!read || data.length !== rows * columns * size) {
    throw new Error(`a matrix of ${rows} × ${columns} numbers of ${packed.bits} bits has ${data.length} bytes`);
  }
  const view = new DataView(data.buffer);
  const scales = packed.bits === 32 ? null : new DataView(bytes(packed.scale).buffer);
  return Array.from({ length: rows }, (_, r) => {
    const scale = scales ? scales.getFloat32(4 * r, true) : 1;
    return Array.from({ length: columns }, (_, c) => read(view, (r * columns + c) * size) * scale);
  });
}

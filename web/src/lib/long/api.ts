// What the Long view asks of the page's source.

import type { Labels, Source } from "../source";
import type { KindName, Named } from "../types";
import type { Asked, Block } from "./tiles";

export type LongTrace = Named;

/** One head's weights, pooled in one way. */
export interface Attention {
  trace: string;
  kind: KindName;
  layer: number;
  head: number;
  pool: Pool;
}

export type Pool = "max" | "sum";
export type Axis = Labels;

export function getTile(source: Source, of: Attention, asked: Asked, signal: AbortSignal): Promise<Block> {
  const { trace, kind, layer, head, pool } = of;
  const { rows, columns: cols, height, width, samples } = asked;
  return source.tile(trace, { kind, layer, head }, { rows, cols, height, width, pool, ...(samples === null ? {} : { samples }) }, signal);
}

// What the Long view asks of the service. Failures are ApiErrors, as everywhere.

import { ApiError } from "../api";
import type { Kind } from "../types";
import type { Asked, Block } from "./tiles";

export interface LongKind extends Kind {
  queries: number;
  keys: number;
}

export interface LongTrace {
  id: string;
  name: string;
  kinds: LongKind[];
}

/** One head's weights, pooled in one way. */
export interface Attention {
  trace: string;
  kind: string;
  layer: number;
  head: number;
  pool: Pool;
}

export type Pool = "max" | "sum";
export type Axis = "rows" | "columns";

async function ask(path: string, signal: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0);
  }
  if (response.ok) return response;
  const body: unknown = await response.json().catch(() => null);
  const told = body !== null && typeof body === "object" && "error" in body ? String(body.error) : "";
  const again = response.status === 429 || response.status === 503;
  const wait = Number(response.headers.get("Retry-After")) || 2;
  throw new ApiError(told || `The server answered ${response.status}.`, response.status, again ? Math.min(wait, 60) : null);
}

const json = async <T>(path: string, signal: AbortSignal) => (await (await ask(path, signal)).json()) as T;
const at = (trace: string) => `api/trace/${encodeURIComponent(trace)}`;
const query = (values: Record<string, string | number>) =>
  new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)])).toString();

export const getTraces = async (signal: AbortSignal) => (await json<{ traces: LongTrace[] }>("api/traces", signal)).traces;
export const getDescribed = (trace: string, signal: AbortSignal) => json<LongTrace>(at(trace), signal);

export async function getTile(of: Attention, asked: Asked, signal: AbortSignal): Promise<Block> {
  const { trace, kind, layer, head, pool } = of;
  const { rows, columns, height, width, samples } = asked;
  const place = { kind, layer, head, rows: rows.join(":"), cols: columns.join(":"), height, width, pool };
  const response = await ask(`${at(trace)}/tile?${query(samples === null ? place : { ...place, samples })}`, signal);
  const [h = 0, w = 0] = (response.headers.get("X-Regard-Shape") ?? "").split(",").map(Number);
  const bytes = await response.arrayBuffer();
  if (bytes.byteLength !== 4 * h * w) throw new ApiError("The server sent a tile of another size than it said.", 0);
  const exact = response.headers.get("X-Regard-Exact") ?? (samples === null ? "exact" : "sampled");
  return { values: new Float32Array(bytes), height: h, width: w, exact: exact === "exact" };
}

export interface Tokens {
  tokens: string[];
  from: number;
  count: number;
}

export const getTokens = (trace: string, kind: string, side: Axis, from: number, to: number, signal: AbortSignal) =>
  json<Tokens>(`${at(trace)}/tokens?${query({ kind, side, from, to })}`, signal);

export interface Matches {
  matches: number[];
  more: boolean;
}

export const getMatches = (trace: string, kind: string, side: Axis, text: string, signal: AbortSignal) =>
  json<Matches>(`${at(trace)}/search?${query({ kind, side, text })}`, signal);

// The service, as functions. Every failure is an ApiError with a text that a person understands.

import type { Alignment, Models, Row, Steps, Trace } from "./types";
import type { Head } from "./selection";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    /** Seconds after which to try again by oneself; null is never. */
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }
}

async function ask<T>(path: string, options: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0);
  }
  if (response.ok) return (await response.json()) as T;
  const body: unknown = await response.json().catch(() => null);
  const told = body !== null && typeof body === "object" && "error" in body ? String(body.error) : "";
  const wait = Number(response.headers.get("Retry-After") ?? NaN);
  const again = response.status === 429 || response.status === 503;
  throw new ApiError(
    told || `The server answered ${response.status}.`,
    response.status,
    again ? (Number.isFinite(wait) && wait > 0 ? Math.min(wait, 60) : 2) : null,
  );
}

function query(values: Record<string, string | number | boolean | null | undefined>): string {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") out.set(name, String(value));
  }
  return out.toString();
}

export const getModels = (signal: AbortSignal) => ask<Models>("api/models", { signal });

export function postTrace(body: { text: string; target?: string; model?: string }, signal: AbortSignal): Promise<Trace> {
  const given = Object.fromEntries(Object.entries(body).filter(([, value]) => value));
  return ask<Trace>("api/trace", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...given, text: body.text }),
    signal,
  });
}

export interface Place {
  kind: string;
  layer: number;
  head: Head;
  query: number;
}

const rows = new Map<string, Row>();

/** One row of weights or norms; those asked for lately are kept. */
export async function getRow(id: string, place: Place, measure: string, signal: AbortSignal): Promise<Row> {
  const path = `api/trace/${encodeURIComponent(id)}/row?${query({ ...place, measure })}`;
  const kept = rows.get(path);
  if (kept) return kept;
  const row = await ask<Row>(path, { signal });
  rows.set(path, row);
  if (rows.size > 512) rows.delete(rows.keys().next().value!);
  return row;
}

export const getSteps = (id: string, place: Place, key: number, score: string, signal: AbortSignal) =>
  ask<Steps>(`api/trace/${encodeURIComponent(id)}/steps?${query({ ...place, key, score })}`, { signal });

export interface AlignChoice {
  layer: number | null;
  head: Head | null;
  shift: boolean | null;
  gold: string;
}

export const getAlignment = (id: string, choice: AlignChoice, signal: AbortSignal) =>
  ask<Alignment>(
    `api/trace/${encodeURIComponent(id)}/align?${query({
      ...choice,
      head: choice.head === "mean" ? null : choice.head,
      shift: choice.shift === null ? null : Number(choice.shift),
    })}`,
    { signal },
  );

// The service as a source, over HTTP.

import { real } from "./numbers";
import { Recent } from "./recent";
import { VIEWS } from "./selection";
import { alignParameters, areaParameters, isSmall, type Source, SourceError } from "./source";
import type { Named, Row, Tile } from "./types";

type Parameters = Record<string, string | number | boolean | null | undefined>;

async function answer(path: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new SourceError("The server does not answer. Is it still running?", 0);
  }
  if (response.ok) return response;
  const body: unknown = await response.json().catch(() => null);
  const told = body !== null && typeof body === "object" && "error" in body ? String(body.error) : "";
  const wait = Number(response.headers.get("Retry-After") ?? NaN);
  const again = response.status === 429 || response.status === 503;
  throw new SourceError(
    told || `The server answered ${response.status}.`,
    response.status,
    again ? (Number.isFinite(wait) && wait > 0 ? Math.min(wait, 60) : 2) : null,
  );
}

async function get<T>(path: string, signal: AbortSignal): Promise<T> {
  return (await (await answer(path, { signal })).json()) as T;
}

const numbers = async <T>(path: string, signal: AbortSignal): Promise<T> => real(await get<T>(path, signal));

async function post<T>(path: string, body: object, signal: AbortSignal): Promise<T> {
  const headers = { "Content-Type": "application/json" };
  return (await (await answer(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json()) as T;
}

function query(values: Parameters): string {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") out.set(name, String(value));
  }
  return out.toString();
}

/** Without what was left empty. */
const given = (values: object) => Object.fromEntries(Object.entries(values).filter(([, value]) => value));

const at = (id: string, what: string, values: Parameters) => `api/trace/${encodeURIComponent(id)}/${what}?${query(values)}`;

async function getTile(path: string, signal: AbortSignal): Promise<Tile> {
  const response = await answer(path, { signal });
  const [height = 0, width = 0] = (response.headers.get("X-Regard-Shape") ?? "").split(",").map(Number);
  const exact = response.headers.get("X-Regard-Exact") !== "sampled";
  return { values: new Float32Array(await response.arrayBuffer()), height, width, exact };
}

export function httpSource(): Source {
  const rows = new Recent<Row>(512);
  const tiles = new Recent<Tile>(512);
  return {
    can: { translate: true, knockout: true, effects: true, rollout: true, views: VIEWS, steps: null },
    opened: null,
    note: "",
    models: (signal) => get("api/models", signal),
    traces: async (signal) => (await get<{ traces: Named[] }>("api/traces", signal)).traces,
    trace: ({ text, ...others }, signal) => post("api/trace", { ...given(others), text }, signal),
    summarize: ({ text, ...others }, signal) => post("api/summarize", { ...given(others), text }, signal),
    answer: ({ context, question, ...others }, signal) => post("api/answer", { ...given(others), context, question }, signal),
    named: (id, signal) => get(`api/trace/${encodeURIComponent(id)}`, signal),
    described: (id, signal) => get(`api/trace/${encodeURIComponent(id)}`, signal),
    row: (id, place, measure, signal) => {
      const path = at(id, "row", { ...place, measure });
      return rows.ask(path, () => numbers(path, signal));
    },
    tile: (id, matrix, area, signal) => {
      const path = at(id, "tile", { ...matrix, ...areaParameters(area) });
      return isSmall(area) ? tiles.ask(path, () => getTile(path, signal)) : getTile(path, signal);
    },
    steps: (id, place, key, score, signal) => numbers(at(id, "steps", { ...place, key, score }), signal),
    align: (id, choice, signal) => numbers(at(id, "align", alignParameters(choice)), signal),
    heads: (id, kind, signal) => numbers(at(id, "heads", { kind }), signal),
    effects: (id, kind, layer, signal) => numbers(at(id, "effects", { kind, layer }), signal),
    knockout: async (id, heads, signal) => real(await post(`api/trace/${encodeURIComponent(id)}/knockout`, { heads }, signal)),
    tokens: (id, kind, side, from, to, signal) => get(at(id, "tokens", { kind, side, from, to }), signal),
    search: (id, kind, side, text, signal) => get(at(id, "search", { kind, side, text }), signal),
  };
}

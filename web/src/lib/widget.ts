// A notebook's kernel as a source: {id, method, params} goes out, {id, ok} or {id, error, status} comes back.

import { real } from "./numbers";
import { Recent } from "./recent";
import { VIEWS } from "./selection";
import { type Abilities, alignParameters, areaParameters, isSmall, type Source, SourceError } from "./source";
import type { Named, Row, Tile } from "./types";

/** What anywidget gives: the part of its model that is used here. */
export interface WidgetModel {
  get(name: string): unknown;
  send(content: unknown): void;
  on(event: string, listen: (...given: never[]) => void): void;
  off(event: string, listen: (...given: never[]) => void): void;
}

interface Reply {
  id: number;
  ok?: unknown;
  error?: string;
  status?: number;
}

interface Waiting {
  done: (value: { ok: unknown; buffers: DataView[] }) => void;
  failed: (error: unknown) => void;
}

const CLOSED = "The notebook’s kernel is not connected.";

/** Questions and their answers over one model. Ids count up from a random number: two views of a model share its messages. */
export class Messages {
  #waiting = new Map<number, Waiting>();
  #next = Math.floor(Math.random() * 2 ** 40);

  constructor(readonly model: WidgetModel) {
    model.on("msg:custom", this.#heard);
  }

  #heard = (reply: Reply, buffers: DataView[] = []): void => {
    const waiting = this.#waiting.get(reply?.id);
    if (!waiting) return; // of another view, or given up
    this.#waiting.delete(reply.id);
    if (reply.error !== undefined) waiting.failed(new SourceError(reply.error, reply.status ?? 400));
    else waiting.done({ ok: reply.ok, buffers });
  };

  ask(method: string, params: object, signal: AbortSignal): Promise<{ ok: unknown; buffers: DataView[] }> {
    return new Promise((done, failed) => {
      if (signal.aborted) return failed(signal.reason);
      const id = (this.#next += 1);
      this.#waiting.set(id, { done, failed });
      signal.addEventListener("abort", () => this.#waiting.delete(id) && failed(signal.reason), { once: true });
      try {
        this.model.send({ id, method, params: known(params) });
      } catch {
        this.#waiting.delete(id);
        failed(new SourceError(CLOSED, 0));
      }
    });
  }

  close(): void {
    this.model.off("msg:custom", this.#heard);
    for (const { failed } of this.#waiting.values()) failed(new SourceError(CLOSED, 0));
    this.#waiting.clear();
  }
}

/** Without what was not given. */
function known(params: object): object {
  return Object.fromEntries(Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""));
}

/** Float32 numbers of a buffer, which may start anywhere in a longer one. */
function floats(view: DataView): Float32Array {
  const out = new Float32Array(view.byteLength / 4);
  for (let i = 0; i < out.length; i += 1) out[i] = view.getFloat32(4 * i, true);
  return out;
}

const NOTHING: Abilities = { translate: false, knockout: false, effects: false, rollout: false, views: VIEWS, steps: null };

export function widgetSource(model: WidgetModel, messages = new Messages(model)): Source {
  const rows = new Recent<Row>(512);
  const tiles = new Recent<Tile>(512);
  const ask = async <T>(method: string, params: object, signal: AbortSignal) => (await messages.ask(method, params, signal)).ok as T;
  const numbers = async <T>(method: string, params: object, signal: AbortSignal): Promise<T> => real(await ask<T>(method, params, signal));
  const tile = async (params: object, signal: AbortSignal): Promise<Tile> => {
    const { ok, buffers } = await messages.ask("tile", params, signal);
    const { shape, exact } = ok as { shape: [number, number]; exact: "exact" | "sampled" };
    return { values: floats(buffers[0]!), height: shape[0], width: shape[1], exact: exact !== "sampled" };
  };
  return {
    can: { ...NOTHING, ...(model.get("can") as Partial<Abilities> | undefined) },
    opened: String(model.get("trace") ?? "0"),
    note: "",
    models: (signal) => ask("models", {}, signal),
    traces: async (signal) => (await ask<{ traces: Named[] }>("traces", {}, signal)).traces,
    trace: (sentence, signal) => ask("trace", sentence, signal),
    named: (trace, signal) => ask("described", { trace }, signal),
    described: (trace, signal) => ask("described", { trace }, signal),
    row: (trace, place, measure, signal) => {
      const params = { trace, ...place, measure };
      return rows.ask(JSON.stringify(params), () => numbers("row", params, signal));
    },
    tile: (trace, matrix, area, signal) => {
      const params = { trace, ...matrix, ...areaParameters(area) };
      return isSmall(area) ? tiles.ask(JSON.stringify(params), () => tile(params, signal)) : tile(params, signal);
    },
    steps: (trace, place, key, score, signal) => numbers("steps", { trace, ...place, key, score }, signal),
    align: (trace, choice, signal) => numbers("align", { trace, ...alignParameters(choice) }, signal),
    heads: (trace, kind, signal) => numbers("heads", { trace, kind }, signal),
    effects: (trace, kind, layer, signal) => numbers("effects", { trace, kind, layer }, signal),
    knockout: (trace, heads, signal) => numbers("knockout", { trace, heads }, signal),
    tokens: (trace, kind, side, from, to, signal) => ask("tokens", { trace, kind, side, from, to }, signal),
    search: (trace, kind, side, text, signal) => ask("search", { trace, kind, side, text }, signal),
  };
}

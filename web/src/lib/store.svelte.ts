// What the page holds: the selection (mirrored in the URL) and what was asked of the service for it.

import { ApiError, getModels, postTrace } from "./api";
import { format, parse, type Selection } from "./selection";
import type { Models, Trace } from "./types";

class SelectionStore {
  now: Selection = $state.raw(parse(location.hash));

  constructor() {
    const read = () => (this.now = parse(location.hash));
    window.addEventListener("popstate", read);
    window.addEventListener("hashchange", read);
  }

  /** Changes the selection. `replace` leaves no step in the browser's history: for typing and moving about. */
  set(change: Partial<Selection>, { replace = false } = {}): void {
    const next = { ...this.now, ...change };
    const hash = format(next);
    if (hash !== location.hash) {
      if (replace) history.replaceState(null, "", hash);
      else history.pushState(null, "", hash);
    }
    this.now = next;
  }
}

export const selection = new SelectionStore();

/** Something asked of the service. A new question cancels the last; the old answer stays until the new one is here. */
export class Resource<T> {
  value: T | null = $state.raw(null);
  error: string = $state("");
  busy: boolean = $state(false);
  /** Seconds until it is asked again by itself; 0 when it is not. */
  wait: number = $state(0);
  #asked = "";
  #control: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #load: ((signal: AbortSignal) => Promise<T>) | null = null;

  /** `gone` is called when what was asked about is no longer there. */
  constructor(readonly gone: () => void = () => {}) {}

  /** Asks, unless `key` is what was asked last. */
  ask(key: string, load: (signal: AbortSignal) => Promise<T>): void {
    if (key === this.#asked) return;
    this.#asked = key;
    this.#load = load;
    this.retry();
  }

  clear(): void {
    this.#stop();
    this.#asked = "";
    this.value = null;
    this.error = "";
    this.busy = false;
  }

  retry(): void {
    this.#stop();
    if (this.#load) void this.#run(this.#load);
  }

  #stop(): void {
    this.#control?.abort();
    clearTimeout(this.#timer);
    this.wait = 0;
  }

  async #run(load: (signal: AbortSignal) => Promise<T>): Promise<void> {
    const control = (this.#control = new AbortController());
    this.busy = true;
    this.error = "";
    try {
      const value = await load(control.signal);
      if (control.signal.aborted) return;
      this.value = value;
      this.busy = false;
    } catch (error) {
      if (control.signal.aborted) return;
      this.busy = false;
      this.#failed(error);
    }
  }

  #failed(error: unknown): void {
    this.error = error instanceof Error ? error.message : String(error);
    if (error instanceof ApiError && error.status === 404) this.gone();
    if (error instanceof ApiError && error.retryAfter !== null) this.#count(Math.ceil(error.retryAfter));
  }

  #count(seconds: number): void {
    this.wait = seconds;
    this.#timer = setTimeout(() => (seconds > 1 ? this.#count(seconds - 1) : this.retry()), 1000);
  }
}

/** The sentence, read by a model. An expired trace is asked for again, once. */
export class TraceResource extends Resource<Trace> {
  #renewed = "";

  renew(): void {
    if (!this.value || this.#renewed === this.value.id) return;
    this.#renewed = this.value.id;
    this.retry();
  }

  read(text: string, target: string, model: string): void {
    this.ask(JSON.stringify([text, target, model]), (signal) => postTrace({ text, target, model }, signal));
  }
}

export const models = new Resource<Models>();
export const trace = new TraceResource();
export const second = new TraceResource();

models.ask("models", getModels);

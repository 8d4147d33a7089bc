// Asks for tiles: few at a time, those in view only, exact ones while nothing else is wanted.

import { Recent } from "../recent";
import { SourceError } from "../source";
import { nameOf, type Address, type Size } from "./grid";
import { jobName, merged, parts, plan, type Asked, type Block, type Job, type Part, type Tile } from "./tiles";

export const FLIGHTS = 4;
const BYTES = 48 * 2 ** 20;

export type Fetch = (asked: Asked, signal: AbortSignal) => Promise<Block>;

export interface Trouble {
  message: string;
  /** Seconds until it is asked again by itself; null is never. */
  again: number | null;
}

interface Flight {
  job: Job;
  control: AbortController;
}

/** The tiles of one matrix. `changed` is called when there is more to draw, `dropped` when a tile has been forgotten. */
export class Loader {
  readonly cache: Recent<Tile>;
  trouble: Trouble | null = null;
  #shown: Address[] = [];
  #flights = new Map<string, Flight>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #refine = true;

  constructor(
    readonly size: Size,
    readonly fetch: Fetch,
    readonly changed: () => void,
    dropped: (tile: Tile) => void = () => {},
  ) {
    this.cache = new Recent(BYTES, ({ values }) => values.byteLength, dropped);
  }

  get = (name: string): Tile | undefined => this.cache.get(name);

  /** Requests under way. */
  get asked(): number {
    return this.#flights.size;
  }

  /** What is on the screen now, the most important first. What has left it is no longer asked for. */
  show(shown: Address[], refine = true): void {
    this.#shown = shown;
    this.#refine = refine;
    for (const address of shown) this.cache.use(nameOf(address));
    const names = new Set(shown.map(nameOf));
    for (const [name, { job, control }] of this.#flights) {
      if (names.has(nameOf(job.address)) || job.samples === 1) continue; // the overview serves every place
      control.abort();
      this.#flights.delete(name);
    }
    this.pump();
  }

  /** Starts what there is room for. Exact strips go one by one: a server of two cores still answers the reader. */
  pump(): void {
    if (this.trouble) return;
    for (const job of plan(this.#shown, this.size, this.get, this.#refine)) {
      const refines = this.get(nameOf(job.address)) !== undefined;
      if (this.#flights.size >= (refines ? 1 : FLIGHTS)) return;
      if (!this.#flights.has(jobName(job))) void this.#run(job);
    }
  }

  retry(): void {
    clearTimeout(this.#timer);
    this.trouble = null;
    this.pump();
    this.changed();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#shown = [];
    for (const { control } of this.#flights.values()) control.abort();
    this.#flights.clear();
  }

  async #run(job: Job): Promise<void> {
    const control = new AbortController();
    this.#flights.set(jobName(job), { job, control });
    try {
      const answers: { part: Part; block: Block }[] = [];
      for (const part of parts(job, this.size)) answers.push({ part, block: await this.fetch(part, control.signal) });
      if (control.signal.aborted) return;
      const name = nameOf(job.address);
      this.cache.put(name, merged(job, this.size, answers, this.get(name)));
    } catch (error) {
      if (control.signal.aborted) return;
      this.#failed(error);
    }
    this.#flights.delete(jobName(job));
    this.pump();
    this.changed();
  }

  #failed(error: unknown): void {
    const again = error instanceof SourceError ? error.retryAfter : null;
    this.trouble = { message: error instanceof Error ? error.message : String(error), again };
    if (again !== null) this.#timer = setTimeout(() => this.retry(), 1000 * again);
  }
}

// What a page holds: the selection (mirrored in its address) and what was asked of its source. A document may have several
// pages (widgets of a notebook), so there is no state but in a Page; components find theirs with `page()`.

import { getContext, setContext } from "svelte";
import type { Address } from "./address";
import { type Choice, type Turn, turned } from "./choice";
import { format, parse, type Selection, type View } from "./selection";
import { type Source, SourceError } from "./source";
import { viewsOf } from "./tabs";
import { Theme, type Usual } from "./theme.svelte";
import type { Answer, KindName, Models, Named, Summary, Trace } from "./types";

class SelectionStore {
  now: Selection = $state.raw(parse(""));

  /** Without `text`, addresses do not say which sentence: there is but one. */
  constructor(
    readonly address: Address,
    readonly text: boolean,
    closing: AbortSignal,
  ) {
    const read = () => (this.now = parse(address.read()));
    read();
    address.listen(read, closing);
  }

  /** The address of the selection with a change. */
  link(change: Partial<Selection>): string {
    return format({ ...this.now, ...change }, { text: this.text });
  }

  /** Changes the selection. `replace` leaves no step in the browser's history: for typing and moving about. */
  set(change: Partial<Selection>, { replace = false } = {}): void {
    this.address.write(this.link(change), replace);
    this.now = { ...this.now, ...change };
  }
}

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
    if (error instanceof SourceError && error.status === 404) this.gone();
    if (error instanceof SourceError && error.retryAfter !== null) this.#count(Math.ceil(error.retryAfter));
  }

  #count(seconds: number): void {
    this.wait = seconds;
    this.#timer = setTimeout(() => (seconds > 1 ? this.#count(seconds - 1) : this.retry()), 1000);
  }
}

/** The sentence, read by a model. An expired trace is asked for again, once. */
export class TraceResource extends Resource<Trace> {
  #renewed = "";

  constructor(readonly source: Source) {
    super();
  }

  renew(): void {
    if (!this.value || this.#renewed === this.value.id) return;
    this.#renewed = this.value.id;
    this.retry();
  }

  read(text: string, target: string, model: string): void {
    this.ask(JSON.stringify([text, target, model]), (signal) => this.source.trace({ text, target, model }, signal));
  }

  open(id: string): void {
    this.ask(id, (signal) => this.source.described(id, signal));
  }
}

/** Single letters do something, unless switched off, for those who talk to their computer. */
class Keys {
  on: boolean = $state(true);
}

export interface Surroundings {
  source: Source;
  address: Address;
  /** The element that holds everything and has the theme. */
  root: HTMLElement;
  /** The page is the document, not a part of one: it has the title and hears every key. */
  whole: boolean;
  theme: Usual;
}

export class Page {
  readonly source: Source;
  readonly root: HTMLElement;
  readonly whole: boolean;
  readonly selection: SelectionStore;
  readonly theme: Theme;
  readonly keys = new Keys();
  /** The last change of kind. */
  #turn: Turn | null = null;
  readonly models = new Resource<Models>();
  readonly trace: TraceResource;
  readonly second: TraceResource;
  readonly summary = new Resource<Summary>();
  readonly answer = new Resource<Answer>();
  /** Those that were given to the service; asked for where nothing else says whether there is a Long view. */
  readonly given = new Resource<Named[]>();
  readonly #prefix: string;
  readonly #closing = new AbortController();

  constructor({ source, address, root, whole, theme }: Surroundings) {
    this.source = source;
    this.root = root;
    this.whole = whole;
    this.selection = new SelectionStore(address, source.can.translate, this.#closing.signal);
    this.theme = new Theme(root, theme, this.#closing.signal);
    this.trace = new TraceResource(source);
    this.second = new TraceResource(source);
    this.#prefix = whole ? "" : `r${Math.random().toString(36).slice(2, 8)}-`;
    this.models.ask("models", (signal) => source.models(signal));
  }

  /** Hears nothing any more. */
  close(): void {
    this.#closing.abort();
    for (const one of [this.models, this.trace, this.second, this.summary, this.answer, this.given]) one.clear();
  }

  /** Shows another kind of attention of a trace. */
  turnTo(kind: KindName, trace: Trace, choice: Choice): void {
    const { change, turn } = turned(trace, choice, this.selection.now, kind, this.#turn);
    this.#turn = turn;
    this.selection.set(change);
  }

  /** The views that there are: what the source can do, with the models that it has. */
  get views(): readonly View[] {
    const { source } = this;
    if (!source.can.translate) return source.can.views;
    return viewsOf(source.can.views, this.selection.now.view, this.models.value, this.given.value ?? []);
  }

  /** The one that is shown. */
  get view(): View {
    return this.views.find((one) => one === this.selection.now.view) ?? this.views[0] ?? "sentence";
  }

  /** Whether a key is for this page: those of a notebook are its own. */
  readonly hears = (event: Event): boolean => this.whole || event.composedPath().includes(this.root);

  /** An element's id that no other page in the document has. */
  readonly id = (name: string): string => this.#prefix + name;
}

const PAGE = Symbol("page");

export const openPage = (surroundings: Surroundings) => setContext(PAGE, new Page(surroundings));
export const page = () => getContext<Page>(PAGE);

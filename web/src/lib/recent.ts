// The one cache of the page: answers, tiles and loaders.

/** The least recently used go first once there are too many, or too much; the newest stays, however large. */
export class Recent<T extends object> {
  #kept = new Map<string, T>();
  #size = 0;

  constructor(
    readonly limit: number,
    readonly sizeOf: (value: T) => number = () => 1,
    readonly dropped: (value: T) => void = () => {},
  ) {}

  /** Of all values together. */
  get size(): number {
    return this.#size;
  }

  /** A look does not count as a use: `use` does. */
  get(key: string): T | undefined {
    return this.#kept.get(key);
  }

  use(key: string): T | undefined {
    const value = this.#kept.get(key);
    if (value !== undefined) {
      this.#kept.delete(key);
      this.#kept.set(key, value);
    }
    return value;
  }

  put(key: string, value: T): void {
    this.#delete(key);
    this.#kept.set(key, value);
    this.#size += this.sizeOf(value);
    for (const [name, old] of this.#kept) {
      if (this.#size <= this.limit || old === value) break;
      this.#delete(name);
      this.dropped(old);
    }
  }

  /** The value; where there is none, what `make` makes. */
  async ask(key: string, make: () => Promise<T>): Promise<T> {
    const known = this.use(key);
    if (known !== undefined) return known;
    const made = await make();
    this.put(key, made);
    return made;
  }

  #delete(key: string): void {
    const value = this.#kept.get(key);
    if (value !== undefined && this.#kept.delete(key)) this.#size -= this.sizeOf(value);
  }
}

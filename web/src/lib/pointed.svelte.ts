// Which of some words is looked from: the one that is pointed at, else the one that was chosen and is kept in the address.

export class Pointed {
  /** The word under the pointer or the focus. */
  at = $state<number | null>(null);
  readonly #count: () => number;
  readonly #kept: () => number | null;
  readonly #keep: (word: number | null, moved: boolean) => void;
  readonly pinned = $derived.by(() => this.#inside(this.#kept()));
  /** What is shown; null: all of them together. */
  readonly shown = $derived.by(() => this.#inside(this.at) ?? this.pinned);

  constructor(count: () => number, kept: () => number | null, keep: (word: number | null, moved: boolean) => void) {
    this.#count = count;
    this.#kept = kept;
    this.#keep = keep;
  }

  /** A click keeps a word, or lets it go; an arrow key that moves to one keeps it. */
  pick = (word: number, { moved }: { moved: boolean }): void => this.#keep(!moved && word === this.pinned ? null : word, moved);

  point = (word: number | null): void => {
    this.at = word;
  };

  #inside(word: number | null): number | null {
    return word !== null && word < this.#count() ? word : null;
  }
}

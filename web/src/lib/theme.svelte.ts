// Light or dark: as the surroundings are, until the reader makes a choice.

const KEY = "regard-theme";

export interface Usual {
  dark(): boolean;
  /** The reader's choice, kept for the next time; null where none was made. */
  kept(): string | null;
  keep(choice: string): void;
}

/** The system's choice; the reader's is kept in the browser. */
export function systemTheme(): Usual {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  return {
    dark: () => system.matches,
    kept() {
      try {
        return localStorage.getItem(KEY);
      } catch {
        return null; // storage may be forbidden; the choice then lasts as long as the page
      }
    },
    keep(choice) {
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // see above
      }
    },
  };
}

export class Theme {
  dark: boolean = $state(false);

  constructor(
    readonly root: HTMLElement,
    readonly usual: Usual,
    closing: AbortSignal,
  ) {
    const stored = usual.kept();
    this.#apply(stored ? stored === "dark" : usual.dark());
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", () => usual.kept() ?? this.#apply(usual.dark()), { signal: closing });
  }

  toggle(): void {
    this.#apply(!this.dark);
    this.usual.keep(this.dark ? "dark" : "light");
  }

  #apply(dark: boolean): void {
    this.dark = dark;
    this.root.dataset.theme = dark ? "dark" : "light";
  }
}

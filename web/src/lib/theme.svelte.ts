// Light or dark: the system's choice until the reader makes one, which is kept.

const KEY = "regard-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

function kept(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage may be forbidden; the choice then lasts as long as the page
  }
}

class Theme {
  dark: boolean = $state(false);

  constructor() {
    const stored = kept();
    this.#apply(stored ? stored === "dark" : system.matches);
    system.addEventListener("change", () => kept() ?? this.#apply(system.matches));
  }

  toggle(): void {
    this.#apply(!this.dark);
    try {
      localStorage.setItem(KEY, this.dark ? "dark" : "light");
    } catch {
      // see above
    }
  }

  #apply(dark: boolean): void {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }
}

export const theme = new Theme();

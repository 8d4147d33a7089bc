// The texts of tokens, in pieces as they are needed.

import type { Source } from "../source";
import type { KindName } from "../types";
import type { Axis } from "./api";
import type { Size } from "./grid";

const PIECE = 512;
const MOST = 64;

export class Labels {
  #pieces = new Map<string, string[] | null>();
  #control = new AbortController();

  constructor(
    readonly source: Source,
    readonly trace: string,
    readonly kind: KindName,
    readonly size: Size,
    readonly changed: () => void,
  ) {}

  /** The text, or null while it is not here; asks for it. */
  get(side: Axis, at: number): string | null {
    if (at < 0 || at >= this.size[side]) return null;
    const piece = Math.floor(at / PIECE);
    const name = `${side}/${piece}`;
    const found = this.#pieces.get(name);
    if (found === undefined) void this.#ask(name, side, piece);
    const text = found?.[at - piece * PIECE];
    return text === undefined || text === String(at) ? null : text; // a trace without texts has numbers
  }

  stop(): void {
    this.#control.abort();
  }

  async #ask(name: string, side: Axis, piece: number): Promise<void> {
    this.#pieces.set(name, null);
    if (this.#pieces.size > MOST) this.#pieces.delete(this.#pieces.keys().next().value!);
    try {
      const end = Math.min((piece + 1) * PIECE, this.size[side]);
      const { tokens } = await this.source.tokens(this.trace, this.kind, side, piece * PIECE, end, this.#control.signal);
      this.#pieces.set(name, tokens.map(clean));
      this.changed();
    } catch {
      // Numbers stand where a text cannot be had; a trace need not have any.
    }
  }
}

/** Blanks made visible, marks of word beginnings left out. */
export function clean(token: string): string {
  const plain = token.replace(/^[Ġ▁]/, "").replace(/\n|Ċ/g, "↵").replace(/\t/g, "⇥");
  return plain.trim() === "" ? "␣" : plain;
}

// Lights the numbers that the one under the pointer, or in focus, was made of.

import type { Cell, Operand } from "./steps";

function cellOf(target: EventTarget | null): Cell | null {
  const at = target instanceof Element ? target.closest<HTMLElement>("[data-step]") : null;
  if (!at) return null;
  const { step = "", index = "0", dim } = at.dataset;
  return { step, index: Number(index), dim: dim === undefined ? null : Number(dim) };
}

function selector({ step, index, dim }: Operand): string {
  const where = index === undefined ? "" : `[data-index="${index}"]`;
  return `[data-step="${step}"]${where}${dim === undefined ? "" : `[data-dim="${dim}"]`}`;
}

/** An action; `made` tells what a cell was made of, and null when none is pointed at. */
export function lights(node: HTMLElement, made: (cell: Cell | null) => Operand[]) {
  let lit: Element[] = [];

  function show(target: EventTarget | null): void {
    for (const cell of lit) cell.classList.remove("lit");
    const all = made(cellOf(target)).map(selector).join(",");
    lit = all ? [...node.querySelectorAll(all)] : [];
    for (const cell of lit) cell.classList.add("lit");
  }

  const over = (event: Event) => show(event.target);
  const out = () => show(null);
  node.addEventListener("pointerover", over);
  node.addEventListener("pointerleave", out);
  node.addEventListener("focusin", over);
  return {
    destroy() {
      node.removeEventListener("pointerover", over);
      node.removeEventListener("pointerleave", out);
      node.removeEventListener("focusin", over);
    },
  };
}

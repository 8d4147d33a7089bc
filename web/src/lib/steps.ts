// What every number of the Steps view was made of.

import { fixed } from "./numbers";
import type { Steps } from "./types";

/** A number: a step, and where in it. A vector has an index; a matrix also a dimension. */
export interface Cell {
  step: string;
  index: number;
  dim: number | null;
}

/** Some numbers of a step: without index or dim, all of them. */
export interface Operand {
  step: string;
  index?: number;
  dim?: number;
}

/** Whether products are q_d × k_d, as in a plain dot product; then the operands can be shown. */
export function isDot(steps: Steps): boolean {
  return steps.products.every(
    (row, j) =>
      row.length === steps.q.length &&
      row.every((value, d) => Math.abs(value - steps.q[d]! * (steps.k[j]?.[d] ?? NaN)) <= 1e-4 * (1 + Math.abs(value))),
  );
}

/** What the products are the terms of: not the score, which may scale their sum and add to it. */
export const summed = (steps: Steps): string => steps.terms || "the similarity";

/** Whether the score is the similarity times one factor, and nothing is added. */
export function isScaled(steps: Steps): boolean {
  const { scale, scaled, similarity } = steps;
  if (scale === null) return false;
  return scaled.every((value, j) => value === null || Math.abs(value - scale * similarity[j]!) <= 1e-4 * (1 + Math.abs(value)));
}

export function operands(cell: Cell, steps: Steps): Operand[] {
  const { step, index, dim } = cell;
  switch (step) {
    case "q":
      return [{ step: "query_input" }];
    case "k":
    case "v":
      return [{ step: "key_input" }];
    case "products":
      if (dim === null || !isDot(steps)) return [{ step: "q" }, { step: "k", index }];
      return [
        { step: "q", index: dim },
        { step: "k", index, dim },
        { step: "products-q", index: dim },
        { step: "products-k", index: dim },
      ];
    case "similarity":
      return [{ step: "products", index }];
    case "scaled":
      return [{ step: "similarity", index }];
    case "masked":
      return [{ step: "scaled", index }];
    case "weights":
      return [{ step: "masked" }];
    case "weighted":
      return [{ step: "weights", index }, { step: "v", index, ...(dim === null ? {} : { dim }) }];
    case "context":
      return [{ step: "weighted", dim: index }];
    case "output":
      return [{ step: "context" }];
    default:
      return [];
  }
}

/** A number and how it was made, with the numbers it was made of. */
export function explain(cell: Cell, steps: Steps, keys: string[]): string {
  const { step, index, dim } = cell;
  const key = keys[index] ?? String(index);
  const at = (values: readonly (number | null)[] | undefined, i: number) => fixed(values?.[i], 4);
  switch (step) {
    case "query_input":
      return `x[${index}] = ${at(steps.query_input ?? [], index)}, the attention’s input for the query`;
    case "key_input":
      return `x[${index}] = ${at(steps.key_input ?? [], index)}, the attention’s input for the key`;
    case "q":
    case "products-q":
      return `q[${index}] = ${at(steps.q, index)}, the query’s input through W_Q`;
    case "products-k":
      return `k[${index}], the key’s input through W_K`;
    case "k":
      return `k[${key}, ${dim}] = ${at(steps.k[index], dim!)}, this key’s input through W_K`;
    case "v":
      return `v[${key}, ${dim}] = ${at(steps.v[index], dim!)}, this key’s input through W_V`;
    case "products": {
      const value = at(steps.products[index], dim!);
      if (!isDot(steps)) return `dimension ${dim} of ${summed(steps)} for ${key} = ${value}`;
      return `q[${dim}] × k[${key}, ${dim}] = ${at(steps.q, dim!)} × ${at(steps.k[index], dim!)} = ${value}`;
    }
    case "similarity":
      return `Σ of ${steps.products[index]?.length ?? 0} products for ${key} = ${at(steps.similarity, index)}`;
    case "scaled":
      return isScaled(steps)
        ? `${at(steps.similarity, index)} × ${fixed(steps.scale, 4)} = ${at(steps.scaled, index)}`
        : `the whole score of ${key} = ${at(steps.scaled, index)}`;
    case "masked":
      return steps.masked[index] === null
        ? `${key} is masked: −∞`
        : `${key} is not masked: ${at(steps.masked, index)}, unchanged`;
    case "weights":
      return `exp(${at(steps.masked, index)}) / Σ exp(…) = ${at(steps.weights, index)} for ${key}`;
    case "weighted":
      return `α[${key}] × v[${key}, ${dim}] = ${at(steps.weights, index)} × ${at(steps.v[index], dim!)} = ${at(steps.weighted[index], dim!)}`;
    case "context":
      return `Σ over ${keys.length} keys of α v[${index}] = ${at(steps.context, index)}`;
    case "recorded":
      return `the model’s own context[${index}] = ${at(steps.recorded ?? [], index)}`;
    case "output":
      return `output[${index}] = ${at(steps.output ?? [], index)}, the context through this head’s part of W_O`;
    default:
      return "";
  }
}

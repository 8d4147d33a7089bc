"""From weights to contexts: three rows of attention weights, and the mixes of values they make.

A score may be any number per pair, so the score log(w) gives back exactly the weights w: softmax(log w) = w when w
sums to 1. Run it: python examples/weights_to_contexts.py
"""

from __future__ import annotations

import torch
from show import SHADES, heading, stacked_bar, table
from torch import Tensor

import regard
from regard.score import Bias

WORDS = ("the", "cat", "sat")
WEIGHTS = ((0.90, 0.07, 0.03), (0.025, 0.95, 0.025), (0.21, 0.03, 0.76))
VALUES = ((10.0, 0.0), (0.0, 10.0), (5.0, 5.0))  # two numbers per word, easy to mix in the head


def mix(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The weights regard finds for the score log(weights), and the contexts."""
    nothing = torch.zeros(1, len(weights), 1)  # queries and keys play no part: the score is given
    score = Bias(weights.log())
    found = regard.steps(nothing, nothing, values[None], score=score).weights[0]
    return found, regard.attend(nothing, nothing, values[None], score=score)[0]


def show() -> None:
    weights, values = torch.tensor(WEIGHTS), torch.tensor(VALUES)
    found, contexts = mix(weights, values)
    heading("From weights to contexts")
    print("Values, two numbers per word:")
    print(table(values, WORDS, ("v0", "v1"), 0))
    print("\nWeights, one row per query (the score is their logarithm):")
    print(table(found, WORDS, WORDS))
    print(f"  as regard computed them; largest difference from the given ones {(found - weights).abs().max():.0e}")
    print("\nEach context is its row's mix of the values:")
    for word, row, context in zip(WORDS, WEIGHTS, contexts.tolist(), strict=True):
        products = " + ".join(f"{w:g}·({a:g}, {b:g})" for w, (a, b) in zip(row, VALUES, strict=True))
        print(f"  {word}  {products} = ({context[0]:.3f}, {context[1]:.3f})")
    print("\nThe same as bars:  " + "   ".join(f"{shade} {word}" for shade, word in zip(SHADES, WORDS, strict=True)))
    for word, row in zip(WORDS, found.tolist(), strict=True):
        print(f"  {word}  {stacked_bar(row)}")


if __name__ == "__main__":
    show()

"""One score by hand: q = [0.2, 0.1] against k = [0.3, 0.4], product by product, then the same through regard.

Run it: python examples/one_score_by_hand.py
"""

from __future__ import annotations

import math

import torch
from show import heading

import regard
from regard.score import Dot

Q = [0.2, 0.1]
K = [0.3, 0.4]


def show() -> None:
    heading(f"One score by hand: q = {Q}, k = {K}")
    products = [a * b for a, b in zip(Q, K, strict=True)]
    score = sum(products)
    for a, b, product in zip(Q, K, products, strict=True):
        print(f"  {a} · {b} = {product:.2f}")
    print(f"        sum = {score:.2f}    the similarity q·k")
    print(f"       / √{len(Q)} = {score / math.sqrt(len(Q)):.4f}  the scaled score")

    q, k, v = torch.tensor([[Q]]), torch.tensor([[K]]), torch.tensor([[[7.0, 9.0]]])  # [heads, length, dim]
    s = regard.steps(q, k, v)
    print("\nThe same through regard:")
    print(f"  Dot(scale=1.0)(q, k)         = {Dot(scale=1.0)(q, k).item():.2f}")
    print(f"  Dot()(q, k)                  = {Dot()(q, k).item():.4f}")
    print(f"  steps(q, k, v).similarity    = {s.similarity.item():.2f}")
    print(f"  steps(q, k, v).scaled        = {s.scaled.item():.4f}")
    print(f"  steps(q, k, v).weights       = {s.weights.item():.2f}    one key only: it gets all of the weight,")
    print(f"  steps(q, k, v).context       = {s.context.flatten().tolist()}   so the context is its value")


if __name__ == "__main__":
    show()

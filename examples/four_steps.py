"""The four steps of attention for a sentence of three words, every number shown.

similarity, scale, softmax, weighted sum (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), with the paper's
sizes: 512 numbers per word, 64 per query, key and value. Run it: python examples/four_steps.py
"""

from __future__ import annotations

import math

import torch
from show import heading, table
from torch import Tensor

import regard

WORDS = ("the", "cat", "sat")
D_MODEL, D_K = 512, 64


def project(seed: int = 0) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Embeddings x [3, 512], and Q, K, V [3, 64], each by its own matrix [512, 64]."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(len(WORDS), D_MODEL, generator=random)
    w_q, w_k, w_v = torch.randn(3, D_MODEL, D_K, generator=random) / math.sqrt(D_MODEL)
    return x, (x @ w_q, x @ w_k, x @ w_v)


def corner(name: str, matrix: Tensor, columns: int = 5) -> None:
    print(f"\n{name}, shape {list(matrix.shape)}, the first {columns} columns:")
    print(table(matrix[:, :columns], WORDS, [str(i) for i in range(columns)], more="  ..."))


def show_projections(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    heading(f"From words to queries, keys and values: “{' '.join(WORDS)}”")
    print("The words' vectors and the three matrices are random numbers with a fixed seed:")
    print("what follows shows the arithmetic, not what the words mean.")
    corner("Embeddings x", x)
    corner("Queries Q = x W_Q", q)
    corner("Keys K = x W_K", k)
    corner("Values V = x W_V", v)


def show_steps(q: Tensor, k: Tensor, v: Tensor) -> None:
    s = regard.steps(q[None], k[None], v[None])  # [None]: one head
    similarity, scaled, weights, context = (t[0] for t in (s.similarity, s.scaled, s.weights, s.context))
    heading("Four steps: one row per query, one column per key")
    print("\n1. Similarity, Q Kᵀ: the dot product of each query with each key")
    print(table(similarity, WORDS, WORDS))
    print(f"\n2. Scale, Q Kᵀ / √{D_K}: every number divided by {math.sqrt(D_K):g}")
    print(table(scaled, WORDS, WORDS))
    print("\n3. Softmax: e to each number, divided by the sum of its row")
    print(table(torch.cat((weights, weights.sum(-1, keepdim=True)), -1), WORDS, [*WORDS, "sum"]))
    print(f"   first row: {_softmax_by_hand(scaled[0], weights[0])}")
    print(f"\n4. Weighted sum, weights · V: a mix of the values, the first 3 of {D_K} columns")
    print(table(context[:, :3], WORDS, ("0", "1", "2"), more="  ..."))
    print(f"   first number: {_mix_by_hand(weights[0], v[:, 0], context[0, 0])}")
    difference = (context - regard.attend(q[None], k[None], v[None])[0]).abs().max().item()
    print(f"\nThe same in one call, regard.attend(q, k, v): largest |steps.context − attend| = {difference:.1e}")


def _softmax_by_hand(scores: Tensor, weights: Tensor) -> str:
    exps = scores.exp().tolist()
    return f"{exps[0]:.3f} / ({' + '.join(f'{e:.3f}' for e in exps)}) = {weights[0]:.3f}"


def _mix_by_hand(weights: Tensor, column: Tensor, total: Tensor) -> str:
    products = " + ".join(f"{w:.3f}·({x:.3f})" for w, x in zip(weights.tolist(), column.tolist(), strict=True))
    return f"{products} = {total:.3f}"


def show() -> None:
    x, (q, k, v) = project()
    show_projections(x, q, k, v)
    show_steps(q, k, v)


if __name__ == "__main__":
    show()

"""Additive attention on inputs at the ends of the number line: its errors, and those of the textbook formula.

    python benchmarks/extremes.py

Both compute in float32 and are compared with the textbook formula in float64 on the same numbers: the context, and
the largest of the gradients of q, k, v and w. W = U = I, so that a and b are q and k themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import regard
from regard.mask import Lengths, Mask
from regard.score import Additive

SHAPE, DIMS, SEEN = (1, 2, 33, 16), 16, 20


def inputs() -> Iterator[tuple[str, Tensor, Tensor, Mask | None]]:
    """What they are, a, b, and the mask."""

    def up_to(most: float) -> Tensor:
        return most * (2 * torch.rand(SHAPE) - 1)

    yield "N(0, 1)", torch.randn(SHAPE), torch.randn(SHAPE), None
    for most in (32, 34, 100, 1e4):
        yield f"up to ±{most:g}", up_to(most), up_to(most), None
    a = up_to(1e4)
    yield "up to ±10000, b = −a + N(0, 1)", a, torch.randn(SHAPE) - a, None
    yield "all a = b = 10000", torch.full(SHAPE, 1e4), torch.full(SHAPE, 1e4), None
    yield "all a = 10000, b = −10000", torch.full(SHAPE, 1e4), torch.full(SHAPE, -1e4), None
    yield "denormals, up to ±1e-39", up_to(1e-39), up_to(1e-39), None
    yield "all rows equal", torch.randn(16).expand(SHAPE), torch.randn(16).expand(SHAPE), None
    for name, value in (("Inf", math.inf), ("NaN", math.nan)):
        b = torch.randn(SHAPE)
        b[:, :, SEEN:] = value
        yield f"{name} in masked keys", torch.randn(SHAPE), b, Lengths(SEEN)


def errors(a: Tensor, b: Tensor, mask: Mask | None, backend: str) -> tuple[float, float]:
    """Of the context, and the largest of a gradient."""
    v, w, upstream = torch.randn(SHAPE), torch.randn(DIMS), torch.randn(SHAPE)
    results = []
    for dtype, where in ((torch.float32, backend), (torch.float64, "reference")):
        score = Additive(DIMS, DIMS, DIMS).to(dtype)
        score.load_state_dict({"W": torch.eye(DIMS), "U": torch.eye(DIMS), "v": w})
        leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in (a, b, v)]
        out = regard.attend(*leaves, score=score, mask=mask, backend=where)
        results.append([out, *torch.autograd.grad(out, [*leaves, score.v], upstream.to(dtype))])
    differ = [(x.double() - y).abs().max().item() for x, y in zip(*results, strict=True)]
    return differ[0], max(differ[1:])


def rows() -> list[list[str]]:
    found = []
    for what, a, b, mask in inputs():
        cells = []
        for backend in ("auto", "reference"):
            torch.manual_seed(0)
            cells += [f"{x:.0e}" for x in errors(a, b, mask, backend)]
        found.append([what, *cells])
    return found


def main() -> None:
    torch.manual_seed(0)
    print(f"{'a and b':32s}{'context':>10s}{'gradients':>12s}{'textbook:':>12s}{'':10s}")
    for what, *cells in rows():
        print(f"{what:32s}{cells[0]:>10s}{cells[1]:>12s}{cells[2]:>12s}{cells[3]:>10s}")


if __name__ == "__main__":
    main()

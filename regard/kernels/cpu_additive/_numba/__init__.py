"""The loops of cpu_additive, compiled by numba. Imported only when they run.

They release the GIL and are not parallel themselves: cpu_additive spreads tasks over threads.

A task is a few queries of one head. Keys come in blocks; the scores of one query against a block are a row s[j], which
the compiler vectorises. With A = e^{2a}, B = e^{2b} and x_d = 1 + A_d B_d,

    Σ_d w_d tanh(a_d + b_d) = Σ_d w_d − 2 Σ_d w_d / x_d

and with W = max |w|, u = w / W the weights go into the denominators, y_d = x_d / u_d = 1/u_d + (A_d/u_d) B_d:

    Σ_d w_d / x_d = W Σ_d 1/y_d,   1/y_0 + 1/y_1 + 1/y_2 + 1/y_3 = ((y_0+y_1) y_2y_3 + (y_2+y_3) y_0y_1) / y_0y_1y_2y_3

Four fractions share one division. |y| is at least 1. Above 2^30 (2^250 in float64) a fraction is below the last bit of
W, so |y| is clamped to that limit, where the product of four does not overflow. The clamp is left out where bounds on
the data show that there is no overflow (``tame``). |u| is at least 2^-30 (2^-60) for the same reason. If e^{2a} or
e^{2b} would overflow (``wide``), x_d = 1 + exp(2a + 2b) is computed for each pair.

``_fractions`` has these sums and their gradients, ``_rows`` all other operations on rows; ``_forward``, ``_decode`` and
``_backward`` are the loops around them. ``_vectors`` has the innermost loops in LLVM instructions; ``_compile``
compiles and caches.

Shapes: a [B, H, L, D], bt [B, K, D, S], w [B, H, D], v [B, K, S, Dv]; in bt and w, D is a multiple of four.
"""

from __future__ import annotations

from typing import Any

from numba import types

from regard.kernels.cpu_additive._numba._backward import backward
from regard.kernels.cpu_additive._numba._decode import decode, gather
from regard.kernels.cpu_additive._numba._forward import forward, keys

__all__ = ["backward", "decode", "forward", "gather", "keys", "prepare"]


def prepare(real: str, which: str) -> None:
    """Compile a loop for "float32" or "float64", once and for all array layouts."""
    f, n = getattr(types, real), types.int64

    def array(kind: Any, dims: int, layout: Any = "C") -> Any:
        return types.Array(kind, dims, layout)

    terms = (
        array(f, 3),
        array(f, 4, "A"),
        array(f, 4, "A"),
        array(f, 2),
        array(n, 2),
    )  # key, bias, table, slope, positions
    tiles = (array(types.int32, 4, "A"), array(types.boolean, 3))  # state, masks
    given = (
        n, array(f, 4), array(f, 4), array(f, 3), array(f, 3), array(f, 3), array(f, 2),  # group, a, bt, top, w, 1/u, W
        array(f, 4), *terms, *tiles, n, n, types.boolean,  # v, blocks, wide
    )  # fmt: skip
    dropout = (array(n, 1), n, types.float64, n)  # seed, threshold, keep, head
    if which == "forward":
        _compile(keys, n, n, array(f, 4, "A"), array(f, 4), array(f, 2), types.boolean)
        _compile(forward, n, n, *given, array(f, 2), *dropout, array(f, 4), array(f, 3))
    elif which == "backward":
        rows = (array(f, 4), array(f, 3), array(f, 3), array(f, 4))  # vt, lse, delta, grad
        sums = (array(f, 4), array(f, 3), array(f, 4), array(f, 3), array(f, 2), array(f, 4, "A"), array(f, 4, "A"))
        _compile(backward, n, n, n, *given, *dropout, *rows, *sums)
    else:
        panels = (array(f, 1), array(n, 2))  # all numbers, and where each head's begin
        parts = (array(f, 3), array(f, 2), array(f, 2))  # acc, top, total
        _compile(
            decode, n, n, n, n, n, array(f, 4), *panels, types.boolean, types.boolean, array(f, 3), *panels, *terms,
            *tiles, n, n, n, array(f, 2), *parts,
        )  # fmt: skip
        _compile(gather, n, n, *parts, array(f, 4), array(f, 3))


def _compile(loop: Any, *signature: Any) -> None:
    """Compile for this signature, and never again for another.

    numba would recompile a loop for each mixture of contiguous ("C") and other arrays. With compilation disabled it
    accepts a contiguous array where the signature says any ("A").
    """
    loop.disable_compile(False)
    loop.compile(signature)
    loop.disable_compile()

"""Who is compared: regard, the textbook formula in eager PyTorch and compiled, PyTorch's SDPA, Keras; and the limit.

Shapes: q, k, v are [1, heads, n, d], the hidden size of an additive score is d.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.score import Additive, Relative, Score
from regard.score.terms import DotTerm, OffsetTerm

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
REACH = 16  # distances that Shaw's relative keys tell apart, to each side


def inputs(
    heads: int, n: int, d: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, heads, n, d, device=device, dtype=dtype) for _ in range(3))


def textbook(score: Score) -> Attention:
    """softmax(E) v with E from the score's dense formula."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e: Tensor = score(q, k)
        return torch.softmax(e, -1) @ v

    return attention


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def sdpa_with_bias(score: Score) -> Attention:
    """PyTorch's own, with the score's offset terms looked up as a dense bias [1, H, L, S]."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, scale, bias, dot = q.shape[-2], 1.0, q.new_zeros(()), False
        delta = torch.arange(n) - torch.arange(n)[:, None]
        for term in score.queries(q).terms:
            if isinstance(term, DotTerm):
                assert isinstance(term.scale, float)
                scale, dot = term.scale, True
            elif isinstance(term, OffsetTerm):
                near = delta.clamp(-term.reach, term.reach)
                index = (near + term.reach).expand(*q.shape[:2], n, n)
                bias = term.table.expand(*q.shape[:3], -1).gather(-1, index)
                if term.slope is not None:
                    bias = bias - term.slope[..., None, None] * (delta - near).abs()
        if not dot:
            return torch.softmax(bias, -1) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

    return attention


def fused(score: Score) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = regard.attend(q, k, v, score=score)
        assert isinstance(out, Tensor)
        return out

    return attention


def keras_additive(score: Additive) -> Attention | str:
    """The same as Keras has it, on its torch backend, or why there is none: Dense, Dense, AdditiveAttention.

    Keras' layer knows no heads. They become batch items, which share W, U and v as the heads of ``score`` do: the same
    numbers from the same work.
    """
    if importlib.util.find_spec("keras") is None:
        return "keras is not installed (pip install keras)"
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("KERAS_HOME", tempfile.gettempdir())  # where it writes its settings
    import keras

    if keras.backend.backend() != "torch":
        return f"keras runs on {keras.backend.backend()} (KERAS_BACKEND), not on torch"
    layers: Any = keras.layers
    hidden, d = score.W.shape
    with keras.device("cpu"):
        project = [layers.Dense(hidden, use_bias=False) for _ in range(2)]
        for dense, weight in zip(project, (score.W, score.U), strict=True):
            dense.build((None, None, d))
            dense.kernel.assign(weight.detach().T)
        layer = layers.AdditiveAttention()
        layer.build([(None, 1, hidden), (None, 1, d), (None, 1, hidden)])
        layer.scale.assign(score.v.detach())

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with keras.device("cpu"):
            out: Tensor = layer([project[0](q[0]), v[0], project[1](k[0])])
        return out[None]

    return attention


def agree(one: Attention, other: Attention, heads: int, d: int) -> None:
    """Both compute the same thing: a ratio of their times means something."""
    q, k, v = inputs(heads, 48, d)
    with torch.no_grad():
        torch.testing.assert_close(one(q, k, v), other(q, k, v))


def with_backward(f: Attention, *inputs: Tensor, parameters: list[nn.Parameter] | None = None) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    learned = [*leaves, *(parameters or [])]
    return lambda: torch.autograd.grad(f(*leaves).sum(), learned, allow_unused=True)


def score(what: str, d: int) -> Score:
    return {"additive": lambda: Additive(d, d, d), "relative": lambda: Relative(d, REACH)}[what]()


def contender(name: str, d: int, device: str = "cpu") -> Attention:
    """By name: "SDPA dot", or a score's name with " eager" behind it for the textbook's way."""
    if name == "SDPA dot":
        return sdpa
    what, *eager = name.split()
    made = score(what, d).to(device)
    return textbook(made) if eager else fused(made)


def trained(name: str, heads: int, n: int, d: int, device: str = "cpu") -> Callable[[], object]:
    """Forward and backward."""
    return with_backward(contender(name, d, device), *inputs(heads, n, d, device=device))


def multiply_adds(what: str, heads: int, n: int, d: int, backward: bool = False) -> float:
    """Multiplications and fused multiply-adds that cannot be saved: see "What it costs" in docs/kernels.md.

    Additive: nine for four hidden units forward; backward these again and 21 for the gradients. A context takes d, and
    backward 2 d. A dot product: d forward, and backward that again and 2 d.
    """
    scores = {"additive": (9 / 4, 9 / 4 + 21 / 4), "relative": (1, 3), "dot": (1, 3)}[what]
    each = (scores[0] + 1) * d + backward * (scores[1] + 2) * d
    return heads * n * n * each

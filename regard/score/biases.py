"""Scores that do not depend on the query: a given tensor, and a weight per key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.score._checks import arguments, check_fit, check_positive, parameter_sets, sets_of
from regard.score._tensors import project, repeat_heads
from regard.score.base import Score
from regard.score.terms import BiasTerm, Keys, KeyTerm, Queries


class Bias(Score):
    """e_ij = b_ij, a given tensor that broadcasts to [batch, heads, L, S]; −inf hides a pair (but see masks).

    An ``nn.Parameter`` is learned: it is in the state dict, and ``reset_parameters`` sets it to 0. Any other tensor
    moves with the score, but is not saved with it.
    """

    key_tensors = 0
    _caller_tensors = ("bias",)
    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        if not isinstance(bias, Tensor) or not bias.is_floating_point():
            got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
            raise TypeError(f"Bias takes a floating-point tensor, got {got}; a bool tensor is a mask")
        if isinstance(bias, nn.Parameter):
            self.bias = bias
        else:
            self.register_buffer("bias", bias, persistent=False)

    def reset_parameters(self) -> None:
        if isinstance(self.bias, nn.Parameter):
            nn.init.zeros_(self.bias)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return self.bias.to(q.dtype).expand(torch.broadcast_shapes(self.bias.shape, q.shape[:-1] + k.shape[-2:-1]))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((BiasTerm(self.bias),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())

    def extra_repr(self) -> str:
        return str(list(self.bias.shape))


class Key(Score):
    """e_ij = w·k_j: the same for every query. w is initialised uniformly in ±1/√dim."""

    positional = False

    def __init__(self, dim: int, *, heads: int | None = None, kv_heads: int | None = None) -> None:
        super().__init__()
        (dim,) = check_positive("Key", dim=dim)
        _, key_sets = parameter_sets("Key", heads, kv_heads)
        self.w = nn.Parameter(torch.empty(*key_sets, 1, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.w.shape[-1] ** -0.5
        nn.init.uniform_(self.w, -bound, bound)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return repeat_heads(project(k, self.w), q).mT + q.new_zeros((*q.shape[:-1], 1))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((KeyTerm(),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((project(k, self.w),))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_fit("Key", "key", self.w, kv_heads, key_dim)

    def extra_repr(self) -> str:
        return arguments(dim=self.w.shape[-1], heads=sets_of(self.w))

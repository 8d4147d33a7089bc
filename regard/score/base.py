"""The base class of all scores."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.common.module import Module
from regard.score.terms import FormulaTerm, Keys, Queries

if TYPE_CHECKING:
    from regard.score.combine import Sum

_SHAPES = {"dot_shaped", "pair_shaped", "positional", "pairs", "capped", "value_table", "knows_places"}
_LOWERING = _SHAPES | {"key_tensors", "queries", "keys", "cached_keys"}  # all that describes how a score is lowered


class Score(Module):
    """Base class of scores. Scores add and scale: ``2 * Dot() + ALiBi(heads=8)``, ``sum([...])``, ``-score``.

    A custom score only needs ``forward``, the dense formula. It is called for some of the queries at a time, so that
    memory stays O(n): for L queries it returns [..., H, L, S]. Row i may depend on query i, on its position
    ``offset + i`` and on all keys.

    >>> class Distance(Score):
    ...     def forward(self, q, k, offset=0):
    ...         return -torch.cdist(q, k)
    >>> q, k = torch.zeros(1, 1, 2), torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    >>> Distance()(q, k)
    tensor([[[-5., -1.]]])
    """

    dot_shaped = False  # E is a dot product of a function of the query and a function of the key
    pair_shaped = False  # E is made of pair terms only
    positional = True  # E depends on the positions of queries and keys, not on their vectors alone
    pairs = False  # E has pair terms, among others
    capped = False  # the pair terms are capped
    value_table = False  # it adds a term to the context
    knows_places = False  # the formula accepts the positions of all queries and keys, not only of the first query
    key_tensors = 1  # number of tensors of the key half
    _caller_tensors: tuple[str, ...] = ()  # names of buffers that hold the caller's tensors

    def __init_subclass__(cls, **options: object) -> None:
        """A subclass that overrides ``forward`` alone does not inherit the lowering: that is of another formula."""
        super().__init_subclass__(**options)
        if "forward" in vars(cls) and "queries" not in vars(cls):
            for name in _LOWERING - vars(cls).keys():
                setattr(cls, name, vars(Score)[name])

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        """E, [..., H, L, S], for queries [..., H, L, Dq] at positions offset + i and keys [..., K, S, Dk] at j."""
        raise NotImplementedError(
            f"{type(self).__name__} has no formula: write forward(self, q, k, offset), which returns the score of "
            "every query and key, [..., heads, len(q), len(k)]"
        )

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((FormulaTerm(self, q, offset),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k,))

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        """The key half in the form that is cheapest to attend to many times, for a cache."""
        return self.keys(k, start)

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        """Raise ValueError unless the score fits these heads and dims (None if the keys are already lowered)."""

    def __add__(self, other: Score) -> Sum:
        if not isinstance(other, Score):
            return NotImplemented
        from regard.score.combine import Sum  # it subclasses this class

        return Sum(self, other)

    def __radd__(self, other: object) -> Score:
        """``sum([a, b])`` begins with ``0 + a``."""
        return self if type(other) is int and other == 0 else NotImplemented

    def __sub__(self, other: Score) -> Sum:
        return self + -other if isinstance(other, Score) else NotImplemented

    def __mul__(self, factor: float) -> Score:
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            return NotImplemented
        from regard.score.scale import Scale

        return Scale(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Score:
        return self * (1 / divisor) if isinstance(divisor, (int, float)) else NotImplemented

    def __neg__(self) -> Score:
        return self * -1

    @property
    def unchanged_up_to(self) -> float:
        """The longest sequence whose length does not change the score; finite for frequencies scaled by length."""
        return min([math.inf, *[part.unchanged_up_to for part in scores_in(self)[1:]]])

    # --- buffers outside the state dict ---

    def _constants(self) -> dict[str, Tensor]:
        """Buffers computed from the arguments, on the CPU; recomputed when the score is moved, reset or loaded."""
        return {}

    def _start(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        for name, x in self._constants().items():
            self.register_buffer(name, x.to(self._place(name)), persistent=False)

    def _place(self, name: str) -> torch.device:
        """The buffer's device; without a buffer, or if it is on the meta device, that of the parameters."""
        known = [x for x in (self._buffers.get(name), *self.parameters(recurse=False)) if x is not None]
        real = [x.device for x in known if not x.is_meta]
        return (real or [x.device for x in known] or [torch.get_default_device()])[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Score:
        """As for any module, but constants are neither cast nor emptied, and the caller's tensors are not emptied."""
        before = {name: x for name in self._caller_tensors if (x := self._buffers.get(name)) is not None}
        super()._apply(fn, recurse)
        for name, x in before.items():
            self._buffers[name] = _restore_values(x, self._buffers[name])
        self._lay_out()
        return self

    def _load_from_state_dict(self, *args: object) -> None:
        super()._load_from_state_dict(*args)
        self._lay_out()


def _restore_values(before: Tensor, after: Tensor | None) -> Tensor:
    """The moved tensor with the values it had. A meta tensor has none and stays on the meta device."""
    assert after is not None
    if before.is_meta:
        return before
    return after if after is before or after.is_meta else after.copy_(before)


def scores_in(module: nn.Module) -> list[Score]:
    """A score and all scores inside it. (torch.compile cannot call ``modules()`` on a module made in the program.)"""
    own = [module] if isinstance(module, Score) else []
    return own + [part for child in module.children() for part in scores_in(child)]


def describe_argument(given: object) -> str:
    """What was passed instead of a score; for a class, how to instantiate it."""
    if not isinstance(given, type) or not issubclass(given, Score):
        return type(given).__name__
    parameters = list(inspect.signature(given).parameters.values())
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return f"the class {given.__name__}; write {given.__name__}({', '.join(needed)})"

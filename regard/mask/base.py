"""The base class of all masks."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import Tensor

from regard.mask.packed import Packed
from regard.mask.shape import Bound, Grid, Shape, Verdict


class Mask:
    """Base class of masks. A subclass needs ``visible``; the other methods make it faster.

    >>> class Even(Mask):
    ...     def visible(self, rows, positions, cols):
    ...         return cols % 2 == 0
    >>> Even().dense(2, 4).int()
    tensor([[1, 0, 1, 0],
            [1, 0, 1, 0]], dtype=torch.int32)
    """

    static = False  # it depends on positions alone, and reads no tensor
    reads_positions = True  # it depends on the positions of queries and keys
    varies = "LS"  # the dims of [B, H, L, S] along which it varies
    tensors: tuple[Tensor, ...] = ()
    ints: tuple[int, ...] = ()
    parts: tuple[Mask, ...] = ()

    def __init_subclass__(cls) -> None:
        """A subclass that overrides ``visible`` alone does not inherit the answers about tiles: they may be wrong."""
        if "visible" in vars(cls) and "reads_positions" not in vars(cls):
            cls.reads_positions = True
        if "visible" in vars(cls) and not {"span", "tiles"} & vars(cls).keys():
            cls.static, cls.varies = False, "BHLS"
            cls.span, cls.tiles = Mask.span, Mask.tiles  # type: ignore[method-assign]

    def bind(self, shape: Shape) -> Mask:
        """Check the mask's tensors against a problem and bring them to canonical shape.

        ``shape.key_positions`` is set if key positions differ from key indices.
        """
        return self

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        """For query indices [l], their positions [B|1, l] and key indices [s]: bool, broadcasts to [B, H, l, s]."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which keys a query may see: write visible(self, rows, positions, cols), "
            "which returns booleans that broadcast to [batch, heads, len(rows), len(cols)]"
        )

    def span(self, p_lo: Bound, p_hi: Bound, k_lo: Bound, k_hi: Bound) -> Verdict:
        """(empty, full) of the tile of query positions p_lo…p_hi and keys k_lo…k_hi, inclusive."""
        return False, False

    def tiles(self, grid: Grid) -> Verdict:
        """(empty, full) of every tile of a grid."""
        cols = torch.arange(grid.keys, device=grid.positions.device)[None]
        return self.span(*grid.query_range(grid.positions), *grid.key_range(cols))

    def for_heads(self, heads: slice) -> Mask:
        """The mask of some of the heads."""
        return self

    def packing(self) -> Packed | None:
        """The packed documents in this mask, if any; they set the positions of the call."""
        return None

    def dense(
        self, queries: int, keys: int | None = None, *, batch: tuple[int, ...] = (), heads: int = 1, offset: int = 0
    ) -> Tensor:
        """The whole mask as booleans, for inspection: [*batch, heads, L, S], without ``heads`` if it is 1.

        >>> from regard.mask import Causal
        >>> Causal().dense(2, 3, offset=1).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        """
        from regard.mask.own import bind

        keys = queries if keys is None else keys
        packed, device = self.packing(), torch.device("cpu")
        laid = None if packed is None else packed.lay_out(queries, keys, device)
        bound = bind(self, Shape(batch, heads, queries, keys, device, laid=laid))
        rows, cols = torch.arange(queries), torch.arange(keys)
        where = rows + offset if laid is None else laid.among_keys
        seen = bound.visible(rows, where[None], cols)
        seen = seen.expand(math.prod(batch), heads, queries, keys)
        return seen.reshape(*batch, *((heads,) if heads > 1 else ()), queries, keys)

    @classmethod
    def rebuild(cls, tensors: tuple[Tensor, ...], ints: tuple[int, ...], parts: tuple[Mask, ...]) -> Mask:
        """A mask of this class with the ``tensors``, ``ints`` and ``parts`` of another."""
        return cls(*tensors, *ints, *parts)

    def for_items(self, items: slice) -> Mask:
        """The bound mask of some of the batch items."""
        tensors = tuple(t if t.shape[0] == 1 else t[items] for t in self.tensors)
        return build(type(self).__name__, tensors, self.ints, tuple(part.for_items(items) for part in self.parts))

    def _with(self, *tensors: Tensor) -> Mask:
        """A copy, of the same class, with other tensors."""
        other = copy.copy(self)
        other.tensors = tensors
        return other

    def __and__(self, other: Mask | Tensor) -> Mask:
        from regard.mask.combine import And
        from regard.mask.dense import as_mask

        return And(self, as_mask(other))

    def __or__(self, other: Mask | Tensor) -> Mask:
        from regard.mask.combine import Or
        from regard.mask.dense import as_mask

        return Or(self, as_mask(other))

    __rand__, __ror__ = __and__, __or__  # with a tensor on the left; & and | commute

    def __invert__(self) -> Mask:
        from regard.mask.combine import Not

        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("masks combine with &, | and ~; Python's and, or and not would take one and drop the other")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.ints))})"


KINDS: dict[str, type[Mask]] = {}
M = TypeVar("M", bound=type[Mask])


def register(kind: M) -> M:
    """Register a class that kernels implement themselves: they read its tensors and ints, not ``visible``."""
    KINDS[kind.__name__] = kind
    return kind


def build(kind: str, tensors: tuple[Tensor, ...], ints: tuple[int, ...], parts: tuple[Mask, ...]) -> Mask:
    """Rebuild a mask from its class name and its ``tensors``, ``ints`` and ``parts``."""
    return KINDS[kind].rebuild(tensors, ints, parts)

"""Masks: which keys a query may attend to. True means it may.

Masks combine with ``&``, ``|`` and ``~``: a padded prefix language model is ``(Causal() | Prefix(10)) & Lengths(n)``.

A mask answers two questions: ``visible`` gives a tile of booleans, and ``tiles`` says of every tile of a grid
whether it is empty or full, so that kernels skip the first kind and need not evaluate the second. Masks that depend
on positions alone answer ``span`` for plain integers too, without reading any tensor.

A mask of one's own is a subclass with ``visible`` alone, or a :class:`Function`; both run everywhere.

Shapes: B batch, H heads, L queries, S keys, l and s a tile's rows and columns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.mask.packed import Layout, Packed

__all__ = ["And", "Causal", "Dense", "Documents", "Function", "Lengths", "Mask", "Not", "Or", "Prefix", "Window"]

_WHOLE = (int, torch.SymInt)  # a number, or a symbol in its place while a program is traced for any
Verdict = tuple[Any, Any]  # (empty, full): two bools, or two bool tensors that broadcast to [B, H, tiles, tiles]


@dataclass(frozen=True)
class Shape:
    """What a mask is used with; its tensors are checked against this."""

    batch: tuple[int, ...]
    heads: int
    queries: int
    keys: int
    device: torch.device
    key_positions: Tensor | None = None  # [B|1, S]; None: key j stands at j
    laid: Layout | None = None  # of packed documents, in which positions restart


@dataclass(frozen=True)
class Grid:
    """All tiles of a problem: rows × columns in blocks."""

    rows: Tensor  # [L] indices of the queries
    positions: Tensor  # [B|1, L]
    keys: int
    block_q: int
    block_k: int

    def query_range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest of x [B|1, L] in each block of rows, [B|1, 1, blocks, 1]."""
        low, high = _block_range(x, self.block_q)
        return low[:, None, :, None], high[:, None, :, None]

    def key_range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest of x [B|1, S] in each block of columns, [B|1, 1, 1, blocks]."""
        low, high = _block_range(x, self.block_k)
        return low[:, None, None, :], high[:, None, None, :]


class Mask:
    """What all masks share. A subclass needs ``visible``; the rest makes it faster.

    >>> class Even(Mask):
    ...     def visible(self, rows, positions, cols):
    ...         return cols % 2 == 0
    >>> Even().dense(2, 4).int()
    tensor([[1, 0, 1, 0],
            [1, 0, 1, 0]], dtype=torch.int32)
    """

    static = False  # depends on positions alone: no tensor need be read
    reads_positions = True  # depends on where queries and keys stand
    varies = "LS"  # the dims of [B, H, L, S] along which it is not constant
    tensors: tuple[Tensor, ...] = ()
    ints: tuple[int, ...] = ()
    parts: tuple[Mask, ...] = ()

    def __init_subclass__(cls) -> None:
        """Who writes another ``visible`` inherits no answers about tiles: they were those of the one before."""
        if "visible" in vars(cls) and "reads_positions" not in vars(cls):
            cls.reads_positions = True
        if "visible" in vars(cls) and not {"span", "tiles"} & vars(cls).keys():
            cls.static, cls.varies = False, "BHLS"
            cls.span, cls.tiles = Mask.span, Mask.tiles  # type: ignore[method-assign]

    def bind(self, shape: Shape) -> Mask:
        """Check the mask's tensors against a problem and bring them to canonical shape.

        ``shape.key_positions`` are there if keys stand elsewhere than at their index.
        """
        return self

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        """For query indices [l], their positions [B|1, l] and key indices [s]: bool, broadcasts to [B, H, l, s]."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which keys a query may see: write visible(self, rows, positions, cols), "
            "which returns booleans that broadcast to [batch, heads, len(rows), len(cols)]"
        )

    def span(self, p_lo: Any, p_hi: Any, k_lo: Any, k_hi: Any) -> Verdict:
        """Is the tile of query positions p_lo…p_hi and keys k_lo…k_hi (inclusive) empty, is it full?"""
        return False, False

    def tiles(self, grid: Grid) -> Verdict:
        """The same for every tile of a grid."""
        cols = torch.arange(grid.keys, device=grid.positions.device)[None]
        return self.span(*grid.query_range(grid.positions), *grid.key_range(cols))

    def for_heads(self, heads: slice) -> Mask:
        """The mask of some of the heads."""
        return self

    def packing(self) -> Packed | None:
        """The packed documents that give the call its positions, if there are any in it."""
        return None

    def dense(
        self, queries: int, keys: int | None = None, *, batch: tuple[int, ...] = (), heads: int = 1, offset: int = 0
    ) -> Tensor:
        """The whole mask as booleans, to look at: [*batch, heads, L, S], without the dims that are 1.

        >>> Causal().dense(2, 3, offset=1).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        """
        keys = queries if keys is None else keys
        packed, device = self.packing(), torch.device("cpu")
        laid = None if packed is None else packed.lay_out(queries, keys, device)
        bound = bind(self, Shape(batch, heads, queries, keys, device, laid=laid))
        rows, cols = torch.arange(queries), torch.arange(keys)
        where = rows + offset if laid is None else laid.among_keys
        seen = bound.visible(rows, where[None], cols)
        seen = seen.expand(math.prod(batch), heads, queries, keys)
        return seen.reshape(*batch, *((heads,) if heads > 1 else ()), queries, keys)

    def for_items(self, items: slice) -> Mask:
        """The bound mask of some of the batch items."""
        tensors = tuple(t if t.shape[0] == 1 else t[items] for t in self.tensors)
        return build(type(self).__name__, tensors, self.ints, tuple(part.for_items(items) for part in self.parts))

    def _with(self, *tensors: Tensor) -> Mask:
        """The same with other tensors: of a subclass, still one."""
        if type(self) in (Lengths, Prefix, Documents, Dense):  # torch.compile cannot copy before PyTorch 2.13
            return type(self)(*tensors)
        other = Causal() if type(self) is Causal else copy.copy(self)
        other.tensors = tensors
        return other

    def __and__(self, other: Mask | Tensor) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Or(self, as_mask(other))

    __rand__, __ror__ = __and__, __or__  # a tensor on the left; the order makes no difference

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("masks combine with &, | and ~; Python's and, or and not would take one and drop the other")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.ints))})"


class _ByPosition(Mask):
    """Masks of where a key stands from its query. Where keys stand elsewhere than at their index it holds that."""

    def at(self, key_positions: Tensor) -> Mask:
        """The same for keys at these positions, [B|1, S]."""
        made = Window(self.left, self.right) if type(self) is Window else self._with()
        made.tensors = (key_positions,)
        made.varies = "BLS" if key_positions.shape[0] > 1 else "LS"
        return made

    @property
    def static(self) -> bool:  # type: ignore[override]
        return not self.tensors

    def bind(self, shape: Shape) -> Mask:
        return self if shape.key_positions is None else self.at(shape.key_positions)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        keys = self.tensors[0][:, None, cols] if self.tensors else cols
        return self._seen(keys, positions[..., None])[:, None]

    def tiles(self, grid: Grid) -> Verdict:
        if not self.tensors:
            return super().tiles(grid)
        return self.span(*grid.query_range(grid.positions), *grid.key_range(self.tensors[0]))

    def _seen(self, keys: Tensor, queries: Tensor) -> Tensor:
        raise NotImplementedError


class Causal(_ByPosition):
    """A query sees the keys at its own position and before."""

    def _seen(self, keys: Tensor, queries: Tensor) -> Tensor:
        return keys <= queries

    def span(self, p_lo: Any, p_hi: Any, k_lo: Any, k_hi: Any) -> Verdict:
        return k_lo > p_hi, k_hi <= p_lo


class Window(_ByPosition):
    """A query sees that many keys to each side of its own position, inclusive; None = unbounded."""

    def __init__(self, left: int | None = None, right: int | None = None) -> None:
        for side, n in (("left", left), ("right", right)):
            if n is not None and (isinstance(n, bool) or not isinstance(n, _WHOLE) or n < 0):
                raise ValueError(f"Window: {side} must be an integer ≥ 0 or None for unbounded, got {n!r}")
        self.left, self.right = left, right
        self.ints = (-1 if left is None else left, -1 if right is None else right)

    def _seen(self, keys: Tensor, queries: Tensor) -> Tensor:
        delta = keys - queries
        seen = torch.ones_like(delta, dtype=torch.bool)
        if self.left is not None:
            seen = seen & (delta >= -self.left)
        if self.right is not None:
            seen = seen & (delta <= self.right)
        return seen

    def span(self, p_lo: Any, p_hi: Any, k_lo: Any, k_hi: Any) -> Verdict:
        low, high = k_lo - p_hi, k_hi - p_lo
        left = -(2**62) if self.left is None else -self.left
        right = 2**62 if self.right is None else self.right
        return (high < left) | (low > right), (low >= left) & (high <= right)

    def __repr__(self) -> str:
        return f"Window({self.left}, {self.right})"


class _UpTo(Mask):
    """Keys j < n, with one n for all or one per batch item."""

    varies, reads_positions = "S", False

    def __init__(self, n: int | Sequence[int] | Tensor) -> None:
        if isinstance(n, _WHOLE) and not isinstance(n, bool):
            self.static, self.ints = True, (n,)
            return
        n = torch.as_tensor(n)
        if n.is_floating_point() or n.dtype == torch.bool:
            raise TypeError(f"{type(self).__name__} takes whole numbers, got {n.dtype}")
        self.tensors, self.varies = (n,), "BS" if n.numel() > 1 else "S"

    def bind(self, shape: Shape) -> Mask:
        if self.static:
            return self
        return self._with(_per_item(type(self).__name__, self.tensors[0], shape))

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        if self.static:
            return (cols < self.ints[0])[None, None, None]
        return cols < self.tensors[0][:, None, None, None]

    def span(self, p_lo: Any, p_hi: Any, k_lo: Any, k_hi: Any) -> Verdict:
        n = self.ints[0] if self.static else self.tensors[0][:, None, None, None]
        return k_lo >= n, k_hi < n


class Lengths(_UpTo):
    """Keys j ≥ n_b are hidden: padding at the end of each batch item."""


class Prefix(_UpTo):
    """The first n keys are visible; a prefix language model is ``Causal() | Prefix(n)``."""


class Documents(Mask):
    """Only keys of the same document id. Positions count on from one document to the next, but in :meth:`packed`.

    >>> Documents([0, 0, 1]).dense(3).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """

    reads_positions = False

    def __init__(self, query_ids: Tensor | Sequence[int], key_ids: Tensor | Sequence[int] | None = None) -> None:
        ids = torch.as_tensor(query_ids)
        key = ids if key_ids is None else torch.as_tensor(key_ids)
        if any(x.is_floating_point() or x.dtype == torch.bool for x in (ids, key)):
            raise TypeError(f"Documents takes whole numbers as ids, got {ids.dtype} and {key.dtype}")
        self.tensors = (ids, key)
        self.varies = "BLS" if max(ids.ndim, key.ndim) > 1 else "LS"

    @classmethod
    def packed(
        cls, query_offsets: Tensor | Sequence[int], key_offsets: Tensor | Sequence[int] | None = None
    ) -> Documents:
        """Documents laid end to end, from cumulative offsets 0, n₁, n₁ + n₂, … (``cu_seqlens``), without padding.

        Positions restart in each document, for every score and mask, so that a call equals one call per document.
        Where a document has more keys than queries, its last query stands at its last key, as in decoding.

        >>> (Documents.packed([0, 2, 3], [0, 3, 5]) & Causal()).dense(3, 5).int()
        tensor([[1, 1, 0, 0, 0],
                [1, 1, 1, 0, 0],
                [0, 0, 0, 1, 1]], dtype=torch.int32)
        """
        return _PackedDocuments(Packed.of(query_offsets, key_offsets))

    @classmethod
    def known(cls, query_offsets: Tensor, key_offsets: Tensor | None) -> Documents:
        """The same of offsets that need no check, as a nested tensor's."""
        return _PackedDocuments(Packed.known(query_offsets, key_offsets))

    def bind(self, shape: Shape) -> Mask:
        q = per_position("Documents: query_ids", "id", self.tensors[0], shape, shape.queries)
        k = per_position("Documents: key_ids", "id", self.tensors[1], shape, shape.keys)
        return self._with(q, k)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        q, k = self.tensors
        return (q[:, rows, None] == k[:, None, cols])[:, None]

    def tiles(self, grid: Grid) -> Verdict:
        q_lo, q_hi = grid.query_range(self.tensors[0][:, grid.rows])
        k_lo, k_hi = grid.key_range(self.tensors[1])
        return (q_hi < k_lo) | (q_lo > k_hi), (q_lo == k_hi) & (q_hi == k_lo)


class _PackedDocuments(Documents):
    """Documents by where they begin; bound to a problem, they are Documents by their ids."""

    def __init__(self, packed: Packed) -> None:
        self.packed_as, self.varies = packed, "LS"

    def packing(self) -> Packed:
        return self.packed_as

    def bind(self, shape: Shape) -> Mask:
        laid = self.packed_as.lay_out(shape.queries, shape.keys, shape.device)
        return Documents(laid.query_ids[None], laid.key_ids[None])

    def __repr__(self) -> str:
        return f"Documents.packed({len(self.packed_as.queries) - 1} documents)"


class Dense(Mask):
    """Any bool tensor that broadcasts to [batch, heads, L, S]."""

    reads_positions = False

    def __init__(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise TypeError(f"a mask is a bool tensor (True = may attend), got {_no_mask(mask)}")
        self.tensors = (mask,)
        self.varies = "".join(d for d, n in zip("SLHB", reversed(mask.shape), strict=False) if n > 1)

    def bind(self, shape: Shape) -> Mask:
        return self._with(broadcast_pairs("the mask", self.tensors[0], shape))

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        mask = self.tensors[0]
        mask = mask if mask.shape[-2] == 1 else mask[:, :, rows]
        return mask if mask.shape[-1] == 1 else mask[..., cols]

    def tiles(self, grid: Grid) -> Verdict:
        mask = self.tensors[0]
        mask = (mask if mask.shape[-2] == 1 else mask[:, :, grid.rows]).expand(-1, -1, len(grid.rows), grid.keys)
        pad = (0, -grid.keys % grid.block_k, 0, -len(grid.rows) % grid.block_q)
        blocks = (-1, grid.block_k), (-1, grid.block_q)
        some, every = F.pad(mask, pad, value=False), F.pad(mask, pad, value=True)
        some = some.unflatten(-1, blocks[0]).any(-1).unflatten(-2, blocks[1]).any(-2)
        every = every.unflatten(-1, blocks[0]).all(-1).unflatten(-2, blocks[1]).all(-2)
        return ~some, every

    def for_heads(self, heads: slice) -> Mask:
        mask = self.tensors[0]
        return self if mask.shape[1] == 1 else Dense(mask[:, heads])

    def __repr__(self) -> str:
        return f"Dense({list(self.tensors[0].shape)})"


class _Combined(Mask):
    def __init__(self, *parts: Mask) -> None:
        self.parts = parts
        self.varies = "".join(part.varies for part in parts)

    @property
    def static(self) -> bool:  # type: ignore[override]
        return all(part.static for part in self.parts)

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return any(part.reads_positions for part in self.parts)

    def packing(self) -> Packed | None:
        if any(part.packing() for part in self.parts):
            raise ValueError(
                "Documents.packed restarts the positions of the whole call and combines with & only; to combine with "
                "| or ~ use Documents(ids), which does not restart positions, with positions= if they should restart"
            )
        return None

    def bind(self, shape: Shape) -> Mask:
        return type(self)(*[bind(part, shape) for part in self.parts])

    def for_heads(self, heads: slice) -> Mask:
        return type(self)(*[part.for_heads(heads) for part in self.parts])

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        return self._join([part.visible(rows, positions, cols) for part in self.parts])

    def span(self, p_lo: Any, p_hi: Any, k_lo: Any, k_hi: Any) -> Verdict:
        return self._combine([part.span(p_lo, p_hi, k_lo, k_hi) for part in self.parts])

    def tiles(self, grid: Grid) -> Verdict:
        return self._combine([part.tiles(grid) for part in self.parts])

    def _join(self, seen: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        raise NotImplementedError


class And(_Combined):
    """Visible where both parts say so. Written ``a & b``."""

    def packing(self) -> Packed | None:
        one, two = (part.packing() for part in self.parts)
        if one is not None and two is not None:
            raise ValueError("a call takes one Documents.packed, which sets its positions; got two joined by &")
        return two if one is None else one

    def _join(self, seen: list[Tensor]) -> Tensor:
        return seen[0] & seen[1]

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        (a_empty, a_full), (b_empty, b_full) = verdicts
        return a_empty | b_empty, a_full & b_full

    def __repr__(self) -> str:
        return f"({self.parts[0]} & {self.parts[1]})"


class Or(_Combined):
    """Visible where either part says so. Written ``a | b``."""

    def _join(self, seen: list[Tensor]) -> Tensor:
        return seen[0] | seen[1]

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        (a_empty, a_full), (b_empty, b_full) = verdicts
        return a_empty & b_empty, a_full | b_full

    def __repr__(self) -> str:
        return f"({self.parts[0]} | {self.parts[1]})"


class Not(_Combined):
    """Visible where the part says not. Written ``~a``."""

    def _join(self, seen: list[Tensor]) -> Tensor:
        return ~seen[0]

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        ((empty, full),) = verdicts
        return full, empty

    def __repr__(self) -> str:
        return f"~{self.parts[0]}"


class Function(Mask):
    """A mask in one line: ``f(b, h, i, j)`` says whether head h of batch item b may see key j from query i.

    The arguments are whole numbers in tensors that broadcast to [batch, heads, l, s], and so must the result. Query i
    counts from ``offset``, as in every mask, so that a step of decoding asks what the whole sequence would, and with
    ``positions=`` or in packed documents both are positions. (The same functions serve FlexAttention as its
    ``mask_mod``; batch dims count as one there and here.)

    >>> Function(lambda b, h, i, j: (j <= i) & (i - j < 2)).dense(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """

    def __init__(self, f: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        if not callable(f):
            raise TypeError(f"Function takes a function of (b, h, i, j) that returns booleans, got {type(f).__name__}")
        self.f = f

    def bind(self, shape: Shape) -> Mask:
        items, heads = (torch.arange(n, device=shape.device) for n in (math.prod(shape.batch), shape.heads))
        if shape.laid is not None:  # queries are asked about by their place among the keys of the whole pack
            return self._with(items, heads, shape.laid.key_positions[None], shape.laid.query_positions[None])
        keys = shape.key_positions
        return self._with(items, heads, torch.arange(shape.keys, device=shape.device)[None] if keys is None else keys)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        items, heads, keys, *queries = self.tensors
        positions = queries[0][:, rows] if queries else positions
        at = positions[:, None, :, None], keys[:, None, None, cols]
        return self.f(items[:, None, None, None], heads[:, None, None], *at)

    def for_heads(self, heads: slice) -> Mask:
        items, own, *places = self.tensors
        return self._with(items, own[heads], *places)

    def for_items(self, items: slice) -> Mask:
        own, heads, *places = self.tensors
        return self._with(own[items], heads, *(x if len(x) == 1 else x[items] for x in places))

    def __repr__(self) -> str:
        return f"Function({getattr(self.f, '__name__', type(self.f).__name__)})"


class ByVisible(Mask):
    """A bound mask that kernels know nothing of but ``visible``: its answers are checked, and cut to what is asked."""

    def __init__(self, mask: Mask, batch: int, items: slice | None = None, heads: slice | None = None) -> None:
        self.mask, self.batch, self.items, self.heads = mask, batch, items, heads
        self.static, self.varies = mask.static, mask.varies if type(mask).varies != Mask.varies else "BHLS"
        self.reads_positions = mask.reads_positions

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        if self.items is not None and positions.shape[0] > 1:  # it may hold something of every item
            whole = positions.new_zeros(self.batch, positions.shape[1])
            whole[self.items] = positions
            positions = whole
        seen = self.mask.visible(rows, positions, cols)
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
            got = seen.dtype if isinstance(seen, Tensor) else type(seen).__name__
            raise TypeError(f"{self}.visible must return a bool tensor, got {got}")
        if seen.ndim > 4 or not broadcasts(seen.shape[-2:], (len(rows), len(cols))):
            expected = f"[batch, heads, {len(rows)}, {len(cols)}]"
            raise ValueError(f"{self}.visible must return what broadcasts to {expected}, got {list(seen.shape)}")
        return self._cut(seen)

    def span(self, p_lo: Any, p_hi: Any, k_lo: Any, k_hi: Any) -> Verdict:
        return self.mask.span(p_lo, p_hi, k_lo, k_hi)

    def tiles(self, grid: Grid) -> Verdict:
        empty, full = (torch.as_tensor(x, device=grid.rows.device) for x in self.mask.tiles(grid))
        return self._cut(empty), self._cut(full)

    def _cut(self, x: Tensor) -> Tensor:
        x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        x = x if self.items is None or x.shape[0] == 1 else x[self.items]
        return x if self.heads is None or x.shape[1] == 1 else x[:, self.heads]

    def for_heads(self, heads: slice) -> Mask:
        if _writes(self.mask, "for_heads"):
            return ByVisible(self.mask.for_heads(heads), self.batch, self.items, None)
        return ByVisible(self.mask, self.batch, self.items, _within(self.heads, heads))

    def for_items(self, items: slice) -> Mask:
        if _writes(self.mask, "for_items"):
            return ByVisible(self.mask.for_items(items), items.stop - items.start, None, self.heads)
        return ByVisible(self.mask, self.batch, _within(self.items, items), self.heads)

    def __repr__(self) -> str:
        return repr(self.mask)


def _within(outer: slice | None, inner: slice) -> slice:
    """A slice of a slice."""
    return inner if outer is None else slice(outer.start + inner.start, outer.start + inner.stop)


def _writes(mask: Mask, name: str) -> bool:
    """Has a mask of one's own an answer of its own, rather than that of the mask it was made from?"""
    first = next(kind for kind in type(mask).__mro__ if name in vars(kind))
    return first is not Mask and first not in KINDS.values()


KINDS: dict[str, type[Mask]] = {
    kind.__name__: kind for kind in (Causal, Window, Lengths, Prefix, Documents, Dense, And, Or, Not)
}


def build(kind: str, tensors: tuple[Tensor, ...], ints: tuple[int, ...], parts: tuple[Mask, ...]) -> Mask:
    """Put a mask together again from what ``tensors``, ``ints`` and ``parts`` gave."""
    if kind in ("Causal", "Window"):
        mask = Window(*(None if n == -1 else n for n in ints)) if kind == "Window" else Causal()
        return mask.at(*tensors) if tensors else mask
    return KINDS[kind](*tensors, *ints, *parts)  # type: ignore[arg-type]


def bind(mask: Mask, shape: Shape) -> Mask:
    """The mask made for a problem; one of one's own as a :class:`ByVisible`."""
    bound = mask.bind(shape)
    if isinstance(bound, ByVisible) or type(bound) in KINDS.values():
        return bound
    if shape.key_positions is not None and mask.reads_positions and not _writes(mask, "bind"):
        raise ValueError(
            f"{type(mask).__name__} only has `visible`, which assumes key j at position j: it takes positions of "
            "queries, but not of keys (if it ignores positions, declare reads_positions = False); a "
            "Function receives both"
        )
    return ByVisible(bound, math.prod(shape.batch))


def unknown(mask: Mask | None) -> str | None:
    """The first part of a bound mask that is known by ``visible`` alone, by the name of its class."""
    if mask is None:
        return None
    if isinstance(mask, ByVisible):
        return type(mask.mask).__name__
    names = [unknown(part) for part in mask.parts]
    return next((name for name in names if name is not None), None)


def as_mask(mask: Mask | Tensor) -> Mask:
    """A bool tensor is Dense; anything else that is no mask is refused."""
    return mask if isinstance(mask, Mask) else Dense(mask)


def broadcasts(shape: Sequence[int], full: Sequence[int]) -> bool:
    """Does a tensor of this shape broadcast to the full one? (Symbolic sizes compare with ==, not with ``in``.)"""
    pairs = zip(reversed(shape), reversed(full), strict=False)
    return len(shape) <= len(full) and all(n == 1 or n == m for n, m in pairs)


def broadcast_pairs(name: str, x: Tensor, shape: Shape) -> Tensor:
    """Bring a tensor that broadcasts to [*batch, H, L, S] to [B|1, H|1, L|1, S|1]."""
    full = (*shape.batch, shape.heads, shape.queries, shape.keys)
    _check_device(name, x, shape)
    if not broadcasts(x.shape, full):
        raise ValueError(f"{name} must broadcast to [batch, heads, queries, keys] = {list(full)}, got {list(x.shape)}")
    x = x.reshape((1,) * (len(full) - x.ndim) + x.shape)
    if all(n == 1 for n in x.shape[:-3]):
        return x.reshape(1, *x.shape[-3:])
    return x.expand(*shape.batch, *x.shape[-3:]).reshape(math.prod(shape.batch), *x.shape[-3:])


def _per_item(name: str, x: Tensor, shape: Shape) -> Tensor:
    """One number per batch item, or one for all: [B|1]."""
    x = x.to(shape.device)
    if x.numel() == 1:
        return x.reshape(1)
    if x.shape != shape.batch and x.shape != (math.prod(shape.batch),):
        raise ValueError(f"{name} takes one number per batch item, {list(shape.batch)}, got shape {list(x.shape)}")
    return x.reshape(math.prod(shape.batch))


def per_position(name: str, what: str, x: Tensor, shape: Shape, length: int) -> Tensor:
    """One number per query or key, per batch item or for all: [B|1, length]."""
    x = x.to(shape.device)
    if x.ndim == 0 or x.shape[-1] != length or (x.shape[:-1].numel() != 1 and x.shape[:-1] != shape.batch):
        expected = f"[{length}] or {[*shape.batch, length]}"
        raise ValueError(f"{name} must have one {what} per position, {expected}, got shape {list(x.shape)}")
    return x.reshape(math.prod(x.shape[:-1]), length)


def _no_mask(given: object) -> str:
    """What came in the place of a mask, and what to do about it."""
    if isinstance(given, Tensor) and given.is_floating_point():
        return f"{given.dtype}; numbers to add to the scores go into regard.score.Bias"
    if isinstance(given, Tensor):
        return f"{given.dtype}; write .bool() if 1 means that a key may be seen, or == 0 if it means that it is hidden"
    if isinstance(given, type) and issubclass(given, Mask):
        return f"the class {given.__name__}; write {given.__name__}(), with its arguments"
    if callable(given):
        return f"{type(given).__name__}; a function of (b, h, i, j) goes into regard.mask.Function"
    return f"{type(given).__name__}; or one of regard.mask: Causal(), Window(), Lengths(), Prefix(), Documents()"


def _check_device(name: str, x: Tensor, shape: Shape) -> None:
    if x.device != shape.device:
        raise ValueError(f"{name} is on {x.device}, but q, k and v are on {shape.device}")


def _block_range(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    padded = torch.cat((x, x[:, -1:].expand(-1, -x.shape[-1] % block)), -1)
    blocks = padded.unflatten(-1, (-1, block))
    return blocks.amin(-1), blocks.amax(-1)

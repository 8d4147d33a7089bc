"""PyTorch's FlexAttention, for dot products with a custom function of scores or of the mask.

It compiles the function into its GPU kernel (Dong et al. 2024, https://arxiv.org/abs/2412.05496). Our masks decide
which tiles it skips. Beyond the context it needs one number per row and one per tile.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.kernels import _autocast
from regard.kernels import _dense as dense
from regard.mask import And, Causal, Dense, Documents, Function, Lengths, Mask, Not, Prefix, Window
from regard.mask.own import ByVisible
from regard.mask.shape import Grid
from regard.score.terms import DotTerm, FormulaTerm, Problem, may_need_gradient

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

NAME = "flex"
TILE = 128
REMEMBERED = 32  # cached lists of tiles, of masks that depend on positions alone
BOOLEANS = 64 * 2**20  # booleans of a mask evaluated at a time
PROGRAMS = 256  # the most functions and settings it is compiled for
KINDS = (Causal, Window, Lengths, Prefix, Documents, Dense)
_KNOWN: dict[tuple[object, ...], BlockMask] = {}
Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch item, head, query and key
IndexMap = Callable[[Tensor, Tensor], Tensor]  # of batch item and index


def refuses(problem: Problem) -> str | None:
    p = problem
    if len(p.terms.terms) != 1 or p.terms.cap is not None or p.terms.values is not None:
        return "the score is more than a dot product edited by a function"
    (term,) = p.terms.terms
    if isinstance(term, FormulaTerm):
        if term.edit is None:
            return f"{term.name} is not a dot product edited by a function"
    elif not isinstance(term, DotTerm) or not _has_function(p.mask):
        return "neither the score nor the mask has a function to compile"
    if (unknown := _unsupported(p.mask)) is not None:
        return f"the mask {unknown} is not a function of (b, h, i, j)"
    if p.dropout > 0:
        return "it has no dropout"
    if p.sink is not None:
        return "it has no attention sink"
    if p.need_logsumexp:
        return "its logsumexp does not handle masked NaN"
    return _refuses_shape(p, term)


def _refuses_shape(p: Problem, term: DotTerm | FormulaTerm) -> str | None:
    if not p.batch or not p.queries or not p.keys or not p.v.shape[-1]:
        return "the problem is empty"
    if p.rows is not None or (isinstance(term, FormulaTerm) and not term.whole):
        return "only part of the problem is requested"
    if p.device.type == "cpu" and may_need_gradient(term.q, term.k, p.v):
        return "it has no gradient on a CPU"
    if p.device.type == "cuda" and p.dtype == torch.float64:
        return "it has no float64"
    if p.device.type == "cuda" and min(term.q.shape[-1], p.v.shape[-1]) < 16:
        return "it takes heads of 16 dims and more"
    return None


def memory_bytes(problem: Problem) -> int:
    """Bytes beyond its inputs: the context, its own logsumexp, and the lists of tiles."""
    p = problem
    rows, tiles = p.batch * p.heads * p.queries, -(-p.queries // TILE) * -(-p.keys // TILE)
    lists = 0 if p.mask is None else 4 * 4 * tiles * (p.batch * p.heads if set("BH") & set(p.mask.varies) else 1)
    return rows * p.v.shape[-1] * p.v.element_size() + 4 * rows + lists


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, None]:
    p = problem
    (term,) = p.terms.terms
    assert isinstance(term, (DotTerm, FormulaTerm)) and term.k is not None
    scale = term.scale if isinstance(term, DotTerm) else _scale(term)
    edit = _edit(term, p) if isinstance(term, FormulaTerm) else None
    grouped = {"enable_gqa": True} if p.heads != p.kv_heads else {}
    with _autocast.off(p.device):
        out: Tensor = _call(term.q, term.k, p.v, score_mod=edit, block_mask=_blocks(p), scale=scale, **grouped)
    return _poison(out, p), None


def _call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention  # importing it takes a quarter of a second

    if torch.compiler.is_compiling():
        return flex_attention(q, k, v, **options)
    if q.device.type == "cpu":  # for tests only
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flex_attention(q, k, v, **options)
    with torch._dynamo.config.patch(recompile_limit=PROGRAMS):
        return _compile_flex()(q, k, v, **options)


@cache
def _compile_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _scale(term: FormulaTerm) -> float:
    assert term.edit is not None
    return term.edit.scale


def _edit(term: FormulaTerm, p: Problem) -> Callable[..., Tensor]:
    assert term.edit is not None
    if term.starts is None and not isinstance(term.offset, Tensor) and term.offset == 0:
        return term.edit.f
    row, column = (term.offset, 0) if term.starts is None else term.starts
    f, of_query, of_key = term.edit.f, _place(row, p.queries, p), _place(column, p.keys, p)
    return lambda s, b, h, i, j: f(s, b, h, of_query(b, i), of_key(b, j))


def _place(start: int | Tensor, length: int, p: Problem) -> IndexMap:
    """The positions of queries or keys from position − index: a number, [B] or [B|1, length]."""
    if not isinstance(start, Tensor) and start == 0:
        return _by_index
    start = start[:, None] if isinstance(start, Tensor) and start.ndim == 1 else start
    return _at(torch.arange(length, device=p.device) + start, p)


def _at(positions: Tensor, p: Problem) -> IndexMap:
    """The map to given positions, [length] or [B|1, length]."""
    position = positions.expand(p.batch, -1)
    return lambda b, i: position[b, i]


# --- masks ---


def _has_function(mask: Mask | None) -> bool:
    return any(isinstance(leaf, ByVisible) for leaf in _leaves(mask))


def _unsupported(mask: Mask | None) -> Mask | None:
    """The first part of the mask that is neither one of KINDS nor a Function, or None."""
    for leaf in _leaves(mask):
        if not isinstance(leaf.mask if isinstance(leaf, ByVisible) else leaf, (Function, *KINDS)):
            return leaf
        if isinstance(leaf, ByVisible) and (leaf.items, leaf.heads) != (None, None):
            return leaf
    return None


def _leaves(mask: Mask | None) -> list[Mask]:
    if mask is None:
        return []
    return [leaf for part in mask.parts for leaf in _leaves(part)] if mask.parts else [mask]


def _blocks(p: Problem) -> BlockMask | None:
    """The partial and the full tiles of the mask as FlexAttention's BlockMask; cached for static masks."""
    if p.mask is None:
        return None
    if not p.mask.static or isinstance(p.offset, Tensor) or torch.compiler.is_compiling():
        return _make_blocks(p)
    key = (_identity(p.mask), p.batch, p.heads, p.queries, p.keys, p.offset, p.device)
    if key not in _KNOWN:
        while len(_KNOWN) >= REMEMBERED:
            _KNOWN.pop(next(iter(_KNOWN)), None)
        _KNOWN[key] = _make_blocks(p)
    return _KNOWN[key]


def _identity(mask: Mask) -> tuple[object, ...]:
    """The identity of a mask that depends on positions alone."""
    return (type(mask), mask.ints, *map(_identity, mask.parts))


def _make_blocks(p: Problem) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask

    assert p.mask is not None
    tiles = -(-p.queries // TILE), -(-p.keys // TILE)
    empty, full = p.mask.tiles(Grid(p.row_index(), p.positions(), p.keys, TILE, TILE))
    empty, full = (torch.as_tensor(x, device=p.device).expand(p.batch, p.heads, *tiles).clone() for x in (empty, full))
    full[..., p.queries // TILE :, :] = full[..., p.keys // TILE :] = False  # tiles beyond the end test every pair
    part, whole = _list_tiles(~empty & ~full), _list_tiles(full & ~empty)
    seen = _visible(p.mask, p)
    return BlockMask.from_kv_blocks(*part, *whole, BLOCK_SIZE=TILE, mask_mod=seen, seq_lengths=(p.queries, p.keys))


def _list_tiles(seen: Tensor) -> tuple[Tensor, Tensor]:
    """The number of visible tiles of each row, and the indices of all tiles, visible ones first."""
    return seen.sum(-1, dtype=torch.int32), seen.int().argsort(dim=-1, descending=True, stable=True).int()


def _visible(mask: Mask, p: Problem) -> Visible:
    """``mask`` as a function of the indices of one query and one key.

    Its closure only holds numbers, tensors and functions: PyTorch recompiles for every new object of another kind.
    """
    if mask.parts:
        return _combine(type(mask), [_visible(part, p) for part in mask.parts])
    if isinstance(mask, ByVisible):
        return _function(mask.mask, p)  # type: ignore[arg-type]
    if isinstance(mask, (Causal, Window)):
        return _window(mask, p)
    tensors = [t.expand(p.batch, *t.shape[1:]) for t in mask.tensors]
    if isinstance(mask, (Lengths, Prefix)):
        (n,) = tensors or [torch.full((p.batch,), mask.ints[0], device=p.device)]
        return lambda b, h, i, j: j < n[b]
    if isinstance(mask, Documents):
        q, k = tensors
        return lambda b, h, i, j: q[b, i] == k[b, j]
    whole = tensors[0].expand(p.batch, p.heads, p.queries, p.keys)
    return lambda b, h, i, j: whole[b, h, i, j]


def _combine(kind: type[Mask], parts: list[Visible]) -> Visible:
    if kind is Not:
        (part,) = parts
        return lambda b, h, i, j: ~part(b, h, i, j)
    one, two = parts
    if kind is And:
        return lambda b, h, i, j: one(b, h, i, j) & two(b, h, i, j)
    return lambda b, h, i, j: one(b, h, i, j) | two(b, h, i, j)


def _window(mask: Causal | Window, p: Problem) -> Visible:
    of_query, of_key = _places(p)
    left, right = (mask.left, mask.right) if isinstance(mask, Window) else (None, 0)
    sides: list[Visible] = []
    if left is not None:
        back: int = left
        sides.append(lambda b, h, i, j: of_query(b, i) - of_key(b, j) <= back)
    if right is not None:
        ahead: int = right
        sides.append(lambda b, h, i, j: of_key(b, j) - of_query(b, i) <= ahead)
    if not sides:
        return lambda b, h, i, j: j >= 0
    return sides[0] if len(sides) == 1 else _combine(And, sides)


def _places(p: Problem) -> tuple[IndexMap, IndexMap]:
    """The positions of queries and of keys, by item and index."""
    keys = _by_index if p.key_positions is None else _at(p.key_positions, p)
    return _place(p.offset, p.queries, p), keys


def _by_index(b: Tensor, i: Tensor) -> Tensor:
    return i


def _function(mask: Function, p: Problem) -> Visible:
    f, (items, heads, keys, *queries), (of_query, of_key) = mask.f, mask.tensors, _places(p)
    if queries:
        of_query, of_key = _at(queries[0], p), _at(keys, p)
    return lambda b, h, i, j: f(items[b], heads[h], of_query(b, i), of_key(b, j))


def _poison(out: Tensor, p: Problem) -> Tensor:
    """Set rows to NaN that may see NaN or Inf, evaluating the mask for a few rows at a time."""
    if p.bad_keys is None or p.bad_rows is None:
        return out
    if p.mask is None:
        return out.masked_fill(dense.nonfinite_rows(p, None)[..., None], float("nan"))
    both = set("BH") & set(p.mask.varies)
    step = max(1, BOOLEANS // (p.keys * (p.batch * p.heads if both else 1)))
    keys = dense.heads(p.bad_keys, p).to(torch.bfloat16)
    parts = torch.arange(p.queries, device=p.device).split(step)
    spoiled = torch.cat([_rows_to_spoil(p, keys, rows) for rows in parts], -1)
    return out.masked_fill(spoiled[..., None], float("nan"))


def _rows_to_spoil(p: Problem, keys: Tensor, rows: Tensor) -> Tensor:
    """Which of these rows see a bad key, [B, H, rows]: mask · marks, one matrix product if all items share the mask."""
    assert p.mask is not None and p.bad_rows is not None
    seen = p.mask.visible(rows, p.positions()[:, rows], torch.arange(p.keys, device=p.device))
    seen = seen.expand(*seen.shape[:2], len(rows), p.keys)
    if seen.shape[:2] == (1, 1):
        found = (keys.flatten(0, 1) @ seen[0, 0].mT.to(keys.dtype)).view(p.batch, p.heads, -1) > 0
    else:
        found = (seen.to(keys.dtype) @ keys[..., None])[..., 0] > 0
    return found | (p.bad_rows[..., rows] & seen.any(-1))

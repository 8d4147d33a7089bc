"""PyTorch's own fused attention, for scores that are dot products plus dense terms.

A mask other than its causal one becomes a dense bool tensor; offset, bias and key terms become a dense float tensor.
Both are limited in size (MASK_BYTES, BIAS_BYTES): beyond, a kernel with O(n) memory is at least as fast.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.kernels import _dense as dense
from regard.kernels import _guard as guard
from regard.kernels import operator
from regard.mask import Causal, Mask
from regard.score.terms import BiasTerm, DotTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, may_need_gradient

NAME = "sdpa"
MASK_BYTES, BIAS_BYTES = 64 * 2**20, 16 * 2**20


def refuses(problem: Problem) -> str | None:
    p, terms = problem, problem.terms
    kinds = {type(t) for t in terms.terms}
    if TanhTerm in kinds:
        return "it has no tanh term"
    if DotTerm not in kinds:
        return "the score has no dot term"
    if terms.cap is not None:
        return "it has no softcap"
    if terms.values is not None:
        return "it has no relative-position term for the values"
    if p.dropout > 0:
        return "its dropout is not a function of (seed, batch, head, i, j)"
    if p.need_logsumexp:
        return "it does not return the logsumexp"
    if p.sink is not None:
        return "it has no attention sink"
    if not p.batch or not p.queries or not p.keys or not p.v.shape[-1]:
        return "the problem is empty"
    if len(kinds) == 1 and p.mask is None:
        return None
    if len(kinds) > 1 and p.dtype in (torch.float16, torch.bfloat16):
        return f"it would round offset, bias and key terms to {str(p.dtype).removeprefix('torch.')}"
    if len(kinds) > 1 and may_need_gradient(*_extra_tensors(p)):
        return "it has no fused gradient for offset, bias and key terms"
    for what, size, limit in zip(("mask", "bias"), _dense_bytes(p), (MASK_BYTES, BIAS_BYTES), strict=True):
        if size > limit:
            return f"it would build {size / 2**20:.0f} MiB of dense {what} (the limit is {limit // 2**20} MiB)"
    return None


def memory_bytes(problem: Problem) -> int:
    """Bytes beyond its inputs: the context, its own logsumexp, a dense mask or bias."""
    p = problem
    rows = p.batch * p.heads * p.queries
    mask, bias = _dense_bytes(p)
    return rows * p.v.shape[-1] * p.v.element_size() + rows * 4 + mask + 4 * bias  # a table look-up has temporaries


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, None]:
    p = problem
    (dot,) = p.terms.dots
    assert dot.k is not None and not isinstance(dot.scale, Tensor)
    causal = is_causal(p)
    seen = None if p.mask is None or causal else dense.visible(p)
    q, k, v = _equal_dims(dot.q, dot.k, p.v)
    # Flags come from branches, here and in is_causal: a comparison of symbolic sizes would be a SymBool.
    grouped = {"enable_gqa": True} if p.heads != p.kv_heads else {}
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=_mask(p, seen), is_causal=causal, scale=dot.scale, **grouped
    )
    out = operator.refuse_double_backward(out)
    if out.shape[-1] != p.v.shape[-1]:
        out = out[..., : p.v.shape[-1]]
    if p.mask is None:
        out = guard.restore_nan(out, dot.q, dot.k)
    return _poison(out, p, seen, causal), None


def dot(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool = False) -> Tensor:
    """Plain dot-product attention of [B, H, L, D] tensors: ``run`` without anything to prepare."""
    out = operator.refuse_double_backward(F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale))
    return out if causal else guard.restore_nan(out, q, k)


def _extras(p: Problem) -> bool:
    """Are there terms beside the dot term?"""
    return len(p.terms.terms) > 1


def _extra_tensors(p: Problem) -> list[Tensor | None]:
    offsets = [x for t in p.terms.offsets for x in (t.table, t.slope)]
    return offsets + [t.bias for t in p.terms.biases] + [t.c for t in p.terms.keys]


def is_causal(p: Problem) -> bool:
    """Does the mask equal ``is_causal``: query i sees keys 0…i?"""
    if type(p.mask) is not Causal or not p.mask.static or p.rows is not None or _extras(p):
        return False
    return True if isinstance(p.offset, int) and p.offset == 0 else False  # noqa: SIM210 - a branch, see `run`


def _equal_dims(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad keys and values to the same number of dims with zeros, as PyTorch's CPU kernel requires."""
    dims = max(q.shape[-1], v.shape[-1])
    return (q, k, v) if v.device.type != "cpu" else (_pad(q, dims), _pad(k, dims), _pad(v, dims))


def _pad(x: Tensor, dims: int) -> Tensor:
    """Pad x with zeros. Not F.pad: PyTorch 2.13 compiles its gradient with wrong strides if lengths vary."""
    more = dims - x.shape[-1]
    return torch.cat((x, x.new_zeros(()).expand(*x.shape[:-1], more)), -1) if more else x


def _mask(p: Problem, seen: Tensor | None) -> Tensor | None:
    """The attn_mask argument: bool, float or None."""
    if not _extras(p):
        return seen
    bias: Tensor | None = None
    for term in p.terms.terms:
        if isinstance(term, (OffsetTerm, BiasTerm, KeyTerm)):
            part = dense.single(term, p)
            bias = part if bias is None else bias + part
    assert bias is not None
    return bias if seen is None else torch.where(seen, bias, -torch.inf)


def _poison(out: Tensor, p: Problem, seen: Tensor | None, causal: bool) -> Tensor:
    """Set rows to NaN that may see a key or value that is not finite, or are not finite themselves."""
    if p.bad_keys is None or p.bad_rows is None:
        return out
    if causal:
        return spoil_causal(out, p.bad_keys, p.bad_rows)
    return out.masked_fill(dense.nonfinite_rows(p, seen)[..., None], float("nan"))


def spoil_causal(out: Tensor, bad_keys: Tensor, bad_rows: Tensor) -> Tensor:
    """``_poison`` for a causal mask, without evaluating pairs; may modify ``out``."""
    if guard.fits(out):
        return guard.spoil_causal(out, bad_keys, bad_rows)
    queries, keys = bad_rows.shape[2], bad_keys.shape[2]
    before = bad_keys.cummax(-1).values
    if before.shape[1] != out.shape[1]:
        before = before.repeat_interleave(out.shape[1] // before.shape[1], 1)
    if queries > keys:
        before = torch.cat((before, before[..., -1:].expand(-1, -1, queries - keys)), -1)
    return out.masked_fill((before[..., :queries] | bad_rows)[..., None], float("nan"))


def _dense_bytes(p: Problem) -> tuple[int, int]:
    """Bytes of the dense mask and of the dense bias that would be built."""
    if is_causal(p):
        return 0, 0
    sizes = {"B": p.batch, "H": p.heads, "L": p.queries, "S": p.keys}
    dims = set() if p.mask is None else _varies(p.mask, p)
    mask = 0 if p.mask is None else _product(sizes, dims)
    if not _extras(p):
        return mask, 0
    for term in p.terms.terms:
        dims |= _term_varies(term, p)
    return mask, _product(sizes, dims) * torch.finfo(p.compute_dtype).bits // 8


def _varies(mask: Mask, p: Problem) -> set[str]:
    return set(mask.varies) | (_items(p) if "L" in mask.varies else set())


def _items(p: Problem) -> set[str]:
    """{"B"} if positions differ between batch items."""
    positions = (p.offset, p.key_positions)
    return {"B"} if any(isinstance(x, Tensor) and x.shape[0] > 1 for x in positions) else set()


def _term_varies(term: object, p: Problem) -> set[str]:
    if isinstance(term, KeyTerm):
        return {"B", "H", "S"}
    if isinstance(term, BiasTerm):
        return {d for d, n in zip("BHLS", term.bias.shape, strict=True) if n > 1}
    if isinstance(term, OffsetTerm):
        return {d for d, n in zip("BH", term.table.shape, strict=False) if n > 1} | {"H", "L", "S"} | _items(p)
    return set()


def _product(sizes: dict[str, int], dims: set[str]) -> int:
    size = 1
    for dim in dims:
        size *= sizes[dim]
    return size

"""torch.nn.MultiheadAttention: its queries, keys, values and mask, computed again from what it was given."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.call import Observation, observation_of
from regard.mask import Dense, Mask
from regard.score import Dot, Score
from regard.trace._masks import additive, compact

_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


class Multihead(NamedTuple):
    """A call of torch.nn.MultiheadAttention."""

    seen: Observation
    query: Tensor  # [N, L, E]
    key: Tensor  # [N, S, E]
    cross: bool


def is_usual(module: nn.MultiheadAttention, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Was it called as torch.nn.MultiheadAttention is? A subclass may have a forward of its own."""
    try:
        _SIGNATURE.bind(module, *args, **kwargs)
    except TypeError:
        return False
    return True


def read(module: nn.MultiheadAttention, args: tuple[object, ...], kwargs: dict[str, object]) -> Multihead:
    """The attention of a call with these arguments."""
    given = _SIGNATURE.bind(module, *args, **kwargs).arguments
    query, key, value = (given[name] for name in ("query", "key", "value"))
    cross = key is not query and not (key.shape == query.shape and torch.equal(key, query))
    query, key, value = (batch_first(x, module) for x in (query, key, value))
    q, k, v = _project(module, query, key, value)
    if module.bias_k is not None and module.bias_v is not None:
        k, v = (torch.cat((x, b.expand(len(x), -1, -1)), 1) for x, b in ((k, module.bias_k), (v, module.bias_v)))
    q, k, v = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    score, mask, offset = _read_masks(given.get("attn_mask"), given.get("key_padding_mask"), q, k)
    return Multihead(observation_of(q, k, v, score=score, mask=mask, offset=offset), query, key, cross)


def batch_first(x: Tensor, module: nn.MultiheadAttention) -> Tensor:
    """[N, L, E], whichever way the module takes it."""
    if x.ndim == 2:
        return x[None]
    return x if module.batch_first else x.transpose(0, 1)


def _project(m: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    biases = (None, None, None) if m.in_proj_bias is None else m.in_proj_bias.chunk(3)
    if m._qkv_same_embed_dim:
        weights = m.in_proj_weight.chunk(3)
    else:
        weights = (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight)
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


def _read_masks(
    attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor
) -> tuple[Score, Mask | None, int]:
    """Its masks are True, or −inf, where attention is not allowed; keys that it added itself are visible."""
    score: Score = Dot()
    mask: Mask | None = None
    offset = 0
    batch, heads, keys = len(q), q.shape[1], k.shape[2]
    if attn_mask is not None:
        pairs = attn_mask[None, None] if attn_mask.ndim == 2 else attn_mask.unflatten(0, (batch, heads))
        pairs = F.pad(pairs, (0, keys - pairs.shape[-1]))
        if pairs.dtype == torch.bool:
            mask, offset = compact(~pairs)
        else:
            score, mask, offset = additive(score, pairs.to(q.dtype))
    if padding is not None:
        hidden = F.pad(padding.reshape(batch, 1, 1, -1), (0, keys - padding.shape[-1]))
        if hidden.dtype == torch.bool:
            shown: Mask | None = Dense(~hidden)
        else:
            score, shown, _ = additive(score, hidden.to(q.dtype))
        if shown is not None:
            mask = shown if mask is None else mask & shown
    return score, mask, offset

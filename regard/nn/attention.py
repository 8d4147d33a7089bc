"""Multi-head attention with any score, and a cache of keys and values for decoding.

Shapes: N batch, L queries, S keys, E model width; heads are split inside. Sequences come as [N, L, E].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor, nn

from regard.attention.call import attend, has_observer, log_weights, steps
from regard.attention.nested import are_nested, pack
from regard.attention.positions import Positions
from regard.common.module import Module
from regard.mask import Lengths, Mask
from regard.mask.dense import as_mask
from regard.score import Dot, Score
from regard.score.base import describe_argument
from regard.score.terms import Keys


@dataclass(frozen=True)
class KeyValues:
    """Lowered keys and values of a sequence, computed once and attended to many times."""

    keys: Keys
    values: Tensor  # [N, kv_heads, S, head_dim]

    def select(self, items: Tensor) -> KeyValues:
        """Select batch items by index, in this order; items may repeat."""
        tensors = tuple(t.index_select(0, items) for t in self.keys.tensors)
        return KeyValues(replace(self.keys, tensors=tensors), self.values.index_select(0, items))

    def trust(self) -> KeyValues:
        """The same, declared finite where masked, so a decoding step need not check (:class:`regard.Keys`)."""
        return KeyValues(replace(self.keys, trusted=True), self.values)


# Capacities are odd and no powers of two: otherwise all heads would compete for the same lines of the CPU's cache.
_FIRST_ROOM = 19


class Cache:
    """The lowered keys and values of all positions so far, for step-by-step decoding.

    Without ``max_length`` it grows as needed. With it, all memory is allocated at once, shapes never change and the
    length is a tensor on the device, so that a decoding step compiles once.

    Each layer needs its own cache. It is for inference: tensors that require a gradient cannot be appended.
    """

    def __init__(self, max_length: int | None = None) -> None:
        if max_length is not None and max_length < 1:
            raise ValueError(f"Cache: max_length must be positive, got {max_length}")
        self.max_length = max_length
        self.tensors: list[Tensor] = []  # one per lowered key tensor, then the values; [N, kv_heads, capacity, dims]
        self.spare: list[Tensor] = []  # buffers of the same shape, for `reorder`
        self.length: int | Tensor = 0
        self.owner: int | None = None  # the id of the layer that uses it

    def allocate(self, like: tuple[Tensor, ...]) -> None:
        """Allocate for sequences of tensors like these, [N, kv_heads, any length, dims]."""
        capacity = max(_FIRST_ROOM, like[0].shape[-2]) if self.max_length is None else self.max_length
        self.tensors = [t.new_zeros(*t.shape[:-2], capacity, t.shape[-1]) for t in like]
        if self.max_length is not None:
            self.length = torch.zeros((), dtype=torch.int64, device=like[0].device)

    def append(self, new: KeyValues) -> KeyValues:
        """Add positions at the end. Returns all keys and values to attend to (with max_length: the whole capacity)."""
        parts = (*new.keys.tensors, new.values)
        if torch.is_grad_enabled() and any(t.requires_grad for t in parts):
            raise ValueError("a Cache is for inference and keeps no gradients: decode under torch.no_grad()")
        if not self.tensors:
            self.allocate(parts)
        self._check_fit(parts)
        count = new.values.shape[-2]
        if isinstance(self.length, Tensor):
            self._check_room(self.length, count)
            at = self.length + torch.arange(count, device=self.length.device)
            for room, part in zip(self.tensors, parts, strict=True):
                room.index_copy_(-2, at, part)
            self.length += count
            return KeyValues(replace(new.keys, tensors=tuple(self.tensors[:-1]), trusted=True), self.tensors[-1])
        self._make_room(self.length + count)
        for room, part in zip(self.tensors, parts, strict=True):
            room[..., self.length : self.length + count, :] = part
        self.length += count
        seen = [t[..., : self.length, :] for t in self.tensors]
        return KeyValues(replace(new.keys, tensors=tuple(seen[:-1]), trusted=True), seen[-1])

    def reorder(self, items: Tensor) -> None:
        """Select batch items by index, in this order (beam search); items may repeat. Copies filled positions only."""
        if isinstance(self.length, Tensor) or not self.tensors or len(items) != len(self.tensors[0]):
            self.tensors, self.spare = [t.index_select(0, items) for t in self.tensors], []
            return
        if not self.spare or self.spare[0].shape != self.tensors[0].shape:
            self.spare = [torch.empty_like(t) for t in self.tensors]
        for old, new in zip(self.tensors, self.spare, strict=True):
            torch.index_select(old[..., : self.length, :], 0, items, out=new[..., : self.length, :])
        self.tensors, self.spare = self.spare, self.tensors

    def reset(self) -> None:
        """Forget all positions, but keep the memory."""
        self.owner = None
        self.length = self.length.zero_() if isinstance(self.length, Tensor) else 0

    def claim(self, layer: nn.Module) -> None:
        """Bind the cache to the first layer that uses it: the keys of two layers would be mixed into one sequence."""
        self.owner = id(layer) if self.owner is None else self.owner
        if self.owner != id(layer):
            raise ValueError("this Cache holds another layer's keys; each layer needs a Cache of its own")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "owner": None}  # a copy is for a copy of the layer

    def _check_fit(self, parts: tuple[Tensor, ...]) -> None:
        """Refuse other shapes: writing would broadcast, so one item would silently be copied to all."""
        for room, part in zip(self.tensors, parts, strict=True):
            if room.shape[:-2] != part.shape[:-2] or room.shape[-1] != part.shape[-1]:
                want, came = ([*t.shape[:-2], "length", t.shape[-1]] for t in (room, part))
                raise ValueError(
                    f"this Cache holds [{', '.join(map(str, want))}], got [{', '.join(map(str, came))}]: its batch "
                    "changes by reorder(items) alone, and each layer needs a Cache of its own"
                )

    def _check_room(self, length: Tensor, count: int) -> None:
        if torch.compiler.is_compiling() or length.device.type != "cpu":
            return  # reading the length would synchronise; PyTorch's own index check remains
        if int(length) + count > self.tensors[0].shape[-2]:
            raise ValueError(f"Cache is full: max_length={self.max_length}, {int(length)} used, {count} more asked for")

    def _make_room(self, needed: int) -> None:
        capacity = self.tensors[0].shape[-2]
        if needed > capacity:
            more = max(needed, capacity + capacity // 2 + 7) - capacity
            self.tensors = [nn.functional.pad(t, (0, 0, 0, more)) for t in self.tensors]


class _DenseOptions(TypedDict, total=False):
    """The arguments that ``steps`` and ``log_weights`` share."""

    score: Score
    mask: Mask | Tensor | None
    offset: int | Tensor
    positions: Positions | None
    sink: Tensor | None


class MultiHeadAttention(Module):
    """Attention with learned projections and any score per head.

    Args:
        dim: width of the queries and of the output.
        heads, kv_heads: query heads, and key/value heads if fewer (grouped-query attention).
        score: any :class:`regard.score.Score`; its dims are those of one head. Default ``Dot()``.
        head_dim: width of one head, by default ``dim // heads``.
        key_dim, value_dim: widths of the key and value inputs, by default ``dim``.
        sink: learn a logit per head for an extra key of value zero.
        trusted: the inputs are finite even where masked, as the states of a model are. NaN is then not searched for,
            which on a GPU saves a copy of queries, keys and values.

    A state dict of ``torch.nn.MultiheadAttention`` loads unchanged and gives the same numbers.

    >>> import regard
    >>> attention = MultiHeadAttention(64, 4, score=regard.score.Additive(16, 16, 8))
    >>> attention(torch.randn(2, 5, 64), mask=regard.mask.Causal()).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        score: Score | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        sink: bool = False,
        trusted: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"heads must be a positive multiple of kv_heads, got heads={heads}, kv_heads={kv_heads}")
        if head_dim is None:
            if dim % heads:
                raise ValueError(f"dim={dim} does not divide into {heads} heads; set head_dim=")
            head_dim = dim // heads
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.dim, self.heads, self.kv_heads, self.head_dim = dim, heads, kv_heads, head_dim
        self.dropout, self.trusted, self.backend = dropout, trusted, backend
        self.score = Dot() if score is None else score
        if not isinstance(self.score, Score):
            raise TypeError(
                f"score must be a regard.score.Score, such as Additive(16, 16, 8), got {describe_argument(score)}"
            )
        self.score.check(heads, head_dim, kv_heads, head_dim)
        self.q_proj = nn.Linear(dim, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(key_dim or dim, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(value_dim or dim, kv_heads * head_dim, bias=bias)
        self.out_proj = nn.Linear(heads * head_dim, dim, bias=bias)
        self.sink = nn.Parameter(torch.empty(heads)) if sink else None
        self.qkv: nn.Module | None = None  # in an 8-bit copy: replaces the first three in self-attention
        self._start()

    def _start(self) -> None:
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if self.sink is not None:
            nn.init.zeros_(self.sink)

    def forward(
        self,
        query: Tensor,
        key: Tensor | KeyValues | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        offset: int | Tensor = 0,
        positions: Positions | None = None,
        cache: Cache | None = None,
        need_weights: bool | Tensor = False,
        need_log_weights: int | None = None,
        seed: int | Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """[N, L, dim] → [N, L, dim], and optionally the weights.

        Args:
            query, key, value: key defaults to query (self-attention), value to key. ``key`` may be the result of
                ``keys_values``. Nested tensors, [N, *, dim], are packed; the result is nested too.
            mask, offset, positions: as for :func:`regard.attend`.
            cache: for decoding. The new positions are appended to it, and all its positions are attended to; ``offset``
                is then the cache's length.
            need_weights: True, or the indices of some queries: also return their weights before dropout,
                [N, heads, rows, S]. Only these rows are computed densely, in addition to the fused kernel.
            need_log_weights: the index of a head: also return log α of that head, [N, L, S], for a loss on it.
        """
        keys: Tensor | Keys
        if are_nested(query, key, value):
            if cache is not None or need_weights is not False or need_log_weights is not None:
                raise ValueError(
                    "nested sequences take no cache and give no weights: pass one sequence at a time, dense"
                )
            return self._forward_nested(query, key, value, mask, offset, positions, seed)
        if cache is not None:
            if isinstance(key, KeyValues) or value is not None or (key is not None and key is not query):
                raise ValueError("a cache is for self-attention; for cross-attention pass keys_values(memory) as key")
            if positions is not None:
                raise ValueError("a cache counts positions itself, by its length: pass no positions with it")
            if not torch.compiler.is_compiling():
                cache.claim(self)
            offset = cache.length.clone() if isinstance(cache.length, Tensor) else cache.length
            q, k, v = self._project_self(query)
            known = cache.append(self._lower(k, v, offset))
            if isinstance(cache.length, Tensor):
                filled = Lengths(cache.length)
                mask = filled if mask is None else as_mask(mask) & filled
            keys, values = known.keys, known.values
        elif isinstance(key, KeyValues):
            q, keys, values = self._split(self.q_proj(query), self.heads), key.keys, key.values
        else:
            if key is None and value is None:
                q, keys, values = self._project_self(query)
            else:
                q = self._split(self.q_proj(query), self.heads)
                keys, values = self._project(query if key is None else key, value)
            if self._may_trust(query, mask, positions):
                keys = replace(self.score.keys(keys), trusted=True)
        context = attend(
            q,
            keys,
            values,
            score=self.score,
            mask=mask,
            offset=offset,
            positions=positions,
            dropout=self.dropout if self.training else 0.0,
            seed=seed,
            sink=self.sink,
            backend=self.backend,
        )
        out: Tensor = self.out_proj(context.transpose(-3, -2).flatten(-2))
        dense: _DenseOptions = {"score": self.score, "mask": mask, "sink": self.sink}
        dense |= {"offset": offset, "positions": positions}
        if need_log_weights is not None:
            return out, log_weights(q, keys, values, head=need_log_weights, **dense)
        if need_weights is False:
            return out
        rows = None if need_weights is True else need_weights
        return out, steps(q, keys, values, rows=rows, **dense).weights

    def _forward_nested(
        self,
        query: Tensor,
        key: Tensor | KeyValues | None,
        value: Tensor | None,
        mask: Mask | Tensor | None,
        offset: int | Tensor,
        positions: Positions | None,
        seed: int | Tensor | None,
    ) -> Tensor:
        keys = query if key is None else key
        packed = pack(query, keys, keys if value is None else value, mask, "[batch, *, dim]")
        q, k, v = packed.values
        alone = () if key is None and value is None else (k, v)
        return packed.nest(self(q, *alone, mask=packed.mask, offset=offset, positions=positions, seed=seed))

    def _may_trust(self, query: Tensor, mask: Mask | Tensor | None, positions: Positions | None) -> bool:
        """Lower the keys here and declare them trusted? Not on a CPU, where the check for NaN is cheap."""
        if not self.trusted or mask is None or query.device.type == "cpu" or has_observer():
            return False
        return positions is None and as_mask(mask).packing() is None  # with those, attend must lower them

    def keys_values(self, key: Tensor, value: Tensor | None = None, *, start: int | Tensor = 0) -> KeyValues:
        """Project and lower a sequence once, to attend to it many times (cross-attention in decoding)."""
        return self._lower(*self._project(key, value), start)

    def _lower(self, k: Tensor, v: Tensor, start: int | Tensor) -> KeyValues:
        needed = torch.is_grad_enabled() and any(t.requires_grad for t in (k, v))
        return KeyValues(self.score.keys(k, start) if needed else self.score.cached_keys(k, start), v)

    def new_cache(self, batch: int, max_length: int) -> Cache:
        """A cache of fixed size for this layer, on its device and in its dtype."""
        weight = self.k_proj.weight
        with torch.no_grad():
            nothing = weight.new_zeros(batch, self.kv_heads, 1, self.head_dim)
            cache = Cache(max_length)
            cache.allocate((*self.score.cached_keys(nothing).tensors, nothing))
        return cache

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x to queries, keys and values of self-attention."""
        if self.qkv is None:
            return self._split(self.q_proj(x), self.heads), *self._project(x, None)
        q, k, v = self.qkv(x).split([n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)], -1)
        return self._split(q, self.heads), self._split(k, self.kv_heads), self._split(v, self.kv_heads)

    def _project(self, key: Tensor, value: Tensor | None) -> tuple[Tensor, Tensor]:
        v = self.v_proj(key if value is None else value)
        return self._split(self.k_proj(key), self.kv_heads), self._split(v, self.kv_heads)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, self.head_dim).transpose(-3, -2)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        """Also accept the names of ``torch.nn.MultiheadAttention``."""
        for kind in ("bias_k", "bias_v"):
            if prefix + kind in state_dict:
                raise ValueError(f"{prefix}{kind}: add_bias_kv of torch.nn.MultiheadAttention is not supported")
        for kind, stacked in (("weight", "in_proj_weight"), ("bias", "in_proj_bias")):
            whole = state_dict.pop(prefix + stacked, None)
            if whole is not None:
                sizes = [p.out_features for p in (self.q_proj, self.k_proj, self.v_proj)]
                if len(whole) != sum(sizes):
                    raise ValueError(
                        f"{prefix}{stacked} has {len(whole)} rows, this layer takes {' + '.join(map(str, sizes))} for "
                        "queries, keys and values; torch.nn.MultiheadAttention has key/value heads for all query heads"
                    )
                parts = whole.split(sizes)
                state_dict |= {f"{prefix}{n}_proj.{kind}": part for n, part in zip("qkv", parts, strict=True)}
        for n in "qkv":
            weight = state_dict.pop(f"{prefix}{n}_proj_weight", None)
            if weight is not None:
                state_dict[f"{prefix}{n}_proj.weight"] = weight
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"

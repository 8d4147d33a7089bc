"""The layers around attention: embeddings, positions, feed-forward, encoder and decoder layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor, nn

from regard.attention.positions import Positions
from regard.common.module import Module
from regard.mask import Causal, Mask
from regard.mask.dense import as_mask
from regard.nn.attention import Cache, KeyValues, MultiHeadAttention
from regard.score import Score

if TYPE_CHECKING:
    from typing_extensions import Unpack

MakeNorm = Callable[[int, float], nn.Module]  # of a width and of eps


class Embedding(nn.Embedding):
    """Token embeddings times √dim, initialised at N(0, 1/dim) (Vaswani et al. 2017, section 3.4)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        self._fill_padding_idx_with_zero()

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * math.sqrt(self.embedding_dim)


class SinusoidalPositions(Module):
    """Adds sin and cos of each position at geometrically spaced frequencies (Vaswani et al. 2017, section 3.5).

    For any length, without parameters.
    """

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"SinusoidalPositions: dim must be even, got {dim}")
        self.dim, self.base = dim, base

    def forward(self, x: Tensor, offset: int | Tensor = 0, *, positions: Tensor | None = None) -> Tensor:
        """x [N, L, dim] at positions offset, offset + 1, …, or at ``positions``, [N, L] (packed sequences)."""
        position = _positions(x, offset) if positions is None else positions
        dtype = torch.promote_types(x.dtype, torch.float32)
        frequency = self.base ** (-torch.arange(0, self.dim, 2, device=x.device, dtype=dtype) / self.dim)
        angle = position[..., None] * frequency
        waves = torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)
        return x + waves.to(x.dtype)


class LearnedPositions(nn.Module):
    """Adds a learned vector per position, for up to ``max_length`` positions."""

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, offset: int | Tensor = 0, *, positions: Tensor | None = None) -> Tensor:
        """x [N, L, dim] at positions offset, offset + 1, …, or at ``positions``, [N, L] (packed sequences)."""
        if positions is not None:
            return x + self.weight[positions].to(x.dtype)
        if not isinstance(offset, Tensor) and not 0 <= offset <= self.weight.shape[0] - x.shape[-2]:
            raise ValueError(
                f"LearnedPositions has {self.weight.shape[0]} positions, asked for {offset}…{offset + x.shape[-2] - 1}"
            )
        return x + self.weight[_positions(x, offset)].to(x.dtype)


class FeedForward(Module):
    """W₂ f(W₁ x), or gated, W₂ (f(W₁ x) ∘ W₃ x) (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        gated: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias) if gated else None
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.up(x))
        if self.gate is not None:
            y = y * self.gate(x)
        out: Tensor = self.down(self.dropout(y))
        return out


class LayerOptions(TypedDict, total=False):
    """Options that other modules pass on to :class:`EncoderLayer`; the defaults are its own."""

    hidden: int | None
    kv_heads: int | None
    head_dim: int | None
    bias: bool
    dropout: float
    attention_dropout: float
    activation_dropout: float | None
    activation: Callable[[Tensor], Tensor]
    gated: bool
    norm_first: bool


class EncoderLayer(Module):
    """Self-attention and feed-forward, each with a residual connection and a norm before (``norm_first``) or after.

    ``activation_dropout``, inside the feed-forward, defaults to ``dropout``; ``gated`` multiplies its activation by a
    second projection. ``bias=False`` removes the biases of all projections. ``norm(dim, norm_eps)`` makes a norm:
    ``nn.LayerNorm``, ``nn.RMSNorm`` or your own. With ``mask=Causal()`` this is a layer of a decoder-only model.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        hidden: int | None = None,
        score: Score | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float | None = None,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        gated: bool = False,
        norm_first: bool = True,
        norm: MakeNorm = nn.LayerNorm,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(
            dim, heads, score=score, kv_heads=kv_heads, head_dim=head_dim, bias=bias, dropout=attention_dropout
        )
        inside = dropout if activation_dropout is None else activation_dropout
        self.feed_forward = FeedForward(
            dim, hidden or 4 * dim, activation=activation, gated=gated, dropout=inside, bias=bias
        )
        self.attention_norm, self.feed_forward_norm = norm(dim, norm_eps), norm(dim, norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        offset: int | Tensor = 0,
        positions: Positions | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        def look(y: Tensor) -> Tensor:
            out: Tensor = self.attention(y, mask=mask, offset=offset, positions=positions, cache=cache)
            return out

        x = self._around(x, self.attention_norm, look)
        return self._around(x, self.feed_forward_norm, self.feed_forward)

    def _around(self, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        out: Tensor
        out = x + self.dropout(f(norm(x))) if self.norm_first else norm(x + self.dropout(f(x)))
        return out


class DecoderLayer(EncoderLayer):
    """An encoder layer with cross-attention to a memory between self-attention and feed-forward.

    Self-attention is causal; ``mask`` restricts it further. ``memory`` is [N, S, dim], or
    ``cross_attention.keys_values(memory)`` computed once. In beam search x may be [N · beams, L, dim]: the hypotheses
    of an item are then queries of that item, so the memory is not copied. ``cross_score`` is the score of
    cross-attention, ``layer`` other options of :class:`EncoderLayer`: ``hidden``, ``kv_heads``, ``head_dim``, ``bias``,
    ``dropout`` and so on.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        score: Score | None = None,
        cross_score: Score | None = None,
        norm: MakeNorm = nn.LayerNorm,
        norm_eps: float = 1e-5,
        **layer: Unpack[LayerOptions],
    ) -> None:
        super().__init__(dim, heads, score=score, norm=norm, norm_eps=norm_eps, **layer)
        own, bias = self.attention, layer.get("bias", True)
        self.cross_attention = MultiHeadAttention(
            dim, heads, score=cross_score, kv_heads=own.kv_heads, head_dim=own.head_dim, bias=bias, dropout=own.dropout
        )
        self.cross_norm = norm(dim, norm_eps)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | KeyValues,
        *,
        mask: Mask | Tensor | None = None,
        memory_mask: Mask | Tensor | None = None,
        offset: int | Tensor = 0,
        cache: Cache | None = None,
        need_weights: bool | Tensor = False,
        need_log_weights: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """[N, L, dim] → [N, L, dim], and with ``need_weights`` the weights of cross-attention, [N, heads, rows, S].

        With ``need_log_weights``, the index of a head, log α of that head instead, [N, L, S].
        """
        if cache is not None:
            offset = cache.length.clone() if isinstance(cache.length, Tensor) else cache.length
        seen: Mask = Causal() if mask is None else Causal() & as_mask(mask)
        weights: Tensor | None = None

        def look(y: Tensor) -> Tensor:
            out: Tensor = self.attention(y, mask=seen, offset=offset, cache=cache)
            return out

        def look_across(y: Tensor) -> Tensor:
            nonlocal weights
            rows = self._by_item(y, memory)
            out = self.cross_attention(
                rows,
                memory,
                mask=memory_mask,
                offset=offset,
                need_weights=need_weights,
                need_log_weights=need_log_weights,
            )
            if need_log_weights is not None:
                out, weights = out
            elif need_weights is not False:
                out, shown = out
                weights = _by_hypothesis(shown, len(y))
            flat: Tensor = out.reshape(y.shape)
            return flat

        x = self._around(x, self.attention_norm, look)
        x = self._around(x, self.cross_norm, look_across)
        x = self._around(x, self.feed_forward_norm, self.feed_forward)
        return x if weights is None else (x, weights)

    def _by_item(self, y: Tensor, memory: Tensor | KeyValues) -> Tensor:
        """[N · beams, L, dim] → [N, beams · L, dim] for a memory of N items."""
        items = len(memory.values if isinstance(memory, KeyValues) else memory)
        if items == len(y):
            return y
        if not items or len(y) % items or self.cross_attention.score.positional:
            raise ValueError(
                f"{len(y)} hypotheses need a memory of as many items, or of a part of them if the cross-attention's "
                f"score does not know positions; got {items} and {type(self.cross_attention.score).__name__}"
            )
        return y.reshape(items, -1, y.shape[-1])


def _by_hypothesis(weights: Tensor, hypotheses: int) -> Tensor:
    """[N, heads, beams · rows, S] → [N · beams, heads, rows, S]."""
    if len(weights) == hypotheses:
        return weights
    items, heads, rows, keys = weights.shape
    beams = hypotheses // items
    return weights.view(items, heads, beams, rows // beams, keys).transpose(1, 2).flatten(0, 1)


def _positions(x: Tensor, offset: int | Tensor) -> Tensor:
    """offset + 0, 1, …: [L], or [N, L] for one offset per batch item."""
    index = torch.arange(x.shape[-2], device=x.device)
    return index + (offset[..., None] if isinstance(offset, Tensor) and offset.ndim else offset)

"""Run ``torch.nn.MultiheadAttention`` inside existing models with regard."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attention.call import attend, steps
from regard.common.module import restart
from regard.mask import Causal, Dense, Mask
from regard.score import Bias, Dot, Score


def replace(model: nn.Module, score: Callable[[nn.MultiheadAttention], Score] | None = None) -> int:
    """Make regard compute every ``torch.nn.MultiheadAttention`` of a model, in place; return how many were replaced.

    Parameters, state dict, hooks and calling convention do not change, nor do outputs, up to float error. (PyTorch's
    fused encoder writes zeros into padded positions; it is no longer used.) ``score`` makes a score for each module
    (``lambda m: Relative(m.head_dim, 16)``), which is added to the module as ``score``.

    >>> layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
    >>> replace(layer)
    1
    """
    found = [m for m in model.modules() if type(m) is nn.MultiheadAttention]
    for module in found:
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "regard cannot run a MultiheadAttention made with add_bias_kv or add_zero_attn; nothing was replaced"
            )
    for module in found:
        module.__class__ = MultiheadAttention
        module.score = Dot() if score is None else score(module)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            encoder.use_nested_tensor = False  # with padding it would pass nested tensors to the layers
    return len(found)


class MultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with the same parameters and arguments, computed by :func:`regard.attend`.

    Made by :func:`replace`, which changes a module's class in place.
    """

    score: Score

    # PyTorch's encoder layers check this before they bypass the module with a fused kernel.
    _qkv_same_embed_dim = property(lambda self: False)  # type: ignore[assignment]

    def reset_parameters(self) -> None:
        """Initialize as ``torch.nn.MultiheadAttention`` does, and reset the score."""
        for part in self.children():
            restart(part)
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        batched = query.ndim == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        mask, bias = self._masks(attn_mask, key_padding_mask, is_causal, query.shape[0], batched)
        q, k, v = self._project(query, key, value)
        score = self.score if bias is None else self.score + Bias(bias)
        out = attend(q, k, v, score=score, mask=mask, dropout=self.dropout if self.training else 0.0)
        out = self.out_proj(out.transpose(1, 2).flatten(-2))
        weights = None
        if need_weights:
            weights = steps(q, k, v, score=score, mask=mask).weights.to(q.dtype)
            weights = weights.mean(1) if average_attn_weights else weights
        if not batched:
            return out[0], None if weights is None else weights[0]
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _project(self, *inputs: Tensor) -> list[Tensor]:
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            nn.functional.linear(x, w, b).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, w, b in zip(inputs, weights, biases, strict=True)
        ]

    def _masks(
        self, attn_mask: Tensor | None, padding: Tensor | None, is_causal: bool, batch: int, batched: bool
    ) -> tuple[Mask | None, Tensor | None]:
        """PyTorch's masks (True hides, floats are added) as regard's mask and bias."""
        mask: Mask | None = None
        bias: Tensor | None = None
        _check_masks(attn_mask, padding, is_causal)
        if attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
        if padding is not None:
            padding = (padding if batched else padding[None])[:, None, None, :]
        if is_causal and attn_mask is not None and padding is None:
            return Causal(), None  # as in PyTorch, the caller promises that the mask is causal
        for given in (attn_mask, padding):
            if given is None:
                continue
            if given.dtype == torch.bool:
                mask = Dense(~given) if mask is None else mask & Dense(~given)
            else:
                bias = given if bias is None else bias + given
        return mask, bias


def _check_masks(attn_mask: Tensor | None, padding: Tensor | None, is_causal: bool) -> None:
    """Refuse what PyTorch refuses; else it would be added to the scores, or not masked at all."""
    if is_causal and attn_mask is None:
        raise ValueError(
            "is_causal=True is only a hint that attn_mask is causal, got no attn_mask; "
            "nn.Transformer.generate_square_subsequent_mask(length) makes one"
        )
    for name, given in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
        if given is not None and given.dtype != torch.bool and not given.is_floating_point():
            raise TypeError(f"{name} must be bool (True = ignore) or floating point (added), got {given.dtype}")

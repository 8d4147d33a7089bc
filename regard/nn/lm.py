"""A decoder-only language model: causal self-attention layers, and the logits of the next token.

Shapes: N sequences, T tokens, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.positions import Positions
from regard.common.module import Module
from regard.mask import Causal, Mask
from regard.mask.dense import as_mask
from regard.nn.attention import Cache
from regard.nn.layers import EncoderLayer, LayerOptions, MakeNorm
from regard.score import Rotary, Score

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CausalLM(Module):
    """Token embeddings, ``layers`` of causal self-attention and feed-forward, a norm, and logits.

    The defaults are those of most open models: RMSNorm before each sublayer (Zhang & Sennrich 2019), rotary positions,
    a gated feed-forward (SwiGLU, Shazeer 2020), no biases, no dropout. ``score`` is called once per layer and returns
    its score: ``lambda: QKNorm(Rotary(Dot(), base=1e6), kind="rms", dim=128)`` is Qwen 3's. ``tied`` shares the
    embedding with the softmax matrix. ``layer`` takes other options of :class:`EncoderLayer`: ``hidden``, ``kv_heads``,
    ``head_dim``, ``bias``, ``dropout`` and so on.

    >>> import torch
    >>> model = CausalLM(50, 32, layers=2, heads=4, kv_heads=2, head_dim=16, hidden=64)
    >>> model(torch.tensor([[7, 8, 9]])).shape
    torch.Size([1, 3, 50])
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        layers: int,
        heads: int,
        *,
        score: Callable[[], Score] = Rotary,
        tied: bool = True,
        norm: MakeNorm = nn.RMSNorm,
        norm_eps: float = 1e-6,
        **layer: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        if not callable(score) or isinstance(score, Score):
            raise TypeError(
                f"score must be a function that makes the score of one layer, such as lambda: Rotary(Dot()), got "
                f"{type(score).__name__}"
            )
        defaults: LayerOptions = {"activation": F.silu, "gated": True, "bias": False, "dropout": 0.0}
        options: LayerOptions = {**defaults, **layer}
        self.embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(
            EncoderLayer(dim, heads, score=score(), norm=norm, norm_eps=norm_eps, **options) for _ in range(layers)
        )
        self.norm = norm(dim, norm_eps)
        self.output = None if tied else nn.Linear(dim, vocab_size, bias=False)
        for own in self._layers():
            own.attention.trusted = True  # padding has a finite embedding too
        self._start()

    def _start(self) -> None:
        """N(0, 0.02²); projections into the residual divided by √(2 · layers) (GPT-2)."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for layer in self._layers():
            for linear in (layer.attention.out_proj, layer.feed_forward.down):
                nn.init.normal_(linear.weight, std=0.02 * (2 * len(self.layers)) ** -0.5)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        offset: int | Tensor = 0,
        positions: Positions | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Logits of the next token, [N, T] → [N, T, V]; options are those of :meth:`features`."""
        return self.logits(self.features(tokens, mask=mask, offset=offset, positions=positions, caches=caches))

    def features(
        self,
        tokens: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        offset: int | Tensor = 0,
        positions: Positions | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """The states before the softmax, [N, T, E].

        Args:
            tokens: token ids, [N, T].
            mask: restricts attention beyond causality, such as ``Window(4095, 0)`` or ``Documents.packed(offsets)``.
            offset, positions: as for :func:`regard.attend`.
            caches: one per layer, see :meth:`new_caches`; tokens continue after those in the caches.
        """
        if caches is not None and len(caches) != len(self.layers):
            raise ValueError(f"caches: expected one per layer, {len(self.layers)}, got {len(caches)}")
        seen: Mask = Causal() if mask is None else Causal() & as_mask(mask)
        x: Tensor = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            cache = None if caches is None else caches[i]
            x = layer(x, mask=seen, offset=offset, positions=positions, cache=cache)
        out: Tensor = self.norm(x)
        return out

    def logits(self, features: Tensor) -> Tensor:
        """[..., E] → [..., V]."""
        return F.linear(features, self.embedding.weight if self.output is None else self.output.weight)

    def new_caches(self, batch: int | None = None, max_length: int | None = None) -> list[Cache]:
        """An empty cache per layer: of fixed size with both arguments, growing otherwise."""
        if batch is None or max_length is None:
            return [Cache(max_length) for _ in self.layers]
        return [layer.attention.new_cache(batch, max_length) for layer in self._layers()]

    def _layers(self) -> list[EncoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer)]

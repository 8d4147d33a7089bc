"""The Transformer (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), any score in each of its attentions.

Shapes: N sentences, S source tokens, T target tokens, E model width, V vocabulary, R = N · beams hypotheses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.common.module import Module
from regard.mask import Causal, Lengths, Mask
from regard.mask.dense import as_mask
from regard.models._config import ModelConfig
from regard.models._memory import Memory, Weighted, lengths_of, padding, step_padding
from regard.models._scores import ScorePlace, ScoreSpec, make_score
from regard.nn import (
    Cache,
    DecoderLayer,
    Embedding,
    EncoderLayer,
    KeyValues,
    LearnedPositions,
    MultiHeadAttention,
    SinusoidalPositions,
)
from regard.score import Score

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "relu": (torch.relu, False),
    "gelu": (F.gelu, False),
    "silu": (F.silu, False),
    "swiglu": (F.silu, True),
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The configuration of a Transformer, plain values only.

    A model without encoder layers is decoder-only, one without decoder layers encoder-only. ``self_score``,
    ``decoder_score`` (None: the same) and ``cross_score`` are a kind ("dot", "additive", "general", "trilinear",
    "bilinear", "location", "relative", "rotary", "alibi", "t5", "cosine"), a table
    ``{kind = "additive", hidden_dim = 32}``, or groups of heads ``[[4, "dot"], [4, "additive"]]``. ``max_length`` is
    for learned positions. ``output_bias`` adds a bias to the logits, as in Marian's models; ``regard train`` does not
    use it. For encoder-only models such as BERT, ``segments`` is the number of segment embeddings, and
    ``embedding_norm`` normalizes the sum of embeddings. ``norm_eps`` is the ε that norms add to the variance.
    ``decoder_norm`` is the decoder's ``norm`` (None: the encoder's).
    """

    dim: int = 512
    ffn_dim: int = 2048
    heads: int = 8
    kv_heads: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    norm: str = "pre"
    decoder_norm: str | None = None
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    self_score: ScoreSpec = "dot"
    decoder_score: ScoreSpec | None = None
    cross_score: ScoreSpec = "dot"
    positions: str = "sinusoidal"
    max_length: int | None = None
    output_bias: bool = False
    segments: int = 0
    embedding_norm: bool = False
    norm_eps: float = 1e-5

    bert_alone: ClassVar[bool] = True  # whether segments and embedding_norm need an encoder-only model

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive("dim", "ffn_dim", "heads")
        self.whole("encoder_layers", 0)
        self.whole("decoder_layers", 0)
        if not self.encoder_layers + self.decoder_layers:
            raise ValueError("TransformerConfig: encoder_layers and decoder_layers cannot both be 0")
        self.one_of("norm", ("pre", "post"))
        if self.decoder_norm is not None:
            self.one_of("decoder_norm", ("pre", "post"))
        self.one_of("activation", tuple(ACTIVATIONS))
        self.one_of("positions", ("sinusoidal", "learned", "none"))
        self.share("attention_dropout", "activation_dropout", "norm_eps")
        self.whole("segments", 0)
        if self.dim % self.heads:
            raise ValueError(f"TransformerConfig: dim must be a multiple of heads, got {self.dim} and {self.heads}")
        if self.positions == "learned" and self.max_length is None:
            raise ValueError('TransformerConfig: positions = "learned" needs max_length')
        if self.bert_alone and self.decoder_layers and (self.segments or self.embedding_norm):
            raise ValueError("TransformerConfig: segments and embedding_norm are for models with decoder_layers = 0")

    def place(self, causal: bool = False) -> ScorePlace:
        return ScorePlace(self.heads, self.kv_heads or self.heads, self.dim // self.heads, self.dim, causal)

    def norm_first(self, decoder: bool = False) -> bool:
        norm = self.decoder_norm if decoder and self.decoder_norm is not None else self.norm
        return norm == "pre"

    def layer(self, decoder: bool = False) -> dict[str, Any]:
        """Arguments of the encoder or decoder layers."""
        activation, gated = ACTIVATIONS[self.activation]
        return {
            "hidden": self.ffn_dim,
            "kv_heads": self.kv_heads,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "activation": activation,
            "gated": gated,
            "norm_first": self.norm_first(decoder),
            "norm_eps": self.norm_eps,
        }


class TransformerState:
    """A decoder in the middle of R = N · beams hypotheses; row n · beams + b is beam b of sentence n.

    Keys and values of a sentence are stored once, for all its hypotheses. Only if the cross-attention score is
    positional does every hypothesis have its own copy, made at the start and not changed by reordering.
    """

    def __init__(self, layers: int, known: list[KeyValues], lengths: Tensor, beams: int, score: Score | None) -> None:
        self.caches = [Cache() for _ in range(layers)]
        self.known, self.lengths, self.beams = known, lengths, beams
        self.score = score  # of cross-attention
        self.length = 0  # tokens seen
        self.mask = self._mask()

    def reorder(self, items: Tensor, sentences: Tensor | None = None) -> None:
        """Select hypotheses, [n · beams] rows, each within its sentence.

        ``sentences`` [n] are the sentences to keep, if some are dropped.
        """
        for cache in self.caches:
            cache.reorder(items)
        if sentences is None:
            return
        self.lengths = self.lengths.index_select(0, sentences)
        if self.copied:
            each = torch.arange(self.beams, device=sentences.device)
            sentences = (sentences[:, None] * self.beams + each).flatten()
        self.known = [known.select(sentences) for known in self.known]
        self.mask = self._mask()

    @property
    def copied(self) -> bool:
        """Whether every hypothesis has its own copy of its sentence's keys and values."""
        return self.score is not None and self.beams > 1 and self.score.positional

    def _mask(self) -> Mask | None:
        if self.score is None:
            return None
        lengths = self.lengths.repeat_interleave(self.beams) if self.copied else self.lengths
        return step_padding(lengths, self.known[0].values.shape[-2], self.score)


class Transformer(Module):
    """Encoder-decoder, encoder-only or decoder-only Transformer.

    >>> model = Transformer(TransformerConfig(vocab_size=50, dim=16, ffn_dim=32, heads=2, cross_score="additive"))
    >>> source, target_in = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
    >>> model(source, target_in).shape
    torch.Size([2, 3, 50])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        c = self.config = config
        self.pad_id, self.bos_id, self.eos_id = c.pad_id, c.bos_id, c.eos_id
        self.max_length = c.max_length if c.positions == "learned" else None
        both = c.encoder_layers > 0 and c.decoder_layers > 0
        self.embedding = Embedding(c.vocab_size, c.dim, padding_idx=c.pad_id)
        self.source_embedding = (
            Embedding(c.vocab_size, c.dim, padding_idx=c.pad_id) if both and c.tied != "all" else None
        )
        self.output = nn.Linear(c.dim, c.vocab_size, bias=False) if c.tied == "none" else None
        self.output_bias = nn.Parameter(torch.empty(c.vocab_size)) if c.output_bias else None
        self.positions = self._make_positions()
        self.source_positions = self._make_positions() if both and c.positions == "learned" else None
        self.segments = nn.Embedding(c.segments, c.dim) if c.segments else None
        self.embedding_norm = nn.LayerNorm(c.dim, c.norm_eps) if c.embedding_norm else nn.Identity()
        self.head: nn.Module | None = None  # replaces the softmax matrix in an 8-bit copy
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = nn.ModuleList(self._encoder_layer(c.self_score) for _ in range(c.encoder_layers))
        self.decoder = nn.ModuleList(self._decoder_layer() for _ in range(c.decoder_layers))
        sides = ((c.encoder_layers, c.norm_first()), (c.decoder_layers, c.norm_first(decoder=True)))
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(c.dim, c.norm_eps) if layers and first else nn.Identity() for layers, first in sides
        )
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.trusted = True  # padding has a finite embedding too
        self._start()

    def _make_positions(self) -> SinusoidalPositions | LearnedPositions | None:
        if self.config.positions == "learned":
            assert self.config.max_length is not None
            return LearnedPositions(self.config.max_length, self.config.dim)
        return SinusoidalPositions(self.config.dim) if self.config.positions == "sinusoidal" else None

    def _encoder_layer(self, score: ScoreSpec, causal: bool = False) -> EncoderLayer:
        c = self.config
        return EncoderLayer(c.dim, c.heads, score=make_score(score, c.place(causal)), **c.layer(causal))

    def _decoder_layer(self) -> EncoderLayer:
        c = self.config
        own = c.self_score if c.decoder_score is None else c.decoder_score
        if not c.encoder_layers:
            return self._encoder_layer(own, causal=True)
        cross = make_score(c.cross_score, c.place())
        return DecoderLayer(c.dim, c.heads, score=make_score(own, c.place(True)), cross_score=cross, **c.layer(True))

    def _start(self) -> None:
        """Initialize: Glorot uniform, with q, k and v as one matrix, as in PyTorch and fairseq."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                for linear in (module.q_proj, module.k_proj, module.v_proj):
                    nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=self.config.dim**-0.5)
        if self.segments is not None:
            nn.init.normal_(self.segments.weight, std=0.02)
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)

    # --- all positions at once ---

    def forward(self, source: Tensor | None, target_in: Tensor | None = None, **options: Any) -> Weighted:
        """Logits [N, T, V] of the target (of the source, [N, S, V], for an encoder-only model).

        Options are those of :meth:`features`; with ``attention`` the weights are returned too.
        """
        out = self.features(source, target_in, **options)
        if isinstance(out, tuple):
            return self.logits(out[0]), out[1]
        return self.logits(out)

    def features(
        self,
        source: Tensor | None,
        target_in: Tensor | None = None,
        *,
        source_lengths: Tensor | None = None,
        source_mask: Mask | Tensor | None = None,
        source_positions: Tensor | None = None,
        target_mask: Mask | Tensor | None = None,
        target_positions: Tensor | None = None,
        cross_mask: Mask | Tensor | None = None,
        attention: bool | Tensor = False,
        guided: tuple[int, int] | None = None,
    ) -> Weighted:
        """The states before the softmax, [N, T, E]: ``logits(features(...))`` are the logits.

        Args:
            source, target_in: [N, S] and [N, T] token ids, padded at the end. Target inputs start with ``bos_id``.
                ``source`` is None for a decoder-only model.
            source_lengths: [N]; by default the number of tokens before the padding.
            source_mask, target_mask, cross_mask: masks for the encoder's, the decoder's (combined with the causal
                mask) and the cross-attention, such as ``Documents`` for packed sentences.
            source_positions, target_positions: [N, S], [N, T]; those of packed sentences restart at 0.
            attention: True, or the indices of target rows: also returns cross-attention weights,
                [N, layers, heads, rows, S].
            guided: a decoder layer and a head: also returns log α of its cross-attention, [N, T, S], for guided
                alignment; no dense weights of other heads are computed.
        """
        if not self.decoder:
            if source is None or target_in is not None:
                raise ValueError("an encoder-only model takes a source and no target")
            states = self.encode(source, lengths=source_lengths, mask=source_mask, positions=source_positions).states
            assert states is not None
            return states
        if target_in is None:
            raise ValueError("target_in is missing: a decoder reads the target shifted right, bos_id first")
        if source is None:
            memory = Memory.nothing(len(target_in), target_in.device)
        else:
            memory = self.encode(source, lengths=source_lengths, mask=source_mask, positions=source_positions)
        return self.decode(
            target_in,
            memory,
            mask=target_mask,
            cross_mask=cross_mask,
            positions=target_positions,
            attention=attention,
            guided=guided,
        )

    def logits(self, features: Tensor) -> Tensor:
        """[..., E] → [..., V]."""
        if self.head is not None:
            out: Tensor = self.head(features)
            return out
        return F.linear(features, self.output_weight, self.output_bias)

    @property
    def output_weight(self) -> Tensor:
        """The softmax matrix, [V, E], for losses that multiply by it themselves."""
        return self.embedding.weight if self.output is None else self.output.weight

    def encode(
        self,
        source: Tensor,
        *,
        lengths: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Memory:
        """[N, S] token ids → the memory to decode from; ``segments`` [N, S] are 0 by default."""
        if not self.encoder:
            raise ValueError("a decoder-only model has no source: pass None, or Memory.nothing(N) to decode")
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        if mask is None:
            lengths = lengths_of(source, self.pad_id) if lengths is None else lengths
            seen = padding(lengths, source.shape[-1])
        elif lengths is None:
            seen = as_mask(mask)
        else:
            seen, lengths = as_mask(mask) & Lengths(lengths), None
        places = self.positions if self.source_positions is None else self.source_positions
        x = self._embed(embedding, places, source, 0, positions, segments)
        for layer in self.encoder:
            x = layer(x, mask=seen)
        return Memory(self.encoder_norm(x), lengths, seen)

    def decode(
        self,
        target_in: Tensor,
        memory: Memory,
        *,
        mask: Mask | Tensor | None = None,
        cross_mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        attention: bool | Tensor = False,
        guided: tuple[int, int] | None = None,
    ) -> Weighted:
        """Features [N, T, E] of a given target, all positions at once; see :meth:`features`."""
        x = self._embed_target(target_in, 0, positions, memory)
        if memory.states is None:
            return self._decode_alone(x, mask, guided is not None or attention)
        if cross_mask is None and memory.lengths is None:
            raise ValueError("the source was encoded with a mask: pass cross_mask= too (target rows × source)")
        seen = memory.mask if cross_mask is None else cross_mask
        shown = []
        for i, layer in enumerate(self.decoder):
            head = guided[1] if guided is not None and guided[0] == i else None
            x = layer(x, memory.states, mask=mask, memory_mask=seen, need_weights=attention, need_log_weights=head)
            if isinstance(x, tuple):
                x, weights = x
                shown.append(weights)
        x = self.decoder_norm(x)
        if guided is not None:
            return x, shown[0]
        return x if attention is False else (x, torch.stack(shown, 1))

    def _decode_alone(self, x: Tensor, mask: Mask | Tensor | None, attention: bool | Tensor) -> Tensor:
        self._check_alone(attention)
        seen: Mask = Causal() if mask is None else Causal() & as_mask(mask)
        for layer in self.decoder:
            x = layer(x, mask=seen)
        out: Tensor = self.decoder_norm(x)
        return out

    def _check_alone(self, attention: bool | Tensor) -> None:
        if self.encoder:
            raise ValueError("this model has an encoder: source is missing")
        if attention is not False:
            raise ValueError("attention= gives cross-attention weights, and a decoder-only model has none")

    def _embed(
        self,
        embedding: Embedding,
        places: nn.Module | None,
        tokens: Tensor,
        offset: int,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        x: Tensor = embedding(tokens)
        if places is not None:
            x = places(x, offset, positions=positions)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        elif segments is not None:
            raise ValueError("this model has no segments: TransformerConfig(segments=2) makes one that does")
        out: Tensor = self.dropout(self.embedding_norm(x))
        return out

    def _embed_target(
        self, tokens: Tensor, offset: int, positions: Tensor | None, of: Memory | TransformerState
    ) -> Tensor:
        """The decoder's input; ``of``, the memory or the state, is for models with more inputs."""
        return self._embed(self.embedding, self.positions, tokens, offset, positions)

    # --- step by step ---

    @torch.no_grad()
    def start(self, memory: Memory, beams: int = 1) -> TransformerState:
        """A state before the first token, for ``beams`` hypotheses per sentence."""
        if not self.decoder:
            raise ValueError("an encoder-only model does not decode")
        if memory.lengths is None:
            raise ValueError("decoding needs sources encoded with lengths, not with a mask")
        if memory.states is None:
            self._check_alone(False)
            return TransformerState(len(self.decoder), [], memory.lengths, beams, None)
        attentions = [layer.cross_attention for layer in self.decoder if isinstance(layer, DecoderLayer)]
        known = [attention.keys_values(memory.states).trust() for attention in attentions]
        score = attentions[0].score
        if beams > 1 and score.positional:
            each = torch.arange(memory.size, device=memory.states.device).repeat_interleave(beams)
            known = [k.select(each) for k in known]
        return TransformerState(len(self.decoder), known, memory.lengths, beams, score)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: TransformerState, *, attention: bool = False) -> Any:
        """Read one token per hypothesis, [R]; logits of the next, [R, V], and the state, changed in place.

        With ``attention`` also the cross-attention weights of this step, [R, layers, heads, S].
        """
        features, shown = self._advance(tokens, state, attention)
        logits = self.logits(features)
        return (logits, state, shown) if attention else (logits, state)

    def _advance(
        self, tokens: Tensor, state: TransformerState, attention: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The states before the softmax, [R, E], of one step, and cross-attention weights if requested."""
        if attention and not state.known:
            self._check_alone(attention)
        x = self._embed_target(tokens[:, None], state.length, None, state)
        shown = []
        for i, (layer, cache) in enumerate(zip(self.decoder, state.caches, strict=True)):
            if not state.known:
                x = layer(x, mask=Causal(), cache=cache)
                continue
            x = layer(x, state.known[i], memory_mask=state.mask, cache=cache, need_weights=attention)
            if attention:
                x, weights = x
                shown.append(weights[:, :, 0])
        state.length += 1
        return self.decoder_norm(x)[:, 0], torch.stack(shown, 1) if attention else None

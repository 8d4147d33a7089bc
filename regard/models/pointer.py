"""The pointer-generator (See et al. 2017, https://arxiv.org/abs/1704.04368) on a Transformer, any score for copying.

    a_t = softmax_j e(W_q h_t, W_k s_j)                         where to copy from; e is the copy score
    g_t = σ(w · [h_t; Σ_j a_tj s_j] + b)                        how much to generate
    P(w) = g_t softmax(h_t Vᵀ)_w + (1 − g_t) Σ_{j: x_j = w} a_tj

h are the decoder's last states, s the encoder's, x the source. Both sides share one vocabulary of subwords, so a word
that was never seen is copied subword by subword and nothing is out of vocabulary. With ``follow``,

    e_tj ← e_tj + (u · h_t + c) [x_{j−1} = y_{t−1}]             y_{t−1}: the token that was read last
                + (u' · h_t + c') [x_{j−1} = y_{t−1}, x_{j−2} = y_{t−2}]

a piece is followed by its neighbour, as in a name that is copied whole. With ``coverage``,

    e_tj ← e_tj − softplus(u) Σ_{t' < t} a⁰_t'j                 a⁰: the weights of e alone

source positions attended to before get lower scores. The paper sums the corrected weights, which only a step-by-step
decoder has; the sum of a⁰ is known for all steps at once and is the same in training and decoding.

Shapes: N documents, S source tokens, T target tokens, E width, V vocabulary, R = N · beams hypotheses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models._memory import Memory, Weighted, lengths_of, padding
from regard.models._scores import ScorePlace, ScoreSpec, make_score
from regard.models._windows import Windows
from regard.models.transformer import Transformer, TransformerConfig, TransformerState
from regard.nn import SinusoidalPositions


@dataclass(frozen=True, kw_only=True)
class PointerConfig(TransformerConfig):
    """A Transformer's configuration, with the settings of copying.

    ``copy_score`` is written like any other score, with dimension ``copy_dim``; ``copy = false`` turns copying off.
    ``follow`` adds a number, which depends on the state, to the score of source positions that follow the last token,
    or the last two. ``coverage`` lowers the score of positions attended to before. With ``told_length`` the number of
    tokens left, where known, is an input of the decoder (Takase and Okazaki 2019, https://arxiv.org/abs/1904.07418).

    For a pretrained encoder, such as BERT: ``pretrained`` names the source of its weights; with ``windows`` it reads
    bos … eos, and sources longer than its ``max_length`` positions in overlapping windows; the softmax's logits are
    multiplied by ``output_scale``, where token embeddings are shorter than those of a new model.
    """

    copy: bool = True
    copy_score: ScoreSpec = "additive"
    copy_dim: int = 64
    follow: bool = True
    coverage: bool = False
    told_length: bool = False
    pretrained: str | None = None
    windows: bool = False
    output_scale: float = 1.0

    bert_alone: ClassVar[bool] = False

    def to_table(self) -> dict[str, Any]:
        """Omits newer settings at their defaults, so that runs of older versions can be resumed."""
        table = super().to_table()
        plain = {"windows": False, "output_scale": 1.0}
        return {key: value for key, value in table.items() if key not in plain or value != plain[key]}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive("copy_dim", "encoder_layers", "decoder_layers")
        if self.windows and (self.positions != "learned" or self.max_length is None or self.max_length < 4):
            raise ValueError('PointerConfig: windows = true needs positions = "learned" and a max_length of at least 4')
        if isinstance(self.output_scale, bool) or not self.output_scale > 0:
            raise ValueError(f"PointerConfig: output_scale must be a number above 0, got {self.output_scale!r}")
        if self.output_bias:
            raise ValueError("PointerConfig: output_bias is only for imported models")


@dataclass(frozen=True)
class PointerMemory(Memory):
    """Encoded sources with their tokens [N, S]; ``wanted`` [N] are the requested lengths, 0 for none."""

    source: Tensor | None = None
    wanted: Tensor | None = None

    def select(self, items: Tensor) -> PointerMemory:
        plain = super().select(items)
        assert self.source is not None
        wanted = None if self.wanted is None else self.wanted.index_select(0, items)
        return PointerMemory(plain.states, plain.lengths, plain.mask, self.source.index_select(0, items), wanted)

    def with_lengths(self, wanted: Tensor | None) -> PointerMemory:
        """The memory with requested lengths in tokens, end symbol included; 0 for none."""
        return PointerMemory(self.states, self.lengths, self.mask, self.source, wanted)


class PointerParts(NamedTuple):
    """The parts of the next token's distribution, for T positions of each document.

    ``features`` [N, T, E] go to the softmax over the vocabulary, scaled for it; ``gate`` [N, T] is g before the
    sigmoid, ``weights`` [N, T, S] are a, in float32 at least.
    """

    features: Tensor
    gate: Tensor
    weights: Tensor


class PointerState(TransformerState):
    """A Transformer's state, the memory, its lowered keys for the copying, and Σ a⁰ of every hypothesis, [R, S]."""

    memory: PointerMemory
    keys: Tensor  # [N, 1, S, C]
    covered: Tensor | None = None
    last: Tensor | None = None  # the token read last, [R]

    def cover(self, weights: Tensor) -> Tensor:
        """Σ a⁰ before this step, [N, beams, S], to which this step's [N, beams, S] are added."""
        before = torch.zeros_like(weights) if self.covered is None else self.covered.view_as(weights)
        self.covered = (before + weights).flatten(0, 1)
        return before

    def reorder(self, items: Tensor, sentences: Tensor | None = None) -> None:
        super().reorder(items, sentences)
        if self.covered is not None:
            self.covered = self.covered.index_select(0, items)
        if self.last is not None:
            self.last = self.last.index_select(0, items)
        if sentences is not None:
            self.memory, self.keys = self.memory.select(sentences), self.keys.index_select(0, sentences)


class PointerTransformer(Transformer):
    """An encoder-decoder that can copy. Its logits are log P(w): a softmax leaves them as they are.

    >>> model = PointerTransformer(PointerConfig(vocab_size=50, dim=16, ffn_dim=32, heads=2, copy_score="dot")).eval()
    >>> source, target_in = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
    >>> log_p = model(source, target_in)
    >>> log_p.shape, bool((log_p.exp().sum(-1) - 1).abs().max() < 1e-5)
    (torch.Size([2, 3, 50]), True)
    """

    config: PointerConfig

    def __init__(self, config: PointerConfig) -> None:
        super().__init__(config)
        c = config
        self.copy_query, self.copy_key = nn.Linear(c.dim, c.copy_dim), nn.Linear(c.dim, c.copy_dim)
        self.copy_score = make_score(c.copy_score, ScorePlace(1, 1, c.copy_dim, c.dim))
        self.gate = nn.Linear(2 * c.dim, 1)
        self.follow = nn.Linear(c.dim, 2) if c.follow else None
        self.coverage = nn.Parameter(torch.empty(())) if c.coverage else None
        self.told = nn.Linear(c.dim, c.dim, bias=False) if c.told_length else None
        self._reset_copying()

    def _start(self) -> None:
        """As in a Transformer; Glorot's uniform for the copy attention, PyTorch's default for the length embedding."""
        super()._start()
        if hasattr(self, "told"):  # not yet while the Transformer part is being made
            if self.told is not None:
                self.told.reset_parameters()
            self._reset_copying()

    def _reset_copying(self) -> None:
        for linear in (self.copy_query, self.copy_key, self.gate, self.follow):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)
        if self.coverage is not None:
            nn.init.zeros_(self.coverage)

    # --- all positions at once ---

    def encode(self, source: Tensor, **options: Any) -> PointerMemory:
        """[N, S] token ids → the memory to decode from. Options are those of a Transformer, except masks."""
        if self.config.windows:
            return self._encode_windows(source, **options)
        memory = super().encode(source, **options)
        if memory.lengths is None:
            raise ValueError("a pointer copies from one document per row: pass lengths, not a mask")
        return PointerMemory(memory.states, memory.lengths, memory.mask, source)

    def windows(self, length: int) -> int:
        """The number of windows of a document of ``length`` tokens, eos included."""
        if not self.config.windows:
            return 1
        assert self.config.max_length is not None
        return Windows(self.config.max_length).count(length)

    def _encode_windows(self, source: Tensor, *, lengths: Tensor | None = None, **others: Any) -> PointerMemory:
        assert self.config.max_length is not None
        if any(value is not None for value in others.values()):
            raise ValueError(f"an encoder that reads in windows takes only lengths, got {', '.join(others)}")
        lengths = lengths_of(source, self.pad_id) if lengths is None else lengths
        read_window = super().encode

        def read(tokens: Tensor, sizes: Tensor) -> Tensor:
            found = read_window(tokens, lengths=sizes).states
            assert found is not None
            return found

        states = Windows(self.config.max_length).encode(
            source,
            lengths,
            read,
            bos=self.bos_id,
            eos=self.eos_id,
            pad=self.pad_id,
        )
        return PointerMemory(states, lengths, padding(lengths, source.shape[1]), source)

    def point(self, target_in: Tensor, memory: PointerMemory) -> PointerParts:
        """The parts of the distributions at all positions of a target [N, T]."""
        features = super().decode(target_in, memory)
        assert isinstance(features, Tensor)
        return self._point(features, _lasts(target_in), memory, self._keys(memory))

    def decode(
        self, target_in: Tensor, memory: Memory, *, attention: bool | Tensor = False, **options: Any
    ) -> Weighted:
        """log P [N, T, V] of a given target, all positions at once, and cross-attention weights if asked."""
        assert isinstance(memory, PointerMemory)
        out = super().decode(target_in, memory, attention=attention, **options)
        features, weights = out if isinstance(out, tuple) else (out, None)
        log_p = self.log_probs(self._point(features, _lasts(target_in), memory, self._keys(memory)), memory)
        return log_p if weights is None else (log_p, weights)

    def logits(self, features: Tensor) -> Tensor:
        """log P unchanged: the output of ``decode`` is already normalised."""
        return features

    def log_probs(self, pointed: PointerParts, memory: PointerMemory) -> Tensor:
        """log P(w), [N, T, V], in float32 at least: the log of a mixture, of which one part may be 0."""
        assert memory.source is not None
        dtype = torch.promote_types(pointed.features.dtype, torch.float32)
        written = super().logits(pointed.features).log_softmax(-1, dtype=dtype)
        if not self.config.copy:
            return written
        at = memory.source[:, None, :].expand_as(pointed.weights)
        copied = torch.zeros_like(written).scatter_add_(-1, at, pointed.weights.to(dtype))
        gate = pointed.gate.to(dtype)[..., None]
        return torch.logaddexp(F.logsigmoid(gate) + written, F.logsigmoid(-gate) + copied.log())

    def _keys(self, memory: PointerMemory) -> Tensor:
        assert memory.states is not None
        keys: Tensor = self.copy_key(memory.states)
        return keys[:, None]

    def _point(
        self, features: Tensor, last: Tensor, memory: PointerMemory, keys: Tensor, state: PointerState | None = None
    ) -> PointerParts:
        """Of features [N, L, E] and the last two tokens [N, L, 2]; L counts positions, or the beams of ``state``."""
        assert memory.states is not None
        e = self._scores(self.copy_query(features)[:, None], keys, state)
        if self.follow is not None:
            strength = self.follow(features).to(e.dtype)
            one, two = behind(last, memory)
            e = e + strength[..., :1] * one + strength[..., 1:] * two
        e = e.masked_fill(~copyable(memory)[:, None], float("-inf"))
        weights = e.softmax(-1)
        if self.coverage is not None:
            covered = weights.cumsum(1) - weights if state is None else state.cover(weights)
            weights = (e - F.softplus(self.coverage) * covered).softmax(-1)
        context = weights.to(memory.states.dtype) @ memory.states
        gate: Tensor = self.gate(torch.cat((features, context.to(features.dtype)), -1))[..., 0]
        return PointerParts(features * self.config.output_scale, gate, weights)

    def _scores(self, q: Tensor, k: Tensor, state: PointerState | None) -> Tensor:
        """e [N, L, S]; computed in float32 also under autocast, because a softmax over words depends on it."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q, k = q.to(dtype), k.to(dtype)
            if state is None or not self.copy_score.positional:
                e: Tensor = self.copy_score(q, k)[:, 0]
                return e
            # beams share a position, so each becomes a row of the batch
            rows = q.transpose(1, 2).flatten(0, 1)[:, None]
            each = self.copy_score(rows, k.repeat_interleave(state.beams, 0), offset=state.length - 1)
            each_row: Tensor = each[:, 0, 0].unflatten(0, (-1, state.beams))
            return each_row

    def _embed_target(
        self, tokens: Tensor, offset: int, positions: Tensor | None, of: Memory | TransformerState
    ) -> Tensor:
        x = super()._embed_target(tokens, offset, positions, of)
        memory = of.memory if isinstance(of, PointerState) else of
        assert isinstance(memory, PointerMemory)
        if self.told is None or memory.wanted is None:
            return x
        wanted = memory.wanted
        if isinstance(of, PointerState) and len(x) != len(wanted):
            wanted = wanted.repeat_interleave(of.beams)
        left = (wanted[:, None] - offset - torch.arange(x.shape[1], device=x.device)).clamp(min=0)
        waves = SinusoidalPositions(self.config.dim)(torch.zeros_like(x), positions=left)
        known = (wanted > 0).to(x.dtype)[:, None, None]
        told: Tensor = self.told(waves)
        return x + known * told

    # --- step by step ---

    @torch.no_grad()
    def start(self, memory: Memory, beams: int = 1) -> PointerState:
        """A state before the first token, for ``beams`` hypotheses per document."""
        assert isinstance(memory, PointerMemory)
        plain = super().start(memory, beams)
        state = PointerState(len(plain.caches), plain.known, plain.lengths, beams, plain.score)
        state.memory, state.keys = memory, self._keys(memory)
        return state

    @torch.no_grad()
    def step(self, tokens: Tensor, state: TransformerState, *, attention: bool = False) -> Any:
        """Read one token per hypothesis, [R]; log P of the next, [R, V], and the state, changed in place."""
        assert isinstance(state, PointerState)
        features, shown = self._advance(tokens, state, attention)
        rows = features.unflatten(0, (-1, state.beams))
        before = torch.full_like(tokens, -2) if state.last is None else state.last
        last, state.last = torch.stack((tokens, before), -1).unflatten(0, (-1, state.beams)), tokens
        log_p = self.log_probs(self._point(rows, last, state.memory, state.keys, state), state.memory).flatten(0, 1)
        return (log_p, state, shown) if attention else (log_p, state)


def behind(last: Tensor, memory: PointerMemory) -> tuple[Tensor, Tensor]:
    """Source positions that follow the last token, and the last two; [N, L, S] each, for tokens [N, L, 2]."""
    assert memory.source is not None
    first, second = (F.pad(memory.source, (k, 0), value=-1)[:, None, :-k] == last[..., k - 1, None] for k in (1, 2))
    return first, first & second


def _lasts(target_in: Tensor) -> Tensor:
    """Each token and the one before it, [N, T, 2]; −2 at the start."""
    return torch.stack((target_in, F.pad(target_in[:, :-1], (1, 0), value=-2)), -1)


def copyable(memory: PointerMemory) -> Tensor:
    """Whether each source token may be copied, [N, S]: not padding or eos, except eos of an empty source."""
    assert memory.lengths is not None and memory.source is not None
    last = (memory.lengths - 1).clamp(min=1)
    return torch.arange(memory.source.shape[1], device=last.device) < last[:, None]

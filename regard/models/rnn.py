"""The recurrent encoder-decoder with attention (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473), any score.

    h_1 … h_S = [→h; ←h]                      a bidirectional GRU or LSTM reads the source
    e_ti = a(s_{t−1}, h_i)                    the score; α_t = softmax(e_t), c_t = Σ_i α_ti h_i
    s_t  = f(s_{t−1}, [y_{t−1}; c_t; o_{t−1}])   o with input feeding only (Luong et al. 2015)
    o_t  = tanh(W [s_t; c_t; y_{t−1}])        and the softmax over words reads o_t

Shapes: N sentences, S source tokens, T target tokens, E embedding, D hidden, H heads, R = N · beams hypotheses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.call import attend, attend_densely, has_observer
from regard.common.module import Module
from regard.mask import Mask
from regard.models._bidirectional import CELLS, Bidirectional
from regard.models._config import ModelConfig
from regard.models._memory import Memory, Weighted, lengths_of, step_padding
from regard.models._scores import ScorePlace, ScoreSpec, make_score
from regard.nn import Embedding
from regard.score import Additive, PerHead, Score
from regard.score.terms import Keys, KeyTerm, Queries


@dataclass(frozen=True, kw_only=True)
class RNNConfig(ModelConfig):
    """The configuration of a recurrent encoder-decoder, plain values only.

    ``dim`` is the width of the embeddings, ``hidden_dim`` that of the decoder's state and of h_i (half of it per
    direction). ``score`` is written as in ``TransformerConfig``; with ``heads`` > 1 each head scores a part of s and h.
    ``location_features`` > 0 adds that many convolution features of the previous step's weights, ``location_width``
    wide, to the score (Chorowski et al. 2015, https://arxiv.org/abs/1506.07503).
    """

    dim: int = 256
    hidden_dim: int = 512
    encoder_layers: int = 1
    decoder_layers: int = 1
    cell: str = "gru"
    heads: int = 1
    score: ScoreSpec = "additive"
    input_feeding: bool = True
    location_features: int = 0
    location_width: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive("dim", "hidden_dim", "encoder_layers", "decoder_layers", "heads", "location_width")
        self.whole("location_features", 0)
        self.one_of("cell", tuple(CELLS))
        if self.hidden_dim % 2 or self.hidden_dim % self.heads:
            raise ValueError(
                f"RNNConfig: hidden_dim must be even and a multiple of heads, got {self.hidden_dim} and {self.heads}"
            )
        if self.location_width % 2 == 0:
            raise ValueError(f"RNNConfig: location_width must be odd, got {self.location_width}")


class _KeyBias(Score):
    """e_ij = c_j, a number per key that the step computes."""

    positional = False

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((KeyTerm(),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())  # the step adds it


@dataclass
class RNNState:
    """A decoder in the middle of R = N · beams hypotheses; row n · beams + b is beam b of sentence n.

    Keys, values and mask are stored once per sentence, and its hypotheses are the queries of one attention. If
    ``copied``, every hypothesis has its own (positional scores, location features).
    """

    score: Score
    keys: Keys
    values: Tensor  # [N, H, S, D / H]
    mask: Mask | None
    lengths: Tensor  # [N]
    hidden: list[tuple[Tensor, ...]]  # per layer s, and the LSTM's cell, [R, D]
    output: Tensor | None  # o_{t−1}, [R, E], with input feeding
    weights: Tensor | None  # α_{t−1}, [R, H, S], with location features
    beams: int = 1
    copied: bool = False
    length: int = 0

    def reorder(self, items: Tensor, sentences: Tensor | None = None) -> None:
        """Select hypotheses, [n · beams] rows, each within its sentence.

        ``sentences`` [n] are the sentences to keep, if some are dropped.
        """
        self.hidden = [tuple(part.index_select(0, items) for part in layer) for layer in self.hidden]
        self.output = None if self.output is None else self.output.index_select(0, items)
        self.weights = None if self.weights is None else self.weights.index_select(0, items)
        if sentences is None:
            return
        self.lengths = self.lengths.index_select(0, sentences)
        rows = items if self.copied else sentences  # all rows of a sentence are equal
        self.keys = Keys(tuple(t.index_select(0, rows) for t in self.keys.tensors), trusted=True)
        self.values = self.values.index_select(0, rows)
        self.remask()

    def remask(self) -> None:
        lengths = self.lengths.repeat_interleave(self.beams) if self.copied else self.lengths
        self.mask = step_padding(lengths, self.values.shape[-2], self.score)


class RNNSeq2Seq(Module):
    """Recurrent encoder-decoder with attention.

    >>> model = RNNSeq2Seq(RNNConfig(vocab_size=50, dim=16, hidden_dim=32, cell="lstm", score="general"))
    >>> source, target_in = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
    >>> model(source, target_in).shape
    torch.Size([2, 3, 50])
    """

    max_length = None
    attention_kind = "cross"  # to regard.record

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        c = self.config = config
        self.pad_id, self.bos_id, self.eos_id = c.pad_id, c.bos_id, c.eos_id
        _, cell = CELLS[c.cell]
        self.embedding = Embedding(c.vocab_size, c.dim, padding_idx=c.pad_id)
        self.source_embedding = Embedding(c.vocab_size, c.dim, padding_idx=c.pad_id) if c.tied != "all" else None
        self.softmax = nn.Linear(c.dim, c.vocab_size, bias=False) if c.tied == "none" else None
        self.encoder = Bidirectional(c.cell, c.dim, c.hidden_dim // 2, c.encoder_layers, c.dropout)
        self.bridge = nn.Linear(c.hidden_dim, c.decoder_layers * self._parts * c.hidden_dim)
        score = make_score(c.score, ScorePlace(c.heads, c.heads, c.hidden_dim // c.heads, c.hidden_dim))
        first = c.dim + c.hidden_dim + (c.dim if c.input_feeding else 0)
        sizes = [first] + [c.hidden_dim] * (c.decoder_layers - 1)
        self.cells = nn.ModuleList(cell(size, c.hidden_dim) for size in sizes)
        self.readout = nn.Linear(2 * c.hidden_dim + c.dim, c.dim)
        self.head: nn.Module | None = None  # replaces the softmax matrix in an 8-bit copy
        self.dropout = nn.Dropout(c.dropout)
        self.score = self._with_location(score) if c.location_features else score
        self._start()

    def _with_location(self, score: Score) -> Score:
        """Modules for f_i = (F ∗ α_{t−1})_i: U_f f_i inside an additive score's tanh, or w·f_i added to any score."""
        c = self.config
        if isinstance(score, PerHead):
            raise ValueError("RNNConfig: location_features need one score for all heads, got groups of heads")
        self.location = nn.Conv1d(1, c.location_features, c.location_width, padding="same", bias=False)
        inside = score.W.shape[-2] if isinstance(score, Additive) else 1
        self.location_proj = nn.Linear(c.location_features, inside, bias=False)
        return score if isinstance(score, Additive) else score + _KeyBias()

    @property
    def _parts(self) -> int:
        """The number of tensors in a cell's state."""
        return 2 if self.config.cell == "lstm" else 1

    def _start(self) -> None:
        """Initialize: Glorot uniform, orthogonal recurrent matrices, zero biases, but 1 for an LSTM's forget gates."""
        for name, parameter in self.named_parameters():
            if name.startswith("score.") or "embedding" in name:
                continue  # these initialize themselves
            if "bias" in name:
                nn.init.zeros_(parameter)
                if self.config.cell == "lstm" and "bias_ih" in name:
                    parameter.data.view(4, -1)[1] = 1.0
            elif "weight_hh" in name:
                for gate in parameter.data.chunk(parameter.shape[0] // parameter.shape[1]):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.xavier_uniform_(parameter)
        if self.softmax is not None:
            nn.init.normal_(self.softmax.weight, std=self.config.dim**-0.5)

    # --- all positions at once ---

    def forward(self, source: Tensor, target_in: Tensor, **options: Any) -> Weighted:
        """Logits [N, T, V]. Options are those of :meth:`features`; with ``attention`` the weights are returned too."""
        out = self.features(source, target_in, **options)
        if isinstance(out, tuple):
            return self.logits(out[0]), out[1]
        return self.logits(out)

    def features(
        self,
        source: Tensor,
        target_in: Tensor,
        *,
        source_lengths: Tensor | None = None,
        attention: bool = False,
        guided: tuple[int, int] | None = None,
    ) -> Weighted:
        """o_1 … o_T, [N, T, E]: ``logits(features(...))`` are the logits.

        Args:
            source, target_in: [N, S] and [N, T] token ids, padded at the end. Target inputs start with ``bos_id``.
            source_lengths: [N]; by default the number of tokens before the padding.
            attention: also return the weights, [N, 1, heads, T, S].
            guided: (0, head): return log α of this head instead of the weights, [N, T, S], for guided alignment.
        """
        memory = self.encode(source, lengths=source_lengths)
        if guided is None:
            return self.decode(target_in, memory, attention=attention)
        out, weights = self.decode(target_in, memory, attention=True)
        return out, weights[:, 0, guided[1]].clamp(min=1e-9).log()

    def logits(self, features: Tensor) -> Tensor:
        """[..., E] → [..., V]."""
        out: Tensor = F.linear(features, self.output_weight) if self.head is None else self.head(features)
        return out

    @property
    def output_weight(self) -> Tensor:
        """The softmax matrix, [V, E], for losses that multiply by it themselves."""
        return self.embedding.weight if self.softmax is None else self.softmax.weight

    def encode(self, source: Tensor, *, lengths: Tensor | None = None) -> Memory:
        """[N, S] token ids → the memory to decode from."""
        lengths = lengths_of(source, self.pad_id) if lengths is None else lengths
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        x = self.dropout(embedding(source))
        return Memory.of(self.dropout(self.encoder(x, lengths)), lengths)

    def decode(self, target_in: Tensor, memory: Memory, *, attention: bool = False) -> Weighted:
        """o_1 … o_T of a given target, [N, T, E]; see :meth:`features`."""
        state = self._begin(memory, 1)
        x = self.dropout(self.embedding(target_in))
        tops, contexts, outputs, shown = [], [], [], []
        for word in x.unbind(1):
            top, context, weights = self._advance(word, state, attention)
            tops.append(top)
            contexts.append(context)
            shown.append(weights)
            if self.config.input_feeding:
                state.output = self._output(top, context, word)
                outputs.append(state.output)
        out = torch.stack(outputs, 1) if outputs else self._output(torch.stack(tops, 1), torch.stack(contexts, 1), x)
        return (out, torch.stack(shown, 2)[:, None]) if attention else out  # type: ignore[arg-type]

    # --- step by step ---

    @torch.no_grad()
    def start(self, memory: Memory, beams: int = 1) -> RNNState:
        """A state before the first token, for ``beams`` hypotheses per sentence."""
        return self._begin(memory, beams)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: RNNState, *, attention: bool = False) -> Any:
        """Read one token per hypothesis, [R]; logits of the next, [R, V], and the state, changed in place.

        With ``attention`` also the weights of this step, [R, 1, heads, S].
        """
        word = self.dropout(self.embedding(tokens))
        top, context, weights = self._advance(word, state, attention)
        output = self._output(top, context, word)
        if self.config.input_feeding:
            state.output = output
        logits = self.logits(output)
        return (logits, state, weights[:, None]) if attention else (logits, state)  # type: ignore[index]

    def _begin(self, memory: Memory, beams: int) -> RNNState:
        """Lower the keys once, and compute s_0 from the mean of h."""
        if memory.states is None or memory.lengths is None:
            raise ValueError("expected a memory from this model's encode()")
        c, h, lengths = self.config, memory.states, memory.lengths
        values = h.unflatten(-1, (c.heads, -1)).transpose(1, 2)
        keys = Keys(self.score.keys(values).tensors, trusted=True)  # padding is 0 in h
        mean = h.sum(1) / lengths.clamp(min=1)[:, None]
        first = torch.tanh(self.bridge(mean)).repeat_interleave(beams, 0)
        parts = first.split(c.hidden_dim, -1)
        hidden = [tuple(parts[i : i + self._parts]) for i in range(0, len(parts), self._parts)]
        output = first.new_zeros(len(first), c.dim) if c.input_feeding else None
        weights = first.new_zeros(len(first), c.heads, h.shape[1]) if c.location_features else None
        state = RNNState(self.score, keys, values, memory.mask, lengths, hidden, output, weights, beams)
        state.copied = beams > 1 and (self.score.positional or weights is not None)
        if state.copied:
            state.keys = Keys(tuple(t.repeat_interleave(beams, 0) for t in keys.tensors), trusted=True)
            state.values = values.repeat_interleave(beams, 0)
        state.remask()
        return state

    def _advance(self, word: Tensor, state: RNNState, attention: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """One step of the recurrence: s_t and c_t, [R, D], and α_t, [R, H, S], if it is needed."""
        context, weights = self._look(state.hidden[-1][0], state, attention)
        parts = [word, context] if state.output is None else [word, context, state.output]
        x = torch.cat(parts, -1)
        for i, cell in enumerate(self.cells):
            new = cell(x, state.hidden[i] if self._parts == 2 else state.hidden[i][0])
            state.hidden[i] = new if self._parts == 2 else (new,)
            x = self.dropout(state.hidden[i][0])
        state.length += 1
        return x, context, weights

    def _look(self, s: Tensor, state: RNNState, attention: bool) -> tuple[Tensor, Tensor | None]:
        """c_t of the query s_{t−1}: [R, D] → [R, D], and the weights if requested or needed by the next step."""
        side = 1 if state.copied else state.beams
        q = s.view(-1, side, self.config.heads, s.shape[-1] // self.config.heads).transpose(1, 2)
        keys: Tensor | Keys = state.keys if state.weights is None else self._add_location(state.keys, state.weights)
        if state.weights is None and has_observer():
            keys = state.values  # an observer sees the states before lowering
        options: dict[str, Any] = {"score": self.score, "mask": state.mask, "offset": state.length}
        if state.weights is None and not attention:
            # with one query the dense weights are no larger than the keys: the reference is fastest on a CPU
            dense = side == 1 and s.device.type == "cpu" and not self.score.dot_shaped
            out = attend(q, keys, state.values, backend="reference" if dense else "auto", **options)
            return out.transpose(1, 2).reshape(s.shape), None
        shown = attend_densely(q, keys, state.values, **options)
        weights = shown.weights.transpose(1, 2).flatten(0, 1)
        if state.weights is not None:
            state.weights = weights
        return shown.context.transpose(1, 2).reshape(s.shape), weights

    def _add_location(self, keys: Keys, previous: Tensor) -> Keys:
        """The lowered keys of this step, with the location features of the previous weights [R, H, S]."""
        features = self.location(previous.flatten(0, 1)[:, None]).mT  # [R · H, S, features]
        moved = self.location_proj(features).unflatten(0, previous.shape[:2])
        if isinstance(self.score, Additive):
            return Keys((keys.tensors[0] + moved,), trusted=True)
        return Keys((*keys.tensors, moved), trusted=True)

    def _output(self, top: Tensor, context: Tensor, word: Tensor) -> Tensor:
        """o_t."""
        out: Tensor = self.dropout(torch.tanh(self.readout(torch.cat((top, context, word), -1))))
        return out

"""A reader: finds the start and end tokens of a question's answer in a context.

Shapes: N items, Q question tokens, S context tokens, E model width. Output position 0 stands for "no answer",
position 1 + j for context token j.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.attention.call import attend, has_observer, steps
from regard.common.module import Module
from regard.mask import Dense, Lengths
from regard.models._memory import lengths_of, padding
from regard.models._scores import ScorePlace, ScoreSpec, make_score
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn import EncoderLayer
from regard.score import Score
from regard.score.terms import Keys
from regard.trace import record


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(TransformerConfig):
    """The configuration of a reader: a Transformer's encoder, and how question and context interact.

    With ``joint`` they are encoded as one text, so that every self-attention layer connects them, as in BERT.
    Otherwise the same encoder encodes them separately, one attention in each direction connects them with
    ``cross_score`` (any score; BiDAF's trilinear by default), and ``model_layers`` layers read the result.
    ``pretrained`` names the source of the encoder's initial weights.
    """

    decoder_layers: int = 0
    cross_score: ScoreSpec = "trilinear"
    joint: bool = False
    model_layers: int = 2
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive("encoder_layers", "model_layers")
        if self.decoder_layers:
            raise ValueError(
                f"ReaderConfig: a reader has no decoder: decoder_layers must be 0, got {self.decoder_layers}"
            )


class Reader(Module):
    """Predicts the start and the end of an answer.

    >>> reader = Reader(ReaderConfig(vocab_size=50, dim=16, ffn_dim=32, heads=2, encoder_layers=1))
    >>> question, context = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]]), torch.tensor([[8, 9, 2], [6, 2, 0]])
    >>> reader(question, context).shape
    torch.Size([2, 2, 4])
    """

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        c = self.config = config
        self.pad_id, self.bos_id, self.eos_id = c.pad_id, c.bos_id, c.eos_id
        self.encoder = Transformer(c)
        self.flow = None if c.joint else Flow(c)
        self.output = nn.Linear(c.dim, 2) if c.joint else None

    def forward(self, question: Tensor, context: Tensor) -> Tensor:
        """[N, Q] and [N, S] → logits of start and end, [N, 2, 1 + S]; −inf at eos and padding.

        A question is bos … eos, a context … eos, both padded at the end.
        """
        states = self._joint(question, context) if self.flow is None else self.flow(*self._apart(question, context))
        logits = states if self.output is None else self.output(states)
        length = lengths_of(context, self.pad_id)[:, None]
        place = torch.arange(logits.shape[1], device=logits.device)
        hidden = (place >= length) & (place > 0)  # eos is at place `length`
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits.masked_fill(hidden[..., None], -torch.inf).transpose(1, 2)

    @torch.no_grad()
    def attention(self, question: Tensor, context: Tensor) -> Tensor:
        """How much each question token attends to each context token, [N, Q, S]; rows sum to 1.

        In a joint reader it is the mean of the self-attention of all layers and heads, restricted to the context.
        """
        inside = torch.arange(context.shape[1], device=context.device) < lengths_of(context, self.pad_id)[:, None] - 1
        if self.flow is None:
            rows = torch.arange(question.shape[1])
            with record(self.encoder, inputs=False) as trace:
                self._joint(question, context)
            layers = range(len(self.encoder.encoder))
            items = [torch.stack([trace.weights(k, rows=rows, item=i) for k in layers]) for i in range(len(question))]
            weights = torch.stack([each.float().mean((0, 1))[:, question.shape[1] :] for each in items])
        else:
            weights = self.flow.weights(*self._apart(question, context))[..., 1:]
        weights = weights * inside[:, None]
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)

    def _joint(self, question: Tensor, context: Tensor) -> Tensor:
        """[N, 1 + S, E], encoded as one text; the context's positions follow the question's, ignoring its padding."""
        c, tokens = self.config, torch.cat((question, context), 1)
        asked, length = lengths_of(question, self.pad_id), lengths_of(tokens, self.pad_id)
        if c.max_length is not None and tokens.device.type == "cpu" and int(length.max()) > c.max_length:
            raise ValueError(f"there are {c.max_length} positions, got {int(length.max())} tokens: cut the context")
        first = torch.arange(question.shape[1], device=tokens.device).expand(len(tokens), -1)
        then = asked[:, None] + torch.arange(context.shape[1], device=tokens.device)
        places = torch.cat((first, then), 1)
        places = places if c.max_length is None else places.clamp(max=c.max_length - 1)
        kinds = torch.cat((torch.zeros_like(question), torch.ones_like(context)), 1) if c.segments else None
        seen = (tokens != self.pad_id)[:, None, None, :]
        states = self.encoder.encode(tokens, mask=Dense(seen), positions=places, segments=kinds).states
        assert states is not None
        return torch.cat((states[:, :1], states[:, question.shape[1] :]), 1)

    def _apart(self, question: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States and lengths of the question, [N, Q, E], and of bos and the context, [N, 1 + S, E]."""
        context = torch.cat((torch.full_like(context[:, :1], self.bos_id), context), 1)
        out: list[Tensor] = []
        for kind, tokens in enumerate((question, context)):
            kinds = torch.full_like(tokens, kind) if self.config.segments else None
            lengths = lengths_of(tokens, self.pad_id)
            states = self.encoder.encode(tokens, lengths=lengths, segments=kinds).states
            assert states is not None
            out += [states, lengths]
        return out[0], out[1], out[2], out[3]


class Flow(Module):
    """Attention between question and context in both directions, and layers on top.

    With context states h_i, question states u_j, and any score e:

        a_i = Σ_j softmax_j(e(h_i, u_j)) u_j         the question, as context token i reads it
        c_j = Σ_i softmax_i(e'(u_j, h_i)) h_i        the context, as question token j reads it
        b_i = Σ_j softmax_j(e(h_i, u_j)) c_j
        g_i = W [h_i; a_i; h_i∘a_i; h_i∘b_i]

    as in BiDAF (Seo et al. 2017, https://arxiv.org/abs/1611.01603) with the second direction of DCN and QANet (Yu et
    al. 2018, https://arxiv.org/abs/1804.09541).
    """

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        c = config
        one = ScorePlace(1, 1, c.dim, c.dim)  # one head over the whole width, without projections
        self.to_question, self.to_context = make_score(c.cross_score, one), make_score(c.cross_score, one)
        self.mix = nn.Linear(4 * c.dim, c.dim)
        self.dropout = nn.Dropout(c.dropout)
        make = [make_score(c.self_score, c.place()) for _ in range(c.model_layers + 1)]
        layers = [EncoderLayer(c.dim, c.heads, score=score, **c.layer()) for score in make]
        self.layers, self.last = nn.ModuleList(layers[:-1]), layers[-1]
        self.start, self.end = nn.Linear(2 * c.dim, 1), nn.Linear(2 * c.dim, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(c.dim, c.norm_eps) for _ in range(2))
        for layer in layers:
            layer.attention.trusted = True
        self._start()

    def _start(self) -> None:
        for linear in (self.mix, self.start, self.end):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, u: Tensor, asked: Tensor, h: Tensor, length: Tensor) -> Tensor:
        """States [N, Q, E] and lengths of the question, [N, 1 + S, E] and lengths of the context → [N, 1 + S, 2]."""
        with torch.autocast(u.device.type, enabled=False):  # similarities need more than half precision
            u, h = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (u, h))
            u1, h1 = u.unsqueeze(1), h.unsqueeze(1)
            c = attend(u1, _keys(self.to_context, h1), h1, score=self.to_context, mask=Lengths(length))
            asks = _keys(self.to_question, u1)
            both = attend(h1, asks, torch.cat((u1, c), -1), score=self.to_question, mask=Lengths(asked))
        a, b = both.squeeze(1).chunk(2, -1)
        g = self.mix(self.dropout(torch.cat((h, a, h * a, h * b), -1)))
        x, seen = g, padding(length, h.shape[1])
        for layer in self.layers:
            x = layer(x, mask=seen)
        first, second = (norm(y) for norm, y in zip(self.norms, (x, self.last(x, mask=seen)), strict=True))
        starts, ends = self.start(torch.cat((g, first), -1)), self.end(torch.cat((g, second), -1))
        return torch.cat((starts, ends), -1)

    def weights(self, u: Tensor, asked: Tensor, h: Tensor, length: Tensor) -> Tensor:
        """The question's attention to the context, [N, Q, 1 + S]."""
        u1, h1 = u.unsqueeze(1), h.unsqueeze(1)
        return steps(u1, h1, h1, score=self.to_context, mask=Lengths(length)).weights.squeeze(1)


def _keys(score: Score, x: Tensor) -> Tensor | Keys:
    """The keys, marked as finite on a GPU to skip that check: our own states are finite also where masked."""
    return x if x.device.type == "cpu" or has_observer() else replace(score.keys(x), trusted=True)

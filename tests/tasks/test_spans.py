"""Windows over contexts, spans of tokens and their probabilities, and the reader that is read with."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decode import NoProbabilities
from regard.models import Reader, ReaderConfig
from regard.tasks.qa.spans import WindowSize, owners, pad_tokens, read, windows

SCORES = ["trilinear", "dot", "additive", "general", "bilinear", "cosine", "relative", "location"]


def reader(**changes):
    torch.manual_seed(2)
    sizes = {"vocab_size": 40, "dim": 16, "ffn_dim": 24, "heads": 2, "encoder_layers": 2, "model_layers": 1}
    return Reader(ReaderConfig(**sizes | {"dropout": 0.0} | changes)).double().eval()


def joint(**changes):
    more = {
        "joint": True,
        "positions": "learned",
        "max_length": 64,
        "segments": 2,
        "embedding_norm": True,
        "norm": "post",
    }
    return reader(**more | changes)


# --- windows ---


@given(st.integers(1, 300), st.integers(1, 80), st.integers(1, 100))
def test_windows_cover_everything_and_each_start_has_one_owner(length, room, stride):
    cuts = windows(length, room, stride)
    seen = np.zeros(length, int)
    for start, end in cuts:
        assert 0 <= start < end <= length and end - start <= room
        seen[start:end] += 1
    assert seen.min() >= 1 and cuts[-1][1] == length
    owner = owners(cuts, length)
    for token in range(length):
        start, end = cuts[owner[token]]
        assert start <= token < end
        own = min(token - start if start else length, end - 1 - token if end < length else length)
        for a, b in cuts:  # nobody sees more
            if a <= token < b:
                assert own >= min(token - a if a else length, b - 1 - token if b < length else length)


def test_windows_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="expected room and stride of at least 1, got 0 and 3"):
        windows(5, 0, 3)
    with pytest.raises(ValueError, match="window: expected at least 36 tokens"):
        WindowSize.of(20, 5, None)
    assert WindowSize.of(384, 128, 64).window == 64 and WindowSize.of(50, 5, None).most == 15
    assert WindowSize(384, 128).cuts(341, 100) == [
        (0, 40),
        (20, 60),
        (40, 80),
        (60, 100),
    ]  # a long question: half is shared


# --- spans ---


class Told:
    """A reader whose logits are numbers of the tokens themselves, the same in whatever window they stand."""

    bos_id, eos_id, pad_id = 1, 2, 0

    def __init__(self, starts, ends, null=0.0):
        self.starts, self.ends, self.null = starts, ends, null

    def parameters(self):
        return iter([torch.zeros(1)])

    def __call__(self, question, context):
        out = torch.full((len(context), 2, 1 + context.shape[1]), -torch.inf, dtype=torch.float64)
        out[:, :, 0] = self.null
        for row, tokens in enumerate(context.tolist()):
            for place, token in enumerate(tokens):
                if token > 2:
                    out[row, 0, 1 + place], out[row, 1, 1 + place] = self.starts[token], self.ends[token]
        return out


def every_span(model, context, longest):
    spans = {
        (i, j + 1): float(model.starts[context[i]] + model.ends[context[j]] - 2 * model.null)
        for i, j in itertools.product(range(len(context)), repeat=2)
        if i <= j < i + longest
    }
    total = 1 + sum(np.exp(score) for score in spans.values())
    return {span: np.exp(score) / total for span, score in spans.items()}, 1 / total


@pytest.mark.parametrize("length", [1, 2, 20, 33, 90, 200])
def test_windows_stitch_to_what_one_window_gives(length):
    """All spans, by brute force over the whole context, whatever the windows are."""
    draw = np.random.default_rng(length)
    model = Told(draw.normal(size=500), draw.normal(size=500), null=0.3)
    context, question = draw.permutation(np.arange(3, 500))[:length].tolist(), [5, 6]
    expected, none = every_span(model, context, longest=6)
    ranked = sorted(expected.items(), key=lambda item: -item[1])[:5]
    for room in (WindowSize(1000, 10), WindowSize(50, 15), WindowSize(41, 9)):
        (found,) = read(model, [(question, context)], room, longest=6, count=5, batch_tokens=64)
        assert [(s.start, s.end) for s in found.spans] == [span for span, _ in ranked]
        np.testing.assert_allclose([s.probability for s in found.spans], [p for _, p in ranked], rtol=1e-6)
        assert found.no_answer == pytest.approx(none, rel=1e-6)


def test_many_questions_at_once_are_each_their_own():
    model = reader()
    draw = np.random.default_rng(0)
    pairs = [(draw.integers(3, 40, n).tolist(), draw.integers(3, 40, m).tolist()) for n, m in [(3, 9), (1, 80), (7, 1)]]
    together = read(model, pairs, WindowSize(48, 10), count=3)
    for pair, found in zip(pairs, together, strict=True):
        (alone,) = read(model, [pair], WindowSize(48, 10), count=3)
        assert [s[:2] for s in alone.spans] == [s[:2] for s in found.spans]
        np.testing.assert_allclose([s[2] for s in alone.spans], [s[2] for s in found.spans], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_without_probabilities_are_told(value):
    everywhere = np.full(40, value)
    with pytest.raises(NoProbabilities):
        read(Told(everywhere, everywhere, null=value), [([5, 6], [*range(3, 20)])], WindowSize(48, 10))


# --- the reader ---


@pytest.mark.parametrize("make", [reader, joint])
def test_padding_changes_nothing(make):
    model = make()
    questions, contexts = [[5, 6, 7], [8]], [[9, 10, 11, 12], [13, 14, 15, 16, 17, 18]]
    with torch.no_grad():
        both = model(*pad_tokens(model, questions, contexts, multiple=8))
        assert both.shape == (2, 2, 9)
        for i in range(2):
            alone = model(*pad_tokens(model, questions[i : i + 1], contexts[i : i + 1]))[0]
            size = 1 + len(contexts[i])
            assert (both[i, :, :size] - alone[:, :size]).abs().max() < 1e-12
            assert (
                both[i, :, size:].isinf().all() and alone[:, size:].isinf().all() and alone[:, :size].isfinite().all()
            )


def test_a_joint_reader_reads_one_text():
    """The padded layout gives what the encoder gives for [CLS] question [SEP] context [SEP] side by side."""
    model = joint()
    question, context = [5, 6, 7], [9, 10, 11, 12]
    tokens = torch.tensor([[1, *question, 2, *context, 2]])
    kinds = torch.tensor([[0] * 5 + [1] * 5])
    with torch.no_grad():
        states = model.encoder.encode(tokens, segments=kinds).states
        expected = model.output(states)[0, [0, 5, 6, 7, 8]].T
        got = model(*pad_tokens(model, [question], [context], multiple=16))[0, :, :5]
    assert (got - expected).abs().max() < 1e-12
    with pytest.raises(ValueError, match="there are 64 positions, got 66 tokens: cut the context"):
        model(*pad_tokens(model, [[5] * 3], [[6] * 60]))


@pytest.mark.parametrize("score", SCORES)
def test_any_score_is_a_similarity(score):
    model = reader(cross_score=score)
    tensors = pad_tokens(model, [[5, 6, 7], [8, 5]], [[9, 10, 11], [5, 14, 15]])
    logits = model(*tensors)
    logits[logits.isfinite()].sum().backward()
    for part in (model.flow.to_question, model.flow.to_context):
        assert all(p.grad is not None for p in part.parameters())
    other = model(pad_tokens(model, [[8, 6, 7], [8, 5]], [[9], [5]])[0], tensors[1])
    assert (logits - other)[0].isfinite().any() and (logits[0, :, :4] - other[0, :, :4]).abs().max() > 1e-6
    assert (logits[1, :, :4] - other[1, :, :4]).abs().max() < 1e-12


@pytest.mark.parametrize("make", [reader, joint])
def test_attention_is_a_distribution_over_the_context(make):
    model = make()
    questions, contexts = [[5, 6, 7], [8]], [[9, 10, 11, 12], [13, 14]]
    weights = model.attention(*pad_tokens(model, questions, contexts))
    assert weights.shape == (2, 5, 5)
    for i, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        inside = weights[i, : len(question) + 2]
        assert (inside.sum(-1) - 1).abs().max() < 1e-6 and (inside[:, len(context) :] == 0).all()
        assert (inside[:, : len(context)] > 0).all()
    alone = model.attention(*pad_tokens(model, questions[1:], contexts[1:]))
    assert (weights[1, :3, :2] - alone[0, :3, :2]).abs().max() < 1e-6


def test_configurations_that_make_no_sense():
    with pytest.raises(ValueError, match="a reader has no decoder: decoder_layers must be 0, got 2"):
        reader(decoder_layers=2)
    with pytest.raises(ValueError, match="model_layers must be a whole number at least 1"):
        reader(model_layers=0)

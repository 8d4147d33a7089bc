"""Decoding against enumeration and a plain search, over a model whose next token depends on all before it."""

from __future__ import annotations

import math

import pytest
import torch
from enumeration import BOS, EOS, PAD, State, Toy, close, enumerated, memory
from torch import Tensor

from regard.decode import Limits, NoProbabilities, beam, greedy, sample, score
from regard.decode._beam import _top
from regard.models import RNNConfig, RNNSeq2Seq, Transformer, TransformerConfig

# --- beam ---


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_that_holds_everything_finds_the_best(alpha: float, seed: int) -> None:
    model, longest = Toy(6, seed=seed), 4  # 3 words: at most 81 open hypotheses
    found = beam(model, memory(3, 1, 7), beams=128, best=10, alpha=alpha, exact=True, limits=Limits(maximum=longest))
    for sentence, row in zip((3, 1, 7), found, strict=True):
        expected = enumerated(model, sentence, 6, longest, alpha)[:10]
        assert len(row) == 10
        for hypothesis, entry in zip(row, expected, strict=True):
            close(hypothesis, entry)


def plain_beam(model: Toy, sentence: int, vocabulary: int, k: int, alpha: float, longest: int, exact: bool) -> list:
    """The same search, one hypothesis at a time."""
    live, ended, t = [((), 0.0)], [], 0
    while live:
        options = []
        for tokens, total in live:
            logits = model.logits(model.features(torch.tensor([[BOS, *tokens]]), torch.tensor([sentence])))[0]
            log_p = logits.log_softmax(-1).tolist()
            allowed = [EOS] if t >= longest else [w for w in range(vocabulary) if w not in (PAD, BOS)]
            options += [((*tokens, w), total + log_p[w]) for w in allowed]
        options.sort(key=lambda o: -o[1])
        ended += [(total / (t + 1) ** alpha, tokens) for tokens, total in options[:k] if tokens[-1] == EOS]
        ended = sorted(ended, reverse=True)[:k]
        live = [o for o in options if o[0][-1] != EOS][:k]
        t += 1
        if live and ended:
            top = live[0][1]
            if ended[0][0] >= top / (longest + 1) ** alpha:
                break
            if not exact and len(ended) == k and ended[0][0] >= top / t**alpha:
                break
    return ended


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_beam_is_the_plain_search(beams: int, alpha: float, exact: bool) -> None:
    sentences = (4, 2, 9, 1, 7, 3)
    for seed in range(4):
        model = Toy(9, seed=seed)
        limits = Limits(ratio=1.0, extra=2)
        found = beam(model, memory(*sentences), beams=beams, alpha=alpha, exact=exact, limits=limits)
        for sentence, row in zip(sentences, found, strict=True):
            (value, tokens) = plain_beam(model, sentence, 9, beams, alpha, sentence + 2, exact)[0]
            close(row[0], (value, tokens, model.log_probs(sentence, tokens)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_one_beam_is_greedy(seed: int, alpha: float) -> None:
    model, source = Toy(12, seed=seed), memory(5, 2, 8, 3)
    one, plain = beam(model, source, beams=1, alpha=alpha), greedy(model, source)
    for (a,), b in zip(one, plain, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.log_probs.tolist() == pytest.approx(b.log_probs.tolist())
        assert a.score == pytest.approx(b.score / len(b.tokens) ** alpha)


def test_a_sentence_is_decoded_as_if_alone() -> None:
    model, lengths = Toy(30), (5, 2, 8, 3, 12, 1)
    for search in (lambda m: beam(model, m, beams=3), lambda m: [[h] for h in greedy(model, m)]):
        together = search(memory(*lengths))
        for n, row in zip(lengths, together, strict=True):
            (alone,) = search(memory(n))
            assert [h.tokens.tolist() for h in row] == [h.tokens.tolist() for h in alone]


def test_the_batch_shrinks_as_sentences_end() -> None:
    for search in (greedy, lambda m, s, **k: beam(m, s, beams=2, **k), lambda m, s, **k: sample(m, s, seed=1, **k)):
        model = Toy(30)
        search(model, memory(1, 5, 9), limits=Limits(ratio=1.0, extra=0))
        assert model.widths[0] == 3 and model.widths[-1] < 3
        assert model.widths == sorted(model.widths, reverse=True)


def test_fewer_outputs_than_asked_for() -> None:
    model = Toy(4)  # one word
    (row,) = beam(model, memory(3), beams=5, best=5, limits=Limits(maximum=2))
    assert sorted(tuple(h.tokens.tolist()) for h in row) == [(2,), (3, 2), (3, 3, 2)]


def test_no_sentences() -> None:
    model = Toy(5)
    assert beam(model, memory()) == [] and greedy(model, memory()) == [] and sample(model, memory()) == []


def test_top_is_topk() -> None:
    for size in (4133, 4160, 10_000):  # with and without something left over
        check_top(torch.randn(3, 5, size))


def check_top(x: torch.Tensor) -> None:
    x[0, 0, 7:4000] = -math.inf
    for k in (1, 4, 10):
        values, index = _top(x, k)
        torch.testing.assert_close(values, x.topk(k).values)
        torch.testing.assert_close(x.gather(-1, index), values)


# --- limits, prefixes, bans ---

SEARCHES = {
    "greedy": lambda m, s, **k: [[h] for h in greedy(m, s, **k)],
    "beam": lambda m, s, **k: beam(m, s, beams=4, best=4, **k),
    "sample": lambda m, s, **k: sample(m, s, samples=6, seed=3, **k),
}
every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


@every_search
def test_lengths_keep_their_limits(search) -> None:
    for seed in range(5):
        model = Toy(8, seed=seed)
        found = search(model, memory(1, 4, 9), limits=Limits(minimum=3, ratio=0.5, extra=3, maximum=6))
        for longest, row in zip((4, 5, 6), found, strict=True):
            for h in row:
                assert 3 <= len(h.tokens) - 1 <= longest
                assert h.tokens[-1] == EOS and EOS not in h.tokens[:-1]


def test_a_minimum_finds_the_best_of_those_left() -> None:
    model = Toy(6, seed=1)
    ((h,),) = beam(model, memory(4), beams=128, exact=True, limits=Limits(minimum=3, maximum=4))
    close(h, enumerated(model, 4, 6, 4, 1.0, shortest=3)[0])


@every_search
def test_outputs_start_with_their_prefix(search) -> None:
    model, prefix = Toy(9), torch.tensor([[5, 3, 3], [7, PAD, PAD], [PAD, PAD, PAD]])
    found = search(model, memory(2, 4, 6), prefix=prefix, limits=Limits(maximum=5))
    for row, wanted, n in zip(found, prefix.tolist(), (3, 1, 0), strict=True):
        for h in row:
            assert h.tokens[:n].tolist() == wanted[:n] and len(h.tokens) <= 6
    free = search(model, memory(2, 4, 6), limits=Limits(maximum=5))
    assert [h.tokens.tolist() for h in free[2]] == [h.tokens.tolist() for h in found[2]]


def test_a_prefix_leaves_the_best_of_those_that_have_it() -> None:
    model = Toy(6, seed=2)
    ((h,),) = beam(model, memory(4), beams=128, exact=True, limits=Limits(maximum=4), prefix=torch.tensor([[4, 3]]))
    close(h, next(entry for entry in enumerated(model, 4, 6, 4, 1.0) if entry[1][:2] == (4, 3)))


@every_search
def test_banned_tokens_do_not_come(search) -> None:
    for seed in range(5):
        found = search(Toy(7, seed=seed), memory(3, 5), ban=[4, 6], limits=Limits(maximum=9))
        assert {t for row in found for h in row for t in h.tokens.tolist()} <= {2, 3, 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": torch.tensor([[3], [4]])}, r"prefix must be token numbers \[1, P\]"),
        ({"prefix": torch.tensor([[EOS]])}, r"prefix holds \[2\]"),
        ({"prefix": torch.tensor([[5]]), "ban": [5]}, r"prefix holds \[5\]"),
        ({"ban": [EOS]}, "end symbol, 2, cannot be banned"),
    ],
)
@every_search
def test_rules_that_contradict_themselves(search, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(Toy(6), memory(3), **options)


def test_arguments_are_checked() -> None:
    model, source = Toy(6), memory(3)
    with pytest.raises(ValueError, match="minimum ≤ maximum"):
        Limits(minimum=4, maximum=3)
    with pytest.raises(ValueError, match="negative"):
        Limits(ratio=-1.0)
    with pytest.raises(ValueError, match="best ≤ beams"):
        beam(model, source, beams=2, best=3)
    with pytest.raises(ValueError, match="temperature > 0"):
        sample(model, source, temperature=0.0)
    model.max_length = 3  # type: ignore[assignment]
    with pytest.raises(ValueError, match="minimum=4, but the model has 3 positions"):
        greedy(model, source, limits=Limits(minimum=4))


def test_a_model_with_few_positions_is_not_asked_for_more() -> None:
    model = Toy(8)
    model.max_length = 3  # type: ignore[assignment]
    assert all(len(h.tokens) <= 3 for h in sample(model, memory(9), samples=50, seed=0)[0])
    assert len(model.widths) <= 3


# --- sampling ---


def chi_square_bound(free: int) -> float:
    """Exceeded with probability below 1e-6 (Laurent and Massart 2000): n + 2√(nx) + 2x at x = log 10⁶."""
    x = math.log(1e6)
    return free + 2 * math.sqrt(free * x) + 2 * x


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"temperature": 2.0, "top_k": 4}, {"top_p": 0.7}, {"top_k": 5, "top_p": 0.9}]
)
def test_samples_have_the_models_distribution(options: dict) -> None:
    model, count = Toy(12, sharpness=0.35), 20_000
    (row,) = sample(model, memory(3), samples=count, seed=0, limits=Limits(maximum=1), **options)
    seen = torch.bincount(torch.tensor([h.tokens[0].item() for h in row]), minlength=12).double()
    logits = model.logits(model.features(torch.tensor([[BOS]]), torch.tensor([3])))[0]
    logits[[PAD, BOS]] = -math.inf
    p = (logits / options.get("temperature", 1.0)).softmax(-1)
    order = p.argsort(descending=True).tolist()
    left = order[: options.get("top_k", 10)]
    p = torch.tensor([p[i].item() if i in left else 0.0 for i in range(12)], dtype=torch.float64)
    p /= p.sum()
    total, nucleus = 0.0, []
    for i in left:
        if total < options.get("top_p", 1.0):
            nucleus.append(i)
        total += p[i].item()
    p = torch.tensor([p[i].item() if i in nucleus else 0.0 for i in range(12)], dtype=torch.float64)
    expected = p / p.sum() * count
    assert (seen[expected == 0] == 0).all()
    assert expected[nucleus].min() > 20  # large enough for the statistic to be what its name says
    statistic = ((seen - expected)[nucleus] ** 2 / expected[nucleus]).sum().item()
    assert statistic < chi_square_bound(len(nucleus) - 1)


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e300])
def test_any_finite_temperature_draws(temperature: float) -> None:
    """Divided by it as they are, logits would all be infinite, or their differences nothing."""
    model, limits = Toy(12), Limits(maximum=4)
    (row,) = sample(model, memory(3), samples=200, temperature=temperature, seed=0, limits=limits)
    drawn = {tuple(h.tokens.tolist()) for h in row}
    if temperature < 1:
        assert drawn == {tuple(greedy(model, memory(3), limits=limits)[0].tokens.tolist())}
    else:
        first = [tokens[0] for tokens in drawn]
        assert {*first} == {*range(12)} - {PAD, BOS}
    with pytest.raises(ValueError, match="finite temperature"):
        sample(model, memory(3), temperature=math.inf)


def test_a_seed_repeats_the_samples() -> None:
    draw = [sample(Toy(20, sharpness=0.5), memory(6, 3), samples=3, seed=s) for s in (5, 5, 6)]
    tokens = [[[h.tokens.tolist() for h in row] for row in found] for found in draw]
    assert tokens[0] == tokens[1] != tokens[2]


def test_one_likeliest_token_is_greedy() -> None:
    model, source = Toy(20), memory(6, 3)
    drawn = sample(model, source, top_k=1, seed=0)
    assert [row[0].tokens.tolist() for row in drawn] == [h.tokens.tolist() for h in greedy(model, source)]


# --- scores of given outputs, attention, real models ---


@every_search
def test_scores_are_those_of_forced_decoding(search) -> None:
    model, source = Toy(15), memory(4, 7)
    for i, row in enumerate(search(model, source)):
        for h in row:
            (again,) = score(model, source.select(torch.tensor([i])), h.tokens[None])
            assert again.log_probs.tolist() == pytest.approx(h.log_probs.tolist(), abs=1e-9)
            assert again.score == pytest.approx(h.log_probs.sum().item(), abs=1e-9)
            assert again.tokens.tolist() == h.tokens.tolist()


def test_scores_end_at_the_padding() -> None:
    model = Toy(9)
    long, short = score(model, memory(4, 7), torch.tensor([[5, 6, 7, EOS], [5, EOS, PAD, PAD]]))
    assert long.log_probs.tolist() == pytest.approx(model.log_probs(4, (5, 6, 7, EOS)))
    assert short.log_probs.tolist() == pytest.approx(model.log_probs(7, (5, EOS)))


def real_models():
    torch.manual_seed(3)
    sizes = {"vocab_size": 300, "dim": 16, "heads": 2}
    layers = {"ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 2}
    yield Transformer(TransformerConfig(**sizes, **layers, cross_score=[[1, "dot"], [1, "additive"]]))
    yield Transformer(TransformerConfig(**sizes, **layers, self_score="rotary", cross_score="relative", norm="post"))
    yield RNNSeq2Seq(RNNConfig(**sizes, hidden_dim=16, score="general"))
    yield RNNSeq2Seq(RNNConfig(**sizes, hidden_dim=16, cell="lstm", location_features=2))


@every_search
@pytest.mark.parametrize("which", range(4))
def test_real_models_search_as_they_score(search, which: int) -> None:
    model = list(real_models())[which].double().eval()
    source = torch.tensor([[5, 6, 7, 8, 2], [8, 9, 2, 0, 0], [3, 2, 0, 0, 0]])
    encoded = model.encode(source)
    found = search(model, encoded, attention=True, limits=Limits(maximum=9))
    for i, row in enumerate(found):
        n = int(encoded.lengths[i])
        for h in row:
            (again,) = score(model, encoded.select(torch.tensor([i])), h.tokens[None], attention=True)
            torch.testing.assert_close(h.log_probs, again.log_probs, rtol=0, atol=1e-9)
            assert h.attention.shape == (model(source, source, attention=True)[1].shape[1], 2, len(h.tokens), n)
            torch.testing.assert_close(h.attention, again.attention, rtol=0, atol=1e-9)
            torch.testing.assert_close(h.attention.sum(-1), torch.ones_like(h.attention[..., 0]))


def test_a_model_in_training_decodes_without_dropout_and_goes_on_training() -> None:
    model = next(real_models()).train()
    source = torch.tensor([[5, 6, 7, 8, 2]])
    with torch.no_grad():
        encoded = model.eval().encode(source)
    model.train()
    first, second = (greedy(model, encoded)[0] for _ in range(2))
    assert model.training and torch.equal(first.log_probs, second.log_probs)


# --- it ends ---


class Broken(Toy):
    """From token ``t`` on, the logits of sentences of this length are all ``value``."""

    def __init__(self, value: float, t: int, sentence: int = 4) -> None:
        super().__init__(8)
        self.value, self.t, self.broken = value, t, sentence

    def features(self, history: Tensor, sentences: Tensor) -> Tensor:
        good = super().features(history, sentences)
        if history.shape[1] <= self.t:
            return good
        return good.masked_fill((sentences == self.broken)[:, None], math.nan)

    def logits(self, features: Tensor) -> Tensor:
        found = super().logits(features.nan_to_num())
        return found.masked_fill(features.isnan().any(-1, keepdim=True), self.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("t", [0, 2])
@every_search
def test_a_model_without_probabilities_is_refused(search, t: int, value: float) -> None:
    limits = Limits(minimum=4, maximum=10**9)  # as good as none
    with pytest.raises(NoProbabilities, match="the model gives no probabilities"):
        search(Broken(value, t), memory(3, 4, 5), limits=limits)
    assert all(search(Broken(value, t), memory(3, 5), limits=Limits(maximum=9)))  # of the others it does
    with pytest.raises(NoProbabilities):
        score(Broken(value, 0), memory(4), torch.tensor([[3, 4, EOS]]))


@every_search
def test_what_may_not_come_at_all_is_an_error_too(search) -> None:
    class Never(Toy):
        """It never ends: the end symbol has no probability, also where nothing else may come."""

        def logits(self, features: Tensor) -> Tensor:
            found = super().logits(features)
            found[..., EOS] = -math.inf
            return found

    with pytest.raises(NoProbabilities):
        search(Never(8), memory(3), limits=Limits(maximum=5))


@every_search
def test_every_search_has_a_last_step(search) -> None:
    class Endless(Toy):
        """It wants to go on for ever."""

        def logits(self, features: Tensor) -> Tensor:
            found = super().logits(features)
            found[..., EOS] = -1e4
            return found

        def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
            assert state.history.shape[1] <= 30, "one step too many"
            return super().step(tokens, state)

    found = search(Endless(8), memory(2, 3), limits=Limits(maximum=30))
    assert {len(h.tokens) for row in found for h in row} == {31}

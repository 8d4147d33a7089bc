"""The pointer-generator: its distribution and loss against a plain formula in float64, steps against the whole."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from regard.decode import Limits, NoRepeat, beam, greedy, score
from regard.models import PointerConfig, PointerTransformer
from regard.models.pointer import PointerParts
from regard.tasks.summarization.mixture import mixture_loss
from regard.tasks.summarization.train import SummaryObjective, coverage_loss
from regard.text import PAD

SMALL = {
    "vocab_size": 40,
    "dim": 16,
    "ffn_dim": 24,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "copy_dim": 8,
}
SOURCE = torch.tensor([[5, 6, 7, 6, 9, 2], [8, 5, 2, 0, 0, 0], [11, 12, 13, 2, 0, 0]])
TARGET = torch.tensor([[6, 7, 20, 2], [5, 2, 0, 0], [11, 12, 13, 2]])


def made(**options):
    torch.manual_seed(3)
    model = PointerTransformer(PointerConfig(**SMALL, dropout=0.0, **options)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def shifted(target):
    return torch.cat((torch.ones_like(target[:, :1]), target[:, :-1]), 1)


def plain(model, source, target_in):
    """P(w) word by word, as the formula is written, in float64."""
    model = made_double(model)
    memory = model.encode(source)
    states = memory.states
    h = super(PointerTransformer, model).decode(target_in, memory)
    out = torch.zeros(*target_in.shape, model.config.vocab_size, dtype=torch.float64)
    for n, document in enumerate(source.tolist()):
        length = document.index(model.eos_id)
        for t in range(target_in.shape[1]):
            q, keys = model.copy_query(h[n, t]), model.copy_key(states[n, :length])
            e = model.copy_score(q[None, None, None], keys[None, None], offset=t)[0, 0, 0]
            if model.follow is not None:
                one, two = model.follow.weight @ h[n, t] + model.follow.bias
                read = [None, *target_in[n].tolist()]
                first = [j > 0 and document[j - 1] == read[t + 1] for j in range(length)]
                second = [first[j] and j > 1 and document[j - 2] == read[t] for j in range(length)]
                e = e + one * torch.tensor(first) + two * torch.tensor(second)
            a = e.exp() / e.exp().sum()
            context = (a[:, None] * states[n, :length]).sum(0)
            g = 1 / (1 + math.e ** -(model.gate.weight[0] @ torch.cat((h[n, t], context)) + model.gate.bias[0]))
            z = model.output_weight @ h[n, t]
            written = z.exp() / z.exp().sum()
            copied = torch.stack(
                [a[[j for j, x in enumerate(document[:length]) if x == w]].sum() for w in range(len(z))]
            )
            out[n, t] = g * written + (1 - g) * copied
    return out, model


def made_double(model):
    import copy

    return copy.deepcopy(model).double()


@pytest.mark.parametrize("kind", ["additive", "dot", "general", "rotary", "relative"])
def test_the_distribution_is_the_formula(kind):
    model = made(copy_score=kind)
    with torch.no_grad():
        right, double = plain(model, SOURCE, shifted(TARGET))
        found = double(SOURCE, shifted(TARGET))
        torch.testing.assert_close(found.exp(), right, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))
        torch.testing.assert_close(model(SOURCE, shifted(TARGET)).exp().double(), right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 2])
def test_the_loss_and_its_gradients_are_those_of_the_formula(smoothing, chunk):
    right, double = plain(made(), SOURCE, shifted(TARGET))
    log_p, kept = right.log(), TARGET != PAD
    nll = -log_p.gather(-1, TARGET[..., None])[..., 0][kept].sum()
    wanted = (1 - smoothing) * nll - smoothing * log_p.mean(-1)[kept].sum()
    parameters = [p for p in double.parameters() if p.requires_grad]
    theirs = torch.autograd.grad(wanted, parameters, allow_unused=True)
    pointed = double.point(shifted(TARGET), double.encode(SOURCE))
    found = mixture_loss(pointed, double.output_weight, SOURCE, TARGET, smoothing=smoothing, chunk=chunk)
    torch.testing.assert_close(found, torch.stack((wanted, nll)).detach(), rtol=1e-10, atol=1e-10)
    ours = torch.autograd.grad(found[0], parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    assert any(a is not None and a.abs().max() > 1e-3 for a in ours)


def test_r_drop_is_both_divergences_of_the_mixtures():
    torch.manual_seed(0)
    two = [torch.cat((x, x)) for x in (SOURCE, shifted(TARGET))]
    model = PointerTransformer(PointerConfig(**SMALL, dropout=0.3)).double().train()
    pointed = model.point(two[1], model.encode(two[0]))
    first, second = model.log_probs(pointed, model.encode(two[0]).with_lengths(None)).chunk(2)
    kept = TARGET != PAD
    nll = -torch.stack([x.gather(-1, TARGET[..., None])[..., 0][kept] for x in (first, second)]).sum() / 2
    both = [
        F.kl_div(b, a, log_target=True, reduction="none")[kept].sum() for a, b in ((first, second), (second, first))
    ]
    wanted = nll + 0.25 * 2.0 * sum(both)
    assert both[0] > 0.01
    found = mixture_loss(pointed, model.output_weight, two[0], TARGET, rdrop=2.0)
    torch.testing.assert_close(found[0], wanted.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "options", [{}, {"coverage": True}, {"copy_score": "relative"}, {"told_length": True}, {"follow": False}]
)
def test_steps_and_beams_are_the_whole(options):
    model = made(**options)
    memory = model.encode(SOURCE)
    if options.get("told_length"):
        memory = memory.with_lengths(torch.tensor([5, 0, 3]))
    with torch.no_grad():
        both = shifted(TARGET), shifted(TARGET.roll(1, 1) + 1)  # two hypotheses of each, which change places
        whole = [model.decode(target_in, memory) for target_in in both]
        state = model.start(memory, 2)
        for t in range(TARGET.shape[1]):
            first, second = (t % 2, 1 - t % 2)
            tokens = torch.stack((both[first][:, t], both[second][:, t]), 1).flatten()
            log_p, state = model.step(tokens, state)
            state.reorder(torch.tensor([1, 0, 3, 2, 5, 4]))
            torch.testing.assert_close(log_p[::2], whole[first][:, t], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(log_p[1::2], whole[second][:, t], rtol=1e-4, atol=1e-5)
        state.reorder(torch.tensor([4, 5]), torch.tensor([2]))
        assert state.memory.size == 1
        found = [row[0] for row in beam(model, memory, beams=3, limits=Limits(maximum=6))]
        tokens = torch.nn.utils.rnn.pad_sequence([h.tokens for h in found], True, PAD)
        for h, again in zip(found, score(model, memory, tokens), strict=True):
            torch.testing.assert_close(h.log_probs, again.log_probs, rtol=1e-4, atol=1e-4)


def test_a_model_that_may_not_copy_never_looks_at_the_words_of_its_source():
    model = made(copy=False)
    with torch.no_grad():
        memory = model.encode(SOURCE)
        other = memory.__class__(memory.states, memory.lengths, memory.mask, (SOURCE + 7) * (SOURCE > 2))
        torch.testing.assert_close(
            model.decode(shifted(TARGET), memory), model.decode(shifted(TARGET), other), rtol=0, atol=0
        )
        copying = made()
        memory = copying.encode(SOURCE)
        other = memory.__class__(memory.states, memory.lengths, memory.mask, (SOURCE + 7) * (SOURCE > 2))
        apart = copying.decode(shifted(TARGET), memory) - copying.decode(shifted(TARGET), other)
        assert apart.abs().max() > 0.1


def test_coverage_lowers_what_was_looked_at():
    model = made(coverage=True)
    with torch.no_grad():
        memory = model.encode(SOURCE)
        model.coverage.fill_(-40.0)  # softplus of it is 0
        without = model.point(shifted(TARGET), memory).weights
        model.coverage.fill_(3.0)
        covered = model.point(shifted(TARGET), memory).weights
        before = without.cumsum(1) - without
        e = without.log() - F.softplus(model.coverage) * before
        torch.testing.assert_close(covered, e.softmax(-1), rtol=1e-4, atol=1e-6)
    weights = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]])
    assert coverage_loss(weights, torch.tensor([[4, 4, 4]]), 1).item() == pytest.approx(2.0)
    assert coverage_loss(weights, torch.tensor([[4, 4, PAD]]), 1).item() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e5])
def test_the_loss_and_its_gradients_stay_numbers(size):
    """Whatever the model says: a softmax and a gate that are 0 or 1 in float32, and words that neither part has."""
    torch.manual_seed(0)
    parts = [torch.randn(3, 4, 16) * size, torch.randn(3, 4) * size, torch.randn(3, 4, 6) * size]
    matrix = torch.randn(40, 16)
    leaves = [x.requires_grad_() for x in (*parts, matrix)]
    pointed = PointerParts(parts[0], parts[1], parts[2].softmax(-1))
    loss = mixture_loss(pointed, matrix, SOURCE, TARGET, smoothing=0.1)
    loss[0].backward()
    assert loss.isfinite().all() and all(x.grad.isfinite().all() for x in leaves)


def test_bfloat16_autocast_is_close_to_float32():
    model = made()
    losses = []
    for dtype in (None, torch.bfloat16):
        objective = SummaryObjective(model, smoothing=0.1, rdrop=0.0, dtype=dtype)
        loss = objective(SOURCE, (SOURCE != PAD).sum(-1), shifted(TARGET), TARGET)
        loss[0].backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=0.03, atol=0.05)


def test_rows_that_fill_a_batch_count_for_nothing():
    from regard.tasks.base.pairs import fill_rows

    model = made()
    objective = partial(SummaryObjective(model, smoothing=0.1, rdrop=0.0).eval())
    tensors = [SOURCE, (SOURCE != PAD).sum(-1), shifted(TARGET), TARGET]
    torch.testing.assert_close(objective(*fill_rows(tensors, 5)), objective(*tensors), rtol=1e-5, atol=1e-5)


def test_no_run_comes_twice():
    model = made()
    memory = model.encode(SOURCE)
    limits = Limits(minimum=30, maximum=30)

    def repeats(tokens, n):
        runs = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
        return len(runs) - len({*runs})

    free = [h.tokens.tolist() for h in greedy(model, memory, limits=limits)]
    assert any(repeats(tokens, 3) for tokens in free)
    for n in (1, 2, 3):
        for found in (
            greedy(NoRepeat(model, n), memory, limits=limits),
            beam(NoRepeat(model, n), memory, limits=limits),
        ):
            for h in found:
                tokens = (h[0] if isinstance(h, list) else h).tokens.tolist()
                assert len(tokens) == 31 and not repeats(tokens, n)
    with pytest.raises(ValueError, match="size must be at least 1"):
        NoRepeat(model, 0)


def test_what_a_pointer_cannot_be():
    with pytest.raises(ValueError, match="copy_dim must be a whole number at least 1"):
        PointerConfig(**{**SMALL, "copy_dim": 0})
    with pytest.raises(ValueError, match="encoder_layers must be a whole number at least 1"):
        PointerConfig(**{**SMALL, "encoder_layers": 0})
    with pytest.raises(ValueError, match="pass lengths, not a mask"):
        made().encode(SOURCE, mask=torch.ones(3, 1, 6, 6, dtype=torch.bool))

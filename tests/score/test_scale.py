"""Scaled and normalised scores."""

import pytest
import torch
from cases import Sizes, tensors

import regard
from regard.score import Additive, ALiBi, Bias, Cosine, Dot, Key, PerHead, QKNorm, Rotary, Scale, Score, Softcap

SIZES = Sizes()


def test_arithmetic_is_that_of_the_scores():
    q, k, _ = tensors(SIZES)
    dot, alibi = Dot()(q, k), ALiBi(4)(q, k)
    written = {
        "2 * Dot()": (2 * Dot(), 2 * dot),
        "Dot() * 2": (Dot() * 2, 2 * dot),
        "-Dot()": (-Dot(), -dot),
        "Dot() / 4": (Dot() / 4, dot / 4),
        "Dot() - ALiBi(4)": (Dot() - ALiBi(4), dot - alibi),
        "sum": (sum([Dot(), ALiBi(4)]), dot + alibi),
        "0.5 * (sum)": (0.5 * (Dot() + ALiBi(4)), 0.5 * (dot + alibi)),
        "per head": (2 * PerHead((2, Dot()), (2, -Dot())), 2 * torch.cat((dot[:, :2], -dot[:, 2:]), 1)),
    }
    for name, (score, expected) in written.items():
        torch.testing.assert_close(score(q, k), expected, msg=name)
        torch.testing.assert_close(regard.steps(q, k, k, score=score).scaled, expected, msg=name)


@pytest.mark.parametrize("wrong", [True, "2", None, torch.tensor(2.0)], ids=str)
def test_what_is_no_factor_is_refused(wrong):
    with pytest.raises(TypeError, match=r"unsupported operand|can't multiply"):
        Dot() * wrong


def test_a_scale_stays_fused():
    q, k, v = torch.randn(3, 1, 8, 64, 16)
    plain, scaled = (regard.plan(q, k, v, score=score) for score in (Rotary(Dot()), 3 * Rotary(-Dot())))
    assert plain.kernel == scaled.kernel == "sdpa" and plain.memory_bytes == scaled.memory_bytes
    assert regard.plan(q, k, v, score=2 * Additive(16, 16, 8)).kernel == "cpu_additive"
    learned = regard.plan(q, k, v, score=Scale(Dot(), heads=8))
    assert learned.kernel == "sdpa" and "scales into the query" in str(learned)


def test_learned_scales():
    q, k, v = tensors(SIZES, grad=True)
    score = Scale(Dot(), 0.5, heads=4).double()
    torch.testing.assert_close(score(q, k), Dot()(q, k) * 0.5)
    torch.nn.init.normal_(score.weight)
    (grad,) = torch.autograd.grad(regard.attend(q, k, v, score=score).square().sum(), score.weight)
    dense = (score(q, k).softmax(-1) @ v.repeat_interleave(2, 1)).square().sum()
    torch.testing.assert_close(grad, torch.autograd.grad(dense, score.weight)[0])
    score.reset_parameters()
    assert (score.weight == 0.5).all() and "weight" in score.state_dict()


def test_normalised_dots_are_the_cosine():
    q, k, _ = tensors(SIZES)
    torch.testing.assert_close(10 * QKNorm(Dot(scale=1.0))(q, k), Cosine(10.0).double()(q, k))
    zeros = torch.zeros_like(q)
    assert (QKNorm(Dot())(zeros, k) == 0).all() and (QKNorm(Dot(), "rms")(zeros, k) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_gains_are_those_of_a_norm_before_the_rotation(dtype):
    q, k, v = (x.to(dtype) for x in torch.randn(3, 2, 4, 6, 8))
    score = QKNorm(Rotary(Dot()), "rms", dim=8).to(dtype)
    norms = [torch.nn.RMSNorm(8, eps=1e-6, dtype=dtype) for _ in range(2)]
    for norm, gain in zip(norms, (score.query_gain, score.key_gain), strict=True):
        torch.nn.init.normal_(gain)
        norm.load_state_dict({"weight": gain.detach()})
    expected = regard.attend(norms[0](q), norms[1](k), v, score=Rotary(Dot()))
    limit = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(regard.attend(q, k, v, score=score), expected, atol=limit, rtol=limit)


def test_messages():
    class Own(Score):
        pair_shaped = True

        def forward(self, q, k, offset=0):
            return q @ k.mT

    q, k, v = torch.randn(3, 1, 4, 6, 8)
    for make, text in {
        lambda: Scale(Softcap(Dot(), 5.0), heads=4): r"put it inside, as in Softcap\(Scale",
        lambda: Scale(PerHead((4, Dot()))): "Scale cannot wrap a PerHead; wrap its groups",
        lambda: QKNorm(Dot(), "layer"): "QKNorm: kind must be 'l2' or 'rms', got 'layer'",
        lambda: QKNorm(Dot(), dim=8): "only kind='rms' has learned gains",
        lambda: regard.attend(q, k, v, score=Scale(Dot(), heads=3)): "Scale was made for heads=3, got 4 query heads",
        lambda: regard.attend(q, k, v, score=QKNorm(Dot(), "rms", dim=4)): "QKNorm was made for query_dim=4, got",
        lambda: 2 * Softcap(Dot(), 5.0) + Softcap(Dot(), 1.0): "a sum takes one Softcap",
        lambda: regard.attend(q, k, v, score=Softcap(Own(), 1.0)): "Softcap cannot wrap Own, which only has a formula",
    }.items():
        with pytest.raises(ValueError, match=text):
            make()
    with pytest.raises(TypeError, match=r"Scale wraps a score, such as Scale\(Dot\(\)\), got float"):
        Scale(2.0)


def test_a_parameter_given_to_bias_is_one_of_the_score():
    parameter = torch.nn.Parameter(torch.randn(4, 1, 1))
    learned, given = Dot() + Bias(parameter), Dot() + Bias(torch.randn(4, 1, 1))
    assert [p is parameter for p in learned.parameters()] == [True]
    assert list(learned.state_dict()) == ["parts.1.bias"]
    other = Dot() + Bias(torch.nn.Parameter(torch.zeros(4, 1, 1)))
    other.load_state_dict(learned.state_dict())
    assert torch.equal(other.parts[1].bias, parameter)
    assert not list(given.parameters()) and not given.state_dict()
    assert given.to("meta").parts[1].bias.is_meta, "a given tensor moves with the score"
    assert list((3 * learned + Key(4)).state_dict()) == ["parts.0.inner.parts.1.bias", "parts.1.w"]

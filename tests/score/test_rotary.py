"""Rotary frequencies: explicit, scaled as in models, and divided between several axes of positions."""

import copy
import math

import pytest
import torch
from cases import Sizes, tensors

import regard
from regard.score import Dot, LinearScaling, Llama3Scaling, NTKScaling, Rotary, YaRNScaling
from regard.score.terms import Keys

DIMS, LENGTH = 16, 64
SCALINGS = {
    "linear": (LinearScaling(4.0), {"factor": 4.0}),
    "dynamic": (NTKScaling(4.0, LENGTH), {"factor": 4.0}),
    "yarn": (YaRNScaling(4.0, LENGTH), {"factor": 4.0}),
    "yarn ends": (
        YaRNScaling(8.0, LENGTH, 5.0, 2.0, 1.3),
        {"factor": 8.0, "beta_fast": 5.0, "beta_slow": 2.0, "attention_factor": 1.3},
    ),
    "yarn whole": (YaRNScaling(4.0, LENGTH, truncate=False), {"factor": 4.0, "truncate": False}),
    "llama3": (Llama3Scaling(8.0, LENGTH), {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
}


def peer(name, theirs, length):
    """Frequencies and factor of the installed transformers."""
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    kind = name.split()[0]
    parameters = {"rope_type": kind, "rope_theta": 500.0, **theirs}
    if kind in ("yarn", "llama3"):
        parameters["original_max_position_embeddings"] = LENGTH
    longest = LENGTH if kind == "dynamic" else 4096
    config = LlamaConfig(head_dim=DIMS, max_position_embeddings=longest, rope_parameters=parameters)
    return rope.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)


@pytest.mark.parametrize("length", [16, 64, 200])
@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_are_those_of_transformers(name, length):
    scaling, theirs = SCALINGS[name]
    frequencies, factor = peer(name, theirs, length)
    like = torch.empty(0, dtype=torch.float64)
    torch.testing.assert_close(scaling.frequencies(500.0, DIMS, length, like).float(), frequencies, rtol=1e-6, atol=0)
    tensor = scaling.frequencies(500.0, DIMS, torch.tensor(length), like)
    torch.testing.assert_close(tensor.float(), frequencies, rtol=1e-6, atol=0)
    assert scaling.temperature == pytest.approx(factor)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaled_score_is_the_score_with_these_frequencies(name, interleaved):
    scaling, theirs = SCALINGS[name]
    sizes = Sizes(queries=90, keys=100, dim=DIMS + 2)
    q, k, v = tensors(sizes)
    frequencies, factor = peer(name, theirs, 100)
    made = Rotary(Dot(), 500.0, dims=DIMS, scaling=scaling, interleaved=interleaved)
    own = Rotary(Dot(), inv_freq=frequencies, interleaved=interleaved)
    head, tail = (q[..., :DIMS], k[..., :DIMS]), (q[..., DIMS:], k[..., DIMS:])
    turned = Rotary(Dot(1.0), inv_freq=frequencies, interleaved=interleaved)(*head, 10)
    expected = (turned * factor**2 + Dot(1.0)(*tail)) / math.sqrt(DIMS + 2)
    torch.testing.assert_close(made(q, k, 10), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(regard.steps(q, k, v, score=made, offset=10).scaled, made(q, k, 10))
    if factor == 1:
        torch.testing.assert_close(made(q, k, 10), own(q, k, 10), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCALINGS)
def test_decoding_with_a_cache_is_the_whole_sequence(name):
    """Within the length of the training for the dynamic one, whose cached keys keep their rotation."""
    length = 40 if name == "dynamic" else 100
    made = Rotary(Dot(), scaling=SCALINGS[name][0])
    q, k, v = tensors(Sizes(queries=length, keys=length, dim=DIMS))
    whole = regard.attend(q, k, v, score=made, mask=regard.mask.Causal())
    cached = made.keys(k[..., :-1, :]).tensors[0], made.keys(k[..., -1:, :], length - 1).tensors[0]
    keys = Keys((torch.cat(cached, -2),))
    step = regard.attend(q[..., -1:, :], keys, v, score=made, offset=length - 1)
    torch.testing.assert_close(step, whole[..., -1:, :])


def test_own_frequencies_are_exact_and_move_with_the_score():
    own = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    q, k, _ = tensors(Sizes(dim=8))
    expected = Rotary(Dot())(q, k, 10_000)
    for made in (Rotary(Dot(), inv_freq=own), Rotary(Dot(), inv_freq=own.tolist()).half().double()):
        torch.testing.assert_close(made(q, k, 10_000), expected, rtol=1e-9, atol=1e-9)
        assert not made.state_dict()
    with torch.device("meta"):
        deferred = Rotary(Dot(), inv_freq=own.tolist())
    assert deferred.own.is_meta
    torch.testing.assert_close(deferred.to_empty(device="cpu")(q, k, 10_000), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(copy.deepcopy(made)(q, k, 10_000), expected, rtol=1e-9, atol=1e-9)


def rotate_sections(x, frequencies, sections, places):
    """Each section rotated by its own axis, one vector at a time. x [H, L, D], places [axes, L]."""
    out, half = x.clone(), len(frequencies)
    axis = [a for a, n in enumerate(sections) for _ in range(n)]
    for i in range(x.shape[1]):
        for d in range(half):
            angle = float(places[axis[d], i]) * frequencies[d]
            a, b = x[:, i, d], x[:, i, d + half]
            out[:, i, d] = a * math.cos(angle) - b * math.sin(angle)
            out[:, i, d + half] = a * math.sin(angle) + b * math.cos(angle)
    return out


@pytest.mark.parametrize("per_item", [False, True])
@pytest.mark.parametrize("offset", [0, 3, "items"])
def test_sections_turn_by_their_own_axis(per_item, offset):
    sizes = Sizes(queries=4, keys=7, dim=12)
    q, k, v = tensors(sizes)
    axes = torch.randint(0, 30, (2, 3, 6) if per_item else (3, 6))
    offset = torch.tensor([1, 3]) if offset == "items" else offset
    made = Rotary(Dot(1.0), sections=(1, 3, 2), axes=axes)
    each = axes if per_item else axes.expand(2, -1, -1)
    frequencies = [10000.0 ** (-d / 6) for d in range(6)]
    for b in range(2):
        where = torch.cat((each[b], each[b][:, -1:] + torch.arange(1, 6)), -1)  # behind its end all count on
        first = int(offset[b]) if isinstance(offset, torch.Tensor) else offset
        one = rotate_sections(q[b], frequencies, (1, 3, 2), where[:, first : first + 4])
        other = rotate_sections(k[b], frequencies, (1, 3, 2), where[:, :7])
        expected = one @ other.repeat_interleave(2, 0).mT
        torch.testing.assert_close(made(q, k, offset)[b], expected)
        torch.testing.assert_close(regard.steps(q, k, v, score=made, offset=offset).scaled[b], expected)


def test_sections_without_axes_are_text():
    q, k, _ = tensors(Sizes(dim=12))
    made = Rotary(Dot(), sections=(1, 3, 2))
    torch.testing.assert_close(made(q, k, 3), Rotary(Dot())(q, k, 3))
    made.axes = torch.arange(9).expand(3, -1)
    torch.testing.assert_close(made(q, k, 3), Rotary(Dot())(q, k, 3))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Rotary(scaling="yarn"), TypeError, r"scaling is one of regard.score, such as YaRNScaling\(4, 8192\)"),
        (
            lambda: Rotary(inv_freq=[1.0], scaling=LinearScaling(2.0)),
            ValueError,
            "inv_freq are the frequencies as they",
        ),
        (lambda: Rotary(inv_freq=[1.0, 0.5], dims=8), ValueError, "2 frequencies turn 4 dims, got dims=8"),
        (lambda: Rotary(inv_freq=[[1.0]]), ValueError, "one finite number per pair of dims"),
        (lambda: Rotary(inv_freq=torch.ones(2, device="meta")), ValueError, "made on the meta device and hold"),
        (lambda: Rotary(sections=(2, 0)), ValueError, r"sections\[1\] must be a positive integer, got 0"),
        (lambda: Rotary(sections=(2, 2), dims=4), ValueError, r"sections=\(2, 2\) turn 8 dims, not 4"),
        (lambda: Rotary(axes=torch.zeros(2, 5)), ValueError, "axes= needs sections="),
        (lambda: Rotary(sections=(2, 2), axes=torch.zeros(3, 5)), ValueError, r"axes must be \[2, positions\] or"),
        (lambda: LinearScaling(0.0), ValueError, r"LinearScaling: factor must be a positive number, got 0.0"),
        (lambda: Llama3Scaling(8.0, 64, 4.0, 4.0), ValueError, "low must be below high"),
    ],
)
def test_messages(make, error, text):
    with pytest.raises(error, match=text):
        make()

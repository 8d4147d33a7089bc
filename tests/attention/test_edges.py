"""The edges: nothing to see, NaN in masked places, empty inputs, sinks, packed sequences, lowered keys."""

import copy
from itertools import pairwise

import pytest
import torch
from cases import PAIRED, SCORES, Sizes, refusal, score, tensors

import regard
from regard.attention.plan import GPU_ONLY
from regard.attention.plan import KERNELS as ALL_KERNELS
from regard.kernels import blockwise
from regard.mask import Causal, Dense, Documents, Lengths, Prefix, Window
from regard.score import Additive, ALiBi, Bias, Dot, PerHead, Relative, Rotary
from regard.score.terms import Keys

SIZES = Sizes(batch=(2,), heads=4, kv_heads=2, queries=5, keys=7, dim=4, value_dim=3)
# every kernel, and blockwise with more than one tile too
KERNELS = [name for name in ALL_KERNELS if name not in GPU_ONLY]  # those have suites of their own
KERNELS_AND_TILES = [*KERNELS, "tiles"]


@pytest.fixture(params=KERNELS_AND_TILES)
def backend(request, monkeypatch):
    if request.param == "tiles":
        monkeypatch.setattr(blockwise, "_block_sizes", lambda p: blockwise.Blocks(1, 2, 3))
        return "blockwise"
    return request.param


def gradients(out, leaves, grad=None):
    grad = torch.ones_like(out) if grad is None else grad
    return torch.autograd.grad(out, leaves, grad, allow_unused=True, retain_graph=True)


def attend(q, k, v, *, backend, **options):
    """Context and logsumexp, or None where the kernel has none."""
    if reason := refusal(q, k, v, backend=backend, **options):
        pytest.skip(reason)
    if refusal(q, k, v, backend=backend, return_logsumexp=True, **options):
        return regard.attend(q, k, v, backend=backend, **options), None
    return regard.attend(q, k, v, backend=backend, return_logsumexp=True, **options)


# --- rows with nothing to attend to ---

ROW_1_SEES_NOTHING = torch.arange(5)[:, None].expand(5, 7) != 1
NOTHING = {  # a mask and an offset under which the second query of every item sees nothing
    "causal": (Causal(), -2),
    "window": (Window(0, 0), 6),
    "lengths": (Lengths(0), 0),
    "lengths_items": (Lengths(torch.tensor([0, 0])), 0),
    "prefix": (Prefix(0), 0),
    "documents": (Documents(torch.tensor([0, 9, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 2, 2])), 0),
    "dense": (Dense(ROW_1_SEES_NOTHING), 0),
    "and": (Prefix(1) & ~Prefix(1), 0),
    "or": (Prefix(0) | Dense(ROW_1_SEES_NOTHING), 0),
    "not": (~Window(), 0),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NOTHING)
def test_a_row_that_sees_nothing_is_zero(name, dtype, backend):
    mask, offset = NOTHING[name]
    q, k, v = tensors(SIZES, dtype, grad=True)
    out, lse = attend(q, k, v, mask=mask, offset=offset, backend=backend)
    empty = (regard.steps(q, k, v, mask=mask, offset=offset).masked == -torch.inf).all(-1)
    assert empty[:, :, 1].all()
    assert not out[empty].any() and out.isfinite().all()
    assert lse is None or torch.equal(lse == -torch.inf, empty)
    for g in gradients(out, (q, k, v)):
        assert g.isfinite().all()
    for g in gradients(
        attend(q, k, v, mask=mask, offset=offset, backend=backend)[0], (q, k, v), empty[..., None] * out
    ):
        assert not g.any()


@pytest.mark.parametrize("name", SCORES)
def test_a_row_that_sees_nothing_is_zero_for_every_score(name, backend):
    made, (q, k, v) = score(name, SIZES), tensors(SIZES, grad=True)
    out, lse = attend(q, k, v, score=made, mask=ROW_1_SEES_NOTHING, backend=backend)
    assert not out[:, :, 1].any()
    assert lse is None or ((lse[:, :, 1] == -torch.inf).all() and lse[:, :, 2].isfinite().all())
    only_empty = torch.zeros_like(out)
    only_empty[:, :, 1] = 1
    for g in gradients(out, [q, k, v, *made.parameters()], only_empty):
        assert g is None or not g.any()


def test_a_row_of_biases_of_minus_infinity_sees_nothing(backend):
    bias = torch.zeros(5, 7, dtype=torch.float64)
    bias[1], bias[2, :3] = -torch.inf, -torch.inf
    q, k, v = tensors(SIZES, grad=True)
    out, lse = attend(q, k, v, score=Dot() + Bias(bias), backend=backend)
    assert not out[:, :, 1].any()
    assert lse is None or (lse[:, :, 1] == -torch.inf).all()
    masked = attend(q, k, v, mask=bias == 0, backend="reference")[0]
    torch.testing.assert_close(out, masked)
    for ours, theirs in zip(gradients(out, (q, k, v)), gradients(masked, (q, k, v)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_learned_biases_of_minus_infinity_get_no_gradient():
    for name in ("reference", "blockwise"):
        bias = torch.nn.Parameter(torch.zeros(5, 7, dtype=torch.float64))
        bias.data[1], bias.data[2, :3] = -torch.inf, -torch.inf
        q, k, v = tensors(SIZES)
        out = regard.attend(q, k, v, score=Dot() + Bias(bias), backend=name)
        (grad,) = gradients(out, [bias], torch.randn_like(out))
        assert grad.isfinite().all() and not grad[bias == -torch.inf].any() and grad[0].all()


# --- NaN and Inf ---

HIDDEN = {  # a mask under which key 5 and query 3 are hidden from all, some heads or items
    "dense": Dense((torch.arange(7) != 5) & (torch.arange(5)[:, None] != 3)),
    "lengths": Lengths(torch.tensor([5, 5])) & Dense(torch.arange(5)[:, None] != 3),
    "documents": Documents(torch.tensor([0, 0, 1, 9, 1]), torch.tensor([0, 0, 1, 1, 1, 8, 0])),
    "window": Window(2, 1) & Dense(torch.arange(5)[:, None] != 3) & Dense(torch.arange(7) != 5),
}


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("mask", HIDDEN)
@pytest.mark.parametrize(
    "name", ["dot", "additive", "relative_values", "rotary_sum", "everything", "per_head", "bilinear_shared", "key"]
)
def test_what_is_masked_reaches_nothing(name, mask, poison, backend):
    mask = HIDDEN[mask]
    made, (q, k, v) = score(name, SIZES), tensors(SIZES)
    clean = [q, k, v]
    dirty = [x.clone() for x in clean]
    dirty[0][:, :, 3] = poison
    dirty[1][:, :, 5, 1:] = poison
    dirty[2][:, :, 5, :1] = poison
    results = []
    for inputs in (clean, dirty):
        module = copy.deepcopy(made)
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, _ = attend(*leaves, score=module, mask=mask, backend=backend)
        results.append((out, *gradients(out, [*leaves, *module.parameters()], torch.ones_like(out))))
    for ours, theirs in zip(*results, strict=True):
        if theirs is not None:
            assert theirs.isfinite().all()
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("name", ["dot", "additive", "per_head", "relative_values"])
def test_a_row_that_may_see_nan_is_nan(name, poison, where, backend):
    made, inputs = score(name, SIZES), dict(zip("qkv", tensors(SIZES), strict=True))
    inputs[where][0, :, 2] = poison
    options = {"score": made, "mask": Causal() & Lengths(6), "backend": backend}
    out, _ = attend(**inputs, **options)
    bad = torch.zeros(2, 4, 5, dtype=torch.bool)
    bad[0, :, 2 : 3 if where == "q" else None] = True
    assert torch.equal(out.isnan().all(-1), bad) and torch.equal(out.isnan().any(-1), bad)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of PyTorch's kernel
@pytest.mark.parametrize("where", ["q", "k", "v", "all keys"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["dot", "rotary_sum", "general", "per_head"])
def test_without_a_mask_a_row_that_sees_nan_is_nan(name, dtype, where, backend):
    """PyTorch's kernel silently gives 0 for a row whose scores are all NaN."""
    made, inputs = score(name, SIZES).to(dtype), dict(zip("qkv", (x.to(dtype) for x in tensors(SIZES)), strict=True))
    inputs[where[-1] if where in "qkv" else "k"][0, :, 2 if where in "qkv" else slice(None)] = torch.nan
    bad = torch.zeros(2, 4, 5, dtype=torch.bool)
    bad[0, :, 2 : 3 if where == "q" else None] = True
    if where in ("k", "v", "all keys"):
        bad[0] = True
    out, _ = attend(**inputs, score=made, backend=backend)
    assert torch.equal(out.isnan().any(-1), bad)
    mapped = torch.vmap(lambda q, k, v: regard.attend(q[None], k[None], v[None], score=made)[0])(*inputs.values())
    assert torch.equal(mapped.isnan().any(-1), bad)


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("mask", [Window(), Causal(), Lengths(7), Prefix(9)], ids=str)
def test_nan_under_a_mask_that_hides_nothing(mask, where, backend):
    """The planner drops such a mask; one step of decoding is the usual case."""
    inputs = dict(zip("qkv", tensors(Sizes(queries=1)), strict=True))
    inputs[where][0, :, 0] = torch.nan
    out, _ = attend(**inputs, mask=mask, offset=6, backend=backend)
    assert out[0].isnan().all() and out[1].isfinite().all()


def test_finite_inputs_whose_masked_scores_overflow(backend):
    """Inf − Inf is NaN in PyTorch's kernel, which adds a mask instead of filling it in: ours only."""
    if backend in ("sdpa", "cpu_dot", "auto"):
        pytest.skip("PyTorch's kernel cannot; the guard looks at q, k and v, which are finite here")
    q, k, v = tensors(SIZES, torch.float32)
    with torch.no_grad():
        q[:, :, 2:], k[:, :, 5] = 1e25, 1e25
    clean = k.clone()
    clean[:, :, 5] = 0.0
    mask = Dense(torch.arange(7) != 5)
    q, k, clean, v = (x.requires_grad_() for x in (q, k, clean, v))
    out, _ = attend(q, k, v, score=Dot(scale=1e-24), mask=mask, backend=backend)
    expected = regard.attend(q, clean, v, score=Dot(scale=1e-24), mask=mask, backend="reference")
    torch.testing.assert_close(out, expected)
    assert all(g.isfinite().all() for g in gradients(out, (q, k, v)))


# Unwritten positions of a cache may hold anything, so lowered keys and values are checked like k and v.
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("name", ["dot", "additive", "per_head", "everything"])
def test_nan_in_lowered_keys(name, where, backend):
    made, inputs = score(name, SIZES).requires_grad_(False), dict(zip("qkv", tensors(SIZES), strict=True))
    inputs[where][0, :, 4] = torch.nan
    q, keys, v = inputs["q"], made.keys(inputs["k"]), inputs["v"]
    seen, _ = attend(q, keys, v, score=made, mask=Lengths(5), backend=backend)
    assert seen[0].isnan().all(-1).all() and seen[1].isfinite().all()
    hidden, _ = attend(q, keys, v, score=made, mask=Lengths(4), backend=backend)
    assert hidden.isfinite().all()


# --- empty ---


def empty_sizes(empty):
    return Sizes(**{empty: (0,) if empty == "batch" else 0})


def check_empty(sizes, made, mask, backend):
    q, k, v = tensors(sizes, grad=True)
    out, lse = regard.attend(q, k, v, score=made, mask=mask, return_logsumexp=True, backend=backend)
    assert out.shape == (*sizes.batch, sizes.heads, sizes.queries, sizes.value_dim)
    assert not out.any() and (lse == -torch.inf).all()
    for g, x in zip(gradients(out, [q, k, v]), (q, k, v), strict=True):
        assert g is None or (g.shape == x.shape and not g.any())
    assert regard.attend(q, k, v, score=made, mask=mask).shape == out.shape


@pytest.mark.parametrize("mask", [None, Causal(), Lengths(3), Causal() & ~Prefix(2)], ids=str)
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("empty", ["queries", "keys", "batch"])
def test_empty_inputs(empty, name, mask):
    sizes = empty_sizes(empty)
    for chosen in ("auto", "reference", "blockwise"):
        check_empty(sizes, score(name, sizes), mask, chosen)


EMPTY_MASKS = {  # whose tensors are empty too: reshape(-1, …) of nothing is ambiguous
    "dense": lambda s: torch.ones(s.queries, s.keys, dtype=torch.bool),
    "dense_items": lambda s: torch.ones(*s.batch, 1, s.queries, s.keys, dtype=torch.bool),
    "documents": lambda s: Documents(torch.zeros(s.queries).long(), torch.zeros(s.keys).long()),
    "documents_items": lambda s: Documents(
        torch.zeros(*s.batch, s.queries).long(), torch.zeros(*s.batch, s.keys).long()
    ),
    "packed": lambda s: Documents.packed([0, s.queries], [0, s.keys]),
    "lengths": lambda s: Lengths(torch.ones(s.batch).long()),
    "combined": lambda s: (
        Causal() & Lengths(torch.ones(s.batch).long()) & Documents.packed([0, s.queries], [0, s.keys])
    ),
}


@pytest.mark.parametrize("chosen", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize("empty", ["queries", "keys", "batch"])
@pytest.mark.parametrize("mask", EMPTY_MASKS)
def test_empty_inputs_with_masks_of_tensors(mask, empty, chosen):
    sizes = empty_sizes(empty)
    check_empty(sizes, Dot(), EMPTY_MASKS[mask](sizes), chosen)


def test_no_value_dims():
    q, k, v = tensors(Sizes(value_dim=0))
    assert regard.attend(q, k, v).shape == (2, 4, 5, 0)


# --- sinks ---


def test_a_sink_is_an_extra_key_of_value_zero():
    q, k, v = tensors(SIZES, grad=True)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)
    pad = torch.zeros(2, 4, 5, 1, dtype=torch.float64) + sink[:, None, None]
    e = torch.cat((regard.steps(q, k, v).scaled, pad), -1)
    values = torch.cat((v, torch.zeros_like(v[:, :, :1])), -2).repeat_interleave(2, 1)
    expected = e.softmax(-1) @ values
    for chosen in ("reference", "blockwise"):
        out, lse = regard.attend(q, k, v, sink=sink, return_logsumexp=True, backend=chosen)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(lse, e.logsumexp(-1).detach())
        for a, b in zip(*(gradients(x, (q, k, v, sink)) for x in (out, expected)), strict=True):
            torch.testing.assert_close(a, b)


def test_a_row_that_sees_only_the_sink_is_zero():
    q, k, v = tensors(SIZES, grad=True)
    sink = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for chosen in ("reference", "blockwise"):
        out, lse = regard.attend(q, k, v, sink=sink, mask=Lengths(0), return_logsumexp=True, backend=chosen)
        assert not out.any() and (lse == 0.5).all()
        assert not any(g.any() for g in gradients(out, (q, k, v, sink)))


def test_a_far_away_sink_changes_nothing():
    q, k, v = tensors(SIZES)
    for chosen in ("reference", "blockwise"):
        near = regard.attend(q, k, v, sink=-1e9, return_logsumexp=True, mask=Causal(), backend=chosen)
        none = regard.attend(q, k, v, return_logsumexp=True, mask=Causal(), backend=chosen)
        torch.testing.assert_close(near, none)


# --- packed sequences ---

PACKED = {
    "dot": (lambda: Dot(), None),
    "causal": (lambda: Dot(), Causal()),
    "relative": (lambda: Relative(4, 2, values=True, value_dim=3), Causal()),
    "rotary": (lambda: Rotary(Dot()), Causal()),
    "alibi": (lambda: Dot() + ALiBi(4), Window(2, 1)),
    "additive": (lambda: Additive(4, 4, 5), Causal()),
    "per_head": (lambda: PerHead((2, Rotary(Dot())), (2, Relative(4, 3))), Causal()),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_equal_separate_calls(name, backend):
    made, mask = PACKED[name]
    made = made().double()
    lengths = [3, 1, 6, 0, 4]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    q, k, v = tensors(Sizes(batch=(), queries=14, keys=14), grad=True)
    packed = Documents.packed(ends)
    out, _ = attend(q, k, v, score=made, mask=packed if mask is None else packed & mask, backend=backend)
    parts = [
        regard.attend(q[:, a:b], k[:, a:b], v[:, a:b], score=made, mask=mask, backend="reference")
        for a, b in pairwise(ends.tolist())
    ]
    torch.testing.assert_close(out, torch.cat(parts, -2))
    grad = torch.randn_like(out)
    leaves = [q, k, v, *made.parameters()]
    for ours, theirs in zip(gradients(out, leaves, grad), gradients(torch.cat(parts, -2), leaves, grad), strict=True):
        torch.testing.assert_close(ours, theirs)


# --- lowered keys ---


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_lowered_keys_in_place_of_k(name):
    made, (q, k, v) = score(name, SIZES), tensors(SIZES)
    for chosen in ("auto", "reference", "blockwise"):
        options = {"score": made, "mask": Causal(), "offset": 2, "backend": chosen}
        same(regard.attend(q, made.keys(k), v, **options), regard.attend(q, k, v, **options))


@pytest.mark.parametrize("start", ["int", "tensor"])
@pytest.mark.parametrize("name", SCORES)
def test_keys_lowered_in_pieces(name, start):
    made, (q, k, v) = score(name, SIZES), tensors(SIZES)
    cuts = [0, 1, 4, 7]
    pieces = [made.keys(k[..., a:b, :], start=a if start == "int" else torch.full((2,), a)) for a, b in pairwise(cuts)]
    joined = Keys(tuple(torch.cat(parts, -2) for parts in zip(*(piece.tensors for piece in pieces), strict=True)))
    assert len(joined.tensors) == made.key_tensors
    for ours, theirs in zip(joined.tensors, made.keys(k).tensors, strict=True):
        same(ours, theirs)
    same(regard.attend(q, joined, v, score=made, offset=2), regard.attend(q, k, v, score=made, offset=2))


@pytest.mark.parametrize("name", SCORES)
def test_decoding_step_by_step_equals_the_whole(name):
    """Biases are per call, so they cannot be decoded with."""
    if name not in PAIRED:
        return
    made, (q, k, v) = score(name, Sizes(queries=7, keys=7)), tensors(Sizes(queries=7, keys=7))
    whole = regard.attend(q, k, v, score=made, mask=Causal())
    for i in range(7):
        keys = made.keys(k[..., : i + 1, :])
        step = regard.attend(q[..., i : i + 1, :], keys, v[..., : i + 1, :], score=made, mask=Causal(), offset=i)
        same(step, whole[..., i : i + 1, :])
    late = regard.attend(q[..., 3:, :], k, v, score=made, mask=Causal(), offset=torch.tensor([3, 3]))
    same(late, whole[..., 3:, :])


@pytest.mark.parametrize("name", SCORES)
def test_gradients_flow_through_lowered_keys(name):
    made, (q, k, v) = score(name, SIZES), tensors(SIZES, grad=True)
    leaves = [q, k, v, *made.parameters()]
    grads = [
        gradients(regard.attend(q, keys, v, score=made, backend="blockwise"), leaves) for keys in (made.keys(k), k)
    ]
    for ours, theirs in zip(*grads, strict=True):
        assert (ours is None and theirs is None) or same(ours, theirs) is None


def test_lowered_keys_broadcast_over_the_batch():
    made, (q, k, v) = score("additive", SIZES), tensors(SIZES)
    same(regard.attend(q, made.keys(k[:1]), v[:1], score=made), regard.attend(q, k[:1], v[:1], score=made))

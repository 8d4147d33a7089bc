"""Every score against its formula, dense and lowered, and its gradients."""

import formulas
import numpy as np
import pytest
import torch
from cases import MASKS, SCORES, Sizes, in_float64, refusal, score, tensors
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.attention.plan import BACKENDS
from regard.score import Additive, ALiBi, Bias, Bilinear, Cosine, General, Relative, Rotary, Softcap, T5Bias
from regard.score._tensors import project

SIZES = {
    "grouped": Sizes(),
    "one_head": Sizes(batch=(1,), heads=1, kv_heads=1, queries=3, keys=2, dim=2, value_dim=5),
    "odd_heads": Sizes(batch=(3,), heads=6, kv_heads=3, queries=2, keys=9, dim=6, value_dim=6),
    "multi_query": Sizes(batch=(1,), heads=3, kv_heads=1, queries=9, keys=4, dim=2),
}
OFFSETS = {"none": 0, "ahead": 3, "behind": -4, "items": [5, -2, 0]}


def offset_for(name, sizes):
    offset = OFFSETS[name]
    return torch.tensor(offset[: sizes.batch[0]]) if isinstance(offset, list) else offset


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", SCORES)
def test_dense_and_lowered_agree_with_the_formula(name, sizes, offset):
    sizes = SIZES[sizes]
    offset = offset_for(offset, sizes)
    made, (q, k, v) = score(name, sizes), tensors(sizes)
    expected = formulas.scores(made, q.numpy(), k.numpy(), offset)
    dense = made(q, k, offset).detach().broadcast_to(expected.shape)
    np.testing.assert_allclose(dense, expected, rtol=1e-12, atol=1e-12)
    lowered = regard.steps(q, k, v, score=made, offset=offset)
    np.testing.assert_allclose(lowered.scaled.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sink", [None, 0.25, [0.5, -1.0, 2.0, 0.0, 0.5, 1.0, -3.0, 0.1]])
@pytest.mark.parametrize("name", SCORES)
def test_attention_agrees_with_the_formula(name, sink):
    sizes, offset = Sizes(heads=8, kv_heads=4), torch.tensor([1, -2])
    made, (q, k, v) = score(name, sizes), tensors(sizes)
    seen = torch.rand(2, sizes.heads, sizes.queries, sizes.keys) < 0.6
    seen[0, :, 1] = False
    e = formulas.scores(made, q.numpy(), k.numpy(), offset)
    sinks = None if sink is None else np.broadcast_to(sink, sizes.heads)
    context, weights, logsumexp = formulas.attention(
        e, seen.numpy(), v.numpy(), offset, sinks, value_tables(made, sizes)
    )
    sink = torch.tensor(sink, dtype=torch.float64) if isinstance(sink, list) else sink
    for backend in ("reference", "blockwise"):
        out, lse = regard.attend(
            q, k, v, score=made, mask=seen, offset=offset, sink=sink, return_logsumexp=True, backend=backend
        )
        np.testing.assert_allclose(out.detach(), context, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(lse, logsumexp, rtol=1e-12, atol=1e-12)
    steps = regard.steps(q, k, v, score=made, mask=seen, offset=offset, sink=sink)
    np.testing.assert_allclose(steps.weights.detach(), weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(steps.context.detach(), context, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(steps.masked.detach(), np.where(seen, steps.scaled.detach(), -np.inf))


def value_tables(made, sizes):
    """r' of every head with a value table."""
    tables = []
    for count, part in zip(made.counts, made.scores, strict=True) if hasattr(made, "counts") else [(sizes.heads, made)]:
        holders = [s for s in part.modules() if getattr(s, "rv", None) is not None]
        tables += [formulas.own(holders[0].rv, h, 2) if holders else None for h in range(count)]
    return tables


# A number given as sink must not pass through float32.
def test_a_sink_given_as_a_number_is_exact_in_float64():
    q, k, v = tensors(Sizes())
    number, tensor = (regard.attend(q, k, v, sink=sink) for sink in (0.3, torch.tensor(0.3, dtype=torch.float64)))
    torch.testing.assert_close(number, tensor, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", SCORES)
def test_float64_queries_lose_nothing_to_float32_parameters(name):
    """The same as with parameters cast first: nothing computed from them alone is rounded."""
    sizes = Sizes(dim=6)  # 1/√6 is no power of two: scaling rounds
    narrow, (q, k, v) = score(name, sizes, torch.float32), tensors(sizes)
    wide = in_float64(narrow)
    sink = torch.randn(sizes.heads)
    calls = [({"mask": MASKS[mask](sizes)[0]}, {}) for mask in MASKS] + [({}, {"sink": sink})]
    same(narrow(q, k, -2), wide(q, k, -2))
    same(*(regard.attend(q, each.cached_keys(k), v, score=each) for each in (narrow, wide)))
    for backend in BACKENDS:
        for options, other in calls:
            if refusal(q, k, v, score=narrow, backend=backend, **options, **other) is None:
                out = regard.attend(q, k, v, score=narrow, backend=backend, **options, **other)
                other = {key: x.double() for key, x in other.items()}
                same(out, regard.attend(q, k, v, score=wide, backend=backend, **options, **other))


def same(out, expected):
    torch.testing.assert_close(out, expected, rtol=1e-14, atol=1e-14)


# --- similarity, before scaling ---


@pytest.mark.parametrize(
    ("made", "scale"),
    [("dot", 4**-0.5), ("dot_scale", 0.7), ("general_shared", 0.3), ("bilinear_one", 0.5), ("additive", 1.0)],
)
def test_similarity_is_the_pair_sum_before_scaling(made, scale):
    sizes = Sizes()
    q, k, v = tensors(sizes)
    steps = regard.steps(q, k, v, score=score(made, sizes))
    torch.testing.assert_close(steps.similarity * scale, steps.scaled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["relative_values", "everything", "per_head", "t5", "bias_full", "rotary"])
def test_picked_rows_are_the_rows_of_the_whole(name):
    sizes, rows = Sizes(queries=9, keys=9), torch.tensor([7, 0, 4])
    made, (q, k, v) = score(name, sizes), tensors(sizes)
    documents = torch.tensor([0] * 4 + [1] * 5)
    mask = regard.mask.Causal() & regard.mask.Documents(documents, documents)
    whole = regard.steps(q, k, v, score=made, mask=mask, offset=-1)
    some = regard.steps(q, k, v, score=made, mask=mask, offset=-1, rows=rows)
    for field in ("similarity", "scaled", "masked", "weights", "context", "logsumexp"):
        torch.testing.assert_close(getattr(some, field), getattr(whole, field).index_select(2, rows))


# --- other dims, other heads ---


def test_queries_and_keys_of_different_dims():
    q, k = torch.randn(1, 4, 3, 6, dtype=torch.float64), torch.randn(1, 2, 5, 4, dtype=torch.float64)
    v = torch.randn(1, 2, 5, 7, dtype=torch.float64)
    for made in (
        Additive(6, 4, 3, heads=4, kv_heads=2),
        General(6, 4, heads=4, kv_heads=2),
        Bilinear(6, 4, 3),
        Rotary(Bilinear(6, 4, 3), dims=4),
    ):
        made.double()
        expected = formulas.scores(made, q.numpy(), k.numpy(), 2)
        np.testing.assert_allclose(made(q, k, 2).detach(), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            regard.steps(q, k, v, score=made, offset=2).scaled.detach(), expected, rtol=1e-12, atol=1e-12
        )


# The slopes of 16, 12 and 20 heads have many bits: kept in float32 they would be off by 1e-8 in float64.
@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 7, 8, 12, 16, 20])
def test_alibi_slopes_of_any_number_of_heads(heads):
    sizes = Sizes(batch=(1,), heads=heads, kv_heads=1, queries=2, keys=4)
    q, k, v = tensors(sizes)
    expected = formulas.scores(ALiBi(heads), q.numpy(), k.numpy(), 9)
    np.testing.assert_allclose(ALiBi(heads)(q, k, 9), expected, rtol=1e-12)
    np.testing.assert_allclose(regard.steps(q, k, v, score=ALiBi(heads), offset=9).scaled, expected, rtol=1e-12)


def test_alibi_slopes_of_eight_heads_are_the_papers():
    assert ALiBi(8).slopes(torch.ones(1)).tolist() == [1 / 2**n for n in range(1, 9)]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 17), (4, 3), (64, 300)])
def test_t5_buckets(buckets, max_distance, bidirectional):
    made = T5Bias(1, buckets, max_distance, bidirectional)
    deltas = range(-max_distance, max_distance + 1)
    assert made.buckets.tolist() == [formulas.t5_bucket(d, buckets, max_distance, bidirectional) for d in deltas]


def test_rotary_turns_depend_on_the_distance_alone():
    q, k = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 6, 8, dtype=torch.float64)
    near = Rotary()(q, k, 0)
    far = Rotary()(q, torch.cat((torch.zeros(1, 1, 50, 8, dtype=torch.float64), k), -2), 50)[..., 50:]
    torch.testing.assert_close(near, far, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("log_scale", [0.0, 4.0, 20.0])
def test_cosine_temperature_is_kept_at_its_largest(log_scale):
    made = Cosine(heads=2).double()
    made.log_scale.data[:] = log_scale
    q, k = torch.randn(1, 2, 3, 4, dtype=torch.float64), torch.randn(1, 2, 3, 4, dtype=torch.float64)
    assert made(q, k).abs().max() <= min(np.exp(log_scale), 100.0) * (1 + 1e-12)
    np.testing.assert_allclose(made(q, k).detach(), formulas.scores(made, q.numpy(), k.numpy()), rtol=1e-12)


def test_cosine_of_a_zero_vector_is_zero_with_finite_gradients():
    q, k, v = tensors(Sizes(), grad=True)
    with torch.no_grad():
        q[:, :, 0], k[:, :, 1] = 0.0, 0.0
    for backend in ("reference", "blockwise"):
        out = regard.attend(q, k, v, score=Cosine().double(), backend=backend)
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_initialisation_follows_the_papers():
    made = Additive(500, 400, 300, init="paper")
    assert abs(made.W.std().item() - 0.001) < 1e-4 and not made.v.any()
    assert Additive(500, 400, 300).W.abs().max() <= (6 / 800) ** 0.5
    assert General(300, 200).W.abs().max() <= 0.1 < 2 * General(300, 200).W.abs().max()
    assert abs(T5Bias(64, 256, 500, dim=1024).weight.std().item() - 1024**-0.5) < 1e-3
    assert abs(Cosine().log_scale.exp().item() - 10) < 1e-5


@pytest.mark.parametrize("name", SCORES)
def test_scores_have_a_repr_and_a_state_dict_that_loads(name):
    sizes = Sizes()
    made, other = score(name, sizes), score(name, sizes)
    assert type(made).__name__ in repr(made)
    other.load_state_dict(made.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), other.parameters(), strict=True))


# --- gradients ---


def gradcheck(check, name, backend, **options):
    sizes = Sizes(batch=(2,), heads=2, kv_heads=1, queries=3, keys=3, dim=2, value_dim=2)
    made, (q, k, v) = score(name, sizes), tensors(sizes, grad=True)
    names, parameters = zip(*made.named_parameters(), strict=True) if list(made.parameters()) else ((), ())
    sink = torch.randn(sizes.heads, dtype=torch.float64, requires_grad=True)

    def f(q, k, v, sink, *values):
        # functional_call swaps the parameters in, so that gradcheck may nudge them
        return torch.func.functional_call(
            Attend(made, backend), dict(zip(names_in, values, strict=True)), (q, k, v, sink)
        )

    names_in = [f"score.{n}" for n in names]
    copies = [p.detach().clone().requires_grad_() for p in parameters]
    assert check(f, (q, k, v, sink, *copies), **options)


class Attend(torch.nn.Module):
    def __init__(self, score, backend):
        super().__init__()
        self.score, self.backend = score, backend

    def forward(self, q, k, v, sink):
        mask = regard.mask.Window(1, 1)
        return regard.attend(q, k, v, score=self.score, mask=mask, offset=1, sink=sink, backend=self.backend)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", SCORES)
def test_gradients(name, backend):
    gradcheck(torch.autograd.gradcheck, name, backend, fast_mode=True)


@pytest.mark.parametrize("name", ["additive", "relative_values", "cosine_heads", "rotary_partial", "everything"])
def test_second_gradients_of_the_reference(name):
    gradcheck(torch.autograd.gradgradcheck, name, "reference", fast_mode=True)


def test_gradients_of_the_full_jacobian():
    for name in ("additive", "everything"):
        gradcheck(torch.autograd.gradcheck, name, "blockwise")


def test_softcap_of_a_bias_tensor_leaves_the_bias_uncapped():
    q, k, v = tensors(Sizes())
    made = Softcap(score("dot", Sizes()), 0.5) + Bias(torch.full((1, 7), 9.0))
    e = regard.steps(q, k, v, score=made).scaled
    assert e.min() >= 8.5 and e.max() <= 9.5


def test_trilinear_is_a_diagonal_general_and_a_key():
    """BiDAF's w·[q; k; q∘k] gives the same weights, and the same gradients, without the query's own part."""
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 3, n, 6, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    w = torch.randn(3, 6, dtype=torch.float64)
    pair = regard.score.General(6, 6, diagonal=True).double()
    key = regard.score.Key(6).double()
    with torch.no_grad():
        key.w.copy_(w[1:2])
        pair.W.copy_(w[2:3])
    left, right = torch.broadcast_tensors(q[..., :, None, :], k[..., None, :, :])
    trilinear = torch.cat((left, right, left * right), -1) @ w.flatten()
    expected = trilinear.softmax(-1) @ v
    got = regard.attend(q, k, v, score=pair + key)
    assert (got - expected).abs().max() < 1e-12
    up = torch.randn_like(expected)
    for a, b in zip(torch.autograd.grad(got, (q, k, v), up), torch.autograd.grad(expected, (q, k, v), up), strict=True):
        assert (a - b).abs().max() < 1e-12
    assert (pair(q, k) + key(q, k) - trilinear).abs().max() > 0.1  # what the softmax cancels is there
    with pytest.raises(ValueError, match="diagonal=True needs equal dims, got query_dim=4, key_dim=5"):
        regard.score.General(4, 5, diagonal=True)


# --- what is shown of them ---


@pytest.mark.parametrize(
    "shown",
    [
        "Dot()",
        "Dot(scale=0.5)",
        "Additive(query_dim=4, key_dim=6, hidden_dim=5)",
        "Additive(query_dim=4, key_dim=6, hidden_dim=5, heads=4, kv_heads=2, init='paper', form='exact')",
        "General(query_dim=4, key_dim=6)",
        "General(query_dim=4, key_dim=4, heads=2, scale=0.5, diagonal=True)",
        "Bilinear(query_dim=4, key_dim=6, rank=3)",
        "Bilinear(query_dim=4, key_dim=4, rank=3, shared=True, heads=4, kv_heads=2, scale=0.5)",
        "Cosine(max_scale=100.0, eps=1e-06)",
        "Cosine(heads=4, max_scale=50.0, eps=1e-06)",
        "Location(query_dim=4, max_distance=3)",
        "Location(query_dim=4, max_distance=3, scale=0.5, heads=2)",
        "Relative(dim=4, max_distance=3)",
        "Relative(dim=4, max_distance=3, values=True, heads=2, value_dim=6)",
        "ALiBi(heads=6)",
        "T5Bias(heads=4, buckets=32, max_distance=128, bidirectional=True)",
        "T5Bias(heads=4, buckets=16, max_distance=64, bidirectional=False)",
        "Key(dim=4)",
        "Key(dim=4, heads=2)",
    ],
)
def test_a_score_shows_what_it_was_made_with(shown):
    """Evaluating the repr gives a score with the same repr."""
    assert repr(eval(shown, vars(regard.score))) == shown


def test_scores_of_other_scores_show_them():
    shown = repr(regard.score.PerHead((2, regard.score.Dot()), (1, regard.score.Key(4))))
    assert "heads=2 + 1" in shown and "Key(dim=4)" in shown
    assert repr(regard.score.Bias(torch.zeros(2, 3))) == "Bias([2, 3])"


def test_steps_show_a_line_each():
    steps = regard.steps(*torch.randn(3, 1, 2, 50, 8), mask=regard.mask.Causal())
    lines = repr(steps).split("\n")
    assert [line.split()[0] for line in lines] == ["Steps", *steps.__dataclass_fields__]
    assert "[1, 2, 50, 50]" in lines[4] and lines[4].endswith("0 … 1") and max(map(len, lines)) < 80
    assert "[2, 3, 3]" in repr(regard.steps(*torch.zeros(3, 2, 3, 4, device="meta")))


# --- projections ---


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor created meanwhile."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


@pytest.mark.parametrize("shape", [(3, 4, 1, 8), (2, 3, 4, 2, 8), (4, 2, 8), (0, 4, 1, 8), (3, 4, 0, 8), (3, 4, 9, 8)])
@pytest.mark.parametrize("sets", [(4,), (1,), ()])
def test_projections_are_products_with_the_weights_of_each_head(shape, sets):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    w = torch.randn(*sets, 6, 8, dtype=torch.float64, requires_grad=True)
    ours, plain = project(x, w), x @ w.mT
    torch.testing.assert_close(ours, plain)
    grad = torch.randn(plain.shape, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad(y, (x, w), grad) for y in (ours, plain)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["additive", "general", "bilinear", "relative"])
def test_a_step_of_decoding_copies_no_weights_for_every_item(name):
    """Broadcast over a batch, weights of each head would be copied for each item, and so would be their gradients."""
    items, heads, dims = 64, 4, 32
    score = {
        "additive": lambda: Additive(dims, dims, 48, heads=heads),
        "general": lambda: General(dims, dims, heads=heads),
        "bilinear": lambda: Bilinear(dims, dims, 48, heads=heads),
        "relative": lambda: Relative(dims, 16, heads=heads),
    }[name]()
    q = torch.randn(items, heads, 1, dims, requires_grad=True)
    with Largest() as made:
        out = sum(
            x.sum() for term in score.queries(q).terms for x in vars(term).values() if isinstance(x, torch.Tensor)
        )
        out.backward()
    assert made.numbers <= items * heads * 48  # not times the weights' other side

"""The Triton kernels of additive attention against the float64 reference: on a GPU, or else in Triton's interpreter.

A kernel may be wrong by twice what textbook PyTorch code in the same precision is wrong by, by the rounding of a result
to its type, and, for half types, by what the series is wrong by: 4 times its tolerance in a context, 16 times in a
gradient (its slope is that much worse), more where these cancel. Against the series in float64 it must be much closer.
"""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from interpreting import CUDA, DEVICE

import regard
from regard.kernels import operator, reference
from regard.kernels.gpu import additive as triton_additive
from regard.kernels.gpu import limits
from regard.kernels.gpu.additive import (
    TOLERANCE,
    AdditiveConfig,
    RowTiles,
    Tiles,
    TritonAdditive,
    _backward,
)
from regard.kernels.gpu.series import SERIES
from regard.mask import Causal, Dense, Documents, Lengths, Prefix, Window
from regard.score import Additive, ALiBi, Bias, Key, Location, Softcap
from regard.score.terms import BiasTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Terms

EVERY = [torch.float32, torch.float16, torch.bfloat16]
DTYPES = EVERY if CUDA else [torch.float32, torch.bfloat16]  # where half types differ in their series alone
TILES = Tiles(32, 32, 32, 4)
pytestmark = [
    pytest.mark.slow,  # the interpreter takes its time
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, from the interpreter: exp2 of much too little
    *([pytest.mark.gpu] if CUDA else []),  # there it runs on the GPU: `pytest -m gpu` has all of it
]
SMALL = AdditiveConfig(TILES, TILES, TILES, TILES, RowTiles(32, 32, 4), RowTiles(32, 32, 4, 32, 2))


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    if not CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def problem(
    dtype=torch.float32, batch=1, heads=2, kv_heads=1, queries=17, keys=33, dim=20, values=18, size=1.0, **rest
):
    """Any problem; w is per head."""
    a, b = torch.randn(batch, heads, queries, dim) * size, torch.randn(batch, kv_heads, keys, dim) * size
    w, v = torch.randn(1, heads, dim), torch.randn(batch, kv_heads, keys, values)
    a, b, w, v = (x.to(DEVICE, dtype) for x in (a, b, w, v))
    terms = (TanhTerm(a, w, b), *rest.pop("terms", ()))
    return Problem(Terms(terms), v, heads, queries, **rest)


# --- comparison ---


def packed(p):
    flat = operator._Packed()
    flat.put_problem(p)
    return flat


def in_type(p, dtype):
    """The problem with every floating-point tensor a fresh leaf of a type, and these leaves."""
    flat = packed(p)
    tensors = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in flat.tensors]
    return operator.unpack(" ".join(flat.code), tensors, flat.ints, flat.floats), tensors


def differentiate(p, dtype, grad):
    """Context, logsumexp and gradients of the dense textbook, everything in one type."""
    p, leaves = in_type(p, dtype)
    with mock.patch.object(Problem, "compute_dtype", property(lambda self: dtype)):
        out, lse = reference.run(p)
    wanted = [x for x in leaves if x.is_floating_point()]
    grads = torch.autograd.grad(out, wanted, grad.to(dtype), allow_unused=True)
    return [out.detach(), lse, *(torch.zeros_like(x) if g is None else g for g, x in zip(grads, wanted, strict=True))]


def fused(p, grad, config=None):
    kernel = TritonAdditive(config)
    torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
    try:
        assert torch.empty(3, device=DEVICE).isnan().all()
        out, lse = kernel.forward(p)
        grads = kernel.backward(p, out, lse, grad)
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.dtype == lse.dtype == torch.float32
    return [out.to(p.dtype), lse, *(x for x in packed(grads).tensors if x.is_floating_point())]


def series_tanh(p):
    """tanh as the kernels see it: the series that the range of the data asks for, or tanh itself."""
    (term,) = p.terms.tanhs
    reach = term.a.float().abs().max() + term.b.float().abs().max()
    if triton_additive.error_bound(p) == 0:
        return torch.tanh
    for limit, omega, c in SERIES[TOLERANCE[p.dtype]]:
        if reach <= limit:
            return lambda x, omega=omega, c=c: _Sines.apply(x, omega, c)
    return torch.tanh


class _Sines(torch.autograd.Function):
    """Σ c_m sin(ω_m x), one term after the other: all at once would not fit a GPU at full size."""

    @staticmethod
    def forward(ctx, x, omega, c):
        ctx.save_for_backward(x)
        ctx.terms = list(zip(omega, c, strict=True))
        return sum(c * torch.sin(w * x) for w, c in ctx.terms)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * sum(c * w * torch.cos(w * x) for w, c in ctx.terms), None, None


def cancellation(p, grad, exact):
    """By how much less each result is than what it is summed up from: Σ_k |x_k| / |Σ_k x_k|, at least 1.

    Rounded are the weights, the features and dS, the scores' gradient. A sum of these is off by eps Σ_k |x_k|: so much
    more, relative to its own size, than they are. The rounded weights also make the context, and with it delta, the one
    number that dS = P (dP − delta) has for all keys of a row. It is off by eps √Σ_k (P_k dP_k)², since each weight is
    rounded for itself, but then for all keys in the same direction: so that is a part of what dS is summed up from.
    """
    wide, leaves = in_type(p, torch.float64)
    wanted = [x for x in leaves if x.is_floating_point()]
    (term,) = wide.terms.tanhs

    def score(tanh):
        positive = [replace(t, w=t.w.abs()) if t is term else t for t in wide.terms.terms]
        with mock.patch.object(torch, "tanh", tanh):
            return reference.run_steps(replace(wide, terms=Terms(tuple(positive)))).scaled

    def gradients(y, ds):
        return torch.autograd.grad(y, wanted, ds, allow_unused=True, retain_graph=True)

    with mock.patch.object(Problem, "compute_dtype", property(lambda self: torch.float64)):
        steps = reference.run_steps(wide)
        (ds,) = torch.autograd.grad(steps.context, steps.scaled, grad.double(), retain_graph=True)
        tanh = torch.tanh
        sizes = [reference.run(replace(wide, v=wide.v.abs()))[0], None]
        delta = (steps.context * grad.double()).sum(-1, keepdim=True)
        weights = (steps.masked - steps.logsumexp.unsqueeze(-1)).exp().nan_to_num(0.0)
        spread = (ds + weights * delta).norm(dim=-1, keepdim=True)
        ds = ds.abs() + weights * spread
        sums, of_w = gradients(score(tanh), ds), gradients(score(lambda x: tanh(x).abs()), ds)
        of_v = gradients(steps.context, grad.double().abs())
    for x, *found in zip(wanted, sums, of_w, of_v, strict=True):
        sizes.append(found[1 if x is term.w else 2 if x is wide.v else 0])
        if x is wide.sink:  # its gradient is −Σ w_sink delta over batch and queries
            share = (x.unsqueeze(-1) - steps.logsumexp).exp()
            sizes[-1] = (share * (delta.abs() + spread).squeeze(-1)).sum_to_size(*x.shape, 1)
    pairs = zip(sizes, exact, strict=True)
    return [1.0 if s is None else max(1.0, s.norm().item() / max(y.norm().item(), 1e-30)) for s, y in pairs]


def distance(x, exact):
    """‖x − exact‖ / ‖exact‖; infinities must agree."""
    x, exact = x.double(), exact.double()
    assert x.shape == exact.shape
    assert torch.equal(x.isnan(), exact.isnan()), "NaN in other places"
    same = (x == exact) | exact.isnan()
    return torch.where(same, 0.0, x - exact).norm().item() / max(exact[exact.isfinite()].norm().item(), 1e-30)


def largest(x, exact):
    x = x.double()
    return torch.where((x == exact) | exact.isnan(), 0.0, x - exact).abs().max().item() if x.numel() else 0.0


def check(p, config=None, grad=None, names=None):
    why = triton_additive.refuses(p)
    assert why is None, why
    shape = (p.batch, p.heads, p.queries, p.v.shape[-1])
    grad = torch.randn(shape).to(DEVICE, p.dtype) if grad is None else grad
    ours, exact, eager = fused(p, grad, config), differentiate(p, torch.float64, grad), differentiate(p, p.dtype, grad)
    assert len(ours) == len(exact)
    names = ["context", "logsumexp", *(f"gradient {i}" for i in range(len(ours)))]
    if p.dtype == torch.float32:
        size = max(1.0, *(x[x.isfinite()].abs().max().item() for x in exact if x.isfinite().any()))
        size *= max(1.0, p.v[p.v.isfinite()].abs().max().item())
        for name, x, y, z in zip(names, ours, exact, eager, strict=False):
            assert torch.equal(x.isnan(), y.isnan()), f"{name}: NaN in other places"
            bound = 2 * largest(z, y) + 48 * torch.finfo(torch.float32).eps * size
            assert largest(x, y) <= bound, f"{name} is off by {largest(x, y):.1e}, allowed is {bound:.1e}"
        return
    with mock.patch.object(torch, "tanh", series_tanh(p)):
        like = differentiate(p, torch.float64, grad)
    eps = torch.finfo(p.dtype).eps
    biggest = max(y.norm().item() for y in exact[2:])
    worse = cancellation(p, grad, exact)
    for i, (name, x, y, z, s, times) in enumerate(zip(names, ours, exact, eager, like, worse, strict=False)):
        small = 1e-2 * biggest > y.norm().item() and i > 1  # what cancels to nothing has no relative error
        if small:
            assert (x.double() - y).norm().item() <= 1e-2 * biggest, name
            continue
        tight = (2 * eps + 3e-3) * times
        assert distance(x, s) <= tight, f"{name} is off its series by {distance(x, s):.1e}, allowed is {tight:.1e}"
        series = (4 if i < 2 else 16) * triton_additive.error_bound(p)
        bound = 2 * distance(z, y) + eps + series * times
        assert distance(x, y) <= bound, f"{name} is off by {distance(x, y):.1e}, allowed is {bound:.1e}"


# --- the series ---


@pytest.mark.parametrize("tolerance", SERIES)
def test_the_series_is_as_good_as_it_says(tolerance):
    for reach, omega, c in SERIES[tolerance]:
        x = torch.linspace(0, reach, 5001, dtype=torch.float64)
        omega, c = torch.tensor(omega, dtype=torch.float64), torch.tensor(c, dtype=torch.float64)
        value = (torch.sin(x[:, None] * omega) * c).sum(-1)
        slope = (torch.cos(x[:, None] * omega) * c * omega).sum(-1)
        assert (value - x.tanh()).abs().max() <= tolerance * min(1.0, (reach / 10) ** 2) * 1.01
        assert (slope - 1 / x.cosh() ** 2).abs().max() <= 17 * tolerance
    limits = [reach for reach, _, _ in SERIES[tolerance]]
    assert limits == sorted(limits) and limits[-1] > 21
    assert set(SERIES) == set(TOLERANCE.values())


@pytest.mark.parametrize("index", range(14))
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_number_of_terms(dtype, index):
    """a and b such that max|a| + max|b| lies just within, so that each row of the table is used."""
    p = problem(dtype, heads=1, queries=5, keys=6, dim=7)
    (term,) = p.terms.tanhs
    half = SERIES[TOLERANCE[dtype]][index][0] * 0.497
    a, b = (x / x.abs().max() * half for x in (term.a.float(), term.b.float()))
    check(replace(p, terms=Terms((TanhTerm(a.to(dtype), term.w, b.to(dtype)),))))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_exact_on_request(dtype):
    p = problem(dtype, queries=20, keys=40, dim=12)
    (term,) = p.terms.tanhs
    p = replace(p, terms=Terms((replace(term, form="exact"),)))
    check(p, SMALL)
    assert triton_additive.error_bound(p) == 0
    rounded = TritonAdditive().forward(p)[1]  # logsumexp is made of scores alone: no half type has touched them
    exact = reference.run(in_type(p, torch.float64)[0])[1]
    assert largest(rounded, exact) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_series_that_is_asked_for_is_taken(dtype):
    p = problem(dtype, queries=20, keys=40, dim=12)
    (term,) = p.terms.tanhs
    asked = replace(p, terms=Terms((replace(term, form="series"),)))
    assert triton_additive.error_bound(asked) == TOLERANCE[dtype]
    exact = reference.run(in_type(p, torch.float64)[0])[1]
    for one in (p, asked):
        assert 1e-5 < largest(TritonAdditive().forward(one)[1], exact) < TOLERANCE[dtype] * term.w.abs().sum(-1).max()


WEIGHTS, SIZES = ["any", "some tiny", "some zero"], [0.1, 1.0, 3.0, 5.0, 12.0, 30.0]
GROUPED = [
    (weights, size, group)
    for i, weights in enumerate(WEIGHTS)
    for j, size in enumerate(SIZES)
    for group in ((3, 4) if CUDA else (3 + (i + j) % 2,))  # in the interpreter, every two of them once
]


@pytest.mark.parametrize(("weights", "size", "group"), GROUPED)
def test_fractions_that_share_a_reciprocal(weights, size, group):
    """Four or three to a reciprocal, two where the range is wider, none beyond; weights are part of the fractions."""
    p = problem(heads=2, queries=7, keys=35, dim=21, size=size)
    (term,) = p.terms.tanhs
    if weights != "any":
        term.w[..., ::3] *= 1e-12 if weights == "some tiny" else 0.0
    check(p, replace(SMALL, forward_exact=replace(TILES, group=group), scores_exact=replace(TILES, group=group)))


def test_heads_of_very_different_weights():
    p = problem(heads=2, queries=7, keys=9, dim=5)
    p.terms.tanhs[0].w[:, 0] *= 1e-6
    p.terms.tanhs[0].w[:, 1] *= 1e3
    exact = reference.run(in_type(p, torch.float64)[0])[1]
    assert largest(TritonAdditive().forward(p)[1][:, 0], exact[:, 0]) < 1e-6


# --- shapes ---

LENGTHS = [(1, 1), (1, 70), (70, 1), (2, 3), (3, 2), (17, 33), (33, 17), (64, 32)]


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_lengths(queries, keys, dtype):
    check(problem(dtype, queries=queries, keys=keys), SMALL)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "values"), [(1, 1), (3, 5), (16, 16), (33, 17), (40, 33), (64, 64), (100, 80)])
def test_dims(dim, values, dtype):
    check(problem(dtype, heads=1, queries=5, keys=9, dim=dim, values=values))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("batch", "heads", "kv_heads"), [(2, 2, 2), (1, 3, 1), (2, 4, 2), (3, 1, 1)])
def test_grouped_heads(batch, heads, kv_heads, dtype):
    check(problem(dtype, batch=batch, heads=heads, kv_heads=kv_heads, queries=7, keys=35, dim=5))


@pytest.mark.parametrize("w", ["shared", "zero", "per item"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights(w, dtype):
    p = problem(dtype, batch=2, queries=6, keys=9, dim=5)
    (term,) = p.terms.tanhs
    made = {"shared": term.w[:, :1], "zero": torch.zeros_like(term.w), "per item": torch.cat((term.w, -term.w))}[w]
    check(replace(p, terms=Terms((replace(term, w=made),))))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype):
    p = problem(dtype, batch=2, heads=2, kv_heads=2, queries=9, keys=9, dim=6, values=6)
    (term,) = p.terms.tanhs

    def turned(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    moved = TanhTerm(turned(term.a), term.w, term.b.mT.contiguous().mT)
    check(replace(p, terms=Terms((moved,)), v=torch.stack((p.v, p.v), -1)[..., 0]))
    check(replace(p, terms=Terms((TanhTerm(term.a[:1].expand(2, -1, -1, -1), term.w, turned(term.b)),))))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("room", [1, 3 * 2**12, 3 * 2**13])
def test_a_small_workspace_takes_several_passes(room, dtype):
    p = problem(dtype, batch=2, heads=3, kv_heads=3, queries=20, keys=70, dim=4, mask=Causal(), offset=45)
    with mock.patch.object(_backward, "WORKSPACE", room * p.v.element_size() // 2):
        check(p, SMALL)


# --- few queries ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1, 31), (1, 130), (4, 100)])
def test_few_queries(queries, keys, dtype):
    """The keys are split among programs: some have all of a block, some a part of it, some nothing."""
    check(problem(dtype, heads=2, queries=queries, keys=keys, dim=9))
    check(problem(dtype, heads=1, queries=queries, keys=keys, mask=Window(40, 3), offset=keys - queries, size=9.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_queries_with_everything(dtype):
    slope = 0.05 * number(1, 2)  # a steep one leaves a query one key, and the slope nothing to learn
    terms = (KeyTerm(number(2, 1, 90, 1)), BiasTerm(number(1, 2, 3, 90)), OffsetTerm(number(1, 2, 3, 11), slope))
    rest = {
        "offset": 60,
        "mask": Causal() & Lengths(torch.tensor([80, 0], device=DEVICE)),
        "sink": number(1, 2).to(dtype),
    }
    seeds = torch.tensor([5], device=DEVICE)
    check(problem(dtype, batch=2, queries=3, keys=90, dim=33, values=7, terms=terms, dropout=0.3, seed=seeds, **rest))


@pytest.mark.parametrize("size", [1.0, 40.0])
def test_few_queries_against_cached_exponentials(size):
    p = problem(torch.float32, queries=2, keys=70, dim=9, size=size)
    (tanh,) = p.terms.tanhs
    tanh = replace(tanh, b=tanh.b.clamp(-43, 43))
    cached = replace(tanh, b=torch.exp(2 * tanh.b), exponential=True)
    p, q = (replace(p, terms=replace(p.terms, terms=(term,))) for term in (tanh, cached))
    for x, y in zip(triton_additive.run(q), triton_additive.run(p), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_few_queries_are_exact_in_every_type():
    p = problem(torch.bfloat16, queries=2, keys=70)
    assert triton_additive.error_bound(p) == 0
    exact = reference.run(in_type(p, torch.float64)[0])[1]
    assert largest(TritonAdditive().forward(p)[1], exact) < 1e-5


# --- masks ---


def ids(n, per_item=False):
    shape = (2, n) if per_item else (1, n)
    return torch.randint(0, 3, shape, device=DEVICE).sort(-1).values


MASKS = {
    "causal": lambda q, k: Causal(),
    "window": lambda q, k: Window(5, 2),
    "window_left": lambda q, k: Window(left=3),
    "window_far": lambda q, k: Window(10**12, 10**12),
    "lengths": lambda q, k: Lengths(torch.tensor([k // 2, 0], device=DEVICE)),
    "lengths_one": lambda q, k: Lengths(k - 3),
    "nothing": lambda q, k: Lengths(0),
    "prefix": lambda q, k: Prefix(2),
    "documents": lambda q, k: Documents(ids(q, True), ids(k, True)),
    "documents_one": lambda q, k: Documents(ids(q), ids(k)),
    "unsorted": lambda q, k: Documents(ids(q).flip(-1), torch.randint(0, 3, (1, k), device=DEVICE)),
    "and": lambda q, k: Causal() & Lengths(torch.tensor([k, k - 5], device=DEVICE)) & Window(20, None),
    "window_or_prefix": lambda q, k: Window(6, 0) | Prefix(torch.tensor([12, 0], device=DEVICE)),
    "causal_or_prefix": lambda q, k: (Causal() | Prefix(29)) & Documents(ids(q), ids(k)) & Lengths(k - 1),
    "many": lambda q, k: (
        Documents(ids(q), ids(k)) & Causal() & Lengths(k - 1) & Prefix(torch.tensor([7, k], device=DEVICE))
    ),
}


HALF = MASKS if CUDA else ("lengths", "window_or_prefix", "many")  # masks are the same code in every type


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in MASKS), *((name, torch.bfloat16) for name in HALF)], ids=str
)
def test_masks(name, dtype):
    mask = MASKS[name](40, 50)
    check(problem(dtype, batch=2, heads=1, queries=40, keys=50, dim=4, values=5, mask=mask, offset=9), SMALL)


@pytest.mark.parametrize("offset", [-60, -3, 0, 1, 33, 200, "items"] if CUDA else [-60, 1, 200, "items"])
@pytest.mark.parametrize("name", ["causal", "window", "causal_or_prefix"])
def test_offsets_of_positions(name, offset):
    offset = torch.tensor([[-4], [40]], device=DEVICE) if offset == "items" else offset
    mask = MASKS[name](20, 40)
    check(problem(batch=2, heads=1, queries=20, keys=40, dim=3, values=3, mask=mask, offset=offset), SMALL)


def test_other_masks_are_refused():
    dense = torch.ones(1, 1, 17, 33, dtype=torch.bool, device=DEVICE)
    for mask in (
        Dense(dense),
        ~Causal(),
        Causal() | Causal(),
        Causal() & Dense(dense),
        (Causal() | Prefix(3)) & Causal(),
    ):
        assert "none of these" in triton_additive.refuses(problem(mask=mask))


# --- other terms, dropout, sink, what is not finite ---


def number(*shape):
    return torch.randn(shape, device=DEVICE)


TERMS = {
    "key": lambda: (KeyTerm(number(2, 1, 40, 1)),),
    "bias": lambda: (BiasTerm(number(2, 2, 35, 40)),),
    "bias_shared": lambda: (BiasTerm(number(1, 1, 35, 40)),),
    "bias_row": lambda: (BiasTerm(number(1, 2, 1, 40)),),
    "bias_column": lambda: (BiasTerm(number(2, 1, 35, 1)),),
    "offset": lambda: (OffsetTerm(number(2, 2, 35, 9)),),
    "offset_shared": lambda: (OffsetTerm(number(1, 1, 1, 33), 0.1 * number(1, 2)),),
    "offset_one": lambda: (OffsetTerm(number(1, 2, 1, 1), 0.1 * number(1, 1)),),
    "all": lambda: (
        KeyTerm(number(2, 1, 40, 1)),
        BiasTerm(number(1, 2, 35, 40)),
        OffsetTerm(number(1, 2, 35, 11), 0.1 * number(1, 2)),
    ),
}


TERMS_IN_HALF = TERMS if CUDA else ("all", "bias", "offset")  # their shapes are told apart before types are


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in TERMS), *((name, torch.float16) for name in TERMS_IN_HALF)],
    ids=str,
)
def test_other_terms(name, dtype):
    made = {"batch": 2, "queries": 35, "keys": 40, "dim": 4, "values": 5, "terms": TERMS[name]()}
    check(problem(dtype, **made, offset=-3), SMALL)
    if name == "all":
        check(problem(dtype, **made, offset=3, mask=Causal()), SMALL)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bias_gradient_that_nobody_wants(dtype):
    p = problem(dtype, queries=6, keys=7, terms=(BiasTerm(number(1, 1, 6, 7)),), need_bias_gradient=False)
    grads = TritonAdditive().backward(p, *TritonAdditive().forward(p), torch.ones(1, 2, 6, 18, device=DEVICE).to(dtype))
    assert not grads.terms.biases[0].bias.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rest", [{}, {"mask": Lengths(0)}, {"dropout": 0.4}], ids=["", "nothing", "dropout"])
def test_sink(rest, dtype):
    rest = {"seed": torch.tensor([3], device=DEVICE), **rest}
    for sink in (number(1, 1), number(1, 2), torch.full((1, 2), -torch.inf, device=DEVICE)):
        check(problem(dtype, batch=2, queries=5, keys=9, dim=4, sink=sink.to(dtype), **rest))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", [0, -1, 2**33 + 5])
def test_dropout_drops_the_same_weights(seed, dtype):
    seeds = torch.tensor([seed], device=DEVICE)
    check(problem(dtype, batch=2, queries=36, keys=40, dim=3, dropout=0.3, seed=seeds, first_head=5), SMALL)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9])
def test_dropout_rates(p):
    seeds = torch.tensor([1, 2], device=DEVICE)
    check(problem(batch=2, queries=9, keys=20, dim=3, dropout=p, seed=seeds))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_see_what_is_not_finite_are_nan_and_have_no_gradient(dtype):
    bad_keys, bad_rows = torch.zeros(2, 1, 40, dtype=torch.bool), torch.zeros(2, 2, 36, dtype=torch.bool)
    bad_keys[0, 0, 20], bad_rows[1, 1, 3], bad_rows[0, 0, 35] = True, True, True
    mask = Window(6, 0) & Lengths(torch.tensor([38, 30], device=DEVICE))
    p = problem(dtype, batch=2, queries=36, keys=40, dim=4, values=5, mask=mask)
    p = replace(p, bad_keys=bad_keys.to(DEVICE), bad_rows=bad_rows.to(DEVICE))
    grad = torch.randn(2, 2, 36, 5).to(DEVICE, dtype)
    ours = fused(p, grad, SMALL)
    exact = reference.run(p)
    nan = exact[1].isnan()
    assert nan.any() and not nan.all()
    assert torch.equal(ours[1].isnan(), nan) and torch.equal(ours[0].isnan(), nan[..., None].expand(ours[0].shape))
    clean = replace(p, bad_keys=None, bad_rows=None)  # the same without the rows that are NaN
    expected = differentiate(clean, torch.float64, grad.masked_fill(nan[..., None], 0.0))
    for x, y in zip(ours[2:], expected[2:], strict=True):
        assert distance(x, y) < (1e-5 if dtype == torch.float32 else 0.06)
    with_nan = fused(p, grad.masked_fill(nan[..., None], torch.nan), SMALL)
    for x, y in zip(with_nan[2:], ours[2:], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_without_a_mask_reaches_every_row_that_sees_it(dtype):
    p = problem(dtype, queries=5, keys=9)
    p.terms.tanhs[0].a[0, 1, 2, 3] = torch.nan
    out, lse = TritonAdditive().forward(p)
    assert out[0, 1, 2].isnan().all() and lse[0, 1, 2].isnan() and out.isnan().sum() == out.shape[-1]
    p = problem(dtype, queries=5, keys=9)
    p.terms.tanhs[0].b[0, 0, 2, 3] = torch.nan
    assert TritonAdditive().forward(p)[0].isnan().all()


# --- extreme values ---

EXTREMES = {
    "large": lambda x: x * 1e4,
    "equal": lambda x: torch.full_like(x, 1e4),
    "opposite": lambda x: (
        torch.where(torch.arange(x.shape[-2], device=DEVICE)[:, None] % 2 == 0, 1e4, -1e4).expand(x.shape).to(x.dtype)
    ),
    "denormal": lambda x: x * torch.finfo(x.dtype).tiny / 8,
    "zero": lambda x: x * 0,
    "mixed": lambda x: (x * torch.logspace(-6, 4, x.shape[-2], device=DEVICE)[:, None]).to(x.dtype),
}


@pytest.mark.parametrize("keys", EXTREMES)
@pytest.mark.parametrize("queries", EXTREMES)
def test_extreme_values(queries, keys):
    half = (len(queries) + len(keys)) % 3 == 0  # some of them
    p = problem(torch.bfloat16 if half else torch.float32, heads=1, queries=6, keys=8, dim=3, values=4)
    (term,) = p.terms.tanhs
    b = EXTREMES[keys](term.b)
    check(replace(p, terms=Terms((TanhTerm(EXTREMES[queries](term.a), term.w, -b if keys == "opposite" else b),))))


@pytest.mark.parametrize("a", [0.0, 1e-3, 9.9, 10.1, 21.0, 42.9, 43.1, 80.0, 300.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_large_values_that_cancel(a, dtype):
    p = problem(dtype, heads=1, queries=2, keys=9, dim=4, values=4)
    (term,) = p.terms.tanhs
    queries = torch.full_like(term.a, a)
    keys = -queries[:, :, :1] + torch.linspace(-2, 2, 9, device=DEVICE, dtype=dtype)[:, None]
    check(replace(p, terms=Terms((TanhTerm(queries, term.w, keys),))))


def test_large_scores():
    p = problem(heads=1, queries=5, keys=8, dim=4)
    (term,) = p.terms.tanhs
    check(replace(p, terms=Terms((replace(term, w=term.w * 1e3),))))


# --- the planner's side ---


def test_it_says_what_it_cannot_do(monkeypatch):
    refuses = triton_additive.refuses
    p = problem()
    assert refuses(p) is None
    assert "tanh" in refuses(replace(p, terms=Terms(())))
    assert "softcap" in refuses(replace(p, terms=Terms(p.terms.terms, 3.0)))
    assert "float32" in refuses(in_type(p, torch.float64)[0])
    assert "value dims" in refuses(problem(values=300))
    assert "empty" in refuses(problem(queries=0))
    assert "whole sequences" in refuses(replace(p, rows=torch.arange(17)))
    many = (KeyTerm(number(1, 1, 33, 1)),) * 2
    assert "at most one" in refuses(problem(terms=many))
    monkeypatch.setattr(limits, "TRITON_MISSING", True)
    assert "not installed" in refuses(p)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if not CUDA:
        assert "CUDA" in refuses(p)
    assert triton_additive.error_bound(p) == 0 and triton_additive.error_bound(problem(torch.float16)) == 2e-3
    assert triton_additive.memory_bytes(problem(torch.float16)) > triton_additive.memory_bytes(p) > 0


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize(
    ("make", "mask"),
    [
        (lambda: Additive(6, 6, 5, heads=4, kv_heads=2), Causal()),
        (lambda: Additive(6, 6, 5) + ALiBi(4) + Key(6), Lengths([9, 5])),
        (lambda: Additive(6, 6, 5) + Location(6, 3) + Bias(torch.randn(7, 9)), None),
        (lambda: Additive(6, 6, 3) + Additive(6, 6, 2), None),
    ],
)
def test_through_attend(make, mask, dtype):
    module = make().to(DEVICE, dtype)
    mask = Lengths(mask.tensors[0].to(DEVICE)) if isinstance(mask, Lengths) else mask
    q, k, v = (torch.randn(2, h, n, 6).to(DEVICE, dtype).requires_grad_() for h, n in ((4, 7), (2, 9), (2, 9)))
    leaves = [q, k, v, *module.parameters()]
    results = []
    for backend in ("triton_additive", "blockwise"):
        out = regard.attend(q, k, v, score=module, mask=mask, dropout=0.2, seed=1, backend=backend)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for x, y in zip(*results, strict=True):
        assert distance(x.detach(), y.detach()) < tolerance
    choice = regard.plan(q, k, v, score=module, mask=mask, backend="triton_additive")
    assert choice.kernel == "triton_additive"
    with pytest.raises(ValueError, match="softcap"):
        regard.plan(q, k, v, score=Softcap(Additive(6, 6, 5).to(q), 2.0), backend="triton_additive")


# --- full size, on a GPU ---


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("dim", "values", "mask"),
    [
        (64, 64, None),
        (64, 64, Causal()),
        (16, 256, None),
        (200, 40, Window(100, 100)),
        (256, 16, None),
        (64, 128, None),
    ],
    ids=str,
)
def test_full_size(dim, values, mask, dtype):
    check(problem(dtype, batch=1, heads=4, kv_heads=2, queries=700, keys=650, dim=dim, values=values, mask=mask))


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runs_repeat_to_the_bit(dtype):
    p = problem(dtype, heads=4, kv_heads=2, queries=3000, keys=2500, dim=64, values=64)
    grad = torch.randn(1, 4, 3000, 64).to(DEVICE, dtype)
    one, two = fused(p, grad), fused(p, grad)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_grows_linearly(dtype):
    peaks = []
    for n in (8192, 16384, 32768):
        p = problem(dtype, heads=1, queries=n, keys=n, dim=64, values=64)
        grad = torch.randn(1, 1, n, 64).to(DEVICE, dtype)
        out, lse = TritonAdditive().forward(p)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        TritonAdditive().backward(p, out, lse, grad)
        peaks.append(torch.cuda.max_memory_allocated() - start - triton_additive.WORKSPACE)
    assert peaks[2] < 2.2 * peaks[1] < 2.2 * 2.2 * peaks[0]

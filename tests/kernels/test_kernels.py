"""Every kernel against the reference in float64, on problems drawn afresh: forward, logsumexp and all gradients.

A kernel may be wrong by twice what textbook PyTorch code in the same precision is wrong by, and by the rounding of a
result to its type.
"""

import contextlib
import copy
import math
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from cases import MASKS, SCORES, Sizes, in_float64, refusal, score, tensors
from hypothesis import example, given, settings
from hypothesis import strategies as st

import regard
from regard.attention.plan import GPU_ONLY
from regard.attention.plan import KERNELS as ALL_KERNELS
from regard.kernels import _dropout, blockwise, reference
from regard.mask import Causal, Prefix
from regard.score import Additive, ALiBi, Dot, General, PerHead, Rotary
from regard.score.terms import DotTerm, OffsetTerm, Problem, Terms

KERNELS = [name for name in ALL_KERNELS if name not in GPU_ONLY]  # those have suites of their own
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@dataclass(frozen=True)
class Draw:
    """A problem, drawn from a seed."""

    sizes: Sizes
    score: str
    mask: str | None = None
    offset: int | str = 0
    dtype: torch.dtype = torch.float32
    layout: str = "plain"
    dropout: float = 0.0
    sink: str | None = None
    blocks: tuple[int, ...] | None = None
    seed: int = 0


LENGTHS = st.sampled_from([1, 2, 3, 5, 16, 17, 33, 64, 70])
HEADS = st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1), (8, 4)])
DRAWS = st.builds(
    lambda heads, sizes, **rest: Draw(replace(sizes, heads=heads[0], kv_heads=heads[1]), **rest),
    heads=HEADS,
    sizes=st.builds(
        Sizes,
        batch=st.sampled_from([(1,), (2,), (3,), (), (2, 2)]),
        queries=LENGTHS,
        keys=LENGTHS,
        dim=st.sampled_from([2, 4, 8, 18]),
        value_dim=st.sampled_from([1, 3, 8, 19]),
    ),
    score=st.sampled_from(sorted(SCORES)),
    mask=st.sampled_from([None, *sorted(MASKS)]),
    offset=st.one_of(st.integers(-40, 80), st.just(0), st.just("items")),
    layout=st.sampled_from(["plain", "transposed", "strided", "expanded", "broadcast"]),
    dropout=st.sampled_from([0.0, 0.0, 0.3]),
    sink=st.sampled_from([None, None, "one", "heads"]),
    blocks=st.one_of(st.none(), st.tuples(*[st.integers(1, n) for n in (3, 20, 20)], st.integers(0, 3))),
    seed=st.integers(0, 2**31),
)


@dataclass(frozen=True)
class Made:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    score: regard.score.Score
    options: dict
    sink: torch.Tensor | None
    grad: torch.Tensor


def make(draw):
    torch.manual_seed(draw.seed)
    s = draw.sizes
    q, k, v = (lay_out(x, draw.layout) for x in tensors(s, draw.dtype))
    if draw.layout == "broadcast" and s.batch:
        q, k, v = (q[:1], k, v) if draw.seed % 2 else (q, k[:1], v[:1])
    mask = None if draw.mask is None else MASKS[draw.mask](s)[0]
    offset = torch.randint(-5, s.keys + 5, s.batch) if draw.offset == "items" else draw.offset
    sink = {None: None, "one": torch.randn(1), "heads": torch.randn(s.heads)}[draw.sink]
    grad = torch.randn(*s.batch, s.heads, s.queries, s.value_dim).to(draw.dtype)
    options = {"mask": mask, "offset": offset, "dropout": draw.dropout, "seed": draw.seed}
    return Made(q, k, v, score(draw.score, s, draw.dtype), options, None if sink is None else sink.to(draw.dtype), grad)


def lay_out(x, layout):
    """The same kind of tensor with other strides."""
    if layout == "transposed":
        return x.transpose(-2, -3).contiguous().transpose(-2, -3)
    if layout == "strided":
        return torch.stack((x, x), -1)[..., 0][..., ::1]
    if layout == "expanded":
        return x[..., :1, :].expand(x.shape)
    return x


def leaves(made, dtype):
    """Fresh leaves of q, k, v, the sink and the score, in a dtype."""
    module = in_float64(made.score) if dtype == torch.float64 else copy.deepcopy(made.score).to(dtype)
    q, k, v, sink = (
        None if x is None else x.detach().to(dtype).requires_grad_() for x in (made.q, made.k, made.v, made.sink)
    )
    return q, k, v, sink, module


def run(made, dtype, backend):
    """Context, logsumexp if there is one, and gradients by name."""
    q, k, v, sink, module = leaves(made, dtype)
    options = {"score": module, "sink": sink, "backend": backend, **made.options}
    if refusal(q, k, v, return_logsumexp=True, **options):
        out, lse = regard.attend(q, k, v, **options), None
    else:
        out, lse = regard.attend(q, k, v, return_logsumexp=True, **options)
    return out.detach(), lse, gradients(out, made.grad.to(dtype), q, k, v, sink, module)


def gradients(out, grad, q, k, v, sink, module):
    named = {"q": q, "k": k, "v": v, "sink": sink, **dict(module.named_parameters())}
    named = {name: x for name, x in named.items() if x is not None}
    grads = torch.autograd.grad(out, list(named.values()), grad, allow_unused=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(named.items(), grads, strict=True)}


def eager(made, dtype):
    """The textbook formula, every operation in that dtype."""
    q, k, v, sink, module = leaves(made, dtype)
    (s, offset, mask), heads = (q.shape[-2], made.options["offset"], made.options["mask"]), q.shape[-3]
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    wide_q, wide_k, wide_v = (x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    keys, n = k.shape[-2], wide_q.shape[0]
    flat = offset.reshape(-1) if isinstance(offset, torch.Tensor) else offset
    bias = [m for m in module.modules() if isinstance(m, regard.score.Bias) and m.bias.ndim > 3]
    e = module(wide_q if not bias else q.expand(*batch, *q.shape[-3:]), wide_k if not bias else k, flat)
    e = e.reshape(n, heads, s, keys)
    if mask is not None:
        e = e.masked_fill(
            regard.steps(q, k, v, mask=mask, offset=offset).masked.reshape(e.shape) == -torch.inf, -torch.inf
        )
    empty = (e == -torch.inf).all(-1, keepdim=True)
    if sink is not None:
        e = torch.cat((e, sink.reshape(-1, 1, 1).expand(n, heads, s, 1)), -1)
    else:
        e = e.masked_fill(empty, 0.0)
    lse = e.detach().logsumexp(-1)
    weights = e.softmax(-1)[..., :keys]
    weights = weights if sink is not None else weights.masked_fill(empty, 0.0)
    lse = lse if sink is not None else lse.masked_fill(empty[..., 0], -torch.inf)
    if made.options["dropout"]:
        weights = weights * dropout_factors(made.options, n, heads, s, keys) / (1 - made.options["dropout"])
    context = weights @ wide_v.repeat_interleave(heads // v.shape[-3], 1)
    context = context + value_term(module, weights, flat)
    context = context.reshape(*batch, heads, s, -1)
    grads = gradients(context, made.grad.to(dtype), q, k, v, sink, module)
    return context.detach(), lse.reshape(*batch, heads, s), grads


def dropout_factors(options, batch, heads, queries, keys):
    index = (torch.arange(n) for n in (batch, heads, queries, keys))
    return _dropout.keep(options["dropout"], torch.tensor([options["seed"]]), *index)


def value_term(module, weights, offset):
    """Σ_j α_ij r'_clip(j−i), group by group of heads."""
    groups = module.groups() if isinstance(module, PerHead) else [(0, weights.shape[1], module)]
    parts = []
    for first, end, part in groups:
        tables = [m.rv for m in part.modules() if getattr(m, "rv", None) is not None]
        where = torch.arange(weights.shape[2]) + (offset if isinstance(offset, int) else offset[:, None])
        delta = torch.arange(weights.shape[3]) - where[..., None]
        if not tables:
            parts.append(weights.new_zeros(1).expand(*weights[:, first:end].shape[:3], 1))
            continue
        reach = tables[0].shape[-2] // 2
        index = delta.clamp(-reach, reach) + reach  # [L, S] or [B, L, S]
        r = tables[0][..., index, :]  # [H|·, B|·, L, S, Dv]
        if tables[0].ndim == 3:
            r = r.transpose(0, 1) if index.ndim == 3 else r
        elif index.ndim == 3:
            r = r[:, None]
        parts.append((weights[:, first:end, :, :, None] * r).sum(-2))
    widest = max(part.shape[-1] for part in parts)
    return torch.cat([part.expand(*part.shape[:3], widest) for part in parts], 1)


@contextlib.contextmanager
def surroundings(blocks):
    """Small blocks, so that small problems have many tiles, and memory that is NaN until it is written."""
    sizes = blockwise._block_sizes if blocks is None else lambda p: blockwise.Blocks(*blocks)
    torch.use_deterministic_algorithms(True)
    try:
        with mock.patch.object(blockwise, "_block_sizes", sizes):
            assert torch.empty(3).isnan().all(), "uninitialised memory is not poisoned"
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def error(x, exact):
    """Largest difference; −inf equals −inf."""
    assert x.shape == exact.shape
    assert not x.isnan().any()
    same = x.double() == exact
    return torch.where(same, 0.0, x.double() - exact).abs().max().item() if x.numel() else 0.0


def scale(exact):
    finite = exact[exact.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def compare(made, dtype, backend, blocks=None):
    exact_out, exact_lse, exact_grads = run(made, torch.float64, "reference")
    eager_out, eager_lse, eager_grads = eager(made, dtype)
    with surroundings(blocks):
        out, lse, grads = run(made, dtype, backend)
    assert out.dtype == dtype
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = max(1.0, *(scale(x) for x in (made.q, made.k, made.v)))
    size = inputs * max(1.0, *(scale(x) for x in (exact_out, *exact_grads.values())))

    eps = torch.finfo(dtype).eps
    theirs = 2 if backend == "sdpa" and compute != dtype else 1  # PyTorch's own rounds weights and context on the way

    def check(name, x, exact, textbook, least=0.0, sums=1):
        lucky = 4 if exact.numel() < 16 else 2  # a handful of numbers may happen to be rounded well
        floor = 64 * torch.finfo(compute).eps * size * sums**0.5 + lucky * eps * max(scale(exact), least)
        bound = theirs * (2 * error(textbook, exact) + floor)
        assert error(x, exact) <= bound, f"{backend}: {name} is off by {error(x, exact):.2e}, allowed is {bound:.2e}"

    # A context that happens to cancel is as rough as the values it is a mean of: weights and values are rounded.
    check("the context", out, exact_out, eager_out, 0.0 if compute == dtype else scale(made.v) / 2)
    if lse is not None:
        assert lse.dtype == compute and not lse.requires_grad
        check("the logsumexp", lse, exact_lse, eager_lse, least=1.0)  # of scores that are rounded to the dtype
    # A gradient that happens to cancel is as rough as the others: terms and context are rounded on the way.
    least = 0.0 if compute == dtype else max(scale(x) for x in exact_grads.values()) / 2
    # That of a parameter is a sum over batch and heads, whose roundings add up even where the gradients cancel.
    panels = made.q.shape[:-2].numel()
    for name, exact in exact_grads.items():
        sums = 1 if name in ("q", "k", "v") else panels
        check(f"the gradient of {name}", grads[name], exact, eager_grads[name], least, sums)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=30)
@given(draw=DRAWS)
@example(draw=Draw(Sizes(queries=70, keys=70), "additive", "causal", blocks=(1, 7, 9)))
@example(draw=Draw(Sizes(queries=1, keys=70), "dot", "causal", offset=69))
@example(draw=Draw(Sizes(queries=33, keys=70), "relative_t5", "window_left", offset=20, blocks=(2, 7, 9, 1)))
@example(draw=Draw(Sizes(queries=70, keys=64), "everything", "documents", dropout=0.3, blocks=(1, 16, 17, 1)))
@example(draw=Draw(Sizes(batch=(2, 2), queries=17, keys=33), "rotary_sum", "nested", "items", layout="broadcast"))
@example(draw=Draw(Sizes((2,), 8, 4, 17, 17, 4, 8), "bilinear_shared_one", "lengths", layout="expanded", seed=5601))
def test_every_kernel_agrees_with_the_reference(dtype, draw):
    compare_all(make(replace(draw, dtype=dtype)), dtype, draw.blocks)


def compare_all(made, dtype, blocks=None):
    """Every kernel that does not refuse."""
    for backend in KERNELS:
        if refuses(made, backend) is None:
            compare(made, dtype, backend, blocks)


def refuses(made, backend):
    """The reason, other than that no logsumexp is returned."""
    q, k, v, sink, module = leaves(made, made.q.dtype)
    return refusal(q, k, v, score=module, sink=sink, backend=backend, **made.options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_every_score_in_every_dtype_in_many_tiles(name, dtype):
    draw = Draw(Sizes(queries=19, keys=23, dim=6, value_dim=5), name, "and", "items", dtype, blocks=(1, 4, 6))
    compare_all(make(draw), dtype, draw.blocks)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["dot", "additive"])
def test_every_mask_in_every_kernel(mask, name):
    for seed in range(2):
        draw = Draw(Sizes(queries=12, keys=9), name, mask, 2, blocks=(1, 3, 2), seed=seed)
        compare_all(make(draw), torch.float32, draw.blocks)


# Σ_j ∂e_ij is zero in every row. A backward pass that starts from a context rounded to half precision leaves some of
# it, the same sign for all pairs of a row, and that adds up in parameters which many pairs share.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["t5", "relative_t5", "location_shared"])
def test_gradients_of_shared_parameters_cancel_in_half_precision(name, dtype):
    """So far apart that every pair has the same bucket: its gradient is zero."""
    sizes = Sizes(batch=(1,), queries=200, keys=200, dim=8, value_dim=8)
    module, (q, k, v) = score(name, sizes, dtype), tensors(sizes, dtype)
    parameter = next(p for key, p in module.named_parameters() if key.endswith(("weight", "r")))
    for backend in KERNELS:
        if refusal(q, k, v, score=module, backend=backend) is None:
            out = regard.attend(q, k, v, score=module, offset=1000, backend=backend)
            (grad,) = torch.autograd.grad(out.float().sum(), parameter)
            assert grad.abs().max() < 1e-4, backend


@pytest.mark.parametrize("blocks", [None, (1, 4, 6, 1), (2, 5, 3, 0)], ids=str)
@pytest.mark.parametrize("offset", [0, 3, -2, torch.tensor([[1], [9]])], ids=["0", "3", "-2", "items"])
@pytest.mark.parametrize("rows", [1, 9])
def test_gradients_of_slopes_and_tables(rows, offset, blocks):
    """Slopes are fixed in the scores there are, but a kernel's gradient of them must be right."""
    q, k, v = tensors(Sizes(queries=9, keys=13, dim=4, value_dim=4), grad=True)
    table = torch.randn(2, 4, rows, 5, dtype=torch.float64, requires_grad=True)
    slope = torch.rand(1, 4, dtype=torch.float64, requires_grad=True)
    terms = Terms((DotTerm(q, 0.5, k), OffsetTerm(table, slope)))
    problem = Problem(terms, v, 4, 9, Causal() | Prefix(6), offset)
    with surroundings(blocks):
        outs = [kernel.run(problem)[0] for kernel in (reference, blockwise)]
        grad = torch.randn(outs[0].shape, dtype=torch.float64)
        ours, theirs = (torch.autograd.grad(out, (q, k, v, table, slope), grad) for out in outs)
    for a, b in zip((outs[0], *ours), (outs[1], *theirs), strict=True):
        torch.testing.assert_close(a, b)


def test_sdpa_is_compared_too():
    """The draws must not be such that PyTorch's kernel always refuses."""
    for name in ("dot", "general", "rotary", "dots"):
        assert refuses(make(Draw(Sizes(), name, "lengths")), "sdpa") is None


# --- extreme values ---


EXTREMES = {
    "large": lambda x: x * 1e4,
    "equal": lambda x: torch.full_like(x, 1e4),
    "opposite": lambda x: (
        torch.where(torch.arange(x.shape[-2])[:, None] % 2 == 0, 1e4, -1e4).to(x.dtype).expand(x.shape)
    ),
    "denormal": lambda x: x * torch.finfo(x.dtype).tiny / 8,
    "zero": lambda x: x * 0,
    "same_rows": lambda x: x[..., :1, :].expand(x.shape).clone(),
    "mixed": lambda x: x * torch.logspace(-6, 4, x.shape[-2], dtype=x.dtype)[:, None],
}


@pytest.mark.parametrize("keys", EXTREMES)
@pytest.mark.parametrize("queries", EXTREMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_additive_at_extreme_values(queries, keys, dtype):
    """|a|, |b| up to 1e4, where e^{2a} overflows."""
    made = make(Draw(Sizes(queries=6, keys=8, dim=3), "additive_shared", dtype=dtype))
    with torch.no_grad():
        made.score.W.copy_(torch.eye(3))
        made.score.U.copy_(torch.eye(3) * (-1 if keys == "opposite" else 1))
    made = replace(made, q=EXTREMES[queries](made.q), k=EXTREMES[keys](made.k))
    compare_all(made, dtype, (1, 2, 3))


@pytest.mark.parametrize("a", [0.0, 1e-3, 21.0, 42.9, 43.1, 80.0, 300.0, 349.0, 351.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_additive_where_large_values_cancel(a, dtype):
    """a + b is small though a and b are not: tanh must be as exact as if written out."""
    q = torch.full((1, 1, 1, 4), a, dtype=dtype)
    k = -q + torch.linspace(-2, 2, 9, dtype=dtype)[:, None]
    made = Additive(4, 4, 4).to(dtype)
    with torch.no_grad():
        made.W.copy_(torch.eye(4)), made.U.copy_(torch.eye(4)), made.v.copy_(torch.tensor([1.0, -2.0, 3.0, 0.5]))
    v = torch.randn(1, 1, 9, 3, dtype=dtype)
    problem = Made(q, k, v, made, {"mask": None, "offset": 0, "dropout": 0.0, "seed": 0}, None, torch.randn(1, 1, 1, 3))
    compare_all(problem, dtype, (1, 1, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_around_ten_thousand(dtype):
    made = make(Draw(Sizes(queries=6, keys=8), "dot_scale", dtype=dtype))
    made = replace(made, q=made.q * 100, k=made.k * 100)
    e = regard.steps(made.q, made.k, made.v, score=made.score).scaled
    assert e.max() > 1e4 and e.min() < -1e4
    compare_all(made, dtype, (1, 2, 3))


@pytest.mark.parametrize("made", [Dot(), Additive(4, 4, 3)], ids=["dot", "additive"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["zero", "same_rows", "denormal"])
def test_equal_scores_give_the_mean(kind, dtype, made):
    q, k, v = tensors(Sizes(keys=8), dtype)
    k = EXTREMES[kind](k)
    for backend in KERNELS:
        if refusal(q, k, v, score=made, backend=backend) is None:
            out = regard.attend(q, k, v, score=made, backend=backend)
            expected = v.double().mean(-2, keepdim=True).repeat_interleave(2, 1).expand(out.shape)
            torch.testing.assert_close(out.double(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)


# --- dropout ---


def drops_of(score, p, seed, batch=3, heads=4, n=64):
    """Which weights are drops_of: with v = 1 at one key each, the context is the drops_of weights themselves."""
    q, k = torch.zeros(batch, heads, n, 4), torch.zeros(batch, heads, n, 4)
    v = torch.eye(n).expand(batch, heads, n, n)
    results = [
        regard.attend(q, k, v, score=score, dropout=p, seed=seed, backend=backend)
        for backend in KERNELS
        if refusal(q, k, v, score=score, dropout=p, seed=seed, backend=backend) is None
    ]
    assert len(results) > 1
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])
    return results[0] == 0


def test_the_same_seed_drops_the_same_weights_in_every_kernel():
    assert torch.equal(drops_of(Dot(), 0.5, 7), drops_of(Additive(4, 4, 2), 0.5, 7))
    assert not torch.equal(drops_of(Dot(), 0.5, 7), drops_of(Dot(), 0.5, 8))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32, 2**62, -(2**63)])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_kept_fraction_and_independence(p, seed):
    drop = drops_of(Dot(), p, seed, batch=4, heads=8)
    n, deviation = drop.numel(), math.sqrt(p * (1 - p))
    assert abs(drop.double().mean() - p) < 5 * deviation / math.sqrt(n)
    centred = (drop.double() - p) / deviation
    for dim in range(4):  # batch items, heads, rows, columns: neighbours and all others
        x = centred.movedim(dim, 0).flatten(1)
        correlation = x @ x.T / x.shape[1]
        correlation.fill_diagonal_(0)
        pairs = len(x) * (len(x) - 1) / 2
        limit = (math.sqrt(2 * math.log(pairs)) + 3.5) / math.sqrt(x.shape[1])
        assert correlation.abs().max() < limit


def test_neighbouring_seeds_are_independent():
    drops = torch.stack([drops_of(Dot(), 0.5, seed) for seed in range(8)]).double().flatten(1) * 2 - 1
    correlation = drops @ drops.T / drops.shape[1]
    assert correlation.fill_diagonal_(0).abs().max() < 5 / math.sqrt(drops.shape[1])


@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (2, 1, 1), (4,)])
def test_grouping_heads_does_not_change_what_is_dropped(counts):
    scores = [Dot(), Rotary(Dot()), General(4, 4)]
    grouped = PerHead(*[(n, s) for n, s in zip(counts, scores, strict=False)])
    assert torch.equal(drops_of(grouped, 0.4, 5), drops_of(Dot(), 0.4, 5))


def test_padding_and_block_sizes_do_not_change_what_is_dropped():
    q, k, v = tensors(Sizes(batch=(3,), queries=20, keys=20))
    whole = regard.attend(q, k, v, dropout=0.5, seed=3, backend="blockwise")
    with surroundings((2, 3, 7)):
        torch.testing.assert_close(regard.attend(q, k, v, dropout=0.5, seed=3, backend="blockwise"), whole)
    short = regard.attend(q[:, :, :10], k, v, dropout=0.5, seed=3, backend="reference")
    torch.testing.assert_close(short, whole[:, :, :10])


def test_without_a_seed_pytorchs_generator_draws_one():
    q, k, v = tensors(Sizes())
    torch.manual_seed(1)
    one, two = regard.attend(q, k, v, dropout=0.5), regard.attend(q, k, v, dropout=0.5)
    torch.manual_seed(1)
    assert torch.equal(regard.attend(q, k, v, dropout=0.5), one) and not torch.equal(one, two)


def test_dropout_scales_what_it_keeps():
    q, k, v = tensors(Sizes(keys=50))
    mean = torch.stack([regard.attend(q, k, v, dropout=0.3, seed=s) for s in range(200)]).mean(0)
    assert (mean - regard.attend(q, k, v)).abs().max() < 0.1


# --- batch dims ---


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
@pytest.mark.parametrize(
    ("q_batch", "k_batch", "v_batch"),
    [((), (), ()), ((2,), (), (1,)), ((2, 1), (3,), (2, 3)), ((1, 1), (2, 3), (3,)), ((2, 1, 2), (1, 3, 1), ())],
    ids=str,
)
def test_batch_dims_broadcast(q_batch, k_batch, v_batch, backend):
    q, k, v = (torch.randn(*b, 2, 3, 4, dtype=torch.float64, requires_grad=True) for b in (q_batch, k_batch, v_batch))
    batch = torch.broadcast_shapes(q_batch, k_batch, v_batch)
    out = regard.attend(q, k, v, score=Dot(), backend=backend)
    assert out.shape == (*batch, 2, 3, 4)
    expected = (q @ k.mT / 2).softmax(-1) @ v
    torch.testing.assert_close(out, expected.expand(out.shape))
    grad = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad(x, (q, k, v), grad) for x in (out, expected.expand(out.shape)))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_inputs_are_left_as_they_are(backend):
    made = make(Draw(Sizes(), "everything", "lengths"))
    k = made.k.clone()
    k[..., -1, :] = torch.nan
    before = [x.clone() for x in (made.q, k, made.v)]
    regard.attend(made.q, k, made.v, score=made.score, backend=backend, **made.options)
    for a, b in zip(before, (made.q, k, made.v), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())


def test_chunks_of_the_batch_share_parameters_and_alibi_slopes():
    made = make(Draw(Sizes(batch=(5,), queries=9, keys=9), "everything", "causal", dtype=torch.float64))
    compare(made, torch.float64, "blockwise", (2, 4, 4))
    compare(replace(made, score=ALiBi(4).double()), torch.float64, "blockwise", (2, 4, 4))

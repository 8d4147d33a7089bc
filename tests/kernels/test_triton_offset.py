"""The relative-position kernel against the reference in float64: forward, logsumexp and every gradient.

Without a GPU the same code runs in Triton's interpreter, which is slow: small shapes only. ``pytest -m gpu`` runs the
rest on a CUDA device. A result may be wrong by twice what textbook PyTorch code in the same precision is wrong by, and
by the rounding of a result to its type.
"""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreting import CUDA, DEVICE

import regard
from regard.kernels import _dropout
from regard.kernels.gpu import offset as triton_offset
from regard.kernels.gpu.offset import _gradients
from regard.mask import Causal, Dense, Documents, Lengths, Prefix, Window
from regard.score import Additive, ALiBi, Bias, Dot, Key, Location, Relative, Softcap, T5Bias
from regard.score.terms import DotTerm, OffsetTerm, Problem, Terms

NAME = triton_offset.NAME
pytestmark = [
    pytest.mark.slow,  # the interpreter takes its time
    # numpy's, from the interpreter, about numbers that are thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning"),
    *([pytest.mark.gpu] if CUDA else []),  # there it runs on the GPU: `pytest -m gpu` has all of it
]


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    if not CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


# --- problems ---


@dataclass(frozen=True)
class Case:
    """A problem, drawn from a seed."""

    score: str = "shaw"
    queries: int = 33
    keys: int = 33
    reach: int = 3
    mask: str | None = None
    offset: int | str = 0
    dtype: torch.dtype = torch.float32
    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    dim: int = 18
    value_dim: int = 7
    tile: tuple[int, int] | None = (16, 16)
    dropout: float = 0.0
    sink: bool = False
    layout: str = "plain"
    splits: int = 1
    seed: int = 0
    stages: int | None = None  # of the tiles, on a GPU; None: as many as the kernel's own tables have


SCORES = {
    "shaw": lambda c: Relative(c.dim, c.reach, heads=c.heads),
    "shaw_shared": lambda c: Relative(c.dim, c.reach),
    "shaw_values": lambda c: Relative(c.dim, c.reach, values=True, value_dim=c.value_dim),
    "shaw_values_heads": lambda c: Relative(c.dim, c.reach, values=True, value_dim=c.value_dim, heads=c.heads),
    "location": lambda c: Location(c.dim, c.reach, scale=0.7),
    "t5": lambda c: Dot() + _t5(c, True),
    "t5_causal": lambda c: Dot(scale=-0.4) + _t5(c, False),
    "t5_alone": lambda c: _t5(c, True),
    "alibi": lambda c: Dot() + ALiBi(c.heads),
    "alibi_alone": lambda c: ALiBi(c.heads),
    "alibi_key": lambda c: Dot() + ALiBi(c.heads) + Key(c.dim),
    "shaw_key": lambda c: Relative(c.dim, c.reach) + Key(c.dim),
    "capped": lambda c: Softcap(Dot(), 1.5) + Location(c.dim, c.reach) + Key(c.dim),
    "capped_alibi": lambda c: Softcap(Dot(), 30.0) + ALiBi(c.heads),
    "zero": lambda c: Dot(scale=0.0) + Location(c.dim, c.reach),
}


def _t5(c, both):
    return T5Bias(c.heads, buckets=8, max_distance=max(c.reach, 5), bidirectional=both, dim=2)


def _lengths(c, kind=Lengths):
    return kind(torch.randint(0, c.keys + 2, (c.batch,)).to(DEVICE))


def _documents(c, ordered=True):
    ids = (torch.randint(0, 3, (c.batch, n)) for n in (c.queries, c.keys))
    return Documents(*(x.sort(-1).values.to(DEVICE) if ordered else x.to(DEVICE) for x in ids))


MASKS = {
    "causal": lambda c: Causal(),
    "window": lambda c: Window(20, 9),
    "narrow": lambda c: Window(2, 1),
    "left": lambda c: Window(left=11),
    "right": lambda c: Window(right=30),
    "lengths": _lengths,
    "length": lambda c: Lengths(max(c.keys - 3, 0)),
    "prefix": lambda c: Prefix(5),
    "documents": _documents,
    "unsorted": lambda c: _documents(c, ordered=False),
    "padded": lambda c: Causal() & _lengths(c),
    "packed": lambda c: Window(9, 0) & _documents(c),
    "prefix_lm": lambda c: (Causal() | _lengths(c, Prefix)) & Lengths(c.keys - 1),
    "prefix_window": lambda c: Prefix(6) | (Window(4, 3) & Causal()),
    "all": lambda c: Window(25, 4) & Causal() & _lengths(c) & _documents(c) & Prefix(c.keys - 1),
}


@dataclass(frozen=True)
class Made:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    score: regard.score.Score
    sink: torch.Tensor | None
    grad: torch.Tensor
    options: dict


def make(c):
    torch.manual_seed(c.seed)
    shapes = [(c.heads, c.queries, c.dim), (c.kv_heads, c.keys, c.dim), (c.kv_heads, c.keys, c.value_dim)]
    q, k, v = (lay_out(torch.randn(c.batch, *s).to(DEVICE, c.dtype), c.layout) for s in shapes)
    score = SCORES[c.score](c)
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    offset = torch.randint(-9, c.keys + 9, (c.batch,)).to(DEVICE) if c.offset == "items" else c.offset
    mask = None if c.mask is None else MASKS[c.mask](c)
    sink = torch.randn(c.heads).to(DEVICE, c.dtype) if c.sink else None
    grad = torch.randn(c.batch, c.heads, c.queries, c.value_dim).to(DEVICE, c.dtype)
    options = {"mask": mask, "offset": offset, "dropout": c.dropout, "seed": c.seed}
    return Made(q, k, v, score.to(DEVICE, c.dtype), sink, grad, options)


def lay_out(x, layout):
    """The same numbers with other strides."""
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":
        return torch.stack((x, x), -1)[..., 0]
    if layout == "expanded":
        return x[:, :, :1].expand(x.shape)
    if layout == "odd":  # begins at no whole word, though rows are whole words
        return torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape)
    if layout == "gaps":  # rows are whole words, their distance is not
        return torch.cat((x, x[..., :8]), -1)[..., : x.shape[-1]]
    return x


def leaves(made, dtype):
    module = copy.deepcopy(made.score).to(dtype)
    tensors = (made.q, made.k, made.v, made.sink)
    q, k, v, sink = (None if x is None else x.detach().to(dtype).requires_grad_() for x in tensors)
    return q, k, v, sink, module


def gradients(out, grad, q, k, v, sink, module):
    named = {"q": q, "k": k, "v": v, "sink": sink, **dict(module.named_parameters())}
    named = {name: x for name, x in named.items() if x is not None}
    grads = torch.autograd.grad(out, list(named.values()), grad.to(out.dtype), allow_unused=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(named.items(), grads, strict=True)}


def run(made, dtype, backend):
    q, k, v, sink, module = leaves(made, dtype)
    out, lse = regard.attend(q, k, v, score=module, sink=sink, return_logsumexp=True, backend=backend, **made.options)
    return out.detach(), lse, gradients(out, made.grad, q, k, v, sink, module)


def eager(made, dtype):
    """The textbook formula, every operation in that dtype."""
    q, k, v, sink, module = leaves(made, dtype)
    mask, offset, p = (made.options[name] for name in ("mask", "offset", "dropout"))
    e = module(q, k, offset).expand(*q.shape[:3], k.shape[2])
    if mask is not None:
        e = e.masked_fill(regard.steps(q, k, v, mask=mask, offset=offset).masked == -torch.inf, -torch.inf)
    empty = (e == -torch.inf).all(-1, keepdim=True)
    if sink is None:
        e = e.masked_fill(empty, 0.0)
        weights, lse = e.softmax(-1).masked_fill(empty, 0.0), e.logsumexp(-1).masked_fill(empty[..., 0], -torch.inf)
    else:
        e = torch.cat((e, sink[:, None, None].expand(*e.shape[:3], 1)), -1)
        weights, lse = e.softmax(-1)[..., :-1], e.logsumexp(-1)
    if p:
        index = (torch.arange(n, device=DEVICE) for n in weights.shape)
        weights = weights * _dropout.keep(p, torch.tensor([made.options["seed"]], device=DEVICE), *index) / (1 - p)
    out = weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1) + value_term(module, weights, offset)
    return out.detach(), lse.detach(), gradients(out, made.grad, q, k, v, sink, module)


def value_term(module, weights, offset):
    """Σ_j α_ij r'_clip(j−i)."""
    table = getattr(module, "rv", None)
    if table is None:
        return 0.0
    position = torch.arange(weights.shape[2], device=DEVICE) + (offset if isinstance(offset, int) else offset[:, None])
    delta = torch.arange(weights.shape[3], device=DEVICE) - position[..., None]
    reach = table.shape[-2] // 2
    r = table[..., delta.clamp(-reach, reach) + reach, :]  # [H|·, B|·, L, S, Dv]
    r = r.reshape(table.shape[0] if table.ndim == 3 else 1, -1, *r.shape[-3:]).transpose(0, 1)
    return (weights[..., None] * r).sum(-2)


# --- comparison ---


def error(x, exact):
    assert x.shape == exact.shape
    assert not x.isnan().any(), "not everything was written"
    return torch.where(x.double() == exact, 0.0, x.double() - exact).abs().max().item()


def scale(exact):
    finite = exact[exact.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def compare(case):
    made = make(case)
    exact = run(made, torch.float64, "reference")
    textbook = eager(made, case.dtype)
    torch.use_deterministic_algorithms(True, warn_only=True)  # memory is NaN until it is written
    try:
        with pytest.MonkeyPatch.context() as patch:
            if case.tile is not None:
                stages = case.stages or (2 if CUDA and case.dtype in HALF else 1)
                config = triton_offset.OffsetConfig(*case.tile, 4, stages)
                patch.setattr(triton_offset, "configure", lambda kernel, p: config)
            if case.splits > 1:
                patch.setattr(triton_offset, "split_keys", lambda p, config: case.splits)
            ours = run(made, case.dtype, NAME)
    finally:
        torch.use_deterministic_algorithms(False)
    assert ours[0].dtype == case.dtype and ours[1].dtype == torch.float32 and not ours[1].requires_grad
    single, eps = torch.finfo(torch.float32).eps, torch.finfo(case.dtype).eps
    sizes = [scale(x) for x in (made.q, made.k, made.v)]
    size = max(1.0, *sizes) * max(1.0, scale(exact[0]), *(scale(x) for x in exact[2].values()))

    def check(name, x, truth, text, least=0.0):
        lucky = 4 if truth.numel() < 16 else 2  # a handful of numbers may happen to be rounded well
        bound = 2 * error(text, truth) + 64 * single * size + lucky * eps * max(scale(truth), least)
        assert error(x, truth) <= bound, f"{name} is off by {error(x, truth):.2e}, allowed is {bound:.2e}: {case}"

    check("the context", ours[0], exact[0], textbook[0])
    check("the logsumexp", ours[1], exact[1], textbook[1], least=1.0)
    assert torch.equal(ours[1] == -torch.inf, exact[1] == -torch.inf)
    # Σ out·grad is taken of the rounded context, as in PyTorch's fused kernels, and so is off by up to eps/2 ·
    # Σ |out·grad|, even where it cancels. Where gradients cancel, as with one key, that rounding is all there is.
    spread = (exact[0] * made.grad).abs().sum(-1)
    others = spread.norm().item() * max(1.0, scale(made.q))
    least = {"q": scale(spread) * scale(made.k), "k": scale(spread) * scale(made.q), "v": 0.0}
    for name, truth in exact[2].items():
        check(f"the gradient of {name}", ours[2][name], truth, textbook[2][name], least.get(name, others))


HALF = [torch.bfloat16, torch.float16]
CASES = [
    *(Case(score=name, queries=19, keys=37, mask="causal", offset=9) for name in SCORES),
    *(Case(mask=name, queries=40, keys=37, heads=1, batch=2, offset=2) for name in MASKS),
    *(Case("alibi", mask=name, queries=40, keys=37, heads=1, offset=-3) for name in ("window", "prefix_lm", "packed")),
    *(Case("t5", 37, 40, 6, mask="padded", offset="items", batch=2, heads=1, dtype=d) for d in HALF),
    *(Case("shaw", 37, 40, 6, heads=1, dtype=d, tile=t) for d in HALF for t in ((16, 32), (32, 16))),
    *(Case(dtype=d, dim=d_k, value_dim=d_v, heads=1) for d, d_k, d_v in ((HALF[0], 16, 48), (HALF[1], 70, 16))),
    *(Case("shaw", n, s, 1, heads=1) for n, s in ((1, 1), (1, 70), (2, 3), (3, 2), (70, 1), (17, 33))),
    *(Case("shaw", 1, 70, 3, "causal", offset=o) for o in (69, -1, 1000)),
    *(Case("shaw", 33, 33, reach, heads=1) for reach in (0, 1, 40)),
    *(Case("location", 33, 33, reach, "left", 5, heads=1) for reach in (0, 1, 40)),
    *(Case("shaw", layout=name, heads=1) for name in ("transposed", "strided", "expanded")),
    *(Case("shaw", 17, 20, heads=h, kv_heads=k) for h, k in ((4, 2), (3, 3))),
    *(Case(name, 20, 33, mask="causal", offset="items", batch=2, sink=True) for name in ("shaw", "alibi", "t5")),
    *(Case(name, 20, 33, mask="window", dropout=0.3, sink=s, seed=5) for name, s in (("shaw", True), ("t5", False))),
    *(
        Case("shaw_values", 20, 33, r, m, 4, dropout=p)
        for r, m, p in ((2, "window", 0.4), (0, None, 0.0), (40, "packed", 0.0))
    ),
    *(Case("shaw_values_heads", 33, 20, 3, "causal", "items", d, batch=2, heads=1) for d in HALF),
    *(Case("shaw", n, 70, 3, m, 68, splits=3, sink=s) for n, m, s in ((1, "causal", True), (3, "window", False))),
    Case("alibi", 2, 40, mask="lengths", batch=2, heads=1, offset=9, splits=5, dtype=torch.bfloat16),
    Case("capped", 20, 33, dropout=0.5, mask="documents"),
    Case("shaw", 70, 70, 3, heads=1, tile=(32, 16)),
    Case("shaw", 17, 90, 1, "right", heads=1),
    Case("alibi", 70, 70, heads=1, tile=(16, 32)),
    Case("shaw", 33, 33, tile=None),
    # rows of k and v that are not whole words, on tiles for which a GPU has an instruction
    Case("shaw", 33, 33, 3, "padded", "items", HALF[1], 2, 4, 2, 20, 5, (64, 64), 0.0, False, "expanded", 1, 639),
    Case("shaw_values", 33, 33, 3, None, 0, HALF[0], 1, 2, 2, 20, 5, (64, 64), 0.0, False, "strided", 1, 640),
    *(
        Case("shaw", 33, 70, 3, None, 0, HALF[0], dim=32, value_dim=16, tile=(64, 64), layout=n)
        for n in ("odd", "gaps")
    ),
    # the context's rounding is larger than its product with the gradient, which cancels
    Case("zero", 1, 2, 40, "left", "items", HALF[1], 1, 1, 1, 16, 16, (16, 32), 0.0, True, "expanded", 1, 846153873),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.score}-{c.mask}-{c.queries}x{c.keys}-{c.reach}")
def test_it_agrees_with_the_reference(case):
    compare(case)


DRAWS = st.builds(
    lambda heads, tile, **rest: Case(heads=heads[0], kv_heads=heads[1], tile=tile, **rest),
    score=st.sampled_from(sorted(SCORES)),
    queries=st.sampled_from([1, 2, 3, 17, 33, 70]),
    keys=st.sampled_from([1, 2, 3, 17, 33, 70]),
    reach=st.sampled_from([0, 1, 3, 40]),
    mask=st.sampled_from([None, *sorted(MASKS)]),
    offset=st.one_of(st.integers(-40, 80), st.just("items")),
    dtype=st.sampled_from([torch.float32, *HALF]),
    batch=st.sampled_from([1, 2]),
    heads=st.sampled_from([(1, 1), (2, 1)] if not CUDA else [(1, 1), (2, 2), (4, 2), (3, 1)]),
    dim=st.sampled_from([1, 8, 16, 20]),
    value_dim=st.sampled_from([1, 5, 16, 33]),
    tile=st.sampled_from([(16, 16), (16, 32), (32, 16), (64, 64), None]),
    dropout=st.sampled_from([0.0, 0.0, 0.3]),
    sink=st.booleans(),
    layout=st.sampled_from(["plain", "transposed", "strided", "expanded", "odd", "gaps"]),
    seed=st.integers(0, 2**31),
)


@pytest.mark.parametrize("part", range(12 if CUDA else 1))  # a GPU compiles for seconds: in processes side by side
@settings(max_examples=12 if CUDA else 8, deadline=None)
@given(case=DRAWS)
def test_it_agrees_with_the_reference_on_drawn_problems(case, part):
    compare(case)


# --- edges ---


def small_tiles(monkeypatch):
    monkeypatch.setattr(triton_offset, "configure", lambda kernel, p: triton_offset.OffsetConfig(16, 16, 4, 1))


@pytest.mark.parametrize("mask", ["causal", "length", "unsorted", "prefix_lm"])
def test_what_is_masked_and_not_finite_reaches_nothing(mask, monkeypatch):
    small_tiles(monkeypatch)
    made = make(Case(queries=20, keys=24, mask=mask, batch=2, heads=2))
    q, k, v = made.q.clone(), made.k.clone(), made.v.clone()
    k[0, 0, 21], v[1, 0, 5], q[0, 1, 3] = torch.nan, torch.inf, torch.nan
    results = []
    for backend in ("reference", NAME):
        args = [x.clone().requires_grad_() for x in (q, k, v)]
        out, lse = regard.attend(*args, score=made.score, return_logsumexp=True, backend=backend, **made.options)
        good = ~out.isnan().any(-1)
        grads = torch.autograd.grad(out[good].sum(), args)
        results.append((out, lse, *grads))
    reference, ours = results
    assert torch.equal(reference[0].isnan(), ours[0].isnan()) and ours[0].isnan().any()
    assert torch.equal(reference[1].isnan(), ours[1].isnan())
    for x, y in zip(reference, ours, strict=True):
        torch.testing.assert_close(x, y, atol=2e-5, rtol=1e-4, equal_nan=True)


def test_entries_of_minus_infinity_hide_pairs(monkeypatch):
    """A table may hold −∞; a query whose whole table is −∞ sees nothing."""
    small_tiles(monkeypatch)
    made = make(Case("t5_alone", queries=20, keys=40, reach=5))
    with torch.no_grad():
        made.score.weight[0] = -torch.inf
        made.score.weight[:, 1] = -torch.inf
    results = [
        regard.attend(made.q, made.k, made.v, score=made.score, return_logsumexp=True, backend=b)
        for b in ("reference", NAME)
    ]
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)
    assert not results[1][0][:, 1].any() and (results[1][1][:, 1] == -torch.inf).all()


def test_the_same_call_gives_the_same_bits(monkeypatch):
    small_tiles(monkeypatch)
    made = make(Case("t5", 33, 33, 6, "causal", dtype=torch.bfloat16))
    one, two = (run(made, torch.bfloat16, NAME) for _ in range(2))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert all(torch.equal(one[2][name], two[2][name]) for name in one[2])


def test_a_shared_table_is_summed_some_heads_at_a_time(monkeypatch):
    monkeypatch.setattr(_gradients, "SCRATCH_BYTES", 4 * 20 * 13 * 2)  # room for two of six heads
    compare(Case("t5", 20, 20, 6, batch=2, heads=3, kv_heads=3, tile=(32, 32)))


def test_large_scores(monkeypatch):
    """Online softmax must not overflow: scores of ±10⁴."""
    small_tiles(monkeypatch)
    made = make(Case(queries=20, keys=40, heads=1))
    made = replace(made, q=made.q * 100, k=made.k * 100)
    ours, exact = run(made, torch.float32, NAME), run(made, torch.float64, "reference")
    torch.testing.assert_close(ours[0].double(), exact[0], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(ours[1].double(), exact[1], atol=0, rtol=1e-6)


def test_vmap_grad_and_compile(monkeypatch):
    small_tiles(monkeypatch)
    made = make(Case(queries=5, keys=20, mask="causal", offset=9, dim=16, value_dim=16))

    def loss(q, backend=NAME):
        out = regard.attend(q, made.k, made.v, score=made.score, backend=backend, **made.options)
        return (out * made.grad).sum()

    several = torch.stack((made.q, made.q.flip(-1)))
    mapped = torch.func.vmap(torch.func.grad(loss))(several)
    one_by_one = torch.stack([torch.func.grad(lambda q: loss(q, "reference"))(q) for q in several])
    torch.testing.assert_close(mapped, one_by_one, atol=2e-5, rtol=1e-4)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(made.q), loss(made.q, "reference"), atol=2e-5, rtol=1e-4)


# --- the plan ---


def plan(made, **options):
    return regard.plan(made.q, made.k, made.v, score=made.score, **{**made.options, **options})


@pytest.mark.parametrize("name", SCORES)
def test_the_planner_takes_it(name):
    made = make(Case(name, mask="causal", dtype=torch.bfloat16))
    chosen = plan(made) if CUDA else plan(made, backend=NAME)  # on a CPU it runs only if forced to
    assert chosen.kernel == NAME
    assert chosen.error_bound == 0 and 0 < chosen.memory_bytes < 2**20


REFUSALS = {
    "one offset term": lambda c: (Dot(), {}),
    "no bias": lambda c: (Dot() + ALiBi(c.heads) + Bias(torch.zeros(c.queries, c.keys, device=DEVICE)), {}),
    "one dot product": lambda c: (Additive(c.dim, c.dim, 3) + ALiBi(c.heads), {}),
    "joined by &": lambda c: (Relative(c.dim, 2), {"mask": ~Causal()}),
    "none of these": lambda c: (
        Relative(c.dim, 2),
        {"mask": Dense(torch.ones(c.queries, c.keys, dtype=torch.bool, device=DEVICE))},
    ),
    "one too many": lambda c: (Relative(c.dim, 2), {"mask": (Causal() | Prefix(3)) & Window(3, 3)}),
    "within ±2^30": lambda c: (Relative(c.dim, 2), {"offset": 2**31}),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_it_says_why_it_refuses(why):
    case = Case()
    score, options = REFUSALS[why](case)
    made = make(case)
    with pytest.raises(ValueError, match=why.replace("^", r"\^")):
        regard.plan(made.q, made.k, made.v, score=score.to(DEVICE), backend=NAME, **options)
    assert regard.plan(made.q, made.k, made.v, score=score.to(DEVICE), **options).kernel != NAME


def test_it_refuses_float64_wide_heads_and_cpu_tensors(monkeypatch):
    q = torch.randn(1, 2, 5, 300, device=DEVICE)
    with pytest.raises(ValueError, match="256 dims at most"):
        regard.plan(q, q, q, score=Dot() + ALiBi(2).to(DEVICE), backend=NAME)
    q = q[..., :8].double()
    with pytest.raises(ValueError, match="not in float64"):
        regard.plan(q, q, q, score=Dot() + ALiBi(2).to(DEVICE), backend=NAME)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = q.float().cpu()
    with pytest.raises(ValueError, match="CUDA GPU, not on cpu"):
        regard.plan(q, q, q, score=Dot() + ALiBi(2), backend=NAME)


def test_memory_is_linear_in_the_length():
    def needs(n):
        q = torch.empty(1, 2, n, 64, dtype=torch.bfloat16, device=DEVICE)
        with torch.no_grad():
            score = Relative(64, 16).to(DEVICE, torch.bfloat16)
            return regard.plan(q, q, q, score=score, backend=NAME).memory_bytes

    assert needs(4096) == 2 * needs(2048)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dims", [8, 64, 96, 256])
@pytest.mark.parametrize("dot", [True, False])
def test_every_problem_has_a_configuration(dtype, dims, dot):
    q, k, v = (torch.zeros(1, 1, n, dims, dtype=dtype) for n in (20, 300, 300))
    terms = (*([DotTerm(q, 1.0, k)] if dot else []), OffsetTerm(torch.zeros(1, 1, 1, 9)))
    problem = Problem(Terms(terms), v, 1, 20)
    for kernel in ("forward", "keys", "queries"):
        config = triton_offset.configure(kernel, problem)
        assert config.q <= 32 and config.k <= 512 and config.warps in (4, 8)


# --- on a GPU: the sizes it is made for ---

FULL = [
    *(Case(s, 1000, 1000, r, "causal", 0, d, 2, 4, 2, 64, 64, None) for s in ("shaw", "t5", "alibi") for r in (16, 128)
      for d in (torch.float32, *HALF)),
    *(Case("shaw", 513, 777, 16, m, 100, torch.bfloat16, 2, 2, 2, 64, 64, None) for m in (None, *MASKS)),
    *(Case("shaw", 300, 300, 8, "causal", 0, d, 1, 2, 1, dim, value, None) for d in (torch.float32, *HALF)
      for dim, value in ((16, 16), (40, 72), (80, 80), (96, 128), (128, 128), (192, 192), (256, 256), (200, 64))),
    *(Case("location", 1024, 1024, r, m, 0, torch.bfloat16, 1, 2, 2, 64, 64, None) for r in (0, 64)
      for m in (None, "causal")),
    Case("shaw", 1, 5000, 16, "causal", 4999, torch.bfloat16, 2, 4, 2, 64, 64, None),
    *(Case("shaw_values", 700, 700, 16, m, 0, d, 2, 2, 1, 64, 64, None) for m in (None, "causal") for d in HALF),
    Case("shaw", 3, 20000, 16, "padded", "items", torch.bfloat16, 2, 4, 2, 64, 64, None),
    Case("capped", 500, 500, 16, "causal", 0, torch.bfloat16, 2, 4, 2, 64, 64, None),
    Case("shaw_key", 500, 500, 16, "all", 0, torch.float16, 2, 4, 2, 64, 64, None, dropout=0.1, sink=True),
]  # fmt: skip


NARROW = [
    Case("shaw", 70, 150, 3, "causal", 80, d, 1, 2, 1, dims, values, tile, stages=stages)
    for d in HALF
    for dims, values in ((16, 16), (32, 16), (16, 32), (32, 32), (64, 16), (16, 64))
    for tile in ((64, 64), (64, 128))
    for stages in (2, 3)
]


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("case", NARROW, ids=lambda c: f"{c.dtype}-{c.dim}-{c.value_dim}-{c.tile}-{c.stages}")
def test_narrow_rows_on_tensor_cores(case, monkeypatch):
    """Rows narrower than NARROWEST: where all of these pass, it may be 16."""
    monkeypatch.setattr(triton_offset, "NARROWEST", 16)
    compare(case)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("case", FULL, ids=lambda c: f"{c.score}-{c.mask}-{c.queries}-{c.reach}-{c.dim}-{c.dtype}")
def test_full_sizes(case):
    compare(case)

"""Custom masks and scores: Python that kernels only know by its answers."""

import pytest
import torch
from cases import Sizes, tensors

import regard
from regard import mask as masks
from regard.kernels import blockwise, sdpa
from regard.mask import Causal, Dense, Documents, Lengths, Mask, Window
from regard.mask.own import bind
from regard.mask.shape import Shape
from regard.score import Additive, ALiBi, Dot, Function, PerHead, Rotary, Score, Softcap
from regard.score._tensors import distances, repeat_heads

SIZES = Sizes(batch=(2, 3), queries=9, keys=11)
BACKENDS = ["auto", "blockwise", "reference"]


class Stride(Mask):
    """Every n-th key before the query."""

    def __init__(self, n):
        self.n = n

    def visible(self, rows, positions, cols):
        return ((positions[..., None] - cols) % self.n == 0)[:, None]


class Items(Mask):
    """Holds a number per item and head, and does not override for_items or for_heads."""

    def __init__(self, n):
        self.n = n  # [B, H]

    def visible(self, rows, positions, cols):
        return (cols + rows[:, None] + positions[:, None, :, None]) % 5 < self.n[..., None, None]


class Learned(Score):
    """A formula with parameters, a tensor of its closure, all keys, and positions."""

    def __init__(self, sizes, outside):
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(sizes.heads, sizes.dim, sizes.dim, dtype=torch.float64))
        self.outside = outside

    def forward(self, q, k, offset=0):
        e = q @ self.W @ repeat_heads(k, q).mT * self.outside.exp()
        far = distances(q, k.shape[-2], offset).abs().to(q.dtype)
        return e - 0.1 * far * self.outside[:1] - k.square().mean()


def gradients(out, *inputs):
    return torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)


def agree(backend, inputs, **options):
    """Output, logsumexp and gradients equal the reference's."""
    q, k, v, *rest = inputs
    results = []
    for one in (backend, "reference"):
        out, lse = regard.attend(q, k, v, return_logsumexp=True, backend=one, **options)
        results.append((out, lse, *gradients(out, q, k, v, *rest)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    return results[0][0]


@pytest.fixture
def narrow(monkeypatch):
    """Several small tiles, and no dense booleans."""
    monkeypatch.setattr(blockwise, "FORMULA", 6 * 4 * 11 * 2)
    monkeypatch.setattr(blockwise, "_cached_block_sizes", lambda p: blockwise.Blocks(1, 4, 3, 1))
    monkeypatch.setattr(sdpa, "MASK_BYTES", 0)


MASKS = {
    "subclass": lambda: Stride(3),
    "items and heads": lambda: Items(torch.randint(1, 5, (6, 4))),
    "function": lambda: masks.Function(lambda b, h, i, j: (i - j + b) % (h + 2) == 0),
    "and": lambda: Causal() & ~Stride(2),
    "or": lambda: masks.Function(lambda b, h, i, j: j == i) | Lengths(torch.randint(0, 9, (2, 3))),
}
SCORES = {
    "dot": lambda: Dot(),
    "softcap": lambda: Softcap(Dot(), 2.0),
    "additive": lambda: Additive(4, 4, 5).double(),
    "rotary and alibi": lambda: Rotary(Dot()) + ALiBi(4),
    "per head": lambda: PerHead((2, Dot()), (2, Additive(4, 4, 3).double())),
    "custom": lambda: Learned(SIZES, torch.rand(4, 1, 1, dtype=torch.float64)),
}


@pytest.mark.parametrize("offset", [-3, "items"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_a_custom_mask_runs_everywhere(mask, score, offset, narrow):
    q, k, v = tensors(SIZES, grad=True)
    made, score = MASKS[mask](), SCORES[score]()
    offset = torch.randint(-2, 9, SIZES.batch) if offset == "items" else offset
    parameters = list(score.parameters())
    options = {"score": score, "mask": made, "offset": offset, "dropout": 0.3, "seed": 7}
    out = agree("auto", (q, k, v, *parameters), **options)
    rows, cols = torch.arange(9), torch.arange(11)
    where = rows + (offset.reshape(-1, 1) if isinstance(offset, torch.Tensor) else offset)
    where = where.expand(6, 9)
    bound = bind(made, Shape((2, 3), 4, 9, 11, torch.device("cpu")))
    dense = Dense(bound.visible(rows, where, cols).expand(6, 4, 9, 11).reshape(2, 3, 4, 9, 11))
    torch.testing.assert_close(out, regard.attend(q, k, v, **{**options, "mask": dense}))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_a_small_one_is_asked_once_and_then_every_kernel_knows_it(mask, score):
    q, k, v = tensors(SIZES, grad=True)
    made, score = MASKS[mask](), SCORES[score]()
    agree("auto", (q, k, v, *score.parameters()), score=score, mask=made, offset=2)
    assert "called once: " in str(regard.plan(q, k, v, score=score, mask=made))


def test_the_plan_says_what_a_custom_mask_costs():
    q = k = v = torch.randn(1, 2, 20000, 4)
    plan = regard.plan(q, k, v, mask=Causal() & Stride(3))
    assert plan.kernel == "cpu_dot" and plan.memory_bytes < 2**26
    assert regard.plan(q, k, v, score=Softcap(Dot(), 2.0), mask=Causal() & Stride(3)).kernel == "blockwise"
    assert "only has `visible`, which is called for each tile" in str(plan)
    small = regard.plan(q[..., :9, :], k, v, mask=Stride(3))
    assert small.kernel == "sdpa" and "called once: 176 KiB of booleans" in str(small)


def test_a_subclass_of_a_mask_inherits_no_verdicts():
    class Odd(Window):
        def visible(self, rows, positions, cols):
            return super().visible(rows, positions, cols) & (cols % 2 == 1)

    q, k, v = tensors(Sizes(queries=40, keys=40), grad=True)
    seen = Window(20, 20).dense(40) & (torch.arange(40) % 2 == 1)
    for score in (Softcap(Dot(), 1.0), Dot()):
        out = regard.attend(q, k, v, score=score, mask=Odd(20, 20))
        torch.testing.assert_close(out, regard.attend(q, k, v, score=score, mask=seen))

    class Thinned(Dense):
        def visible(self, rows, positions, cols):
            return super().visible(rows, positions, cols) & (cols % 2 == 1)

    out = regard.attend(q, k, v, score=Softcap(Dot(), 1.0), mask=Thinned(Window(20, 20).dense(40)))
    torch.testing.assert_close(out, regard.attend(q, k, v, score=Softcap(Dot(), 1.0), mask=seen))


class Mine(Documents):
    """Even keys of the same document."""

    def visible(self, rows, positions, cols):
        return super().visible(rows, positions, cols) & (cols % 2 == 0)


def test_a_subclass_of_documents_is_asked_itself():
    q, k, v = tensors(Sizes(queries=7, keys=7), grad=True)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    seen = Documents(ids).dense(7) & (torch.arange(7) % 2 == 0)
    for score in (Softcap(Dot(), 1.0), Dot()):
        out = agree("auto", (q, k, v), score=score, mask=Mine(ids) & Causal())
        torch.testing.assert_close(out, regard.attend(q, k, v, score=score, mask=seen & Causal()))


class Squared(Dot):
    def forward(self, q, k, offset=0):
        return super().forward(q, k, offset).square()


class Doubled(Rotary):
    def forward(self, q, k, offset=0):
        return 2 * super().forward(q, k, offset)


class Halved(Function):
    def forward(self, q, k, offset=0):
        return super().forward(q, k, offset) / 2


OWN = [Squared(), Doubled(Dot()), 2 * Squared(), Halved(lambda s, b, h, i, j: s + i)]


@pytest.mark.parametrize("made", OWN, ids=lambda x: type(x).__name__)
def test_a_subclass_of_a_score_with_another_forward_inherits_no_lowering(made):
    q, k, v = tensors(SIZES, grad=True)
    out = agree("auto", (q, k, v), score=made, mask=Causal(), offset=3)
    dense = made(q, k, 3).masked_fill(~Causal().dense(9, 11, offset=3), -torch.inf)
    torch.testing.assert_close(out, dense.softmax(-1) @ repeat_heads(v, q))
    with pytest.raises(ValueError, match="Softcap wraps pair-shaped scores"):
        Softcap(made, 2.0)


@pytest.mark.parametrize(
    ("visible", "error", "text"),
    [
        (lambda *_: torch.ones(1), TypeError, r"\.visible must return a bool tensor, got torch.float32"),
        (lambda *_: True, TypeError, r"\.visible must return a bool tensor, got bool"),
        (
            lambda *_: torch.ones(3, 7, dtype=torch.bool),
            ValueError,
            r"broadcasts to \[batch, heads, \d+, \d+\], got \[3, 7\]",
        ),
    ],
)
def test_what_visible_returns_is_checked(visible, error, text):
    kind = type("Wrong", (Mask,), {"visible": lambda self, *args: visible(*args)})
    q, k, v = tensors(SIZES)
    with pytest.raises(error, match=text):
        regard.attend(q, k, v, mask=kind())


def test_a_mask_without_visible_and_a_score_without_forward_say_what_is_missing():
    q, k, v = tensors(SIZES)
    with pytest.raises(NotImplementedError, match=r"^Blind must say which keys a query may see: write visible\("):
        regard.attend(q, k, v, mask=type("Blind", (Mask,), {})())
    with pytest.raises(NotImplementedError, match=r"^Mute has no formula: write forward\(self, q, k, offset\)"):
        regard.attend(q, k, v, score=type("Mute", (Score,), {})())
    with pytest.raises(TypeError, match=r"function; a function of \(b, h, i, j\) goes into regard.mask.Function"):
        regard.attend(q, k, v, mask=lambda b, h, i, j: j <= i)
    with pytest.raises(TypeError, match="Function takes a function of"):
        masks.Function(3)


@pytest.mark.parametrize("mask", [None, Causal(), Stride(2)], ids=str)
@pytest.mark.parametrize("offset", [0, "items"])
@pytest.mark.parametrize("around", ["alone", "sum", "capped", "per head", "in a sum with tanh"])
def test_a_custom_score_needs_forward_alone(around, offset, mask, narrow):
    q, k, v = tensors(SIZES, grad=True)
    outside = torch.rand(4, 1, 1, dtype=torch.float64, requires_grad=True)
    made = Learned(SIZES, outside)
    if around == "sum":
        made = made + ALiBi(4) + Dot()
    elif around == "capped":
        made = Softcap(Dot(), 2.0) + made
    elif around == "in a sum with tanh":
        made = made + Additive(4, 4, 3).double()
    elif around == "per head":
        sizes = Sizes(heads=2)
        made = PerHead((2, Dot()), (2, Learned(sizes, outside[:2] * 1.0)))
    offset = torch.randint(-2, 9, SIZES.batch) if offset == "items" else offset
    wanted = (q, k, v, outside, *made.parameters())
    agree("auto", wanted, score=made, mask=mask, offset=offset, dropout=0.2, seed=3, sink=0.5)


def test_memory_and_kernel_of_a_custom_score():
    class Distance(Score):
        def forward(self, q, k, offset=0):
            return -torch.cdist(q, k)

    q = k = v = torch.randn(1, 2, 20000, 4)
    plan = regard.plan(q, k, v, score=Distance() + ALiBi(2))
    assert plan.kernel == "blockwise" and plan.memory_bytes < 2**27
    assert "the formula of Distance" in str(plan) and plan.refusals["sdpa"] == "Distance only has a dense formula"


def test_masked_values_that_are_not_finite_never_leave_a_custom_score(narrow):
    q, k, v = tensors(SIZES, grad=True)
    made = Learned(SIZES, torch.rand(4, 1, 1, dtype=torch.float64))
    made.forward = lambda q, k, offset=0: Learned.forward(made, q, k, offset) + k.square().mean()
    hidden = Lengths(7) & Stride(1)
    clean = agree("auto", (q, k, v), score=made, mask=hidden)
    bad_k, bad_v = k.detach().clone(), v.detach().clone()
    bad_k[..., 8, :], bad_v[..., 9, :] = torch.nan, torch.inf
    bad = [x.requires_grad_() for x in (bad_k, bad_v)]
    out = regard.attend(q, *bad, score=made, mask=hidden)
    torch.testing.assert_close(out, clean)
    assert all(x.isfinite().all() for x in gradients(out, q, *bad))
    seen = regard.attend(q, *bad, score=made, mask=Stride(1))
    assert seen.isnan().all()


def test_a_row_that_sees_nothing(narrow):
    q, k, v = tensors(SIZES, grad=True)
    made = Learned(SIZES, torch.rand(4, 1, 1, dtype=torch.float64))
    out, lse = regard.attend(q, k, v, score=made, mask=Stride(1) & Causal(), offset=-3, return_logsumexp=True)
    assert (out[..., :3, :] == 0).all() and (lse[..., :3] == -torch.inf).all()
    assert (gradients(out, q)[0][..., :3, :] == 0).all()


def test_half_types_and_autocast():
    class Product(Score):
        def __init__(self):
            super().__init__()
            self.W = torch.nn.Linear(8, 8, bias=False)

        def forward(self, q, k, offset=0):
            return self.W(q) @ k.mT / 8

    q, k, v = torch.randn(3, 2, 4, 6, 8)
    made = Product()
    expected = regard.attend(q, k, v, score=made)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for backend in BACKENDS:
            out = regard.attend(q.requires_grad_(), k, v, score=made, backend=backend)
            assert out.dtype == torch.bfloat16
            torch.testing.assert_close(out.float(), expected, atol=3e-2, rtol=0)
    out.float().sum().backward()
    assert made.W.weight.grad.dtype == torch.float32
    low = made.bfloat16()
    out = regard.attend(*(x.bfloat16() for x in (q, k, v)), score=low)
    torch.testing.assert_close(out.float(), expected, atol=3e-2, rtol=0)


def test_the_formula_must_fit_a_few_queries():
    class Whole(Score):
        def __init__(self):
            super().__init__()
            self.table = torch.randn(9, 11, dtype=torch.float64)

        def forward(self, q, k, offset=0):
            return q @ repeat_heads(k, q).mT + self.table

    q, k, v = tensors(SIZES)
    with pytest.raises(
        ValueError, match=r"Whole must return what broadcasts to .* asked for some queries at a time"
    ) as e:
        regard.attend(q.requires_grad_(), k, v, score=Whole())
    assert "[6, 4, 1, 11]" in str(e.value)
    with pytest.raises(TypeError, match=r"must return a floating-point tensor of scores, got torch\.int64"):
        regard.attend(
            q,
            k,
            v,
            score=type("Counts", (Score,), {"forward": lambda s, q, k, offset: (q @ repeat_heads(k, q).mT).long()})(),
        )


def test_a_second_derivative_is_refused_and_the_reference_has_it():
    q, k, v = tensors(SIZES, grad=True)
    made = Learned(SIZES, torch.rand(4, 1, 1, dtype=torch.float64))
    (first,) = torch.autograd.grad(regard.attend(q, k, v, score=made).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative; use backend='reference'"):
        first.sum().backward()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*jit.script.*:DeprecationWarning")
def test_compiled_and_transformed_programs_compute_it_densely():
    q, k, v = (x.float().detach() for x in tensors(Sizes(queries=9, keys=9), grad=False))
    made = Learned(Sizes(), torch.rand(4, 1, 1)).float()
    mask = Stride(2)

    def f(q, k, v):
        return regard.attend(q, k, v, score=made, mask=mask)

    expected = f(q, k, v)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v), expected)
    torch.testing.assert_close(torch.vmap(f)(q[None], k[None], v[None])[0], expected)
    torch.testing.assert_close(torch.func.jvp(f, (q, k, v), (q, k, v))[0], expected)

    def g(q, k, v):
        return regard.attend(q, k, v, score=Softcap(Dot(), 2.0), mask=mask)

    torch.testing.assert_close(torch.compile(g, fullgraph=True, backend="aot_eager")(q, k, v), g(q, k, v))
    q.requires_grad_()
    (wanted,) = gradients(f(q, k, v), q)
    got = gradients(torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v), q)[0]
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-3)


def test_a_trace_reads_it():
    torch.manual_seed(0)
    mha = regard.nn.MultiHeadAttention(16, 4, score=Learned(Sizes(), torch.rand(4, 1, 1))).float()
    x = torch.randn(2, 7, 16)
    mask = Items(torch.randint(1, 5, (2, 4))) | Stride(1)
    with regard.record(mha) as trace:
        mha(x, mask=mask)
    q, k = trace.recorded[0].q, trace.recorded[0].k
    v = torch.randn_like(k)
    weights = regard.steps(q, k, v, score=mha.score, mask=mask).weights
    torch.testing.assert_close(trace.weights(0, 2, item=1), weights[1, 2])
    torch.testing.assert_close(trace.weights(0, 3, item=0, rows=[4, 1]), weights[0, 3][[4, 1]])


def test_a_cache_keeps_the_keys_of_a_custom_score():
    made = Learned(SIZES, torch.rand(4, 1, 1, dtype=torch.float64))
    q, k, v = tensors(SIZES)
    out = regard.attend(q, made.keys(k), v, score=made, offset=2)
    torch.testing.assert_close(out, regard.attend(q, k, v, score=made, offset=2))

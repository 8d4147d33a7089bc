"""FlexAttention as a kernel for custom functions, against the reference in float64.

On a CPU it runs unfused, forward and backward though PyTorch offers no gradient there: the same functions, masks and
lists of tiles. ``pytest -m gpu`` runs what it compiles on a CUDA device.
"""

import pytest
import torch
from interpreting import CUDA, DEVICE
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention

import regard
from regard.kernels import flex, sdpa
from regard.mask import Causal, Dense, Documents, Lengths, Mask, Prefix, Window
from regard.mask import Function as Sees
from regard.score import Additive, ALiBi, Dot, Function, PerHead, Relative, Rotary

pytestmark = [pytest.mark.gpu] if CUDA else []
DTYPE = torch.float32 if CUDA else torch.float64
EXACT = {"rtol": 1e-4, "atol": 2e-5} if CUDA else {}


@pytest.fixture(autouse=True)
def _differentiable(monkeypatch):
    if not CUDA:
        monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
        monkeypatch.setattr(flex, "may_need_gradient", lambda *_: False)


def inputs(queries=150, keys=200, dim=16, value_dim=16, heads=4, kv_heads=2, batch=2, dtype=DTYPE):
    shapes = (heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, value_dim)
    return [torch.randn(batch, *x, device=DEVICE, dtype=dtype).requires_grad_() for x in shapes]


def documents(queries, keys):
    return Documents(*(torch.randint(0, 3, (2, n), device=DEVICE).sort().values for n in (queries, keys)))


MASKS = {
    "none": lambda: None,
    "causal": lambda: Causal(),
    "window": lambda: Window(20, 3) & ~Prefix(7),
    "lengths": lambda: Lengths(torch.tensor([140, 0], device=DEVICE)),
    "documents": lambda: documents(150, 200),
    "packed": lambda: Documents.packed([0, 40, 40, 150], [0, 50, 130, 200]) & Causal(),
    "dense": lambda: Dense(torch.rand(4, 150, 1, device=DEVICE) < 0.5) | Causal(),
    "function": lambda: Sees(lambda b, h, i, j: (i + j + b) % (h + 2) == 0) & Lengths(190),
}


def check(q, k, v, made, extra=(), exact=EXACT, backend="flex", **options):
    """Output and gradients of flex, in what it runs in, are those of the reference in float64."""
    out = regard.attend(q, k, v, score=made, backend=backend, **options)
    expected = regard.attend(*(x.double() for x in (q, k, v)), score=made, backend="reference", **options)
    torch.testing.assert_close(out.double(), expected, **exact)
    leaves = [q, k, v, *extra]
    ours, theirs = (torch.autograd.grad(x.double().sin().sum(), leaves) for x in (out, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **exact)
    return out


@pytest.mark.parametrize("mask", MASKS)
def test_an_edited_dot_product(mask):
    slopes = torch.rand(4, device=DEVICE, dtype=DTYPE, requires_grad=True)
    made = Function(lambda s, b, h, i, j: 1.5 * s - slopes[h] * (i - j).abs() / 256 * (b + 1), Dot(scale=0.3))
    for offset in (0,) if mask == "packed" else (30, torch.tensor([0, 50], device=DEVICE)):
        check(*inputs(), made, [slopes], mask=MASKS[mask](), offset=offset)


def test_functions_of_places_in_packed_documents_and_at_positions():
    slopes = torch.rand(4, device=DEVICE, dtype=DTYPE, requires_grad=True)
    made = Function(lambda s, b, h, i, j: s + slopes[h] * (3 * (j == 0) - 2 * (i % 3 == 0) + j / 100))
    seen = Sees(lambda b, h, i, j: (j < 4) | (i - j < 20 + h))
    check(*inputs(), made, [slopes], mask=Documents.packed([0, 40, 40, 150], [0, 50, 130, 200]) & Causal() & seen)
    at = tuple(torch.randperm(300, device=DEVICE)[:n] for n in (150, 200))
    check(*inputs(), made, [slopes], mask=Causal() & seen, positions=at)


@pytest.mark.parametrize("mask", list(MASKS)[1:])
def test_the_lists_of_tiles_leave_nothing_out(mask):
    """What runs unfused does not look at them, so they are looked at here: tiles of 128, with a rest at both ends."""
    q, k, v = inputs()
    options = {"mask": MASKS[mask](), "offset": 0 if mask == "packed" else 30}
    (choice,) = regard.plan(q, k, v, score=Function(lambda s, b, h, i, j: s), backend="flex", **options).choices
    blocks, seen = flex._blocks(choice.problem), flex.dense.visible(choice.problem).expand(2, 4, 150, 200)
    padded = torch.zeros(2, 4, 256, 256, dtype=torch.bool, device=DEVICE)
    padded[..., :150, :200] = seen
    tiles = padded.unflatten(3, (2, 128)).unflatten(2, (2, 128)).transpose(3, 4).flatten(-2)
    some, whole = (
        as_booleans(*x)
        for x in ((blocks.kv_num_blocks, blocks.kv_indices), (blocks.full_kv_num_blocks, blocks.full_kv_indices))
    )
    assert not (some & whole).any() and (tiles.any(-1) <= (some | whole)).all() and (whole <= tiles.all(-1)).all()
    columns = as_booleans(blocks.q_num_blocks, blocks.q_indices)
    assert (columns.mT == some).all()


def as_booleans(count, index):
    """Tiles of a list as booleans."""
    first = torch.arange(index.shape[-1], device=DEVICE) < count[..., None]
    return torch.zeros_like(first).scatter(-1, index.long(), first)


@pytest.mark.parametrize("sizes", [(1, 1), (127, 129), (128, 256), (3, 300)], ids=str)
def test_every_shape(sizes):
    made = Function(lambda s, b, h, i, j: 2 * torch.tanh(s / 2))
    check(*inputs(*sizes, dim=24, value_dim=40, heads=6, batch=1), made, mask=Causal(), offset=sizes[1] - sizes[0])
    check(*inputs(*sizes, heads=2), made)


def test_a_function_as_a_mask(monkeypatch):
    monkeypatch.setattr(sdpa, "MASK_BYTES", 0)  # as if it were too large to be asked once
    mask = Sees(lambda b, h, i, j: ((i - j) % (h + 2) == 0) & (j < 170 + b)) & Causal()
    check(*inputs(), Dot(), mask=mask, offset=20)
    check(*inputs(), Function(lambda s, b, h, i, j: s.abs()), mask=mask, offset=20)


def test_the_rules_at_the_edges(monkeypatch):
    monkeypatch.setattr(flex, "BOOLEANS", 9000)  # a few rows at a time
    made = Function(lambda s, b, h, i, j: torch.where(i < 3, -torch.inf, s))
    q, k, v = inputs()
    clean = check(q, k, v, made, mask=Lengths(190) & Window(right=60))
    assert (clean[..., :3, :] == 0).all()
    dirty = [x.detach().clone() for x in (q, k, v)]
    dirty[1][:, :, 190:], dirty[2][:, 0, 150], dirty[0][:, 1, 60] = torch.nan, torch.inf, torch.nan
    dirty = [x.requires_grad_() for x in dirty]
    out = regard.attend(*dirty, score=made, mask=Lengths(190) & Window(right=60), backend="flex")
    theirs = regard.attend(*dirty, score=made, mask=Lengths(190) & Window(right=60), backend="reference")
    assert (out.isnan() == theirs.isnan()).all() and out.isnan().any()
    torch.testing.assert_close(out.nan_to_num(), theirs.nan_to_num(), **EXACT)
    grads = torch.autograd.grad(out.nan_to_num().sum(), dirty)
    assert all(x.isfinite().all() for x in grads)


def test_what_is_made_anew_for_a_call_compiles_nothing_anew(monkeypatch):
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(flex_attention.flex_attention, backend=counter)
    monkeypatch.setattr(flex, "_call", lambda *args, **options: compiled(*args, **options))
    slopes, q, k, v = torch.rand(4, device=DEVICE, dtype=DTYPE), *(x.detach() for x in inputs(40, 40))

    def alibi(s, b, h, i, j):
        return s - slopes[h] * (i - j).abs()

    for _ in range(3):
        regard.attend(q, k, v, score=Function(alibi), mask=Causal() & ~Window(3, 3) | Lengths(7), backend="flex")
    assert counter.frame_count == 1


def test_in_half_precision():
    made = Function(lambda s, b, h, i, j: s - 0.1 * (i - j).abs())
    check(*inputs(dtype=torch.bfloat16), made, exact={"rtol": 2e-2, "atol": 4e-2}, mask=Causal(), offset=50)


def test_what_it_refuses():
    q, k, v = inputs(8, 8)
    f, stride = (
        Function(lambda s, b, h, i, j: s),
        type("Stride", (Mask,), {"visible": lambda s, r, p, c: c[None] > 2})(),
    )
    for made, options, why in [
        (Dot(), {}, "has a function to compile"),
        (Function(f.f, Additive(16, 16, 3).to(q)), {}, "Function is not a dot product edited by a function"),
        (f + ALiBi(4), {}, "more than a dot product"),
        (2 * f, {}, "Function is not a dot product edited"),
        (f, {"dropout": 0.1}, "no dropout"),
        (f, {"sink": 0.0}, "no attention sink"),
        (f, {"return_logsumexp": True}, "logsumexp"),
    ]:
        with pytest.raises(ValueError, match=f"backend='flex' cannot run this: .*{why}"):
            regard.attend(q, k, v, score=made, backend="flex", **options)
    small = regard.plan(q, k, v, score=f, mask=stride, backend="flex")
    assert "called once" in str(small)


def test_the_planner_takes_it_on_a_gpu():
    q, k, v = inputs(8, 8)
    plan = regard.plan(q, k, v, score=Function(lambda s, b, h, i, j: s), mask=Causal())
    assert plan.kernel == ("flex" if CUDA else "blockwise")


@pytest.mark.skipif(not CUDA, reason="compiles for a GPU")
def test_compiled_with_a_model():
    made = Function(lambda s, b, h, i, j: s - 0.1 * (i - j).abs())
    compiled = torch.compile(lambda q, k, v: regard.attend(q, k, v, score=made, mask=Causal()), fullgraph=True)
    for n in (130, 150, 170):
        q, k, v = inputs(n, n)
        out, expected = compiled(q, k, v), regard.attend(q, k, v, score=made, mask=Causal())
        torch.testing.assert_close(out, expected, **EXACT)
        ours, theirs = (torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (out, expected))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, **EXACT)


# --- the score itself, on every kernel ---

INNER = {
    "dot": lambda: Dot(),
    "rotary": lambda: Rotary(Dot()) + ALiBi(4),
    "additive": lambda: Additive(16, 16, 3),
    "relative": lambda: Relative(16, 2),
}


@pytest.mark.parametrize("inner", INNER)
def test_over_any_score_on_every_kernel(inner):
    shift = torch.randn(4, device=DEVICE, dtype=torch.float64, requires_grad=True)
    made = (
        Function(lambda s, b, h, i, j: s.sigmoid() * shift[h] + 0.1 * (b - i + j), INNER[inner]()).to(DEVICE).double()
    )
    q, k, v = inputs(9, 11, dtype=torch.float64)
    extra = [shift, *made.parameters()]
    for backend in ("auto", "blockwise"):
        check(q, k, v, made, extra, {}, backend, mask=Causal(), offset=2)
    dense = made(q, k, 2).masked_fill(~Causal().dense(9, 11, offset=2).to(DEVICE), -torch.inf)
    by_hand = dense.softmax(-1) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(regard.attend(q, k, v, score=made, mask=Causal(), offset=2), by_hand)
    i, j = (torch.arange(n, device=DEVICE) for n in (9, 11))
    b, h = (torch.arange(n, device=DEVICE).view(-1, *(1,) * m) for n, m in ((2, 3), (4, 2)))
    inner_e = made.inner(q, k, 2)
    torch.testing.assert_close(made(q, k, 2), inner_e.sigmoid() * shift[h] + 0.1 * (b - (i[:, None] + 2) + j))


def test_beside_other_scores_and_in_groups():
    q, k, v = inputs(9, 11, dtype=torch.float64)
    edit = Function(lambda s, b, h, i, j: s.square() - h)
    check(q, k, v, 2 * edit + ALiBi(4), (), {}, "auto")
    check(q, k, v, PerHead((2, Dot()), (2, edit)), (), {}, "auto")


class Slopes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.rand(4, device=DEVICE, dtype=DTYPE))

    def forward(self, s, b, h, i, j):
        return s - self.slopes[h] * (i - j).abs() / 256


def test_a_module_as_a_function_is_part_of_the_score():
    made = Function(Slopes())
    check(*inputs(), made, list(made.parameters()), mask=Causal(), offset=50)
    other = Function(Slopes())
    other.load_state_dict(made.state_dict())
    assert list(made.state_dict()) == ["f.slopes"] and torch.equal(other.f.slopes, made.f.slopes)


def test_what_a_function_is_made_of():
    for made, error, message in [
        (lambda: Function(3), TypeError, r"takes a function of \(s, b, h, i, j\).*got int"),
        (lambda: Function(Dot()), TypeError, "got Dot"),
        (lambda: Function(abs, Dot), TypeError, r"as in Function\(f, Dot\(\)\), got the class Dot; write Dot\(\)"),
        (lambda: Function(abs, PerHead((2, Dot()), (2, Dot()))), ValueError, "around a PerHead; edit its groups"),
        (lambda: Function(abs, Relative(8, 2, values=True, value_dim=8)), ValueError, "cannot stand around Relative"),
    ]:
        with pytest.raises(error, match=message):
            made()
    q, k, v = inputs(5, 5)
    with pytest.raises(ValueError, match="Function must return what broadcasts to"):
        regard.attend(q, k, v, score=Function(lambda s, b, h, i, j: s[..., :2]), backend="blockwise")

"""Dot products on a CPU, a block of queries at a time: the reference, with tiles so small that all kinds occur."""

import pytest
import torch
from cases import MASKS, Sizes, tensors
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.kernels import cpu_dot
from regard.mask import Causal, Dense, Documents, Lengths, Prefix, Window
from regard.score import ALiBi, Dot, Rotary, Softcap

NAME = cpu_dot.NAME


def differentiate(backend, inputs, grad, **options):
    """Context, logsumexp and gradients; rows that are NaN are left out of the gradients."""
    out, lse = regard.attend(*inputs[:3], sink=inputs[3], return_logsumexp=True, backend=backend, **options)
    leaves = [x for x in inputs if x is not None]
    grads = torch.autograd.grad(out, leaves, grad.masked_fill(out.isnan(), 0.0), materialize_grads=True)
    return out, lse, *grads


@given(
    mask=st.sampled_from([None, *sorted(MASKS)]),
    sizes=st.builds(
        lambda heads, **rest: Sizes(heads=heads[0], kv_heads=heads[1], **rest),
        heads=st.sampled_from([(1, 1), (4, 2), (3, 1), (2, 2)]),
        batch=st.sampled_from([(1,), (2,), (3,), (), (2, 2)]),
        queries=st.sampled_from([1, 3, 9, 17]),
        keys=st.sampled_from([1, 6, 16, 21]),
        dim=st.sampled_from([3, 8]),
        value_dim=st.sampled_from([2, 8, 11]),
    ),
    offset=st.one_of(st.integers(-5, 9), st.just("items")),
    sink=st.booleans(),
    whole=st.booleans(),
    apart=st.booleans(),
    poison=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_it_agrees_with_the_reference(mask, sizes, offset, sink, whole, apart, poison, seed):
    torch.manual_seed(seed)
    s = sizes
    inputs = [*tensors(s, grad=True), torch.randn(s.heads, dtype=torch.float64, requires_grad=True) if sink else None]
    offset = torch.randint(-5, 9, s.batch) if offset == "items" else offset
    made = None if mask is None else MASKS[mask](s)[0]
    grad = torch.randn(*s.batch, s.heads, s.queries, s.value_dim, dtype=torch.float64)
    if poison and mask is not None:
        with torch.no_grad():
            for x, value in zip(inputs, (torch.nan, torch.inf, torch.nan), strict=False):
                x.view(-1)[int(torch.randint(x.numel(), ()))] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_dot, "QUERIES", 4)
        patch.setattr(cpu_dot, "KEYS", 4)
        patch.setattr(cpu_dot, "ROOM", 4 * s.keys * s.heads)
        patch.setattr(cpu_dot, "WHOLE", 2**20 if whole else 0)
        patch.setattr(cpu_dot, "APART", 0 if apart else 2**20)
        ours = differentiate(NAME, inputs, grad, mask=made, offset=offset)
    for x, y in zip(ours, differentiate("reference", inputs, grad, mask=made, offset=offset), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, equal_nan=True)


def small_tiles(patch):
    for name, value in (("QUERIES", 4), ("KEYS", 4), ("WHOLE", 0)):
        patch.setattr(cpu_dot, name, value)


def test_keys_that_do_not_lie_side_by_side(monkeypatch):
    """Every block of queries sees the prefix and its own window, and nothing between."""
    small_tiles(monkeypatch)
    inputs = [torch.randn(1, 2, 40, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    grad, mask = torch.randn(1, 2, 40, 8, dtype=torch.float64), Prefix(3) | Window(3, 0)
    ours, exact = (differentiate(backend, [*inputs, None], grad, mask=mask) for backend in (NAME, "reference"))
    for x, y in zip(ours, exact, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_a_logsumexp_of_zero_is_no_sign_of_an_empty_row(monkeypatch):
    """PyTorch's kernel says 0 for a row without keys; so is that of one key whose score is 0."""
    small_tiles(monkeypatch)
    q, v = torch.zeros(1, 1, 9, 8), torch.randn(1, 1, 9, 8)
    out, lse = regard.attend(q, q, v, mask=Window(0, 0), return_logsumexp=True, backend=NAME)
    assert torch.equal(lse, torch.zeros(1, 1, 9)) and torch.equal(out, v)
    hidden = Window(0, 0) & Prefix(5)
    out, lse = regard.attend(q, q, v, mask=hidden, return_logsumexp=True, backend=NAME)
    assert torch.equal(lse[0, 0] == -torch.inf, torch.arange(9) >= 5) and not out[0, 0, 5:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "mask", [Causal() & Window(40, 0), Documents(torch.arange(300) // 70) & Causal(), Lengths(250)]
)
def test_in_every_type(mask, dtype):
    """Its error is at most twice that of the textbook in the same type."""
    inputs = [torch.randn(1, 2, 300, 16).to(dtype).requires_grad_() for _ in range(3)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    grad = torch.randn(1, 2, 300, 16).to(dtype)

    def textbook():
        q, k, v = inputs
        hidden = regard.steps(q, k, v, mask=mask).masked == -torch.inf
        out = (q @ k.mT / 4).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return out, *torch.autograd.grad(out, inputs, grad)

    def fused(backend, tensors):
        out = regard.attend(*tensors, mask=mask, backend=backend)
        return out, *torch.autograd.grad(out, tensors, grad.to(out.dtype))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_dot, "WHOLE", 0)
        ours = fused(NAME, inputs)
    for x, plain, exact in zip(ours, textbook(), fused("reference", wide), strict=True):
        floor = 2 * torch.finfo(dtype).eps * exact.abs().max()
        assert (x - exact).abs().max() <= 2 * (plain - exact).abs().max() + floor


def pairs(mask, n):
    """How many pairs of a head are computed."""
    q = torch.zeros(1, 1, n, 8)
    (choice,) = regard.plan(q, q, q, mask=mask, backend=NAME).choices
    total = 0
    for block in cpu_dot._Rows(choice.problem).blocks():
        keys = len(range(n)[block.cols]) if isinstance(block.cols, slice) else len(block.cols)
        total += (block.q.stop - block.q.start) * keys
    return total


def test_hidden_tiles_are_not_computed():
    n, tile = 4096, cpu_dot.QUERIES
    assert pairs(Causal() & Window(256, 0), n) <= n * (256 + 2 * tile)
    assert pairs(Documents(torch.arange(n) // 256), n) == n * 256
    assert pairs(Documents(torch.arange(n) // 256) & Causal(), n) <= n * 256
    assert pairs(Lengths(600) & Causal(), n) <= n * (600 + tile)
    assert pairs(Prefix(100) | Window(100, 0), n) <= n * (100 + 4 * tile)
    assert pairs(Dense(torch.rand(n, n) < 0.5), n) == n * n


def test_the_mask_of_many_items_is_made_some_items_at_a_time():
    """A dense mask that differs by item and head: a block has no more of it than ROOM, or one item."""
    q = torch.zeros(6, 4, 600, 8)
    dense = Dense(torch.rand(6, 4, 600, 600) < 0.5)
    (choice,) = regard.plan(q, q, q, mask=dense, backend=NAME).choices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_dot, "ROOM", 2 * 4 * cpu_dot.QUERIES * 600)
        patch.setattr(cpu_dot, "APART", 2**30)
        sizes = {block.items.stop - block.items.start for block in cpu_dot._Rows(choice.problem).blocks()}
    assert sizes == {2}


def test_when_it_is_chosen():
    long, short = torch.zeros(1, 2, 1000, 8), torch.zeros(1, 2, 50, 8)

    def kernel(q, **options):
        return regard.plan(q, q, q, **options).kernel

    assert kernel(long) == kernel(long, mask=Causal()) == kernel(short, mask=Window(9, 9)) == "sdpa"
    for options in (
        {"mask": Window(9, 9)},
        {"mask": Lengths(900)},
        {"mask": Causal(), "offset": 5},
        {"mask": Window(9, 9), "score": Rotary(Dot())},
    ):
        assert kernel(long, **options) == NAME, options
    assert kernel(long, mask=Dense(torch.rand(1000, 1000) < 0.5)) == "sdpa"  # it hides no tile
    assert kernel(short, return_logsumexp=True) == kernel(short, sink=0.0) == kernel(long, sink=0.0) == NAME
    for options in ({"score": Softcap(Dot(), 5.0)}, {"dropout": 0.1, "seed": 0}, {"score": Dot() + ALiBi(2)}):
        assert kernel(long, mask=Window(9, 9), **options) != NAME
    assert "every pair" in regard.plan(long, long, long, mask=Window(9, 9)).refusals["sdpa"]


def test_rows_without_a_mask_that_see_nan_are_nan():
    """PyTorch's kernel gives a row of NaN scores 0."""
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    q[0, 1, 3, 2] = torch.nan
    out, lse = regard.attend(q, k, v, sink=0.5, return_logsumexp=True)
    assert out[0, 1, 3].isnan().all() and lse[0, 1, 3].isnan() and int(lse.isnan().sum()) == 1
    k[0, 0, 5, 0] = torch.nan
    out, lse = regard.attend(q, k, v, return_logsumexp=True, backend=NAME)
    assert out[0, 0].isnan().all() and lse[0, 0].isnan().all()


def test_it_compiles_and_transforms():
    q, k, v = (torch.randn(2, 2, 400, 8, dtype=torch.float64) for _ in range(3))
    options = {"mask": Causal() & Window(30, 0), "sink": 0.3}

    def loss(q, k, v):
        return regard.attend(q, k, v, **options).square().sum()

    expected = torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)
    exact = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(regard.attend(*exact, backend="reference", **options).square().sum(), exact)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    compiled(*leaves).backward()
    per_item = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*(x[:, None] for x in (q, k, v)))
    for x, y, z, w in zip(expected, wanted, leaves, per_item, strict=True):
        for other in (x, z.grad, w[:, 0]):
            torch.testing.assert_close(other, y, rtol=1e-9, atol=1e-9)


def test_memory_is_linear_in_the_length():
    def needs(n):
        q = torch.empty(1, 1, n, 64)
        return regard.plan(q, q, q, mask=Window(100, 0), backend=NAME).memory_bytes

    assert needs(8192) - needs(4096) == 2 * (needs(4096) - needs(2048))

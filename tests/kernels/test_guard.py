"""The guard's GPU code against PyTorch's own operations; without a GPU in Triton's interpreter."""

import pytest
import torch
from interpreting import CUDA, DEVICE

import regard
from regard.kernels import _guard
from regard.mask import Causal, Lengths
from regard.score import Dot, General, PerHead, Relative

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if CUDA else [])]


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch):
    """The guard also for CPU tensors, and small blocks."""
    monkeypatch.setattr(_guard, "NUMBERS", 256)
    if not CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(_guard, "fits", lambda *x: all(map(_guard._plain, x)))


def with_poison(*shape, dtype=torch.float32, spots=5):
    x = torch.randn(shape, device=DEVICE).to(dtype)
    flat = x.view(-1)
    for n, poison in enumerate((torch.nan, torch.inf, -torch.inf, torch.nan, torch.inf)[:spots]):
        flat[n * 37 % flat.numel()] = poison
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [(8, 8), (1, 20), (17, 3)])
def test_cleaning(dims, dtype):
    q = with_poison(2, 4, 5, dims[0], dtype=dtype).transpose(1, 2).contiguous().transpose(1, 2)
    v, k = with_poison(2, 2, 33, dims[1], dtype=dtype), with_poison(2, 2, 33, dims[0], dtype=dtype, spots=2)
    clean_q, clean_v, (clean_k,), bad_keys, bad_rows = _guard.clean(q, v, [k], [slice(0, 2)])
    for x, y in ((q, clean_q), (v, clean_v), (k, clean_k)):
        torch.testing.assert_close(y, torch.where(x.isfinite(), x, 0.0), rtol=0, atol=0)
    assert torch.equal(bad_rows, ~q.isfinite().all(-1)) and bad_rows.any()
    assert torch.equal(bad_keys, ~(v.isfinite().all(-1) & k.isfinite().all(-1))) and bad_keys.any()


def test_keys_of_some_heads():
    q, v = torch.randn(2, 3, 4, 8, device=DEVICE), torch.randn(2, 3, 7, 8, device=DEVICE)
    keys = [with_poison(2, n, 7, d, spots=s) for n, d, s in ((1, 8, 1), (2, 4, 3), (2, 1, 0), (2, 3, 0), (2, 3, 1))]
    places = [slice(0, 1), *[slice(1, 3)] * 4]
    *_, bad_keys, bad_rows = _guard.clean(q, v, keys, places)
    expected = torch.zeros(2, 3, 7, dtype=torch.bool, device=DEVICE)
    for k, heads in zip(keys, places, strict=True):
        expected[:, heads] |= ~k.isfinite().all(-1)
    assert torch.equal(bad_keys, expected) and not bad_rows.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [(9, 9), (1, 1), (3, 9), (40, 9), (40, 1100)])
def test_spoiling_causal_rows(lengths, dtype):
    queries, keys = lengths
    bad_rows = torch.rand(2, 4, queries, device=DEVICE) < 0.1
    bad_keys = torch.rand(2, 2, keys, device=DEVICE) < 1 / keys
    seen = torch.arange(keys, device=DEVICE) <= torch.arange(queries, device=DEVICE)[:, None]
    bad = bad_rows | (seen & bad_keys.repeat_interleave(2, 1)[:, :, None]).any(-1)
    x = torch.randn(2, queries, 4, 5, device=DEVICE, dtype=dtype).transpose(1, 2)
    expected = x.masked_fill(bad[..., None], torch.nan)
    leaf = x.clone().requires_grad_()
    out = _guard.spoil_causal(leaf, bad_keys, bad_rows)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    grad = torch.randn_like(out).masked_fill(bad[..., None], torch.nan)
    (ours,) = torch.autograd.grad(out, leaf, grad)
    torch.testing.assert_close(ours, grad.masked_fill(bad[..., None], 0.0), rtol=0, atol=0)
    in_place = _guard.spoil_causal(x, bad_keys, bad_rows)
    assert in_place is x
    torch.testing.assert_close(x, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mask", [Causal(), Causal() & Lengths(6)], ids=str)
@pytest.mark.parametrize("score", [Dot, lambda: General(8, 8), lambda: PerHead((2, Dot()), (2, Relative(8, 2)))])
@pytest.mark.parametrize("backend", ["auto", "blockwise"])
def test_attend_with_it_is_the_reference(score, mask, backend, monkeypatch):
    torch.manual_seed(3)
    made = score().to(DEVICE)
    q, k, v = (torch.randn(2, 4, 9, 8, device=DEVICE) for _ in range(3))
    q[0, 1, 3, 2], k[0, 2, 7, 0], v[1, 0, 8, 1] = torch.nan, torch.inf, torch.nan
    results = []
    for name in (backend, "reference"):
        if name == "reference":  # and PyTorch's own operations
            monkeypatch.setattr(_guard, "fits", lambda *x: False)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = regard.attend(*leaves, score=made, mask=mask, backend=name)
        good = ~out.isnan().any(-1)
        results.append((out, *torch.autograd.grad(out[good].sum(), [*leaves, *made.parameters()])))
    assert results[0][0].isnan().any()
    assert all(g.isfinite().all() for g in results[0][1:])
    close = {"rtol": 1e-4, "atol": 1e-4} if CUDA else {}  # PyTorch's own kernel there multiplies parts of float32
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, **close)

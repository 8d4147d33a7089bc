"""The loss's GPU code against the plain one; without a GPU it runs in Triton's interpreter."""

import pytest
import torch
from interpreting import CUDA, DEVICE

from regard.train import _triton_loss, loss

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    if not CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize("rdrop", [None, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("size", [50, 64, 200])
def test_rows_are_the_formula(rdrop, smoothing, size, monkeypatch):
    monkeypatch.setattr(_triton_loss, "BLOCK", 64)  # so that there are several
    g = torch.Generator().manual_seed(size)
    z = 5 * torch.randn(1 if rdrop is None else 2, 7, size, generator=g)
    z[..., 3] += 40.0  # the maximum changes on the way
    y = torch.randint(0, size, (7,), generator=g)
    y[2], y[3] = 0, 3
    exact, slope = loss.row_losses(z.double(), y, 0, smoothing, rdrop, True)
    plain, plain_slope = loss.row_losses(z, y, 0, smoothing, rdrop, True)
    ours, our_slope = _triton_loss.row_losses(z.clone().to(DEVICE), y.to(DEVICE), 0, smoothing, rdrop, True)
    step = torch.finfo(torch.float32).eps * z.abs().max()  # z − lse is rounded to this, whoever computes it
    for x, rough, fine, rows in ((ours, plain, exact, len(y)), (our_slope, plain_slope, slope, 1)):  # a sum of rows
        assert (x.cpu() - fine).abs().max() <= 2 * (rough - fine).abs().max() + rows * step
    assert not our_slope[:, 2].any()
    only, nothing = _triton_loss.row_losses(z.clone().to(DEVICE), y.to(DEVICE), 0, smoothing, rdrop, False)
    assert nothing is None
    torch.testing.assert_close(only, ours)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.gpu
@pytest.mark.parametrize("rdrop", [None, 5.0])
def test_the_whole_loss_on_a_gpu(rdrop):
    g = torch.Generator().manual_seed(0)
    passes = 1 if rdrop is None else 2
    features, weight = torch.randn(passes * 300, 64, generator=g), torch.randn(9000, 64, generator=g)
    targets = torch.randint(0, 9000, (300,), generator=g)
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        some = [x.to(device, dtype).requires_grad_() for x in (features, weight)]
        out = loss.sequence_loss(*some, targets.to(device), smoothing=0.1, rdrop=rdrop)
        out[0].backward()
        results.append([out.detach().cpu(), *(x.grad.cpu() for x in some)])
    for exact, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4 * exact.abs().max().item())

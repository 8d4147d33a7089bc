"""The example of CONTRIBUTING.md: a new score is a formula and a lowering, and needs no kernel."""

from __future__ import annotations

import torch
from torch import Tensor

import regard
from regard.mask import Causal
from regard.score import Score
from regard.score._tensors import repeat_heads
from regard.score.terms import BiasTerm, DotTerm, Keys, KeyTerm, Queries


class Gaussian(Score):
    """e_ij = −‖q_i − k_j‖² / 2."""

    key_tensors = 2

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        k = repeat_heads(k, q)
        return -0.5 * (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(q, 1.0), KeyTerm(), BiasTerm(-0.5 * q.square().sum(-1, keepdim=True))))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k, -0.5 * k.square().sum(-1, keepdim=True)))


def test_a_score_of_ones_own_runs_in_every_kernel_that_takes_its_terms() -> None:
    q = torch.randn(2, 3, 4, 6, 5, dtype=torch.float64)
    k, v = (torch.randn(2, 3, 2, 7, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    score = Gaussian()
    steps = regard.steps(q, k, v, score=score, mask=Causal(), offset=1)
    torch.testing.assert_close(steps.scaled, score(q, k))
    wanted = torch.autograd.grad(steps.context.square().sum(), (k, v))
    out = regard.attend(q, k, v, score=score, mask=Causal(), offset=1, backend="blockwise")
    torch.testing.assert_close(out, steps.context)
    for a, b in zip(torch.autograd.grad(out.square().sum(), (k, v)), wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert regard.plan(q, k.detach(), v.detach(), score=score).kernel == "sdpa"

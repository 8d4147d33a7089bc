"""Generation from a prompt, by a language model without a source.

Shapes: N prompts, P tokens of each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from regard.decode._common import eval_mode, refuse
from regard.decode._walk import draw, narrow

Pick = Callable[[Tensor], Tensor]
C = TypeVar("C")


class LanguageModel(Protocol[C]):
    """What :func:`generate` needs of a model; :class:`regard.nn.CausalLM` is one."""

    def new_caches(self) -> C:
        """The caches, empty before the prompt."""

    def features(self, tokens: Tensor, *, caches: C) -> Tensor:
        """Read [N, T] more tokens: their states, [N, T, E]."""

    def logits(self, features: Tensor) -> Tensor:
        """Features → logits of the next token."""


@torch.no_grad()
def generate(
    model: LanguageModel[C],
    prompt: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
    eos_id: int | None = None,
) -> Tensor:
    """Prompts [N, P] with what the model adds to each, [N, P + at most ``max_new_tokens``].

    The prompt is read at once, then one token at a time, each drawn as :func:`sample` draws it. ``temperature=0`` takes
    the most likely. After ``eos_id`` a sequence is filled up with it; generation ends when all sequences have ended.
    """
    if prompt.ndim != 2 or not prompt.shape[1] or prompt.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"prompt must be token numbers [N, P] with P ≥ 1, got {prompt.dtype} {list(prompt.shape)}; prompts of "
            "different lengths are generated in one call each"
        )
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be at least 0, got {max_new_tokens}")
    pick = _picker(len(prompt), temperature, top_k, top_p, seed)
    out, caches = [prompt], model.new_caches()
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    with eval_mode(model):
        for _ in range(max_new_tokens):
            logits = model.logits(model.features(out[-1], caches=caches)[:, -1])
            refuse(~logits.amax(-1).isfinite() & ~ended)  # NaN is the largest
            token = pick(logits)
            if eos_id is not None:
                token = token.masked_fill(ended, eos_id)
                ended |= token == eos_id
            out.append(token.to(prompt.dtype)[:, None])
            if ended.all():
                break
    return torch.cat(out, 1)


def _picker(count: int, temperature: float, top_k: int | None, top_p: float, seed: int | None) -> Pick:
    """What takes one token of each row of logits [N, V]."""
    if not 0 <= temperature < math.inf or not 0 < top_p <= 1 or (top_k is not None and top_k < 1):
        raise ValueError(
            "generate needs a finite temperature ≥ 0, 0 < top_p ≤ 1 and top_k ≥ 1 or None, got "
            f"temperature={temperature}, top_p={top_p}, top_k={top_k}"
        )
    if temperature == 0:
        return lambda logits: logits.argmax(-1)
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)

    def pick(logits: Tensor) -> Tensor:
        u = torch.rand(count, 1, generator=generator, dtype=torch.float64).to(logits.device)
        return draw(narrow(logits, temperature, top_k, top_p), u)

    return pick

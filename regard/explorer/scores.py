"""Scores by name for the question "what if": made with fixed numbers, not trained, and labelled so."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.score import Additive, Bilinear, Dot, General, Location, Relative, Rotary, Score

_SEED = 20_170_612
_REACH = 16  # distances that Location and Relative tell apart

_MAKE: dict[str, Callable[[int], Score]] = {
    "dot": lambda dim: Dot(),
    "additive": lambda dim: Additive(dim, dim, dim),
    "general": lambda dim: General(dim, dim),
    "bilinear": lambda dim: Bilinear(dim, dim, dim),
    "location": lambda dim: Location(dim, _REACH),
    "relative": lambda dim: Relative(dim, _REACH),
    "rotary": lambda dim: Rotary(Dot()),
}

_FORMULAS = {
    "Dot": "q·k / √d",
    "Additive": "vᵀ tanh(W q + U k)",
    "General": "qᵀ W k",
    "Bilinear": "(W_q q)ᵀ (W_k k)",
    "Location": "q · r(j − i)",
    "Relative": "q · (k + r(j − i)) / √d",
    "Rotary": "R(i) q · R(j) k / √d",
    "Cosine": "τ · cos(q, k)",
    "ALiBi": "−m · |j − i|",
    "T5Bias": "b(bucket of j − i)",
    "Key": "w · k",
    "Bias": "b",
}


def counterfactual(name: str, dim: int) -> Score:
    """The score of this name for heads of ``dim``, the same numbers every time.

    >>> first, again = (counterfactual("general", 4).W for _ in range(2))
    >>> bool((first == again).all())
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return _MAKE[name](dim).eval()


def formula(score: str) -> str:
    """A score's text, as ``Dot()``, as a formula for people; one that is not known is told as it is.

    >>> formula("Additive(query_dim=8, key_dim=8, hidden_dim=8)")
    'vᵀ tanh(W q + U k)'
    """
    return _FORMULAS.get(score.split("(")[0], score)

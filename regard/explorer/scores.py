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
    "Rotary(Dot())": "R(i) q · R(j) k / √d",
    "Cosine": "τ · cos(q, k)",
    "ALiBi": "−m · |j − i|",
    "T5Bias": "b(bucket of j − i)",
    "Key": "w · k",
    "Bias": "b",
}

_TERMS = {  # what is summed over dimensions, where that is not the whole formula: before it is scaled, without the rest
    "Dot": "q·k",
    "Relative": "q·k",
    "Rotary(Dot())": "R(i) q · R(j) k",
    "Cosine": "q/‖q‖ · k/‖k‖",
}
_NO_TERMS = ("Location", "ALiBi", "T5Bias", "Key", "Bias")  # they compare no vectors


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

    >>> formula("Dot() + ALiBi()")
    'q·k / √d − m · |j − i|'
    >>> formula("Rotary(General())")
    'qᵀ W k, q and k rotated by position'
    """
    parts = [_formula(part) for part in score.split(" + ")]
    return " + ".join(parts).replace("+ −", "− ")


def terms(score: str) -> str:
    """The part of a score's formula that is a sum over dimensions; "" where that is not known.

    >>> terms("Dot() + ALiBi()"), terms("Rotary(Dot())"), terms("Softcap(Additive())")
    ('q·k', 'R(i) q · R(j) k', 'vᵀ tanh(W q + U k)')
    """
    parts = [part for part in score.split(" + ") if part.partition("(")[0] not in _NO_TERMS]
    found = [_terms(part) for part in parts]
    return " + ".join(found) if all(found) else ""


def _terms(score: str) -> str:
    name, _, inner = score.removesuffix(")").partition("(")
    if name in ("Rotary", "Softcap") and score not in _TERMS:
        told = _terms(inner)
        return f"{told}, q and k rotated by position" if told and name == "Rotary" else told
    return _TERMS.get(score) or _TERMS.get(name) or ("" if inner else _FORMULAS.get(name, ""))


def _formula(score: str) -> str:
    name, _, inner = score.removesuffix(")").partition("(")
    if score in _FORMULAS or not inner:
        return _FORMULAS.get(score) or _FORMULAS.get(name, score)
    if name == "Rotary":
        return f"{_formula(inner)}, q and k rotated by position"
    return f"c · tanh(({_formula(inner)}) / c)" if name == "Softcap" else score

"""Shared by the fused kernels of additive attention: the terms they accept, and the form of the keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from regard.score.terms import Problem, Terms, may_need_gradient, plain


def refuses_terms(terms: Terms) -> str | None:
    """Why these terms are not one tanh term plus at most one offset, bias and key term; None if they are."""
    if len(terms.tanhs) != 1:
        return "the score has no tanh term"
    if terms.dots or terms.cap is not None or terms.values is not None:
        return "it adds no dot term, softcap or value offsets to the tanh term"
    if len(terms.offsets) > 1 or len(terms.biases) > 1 or len(terms.keys) > 1:
        return "it takes at most one offset, one bias and one key term"
    return None


def readable(problem: Problem, *, exponentials: Callable[[Problem], bool]) -> Problem:
    """The problem with b instead of a cache's e^{2b}, unless the kernel reads ``exponentials`` and needs no gradient.

    ``exponentials`` depends on the length, so it is only called if there are any: an exported program serves all
    lengths.
    """
    (tanh,) = problem.terms.tanhs
    if not tanh.exponential:
        return problem
    if exponentials(problem) and not may_need_gradient(tanh.a, tanh.b, tanh.w, problem.v):
        return problem
    return replace(problem, terms=plain(problem.terms))

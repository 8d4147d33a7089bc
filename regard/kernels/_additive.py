"""What the fused kernels of additive attention have in common: the terms they take, and in which form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from regard.score.terms import Problem, Terms, may_need_gradient, plain


def refuses_terms(terms: Terms) -> str | None:
    """Why these terms are not one tanh term with what may be added to it."""
    if len(terms.tanhs) != 1:
        return "the score has no tanh term"
    if terms.dots or terms.cap is not None or terms.values is not None:
        return "it adds no dot term, softcap or value offsets to the tanh term"
    if len(terms.offsets) > 1 or len(terms.biases) > 1 or len(terms.keys) > 1:
        return "it takes at most one offset, one bias and one key term"
    return None


def readable(problem: Problem, *, exponentials: Callable[[Problem], bool]) -> Problem:
    """With b in the place of a cache's e^{2b}, unless the kernel reads ``exponentials`` and no gradient is wanted.

    It is asked only where there are such: the answer depends on the length, and an exported program is to serve all.
    """
    (tanh,) = problem.terms.tanhs
    if not tanh.exponential:
        return problem
    if exponentials(problem) and not may_need_gradient(tanh.a, tanh.b, tanh.w, problem.v):
        return problem
    return replace(problem, terms=plain(problem.terms))

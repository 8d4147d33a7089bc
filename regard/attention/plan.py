"""The planner: the only place that chooses a kernel, with reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.kernels import _autocast, blockwise, cpu_additive, cpu_dot, flex, reference, sdpa
from regard.kernels.gpu import additive as triton_additive
from regard.kernels.gpu import offset as triton_offset
from regard.mask import Dense, Mask
from regard.mask.own import custom_part
from regard.score.terms import (
    DTYPES,
    BiasTerm,
    DotTerm,
    FormulaTerm,
    KeyTerm,
    OffsetTerm,
    Problem,
    TanhTerm,
    Term,
    Terms,
    fold,
    plain,
)


class Kernel(Protocol):
    """The interface of the modules in regard/kernels. The first in ``KERNELS`` that does not refuse runs."""

    NAME: str

    def refuses(self, problem: Problem, /) -> str | None:
        """Why it cannot run this problem, or None."""

    def run(self, problem: Problem, /) -> tuple[Tensor, Tensor | None]:
        """Context [B, H, L, Dv] and logsumexp [B, H, L]."""

    def memory_bytes(self, problem: Problem, /) -> int:
        """Roughly the bytes it allocates beyond its inputs."""

    def error_bound(self, problem: Problem, /) -> float:
        """Error of its formula beyond rounding; 0 if exact."""


KERNELS: dict[str, Kernel] = {
    "triton_offset": triton_offset,
    "sdpa": sdpa,
    "cpu_dot": cpu_dot,
    "triton_additive": triton_additive,
    "cpu_additive": cpu_additive,
    "flex": flex,
    "blockwise": blockwise,
    "reference": reference,
}
BACKENDS = ("auto", *KERNELS)
EXPONENTIAL = ("cpu_additive", "triton_additive")  # kernels that read a cache's e^{2b} directly
FORMULAS = ("flex", "blockwise", "reference")  # kernels that call a score's dense formula
VISIBLE = ("sdpa", "cpu_dot", *FORMULAS)  # kernels that call `visible` of a custom mask
TRACED = ("sdpa", "reference")  # plain PyTorch, which torch.jit.trace records for any length
GPU_ONLY = ("triton_offset", "triton_additive", "flex")  # on a CPU they only run if forced, in an interpreter


@dataclass(frozen=True)
class Choice:
    """A problem with the kernel chosen for it."""

    problem: Problem
    kernel: str
    refusals: dict[str, str]
    folded: tuple[str, ...]

    def run(self) -> tuple[Tensor, Tensor | None]:
        problem = self.problem
        if self.kernel not in EXPONENTIAL and problem.terms.tanhs:
            problem = replace(problem, terms=plain(problem.terms))
        return KERNELS[self.kernel].run(problem)


def choose(problem: Problem, backend: str = "auto") -> Choice:
    """The first kernel that does not refuse; a forced kernel that refuses raises ValueError."""
    problem, folded = _simplify(problem)
    if backend != "auto":
        why = _refuses(backend, problem)
        if why is not None:
            raise ValueError(
                f"backend={backend!r} cannot run this: {why}; backend='auto' would take {choose(problem).kernel!r}"
            )
        return Choice(problem, backend, {}, folded)
    refusals: dict[str, str] = {}
    for name in KERNELS:
        if name in GPU_ONLY and problem.device.type == "cpu":
            continue
        why = _refuses(name, problem) or _slower(name, problem)
        if why is None:
            return Choice(problem, name, refusals, folded)
        refusals[name] = why
    raise AssertionError("the reference refuses nothing")


def _refuses(name: str, problem: Problem) -> str | None:
    if name != "reference" and _forward_mode():
        return "it has no forward-mode derivative (torch.func.jvp, jacfwd, hessian)"
    if name not in TRACED and not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None:
        return "torch.jit.trace would keep the sizes of this call in the program"
    if problem.terms.formulas and name not in FORMULAS:
        return f"{problem.terms.formulas[0].name} only has a dense formula"
    if name not in VISIBLE and (mask := custom_part(problem.mask)) is not None:
        return f"the mask {mask} only has `visible`"
    return KERNELS[name].refuses(problem)


def _slower(name: str, p: Problem) -> str | None:
    """Why a later kernel is better, although this one could run too."""
    if name != "sdpa" or p.device.type != "cpu" or p.queries * p.keys <= cpu_dot.WHOLE:
        return None
    if p.mask is None or isinstance(p.mask, Dense) or sdpa.is_causal(p):  # a dense mask seldom hides a whole tile
        return None
    return None if _refuses("cpu_dot", p) else "on a CPU it computes every pair, hidden ones too"


def _forward_mode() -> bool:
    """Is forward-mode differentiation active: torch.func.jvp and what is built on it, or dual numbers?"""
    return forward_ad._current_level >= 0


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Can PyTorch's own attention take these [B, H, L, D] tensors as they are, without planning?

    Checks, lowering and planning cost more than a small attention itself. Anything unusual is not plain: grouped heads,
    other batch dims, empty or nested tensors, several dtypes, autocast, forward-mode differentiation.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return False
    shape, key_shape, dtype, device = q.shape, k.shape, q.dtype, q.device
    return (
        len(shape) == 4
        and key_shape == v.shape
        and len(key_shape) == 4
        and shape[0] == key_shape[0]
        and shape[1] == key_shape[1]
        and shape[3] == key_shape[3]
        and q.numel() != 0
        and k.numel() != 0
        and dtype == k.dtype == v.dtype
        and dtype in DTYPES
        and q.layout is k.layout is v.layout is torch.strided
        and device == k.device
        and device == v.device
        and not _autocast.is_on(device)
        and not _forward_mode()
    )


def _simplify(problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """Fold terms, drop a mask that hides nothing, and drop positions that nothing reads; with notes for the plan."""
    terms, notes = fold(problem.terms)
    mask = problem.mask
    if mask is not None and mask.static and isinstance(problem.offset, int) and problem.rows is None:
        first = problem.offset
        _, full = mask.span(first, first + problem.queries - 1, 0, problem.keys - 1)
        if full:
            notes += (f"{mask} hides nothing here",)
            mask = None
    if (name := custom_part(mask)) is not None:
        mask, note = _to_dense(replace(problem, mask=mask), name)
        notes += (note,)
    offset, key_positions = problem.offset, problem.key_positions
    if (isinstance(offset, Tensor) or key_positions is not None) and not _reads_positions(terms, mask):
        offset, key_positions = 0, None
    same = terms is problem.terms and mask is problem.mask
    if same and offset is problem.offset and key_positions is problem.key_positions:
        return problem, notes
    return replace(problem, terms=terms, mask=mask, offset=offset, key_positions=key_positions), notes


def _reads_positions(terms: Terms, mask: Mask | None) -> bool:
    """Do terms or mask depend on positions? (A rotary score has already rotated its vectors.)"""
    placeless = all(isinstance(t, (DotTerm, TanhTerm, BiasTerm, KeyTerm)) for t in terms.terms)
    return not placeless or terms.values is not None or (mask is not None and mask.reads_positions)


def _to_dense(p: Problem, name: str) -> tuple[Mask, str]:
    """A custom mask as a Dense one, which every kernel accepts, if it is small enough; with a note of the cost."""
    assert p.mask is not None
    rows, positions, cols = p.row_index(), p.positions(), torch.arange(p.keys, device=p.device)
    lead = p.mask.visible(rows[:1], positions[:, :1], cols[:1]).shape[:2]
    size = lead.numel() * p.queries * p.keys
    if p.rows is not None or not p.queries or not p.keys or size > sdpa.MASK_BYTES:
        return p.mask, f"the mask {name} only has `visible`, which is called for each tile"
    seen = p.mask.visible(rows, positions, cols).expand(*lead, p.queries, p.keys)
    booleans = "booleans" if torch.compiler.is_compiling() else f"{_size(size)} of booleans"
    return Dense(seen), f"the mask {name} only has `visible`, which is called once: {booleans}"


@dataclass(frozen=True)
class Plan:
    """The plan of a call: print it."""

    choices: tuple[Choice, ...]

    @property
    def kernel(self) -> str:
        """The kernel's name; with a different one per group of heads, all of them, joined by " + "."""
        return " + ".join(dict.fromkeys(c.kernel for c in self.choices))

    @property
    def refusals(self) -> dict[str, str]:
        """Why the kernels before the chosen one refused; with several groups, the first group's reason."""
        merged: dict[str, str] = {}
        for choice in self.choices:
            merged = {**choice.refusals, **merged}
        return merged

    @property
    def memory_bytes(self) -> int:
        return sum(KERNELS[c.kernel].memory_bytes(c.problem) for c in self.choices)

    @property
    def error_bound(self) -> float:
        """Error of the formula itself, beyond rounding, of each tanh; 0 means exact."""
        return max(KERNELS[c.kernel].error_bound(c.problem) for c in self.choices)

    def __str__(self) -> str:
        p = self.choices[0].problem
        heads, kv_heads = sum(c.problem.heads for c in self.choices), sum(c.problem.kv_heads for c in self.choices)
        lines = [
            f"batch {p.batch} · heads {heads} ({kv_heads} for keys) · queries {p.queries} · keys {p.keys} · "
            f"value dim {p.v.shape[-1]} · {str(p.dtype).removeprefix('torch.')} on {p.device}"
        ]
        for choice in self.choices:
            lines += self._lines(choice)
        return "\n".join(lines)

    def _lines(self, choice: Choice) -> list[str]:
        p = choice.problem
        lines = []
        if len(self.choices) > 1:
            lines.append(f"heads {p.first_head}–{p.first_head + p.heads - 1}")
        lines.append(f"  terms    {describe(p)}")
        lines += [f"  folded   {note}" for note in choice.folded]
        lines.append(f"  mask     {p.mask if p.mask is not None else 'none'}")
        lines.append(f"  kernel   {choice.kernel}")
        lines += [f"  refused  {name}: {why}" for name, why in choice.refusals.items()]
        dense = reference.memory_bytes(p)
        lines.append(
            f"  memory   {_size(KERNELS[choice.kernel].memory_bytes(p))} beyond the inputs (dense: {_size(dense)})"
        )
        bound = KERNELS[choice.kernel].error_bound(p)
        lines += _form(choice, bound)
        error = "exact up to rounding" if bound == 0 else f"at most {bound:.1e} · Σ|w| in the score"
        lines.append(f"  error    {error}")
        return lines


def _form(choice: Choice, bound: float) -> list[str]:
    """A line on how tanh is computed, unless it is computed as expected."""
    p = choice.problem
    if bound > 0:
        return [f"  form     a sine series, each tanh within {bound:g} (exact if the inputs' range is too wide for it)"]
    if any(t.form == "series" for t in p.terms.tanhs):
        kind = f"{str(p.dtype).removeprefix('torch.')} on {p.device.type}"
        return [f"  form     exact: {choice.kernel} has no series for {kind}"]
    return []


def describe(p: Problem) -> str:
    """The terms of a problem in words."""
    pairs = " + ".join(_word(t) for t in p.terms.pairs)
    pairs = f"softcap({pairs}, {p.terms.cap:g})" if p.terms.cap is not None else pairs
    words = [pairs] if pairs else []
    words += [_word(t) for t in p.terms.terms if not isinstance(t, (DotTerm, TanhTerm))]
    if p.terms.values is not None:
        words.append(f"values by distance ({p.terms.values.shape[-2]} entries)")
    return " + ".join(words) or "nothing"


def _word(term: Term) -> str:
    if isinstance(term, DotTerm):
        return f"dot({term.q.shape[-1]} dims)"
    if isinstance(term, TanhTerm):
        return f"tanh({term.a.shape[-1]} hidden)"
    if isinstance(term, OffsetTerm):
        per, noun = "query" if term.table.shape[-2] > 1 else "head", "entry" if term.reach == 0 else "entries"
        return f"offset({term.table.shape[-1]} {noun} per {per}{', then a slope' if term.slope is not None else ''})"
    if isinstance(term, BiasTerm):
        return f"bias({list(term.bias.shape)})"
    if isinstance(term, FormulaTerm):
        return f"the formula of {term.name}"
    assert isinstance(term, KeyTerm)
    return "key"


def _size(n: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}"
        n = n / 1024  # type: ignore[assignment]
    return f"{n:.1f} GiB"

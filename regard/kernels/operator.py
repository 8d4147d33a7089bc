"""The one operator between PyTorch's program transformations and our kernels.

Our kernels branch on data, loop over tiles and call compilers of their own; ``torch.compile``, ``torch.func`` and
autograd must not trace into them. So a problem is packed into flat lists, passed to one opaque operator, and unpacked
inside. The caller's own Python, a formula or a custom mask, cannot cross it and only runs in plain eager mode. A kernel
is two plain functions of a Problem; all that differentiates, vmaps and compiles it is here, once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from regard.kernels import _autocast, _formula
from regard.mask import Mask
from regard.mask.base import build
from regard.mask.own import ByVisible, custom_part
from regard.score.terms import BiasTerm, DotTerm, FormulaTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Term, Terms


class OperatorKernel(Protocol):
    """The interface of a kernel behind the operator."""

    # Keep the context in the compute dtype until the backward pass: rounded to half precision, gradients that should
    # cancel (of anything constant along a row) would not be zero.
    wide_out: bool

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Context [B, H, L, Dv] and logsumexp [B, H, L]."""

    def backward(self, problem: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        """The problem with every floating-point tensor replaced by its gradient."""


OPERATOR_KERNELS: dict[str, OperatorKernel] = {}


def stays_out(problem: Problem) -> str | None:
    """Why the problem cannot cross the operator in a traced or transformed program; None in eager mode."""
    whose = problem.terms.formulas[0].name if problem.terms.formulas else custom_part(problem.mask)
    if whose is None or (not torch.compiler.is_compiling() and _is_plain_eager(problem.v)):
        return None
    return f"{whose} is Python of your own, which a compiled, exported or transformed program can only compute densely"


def run(kernel: str, problem: Problem) -> tuple[Tensor, Tensor]:
    """Run a kernel registered in KERNELS: context and logsumexp."""
    eager = not torch.compiler.is_compiling() and _is_plain_eager(problem.v)
    if eager and not torch.is_grad_enabled():
        out, lse = _compute(kernel, problem)
        return out.to(problem.dtype), lse
    packed = _Packed()
    packed.put_problem(problem)
    code = " ".join(packed.code)
    if eager:
        if _needs_gradient(packed.tensors):
            out, lse = _Eager.apply(kernel, problem, code, packed.ints, packed.floats, packed.python, *packed.tensors)
        else:
            out, lse = _compute(kernel, problem)
    elif torch.compiler.is_compiling() and not _needs_gradient(packed.tensors):  # dynamo trips over such a Function
        out, lse = torch.ops.regard.attention(kernel, code, packed.tensors, packed.ints, packed.floats)
    else:
        out, lse = _Attention.apply(kernel, code, packed.ints, packed.floats, *packed.tensors)
    return out.to(problem.dtype), lse


def sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of a tensor broadcast from ``shape``: x summed over the dims that were 1."""
    dims = [d for d in range(x.ndim) if shape[d] == 1 and x.shape[d] != 1]
    return x.sum(dims, keepdim=True) if dims else x


def _is_plain_eager(v: Tensor) -> bool:
    """Is this plain eager PyTorch, without a transformation, tracer or mode that needs to see an operator?"""
    return (
        type(v) in (Tensor, torch.nn.Parameter)
        and v.device.type in ("cpu", "cuda")
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_tracing_state() is None
    )


def _compute(kernel: str, problem: Problem) -> tuple[Tensor, Tensor]:
    with _autocast.off(problem.device):
        return OPERATOR_KERNELS[kernel].forward(problem)


def _needs_gradient(tensors: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


# --- packing ---


class _Packed:
    """A problem as flat lists. Every tensor has a leading batch dim, full or 1, into which vmap can fold."""

    def __init__(self) -> None:
        self.code: list[str] = []
        self.tensors: list[Tensor] = []
        self.ints: list[int] = []
        self.floats: list[float] = []
        self.python: list[Any] = []  # the caller's own formulas and masks

    def put(self, token: str, *tensors: Tensor | None) -> None:
        self.code.append(token + "".join("-" if t is None else "t" for t in tensors))
        self.tensors.extend(t for t in tensors if t is not None)

    def put_problem(self, p: Problem) -> None:
        for term in p.terms.terms:
            self.put_term(term)
        if p.mask is not None:
            self.put_mask(p.mask)
        tensor_offset = p.offset if isinstance(p.offset, Tensor) else None
        rows = None if p.rows is None else p.rows[None]
        bad = p.bad_keys, p.bad_rows
        self.put("problem:", p.v, p.terms.values, tensor_offset, rows, p.seed, p.sink, *bad, p.key_positions)
        self.ints += [p.heads, p.queries, 0 if isinstance(p.offset, Tensor) else p.offset, p.first_head]
        self.ints += [int(p.need_bias_gradient), int(p.need_offset_gradient)]
        self.floats += [p.dropout, 0.0 if p.terms.cap is None else p.terms.cap]

    def put_term(self, term: Term) -> None:
        if isinstance(term, DotTerm):
            assert not isinstance(term.scale, Tensor), "fold() moves tensor scales into the query"
            self.put("dot:", term.q, term.k)
            self.floats.append(term.scale)
        elif isinstance(term, TanhTerm):
            kind = "exp" if term.exponential else "tanh"
            self.put(f"{kind}.{term.form}:", term.a, term.w, term.b)
        elif isinstance(term, OffsetTerm):
            self.put("offset:", term.table, term.slope)
        elif isinstance(term, BiasTerm):
            self.put("bias:", term.bias)
        elif isinstance(term, FormulaTerm):
            found = _formula.captured_tensors(term)
            self.put("formula:", term.q, term.k, *found)
            self.python.append(replace(term, originals=found))
        else:
            self.put("key:", term.c)

    def put_mask(self, mask: Mask) -> None:
        if isinstance(mask, ByVisible):
            self.put("mask.python.0.0:")
            self.python.append(mask)
            return
        for part in mask.parts:
            self.put_mask(part)
        self.put(f"mask.{type(mask).__name__}.{len(mask.ints)}.{len(mask.parts)}:", *mask.tensors)
        self.ints += mask.ints


def unpack(
    code: str, tensors: list[Tensor], ints: list[int], floats: list[float], python: list[Any] | None = None
) -> Problem:
    tensors, ints, floats, python = list(tensors), list(ints), list(floats), list(python or ())
    terms: list[Term] = []
    masks: list[Mask] = []
    for word in code.split():
        token, flags = word.split(":")
        args: list[Any] = [tensors.pop(0) if flag == "t" else None for flag in flags]
        if token == "dot":
            terms.append(DotTerm(args[0], floats.pop(0), args[1]))
        elif token.startswith(("tanh.", "exp.")):
            kind, form = token.split(".")
            terms.append(TanhTerm(args[0], args[1], args[2], form, kind == "exp"))
        elif token == "offset":
            terms.append(OffsetTerm(*args))
        elif token == "bias":
            terms.append(BiasTerm(*args))
        elif token == "key":
            terms.append(KeyTerm(*args))
        elif token == "formula":
            terms.append(replace(python.pop(0), q=args[0], k=args[1], captured=tuple(args[2:])))
        elif token.startswith("mask.python"):
            masks.append(python.pop(0))
        elif token.startswith("mask."):
            _, kind, n_ints, n_parts = token.split(".")
            at = len(masks) - int(n_parts)
            numbers, ints = ints[: int(n_ints)], ints[int(n_ints) :]
            masks[at:] = [build(kind, tuple(args), tuple(numbers), tuple(masks[at:]))]
    v, values, offset, rows, seed, sink, bad_keys, bad_rows, key_positions = args
    heads, queries, int_offset, first_head, need_bias_gradient, need_offset_gradient = ints
    dropout, cap = floats
    return Problem(
        Terms(tuple(terms), cap or None, values),
        v,
        heads,
        queries,
        masks[0] if masks else None,
        int_offset if offset is None else offset,
        None if rows is None else rows[0],
        dropout,
        seed,
        sink,
        bad_keys,
        bad_rows,
        first_head,
        need_bias_gradient=bool(need_bias_gradient),
        need_offset_gradient=bool(need_offset_gradient),
        key_positions=key_positions,
    )


# --- the operator ---

_library = torch.library.Library("regard", "DEF")
_library.define("attention(str kernel, str code, Tensor[] tensors, SymInt[] ints, float[] floats) -> (Tensor, Tensor)")
_library.define(
    "attention_backward(str kernel, str code, Tensor[] tensors, SymInt[] ints, float[] floats, "
    "Tensor out, Tensor lse, Tensor grad) -> Tensor[]"
)


def _forward(
    kernel: str, code: str, tensors: list[Tensor], ints: list[int], floats: list[float]
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return _compute(kernel, unpack(code, [t.detach() for t in tensors], ints, floats))


def _differentiable(
    kernel: str, code: str, tensors: list[Tensor], ints: list[int], floats: list[float]
) -> tuple[Tensor, Tensor]:
    """The operator called directly, as in an exported program: its gradients are those of the Function."""
    if not _needs_gradient(tensors):
        return _below_autograd(kernel, code, tensors, ints, floats)
    with enable_single_level_autograd_function():
        return _FromDispatcher.apply(kernel, code, ints, floats, *tensors)  # type: ignore[attr-defined, no-any-return]


def _below_autograd(
    kernel: str, code: str, tensors: list[Tensor], ints: list[int], floats: list[float]
) -> tuple[Tensor, Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.regard.attention(kernel, code, tensors, ints, floats)  # type: ignore[no-any-return]


def _backward(
    kernel: str,
    code: str,
    tensors: list[Tensor],
    ints: list[int],
    floats: list[float],
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    python: list[Any] | None = None,
) -> list[Tensor]:
    problem = unpack(code, tensors, ints, floats, python)
    with _autocast.off(problem.device):
        packed = _Packed()
        packed.put_problem(OPERATOR_KERNELS[kernel].backward(problem, out, lse, grad))
    return [
        g.to(t.dtype).contiguous() if t.is_floating_point() else t.new_zeros(())
        for g, t in zip(packed.tensors, tensors, strict=True)
    ]


def _fake_forward(
    kernel: str, code: str, tensors: list[Tensor], ints: list[int], floats: list[float]
) -> tuple[Tensor, Tensor]:
    p = unpack(code, tensors, ints, floats)
    shape = (p.batch, p.heads, p.queries)
    dtype = p.compute_dtype if OPERATOR_KERNELS[kernel].wide_out else p.dtype
    return p.v.new_empty((*shape, p.v.shape[-1]), dtype=dtype), p.v.new_empty(shape, dtype=p.compute_dtype)


def _fake_backward(kernel: str, code: str, tensors: list[Tensor], *_: object) -> list[Tensor]:
    return [t.new_empty(t.shape if t.is_floating_point() else ()) for t in tensors]


def _vmap_forward(
    info: Any, dims: Any, kernel: str, code: str, tensors: list[Tensor], ints: list[int], floats: list[float]
) -> Any:
    n, batch = info.batch_size, _batch(code, tensors, dims[2])
    folded = [_fold(t, dim, n, batch) for t, dim in zip(tensors, dims[2], strict=True)]
    outs = torch.ops.regard.attention(kernel, code, folded, ints, floats)
    return tuple(o.unflatten(0, (n, batch)) for o in outs), (0, 0)


def _vmap_backward(
    info: Any,
    dims: Any,
    kernel: str,
    code: str,
    tensors: list[Tensor],
    ints: list[int],
    floats: list[float],
    *rows: Tensor,
) -> Any:
    """``rows`` are the context, the logsumexp and the gradient of the context."""
    n, batch = info.batch_size, _batch(code, tensors, dims[2])
    folded = [_fold(t, dim, n, batch) for t, dim in zip(tensors, dims[2], strict=True)]
    folded_rows = [_fold(t, dim, n, batch) for t, dim in zip(rows, dims[5:], strict=True)]
    grads = torch.ops.regard.attention_backward(kernel, code, folded, ints, floats, *folded_rows)
    unfolded = []
    for g, t, dim in zip(grads, tensors, dims[2], strict=True):
        if not t.is_floating_point():
            unfolded.append(g.expand(n))
            continue
        own = t.shape[0] if dim is None else t.movedim(dim, 0).shape[1]
        g = g.unflatten(0, (n, batch))
        unfolded.append(g.sum(1, keepdim=True) if own == 1 and batch != 1 else g)
    return unfolded, [0] * len(unfolded)


def _batch(code: str, tensors: list[Tensor], dims: list[int | None]) -> int:
    """The batch size before folding: v's, which is always full."""
    before = sum(word.split(":")[1].count("t") for word in code.split()[:-1])
    v, dim = tensors[before], dims[before]
    return v.shape[0] if dim is None else v.movedim(dim, 0).shape[1]


def _fold(t: Tensor, dim: int | None, n: int, batch: int) -> Tensor:
    """Fold a vmapped dim into the batch dim. A tensor without one is expanded: it has a gradient per vmapped item."""
    t = t.expand(n, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.expand(n, batch, *t.shape[2:]).flatten(0, 1)


_library.impl("attention", _forward, "CompositeExplicitAutograd")
_library.impl("attention", _differentiable, "Autograd")
_library.impl("attention_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::attention", _fake_forward, lib=_library)
torch.library.register_fake("regard::attention_backward", _fake_backward, lib=_library)
torch.library.register_vmap("regard::attention", _vmap_forward, lib=_library)
torch.library.register_vmap("regard::attention_backward", _vmap_backward, lib=_library)


class _Eager(torch.autograd.Function):
    """The kernel in eager mode without the operator, at a third of its overhead."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: str,
        problem: Problem,
        code: str,
        ints: list[int],
        floats: list[float],
        python: list[Any],
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        out, lse = _compute(kernel, problem)
        ctx.args, ctx.python = (kernel, code, ints, floats), python
        ctx.save_for_backward(*tensors, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> Any:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        kernel, code, ints, floats = ctx.args
        *tensors, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled() or not _is_plain_eager(grad):
            first = _OwnBackward if ctx.python else _Backward
            grads = first.apply(*ctx.args, *((ctx.python,) if ctx.python else ()), *tensors, out, lse, grad)
        else:
            grads = _backward(kernel, code, tensors, ints, floats, out, lse, grad, ctx.python)
        wanted = zip(grads, ctx.needs_input_grad[6:], strict=True)
        return (*(None,) * 6, *(g if need else None for g, need in wanted))


class _Attention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        kernel: str, code: str, ints: list[int], floats: list[float], *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        return torch.ops.regard.attention(kernel, code, list(tensors), ints, floats)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.args = inputs[:4]
        ctx.save_for_backward(*inputs[4:], *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        if torch.compiler.is_compiling():  # dynamo cannot nest Functions, and refuses second derivatives itself
            kernel, code, ints, floats = ctx.args
            *tensors, out, lse = ctx.saved_tensors
            grads = torch.ops.regard.attention_backward(kernel, code, tensors, ints, floats, out, lse, grad)
        else:
            grads = _Backward.apply(*ctx.args, *ctx.saved_tensors, grad)
        return (
            None,
            None,
            None,
            None,
            *(g if need else None for g, need in zip(grads, ctx.needs_input_grad[4:], strict=True)),
        )


class _FromDispatcher(_SingleLevelFunction):
    """_Attention when called from the dispatcher: at one level of torch.func, with the other levels below it."""

    @staticmethod
    def forward(
        ctx: Any, kernel: str, code: str, ints: list[int], floats: list[float], *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        output = _below_autograd(kernel, code, list(tensors), ints, floats)
        _Attention.setup_context(ctx, (kernel, code, ints, floats, *tensors), output)
        return output

    backward = _Attention.backward


class _Backward(torch.autograd.Function):
    """The gradient as a function of its own, so that a second derivative is refused, not silently zero."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kernel: str, code: str, ints: list[int], floats: list[float], *tensors: Tensor) -> Any:
        *inputs, out, lse, grad = tensors
        return tuple(torch.ops.regard.attention_backward(kernel, code, inputs, ints, floats, out, lse, grad))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("the fused kernels have no second derivative; use backend='reference' for double backward")


class _FirstDerivative(torch.autograd.Function):
    """The identity on a gradient; differentiating it again is refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor) -> Tensor:
        return grad.view_as(grad)

    setup_context = _Backward.setup_context
    backward = _Backward.backward


def refuse_double_backward(out: Tensor) -> Tensor:
    """A context of PyTorch's own attention, with our error message if its kernel has no second derivative."""
    node = None if torch.compiler.is_compiling() else out.grad_fn
    for _ in range(3):  # on a GPU, PyTorch adds a slice of padded dims after it
        if node is None or node.name().startswith("ScaledDotProduct"):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    else:
        node = None
    if node is not None:
        node.register_hook(_refuse_second)
    return out


def _refuse_second(grads: tuple[Tensor | None, ...], _: Any) -> tuple[Tensor | None, ...]:
    return tuple(
        _FirstDerivative.apply(g)
        if g is not None and g.grad_fn is not None and "NotImplemented" in g.grad_fn.name()
        else g
        for g in grads
    )


class _OwnBackward(torch.autograd.Function):
    """_Backward of a problem with the caller's own Python."""

    @staticmethod
    def forward(
        ctx: Any, kernel: str, code: str, ints: list[int], floats: list[float], python: list[Any], *tensors: Tensor
    ) -> Any:
        *inputs, out, lse, grad = tensors
        return tuple(_backward(kernel, code, inputs, ints, floats, out, lse, grad, python))

    backward = _Backward.backward

"""``record``: see every attention call of any model while it runs; ``without``: run it without some heads.

Hooks on the modules say which one is running. Attention that goes through :func:`regard.attend` is seen by its
observer; torch.nn.MultiheadAttention by a hook that computes its projections again; models of transformers through
that library's attention interface.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.attention.call import OBSERVER, Observation, Observer
from regard.attention.plan import choose
from regard.score import PerHead
from regard.score.terms import Keys, Problem, plain
from regard.trace._call import Call, describe
from regard.trace._huggingface import watch_transformers
from regard.trace._torch import batch_first, is_usual, read
from regard.trace._trace import Trace
from regard.trace._walk import map_tensors, memory_of

OUTPUTS = ("out_proj", "o_proj", "c_proj", "wo", "dense")  # what output projections are called


@contextmanager
def record(
    model: nn.Module | None = None,
    *,
    inputs: bool = True,
    values: bool = True,
    gradients: bool = False,
    device: str | torch.device | None = None,
) -> Iterator[Trace]:
    """Record every attention call of ``model`` made inside the ``with`` block.

    Args:
        model: any PyTorch model: ours, one with torch.nn.MultiheadAttention (nn.Transformer and its layers), one of
            Hugging Face's transformers, or None for every call of :func:`regard.attend`. A compiled model runs
            uncompiled inside the block.
        inputs: also keep the inputs of attention modules, for :meth:`Trace.steps`.
        values: also keep values and contexts, for :meth:`Trace.steps`, norms and gradients; weights, scores, tiles and
            measures of them do not need values, and without values and inputs a trace is about half as large.
        gradients: keep the gradient that ``backward`` brings to each context, for :meth:`Trace.gradient`.
        device: where the trace is kept; by default where the model is.

    What is kept (queries, keys, values, contexts) is copied, and grows with the length of the text, not its square.

    >>> import regard
    >>> model = regard.nn.EncoderLayer(8, 2, score=regard.score.Additive(4, 4, 4))
    >>> with regard.record(model) as trace:
    ...     out = model(torch.randn(1, 3, 8))
    >>> trace
    <Trace self: 1 layers × 2 heads; 1 calls>
    >>> trace.weights(0, head=1, rows=2).sum().round(decimals=4)
    tensor(1.)
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            f"record takes a torch.nn.Module, or nothing for every regard.attend, got {type(model).__name__}"
        )
    if gradients and not values:
        raise ValueError("gradients of weights are products with the values: leave out values=False")
    trace = Trace()
    trace.model = model
    recorder = _Recorder(model, trace, inputs, values, gradients, device, {})
    with recorder.attach():
        yield trace


@contextmanager
def without(model: nn.Module, heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Inside, these heads of these modules ({path: heads}) give zeros in place of their contexts."""
    recorder = _Recorder(model, None, False, True, False, None, heads)
    with recorder.attach():
        yield
    if missed := [name for name in heads if name not in recorder.met]:
        raise ValueError(f"no attention of {', '.join(map(repr, missed))} ran: paths are those of trace.names(kind)")


@dataclass
class _Frame:
    """A module that is running."""

    name: str
    module: nn.Module
    args: tuple[object, ...]
    kwargs: dict[str, object]


class _Recorder:
    def __init__(
        self,
        model: nn.Module | None,
        trace: Trace | None,
        inputs: bool,
        values: bool,
        gradients: bool,
        device: str | torch.device | None,
        cut: Mapping[str, Sequence[int]],
    ) -> None:
        compiled = getattr(model, "_orig_mod", None)
        self.compiled = compiled is not None
        self.model: nn.Module | None = compiled if isinstance(compiled, nn.Module) else model
        self.trace, self.inputs, self.values, self.gradients = trace, inputs, values, gradients
        self.device, self.cut = device, cut
        self.stack: list[_Frame] = []
        self.names: dict[nn.Module, str] = {}
        self.met: set[str] = set()
        self.thread = threading.get_ident()
        self.outer: Observer | None = None

    @contextmanager
    def attach(self) -> Iterator[None]:
        with ExitStack() as after:
            self.outer = OBSERVER.get()
            token = OBSERVER.set(self._observe)
            after.callback(OBSERVER.reset, token)
            if self.model is not None:
                self._hook(self.model, after)
                after.enter_context(watch_transformers(self.model, self._watch))
            yield

    def _hook(self, model: nn.Module, after: ExitStack) -> None:
        modules = dict(model.named_modules())
        self.names = {module: name for name, module in modules.items()}
        if self.compiled or any(_is_compiled(m) for m in modules.values()):
            after.enter_context(torch.compiler.set_stance("force_eager"))
        if torch.backends.mha.get_fastpath_enabled():
            # nn.TransformerEncoder's own kernel shows nothing of what it does
            torch.backends.mha.set_fastpath_enabled(False)
            after.callback(torch.backends.mha.set_fastpath_enabled, True)
        for module in modules.values():
            handles = (
                module.register_forward_pre_hook(self._enter, with_kwargs=True),
                module.register_forward_hook(self._leave, with_kwargs=True, always_call=True),
            )
            for handle in handles:
                after.callback(handle.remove)

    # --- which module runs ---

    def _enter(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if threading.get_ident() != self.thread:
            return
        if not self.stack and module is self.model and self.trace is not None:
            self.trace.run = args, kwargs
        if self.trace is not None:
            self.trace.ran[self.names[module]] = type(module)
        self.stack.append(_Frame(self.names[module], module, args, kwargs))

    def _leave(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> object:
        if threading.get_ident() != self.thread or not self.stack:
            return None
        frame = self.stack.pop()
        if isinstance(module, nn.MultiheadAttention) and isinstance(result, Tensor | tuple):
            return self._multihead(module, frame, result) if is_usual(module, args, kwargs) else None
        return None

    # --- what it attends to ---

    def _observe(self, seen: Observation, out: Tensor) -> Tensor:
        """A call of regard.attend."""
        if self.outer is not None:
            out = self.outer(seen, out)
        frame = self.stack[-1] if self.stack else None
        if frame is None and self.model is not None:
            kind = getattr(self.model, "attention_kind", None)
            if kind is None:
                return out  # another model's
            frame = _Frame("", self.model, (), {})
        return self._see(frame, seen, out, _kind(frame))

    def _watch(self, module: nn.Module, seen: Observation, out: Tensor) -> Tensor:
        """A call of a transformers model."""
        frame = next((f for f in reversed(self.stack) if f.module is module), None)
        if frame is None:
            frame = _Frame(self.names.get(module, type(module).__name__), module, (), {})
        return self._see(frame, seen, out, "cross" if _is_cross(frame) else "self")

    def _multihead(
        self, module: nn.MultiheadAttention, frame: _Frame, result: Tensor | tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, ...] | None:
        """A call of torch.nn.MultiheadAttention, after it returned."""
        shown = result[0] if isinstance(result, tuple) else result
        with torch.no_grad():
            call = read(module, frame.args, frame.kwargs)
        self.met.add(frame.name)
        whole = batch_first(shown, module)
        if self.trace is not None:
            kept = self._call(frame, call.seen, None, "cross" if call.cross else "self")
            if self.inputs:
                kept.query_input = self._copy(call.query)
                kept.key_input = self._copy(call.key) if call.cross else kept.query_input
            if self.values and not (module.training and module.dropout):
                kept.result = self._copy(whole)
            self.trace.add(kept)
            if self.gradients and shown.requires_grad and kept.projection is not None:
                whole.register_hook(_through_projection(kept))
        cut = self.cut.get(frame.name, ())
        if not cut:
            return None
        moved = whole - _part(call.seen.problems, module, cut)
        moved = moved[0] if shown.ndim == 2 else moved if module.batch_first else moved.transpose(0, 1)
        return (moved, *result[1:]) if isinstance(result, tuple) else moved

    def _see(self, frame: _Frame | None, seen: Observation, out: Tensor, kind: str) -> Tensor:
        name = "" if frame is None else frame.name
        self.met.add(name)
        if cut := self.cut.get(name):
            keep = torch.ones(out.shape[-3], dtype=out.dtype, device=out.device)
            keep[list(cut)] = 0
            out = out * keep[:, None, None]
        if self.trace is not None:
            call = self._call(frame, seen, out, kind)
            self.trace.add(call)
            if self.gradients and out.requires_grad:
                out.register_hook(lambda g: setattr(call, "gradient", self._flat(g, seen).detach().clone()))
        return out

    # --- the recorded parts ---

    def _call(self, frame: _Frame | None, seen: Observation, out: Tensor | None, kind: str) -> Call:
        known: dict[Hashable, Tensor] = {}

        def copy(x: Tensor) -> Tensor:
            key = memory_of(x)
            if key not in known:
                known[key] = self._copy(x)
            return known[key]

        problems = map_tensors(tuple(_strip(p, self.values) for p in seen.problems), copy)
        parts = seen.score.scores if isinstance(seen.score, PerHead) else [seen.score]
        call = Call(frame.name if frame else "", kind, problems, tuple(describe(part) for part in parts))
        call.q = copy(self._flat(seen.q, seen))
        if not isinstance(seen.k, Keys):
            call.k = copy(self._flat(seen.k, seen))
        dropped = any(p.dropout > 0 for p in seen.problems)
        if out is not None and self.values and not dropped:
            call.out = copy(self._flat(out, seen))
        if frame is not None:
            batch, heads, queries, keys = call.shape
            if self.values:
                call.projection, call.bias = _projection(frame, self.names, heads, problems[0].v.shape[-1])
            first, second = _states_given(frame)
            if first is not None and first.shape[:2] == (batch, queries):
                call.query_input = copy(first) if self.inputs else None
            second = first if kind == "self" else second
            if second is not None and second.shape[:2] == (batch, keys):
                call.key_input = copy(second) if self.inputs else None
        return call

    def _copy(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = x.detach()
            return x.clone() if self.device is None else x.to(self.device, copy=True)

    @staticmethod
    def _flat(x: Tensor, seen: Observation) -> Tensor:
        """[*batch, heads, length, dims] → [B, heads, length, dims]."""
        if x.shape[:-3] == seen.batch and len(seen.batch) == 1:
            return x
        return x.expand(*seen.batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:])


def _strip(p: Problem, values: bool) -> Problem:
    """A problem reduced to what weights need: no dropout, no gradients, keys unchanged, values with 0 dims."""
    p = replace(p, terms=plain(p.terms), dropout=0.0, seed=None, need_bias_gradient=False, need_offset_gradient=False)
    return p if values else replace(p, v=p.v[..., :0], terms=replace(p.terms, values=None))


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


def _states_given(frame: _Frame) -> tuple[Tensor | None, Tensor | None]:
    """The states that a module was called with, [N, length, width]: those of the queries, and those of the keys."""
    args, kwargs = frame.args, frame.kwargs
    first = args[0] if args else kwargs.get("query", kwargs.get("hidden_states"))
    second = args[1] if len(args) > 1 else None
    for name in ("key", "key_value_states", "encoder_hidden_states"):
        second = kwargs[name] if kwargs.get(name) is not None else second
    return _states(first), _states(second)


def _states(x: object) -> Tensor | None:
    return x if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3 else None


def _kind(frame: _Frame | None) -> str:
    """Of a module that calls regard.attend: does it attend to something else than what asks?"""
    if frame is None:
        return "self"
    declared = getattr(frame.module, "attention_kind", None)
    if isinstance(declared, str):
        return declared
    key = frame.args[1] if len(frame.args) > 1 else frame.kwargs.get("key")
    query = frame.args[0] if frame.args else frame.kwargs.get("query")
    if isinstance(key, Tensor):
        return "cross" if key is not query and _states(key) is not None else "self"
    return "cross" if hasattr(key, "keys") and hasattr(key, "values") and not isinstance(key, dict) else "self"


def _is_cross(frame: _Frame) -> bool:
    """Of a transformers module."""
    names = ("key_value_states", "encoder_hidden_states")
    if getattr(frame.module, "is_cross_attention", False) or any(frame.kwargs.get(n) is not None for n in names):
        return True
    last = frame.name.rsplit(".", 2)[-2:]
    return any("cross" in part.lower() or part in ("encoder_attn", "EncDecAttention") for part in last)


def _projection(
    frame: _Frame, names: Mapping[nn.Module, str], heads: int, value_dim: int
) -> tuple[Tensor | None, Tensor | None]:
    """The output projection by heads, [H, Dv, E], and its bias, where they can be found."""
    places: list[nn.Module] = [frame.module]
    if "." in frame.name:  # BERT has it in a module beside: attention.self, attention.output.dense
        parent = frame.name.rsplit(".", 1)[0]
        beside = next((m for m, name in names.items() if name == f"{parent}.output"), None)
        places += [] if beside is None else [beside]
    for place in places:
        for name in OUTPUTS:
            linear = getattr(place, name, None)
            weight = getattr(linear, "weight", None)
            if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
                continue
            weight = weight.detach() if type(linear).__name__ == "Conv1D" else weight.detach().mT
            if weight.shape[0] == heads * value_dim:
                bias = getattr(linear, "bias", None)
                return weight.unflatten(0, (heads, value_dim)), None if bias is None else bias.detach()
    return None, None


def _part(problems: Sequence[Problem], module: nn.MultiheadAttention, heads: Sequence[int]) -> Tensor:
    """What these heads add to the output of torch.nn.MultiheadAttention, [N, L, E]."""
    contexts = torch.cat([choose(p).run()[0] for p in problems], 1)  # [N, H, L, Dv]
    weight = module.out_proj.weight.mT.unflatten(0, (module.num_heads, -1))  # [H, Dv, E]
    chosen = sorted(set(heads))
    return torch.einsum("nhld,hde->nle", contexts[:, chosen], weight[chosen].to(contexts.dtype))


def _through_projection(call: Call) -> Callable[[Tensor], None]:
    """The gradient of the contexts from that of the module's output: g_h = g W_hᵀ."""

    def hook(g: Tensor) -> None:
        assert call.projection is not None
        call.gradient = torch.einsum("nle,hde->nhld", g.detach(), call.projection.to(g.dtype))

    return hook

"""Fast launches of Triton kernels.

On every launch Triton binds arguments, finds those it specialises on (1, a multiple of 16, an aligned pointer) and
builds a key from them: about a tenth of a millisecond for sixty arguments. Here the key is a tuple of the same facts,
built in a few microseconds, and a kernel compiled for it is launched directly.

Also helpers for launches: devices, powers of two, compiler options, and strides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.score.terms import Problem

INT32 = 2**31


class Launcher:
    """``kernel[grid](...)`` as in Triton."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.names = tuple(kernel.arg_names)
        self.constant = tuple(bool(p.is_constexpr) for p in kernel.params)
        self.known: dict[Any, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launch(grid, args, kwargs)

    def launch(self, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            values = (*args, *[kwargs[name] for name in self.names[len(args) :]])
        except KeyError:  # an argument has a default, which Triton fills in
            self.kernel[grid](*args, **kwargs)
            return
        key = (*map(fact, values, self.constant), *_options(kwargs, self.names), torch.cuda.current_device())
        compiled = self.known.get(key)
        if compiled is None:
            self.known[key] = self.kernel[grid](*args, **kwargs)
        else:
            compiled[(*grid, 1, 1)[:3]](*values)


def _options(kwargs: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """The options that are not arguments of the kernel, such as num_warps."""
    return tuple(item for item in kwargs.items() if item[0] not in names)


def fact(x: Any, constant: bool) -> Any:
    """What Triton specialises on: the value of a constant; otherwise the type, alignment and divisibility."""
    if constant:
        return x
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if type(x) is int:
        return x == 1, x % 16 == 0, -INT32 <= x < INT32, x < 2**63
    return x if x is None else type(x)


def launchers(module: ModuleType) -> Any:
    """The module's kernels with fast launches; with Triton's interpreter, the module itself."""
    import triton

    found = {name: value for name, value in vars(module).items() if isinstance(value, triton.JITFunction)}
    if not found:
        return module
    return SimpleNamespace(**{name: Launcher(kernel) for name, kernel in found.items()})


def is_interpreted() -> bool:
    """Does Triton run its kernels in Python, for tests without a GPU?"""
    return os.environ.get("TRITON_INTERPRET") == "1"


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context in which this is the current device, on which kernels are launched."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def power(n: int, least: int = 1) -> int:
    """The next power of two, at ``least`` that (tensor cores need 16)."""
    return max(least, 1 << (n - 1).bit_length())


@lru_cache(64)
def properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


class Build(Protocol):
    """Warps, pipeline stages, and registers per thread; None leaves them to the compiler."""

    @property
    def warps(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def registers(self) -> int | None: ...


def options(build: Build) -> dict[str, int]:
    """A build as options of a Triton launch."""
    options = {"num_warps": build.warps, "num_stages": build.stages}
    return options if build.registers is None else {**options, "maxnreg": build.registers}


# --- tensors as arguments ---


def strides(names: str, x: Tensor | None) -> dict[str, int]:
    """Strides of batch, heads and length under these names, 0 where broadcast."""
    if x is None:
        return dict.fromkeys(names.split(), 0)
    return {name: 0 if n == 1 else stride for name, n, stride in zip(names.split(), x.shape, x.stride(), strict=False)}


def batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def row_major(x: Tensor) -> Tensor:
    """x with contiguous rows."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def per_head(x: Tensor | None, p: Problem) -> Tensor | None:
    """[B|1, H|1] → [B, H] of float32."""
    return None if x is None else x.float().expand(p.batch, p.heads).contiguous()

"""Triton kernels, launched a second time without being looked up again.

Triton binds arguments, works out which of them are special (1, a multiple of 16, an aligned pointer) and makes a key of
all that on every launch: about a tenth of a millisecond for sixty arguments. Here the key is a tuple of the same facts,
made in a few microseconds, and a kernel that was compiled for it is started as it is.

Beside it, what everything that launches kernels asks: where they run, in blocks of which power of two, built how, and
where a tensor's rows lie.
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
    """kernel[grid](...) as Triton has it."""

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
        except KeyError:  # an argument has a default: Triton knows it
            self.kernel[grid](*args, **kwargs)
            return
        key = (*map(fact, values, self.constant), *_options(kwargs, self.names), torch.cuda.current_device())
        compiled = self.known.get(key)
        if compiled is None:
            self.known[key] = self.kernel[grid](*args, **kwargs)
        else:
            compiled[(*grid, 1, 1)[:3]](*values)


def _options(kwargs: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """What is not an argument of the kernel: num_warps and the like."""
    return tuple(item for item in kwargs.items() if item[0] not in names)


def fact(x: Any, constant: bool) -> Any:
    """What Triton compiles for: constants themselves; of others the type, and what it can make use of."""
    if constant:
        return x
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if type(x) is int:
        return x == 1, x % 16 == 0, -INT32 <= x < INT32, x < 2**63
    return x if x is None else type(x)


def launchers(module: ModuleType) -> Any:
    """The module's kernels; those of the interpreter as they are."""
    import triton

    found = {name: value for name, value in vars(module).items() if isinstance(value, triton.JITFunction)}
    if not found:
        return module
    return SimpleNamespace(**{name: Launcher(kernel) for name, kernel in found.items()})


def is_interpreted() -> bool:
    """Does Triton run its kernels in Python, for tests without a GPU?"""
    return os.environ.get("TRITON_INTERPRET") == "1"


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Kernels are launched on the current device: make it this one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def power(n: int, least: int = 1) -> int:
    """The next power of two; tensor cores take 16 at ``least``."""
    return max(least, 1 << (n - 1).bit_length())


@lru_cache(64)
def properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


class Build(Protocol):
    """Warps, pipeline stages, and registers per thread: None, as many as the compiler likes."""

    @property
    def warps(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def registers(self) -> int | None: ...


def options(build: Build) -> dict[str, int]:
    """How the compiler is to build a kernel."""
    options = {"num_warps": build.warps, "num_stages": build.stages}
    return options if build.registers is None else {**options, "maxnreg": build.registers}


# --- tensors as arguments ---


def strides(names: str, x: Tensor | None) -> dict[str, int]:
    """Of batch, heads and length under these names, 0 where broadcast."""
    if x is None:
        return dict.fromkeys(names.split(), 0)
    return {name: 0 if n == 1 else stride for name, n, stride in zip(names.split(), x.shape, x.stride(), strict=False)}


def batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def row_major(x: Tensor) -> Tensor:
    """With the numbers of a row next to each other."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def per_head(x: Tensor | None, p: Problem) -> Tensor | None:
    """[B|1, H|1] → [B, H] of float32."""
    return None if x is None else x.float().expand(p.batch, p.heads).contiguous()

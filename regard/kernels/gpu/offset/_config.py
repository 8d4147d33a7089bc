"""Tile sizes of the kernels of triton_offset, by dtype, number of dims and GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from regard.kernels.gpu.launch import power, properties
from regard.score.terms import Problem

LARGEST = 256  # dims of keys and of values


@dataclass(frozen=True)
class OffsetConfig:
    """Queries × keys of a tile, warps, pipeline stages, and registers per thread."""

    q: int
    k: int
    warps: int
    stages: int
    registers: int | None = None  # None leaves it to the compiler


# By kernel: the largest number of dims and the configuration; the first that fits is used. These do not spill registers
# on a Hopper GPU.
HALF = {
    "forward": (
        (64, OffsetConfig(64, 128, 4, 3)),
        (128, OffsetConfig(128, 64, 8, 2)),
        (LARGEST, OffsetConfig(128, 32, 8, 2)),
    ),
    "no dot": (
        (64, OffsetConfig(128, 128, 8, 3)),
        (128, OffsetConfig(128, 64, 8, 2)),
        (LARGEST, OffsetConfig(128, 32, 8, 2)),
    ),
    "keys": (
        (64, OffsetConfig(64, 128, 8, 2)),
        (128, OffsetConfig(32, 128, 8, 2)),
        (LARGEST, OffsetConfig(32, 32, 4, 2)),
    ),
    "queries": (
        (64, OffsetConfig(128, 64, 8, 2)),
        (128, OffsetConfig(128, 64, 8, 2)),
        (LARGEST, OffsetConfig(128, 32, 8, 2)),
    ),
}
FLOAT = {
    "forward": (
        (64, OffsetConfig(64, 32, 8, 1)),
        (128, OffsetConfig(32, 64, 8, 1)),
        (LARGEST, OffsetConfig(32, 16, 4, 1)),
    ),
    "keys": (
        (64, OffsetConfig(32, 64, 8, 1)),
        (128, OffsetConfig(32, 32, 8, 1)),
        (LARGEST, OffsetConfig(16, 32, 8, 1)),
    ),
    "queries": (
        (64, OffsetConfig(32, 32, 8, 1)),
        (128, OffsetConfig(16, 32, 8, 1)),
        (LARGEST, OffsetConfig(16, 16, 8, 1)),
    ),
}


def configure(kernel: str, p: Problem) -> OffsetConfig:
    """The configuration of "forward", "keys" or "queries", no larger than the problem."""
    dims = max(p.v.shape[-1], *(t.q.shape[-1] for t in p.terms.dots), 0)
    table = FLOAT if p.dtype == torch.float32 else HALF
    if kernel == "forward" and not p.terms.dots and table is HALF:
        kernel = "no dot"
    config = next(c for most, c in table[kernel] if dims <= most)
    return replace(config, q=min(config.q, power(p.queries, 16)), k=min(config.k, power(p.keys, 16)))


def split_keys(p: Problem, config: OffsetConfig) -> int:
    """The number of programs that split the keys, so that few queries keep a whole GPU busy."""
    if p.device.type != "cuda" or p.terms.values is not None:
        return 1
    blocks = p.batch * p.heads * -(-p.queries // config.q)
    wanted = 2 * int(properties(p.device).multi_processor_count) // blocks
    return max(min(wanted, p.keys // (4 * config.k), 64), 1)

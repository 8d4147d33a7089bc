"""Block sizes of triton_additive by shape, and constants shared with its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from regard.score.terms import Problem

TERMS = 16  # the most terms of the series, as in the kernels
FEW = 4  # the most queries for which keys are split among programs
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 2e-3}  # error of tanh by the series


def by_series(p: Problem) -> bool:
    """Does the series run, if the range of the data allows it? For few queries its features would cost too much."""
    return p.dtype in TOLERANCE and p.terms.tanhs[0].form != "exact" and p.queries > FEW


def pad_dim(n: int, block: int) -> int:
    return -(-n // block) * block


@dataclass(frozen=True)
class Tiles:
    """Queries × keys of a tile, hidden dims or features per step; warps, pipeline stages, registers per thread.

    group: the number of fractions that share a reciprocal, 4, or 3 (3, 3 and 2 of every eight).
    """

    queries: int
    keys: int
    step: int
    warps: int
    stages: int = 1
    registers: int | None = None
    group: int = 4


@dataclass(frozen=True)
class RowTiles:
    """Rows × hidden dims of a block, and the step along the other side; pair: terms of the series at once."""

    rows: int
    dims: int
    warps: int
    step: int = 1
    pair: int = 1
    stages: int = 1
    registers: int | None = None


@dataclass(frozen=True)
class AdditiveConfig:
    forward_exact: Tiles
    forward_series: Tiles
    scores_exact: Tiles
    scores_series: Tiles
    pairs: RowTiles
    features: RowTiles

    def __post_init__(self) -> None:
        tiles, sums = self.scores_series, self.features
        assert sums.step <= min(tiles.queries, tiles.keys), "dS is not written in the last steps"

    @property
    def pad_queries(self) -> int:
        tiles = (self.forward_exact, self.forward_series, self.scores_exact, self.scores_series)
        return max(*(t.queries for t in tiles), self.pairs.rows, self.features.rows)

    @property
    def pad_keys(self) -> int:
        tiles = (self.forward_exact, self.forward_series, self.scores_exact, self.scores_series)
        return max(*(t.keys for t in tiles), self.pairs.rows, self.features.rows)


def configure(problem: Problem) -> AdditiveConfig:
    """Block sizes by shape alone; benchmarks/gpu_additive.py tries others."""
    dims, value_dims = pad_dim(problem.terms.tanhs[0].a.shape[-1], 32), problem.v.shape[-1]
    cols = 64 if dims % 64 == 0 else 32
    if problem.device.type == "cpu":  # the interpreter: small blocks, so that small problems have several
        tiles = Tiles(32, 32, 32, 4)
        return AdditiveConfig(tiles, tiles, tiles, tiles, RowTiles(32, 32, 4), RowTiles(32, 32, 4, 32, 2))
    wide = value_dims > 128
    medium = value_dims > 64 or problem.mask is not None or len(problem.terms.terms) > 1 or problem.dropout > 0
    if _little_memory(problem.device):
        small = Tiles(64, 32 if wide else 64, 32, 4, 2)
        return AdditiveConfig(
            _EXACT, small, _EXACT, small, RowTiles(64, cols, 4, registers=128), RowTiles(64, cols, 4, 32, 1, 2)
        )
    return AdditiveConfig(
        forward_exact=_EXACT if wide else Tiles(64, 32, 8, 4, 1, 128) if medium else Tiles(128, 64, 8, 8),
        forward_series=Tiles(64, 128, 64, 4, 3) if wide else Tiles(128, 128 if medium else 256, 64, 8, 3),
        scores_exact=_EXACT if wide else Tiles(64, 32, 8, 4, 1, 168) if medium else Tiles(64, 64, 8, 4),
        scores_series=Tiles(64, 64, 64, 4, 3) if wide else Tiles(128, 64, 64, 8 if medium else 4, 3),
        pairs=RowTiles(32, cols, 4),
        features=RowTiles(128, cols, 8, 64, 1, 4),
    )


_EXACT = Tiles(64, 32, 8, 4)


@lru_cache(16)
def _little_memory(device: torch.device) -> bool:
    """Is this a GPU with 99 KiB of shared memory per program, rather than 163 KiB or more?"""
    major, minor = torch.cuda.get_device_capability(device)
    return major == 12 or (major, minor) in ((8, 6), (8, 9))

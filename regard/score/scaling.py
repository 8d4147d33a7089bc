"""Scaling of rotary frequencies, for sequences longer than those of the training.

θ_d = base^{−2d/D} has the wavelength λ_d = 2π / θ_d. Sequences are up to s (``factor``) times as long as L₀
(``length``), the length in training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def frequencies(base: float | Tensor, dims: int, like: Tensor) -> Tensor:
    """θ_d = base^{−2d/dims}, [dims / 2], in the dtype and on the device of ``like``."""
    powers: Tensor = base ** (-torch.arange(0, dims, 2, device=like.device, dtype=like.dtype) / dims)
    return powers


@dataclass(frozen=True)
class Scaling:
    """Base class of scalings."""

    factor: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or value is None:
                continue
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{type(self).__name__}: {name} must be a positive number, got {value!r}")

    @property
    def temperature(self) -> float:
        """The factor of cosines and sines."""
        return 1.0

    def frequencies(self, base: float, dims: int, length: int | Tensor, like: Tensor) -> Tensor:
        """The frequencies for sequences of this length, [dims / 2]."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Position interpolation: θ / s (Chen et al. 2023, https://arxiv.org/abs/2306.15595)."""

    def frequencies(self, base: float, dims: int, length: int | Tensor, like: Tensor) -> Tensor:
        return frequencies(base, dims, like) / self.factor


@dataclass(frozen=True)
class NTKScaling(Scaling):
    """Dynamic NTK: beyond L₀ the base grows with the length L, by (s·L/L₀ − (s − 1))^{D/(D−2)}.

    (Described by Peng et al. 2023, https://arxiv.org/abs/2309.00071.) Each half of the score has its own L: offset +
    queries, and start + keys. Both are equal if the last query is at the position of the last key, as in self-attention
    with a cache or without. Keys in a cache keep the rotation they had. One call has one L: packed documents of several
    lengths are refused if one is longer than L₀.
    """

    length: int

    def frequencies(self, base: float, dims: int, length: int | Tensor, like: Tensor) -> Tensor:
        if dims <= 2:
            raise ValueError(f"NTKScaling needs more than 2 rotated dims, got {dims}")
        power = dims / (dims - 2)
        if isinstance(length, Tensor):
            grown = self.factor * length.clamp(min=self.length).to(like.dtype) / self.length - (self.factor - 1)
        else:
            grown = self.factor * torch.sym_max(length, self.length) / self.length - (self.factor - 1)
        return frequencies(base * grown**power, dims, like)


@dataclass(frozen=True)
class YaRNScaling(Scaling):
    """YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071): high frequencies stay, low ones are interpolated.

    A dim with more than ``fast`` rotations within L₀ keeps θ, one with fewer than ``slow`` gets θ / s, with a linear
    ramp between. Cosines and sines are multiplied by 0.1 ln s + 1, the paper's temperature, or by ``attention``. The
    ends of the ramp are rounded to whole dims unless ``truncate=False``.
    """

    length: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None
    truncate: bool = True

    @property
    def temperature(self) -> float:
        if self.attention is not None:
            return self.attention
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def frequencies(self, base: float, dims: int, length: int | Tensor, like: Tensor) -> Tensor:
        low, high = (self._dim_with(turns, base, dims) for turns in (self.fast, self.slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dims - 1)
        steps = torch.arange(dims // 2, device=like.device, dtype=like.dtype)
        ramp = ((steps - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        plain = frequencies(base, dims, like)
        return plain / self.factor * ramp + plain * (1 - ramp)

    def _dim_with(self, turns: float, base: float, dims: int) -> float:
        """The d whose θ_d has that many rotations within L₀."""
        return dims * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Llama 3.1 (Dubey et al. 2024, https://arxiv.org/abs/2407.21783): θ / s for wavelengths above L₀ / low.

    Wavelengths below L₀ / high keep θ; between them θ is interpolated linearly in L₀ / λ.
    """

    length: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.high:
            raise ValueError(f"Llama3Scaling: low must be below high, got {self.low} and {self.high}")

    def frequencies(self, base: float, dims: int, length: int | Tensor, like: Tensor) -> Tensor:
        plain = frequencies(base, dims, like)
        turns = self.length * plain / (2 * math.pi)  # L₀ / λ
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return plain * kept + plain / self.factor * (1 - kept)

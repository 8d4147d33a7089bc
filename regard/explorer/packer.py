"""Matrices as text: whole numbers with a scale per row, in base64, and the largest error that this makes."""

from __future__ import annotations

from base64 import b64encode
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from torch import Tensor

_TYPES = {(8, False): "u1", (8, True): "i1", (16, False): "<u2", (16, True): "<i2"}


class PackedNumbers(TypedDict):
    """A matrix as text."""

    shape: list[int]
    bits: int
    signed: bool
    scale: str
    data: str


class Exactness(TypedDict):
    """Bits of a number, and the largest error."""

    bits: int
    error: float


class Packer:
    """Packs matrices of one sort, and remembers the largest |what is read back − what was packed|.

    >>> import torch
    >>> packer = Packer(bits=8, signed=False)
    >>> packer.pack(torch.tensor([[0.0, 0.25, 1.0]]))
    {'shape': [1, 3], 'bits': 8, 'signed': False, 'scale': 'gYCAOw==', 'data': 'AED/'}
    >>> packer.exactness["error"] < 1 / 255 / 2 + 1e-9
    True
    """

    def __init__(self, *, bits: int, signed: bool) -> None:
        if (bits, signed) not in _TYPES:
            raise ValueError(f"bits: expected 8 or 16, got {bits!r}")
        self.bits, self.signed, self.error = bits, signed, 0.0

    @property
    def exactness(self) -> Exactness:
        """How exact it all is."""
        return {"bits": self.bits, "error": self.error}

    def pack(self, matrix: Tensor) -> PackedNumbers:
        """[R, C] → data [R, C] and scale [R] with data · scale ≈ matrix, a row of zeros with scale 1.

        The scale of a row is float32(max |x| / the largest whole number), so that no error is over half of it (but for
        rounding the scale).
        """
        x = matrix.detach().cpu().double().numpy()
        if not np.isfinite(x).all():
            raise ValueError("a page cannot hold numbers that are not finite (NaN or infinite)")
        top = 2 ** (self.bits - self.signed) - 1
        scale = (np.abs(x).max(1, initial=0.0) / top).astype("<f4")
        scale[(scale == 0) | ~np.isfinite(scale)] = 1
        wide = scale.astype(np.float64)[:, None]
        data = np.clip(np.rint(x / wide), -top if self.signed else 0, top)
        self.error = max(self.error, float(np.abs(data * wide - x).max(initial=0.0)))
        return {
            "shape": list(x.shape),
            "bits": self.bits,
            "signed": self.signed,
            "scale": text(scale),
            "data": text(data.astype(_TYPES[self.bits, self.signed])),
        }


def text(array: npt.NDArray[np.generic]) -> str:
    """The bytes of an array in base64."""
    return b64encode(array.tobytes()).decode()


def length(rows: int, columns: int, bits: int) -> int:
    """Characters that a packed matrix takes, nearly."""
    return 100 + (rows * (4 + columns * bits // 8)) * 4 // 3

"""Masks in the one form that the kernels of triton_offset evaluate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.mask import And, Causal, Documents, Lengths, Mask, Or, Prefix, Window


@dataclass(frozen=True)
class OffsetMask:
    """A mask as the kernels evaluate it: (in the window or in the prefix) and below the limits and in one document."""

    left: int | None = None
    right: int | None = None
    prefix: int | Tensor | None = None
    limits: tuple[int | Tensor, ...] = ()
    documents: Documents | None = None

    @staticmethod
    def of(mask: Mask | None) -> OffsetMask | str:
        """The mask in that form, or why it has none."""
        left = right = prefix = documents = None
        limits: tuple[int | Tensor, ...] = ()
        for part in _parts(mask):
            if isinstance(part, (Causal, Window)) and prefix is None:
                left, right = _narrow(left, right, part)
            elif isinstance(part, (Lengths, Prefix)):
                limits = (*limits, _number(part))
            elif isinstance(part, Documents) and documents is None:
                documents = part
            elif isinstance(part, Or) and left is None and right is None and prefix is None:
                window, other = sorted(part.parts, key=lambda m: isinstance(m, (Lengths, Prefix)))
                windows = _parts(window)
                near = all(isinstance(w, (Causal, Window)) for w in windows)
                if not near or not isinstance(other, (Lengths, Prefix)):
                    return _unknown(part)
                for w in windows:
                    left, right = _narrow(left, right, w)
                prefix = _number(other)
            else:
                return _unknown(part)
        return OffsetMask(left, right, prefix, limits, documents)


def _unknown(part: Mask) -> str:
    return (
        "it evaluates Causal, Window, Lengths, Prefix and Documents joined by &, and a window | Prefix, "
        f"but {part} is none of these or one too many"
    )


def _parts(mask: Mask | None) -> list[Mask]:
    """The masks that & joins."""
    if isinstance(mask, And):
        return [part for m in mask.parts for part in _parts(m)]
    return [] if mask is None else [mask]


def _narrow(left: int | None, right: int | None, part: Mask) -> tuple[int | None, int | None]:
    """A window and another one."""
    more = (None, 0) if isinstance(part, Causal) else (part.left, part.right)  # type: ignore[attr-defined]
    return _nearer(left, more[0]), _nearer(right, more[1])


def _nearer(x: int | None, y: int | None) -> int | None:
    return y if x is None else x if y is None else min(x, y)


def _number(part: Mask) -> int | Tensor:
    return part.ints[0] if part.ints else part.tensors[0]

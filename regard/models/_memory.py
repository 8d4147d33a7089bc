"""What an encoder leaves for a decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.mask import Dense, Lengths, Mask
from regard.score import Score


@dataclass(frozen=True)
class Memory:
    """Encoded sources, and what of them a decoder may look at.

    ``states`` is [N, S, dim] (None for a model without an encoder), ``lengths`` [N]. ``mask`` is what cross-attention
    uses unless told otherwise; ``lengths`` is None where a mask of the caller's own took its place.
    """

    states: Tensor | None
    lengths: Tensor | None
    mask: Mask | None = None

    @property
    def size(self) -> int:
        """N."""
        known = self.states if self.lengths is None else self.lengths
        assert known is not None
        return len(known)

    @classmethod
    def nothing(cls, size: int, device: torch.device | str = "cpu") -> Memory:
        """For a decoder-only model: ``size`` sequences without a source."""
        return cls(None, torch.zeros(size, dtype=torch.int64, device=device))

    @classmethod
    def of(cls, states: Tensor, lengths: Tensor) -> Memory:
        return cls(states, lengths, padding(lengths, states.shape[-2]))

    def select(self, items: Tensor) -> Memory:
        """Those of these items, in this order; items may repeat."""
        if self.lengths is None:
            raise ValueError("a memory encoded with a mask of its own cannot be taken apart; encode with lengths")
        lengths = self.lengths.index_select(0, items)
        if self.states is None:
            return Memory(None, lengths)
        return Memory.of(self.states.index_select(0, items), lengths)


def lengths_of(tokens: Tensor, pad_id: int) -> Tensor:
    """Tokens before the padding at the end, [N]."""
    return (tokens != pad_id).sum(-1)


def padding(lengths: Tensor, size: int) -> Mask | None:
    """Hides what is past the lengths; None where it is cheap to see that there is nothing to hide."""
    look = lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if look and bool((lengths >= size).all()) else Lengths(lengths)


def step_padding(lengths: Tensor, size: int, score: Score) -> Mask | None:
    """The same for queries that come one by one, made once for many steps: booleans, [N, 1, 1, S], are the fastest.

    Kernels of ours on a GPU know lengths and no booleans.
    """
    mask = padding(lengths, size)
    if mask is None or (lengths.device.type != "cpu" and not score.dot_shaped):
        return mask
    seen = torch.arange(size, device=lengths.device) < lengths[:, None]
    return Dense(seen[:, None, None, :])

"""The memory: an encoder's output, as a decoder reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.mask import Dense, Lengths, Mask
from regard.score import Score

Weighted = Tensor | tuple[Tensor, Tensor]
"""States or logits, and attention weights if requested."""


@dataclass(frozen=True)
class Memory:
    """Encoded sources, and the mask of positions a decoder may attend to.

    ``states`` is [N, S, dim] (None for a model without an encoder), ``lengths`` [N], or None if the caller gave a mask
    instead. ``mask`` is the default mask of cross-attention.
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
        """The memory of a decoder-only model: ``size`` sequences without a source."""
        return cls(None, torch.zeros(size, dtype=torch.int64, device=device))

    @classmethod
    def of(cls, states: Tensor, lengths: Tensor) -> Memory:
        return cls(states, lengths, padding(lengths, states.shape[-2]))

    def select(self, items: Tensor) -> Memory:
        """The memory of these items, in this order; items may repeat."""
        if self.lengths is None:
            raise ValueError("cannot select from a memory encoded with a mask; encode with lengths")
        lengths = self.lengths.index_select(0, items)
        if self.states is None:
            return Memory(None, lengths)
        return Memory.of(self.states.index_select(0, items), lengths)


def lengths_of(tokens: Tensor, pad_id: int) -> Tensor:
    """The number of tokens before the padding, [N]."""
    return (tokens != pad_id).sum(-1)


def padding(lengths: Tensor, size: int) -> Mask | None:
    """A mask that hides positions past the lengths; None if a cheap check finds none."""
    look = lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if look and bool((lengths >= size).all()) else Lengths(lengths)


def step_padding(lengths: Tensor, size: int, score: Score) -> Mask | None:
    """The same for step-by-step decoding, made once for many steps. A boolean mask, [N, 1, 1, S], is the fastest.

    On a GPU, regard's own kernels take lengths, not booleans.
    """
    mask = padding(lengths, size)
    if mask is None or (lengths.device.type != "cpu" and not score.dot_shaped):
        return mask
    seen = torch.arange(size, device=lengths.device) < lengths[:, None]
    return Dense(seen[:, None, None, :])

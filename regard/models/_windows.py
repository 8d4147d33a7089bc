"""Overlapping windows, each bos … eos, for documents longer than an encoder's positions.

An encoder with P positions reads windows of R = P − 2 tokens, each starting D = R // 2 tokens after the one before. A
token's state comes from a window where it has at least M = (R − D) // 2 neighbours on each side, or all that exist:

    window(p) = min(max(0, ⌊(p − M) / D⌋), windows of this document − 1)

The window depends on the document alone, not on its padding, so a document has the same states in any batch. All shapes
follow from those of the tokens: nothing waits for a device.

Shapes: N documents, S tokens with eos, K windows, P positions, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Encode = Callable[[Tensor, Tensor], Tensor]


class Windows(NamedTuple):
    """The windows of an encoder with so many ``positions``."""

    positions: int

    @property
    def room(self) -> int:
        """Document tokens per window, R; the last window also has the document's eos."""
        return self.positions - 2

    @property
    def stride(self) -> int:
        return max(1, self.room // 2)

    def count(self, length: int) -> int:
        """The number of windows of a document of ``length`` tokens, eos included.

        >>> [Windows(8).count(length) for length in (1, 7, 8, 10, 11)]
        [1, 1, 2, 2, 3]
        """
        return 1 + max(0, -(-(length - 1 - self.room) // self.stride))

    def encode(self, source: Tensor, lengths: Tensor, encode: Encode, *, bos: int, eos: int, pad: int) -> Tensor:
        """States [N, S, E] of tokens [N, S], each row ending in eos; ``encode(tokens, lengths)`` reads [·, P]."""
        count, size = self.count(source.shape[1]), source.shape[1]
        if count == 1:
            return encode(F.pad(source, (1, 0), value=bos), lengths + 1)[:, 1:]
        tokens, sizes = self._cut(source, lengths, count, bos, eos, pad)
        states = encode(tokens.flatten(0, 1), sizes.flatten()).unflatten(0, (-1, count))
        window = self._source_window(lengths, size)  # [N, S]
        place = torch.arange(size, device=source.device) - window * self.stride + 1  # after bos
        at = (window * states.shape[2] + place).clamp(max=count * states.shape[2] - 1)
        out: Tensor = states.flatten(1, 2).gather(1, at[..., None].expand(-1, -1, states.shape[-1]))
        return out

    def _cut(
        self, source: Tensor, lengths: Tensor, count: int, bos: int, eos: int, pad: int
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Windows [N, K, P] and their lengths [N, K]: bos, R tokens, and eos if the document continues."""
        starts = self.stride * torch.arange(count, device=source.device)
        wide = F.pad(source, (0, (count - 1) * self.stride + self.room + 1 - source.shape[1]), value=pad)
        inside = wide.unfold(1, self.room + 1, self.stride)  # one more than R, for the document's eos
        left = lengths[:, None] - starts  # tokens of the document from the window's start on
        more = (left > self.room + 1)[..., None]
        last = inside[..., -1:].masked_fill(more, eos)
        tokens = torch.cat((F.pad(inside[..., :-1], (1, 0), value=bos), last), -1)
        return tokens, 1 + left.clamp(0, self.room + 1)

    def _source_window(self, lengths: Tensor, size: int) -> Tensor:
        """[N, S]: the window that each token's state comes from."""
        places = torch.arange(size, device=lengths.device)
        best = ((places - (self.room - self.stride) // 2) // self.stride).clamp(min=0)
        last = (-((self.room + 1 - lengths) // self.stride)).clamp(min=0)  # the same as count − 1
        return torch.minimum(best, last[:, None])

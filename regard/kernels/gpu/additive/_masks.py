"""Masks as the kernels of triton_additive know them: conditions that all hold, and spans of documents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.mask import And, Causal, Documents, Grid, Lengths, Mask, Prefix, Window
from regard.score.terms import Problem

FAR = 2**29  # windows reach no further
DOC_ROWS, DOC_STEP = 32, 128  # rows as in the kernels, no more than any block has; and how fine spans are cut


@dataclass(frozen=True)
class AdditiveMask:
    """A mask as the kernels know it: all of these hold."""

    left: int | None = None
    right: int | None = None
    keys: int | None = None
    lengths: tuple[Tensor, ...] = ()
    documents: Documents | None = None

    @staticmethod
    def of(mask: Mask | None) -> AdditiveMask | str:
        """The same as conditions that hold together, or why that cannot be."""
        if mask is None:
            return AdditiveMask()
        if isinstance(mask, Causal):
            return AdditiveMask(right=0)
        if isinstance(mask, Window):
            return AdditiveMask(left=mask.left, right=mask.right)
        if isinstance(mask, (Lengths, Prefix)):
            return AdditiveMask(keys=mask.ints[0]) if mask.static else AdditiveMask(lengths=mask.tensors)
        if isinstance(mask, Documents):
            return AdditiveMask(documents=mask)
        if not isinstance(mask, And):
            return f"it joins masks by & only, and knows no {type(mask).__name__}"
        one, two = (AdditiveMask.of(part) for part in mask.parts)
        if isinstance(one, str) or isinstance(two, str):
            return one if isinstance(one, str) else two
        if one.documents is not None and two.documents is not None:
            return "it takes one Documents mask"
        return AdditiveMask(
            _least(one.left, two.left),
            _least(one.right, two.right),
            _least(one.keys, two.keys),
            one.lengths + two.lengths,
            one.documents if two.documents is None else two.documents,
        )

    @property
    def any(self) -> bool:
        return self != AdditiveMask()


def _least(x: int | None, y: int | None) -> int | None:
    return x if y is None else y if x is None else min(x, y)


def document_spans(documents: Documents, p: Problem, along: int) -> Tensor:
    """For every DOC_ROWS queries (along 0) or keys (1): the keys (queries) in between which their documents lie."""
    blocks = (DOC_STEP, DOC_ROWS) if along else (DOC_ROWS, DOC_STEP)
    empty, _ = documents.tiles(Grid(p.row_index(), p.positions(), p.keys, *blocks))
    seen = ~empty[:, 0].transpose(-1, -2) if along else ~empty[:, 0]  # [B|1, blocks, steps of the other side]
    first = seen.to(torch.int8).argmax(-1)
    last = seen.shape[-1] - seen.flip(-1).to(torch.int8).argmax(-1)
    spans: Tensor = torch.stack((first, last), -1) * seen.any(-1, keepdim=True) * DOC_STEP
    return spans.to(torch.int32)

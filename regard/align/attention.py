"""Word alignments from attention: weights between words, and links from these weights.

T and S count the subwords of target and source, J and I their words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from regard.align.link import Links


def word_weights(
    weights: Tensor,
    source_words: Sequence[int],
    target_words: Sequence[int],
    *,
    layer: int | None = None,
    head: int | None = None,
    shift: bool = True,
    merge: Literal["mean", "max"] = "mean",
) -> Tensor:
    """How much each target word attends to each source word, [J, I].

    ``weights`` [layers, heads, T, S] are the cross-attention weights of a forced decode, with the target given: row t
    reads <s> y₁ … y_t and predicts y_{t+1}. ``layer`` and ``head`` select one, None the mean over all. With ``shift``
    the weights of y_t are those of the step that receives it as input, row t; otherwise those of the step that predicts
    it, row t − 1. For models of real text the input row is far better (Chen et al. 2020,
    https://arxiv.org/abs/2004.14837). A small model of easily predicted text attends to a word's source when predicting
    it, so compare both.

    ``source_words`` and ``target_words`` are the word number of every subword (``Encoded.words``), −1 for none; they
    may omit <s> and </s> at the end. Weights are summed over the subwords of a source word, and averaged (or
    maximized, with ``merge``) over those of a target word.
    """
    if weights.ndim != 4:
        raise ValueError(f"weights: expected [layers, heads, T, S], got shape {tuple(weights.shape)}")
    if merge not in ("mean", "max"):
        raise ValueError(f"merge: expected 'mean' or 'max', got {merge!r}")
    picked = _select(_select(weights, layer, "layer"), head, "head").double()
    rows, columns = len(target_words), len(source_words)
    if picked.shape[0] < rows + shift or picked.shape[1] < columns:
        raise ValueError(
            f"weights: expected at least {rows + shift} rows (target subwords{' and <s>' if shift else ''}) and "
            f"{columns} columns (source subwords), got {tuple(picked.shape)}"
        )
    own = picked[int(shift) : rows + shift, :columns]
    if merge == "mean":
        return word_matrix(own, source_words, target_words)
    source, target = _groups(source_words, own.device), _groups(target_words, own.device)
    summed = own @ source
    spread = summed[:, None].where(target[:, :, None] > 0, torch.tensor(0.0).to(summed))
    return spread.amax(0) if rows else summed.new_zeros(0, source.shape[1])


def word_matrix(weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> Tensor:
    """From subwords to words, [..., T, S] → [..., J, I]: sums over source words, means over target words."""
    source = _groups(source_words, weights.device).to(weights.dtype)  # [S, I]
    target = _groups(target_words, weights.device).to(weights.dtype)  # [T, J]
    return (target.T @ (weights @ source)) / target.sum(0)[:, None].clamp(min=1)


def by_word(rows: Tensor, words: Sequence[int], count: int) -> Tensor:
    """Sum the columns of subwords into those of ``count`` words, [.., S] → [.., I]; word −1 is dropped.

    In O(S + I) memory, for documents of any length.

    >>> by_word(torch.tensor([[0.25, 0.5, 0.125, 0.125]]), [0, -1, 2, 2], 3)
    tensor([[0.2500, 0.0000, 0.2500]])
    """
    index = torch.tensor([word if word >= 0 else count for word in words], dtype=torch.long, device=rows.device)
    return rows.new_zeros(*rows.shape[:-1], count + 1).index_add_(-1, index, rows[..., : len(words)])[..., :count]


def links(matrix: Tensor, *, threshold: float | None = None, mutual: bool = False) -> Links:
    """Links from word weights [J, I]: each target word with its largest weight, or all of at least ``threshold``.

    With ``mutual`` a link must also be the largest weight of its source word: links are then one-to-one, fewer and more
    precise, and ``threshold`` applies to √(w / Σ_i w · w / Σ_j w), the geometric mean of the weight's shares of its row
    and column. A word without weight has no link.

    >>> sorted(links(torch.tensor([[0.1, 0.6], [0.4, 0.3]])))
    [(0, 1), (1, 0)]
    >>> sorted(links(torch.tensor([[0.1, 0.6], [0.4, 0.3]]), threshold=0.3))
    [(0, 1), (1, 0), (1, 1)]
    >>> sorted(links(torch.tensor([[0.9, 0.1], [0.6, 0.2]]), mutual=True))
    [(0, 0)]
    """
    if not matrix.numel():
        return frozenset()
    if mutual:
        found = _mutual(matrix)
        if threshold is not None:
            found &= _shares(matrix) >= threshold
    elif threshold is not None:
        found = (matrix >= threshold) & (matrix > 0)
    else:
        found = _most(matrix)
    return frozenset((i, j) for j, i in found.nonzero().tolist())


def _most(matrix: Tensor) -> Tensor:
    """True at the largest weight of each row, the first of several; rows of zeros have none."""
    most, where = matrix.max(-1, keepdim=True)
    return torch.zeros_like(matrix, dtype=torch.bool).scatter_(-1, where, most > 0)


def _mutual(matrix: Tensor) -> Tensor:
    return _most(matrix) & _most(matrix.T).T


def _shares(matrix: Tensor) -> Tensor:
    """The geometric mean of a weight's shares of its row and of its column."""
    tiny = torch.finfo(matrix.dtype).tiny
    return matrix / (matrix.sum(-1, keepdim=True) * matrix.sum(-2, keepdim=True)).sqrt().clamp_min(tiny)


def _select(weights: Tensor, index: int | None, what: str) -> Tensor:
    if index is None:
        return weights.mean(0)
    if not -len(weights) <= index < len(weights):
        raise ValueError(f"{what} of cross-attention: expected one of {len(weights)}, counted from 0, got {index}")
    return weights[index]


def _groups(words: Sequence[int], device: torch.device) -> Tensor:
    """[subwords, words], 1 where a subword belongs to a word."""
    count = max(words, default=-1) + 1
    of = torch.tensor(words, dtype=torch.long, device=device)
    return (of[:, None] == torch.arange(count, device=device)).double()

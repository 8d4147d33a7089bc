"""A bidirectional recurrent encoder that never moves sequence lengths to the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.common.module import Module

CELLS: dict[str, tuple[type[nn.GRU | nn.LSTM], type[nn.GRUCell | nn.LSTMCell]]] = {
    "gru": (nn.GRU, nn.GRUCell),
    "lstm": (nn.LSTM, nn.LSTMCell),
}


class Bidirectional(Module):
    """h_i = [→h_i; ←h_i], layer on layer, ``hidden`` wide per direction; 0 at the padding.

    Each direction is a network that reads from left to right; the second reads each sequence reversed within its
    length. Padding comes last, so it cannot affect the states before it, and its own states are set to 0. Packing would
    skip padding, but needs lengths on the host: the GPU would wait, and no CUDA graph could capture it.
    """

    def __init__(self, cell: str, dim: int, hidden: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        network = CELLS[cell][0]
        sizes = [dim] + [2 * hidden] * (layers - 1)
        self.right = nn.ModuleList(network(size, hidden, batch_first=True) for size in sizes)
        self.left = nn.ModuleList(network(size, hidden, batch_first=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """[N, S, dim], [N] → [N, S, 2 · hidden]."""
        place = torch.arange(x.shape[1], device=x.device)
        seen = place < lengths[:, None]
        turned = torch.where(seen, lengths[:, None] - 1 - place, place)[..., None]  # its own inverse
        for i, (right, left) in enumerate(zip(self.right, self.left, strict=True)):
            x = x if i == 0 else self.dropout(x)
            back = left(_at(x, turned))[0]
            x = torch.cat((right(x)[0], _at(back, turned)), -1)
        return x.masked_fill(~seen[..., None], 0.0)


def _at(x: Tensor, place: Tensor) -> Tensor:
    """x_n,place(n, i), [N, S, D]."""
    return x.gather(1, place.expand(x.shape))

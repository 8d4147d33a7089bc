"""All heads in one figure. L and S count queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.plot._canvas import INK, MEASURES, PALE, SIZE, bar, bare, need_matplotlib, numbers, sheet
from regard.plot._matrix import max_pool, shade
from regard.trace import Trace

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

THUMBNAIL = 64  # the most numbers along a side


def head_grid(
    weights: Trace | Tensor | ArrayLike,
    *,
    measure: str | None = None,
    heading: str | None = None,
    largest: float | None = None,
    item: int = 0,
    kind: str = "self",
    call: int | None = -1,
    cmap: str | Colormap | None = None,
) -> Figure:
    """All heads of all layers as thumbnails on one colour scale, each labelled layer.head.

    ``weights`` is [layers, heads, L, S], or a trace with the selection ``kind``, ``item`` and ``call``. Matrices with
    more than 64 queries or keys are max-pooled.
    """
    need_matplotlib()
    grid, what = _grid(weights, measure, item, kind, call)
    layers, heads, across = len(grid), max(map(len, grid)), grid[0][0].shape
    ratio = min(3.0, max(1 / 3, across[1] / across[0]))
    side = max(26.0, min(80.0, 720 / (heads * max(1.0, ratio))))
    figure = sheet((heads * (side * ratio + 7) + 95) / 72, (layers * (side + 17) + 40) / 72)
    everything = torch.cat([matrix.flatten() for row in grid for matrix in row])
    axes = figure.subplots(layers, heads, squeeze=False)
    image = None
    for i, j in ((i, j) for i in range(layers) for j in range(heads)):
        ax = axes[i, j]
        bare(ax)
        ax.set_xticks([])
        ax.set_yticks([])
        if j >= len(grid[i]):  # a layer with fewer heads
            ax.set_visible(False)
            continue
        image = shade(ax, grid[i][j], cmap, largest, scale=everything)
        ax.spines[:].set(visible=True, linewidth=0.4, color="#c4c8cf")
        ax.set_title(f"{i}.{j}", fontsize=6.5, color=PALE, pad=1.5)
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.03, h_pad=0.03, wspace=0.01, hspace=0.01)
    if heading:
        figure.suptitle(heading, fontsize=SIZE + 2, color=INK, x=0.01, ha="left", parse_math=False)
    assert image is not None
    bar(figure, image, axes, what, None, aspect=30, fraction=0.02, shrink=min(1.0, 200 / (layers * (side + 17))))
    return figure


def _grid(
    weights: Trace | Tensor | ArrayLike, measure: str | None, item: int, kind: str, call: int | None
) -> tuple[list[list[Tensor]], str]:
    """A pooled matrix per layer and head, and the name of the measure."""
    if not isinstance(weights, Trace):
        values = numbers(weights)
        if values.ndim != 4 or 0 in values.shape:
            raise ValueError(f"expected numbers [layers, heads, queries, keys], got shape {tuple(values.shape)}")
        return [[max_pool(matrix, THUMBNAIL) for matrix in layer] for layer in values], measure or MEASURES["weights"]
    name = measure or "weights"
    if name not in MEASURES:
        raise ValueError(f"measure: expected one of {', '.join(MEASURES)} for a trace, got {name!r}")
    if not weights.kinds.get(kind):
        raise ValueError(
            f"kind: expected one of {', '.join(weights.kinds) or 'none, the trace is empty'}, got {kind!r}"
        )
    layers = range(weights.kinds[kind])
    heads = [range(weights.shape(layer, kind=kind, call=call)[1]) for layer in layers]
    return [[_thumbnail(weights, name, i, j, item, kind, call) for j in heads[i]] for i in layers], MEASURES[name]


def _thumbnail(trace: Trace, name: str, layer: int, head: int, item: int, kind: str, call: int | None) -> Tensor:
    """A head's pooled matrix; weights are pooled block by block, without the whole matrix in memory."""
    if name == "weights" and call is not None:
        size = (THUMBNAIL, THUMBNAIL)
        return numbers(trace.tile(layer, head, size=size, item=item, kind=kind, call=call))
    return max_pool(numbers(getattr(trace, name)(layer, head, item=item, kind=kind, call=call)), THUMBNAIL)

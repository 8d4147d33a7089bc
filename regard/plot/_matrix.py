"""Figures of one matrix: a head, an alignment. L and S count queries and keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard.align.attention import links as largest_links
from regard.align.error_rate import quality
from regard.align.link import Alignment
from regard.plot._canvas import (
    INK,
    ORANGE,
    PALE,
    SIZE,
    FigureLabels,
    LabelledMatrix,
    bar,
    bare,
    colours,
    figure_of,
    need_matplotlib,
    points,
    sheet,
    table,
    tick,
    tick_size,
    title,
)
from regard.plot._text import widths
from regard.trace import Trace

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from regard.align.link import Link
    from regard.plot._canvas import TracePart

CELL = 21.0  # points, if there is room
SHOWN = 1024  # the most numbers along a side; larger matrices are max-pooled
WIDEST, HIGHEST = 620.0, 620.0  # points: the largest matrix


def heatmap(
    weights: Trace | Tensor | ArrayLike,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    measure: str | None = None,
    heading: str | None = None,
    largest: float | None = None,
    values: bool | None = None,
    names: tuple[str, str] = ("query", "key"),
    cmap: str | Colormap | None = None,
    ax: Axes | None = None,
    **where: Unpack[TracePart],
) -> Figure:
    """A heat map of a matrix [L, S]: a row per query, a column per key.

    Args:
        weights: the numbers, or a trace; then ``layer`` and ``head`` select a matrix (without ``head`` the mean over
            the heads), as do ``item``, ``kind`` and ``call``.
        rows, columns: labels of queries and keys; by default the trace's labels, or numbers.
        measure: the name of the numbers, for the colour bar; for a trace "weights", "scores", "norms" or "gradient".
        largest: the number with the darkest colour; by default the largest of the matrix.
        values: whether to write the numbers into the cells; by default up to 10 by 10.
        names: names of the two axes.
        cmap: one of matplotlib's. By default 0 is white and larger numbers are darker; if there are negative numbers,
            they are orange and positive ones blue. Masked scores (−inf) are grey.
        ax: where to draw; by default a new figure.

    Matrices with more than 1024 rows or columns are max-pooled.
    """
    need_matplotlib()
    own = table(weights, rows, columns, measure=measure, **where)
    if own.values.ndim != 2:
        raise ValueError(f"expected numbers [queries, keys], got shape {tuple(own.values.shape)}")
    words = FigureLabels(own.rows, own.columns)
    inside = max(own.values.shape) <= 10 if values is None else values
    ax, beside, pitch = _place(own, words, ax, 1.45 * CELL if inside else CELL, bool(heading or own.title))
    image = shade(ax, own.values, cmap, largest, square=beside is None)
    _frame(ax, words, pitch, names)
    if inside:
        _write(ax, own.values, image)
    title(ax, heading or own.title, words.style)
    figure = figure_of(ax)
    bar(figure, image, ax, own.measure, beside)
    return figure


def alignment(
    weights: Trace | Tensor | ArrayLike,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    links: Iterable[Link] | None = None,
    gold: Alignment | Iterable[Link] | None = None,
    measure: str | None = None,
    heading: str | None = None,
    cmap: str | Colormap | None = None,
    ax: Axes | None = None,
    **where: Unpack[TracePart],
) -> Figure:
    """Word weights [J, I] with the links found in them, and the gold links if known.

    A row per target word, a column per source word. Filled squares are the links found: ``links`` as (source, target),
    by default from each target word to the source word with the largest weight. Frames are links of ``gold``: solid if
    sure, dashed if only possible; the title then has the alignment error rate. Of a trace the cross-attention of a
    ``layer`` and ``head`` is drawn.
    """
    need_matplotlib()
    if isinstance(weights, Trace):
        where = {"kind": "cross", **where}
    own = table(weights, target, source, measure=measure, sides=("target", "source"), **where)
    if own.values.ndim != 2:
        raise ValueError(f"expected word weights [target, source], got shape {tuple(own.values.shape)}")
    found = largest_links(own.values) if links is None else frozenset(links)
    right = gold if isinstance(gold, Alignment) or gold is None else Alignment(*[frozenset(gold)] * 2)
    _check_links([found] if right is None else [found, right.sure, right.possible], own)
    words = FigureLabels(own.rows, own.columns)
    ax, beside, pitch = _place(own, words, ax, CELL, bool(heading or own.title or gold), 40)
    image = shade(ax, own.values, cmap, None, square=beside is None)
    _frame(ax, words, pitch, ("target", "source"))
    handles = _marks(ax, found, right, min(pitch))
    heading = heading or own.title
    if right is not None:
        error = f"AER {100 * quality([found], [right]).aer:.1f} %"
        heading = f"{heading} · {error}" if heading else error
    title(ax, heading, words.style)
    figure = figure_of(ax)
    bar(figure, image, ax, own.measure, beside)
    _legend(ax, handles)
    return figure


# --- parts ---


def _place(
    own: LabelledMatrix, words: FigureLabels, ax: Axes | None, cell: float, titled: bool, below: float = 24
) -> tuple[Axes, Axes | None, tuple[float, float]]:
    """Axes for a matrix and its colour bar, and the width and height of a cell in points.

    A new figure has exactly the size that its matrix and longest labels need.
    """
    height, width = own.values.shape
    if ax is not None:
        room = points(ax)
        return ax, None, (room[0] / width, room[1] / height)
    across, down = min(cell, WIDEST / width), min(cell, HIGHEST / height)
    if max(across, down) < 3 * min(across, down):  # square cells, unless one side would become too small
        across = down = min(across, down)
    rows = widths(words.groups[0], tick_size(down), words.family)
    columns = widths(words.groups[1], tick_size(across), words.family)
    angle = _angle(columns, across)
    left, above = max(rows) + 26, 15 + (max(columns) + 6) * math.sin(math.radians(angle)) + (22 if titled else 0)
    over = (max(columns[-6:]) + 6) * math.cos(math.radians(angle)) - across / 2 if angle else 0.0
    wide, high = width * across, height * down
    whole = left + wide + max(72.0, over + 4), below + high + above
    figure = sheet(whole[0] / 72, whole[1] / 72, None)
    box = (left / whole[0], below / whole[1], wide / whole[0], high / whole[1])
    tall = min(high, 320.0)
    beside = ((left + wide + 12) / whole[0], (below + high - tall) / whole[1], 9 / whole[0], tall / whole[1])
    return figure.add_axes(box), figure.add_axes(beside), (across, down)


def _angle(wide: Sequence[float], pitch: float) -> float:
    """The rotation of column labels: 0, 45, or 90 degrees for narrow columns."""
    if max(wide) + 3 <= pitch:
        return 0.0
    return 45.0 if pitch >= 14 else 90.0


def shade(
    ax: Axes,
    values: Tensor,
    cmap: str | Colormap | None,
    largest: float | None,
    *,
    scale: Tensor | None = None,
    square: bool = False,
) -> AxesImage:
    """Draw the matrix, coloured by the range of ``scale`` or its own; ``square`` cells unless very elongated."""
    shades, low, high = colours(values if scale is None else scale, cmap)
    if largest is not None:
        low, high = (0.0 if low == 0 else -largest), largest
    height, width = values.shape
    values = max_pool(values, SHOWN)
    aspect: Literal["equal", "auto"] = "equal" if square and 1 / 6 < width / height < 6 else "auto"
    edges = (-0.5, width - 0.5, height - 0.5, -0.5)
    shown = torch.where(values.isfinite(), values, torch.nan).numpy()
    return ax.imshow(shown, cmap=shades, vmin=low, vmax=high, interpolation="nearest", aspect=aspect, extent=edges)


def max_pool(matrix: Tensor, most: int) -> Tensor:
    """Max-pool by whole factors until no side has more than ``most``."""
    height, width = (math.ceil(n / most) for n in matrix.shape)
    if height == width == 1:
        return matrix
    return torch.nn.functional.max_pool2d(matrix[None], (height, width), ceil_mode=True)[0]


def _frame(ax: Axes, words: FigureLabels, pitch: tuple[float, float], names: tuple[str, str]) -> None:
    """Labels at the left and above, and thin lines between cells if they are large enough."""
    bare(ax)
    rows, columns = words.groups
    angle = _angle(widths(columns, tick_size(pitch[0]), words.family), pitch[0])
    turned = {"rotation": angle, "rotation_mode": "anchor", "ha": "left"} if angle == 45 else {"rotation": angle}
    ax.xaxis.tick_top()
    tick(ax.xaxis, columns, pitch[0], words.style, **turned)
    tick(ax.yaxis, rows, pitch[1], words.style)
    ax.tick_params(pad=2)
    ax.set_xlabel(names[1], fontsize=SIZE, color=PALE)
    ax.set_ylabel(names[0], fontsize=SIZE, color=PALE)
    ax.xaxis.set_label_position("bottom")
    if min(pitch) >= 6:
        for line, count in ((ax.axvline, len(columns)), (ax.axhline, len(rows))):
            for i in range(count + 1):
                line(i - 0.5, color="#e4e6ea", linewidth=0.6, zorder=1.5)


def _write(ax: Axes, values: Tensor, image: AxesImage) -> None:
    """Write the numbers into their cells, white on dark ones."""
    for i, row in enumerate(values.tolist()):
        for j, number in enumerate(row):
            red, green, blue, _ = image.cmap(image.norm(number)) if math.isfinite(number) else (1, 1, 1, 1)
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5
            text = f"{number:.2f}" if math.isfinite(number) else "–"
            ax.text(j, i, text, ha="center", va="center", fontsize=SIZE - 1.5, color="white" if dark else INK)


def _marks(ax: Axes, found: frozenset[Link], right: Alignment | None, pitch: float) -> list[Artist]:
    """Draw squares for links and frames for gold links; return the legend's handles."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    size = max(2.0, 0.34 * pitch)
    square: dict[str, Any] = {"marker": "s", "linestyle": "", "color": ORANGE, "markeredgecolor": "white"}
    square |= {"markersize": size, "markeredgewidth": max(0.3, size / 9)}
    ordered = sorted(found)
    ax.plot([i for i, _ in ordered], [j for _, j in ordered], **square, zorder=4, label="link")
    handles: list[Artist] = [Line2D([], [], **{**square, "markersize": 6}, label="found")]
    if right is None:
        return handles
    possible = right.possible - right.sure
    for name, some, dash in (("sure", right.sure, "-"), ("possible", possible, (0, (1.6, 1.2)))):
        for i, j in sorted(some):
            frame: Any = {"fill": False, "edgecolor": INK, "linewidth": 1.3 if pitch > 9 else 0.8, "linestyle": dash}
            ax.add_patch(Rectangle((i - 0.42, j - 0.42), 0.84, 0.84, **frame, zorder=3, label=name))
        handles.append(Rectangle((0, 0), 1, 1, fill=False, edgecolor=INK, linestyle=dash, label=f"gold, {name}"))
    return handles if possible else handles[:-1]


def _legend(ax: Axes, handles: list[Artist]) -> None:
    from matplotlib.transforms import ScaledTranslation

    below_axes = ax.transAxes + ScaledTranslation(0, -16 / 72, figure_of(ax).dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below_axes,
        borderaxespad=0.2,
        ncols=3,
        frameon=False,
        fontsize=SIZE - 1,
        labelcolor=INK,
        handlelength=1.2,
        handleheight=1.0,
        columnspacing=1.4,
    )


def _check_links(sets: Iterable[Iterable[Link]], own: LabelledMatrix) -> None:
    target, source = own.values.shape
    for i, j in (link for some in sets for link in some):
        if not (0 <= i < source and 0 <= j < target):
            raise ValueError(
                f"link {i}-{j}: expected (source word, target word) counted from 0, of {source} source and {target} "
                "target words"
            )

"""Shared by all figures: input numbers, the empty figure, colours, labels, and saving.

Figures are made without pyplot, which keeps global state, so any thread may make one.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from regard.files.whole import write_whole
from regard.plot._text import LOCK, families, has_right_to_left, label_of, quiet, shapes_text, visual_order
from regard.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy import object_
    from numpy.typing import ArrayLike, NDArray

INK, PALE, BLUE, ORANGE = "#1c2127", "#6b7280", "#0072b2", "#d55e00"  # the last two: Okabe and Ito's
SIZE = 9.0  # of text, in points
SUFFIXES = (".svg", ".png", ".pdf")
MEASURES = {
    "weights": "attention weight",
    "scores": "score",
    "norms": "norm of the weighted value, ‖α f(x)‖",
    "gradient": "weight × gradient",
}
# White for 0, then monotonically darker, so that the order survives in grey and with colour blindness.
BELOW_AND_ABOVE = ("#7a3300", "#d55e00", "#f4bd93", "#ffffff", "#a3cbe5", "#0072b2", "#00344f")
SHADES = ("#ffffff", "#e3f0ee", "#b9ddd9", "#7fc3c8", "#45a0bd", "#2a78ab", "#234f8e", "#14255f")


# --- the numbers ---


class TracePart(TypedDict, total=False):
    """The part of a trace to draw."""

    layer: int | None
    head: int | None
    item: int
    kind: str
    call: int | None


class LabelledMatrix(NamedTuple):
    """Numbers [L, S] (or [..., L, S]) with row and column labels, the measure, and a title."""

    values: Tensor
    rows: list[str]
    columns: list[str]
    measure: str
    title: str | None


def table(
    source: Trace | Tensor | ArrayLike,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    measure: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    item: int = 0,
    kind: str = "self",
    call: int | None = -1,
    sides: tuple[str, str] = ("rows", "columns"),
) -> LabelledMatrix:
    """The matrix of plain numbers, or of a trace: one head, or the mean over a layer's heads."""
    if not isinstance(source, Trace):
        if (layer, head, item, kind, call) != (None, None, 0, "self", -1):
            raise TypeError(
                "layer, head, item, kind and call say which part of a trace to draw; these are plain numbers"
            )
        values = numbers(source)
        return LabelledMatrix(values, *_labels(values, rows, columns, sides), measure or MEASURES["weights"], None)
    name = measure or "weights"
    if name not in MEASURES:
        raise ValueError(f"measure: expected one of {', '.join(MEASURES)} for a trace, got {name!r}")
    if layer is None:
        raise ValueError("layer: expected a number, the layer of the trace to draw")
    values = numbers(getattr(source, name)(layer, head, item=item, kind=kind, call=call))
    values = values.mean(0) if head is None else values
    own = _own_labels(source, layer, kind, item, call, tuple(values.shape))
    which = "mean of the heads" if head is None else f"head {head}"
    kinds = {"self": "self-attention", "decoder": "the decoder's self-attention", "cross": "cross-attention"}
    given = own[0] if rows is None else rows, own[1] if columns is None else columns
    labels = _labels(values, *given, sides)
    return LabelledMatrix(values, *labels, MEASURES[name], f"{kinds.get(kind, kind)}, layer {layer}, {which}")


def _own_labels(
    trace: Trace, layer: int, kind: str, item: int, call: int | None, shape: tuple[int, ...]
) -> tuple[list[str], list[str]]:
    """The trace's labels for one call, or for all calls."""
    rows, columns = trace.labels(kind=kind, item=item)
    before = 0 if call is None else range(trace.calls(layer, kind=kind))[call]
    start = sum(trace.shape(layer, kind=kind, call=c)[2] for c in range(before))
    return rows[start : start + shape[0]], columns[: shape[1]]


def numbers(source: Tensor | ArrayLike) -> Tensor:
    """Tensors, arrays and nested lists as float64 on the CPU."""
    return torch.as_tensor(source).detach().to("cpu", torch.float64)


def _labels(
    values: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None, sides: tuple[str, str]
) -> tuple[list[str], list[str]]:
    if values.ndim < 1 or 0 in values.shape:
        raise ValueError(f"expected numbers [queries, keys], at least one of each, got shape {tuple(values.shape)}")
    lengths = (values.shape[-2] if values.ndim > 1 else 1, values.shape[-1])
    return labels(rows, lengths[0], sides[0]), labels(columns, lengths[1], sides[1])


def labels(given: Sequence[str] | None, count: int, what: str) -> list[str]:
    """A label for each number; by default 0, 1, …"""
    if given is None:
        return [str(i) for i in range(count)]
    if isinstance(given, str):
        raise TypeError(f"{what}: expected a list of {count} words, got one text; split it first")
    if len(given) != count:
        raise ValueError(f"{what}: expected {count} labels, one for each number, got {len(given)}")
    return [str(word) for word in given]


# --- the sheet ---


def need_matplotlib() -> None:
    """Raise an error with the install command if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('figures need matplotlib: pip install "regard[plot]"') from error


def sheet(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, layout=layout, facecolor="white", edgecolor="white")


def figure_of(ax: Axes) -> Figure:
    """The root figure of axes, also of axes in sub-figures."""
    try:
        return ax.get_figure(root=True)  # type: ignore[return-value]
    except TypeError:  # before matplotlib 3.10
        return ax.figure.figure  # type: ignore[return-value]


def points(ax: Axes) -> tuple[float, float]:
    """Width and height of axes, in points."""
    box, dpi = ax.get_window_extent(), figure_of(ax).dpi
    return box.width * 72 / dpi, box.height * 72 / dpi


def bare(ax: Axes) -> None:
    """Remove frame, ticks and grid, whatever the user's style."""
    ax.set_facecolor("white")
    ax.grid(False)
    ax.tick_params(which="both", length=0, width=0, colors=INK, labelsize=SIZE)
    for spine in ax.spines.values():
        spine.set_visible(False)


class FigureLabels:
    """The labels of a figure as drawn, and fonts that have their characters."""

    def __init__(self, *groups: Sequence[str]) -> None:
        self.groups = [[visual_order(label_of(word)) for word in group] for group in groups]
        self.family = families(word for group in self.groups for word in group)

    @property
    def style(self) -> dict[str, Any]:
        """Text options for matplotlib: the fonts, and no formulas from a token's $, _ or ^."""
        return {"fontfamily": self.family, "parse_math": False}


def title(ax: Axes, text: str | None, style: dict[str, Any] | None = None) -> None:
    if text:
        ax.set_title(text, fontsize=SIZE + 2, color=INK, loc="left", **(style or {"parse_math": False}))


# --- colours ---


def colours(values: Tensor, cmap: str | Colormap | None, signed: bool = False) -> tuple[Colormap, float, float]:
    """A colour map and its range: from 0, white, to the largest number; with negative numbers white is in the middle.

    Numbers that are not finite (masked scores) are grey.
    """
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap

    finite = values[values.isfinite()]
    high, low = (float(finite.max()), float(finite.min())) if finite.numel() else (1.0, 0.0)
    signed = signed or low < 0
    chosen: Colormap
    if cmap is not None:
        chosen = colormaps[cmap] if isinstance(cmap, str) else cmap
    elif signed:
        chosen = LinearSegmentedColormap.from_list("regard-signed", BELOW_AND_ABOVE)
    else:
        chosen = LinearSegmentedColormap.from_list("regard", SHADES)
    chosen = chosen.with_extremes(bad="#d4d4d8")
    if signed:
        most = max(high, -low) or 1.0
        return chosen, -most, most
    return chosen, 0.0, high or 1.0


def bar(
    figure: Figure,
    image: ScalarMappable,
    axes: Axes | Sequence[Axes] | NDArray[object_],
    measure: str,
    beside: Axes | None = None,
    **where: float,
) -> None:
    """A colour bar labelled with the measure, in the axes ``beside`` or taking space from ``axes``."""
    room = {"fraction": 0.045, "pad": 0.02, "aspect": 24, **where} if beside is None else {}
    drawn = figure.colorbar(image, ax=axes if beside is None else None, cax=beside, **room)  # type: ignore[arg-type]
    drawn.ax.set_facecolor("white")
    drawn.ax.grid(False)
    drawn.outline.set_visible(False)  # type: ignore[operator]
    drawn.set_label(measure, fontsize=SIZE, color=INK, parse_math=False)
    drawn.ax.tick_params(labelsize=SIZE - 1.5, length=2, width=0.5, colors=PALE, labelcolor=INK)


# --- labels along an axis ---


def tick_size(pitch: float) -> float:
    """The font size of labels ``pitch`` points apart."""
    return min(SIZE, max(6.0, 0.8 * pitch))


def tick(axis: Axis, words: Sequence[str], pitch: float, style: dict[str, Any], **more: Any) -> None:
    """Labels at 0, 1, …, ``pitch`` points apart; only every k-th label where all would overlap."""
    size = tick_size(pitch)
    step = max(1, math.ceil(1.15 * size / pitch)) if pitch > 0 else 1
    places = list(range(0, len(words), step))
    axis.set_ticks(places, [words[i] for i in places], fontsize=size, color=INK, **style, **more)


# --- files ---


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: float = 200, paths: bool = False) -> None:
    """Write a figure atomically as SVG, PNG or PDF, by the file's suffix.

    The same figure gives the same file. Text in an SVG stays searchable text; ``paths=True`` draws it as paths, which
    look the same without the fonts. ``dpi`` applies to PNG, and to images of matrices in the other formats.
    """
    path = Path(path)
    kind = suffix_of(path)
    metadata: Any = {  # without the time, so that the same figure gives the same file
        ".svg": {"Date": None, "Creator": "regard"},
        ".pdf": {"CreationDate": None, "Creator": "regard", "Producer": None},
        ".png": {"Software": "regard"},
    }
    drawn = io.BytesIO()
    with quiet(), _settings(paths or _needs_paths(figure)):
        figure.savefig(drawn, format=kind[1:], dpi=dpi, metadata=metadata[kind], facecolor="auto", edgecolor="auto")
    write_whole(path, drawn.getvalue())


def suffix_of(path: Path) -> str:
    """.svg, .png or .pdf; others are refused."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends in .svg, .png or .pdf, got {path.suffix or 'no suffix'}")
    return path.suffix.lower()


def _needs_paths(figure: Figure) -> bool:
    """Whether text was put in visual order for an old matplotlib: a viewer would reverse it again."""
    from matplotlib.text import Text

    return not shapes_text() and any(has_right_to_left(text.get_text()) for text in figure.findobj(Text))


@contextmanager
def _settings(paths: bool) -> Iterator[None]:
    """Set these process-wide settings of matplotlib temporarily, one thread at a time."""
    import matplotlib

    settings: Any = matplotlib.rcParams
    wanted = {"svg.fonttype": "path" if paths else "none", "svg.hashsalt": "regard", "pdf.fonttype": 42}
    with LOCK:
        before = {name: settings[name] for name in wanted}
        try:
            settings.update(wanted)
            yield
        finally:
            settings.update(before)

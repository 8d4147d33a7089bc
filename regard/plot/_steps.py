"""The computation of one query's attention, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from regard.plot._canvas import (
    BLUE,
    INK,
    PALE,
    SIZE,
    FigureLabels,
    bar,
    bare,
    colours,
    labels,
    need_matplotlib,
    numbers,
    sheet,
)
from regard.plot._text import widths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 17.0  # points
STEPS = (("similarity", "1  similarity"), ("scaled", "2  scaled"), ("masked", "3  masked"), ("weights", "4  softmax"))


class DrawnSteps(Protocol):
    """The steps of one query and head: [S] each, and the context [D]."""

    @property
    def similarity(self) -> Tensor: ...
    @property
    def scaled(self) -> Tensor: ...
    @property
    def masked(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor: ...
    @property
    def context(self) -> Tensor: ...


def steps(
    query_steps: DrawnSteps,
    keys: Sequence[str] | None = None,
    *,
    query: str | None = None,
    most: int = 20,
    heading: str | None = None,
) -> Figure:
    """The steps similarity → scaled → masked → softmax → context of one query and head, with their numbers.

    A row per key, in order; of more than ``most`` keys those with the largest weights, and a last row for the rest.
    Each step's bars have their own scale. At the right is each key's value times its weight, and below it their sum,
    the context.

    Args:
        query_steps: ``trace.steps(layer, head, query)``, or any object with ``similarity``, ``scaled``, ``masked`` and
            ``weights`` [S], ``context`` [D] and optionally ``weighted`` [S, D].
        keys: the keys' words.
        query: the query's word, for the heading.
    """
    need_matplotlib()
    columns = {name: numbers(getattr(query_steps, name)) for name, _ in STEPS}
    context = numbers(query_steps.context)
    _check(columns, context)
    count = len(columns["weights"])
    words, given = labels(keys, count, "keys"), getattr(query_steps, "weighted", None)
    weighted = None if given is None else numbers(given)
    kept = _select_keys(columns["weights"], most)
    text = FigureLabels([words[i] for i in kept], [query or ""])
    rest = [i for i in range(count) if i not in set(kept)]
    left = max(widths(text.groups[0], SIZE, text.family)) + 14
    rows = len(kept) + bool(rest)
    figure = sheet((left + 4 * 92 + 250) / 72, ((rows + 2) * ROW + 74) / 72)
    panels = figure.subplots(2, 5, squeeze=False, width_ratios=[1, 1, 1, 1, 2.3], height_ratios=[rows, 1.2])
    for panel, note in zip(panels[1, :4], _notes(columns), strict=True):
        panel.axis("off")
        panel.text(0, 1, note, transform=panel.transAxes, fontsize=SIZE - 2, color=PALE, va="top", linespacing=1.35)
    for panel, (name, label) in zip(panels[0, :4], STEPS, strict=True):
        _bars(panel, label, columns[name], kept, rest, name == "weights")
    _rows(panels[0, 0], text, rest, columns["weights"])
    _values(figure, list(panels[:, 4]), weighted, context, kept, rest)
    score = getattr(query_steps, "score", None)
    how = f" by {score}" if score else ""
    who = f"“{text.groups[1][0]}” attends{how}" if query else ""
    if getattr(query_steps, "counterfactual", False):
        who += " (counterfactual: not the score it was trained with)"
    if said := heading or who:
        figure.suptitle(said, fontsize=SIZE + 2, color=INK, x=0.01, ha="left", **text.style)
    return figure


def _check(columns: dict[str, Tensor], context: Tensor) -> None:
    shapes = {name: tuple(column.shape) for name, column in columns.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1 or context.ndim != 1:
        raise ValueError(
            f"expected the steps of one query and head, [keys] each and a context [dims], got {shapes} and "
            f"{tuple(context.shape)}: take one row of one head"
        )


def _notes(columns: dict[str, Tensor]) -> tuple[str, str, str, str]:
    """The explanations below the bars of each step."""
    hidden = int((~columns["masked"].isfinite()).sum())
    masked = f"{hidden} of {len(columns['masked'])} hidden" if hidden else "nothing is hidden"
    total = float(columns["weights"].sum())
    return (
        "the query against\neach key",
        "the score, as the\nsoftmax gets it",
        f"{masked}",
        f"eˣ / Σ eˣ\nsum {total:.3f}",
    )


def _select_keys(weights: Tensor, most: int) -> list[int]:
    """The keys that get a row, in order."""
    if most < 1:
        raise ValueError(f"most: expected at least 1, got {most}")
    return sorted(weights.topk(min(most, len(weights))).indices.tolist())


def _rows(panel: Axes, text: FigureLabels, rest: list[int], weights: Tensor) -> None:
    names = list(text.groups[0])
    if rest:
        names.append(f"{len(rest)} more")
    panel.set_yticks(range(len(names)), names, fontsize=SIZE, color=INK, **text.style)
    if rest:
        panel.get_yticklabels()[-1].set(color=PALE, style="italic")


def _bars(panel: Axes, label: str, column: Tensor, kept: list[int], rest: list[int], last: bool) -> None:
    """A bar and a number per key; a masked score has no bar."""
    bare(panel)
    shown = column[kept].tolist()
    if rest and last:
        shown.append(float(column[rest].sum()))
    finite = [x for x in shown if math.isfinite(x)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    span = (high - low) or 1.0
    places = range(len(shown))
    panel.barh(places, [x if math.isfinite(x) else 0.0 for x in shown], height=0.74, color=BLUE if last else "#a9c7dc")
    for y, x in zip(places, shown, strict=True):
        text = (f"{x:.3f}" if last else f"{x:.2f}").replace("-", "−") if math.isfinite(x) else "−∞"
        inside = (max(x, 0.0) if math.isfinite(x) else 0.0) + 0.04 * span
        panel.text(inside, y, text, va="center", ha="left", fontsize=SIZE - 1, color=INK if math.isfinite(x) else PALE)
    panel.axvline(0, color=PALE, linewidth=0.6)
    panel.set_xlim(low - 0.04 * span, high + 0.62 * span)
    panel.set_ylim(len(kept) + bool(rest) - 0.5, -0.5)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.set_title(label, fontsize=SIZE, color=INK, loc="left", fontweight="bold")


def _values(
    figure: Figure, panels: Sequence[Axes], weighted: Tensor | None, context: Tensor, kept: list[int], rest: list[int]
) -> None:
    """α_j v_j, a row per key, and their sum below, on one colour scale."""
    strips = [] if weighted is None else [weighted[kept]]
    if weighted is not None and rest:
        strips.append(weighted[rest].sum(0, keepdim=True))
    shades, low, high = colours(torch.cat([*strips, context[None]]), None, signed=True)
    style: Any = {"cmap": shades, "vmin": low, "vmax": high, "interpolation": "nearest", "aspect": "auto"}
    for panel in panels:
        bare(panel)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(visible=True, linewidth=0.4, color="#c4c8cf")
    panels[0].set_title("5  weight × value", fontsize=SIZE, color=INK, loc="left", fontweight="bold")
    if strips:
        panels[0].imshow(torch.cat(strips).numpy(), **style)
    else:
        panels[0].axis("off")
    image = panels[1].imshow(context[None].numpy(), **style)
    some = "  ".join(f"{x:.2f}".replace("-", "−") for x in context[:5].tolist())
    more = " …" if len(context) > 5 else ""
    panels[1].set_xlabel(f"context, {len(context)} numbers: {some}{more}", fontsize=SIZE - 1, color=INK)
    panels[1].set_ylabel("sum ", fontsize=SIZE, color=INK, rotation=0, ha="right", va="center")
    bar(figure, image, panels, "weight × value", None, aspect=18, fraction=0.05)

"""Arcs over a sentence, with widths proportional to the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.plot._canvas import (
    BLUE,
    INK,
    MEASURES,
    ORANGE,
    PALE,
    SIZE,
    FigureLabels,
    bare,
    figure_of,
    labels,
    need_matplotlib,
    points,
    sheet,
    table,
)
from regard.plot._canvas import title as write_title
from regard.plot._text import right_to_left, widths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from regard.plot._canvas import TracePart
    from regard.trace import Trace

FULL = 14.0  # points: the width of an arc of weight 1
TEXT = 12.0  # points: size of the words, where there is room
SMALLEST = 6.5
WIDEST = 940.0  # points: the widest line of words
GAP = 0.75  # between words, as a fraction of the size
HIGH = 150.0  # points: the highest arc


@dataclass(frozen=True)
class WordRow:
    """A line of words: their centres and height in points, and which of them are written."""

    words: list[str]
    middles: list[float]
    y: float
    size: float
    written: frozenset[int]


@dataclass(frozen=True)
class Arc:
    """An arc from a query to a key."""

    query: int
    key: int
    weight: float


def arcs(
    weights: Trace | Tensor | ArrayLike,
    words: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    *,
    query: int | None = None,
    top: int = 5,
    measure: str | None = None,
    heading: str | None = None,
    ax: Axes | None = None,
    **where: Unpack[TracePart],
) -> Figure:
    """What a word attends to: arcs to the ``top`` words with the largest weights, as wide as the weights.

    A line below gives the total weight of the words without an arc. Right-to-left sentences run from the right.

    Args:
        weights: [S] of one query, [L, S], or a trace with the selection ``layer`` and ``head``.
        words: the S keys.
        queries: the L queries, if they are not the keys (cross-attention). They are drawn on a second line below, with
            arcs between the lines.
        query: the query to draw. With two lines it may be omitted, to draw all queries.
        measure: the name of the numbers; for a trace "weights" or "norms".
        ax: where to draw; by default a new figure.
    """
    need_matplotlib()
    own = table(weights, None, words, measure=measure, **where)
    _check(own.values, top)
    cross = queries is not None or where.get("kind") == "cross"
    names = list(own.rows if queries is None else queries) if cross else []
    if names and own.values.ndim == 2:
        names = labels(names, len(own.values), "queries")
    rows = _rows(own.values, query, names or own.columns, cross)
    found = [arc for i, row in rows.items() for arc in _largest(row, i, top)]
    sums = [float(row.sum()) for row in rows.values()]
    share = max(sums) < 1.001 if own.measure == MEASURES["weights"] else all(abs(x - 1) < 0.001 for x in sums)
    full = 1.0 if share else max((arc.weight for arc in found), default=1.0)
    text = FigureLabels(own.columns, names)
    rest = max(0.0, sum(sums) - sum(arc.weight for arc in found)) / len(rows)
    said = _caption(own.measure, len(rows), top, len(own.columns), rest, share)
    ax, lines = _layout(text, own.columns, names, found, query, ax, said, bool(heading or own.title))
    starts, lean = _starts(found, lines, FULL / full), _lean(found, lines)
    for arc in sorted(found, key=lambda arc: -arc.weight):
        _draw(ax, arc, lines, FULL * arc.weight / full, starts[arc], lean)
    _write_keys(ax, lines[0], text, found, share, cross)
    if cross:
        _write_queries(ax, lines[1], text, found)
    style: Any = {"fontsize": SIZE - 1.5, "color": PALE, **text.style}
    ax.text(0, 0, said, transform=ax.transAxes, va="bottom", ha="left", **style)
    write_title(ax, heading or own.title, text.style)
    return figure_of(ax)


def _check(values: Tensor, top: int) -> None:
    if values.ndim not in (1, 2):
        raise ValueError(f"expected weights [keys] or [queries, keys], got shape {tuple(values.shape)}")
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise ValueError("expected weights that are finite and at least 0: they are drawn as widths")
    if top < 1:
        raise ValueError(f"top: expected at least 1, got {top}")


def _rows(values: Tensor, query: int | None, words: Sequence[str], cross: bool) -> dict[int, Tensor]:
    """The weights of each query to draw."""
    count = len(words) if values.ndim == 1 else len(values)
    if query is None and cross and values.ndim == 2:
        return dict(enumerate(values))
    if query is None:
        raise ValueError("query: expected the number of the word whose arcs to draw")
    if not -count <= query < count:
        raise ValueError(f"query: expected one of {count} words, counted from 0, got {query}")
    return {query % count: values if values.ndim == 1 else values[query]}


def _largest(row: Tensor, query: int, top: int) -> list[Arc]:
    values, keys = row.topk(min(top, len(row)))
    return [Arc(query, k, w) for w, k in zip(values.tolist(), keys.tolist(), strict=True) if w > 0]


# --- layout ---


def _layout(
    text: FigureLabels,
    keys: list[str],
    names: list[str],
    found: list[Arc],
    query: int | None,
    ax: Axes | None,
    said: str,
    titled: bool,
) -> tuple[Axes, list[WordRow]]:
    """Axes in points, and the lines of words: the keys at height 0, the queries, if separate, below them."""
    room = WIDEST if ax is None else points(ax)[0]
    wanted = [{arc.key: arc.weight for arc in found}, dict.fromkeys((arc.query for arc in found), 2.0)]
    if not names:
        wanted = [{**wanted[0], **wanted[1]}]
    below = -96.0
    lines = [
        _line(shown, right_to_left(given), 0.0 if i == 0 else below, room, text, wanted[i])
        for i, (shown, given) in enumerate(zip(text.groups, (keys, names), strict=True))
        if given
    ]
    width = max(max(line.middles) + min(line.middles) for line in lines)
    lines = [_centre(line, width) for line in lines]
    spans = [abs(lines[0].middles[a.key] - lines[0].middles[a.query]) for a in found] if not names else [0.0]
    high = (14.0 if query is None else 26.0) if names else 22.0 + max(_height(span) for span in [*spans, 0.0])
    low = below - 30 if names else -42.0
    wide = max(width, widths([said], SIZE - 1.5, text.family)[0] + 4) if ax is None else width
    if ax is None:  # of exactly the needed size
        above = 28.0 if titled else 8.0
        figure = sheet((wide + 16) / 72, (high - low + above + 8) / 72, None)
        whole = figure.get_size_inches() * 72
        ax = figure.add_axes((8 / whole[0], 8 / whole[1], wide / whole[0], (high - low) / whole[1]))
    bare(ax)
    ax.set(xticks=[], yticks=[], ylim=(low, high), xlim=((width - wide) / 2, (width + wide) / 2))
    return ax, lines


def _line(
    words: list[str], from_right: bool, y: float, room: float, text: FigureLabels, wanted: dict[int, float]
) -> WordRow:
    """Words side by side, smaller if necessary; if still too wide, only the ``wanted`` ones are written."""
    sizes = widths(words, TEXT, text.family)
    whole = sum(sizes) + GAP * TEXT * len(words)
    size = TEXT * min(1.0, room / whole)
    fits = size >= SMALLEST
    size = size if fits else SIZE
    slots = [(w + GAP * TEXT) * size / TEXT if fits else room / len(words) for w in sizes]
    ends = list(accumulate(slots))
    middles = [end - slot / 2 for end, slot in zip(ends, slots, strict=True)]
    if from_right:
        middles = [ends[-1] - middle for middle in middles]
    written = range(len(words)) if fits else _apart(middles, [w * size / TEXT for w in sizes], wanted)
    return WordRow(words, middles, y, size, frozenset(written))


def _apart(middles: list[float], sizes: list[float], wanted: dict[int, float]) -> list[int]:
    """The most wanted words whose labels do not touch."""
    kept: list[int] = []
    for i in sorted(wanted, key=lambda i: -wanted[i]):
        if all(abs(middles[i] - middles[k]) > (sizes[i] + sizes[k]) / 2 + 4 for k in kept):
            kept.append(i)
    return kept


def _centre(line: WordRow, width: float) -> WordRow:
    move = (width - max(line.middles) - min(line.middles)) / 2
    return WordRow(line.words, [x + move for x in line.middles], line.y, line.size, line.written)


def _height(span: float) -> float:
    """The height of an arc of this width: nearly a half circle for near words, flatter for far ones."""
    return HIGH * (1 - math.exp(-0.62 * span / HIGH)) if span else 24.0


# --- drawing ---


def _starts(found: list[Arc], lines: list[WordRow], scale: float) -> dict[Arc, float]:
    """Where each arc leaves its query's word: side by side, ordered so that arcs do not cross.

    On a single line arcs to the left start at the left, the nearest outermost; likewise at the right; loops in between.
    """
    place = {}
    for query in {arc.query for arc in found}:
        own, middle = [arc for arc in found if arc.query == query], lines[-1].middles[query]
        ends = {arc: lines[0].middles[arc.key] for arc in own}
        if len(lines) == 2:
            own.sort(key=lambda arc: ends[arc])
        else:
            own.sort(key=lambda arc: (ends[arc] > middle) - (ends[arc] < middle) + 0.5 * _turn(ends[arc] - middle))
        x = middle - scale * sum(arc.weight for arc in own) / 2
        for arc in own:
            place[arc] = x + scale * arc.weight / 2
            x += scale * arc.weight
    return place


def _turn(away: float) -> float:
    """−1 (near) … 0 (far) for arcs to the left, 0 (far) … 1 (near) for arcs to the right."""
    return math.copysign(1 / (1 + abs(away)), away) if away else 0.0


def _lean(found: list[Arc], lines: list[WordRow]) -> int:
    """The side without arcs, −1 or 1, for loops to lean to; 0 if both sides have arcs."""
    sides = {lines[0].middles[arc.key] > lines[-1].middles[arc.query] for arc in found if arc.key != arc.query}
    return 0 if len(sides) == 2 else -1 if sides == {True} else 1


def _draw(ax: Axes, arc: Arc, lines: list[WordRow], width: float, x1: float, lean: int) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    x2, y1 = lines[0].middles[arc.key], 11.0
    if len(lines) == 2:
        y1, y2 = lines[1].y + 11, -12.0
        bends = [(x1, (y1 + y2) / 2), (x2, (y1 + y2) / 2)]
    elif arc.query == arc.key:  # a loop, leaning to the side that has no other arcs, if there is one
        y2, x2, reach = y1, x1, 32 + 1.5 * width
        near, far = {-1: (-1.2, -0.1), 0: (-0.7, 0.7), 1: (0.1, 1.2)}[lean]
        bends = [(x1 + near * reach, y1 + 1.3 * reach), (x1 + far * reach, y1 + (1.3 if not lean else 1.0) * reach)]
    else:
        y2, lift = y1, 4 / 3 * _height(abs(x2 - x1))
        bends = [(x1, y1 + lift), (x2, y1 + lift)]
    path = Path([(x1, y1), *bends, (x2, y2)], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    style = {"facecolor": "none", "edgecolor": BLUE, "alpha": 0.62 if len(lines) == 1 else 0.5, "capstyle": "butt"}
    ax.add_patch(PathPatch(path, linewidth=width, label=f"{arc.query}-{arc.key}", **style))


def _write_keys(ax: Axes, line: WordRow, text: FigureLabels, found: list[Arc], share: bool, cross: bool) -> None:
    """Write the keys. With one query, those it attends to are highlighted and have their weights beside them."""
    one = len({arc.query for arc in found}) == 1
    weight = {arc.key: arc.weight for arc in found} if one else {}
    asked = {arc.query for arc in found} if one and not cross else set()
    strong = asked | weight.keys() if one else range(len(line.words))
    _write(ax, line, text, {i: ORANGE if i in asked else INK for i in strong})
    for i in (i for i in weight if i in line.written):
        place = line.middles[i], line.y + (16 if cross else -15)
        small = min(SIZE - 1, line.size)
        ax.text(*place, _amount(weight[i], share), ha="center", va="center", fontsize=small, color=BLUE)


def _write_queries(ax: Axes, line: WordRow, text: FigureLabels, found: list[Arc]) -> None:
    """Write the queries; a single drawn query is highlighted."""
    asked = {arc.query for arc in found}
    strong = dict.fromkeys(asked, ORANGE) if len(asked) == 1 else dict.fromkeys(range(len(line.words)), INK)
    _write(ax, line, text, strong)


def _write(ax: Axes, line: WordRow, text: FigureLabels, strong: dict[int, str]) -> None:
    """Words in their colours, others pale; a short stroke where a word does not fit."""
    halves = widths([line.words[i] for i in sorted(line.written)], line.size, text.family)
    clear = [(line.middles[i], w / 2 + 2) for i, w in zip(sorted(line.written), halves, strict=True)]
    for i, (word, x) in enumerate(zip(line.words, line.middles, strict=True)):
        if i in line.written:
            weight = "bold" if strong.get(i) == ORANGE else "normal"
            style: Any = {"color": strong.get(i, PALE), "fontweight": weight, **text.style}
            ax.text(x, line.y, word, ha="center", va="center", fontsize=line.size, **style)
        elif all(abs(x - middle) > half for middle, half in clear):
            ax.plot([x], [line.y], marker="|", color=PALE, markersize=3, markeredgewidth=0.5)


def _amount(weight: float, share: bool) -> str:
    if not share:
        return f"{weight:.3g}"
    return f"{100 * weight:.0f} %" if weight >= 0.005 else "< 1 %"


def _caption(measure: str, queries: int, top: int, keys: int, rest: float, share: bool) -> str:
    """The line that explains the widths and gives the weight that is not drawn."""
    left = keys - min(top, keys)
    amount = f"{100 * rest:.1f} %" if share else f"{rest:.3g}"
    each = " of each word" if queries > 1 else ""
    said = f"width: {measure}"
    if left:
        said += f"; the {min(top, keys)} largest{each}, {amount} is on the other {left} word{'s' if left > 1 else ''}"
        said += " (mean)" if queries > 1 else ""
    return said

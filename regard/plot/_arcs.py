"""Arcs over a sentence, as wide as the weights."""

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

FULL = 14.0  # points: the width of an arc of weight 1
TEXT = 12.0  # points: size of the words, where there is room
SMALLEST = 6.5
WIDEST = 940.0  # points of a line of words
GAP = 0.75  # between words, of the size
HIGH = 150.0  # points of the highest arc


@dataclass(frozen=True)
class WordRow:
    """Words on a line: where their middles are, in points, at what height, and which of them are written."""

    words: list[str]
    middles: list[float]
    y: float
    size: float
    written: frozenset[int]


@dataclass(frozen=True)
class Arc:
    """From a query to a key, with its weight."""

    query: int
    key: int
    weight: float


def arcs(
    weights: Any,
    words: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    *,
    query: int | None = None,
    top: int = 5,
    measure: str | None = None,
    heading: str | None = None,
    ax: Axes | None = None,
    **where: Any,
) -> Figure:
    """What a word looks at: an arc to each of the ``top`` words with the largest weights, as wide as the weight.

    A line below says how much weight is on the words without an arc. A sentence that is read from the right runs from
    the right.

    Args:
        weights: [S] of one query, [L, S], or a trace, of which ``layer`` and ``head`` say the part.
        words: the keys, S of them.
        queries: where the queries are other words than the keys, as in cross-attention, those L; they stand on a line
            of their own below, and arcs run between the lines.
        query: which query. Between two lines it may be left out: all queries then have their arcs.
        measure: what the numbers are; of a trace "weights" or "norms".
        ax: where to draw; a figure of fitting size is made otherwise.
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
    _keys(ax, lines[0], text, found, share, cross)
    if cross:
        _asked(ax, lines[1], text, found)
    style: Any = {"fontsize": SIZE - 1.5, "color": PALE, **text.style}
    ax.text(0, 0, said, transform=ax.transAxes, va="bottom", ha="left", **style)
    write_title(ax, heading or own.title, text.style)
    return figure_of(ax)


def _check(values: Tensor, top: int) -> None:
    if values.ndim not in (1, 2):
        raise ValueError(f"expected weights [keys] or [queries, keys], got shape {tuple(values.shape)}")
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise ValueError("expected weights that are finite and at least 0: the width of an arc can show nothing else")
    if top < 1:
        raise ValueError(f"top: expected at least 1, got {top}")


def _rows(values: Tensor, query: int | None, words: Sequence[str], cross: bool) -> dict[int, Tensor]:
    """The weights of each query that is drawn."""
    count = len(words) if values.ndim == 1 else len(values)
    if query is None and cross and values.ndim == 2:
        return dict(enumerate(values))
    if query is None:
        raise ValueError("query: expected the place of a word in the sentence, the one whose arcs are to be drawn")
    if not -count <= query < count:
        raise ValueError(f"query: expected one of {count} words, counted from 0, got {query}")
    return {query % count: values if values.ndim == 1 else values[query]}


def _largest(row: Tensor, query: int, top: int) -> list[Arc]:
    values, keys = row.topk(min(top, len(row)))
    return [Arc(query, k, w) for w, k in zip(values.tolist(), keys.tolist(), strict=True) if w > 0]


# --- where things are ---


def _layout(
    text: FigureLabels,
    keys: list[str],
    names: list[str],
    found: list[Arc],
    query: int | None,
    ax: Axes | None,
    said: str,
    titled: bool,
) -> tuple[Any, list[WordRow]]:
    """Lines of words and axes in points: the words at 0, and with two lines the queries below them."""
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
    lines = [_centred(line, width) for line in lines]
    spans = [abs(lines[0].middles[a.key] - lines[0].middles[a.query]) for a in found] if not names else [0.0]
    high = (14.0 if query is None else 26.0) if names else 22.0 + max(_height(span) for span in [*spans, 0.0])
    low = below - 30 if names else -42.0
    wide = max(width, widths([said], SIZE - 1.5, text.family)[0] + 4) if ax is None else width
    if ax is None:  # to the point
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
    """Words side by side, smaller if they have to be; if even that is too wide, only those wanted are written."""
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
    """Those wanted most whose labels do not touch."""
    kept: list[int] = []
    for i in sorted(wanted, key=lambda i: -wanted[i]):
        if all(abs(middles[i] - middles[k]) > (sizes[i] + sizes[k]) / 2 + 4 for k in kept):
            kept.append(i)
    return kept


def _centred(line: WordRow, width: float) -> WordRow:
    move = (width - max(line.middles) - min(line.middles)) / 2
    return WordRow(line.words, [x + move for x in line.middles], line.y, line.size, line.written)


def _height(span: float) -> float:
    """Of an arc over so many points: a half circle's for near words, flatter for far ones."""
    return HIGH * (1 - math.exp(-0.62 * span / HIGH)) if span else 24.0


# --- what is drawn ---


def _starts(found: list[Arc], lines: list[WordRow], scale: float) -> dict[Arc, float]:
    """Where each arc leaves its query's word: side by side, in the order in which they do not cross.

    Over one line those to the left stand left, the nearest outermost; those to the right likewise; a loop in between.
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
    """From −1 (near) to 0 (far) at the left, and from 0 (far) to 1 (near) at the right."""
    return math.copysign(1 / (1 + abs(away)), away) if away else 0.0


def _lean(found: list[Arc], lines: list[WordRow]) -> int:
    """−1 or 1 where all arcs that are no loop go to the other side, else 0."""
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


def _keys(ax: Axes, line: WordRow, text: FigureLabels, found: list[Arc], share: bool, cross: bool) -> None:
    """The line of keys. With one query those that it looks at stand out and have their weight beside them."""
    one = len({arc.query for arc in found}) == 1
    weight = {arc.key: arc.weight for arc in found} if one else {}
    asked = {arc.query for arc in found} if one and not cross else set()
    strong = asked | weight.keys() if one else range(len(line.words))
    _write(ax, line, text, {i: ORANGE if i in asked else INK for i in strong})
    for i in (i for i in weight if i in line.written):
        place = line.middles[i], line.y + (16 if cross else -15)
        small = min(SIZE - 1, line.size)
        ax.text(*place, _amount(weight[i], share), ha="center", va="center", fontsize=small, color=BLUE)


def _asked(ax: Axes, line: WordRow, text: FigureLabels, found: list[Arc]) -> None:
    """The line of queries. If there is one, it stands out."""
    asked = {arc.query for arc in found}
    strong = dict.fromkeys(asked, ORANGE) if len(asked) == 1 else dict.fromkeys(range(len(line.words)), INK)
    _write(ax, line, text, strong)


def _write(ax: Axes, line: WordRow, text: FigureLabels, strong: dict[int, str]) -> None:
    """Words in their colours, the others pale; a short stroke where there is no room for a word."""
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
    """What the width is, and what is not drawn."""
    left = keys - min(top, keys)
    amount = f"{100 * rest:.1f} %" if share else f"{rest:.3g}"
    each = " of each word" if queries > 1 else ""
    said = f"width: {measure}"
    if left:
        said += f"; the {min(top, keys)} largest{each}, {amount} is on the other {left} word{'s' if left > 1 else ''}"
        said += " (mean)" if queries > 1 else ""
    return said

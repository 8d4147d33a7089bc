"""What commands say and show: lines through a model, with bad ones reported and a bar; links, pictures and tables."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from regard.cli._lines import Input

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress
    from torch import Tensor

    from regard.align.link import Links
    from regard.tasks.qa.answerer import Answer
    from regard.tasks.summarization.summarizer import Summary
    from regard.tasks.translation.output import TranslationOutput
    from regard.tasks.translation.translator import Translator


Report = list[dict[str, Any]]
"""What ``regard evaluate`` reports, as JSON has it: for each output its name, its scores and perhaps a comparison."""


class Result(Protocol):
    """What became of one input."""

    @property
    def problem(self) -> str: ...
    @property
    def note(self) -> str: ...


R = TypeVar("R", bound=Result)


def say(text: str) -> None:
    """A line on stderr, if there is one: without it, print would write into the output."""
    if sys.stderr is not None:
        print(f"regard: {text}", file=sys.stderr)  # noqa: T201


class Failure(Exception):
    """Ends a command with exit code 1: its input was valid, but it produced nothing."""

    code = 1


def message(error: Exception) -> str:
    """What went wrong, in a line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


class Job:
    """Lines through a model: bad ones are reported and give nothing, the rest continue; a bar in a terminal."""

    def __init__(self, strict: bool, noun: str = "lines") -> None:
        self.strict, self.noun, self.count, self.bad = strict, noun, 0, 0
        self.bar: Progress | None = None

    def __enter__(self) -> Job:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn(self.noun), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(self.noun, total=0)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.bar:
            self.bar.stop()
        if self.bad and kind is None:
            say(f"{self.bad:,} of {self.count:,} {self.noun} could not be used and are empty in the output")

    def step(self, lines: int) -> None:
        if self.bar:
            self.bar.advance(self.task, lines)

    def run(
        self, items: Sequence[Input], work: Callable[..., list[R]], failed: Callable[..., R], **options: object
    ) -> Iterator[R]:
        """The result of each item, in order: that of ``work``, or ``failed(problem=...)`` for an unusable item."""
        if self.strict:
            self._refuse(items)
        good = {i: item.content for i, item in enumerate(items) if not item.problem}
        if self.bar:
            self.bar.update(self.task, total=(self.bar.tasks[0].total or 0) + len(good))
        done = dict(zip(good, work(list(good.values()), progress=self.step, **options), strict=True))
        for i, item in enumerate(items):
            found = done[i] if i in done else failed(problem=item.problem)
            self.count += 1
            if found.problem and self.strict:
                raise ValueError(f"{item.where}: {found.problem}")
            self.bad += bool(found.problem)
            if found.problem or found.note:
                say(f"{item.where}: {found.problem or found.note}")
            yield found

    @staticmethod
    def _refuse(items: Sequence[Input]) -> None:
        for item in items:
            if item.problem:
                raise ValueError(f"{item.where}: {item.problem}")


def translation_lines(found: TranslationOutput, number: int | None, weights: Sequence[Tensor] | None) -> list[str]:
    """text [||| links], or an n-best list: number ||| text [||| links] ||| score."""
    from regard.align.attention import links
    from regard.align.formats import pharaoh

    rows = []
    for k, translation in enumerate(found.translations):
        parts = [translation.text] if weights is None else [translation.text, pharaoh(links(weights[k]))]
        rows.append(" ||| ".join(parts if number is None else [str(number), *parts, f"{translation.score:.4f}"]))
    return rows or ([""] if number is None else [])


def draw_alignment(
    source: str, found: TranslationOutput, weights: Sequence[Tensor], marked: Links | None = None
) -> list[str]:
    """Pictures of word weights, links in brackets."""
    from regard.align.attention import links
    from regard.align.terminal import picture

    rows = []
    for translation, matrix in zip(found.translations, weights, strict=True):
        words = [_printable(word) for word in source.split()], [_printable(word) for word in translation.text.split()]
        if all(words):
            chosen = links(matrix) if marked is None else marked
            rows += ["", *picture(matrix, *words, marked=chosen).split("\n"), ""]
    return rows


def columns() -> int:
    """How wide a drawn document may be: the terminal if it is narrower than a page."""
    return min(100, shutil.get_terminal_size((100, 24)).columns)


def draw_sources(summary: Summary) -> list[str]:
    """The document with a bar after each word, as high as its attention, and copied words in brackets; above it the
    summary, with brackets around the words that were copied."""
    copied = {c.position for c in summary.copied if c.position is not None and c.probability >= 0.5}
    looked = summary.attention.sum(0)
    top = float(looked.max()) if looked.numel() else 0.0
    words = []
    for i, word in enumerate(summary.source):
        bar = " ▁▂▃▄▅▆▇█"[min(8, round(8 * float(looked[i]) / top + 0.2))] if top > 0 else " "
        text = f"[{_printable(word.text)}]" if i in copied else _printable(word.text)
        words.append(f"{text}{bar}".rstrip())
    own = [
        f"[{_printable(word)}]" if c.probability >= 0.5 else _printable(word)
        for word, c in zip(summary.words, summary.copied, strict=True)
    ]
    legend = "[copied]  attention: ▁ least … █ most"
    return ["", *_wrap(own), "", *_wrap(words), "", legend, ""]


def _wrap(words: Sequence[str]) -> list[str]:
    from regard.text.graphemes import width

    lines, room = [""], columns()
    for word in words:
        for k, piece in enumerate(_pieces(word, room)):
            if k or (lines[-1] and width(lines[-1]) + 1 + width(piece) > room):
                lines.append("")
            lines[-1] += f" {piece}" if lines[-1] else piece
    return lines


def _pieces(word: str, room: int) -> list[str]:
    """A word, cut where it is wider than the terminal: what has no spaces is one word, however long.

    >>> _pieces("gate", 5), _pieces("東京都", 5)
    (['gate'], ['東京', '都'])
    """
    from regard.text.graphemes import clusters, width

    found, taken = [""], 0
    for sign in clusters(word):
        if found[-1] and taken + width(sign) > room:
            found.append("")
            taken = 0
        found[-1] += sign
        taken += width(sign)
    return found


def plot_alignment(path: Path, source: str, found: TranslationOutput, weights: Sequence[Tensor]) -> None:
    """The best translation's word weights and links as a figure."""
    words = source.split(), found.text.split()
    if not all(words):
        say(f"{path}: not drawn, the first line has no translation")
        return
    from regard.plot import alignment, save

    save(alignment(weights[0], *words), path)


DRAWN = 60  # words of a text in a figure, at most


def plot_summary(path: Path, found: Summary) -> None:
    """The attention of each word of a summary as a figure; copied words and their origins in brackets."""
    if not found.words:
        say(f"{path}: not drawn, the first summary has no words")
        return
    copied = {i: c.position for i, c in enumerate(found.copied) if c.probability >= 0.5}
    rows = [f"[{word}]" if i in copied else word for i, word in enumerate(found.words)]
    columns = [f"[{word.text}]" if i in copied.values() else word.text for i, word in enumerate(found.source)]
    _heatmap(path, found.attention, rows, columns, {i for i in copied.values() if i is not None}, "summary")


def plot_answer(path: Path, context: str, question: str, found: Answer) -> None:
    """The attention of each word of a question as a figure; the words of the answer in brackets."""
    spans = [match.span() for match in re.finditer(r"\S+", context)]
    start, end = found.start or 0, found.end or 0
    inside = {i for i, (a, b) in enumerate(spans) if a < end and b > start}
    columns = [f"[{context[a:b]}]" if i in inside else context[a:b] for i, (a, b) in enumerate(spans)]
    if found.attention is None:
        say(f"{path}: not drawn, the first question has no answer")
        return
    _heatmap(path, found.attention, question.split(), columns, inside, "question")


def _heatmap(path: Path, values: Tensor, rows: list[str], columns: list[str], kept: set[int], name: str) -> None:
    """Of a long text the ``kept`` words and those with the most attention, in the order of the text."""
    from regard.plot import heatmap, save

    order = sorted(range(len(columns)), key=lambda i: (i not in kept, -float(values[:, i].max())))
    some = sorted(order[:DRAWN])
    more = len(columns) - len(some)
    heading = f"{more:,} words with less attention are left out" if more else None
    save(heatmap(values[:, some], rows, [columns[i] for i in some], names=(name, "text"), heading=heading), path)


def write_page(path: Path, translator: Translator, source: str, found: TranslationOutput, look: dict[str, Any]) -> None:
    """The best translation, its word links and all attention as a page."""
    from regard.explorer.export import translation

    if not translation(path, translator, source, found, **look):
        say(f"{path}: not written, the first line has no translation")


def answer_lines(found: Answer, number: int | None) -> list[str]:
    """The answer, or a list: number ||| text ||| start-end ||| probability."""
    if number is None:
        return [found.text]
    rows = [(c.text, f"{c.start}-{c.end}", c.score) for c in found.candidates]
    if not found.text and not found.problem:
        rows.insert(0, ("", "", found.no_answer))
    return [f"{number} ||| {text} ||| {place} ||| {score:.4f}" for text, place, score in rows]


def as_object(question: str, found: Answer) -> dict[str, object]:
    """An answer for JSON; places are characters of the context, from 0."""
    best = {"question": question, "answer": found.text, "start": found.start, "end": found.end}
    rest = {"score": found.score, "no_answer": found.no_answer}
    more = {name: text for name in ("problem", "note") if (text := getattr(found, name))}
    return {**best, **rest, "candidates": [c._asdict() for c in found.candidates], **more}


SHADES = " ░▒▓█"
REACH = 600  # characters to each side of an answer that are drawn, where words have no spaces between them


def draw_answer(context: str, found: Answer, *, width: int | None = None, around: int = 60) -> list[str]:
    """Words of the context near the answer, which is in brackets; below each word the question's attention to it.

    The darkest shade marks the most attention; weights are means over the words of the question.
    """
    if found.attention is None:
        return []
    from regard.text.graphemes import width as wide

    weights = found.attention.mean(0)
    peak = max(float(weights.max()), 1e-9)
    spans = [match.span() for match in re.finditer(r"\S+", context)]
    start, end = (found.start, found.end) if found.start is not None and found.end is not None else (-1, -1)
    inside = [i for i, (a, b) in enumerate(spans) if a < end and b > start]
    middle = inside[0] if inside else int(weights.argmax())
    centre = start if inside else spans[middle][0]
    rows, words, shades, room = [""], "", "", width or columns()
    for i in range(max(0, middle - around), min(len(spans), middle + around)):
        a, b = max(spans[i][0], centre - REACH), min(spans[i][1], max(centre, end) + REACH)
        shade = SHADES[min(4, int(float(weights[i]) / peak * 4 + 0.5))]
        for piece in _pieces(_bracket(context, a, b, start, end), room) if a < b else ():
            if words and wide(words) + wide(piece) > room:
                rows += [words.rstrip(), shades.rstrip()]
                words = shades = ""
            words, shades = f"{words}{piece} ", f"{shades}{shade * wide(piece)} "
    return [*rows, words.rstrip(), shades.rstrip(), ""]


def _bracket(text: str, a: int, b: int, start: int, end: int) -> str:
    """text[a:b], with brackets where [start, end) begins and ends in it.

    >>> _bracket("an egg.", 3, 7, 3, 6), _bracket("an egg.", 0, 2, 3, 6)
    ('[egg].', 'an')
    """
    first, last = (min(max(place, a), b) for place in (start, end))
    opens, closes = "[" * (a <= start < b), "]" * (a < end <= b)
    return f"{_printable(text[a:first])}{opens}{_printable(text[first:last])}{closes}{_printable(text[last:b])}"


JOINERS = "\u200c\u200d"  # with which Persian and emoji are spelled; they are not printable, and move nothing


def _printable(word: str) -> str:
    """A word without what would move the cursor."""
    return "".join(char if char.isprintable() or char in JOINERS else "�" for char in word)


def table(report: Report) -> str:
    """Scores and differences for people to read."""
    lines = []
    for entry in report:
        lines.append(entry["name"])
        wide = max((len(s["name"]) for s in entry["scores"]), default=5)
        lines += [f"  {s['name']:{max(wide, 5)}} {s['score']:6.2f}   {s['signature']}" for s in entry["scores"]]
        for d in entry.get("against", {}).get("differences", ()):
            lines.append(
                f"  {d['name']:5} {d['difference']:+6.2f}   against {entry['against']['name']}: "
                f"95 % of draws from {d['low']:+.2f} to {d['high']:+.2f}, p = {d['p']:.4f}"
            )
    return "\n".join(lines)

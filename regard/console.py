"""What commands say and show: lines through a model, with bad ones reported and a bar; links, pictures and tables."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from regard.lines import Item

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from regard.align import Links
    from regard.answerer import Answer
    from regard.output import Output
    from regard.summarizer import Summary
    from regard.translator import Translator


def say(text: str) -> None:
    """A line on stderr, if there is one: without it, print would write into the output."""
    if sys.stderr is not None:
        print(f"regard: {text}", file=sys.stderr)  # noqa: T201


def message(error: Exception) -> str:
    """What went wrong, in a line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


class Job:
    """Lines through a model: bad ones are reported and give nothing, the others go on; a bar if somebody looks."""

    def __init__(self, strict: bool, noun: str = "lines") -> None:
        self.strict, self.noun, self.count, self.bad = strict, noun, 0, 0
        self.bar: Any = None

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

    def run(self, items: Sequence[Item], work: Callable[..., list[Any]], **options: Any) -> Iterator[Any]:
        """What becomes of each item, in order: what ``work`` makes of it, or an output with its problem."""
        from regard.output import Output

        if self.strict:
            self._refuse(items)
        good = {i: item.content for i, item in enumerate(items) if not item.problem}
        if self.bar:
            self.bar.update(self.task, total=(self.bar.tasks[0].total or 0) + len(good))
        done = dict(zip(good, work(list(good.values()), progress=self.step, **options), strict=True))
        for i, item in enumerate(items):
            found = done.get(i) or Output(problem=item.problem)
            self.count += 1
            if found.problem and self.strict:
                raise ValueError(f"{item.where}: {found.problem}")
            self.bad += bool(found.problem)
            if found.problem or found.note:
                say(f"{item.where}: {found.problem or found.note}")
            yield found

    @staticmethod
    def _refuse(items: Sequence[Item]) -> None:
        for item in items:
            if item.problem:
                raise ValueError(f"{item.where}: {item.problem}")


def printed(found: Output, number: int | None, weights: Sequence[Tensor] | None) -> list[str]:
    """text [||| links], or an n-best list: number ||| text [||| links] ||| score."""
    from regard.align import links, pharaoh

    rows = []
    for k, translation in enumerate(found.translations):
        parts = [translation.text] if weights is None else [translation.text, pharaoh(links(weights[k]))]
        rows.append(" ||| ".join(parts if number is None else [str(number), *parts, f"{translation.score:.4f}"]))
    return rows or ([""] if number is None else [])


def drawn(source: str, found: Output, weights: Sequence[Tensor], marked: Links | None = None) -> list[str]:
    """Pictures of word weights, links in brackets."""
    from regard.align import links, picture

    rows = []
    for translation, matrix in zip(found.translations, weights, strict=True):
        words = [_shown(word) for word in source.split()], [_shown(word) for word in translation.text.split()]
        if all(words):
            chosen = links(matrix) if marked is None else marked
            rows += ["", *picture(matrix, *words, marked=chosen).split("\n"), ""]
    return rows


def columns() -> int:
    """How wide a drawn document may be: the terminal if it is narrower than a page."""
    return min(100, shutil.get_terminal_size((100, 24)).columns)


def sources_drawn(summary: Summary) -> list[str]:
    """The document with a bar behind each word, as high as it was looked at, and copied words in brackets; so is the
    summary, with brackets around what was copied rather than written."""
    copied = {c.position for c in summary.copied if c.position is not None and c.probability >= 0.5}
    looked = summary.attention.sum(0)
    top = float(looked.max()) if looked.numel() else 0.0
    words = []
    for i, word in enumerate(summary.source):
        bar = " ▁▂▃▄▅▆▇█"[min(8, round(8 * float(looked[i]) / top + 0.2))] if top > 0 else " "
        text = f"[{_shown(word.text)}]" if i in copied else _shown(word.text)
        words.append(f"{text}{bar}".rstrip())
    own = [
        f"[{_shown(word)}]" if c.probability >= 0.5 else _shown(word)
        for word, c in zip(summary.words, summary.copied, strict=True)
    ]
    legend = "[copied]  looked at: ▁ a little … █ most"
    return ["", *_wrapped(own), "", *_wrapped(words), "", legend, ""]


def _wrapped(words: Sequence[str]) -> list[str]:
    lines, width, room = [""], 0, columns()
    for word in words:
        if width and width + 1 + len(word) > room:
            lines.append("")
            width = 0
        lines[-1] += f" {word}" if width else word
        width = len(lines[-1])
    return lines


def pictured(path: Path, source: str, found: Output, weights: Sequence[Tensor]) -> None:
    """The best translation's word weights and links as a figure."""
    words = source.split(), found.text.split()
    if not all(words):
        say(f"{path}: not drawn, the first line has no translation")
        return
    from regard.plot import alignment, save

    save(alignment(weights[0], *words), path)


def written(path: Path, translator: Translator, source: str, found: Output, look: dict[str, Any]) -> None:
    """The best translation, its word links and all attention as a page."""
    from regard.explorer.export import translation

    if not translation(path, translator, source, found, **look):
        say(f"{path}: not written, the first line has no translation")


def told(found: Answer, number: int | None) -> list[str]:
    """The answer, or a list: number ||| text ||| start-end ||| probability."""
    if number is None:
        return [found.text]
    rows = [(c.text, f"{c.start}-{c.end}", c.score) for c in found.candidates]
    if not found.text and not found.problem:
        rows.insert(0, ("", "", found.no_answer))
    return [f"{number} ||| {text} ||| {place} ||| {score:.4f}" for text, place, score in rows]


def as_object(question: str, found: Answer) -> dict[str, Any]:
    """An answer for JSON; places are characters of the context, from 0."""
    best = {"question": question, "answer": found.text, "start": found.start, "end": found.end}
    rest = {"score": found.score, "no_answer": found.no_answer}
    more = {name: text for name in ("problem", "note") if (text := getattr(found, name))}
    return {**best, **rest, "candidates": [c._asdict() for c in found.candidates], **more}


SHADES = " ░▒▓█"


def read_aloud(context: str, found: Answer, *, width: int | None = None, around: int = 60) -> list[str]:
    """Words of the context near the answer, which is in brackets; below each word how much the question looked at it.

    The darkest shade is the word that was looked at most; weights are means over the words of the question.
    """
    if found.attention is None:
        return []
    weights = found.attention.mean(0)
    peak = max(float(weights.max()), 1e-9)
    spans = [match.span() for match in re.finditer(r"\S+", context)]
    start, end = (found.start, found.end) if found.start is not None and found.end is not None else (-1, -1)
    inside = [i for i, (a, b) in enumerate(spans) if a < end and b > start]
    middle = inside[0] if inside else int(weights.argmax())
    rows, words, shades, room = [""], "", "", width or columns()
    for i in range(max(0, middle - around), min(len(spans), middle + around)):
        word = _shown(context[slice(*spans[i])])
        word = f"{'[' * (inside[:1] == [i])}{word}{']' * (inside[-1:] == [i])}"
        shade = SHADES[min(4, int(float(weights[i]) / peak * 4 + 0.5))] * len(word)
        if words and len(words) + len(word) > room:
            rows += [words.rstrip(), shades.rstrip()]
            words = shades = ""
        words, shades = f"{words}{word} ", f"{shades}{shade} "
    return [*rows, words.rstrip(), shades.rstrip(), ""]


def _shown(word: str) -> str:
    """A word without what would move the cursor."""
    return "".join(char if char.isprintable() else "�" for char in word)


def table(report: list[dict[str, Any]]) -> str:
    """Scores and differences for people to read."""
    lines = []
    for entry in report:
        lines.append(entry["name"])
        lines += [f"  {s['name']:5} {s['score']:6.2f}   {s['signature']}" for s in entry["scores"]]
        for d in entry.get("against", {}).get("differences", ()):
            lines.append(
                f"  {d['name']:5} {d['difference']:+6.2f}   against {entry['against']['name']}: "
                f"95 % of draws from {d['low']:+.2f} to {d['high']:+.2f}, p = {d['p']:.4f}"
            )
    return "\n".join(lines)

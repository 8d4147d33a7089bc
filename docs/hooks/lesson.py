"""A lesson: a Markdown page whose Python blocks are cells. It is the one source of its web page and of its notebook.

    ```python                    a cell; it runs when the site is built, and what it prints or ends with stands below it
    {{ f"{share:.0%}" }}         in a text: what the expression gives after the cells above, so no number is typed
    <!-- check: share > 0.9 -->  shown nowhere; if it is not true, the text around it is wrong and the build fails
    ![caption](it.html)          a live figure, which the cell above wrote; its static picture is what that cell shows
    ![caption](picture)          what is seen on the picture that the cell above shows

Pages with ``notebook: true`` in their front matter are lessons.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FRONT = re.compile(r"\A---\n(?P<front>.*?)\n---\n", re.DOTALL)
_PARTS = re.compile(
    r"^```python\n(?P<code>.*?)^```$"
    r"|^<!-- check: (?P<check>.*?) -->$"
    r"|^!\[(?P<caption>[^\]]*)\]\((?P<live>picture|[\w-]+\.html)(?: \"(?P<height>\d+)\")?\)$",
    re.DOTALL | re.MULTILINE,
)
_VALUE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
HEIGHT = 860


class WrongText(Exception):
    """A page says what its code does not."""


@dataclass
class Text:
    """Markdown, with ``{{ }}`` as written, or filled once it has run."""

    markdown: str


@dataclass
class Code:
    """A cell, and after a run what it printed and the picture it showed."""

    source: str
    printed: str = ""
    picture: str = ""


@dataclass
class Check:
    """A claim of the text."""

    claim: str


@dataclass
class Picture:
    """What a cell drew, in words and, after a run, as a file."""

    caption: str
    file: str = ""


@dataclass
class Live:
    """A page of its own in a frame; ``picture`` stands for it where nothing can run."""

    caption: str
    file: str
    height: int
    picture: str = ""


Part = Text | Code | Check | Picture | Live


def is_lesson(source: str) -> bool:
    front = _FRONT.match(source)
    return front is not None and "notebook: true" in front["front"].splitlines()


def parse(source: str) -> list[Part]:
    """The parts of a page, without its front matter.

    >>> parse('Two and two:\\n\\n```python\\n2 + 2\\n```\\n')
    [Text(markdown='Two and two:\\n\\n'), Code(source='2 + 2', printed='', picture='')]
    """
    body = _FRONT.sub("", source)
    parts: list[Part] = []
    at = 0
    for found in _PARTS.finditer(body):
        if body[at : found.start()].strip():
            parts.append(Text(body[at : found.start()]))
        at = found.end() + 1
        if found["code"] is not None:
            parts.append(Code(found["code"].rstrip("\n")))
        elif found["check"] is not None:
            parts.append(Check(found["check"]))
        elif found["live"] == "picture":
            parts.append(Picture(found["caption"]))
        else:
            parts.append(Live(found["caption"], found["live"], int(found["height"] or HEIGHT)))
    if body[at:].strip():
        parts.append(Text(body[at:]))
    return parts


def run(parts: list[Part], name: str, folder: Path) -> list[Part]:
    """The parts with all that they show; cells run in ``folder``, one after the other, and share their names.

    A picture is named after the page and its place.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    done: list[Part] = []
    with _inside(folder):
        for number, part in enumerate(parts):
            where = f"{name}, part {number}"
            if isinstance(part, Code):
                done.append(_executed(part, names, f"{name}-{number}", where))
            elif isinstance(part, Text):
                done.append(Text(_filled(part.markdown, names, where)))
            elif isinstance(part, Check):
                if not _value(part.claim, names, where):
                    raise WrongText(f"{where}: the text says {part.claim}, and that is not so")
                done.append(part)
            else:
                done.append(_placed(part, done, where))
    _all_captioned(done, name)
    return done


def _executed(cell: Code, names: dict[str, Any], picture: str, where: str) -> Code:
    tree = ast.parse(cell.source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    out = Code(cell.source)
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<{where}>", "exec"), names)
        shown = None if last is None else eval(compile(ast.Expression(last.value), f"<{where}>", "eval"), names)
        if _is_figure(shown):
            out.picture = _saved(shown, picture)
        elif shown is not None:
            print(repr(shown))
    out.printed = printed.getvalue().rstrip("\n")
    return out


def _filled(markdown: str, names: dict[str, Any], where: str) -> str:
    return _VALUE.sub(lambda found: str(_value(found[1], names, where)), markdown)


def _value(expression: str, names: dict[str, Any], where: str) -> Any:
    return eval(compile(expression.strip(), f"<{where}>", "eval"), names)


def _placed(figure: Picture | Live, before: list[Part], where: str) -> Picture | Live:
    """A figure with the picture that the cell above drew."""
    cell = before[-1] if before else None
    if not (isinstance(cell, Code) and cell.picture):
        raise WrongText(f"{where}: a figure follows no cell that shows a picture")
    if isinstance(figure, Picture):
        return Picture(figure.caption, cell.picture)
    if not Path(figure.file).is_file():
        raise WrongText(f"{where}: the cell above wrote no {figure.file}")
    return Live(figure.caption, figure.file, figure.height, cell.picture)


def _all_captioned(parts: list[Part], name: str) -> None:
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, Code) and part.picture and not isinstance(after, (Picture, Live)):
            raise WrongText(f"{name}: {part.picture} has no caption: write ![what is seen](picture) below its cell")


def _is_figure(value: Any) -> bool:
    return type(value).__module__.startswith("matplotlib.") and hasattr(value, "savefig")


def _saved(figure: Any, name: str) -> str:
    """As SVG, unless it holds so many images that a PNG is smaller."""
    from regard import plot

    many = sum(len(axes.images) for axes in figure.axes) > 12
    file = f"{name}.png" if many else f"{name}.svg"
    plot.save(figure, file, dpi=110)
    return file


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """``contextlib.chdir``, which Python 3.10 has not."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)

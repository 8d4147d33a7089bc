"""A trace as one HTML file that opens anywhere, from disk, with no network: ``Trace.to_html``.

The page's program, its style and its numbers are all inside, and its own policy lets nothing else run or load.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from regard.explorer.answers import NO_SIDE, Answers
from regard.explorer.document import ROOM, document, refuse_long
from regard.explorer.http import replies
from regard.explorer.initial_view import ViewOptions, initial_view
from regard.explorer.view import record
from regard.files.whole import write_whole
from regard.tasks.translation.output import TranslationOutput
from regard.tasks.translation.translator import Translator
from regard.trace import Trace

if TYPE_CHECKING:
    from typing_extensions import Unpack

FOLDER = Path(__file__).parent / "static"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="regard {version}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page shows a model's attention, and needs JavaScript to draw it. It loads nothing.</noscript>
<script type="application/json" id="regard-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


class PageOptions(ViewOptions, total=False):
    """Options of :func:`page`."""

    title: str
    bits: int
    room: int


def save(trace: Trace, path: str | os.PathLike[str], *, item: int = 0, **options: Unpack[PageOptions]) -> int:
    """Writes the page of a trace; options are those of :func:`page`. Its size in bytes."""
    return write(Answers(trace, name=options.get("title", ""), item=item), path, **options)


def write(answers: Answers, path: str | os.PathLike[str], **options: Unpack[PageOptions]) -> int:
    """Writes a page, whole or not at all; options are those of :func:`page`. Its size in bytes."""
    content = page(answers, **options)
    write_whole(Path(path), content)
    return len(content)


def page(
    answers: Answers,
    *,
    title: str = "",
    bits: int = 16,
    room: int = ROOM,
    **chosen: Unpack[ViewOptions],
) -> bytes:
    """The page, the same bytes for the same trace.

    Numbers have ``bits`` bits. ``room`` is the size up to which norms, rollout and vectors are added to the weights.
    ``chosen`` are options of :func:`initial_view`.
    """
    refuse_long(answers.trace)
    described = _describe(answers, title)
    opened = initial_view(answers.trace, alignment=described["alignment"], **chosen)
    found = document(
        answers.trace,
        described,
        [answers.heads(kind=one) for one in answers.trace.kinds],
        version=_version(),
        opened=opened,
        item=answers.item,
        bits=bits,
        room=room,
    )
    shown = title or (described["source"] or NO_SIDE)["text"] or "attention"
    return html(found, title=f"{shown[:80]} · regard", version=_version())


def translation(
    path: str | os.PathLike[str],
    translator: Translator,
    text: str,
    found: TranslationOutput,
    *,
    kind: str = "cross",
    layer: int | None = None,
    head: int | str | None = None,
) -> bool:
    """Writes the page of a translation, word links first, or with another ``kind`` its weights.

    Of a line that was cut, it is that of its first sentence.

    ``found`` has attention. False where there is no translation to show.
    """
    if not found.translations or not found.translations[0].attention:
        return False
    best, note = found.translations[0], found.note
    target = best.text
    if len(best.attention) > 1:
        text, target = best.attention[0].read, best.attention[0].written
        note = f"{note or 'translated sentence by sentence'}; this page shows the first"
    if not target.strip():
        return False
    answers = record(translator, text, target, own=True)
    answers.note, answers.copies = note, best.copies if len(best.attention) == 1 else ()
    view = "align" if kind == "cross" else "sentence"
    write(answers, path, title=text, view=view, kind=kind, layer=layer, head=head)
    return True


def _describe(answers: Answers, title: str) -> replies.TraceDescription:
    """What the service says of the trace, with an empty side where there is none."""
    found = answers.describe()
    found["source"], found["target"] = found["source"] or NO_SIDE, found["target"] or NO_SIDE
    found["model"] = found["model"] or title or "trace"
    return found


# --- the file ---


def html(document: Mapping[str, object], *, title: str, version: str, folder: Path = FOLDER) -> bytes:
    """A document with the program that shows it."""
    script, style = _bundle(folder / "app.js"), _bundle(folder / "app.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "data": escape_json(document)}
    whole = _PAGE.format(title=escape(title), version=escape(version), **parts)
    return whole.encode("utf-8", "replace")  # a lone surrogate in a title; in the data it is escaped


def escape_json(value: object) -> str:
    """JSON that can stand in a script element: plain ASCII, and no token of any text can end the element.

    >>> escape_json("</script><!-- é")
    '"\\\\u003c/script\\\\u003e\\\\u003c!-- \\\\u00e9"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _bundle(path: Path) -> str:
    """The page's program or style, which must reach the browser as it is here."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: this copy of regard has no built page; in a copy of the source, `npm run build` in web/ makes it"
        )
    text = path.read_bytes().decode()
    for bad in ("</script", "</style", "<!--", "\r", "\0"):
        if bad in text.lower():
            raise ValueError(f"{path}: {bad!r} cannot stand in a page; build it again in web/")
    return text


def _version() -> str:
    return str(sys.modules["regard"].__version__)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""Pairs that come with free software: the help pages of LibreOffice, and the names that Unicode gives things.

    apt-get download libreoffice-help-en-us libreoffice-help-fr unicode-cldr-core
    for package in *.deb; do dpkg -x $package PACKAGES; done
    python recipes/en-fr-small/prepare.py CORPORA --packages PACKAGES

The help has sentences in the present tense about files, pages and numbers, whose paragraphs carry the same id in both
languages (Mozilla Public License 2.0). The names (Unicode licence) are those of countries, regions, cities,
languages, currencies and of what emoji show: words of the news and of the house which Tatoeba has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from texts import clean, french

Pair = tuple[str, str]

_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-ZÀÉÈÊÎÔÇ«\"])")
_NAMED = (  # of common/main: where names stand
    "localeDisplayNames/territories/territory",
    "localeDisplayNames/languages/language",
    "dates/timeZoneNames/zone",
    "numbers/currencies/currency",
)


class _Paragraphs(HTMLParser):
    """Text of the paragraphs and headings that have an id."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._tag, self._id, self._parts = "", "", [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = dict(attrs).get("id") or ""
        if re.match(r"(par|hd)_", name):
            self._tag, self._id, self._parts = tag, name, []

    def handle_endtag(self, tag: str) -> None:
        if self._id and tag == self._tag:
            self.found.setdefault(self._id, clean("".join(self._parts)))
            self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id:
            self._parts.append(data)


def paragraphs(page: str) -> dict[str, str]:
    """
    >>> paragraphs('<p>Skip</p><p id="par_id1">Choose <b>Insert</b>.</p>')
    {'par_id1': 'Choose Insert.'}
    """
    reader = _Paragraphs()
    reader.feed(page)
    return reader.found


def sentences(pair: Pair) -> Iterator[Pair]:
    """A paragraph's sentences where both sides have as many, else the paragraph.

    >>> list(sentences(("It is open. Close it.", "Il est ouvert. Fermez-le.")))
    [('It is open.', 'Il est ouvert.'), ('Close it.', 'Fermez-le.')]
    """
    sides = [_ENDS.split(text) for text in pair]
    if len(sides[0]) == len(sides[1]):
        yield from zip(*sides, strict=True)
    else:
        yield pair


def help_pages(folder: Path) -> Iterator[Pair]:
    """Sentences and headings of LibreOffice's help, without code, menus alone and paths through menus."""
    root = folder / "usr/share/libreoffice/help"
    for path in sorted((root / "en-US/text").rglob("*.html")):
        other = root / "fr" / path.relative_to(root / "en-US")
        if not other.exists():
            continue
        here, there = (paragraphs(p.read_text(encoding="utf-8", errors="replace")) for p in (path, other))
        for name in [name for name in here if name in there]:
            for en, fr in sentences((here[name], there[name])):
                if len(en.split()) > 1 and not re.search(r"[{}\\=_<>]|\w\(|\) As |--|^\W|^(Sub|Dim|REM)\b", en):
                    yield clean(en), french(fr)


def _names(path: Path, where: Iterable[str]) -> dict[str, str]:
    found = {}
    root = ElementTree.parse(path).getroot()
    for place in where:
        for element in root.iterfind(place):
            kind = f"{place} {element.get('type') or element.get('cp')}"
            for name in (element, *element.iterfind("exemplarCity"), *element.iterfind("displayName")):
                if name.get("alt") is None and (name.text or "").strip() not in ("", "↑↑↑"):
                    found[f"{kind} {name.tag if name is not element else ''} {name.get('count', '')}"] = name.text
    return found


def names(folder: Path) -> Iterator[Pair]:
    """What Unicode's locale data calls the same thing in English and in French."""
    root = folder / "usr/share/unicode/cldr/common"
    emoji = "annotations/annotation[@type='tts']"
    regions = "localeDisplayNames/subdivisions/subdivision"
    for part, where in (
        ("main", _NAMED),
        ("subdivisions", (regions,)),
        ("annotations", (emoji,)),
        ("annotationsDerived", (emoji,)),
    ):
        here, there = (_names(root / part / f"{language}.xml", where) for language in ("en", "fr"))
        for name in [name for name in here if name in there]:
            en, fr = clean(here[name]), french(there[name])
            whole = part != "subdivisions" or len(en.split()) == len(fr.split())  # or it is "Province de Bua"
            if whole and not re.search(r"[()/:²]|skin tone", en + fr):
                yield en, fr

"""Tokens as labels: visible whitespace and controls, right-to-left text, and fonts that have the characters.

matplotlib ≥ 3.11 orders right-to-left text and joins Arabic letters. For older versions this module orders each word;
Arabic letters stay unjoined.
"""

from __future__ import annotations

import sys
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.font_manager import FontEntry

LOCK = RLock()  # held while process-wide settings are changed
LONGEST = 24  # characters of a label
FONT = "DejaVu Sans"  # comes with matplotlib
_JOINERS = "\u200c\u200d"  # parts of Persian words and of emoji
_RIGHT_TO_LEFT = ("R", "AL", "RLE", "RLO", "RLI")
_GOOD = ("Noto Sans", "Source Han Sans", "WenQuanYi", "Arial Unicode MS", "PingFang", "Hiragino", "Microsoft", "Malgun")
_POOR = ("Last Resort", "STIX", "cm", "DejaVu Math")  # placeholder boxes, and fonts for formulas


# --- labels ---


def label_of(token: str) -> str:
    r"""A token as a label: one line, no invisible characters, limited in length.

    >>> label_of("the"), label_of(" "), label_of("a\nb\t"), label_of("\x07"), label_of("\u202e"), label_of("")
    ('the', '␣', 'a⏎b⇥', '␇', '‹U+202E›', '∅')
    >>> label_of("Donaudampfschifffahrtsgesellschaft")
    'Donaudampfsc…gesellschaft'
    """
    if not token:
        return "∅"
    if not token.strip(" "):
        return "␣" * len(token)
    if len(token) > LONGEST:
        token = f"{token[: LONGEST // 2]}…{token[-LONGEST // 2 :]}"
    lone = all(char in _JOINERS for char in token)
    text = "".join(_visible(char, lone) for char in token)
    return f"◌{text}" if unicodedata.combining(text[0]) else text


def _visible(char: str, lone: bool) -> str:
    if char in "\n\r\t\x7f":
        return {"\n": "⏎", "\r": "␍", "\t": "⇥", "\x7f": "␡"}[char]
    if ord(char) < 32:
        return chr(0x2400 + ord(char))  # Unicode's control pictures
    if (char in _JOINERS and not lone) or char == "\u00a0":
        return char
    return f"‹U+{ord(char):04X}›" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp") else char


# --- reading order ---


def right_to_left(words: Iterable[str]) -> bool:
    """Whether the first letter with a strong direction is right-to-left.

    >>> right_to_left(["«", "שלום"]), right_to_left(["3", "ok"])
    (True, False)
    """
    for char in (char for word in words for char in word):
        direction = unicodedata.bidirectional(char)
        if direction == "L" or direction in _RIGHT_TO_LEFT:
            return direction != "L"
    return False


def has_right_to_left(text: str) -> bool:
    """Whether any letter is right-to-left."""
    return any(unicodedata.bidirectional(char) in _RIGHT_TO_LEFT for char in text)


def visual_order(text: str) -> str:
    """The text to give to matplotlib so that the label reads correctly."""
    if not has_right_to_left(text) or shapes_text():
        return text
    if any(unicodedata.bidirectional(char) == "AL" for char in text):
        _warn_once("Arabic letters are drawn unjoined by this matplotlib: 3.11 and later join them")
    return visual(text)


def visual(text: str) -> str:
    """The characters in visual order, left to right, of a word or phrase with right-to-left letters.

    Runs of left-to-right letters and digits keep their order, marks stay with their letter, brackets are mirrored.

    >>> [f"{ord(c):04x}" for c in visual("אב(12)")]
    ['0028', '0031', '0032', '0029', '05d1', '05d0']
    """
    from regard.text.graphemes import clusters

    base = right_to_left([text])
    runs: list[tuple[bool, list[str]]] = []  # (from the right, clusters)
    for cluster in clusters(text):
        direction = unicodedata.bidirectional(cluster[0])
        if direction in ("EN", "AN", "L"):
            flipped = False
        elif direction in _RIGHT_TO_LEFT:
            flipped = True
        else:
            flipped = base
        if not runs or runs[-1][0] != flipped:
            runs.append((flipped, []))
        runs[-1][1].append(cluster)
    seen = ["".join(map(_mirror, reversed(part))) if flipped else "".join(part) for flipped, part in runs]
    return "".join(reversed(seen) if base else seen)


def _mirror(cluster: str) -> str:
    pairs = "()[]{}<>«»‹›"
    at = pairs.find(cluster)
    return cluster if at < 0 or not unicodedata.mirrored(cluster) else pairs[at ^ 1]


def shapes_text() -> bool:
    """Whether matplotlib orders and joins letters itself."""
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


# --- fonts ---


def families(texts: Iterable[str]) -> list[str]:
    """Fonts that together have all characters of the texts, the default first. Warns once about missing ones."""
    missing = {char for text in texts for char in text if not char.isspace() and char not in _JOINERS}
    missing = {char for char in missing if ord(char) > 127 and not unicodedata.combining(char)}
    chosen = [FONT]
    missing -= _glyphs_of(FONT, missing)
    for name in _other_fonts() if missing else ():
        if had := _glyphs_of(name, missing):
            chosen.append(name)
            missing -= had
        if not missing:
            break
    if missing:
        some = " ".join(sorted(missing)[:8]) + (" …" if len(missing) > 8 else "")
        _warn_once(
            f"no installed font has {some} ({_script(missing)}): PNG and PDF will show boxes, SVG keeps the text for "
            "its viewer's fonts. Install one that has them, for example of the Noto family, and start again"
        )
    return [*chosen, "sans-serif"]


def _script(chars: Iterable[str]) -> str:
    """CJK, HANGUL, THAI …: the first word of the characters' names."""
    return ", ".join(sorted({unicodedata.name(char, "unnamed").split()[0] for char in chars}))


def _other_fonts() -> list[str]:
    """Names of the other installed fonts, preferred ones first."""
    return sorted(_files(_count()).keys() - {FONT}, key=lambda name: (not name.startswith(_GOOD), "Mono" in name, name))


def _count() -> int:
    """The number of fonts that matplotlib knows; it may grow at any time."""
    from matplotlib import font_manager

    return len(font_manager.fontManager.ttflist)


@lru_cache(maxsize=2)
def _files(count: int) -> dict[str, Any]:
    """A file of each font, upright and of normal weight if available."""
    from matplotlib import font_manager

    entries = [entry for entry in font_manager.fontManager.ttflist if not entry.name.startswith(_POOR)]
    entries.sort(key=lambda e: (e.style == "normal", e.weight in (400, "normal", "regular")))
    return {entry.name: _file(entry) for entry in entries}


def _file(entry: FontEntry) -> Any:
    """The path of a font; since matplotlib 3.11 with its index in a collection."""
    from matplotlib import font_manager

    path = getattr(font_manager, "FontPath", None)
    return entry.fname if path is None else path(entry.fname, entry.index)


def _glyphs_of(name: str, chars: Iterable[str]) -> set[str]:
    """The characters that a font has."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(_files(_count())[name])
    except (KeyError, OSError, RuntimeError):  # deleted since it was listed, or damaged
        return set()
    return {char for char in chars if font.get_char_index(ord(char))}


@lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    frame, level = sys._getframe(1), 2
    while frame.f_back and __package__ in str(frame.f_globals.get("__name__")):  # up to the caller of this package
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress matplotlib's warnings about missing characters: `families` has warned already."""
    with LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def widths(texts: Sequence[str], size: float, family: Sequence[str], weight: str = "normal") -> list[float]:
    """The drawn widths of texts, in points."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    renderer: Any = RendererAgg(8, 8, 72)
    font = FontProperties(family=list(family), size=size, weight=weight)
    with quiet():
        return [float(renderer.get_text_width_height_descent(text, font, False)[0]) for text in texts]

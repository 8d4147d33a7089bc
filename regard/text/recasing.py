"""Recasing: restore spaces, accents and capitals in the output of a lower-case vocabulary.

BERT's subwords give words and punctuation marks, mostly without case and accents: ``amanda ' s at 8 : 30 .`` The
document spells nearly every word of its summary; rules handle the rest:

    >>> document = Spelling.of("Amanda: I'm at Café Lux at 8:30! ¶ Bob: Are you?", str.lower)
    >>> document.text("bob meets amanda at café lux at 8 : 30 . she ' s there .".split())
    "Bob meets Amanda at Café Lux at 8:30. She's there."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

BREAK = "¶"  # a line end, as in regard.data.documents
_STOPS, _CLOSING, _OPENING = {*".!?"}, {*".,!?;:)]}%…”"}, {*"([{“#@"}
_MONEY, _HYPHENS, _QUOTES, _APOSTROPHES = {*"$£€"}, {*"-/_–"}, {'"', "'", "’"}, {"'", "’"}
_ENDINGS = {"s", "t", "m", "d", "re", "ve", "ll", "clock", "all", "em"}  # what may follow an apostrophe
# Words that are capitalized only at the start of a sentence.
_FEW = """
a about after all also am an and any anyway are as at be because been before but by bye can cause come could did do does
doing don down even ever for from get go going good got great had has have he hello her here hey hi him his how if in
into is it its just know let like lol look maybe me more my need never new nice no nope not nothing now of oh ok okay on
once one only or our out please really right same see she should since so some sorry sounds still such sure take thank
thanks that the their them then there these they thing this those though to too true try until up us very wait was we
well were what whatever when where which while who why will wish with wow yeah yep yes you your
"""
_COMMON = frozenset(_FEW.split())
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SPEAKER = 3  # the most words of a speaker's name before a colon


class Word(NamedTuple):
    """A word or mark of a text, at [start, end); ``key`` is its form in the vocabulary."""

    key: str
    text: str
    start: int
    end: int


class Written(NamedTuple):
    """A word or mark as it is written; ``glued``: without a space before it."""

    text: str
    glued: bool


class Spelling:
    """How a document spells its words. The document is one line, with ¶ for line ends."""

    def __init__(self, words: Sequence[Word]) -> None:
        self.words = words
        self._starts = _starts(words)
        self._inside: dict[str, Counter[str]] = {}
        self._first: dict[str, Counter[str]] = {}
        for word, start in zip(words, self._starts, strict=True):
            known = self._first if start else self._inside
            known.setdefault(word.key, Counter())[word.text] += 1
        touching = [b.start == a.end for a, b in pairwise(words)]
        keys = [word.key for word in words]
        pairs = [*zip(keys, keys[1:], touching, strict=False)]
        self.glued = {(a, b) for a, b, touch in pairs if touch}
        self.apart = {(a, b) for a, b, touch in pairs if not touch} - self.glued
        self.runs = {(a, b, c) for (a, b, x), (_, c, y) in pairwise(pairs) if x and y}

    @classmethod
    def of(cls, line: str, key: Callable[[str], str]) -> Spelling:
        """The spelling of a line; its words are runs of letters and digits, and single marks."""
        found = _TOKEN.finditer(line)
        return cls([Word(key(m.group()), m.group(), m.start(), m.end()) for m in found])

    def spell(self, key: str, at: int | None = None) -> str:
        """A word as the document spells it at ``at``, else most often; unchanged if it does not occur.

        A capital at the start of a sentence does not count as evidence for a common word.
        """
        if at is not None and self.words[at].key == key and not self._starts[at]:
            return self.words[at].text
        if key in self._inside:
            return self._inside[key].most_common(1)[0][0]
        if key in self._first:
            text = self._first[key].most_common(1)[0][0]
            return key if key in _COMMON else text
        return key

    def write(self, keys: Sequence[str], places: Sequence[int | None] = (), *, cased: bool = False) -> list[Written]:
        """The spelling of a summary's words and marks; ``places`` are the document words they were copied from.

        With ``cased`` only spaces are restored.
        """
        glued = together(keys, self)
        at = places or [None] * len(keys)
        texts = [key if cased else self.spell(key, j) for key, j in zip(keys, at, strict=True)]
        if not cased:
            begins = _sentences(keys, glued)
            texts = [_capital(text) if first else text for text, first in zip(texts, begins, strict=True)]
        return [Written(*both) for both in zip(texts, glued, strict=True)]

    def text(self, keys: Sequence[str]) -> str:
        """The words and marks as one text."""
        return join_words(self.write(keys))


def join_words(words: Iterable[Written]) -> str:
    """The text of words: spaces between them, and line ends for ¶.

    >>> join_words([Written("Hi", False), Written("!", True), Written("¶", False), Written("Bye", False)])
    'Hi!\\nBye'
    """
    text = "".join(word.text if word.glued else f" {word.text}" for word in words)
    return text.strip().replace(f" {BREAK} ", "\n")


def space_words(words: Sequence[str]) -> str:
    """The text of words and marks, spaced by rules alone.

    >>> space_words('the parents \\' " big - day " is on 5 , 000 lists , isn \\' t it ?'.split())
    'the parents\\' "big-day" is on 5,000 lists, isn\\'t it?'
    """
    return join_words(Spelling([]).write(words, cased=True))


def together(words: Sequence[str], document: Spelling) -> list[bool]:
    """Whether each word or mark follows the one before it without a space."""
    found: list[bool] = []
    open_quotes: set[str] = set()
    after = False  # whether the next one is glued to this one
    for i, word in enumerate(words):
        before = words[i - 1] if i else BREAK
        glue = after
        after = False
        if word in _QUOTES:
            own, after = _quote(words, i, open_quotes)
            glue = glue or own
        elif BREAK not in (word, before):
            glue = glue or _touching(words, i, document)
        found.append(glue and i > 0)
    return found


def _touching(words: Sequence[str], i: int, document: Spelling) -> bool:
    """Whether no space separates two words, neither of them a line end, the second not a quote or apostrophe."""
    before, word = words[i - 1], words[i]
    two = words[i - 2] if i > 1 else ""
    if word in _CLOSING or before in _OPENING or (before in _MONEY and word[0].isdigit()):
        return True
    if before in _CLOSING:
        number = before in ".,:" and two[-1:].isdigit() and word[0].isdigit() and (before != "," or len(word) == 3)
        letters = before == "." and len(two) == len(word) == 1 and two.isalpha() and word.isalpha()
        return number or letters or (two, before, word) in document.runs
    if word in _HYPHENS or before in _HYPHENS:
        return (before, word) not in document.apart
    return (before, word) in document.glued and before not in _QUOTES


def _quote(words: Sequence[str], i: int, opened: set[str]) -> tuple[bool, bool]:
    """Whether a quotation mark or apostrophe is glued to the word before it, and whether the next is glued to it."""
    mark, before, after = words[i], words[i - 1] if i else BREAK, words[i + 1] if i + 1 < len(words) else BREAK
    if mark in _APOSTROPHES and before[-1].isalnum():
        if after in _ENDINGS or (before in ("o", "y") and after[0].isalnum()):
            return True, True
        if before.endswith("s") and mark not in opened:
            return True, False
    if mark in opened:
        opened.discard(mark)
        return True, False
    opened.add(mark)
    return False, True


def _sentences(words: Sequence[str], glued: Sequence[bool]) -> list[bool]:
    """Where sentences begin: at the start, on a new line, after a stop not of an abbreviation or an ellipsis."""
    found, first = [], True
    for i, word in enumerate(words):
        begins = first and word[0].isalnum()
        found.append(begins and not (i and glued[i] and words[i - 1] in _STOPS))
        if word in _STOPS:
            before = words[i - 1] if i else ""
            first = not (word == "." and (before == "." or (len(before) == 1 and before.isalpha())))
        else:
            first = word == BREAK or (first and not begins)
    return found


def _starts(words: Sequence[Word]) -> list[bool]:
    """Where a document's sentences begin. A speaker's name, before a colon at the start of a line, does not count."""
    found, first, line = [], True, 0
    for i, word in enumerate(words):
        speaker = False
        if i == line:
            names = [w.key for w in words[i : i + _SPEAKER + 1]]
            speaker = ":" in names and BREAK not in names[: names.index(":")]
        found.append(first and not speaker and word.text[0].isalnum())
        if word.key == BREAK:
            line = i + 1
        first = word.key in _STOPS or word.key in (BREAK, ":") or (first and not word.text[0].isalnum())
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.islower() else text

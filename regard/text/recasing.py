"""Words of a lower-case vocabulary as people write them: spaces, the document's own letters, capitals at the start.

BERT's subwords are words and marks, mostly without case and accents: ``amanda ' s at 8 : 30 .`` What is lost comes back
from the document, which has its own spelling of nearly everything that a summary says, and from rules for the rest:

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
_ENDINGS = {"s", "t", "m", "d", "re", "ve", "ll", "clock", "all", "em"}  # what an apostrophe has behind it
# Words that have a capital at the start of a sentence and nowhere else.
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
_SPEAKER = 3  # words that a speaker's name before a colon may have


class Word(NamedTuple):
    """A word or mark of a text, [start, end) of it, and its ``key``: what is left of it in the vocabulary."""

    key: str
    text: str
    start: int
    end: int


class Written(NamedTuple):
    """A word or mark as it is written; ``glued``: right behind the one before."""

    text: str
    glued: bool


class Spelling:
    """How a document, in one line with ¶ for its line ends, spells its words."""

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
        """Of a line, whose words are runs of letters and digits, and single marks."""
        found = _TOKEN.finditer(line)
        return cls([Word(key(m.group()), m.group(), m.start(), m.end()) for m in found])

    def spell(self, key: str, at: int | None = None) -> str:
        """A word as the document has it: there where it was copied from, or mostly; as it is if it has it nowhere.

        The capital of a sentence's first word tells nothing of a common one.
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
        """Words and marks of a summary as they are to be written; ``places`` are the words that they were copied from.

        ``cased``: they have their letters, and only spaces are put right.
        """
        glued = together(keys, self)
        at = places or [None] * len(keys)
        texts = [key if cased else self.spell(key, j) for key, j in zip(keys, at, strict=True)]
        if not cased:
            begins = _sentences(keys, glued)
            texts = [_capital(text) if first else text for text, first in zip(texts, begins, strict=True)]
        return [Written(*both) for both in zip(texts, glued, strict=True)]

    def text(self, keys: Sequence[str]) -> str:
        """All of it as one text."""
        return join_words(self.write(keys))


def join_words(words: Iterable[Written]) -> str:
    """Words with spaces where they belong, and lines.

    >>> join_words([Written("Hi", False), Written("!", True), Written("¶", False), Written("Bye", False)])
    'Hi!\\nBye'
    """
    text = "".join(word.text if word.glued else f" {word.text}" for word in words)
    return text.strip().replace(f" {BREAK} ", "\n")


def space_words(words: Sequence[str]) -> str:
    """Words and marks with spaces where they belong, by rules alone.

    >>> space_words('the parents \\' " big - day " is on 5 , 000 lists , isn \\' t it ?'.split())
    'the parents\\' "big-day" is on 5,000 lists, isn\\'t it?'
    """
    return join_words(Spelling([]).write(words, cased=True))


def together(words: Sequence[str], document: Spelling) -> list[bool]:
    """For each word or mark: does it stand right behind the one before it?"""
    found: list[bool] = []
    open_quotes: set[str] = set()
    after = False  # is the next one glued to this one, whatever it is?
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
    """Is this word, no quote or apostrophe, right behind the one before it, neither being a line end?"""
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
    """A quotation mark or an apostrophe: is it right behind the word before, and the next right behind it?"""
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
    """Where sentences begin: at the start, on a new line, and behind a stop that is none of an abbreviation or of …"""
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
    """Where a document's sentences begin; who speaks, before a colon at the start of a line, is no such beginning."""
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

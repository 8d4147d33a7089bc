"""What is done to text before it is trained on: cleaning, judging pairs, and knowing what must not be seen.

Words here are what ``words`` gives: letters and digits, without case and punctuation.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

LONGEST = 80  # words of a side
RUN, LEAST, START = 10, 6, 4  # words: of a shared run, of a sentence that is looked for inside others, of the index

_ODD = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
_SPACES = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]+")


# --- cleaning ---


def clean(text: str) -> str:
    """Composed characters, plain single spaces, nothing that cannot be seen.

    >>> clean("Où  est-il\u202f?")
    'Où est-il ?'
    """
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text).translate(_ODD)).strip()


def french(text: str) -> str:
    """Cleaned, with one way of writing: straight apostrophes, a space before ; : ! ? and inside « ».

    >>> french("Qu’est-ce que c’est? «Rien»!")
    "Qu'est-ce que c'est ? « Rien » !"
    """
    text = clean(text).replace("’", "'").replace("ʼ", "'")
    text = re.sub(r"(?<=\S)»", " »", re.sub(r"«(?=\S)", "« ", text))
    return re.sub(r"(?<=[^\s?!;:])([?!;:]+)(?=[\s?!;.,)]|$)", r" \1", text)


def without_markup(text: str) -> str:
    """Text of the Python documentation without reStructuredText.

    >>> without_markup("Calls :func:`~os.path.join` with ``x``, see :ref:`this page <there>`::")
    'Calls join with x, see this page:'
    """
    text = re.sub(r"\\ ", "", text)
    text = re.sub(r":[\w:+.-]+:`([^`<]+?)\s*<[^`>]*>`", r"\1", text)
    text = re.sub(r":[\w:+.-]+:`~[^`]*?([^`.]+)`", r"\1", text)
    text = re.sub(r":[\w:+.-]+:`[!.]?([^`]+)`", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`>]*>`__?", r"\1", text)
    text = re.sub(r"``([^`]+)``", r"\1", text)
    text = re.sub(r"(?<!\w)(\*\*?)(?=\S)([^*]+?)(?<=\S)\1(?!\w)", r"\2", text)
    return re.sub(r"::$", ":", text)


def joined(text: str, language: str) -> str:
    """Tokenised text written as usual.

    >>> joined("`` I 've seen it , '' he said -LRB- twice -RRB- .", "en")
    '"I\\'ve seen it," he said (twice).'
    >>> joined("J' ai vu l' homme ; où va -t-il ?", "fr")
    "J'ai vu l'homme ; où va-t-il ?"
    """
    for token, sign in (("-LRB-", "("), ("-RRB-", ")"), ("``", '"'), ("''", '"'), ("-LSB-", "["), ("-RSB-", "]")):
        text = text.replace(token, sign)
    text = _quotes(text)
    text = re.sub(r"\s+([,.)\]…])", r"\1", text)
    text = re.sub(r"([(\[])\s+", r"\1", text)
    if language == "fr":
        return clean(re.sub(r"\s+(-[a-zà-ÿ])", r"\1", re.sub(r"(\w')\s+(?=\w)", r"\1", text)))
    text = re.sub(r"\s+([;:!?%])", r"\1", text)
    return clean(re.sub(r"\s+(n't|'(?:s|m|re|ve|ll|d|S)\b)", r"\1", text))


def spoken(text: str) -> str:
    """A unit of a novel without the dash before speech, and without quotation marks whose other half is elsewhere.

    >>> spoken("-- Sainte Vierge !"), spoken("' Holy Virgin!"), spoken('I am tired. "')
    ('Sainte Vierge !', 'Holy Virgin!', 'I am tired.')
    """
    text = re.sub(r"\\?_ ?", "", re.sub(r"(\w) 't\b", r"\1't", text))
    text = re.sub(r"^[-–—]+\s*|^'\s+|\s+'$", "", text)
    text = text.replace(" ' ", " ")
    return clean(text if text.count('"') % 2 == 0 else text.replace('"', ""))


def _quotes(text: str) -> str:
    """Straight double quotes that stand alone, joined to what they enclose: every other one opens."""
    parts = text.split('"')
    for k in range(1, len(parts), 2):
        parts[k] = parts[k].strip()
    return '"'.join(parts)


# --- judging ---

_ENGLISH = frozenset(re.findall(r"\w+", "the of and to in is that for it with as was be by this are or not you he she"))
_FRENCH = frozenset(
    re.findall(r"\w+", "le la les de des du et un une est que qui dans pour par sur au aux ne pas il ce")
)


def words(text: str) -> list[str]:
    """
    >>> words("Don't STOP, 2 times!")
    ['don', 't', 'stop', '2', 'times']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def lexicon(texts: Iterable[str]) -> set[str]:
    """All their words.

    >>> sorted(lexicon(["Il est là.", "Est-il ?"]))
    ['est', 'il', 'là']
    """
    return {word for text in texts for word in words(text)}


def unheard(text: str, heard: set[str], source: str) -> list[str]:
    """Words that are neither in this lexicon nor copied from the source: perhaps invented. Numbers do not count.

    >>> unheard("Le hlicopter de Tom a 2 ans.", {"le", "de", "a", "ans"}, "Tom's helicopter is 2.")
    ['hlicopter']
    """
    own = set(words(source))
    return [word for word in words(text) if word not in heard and word not in own and not word.isnumeric()]


def key(text: str) -> str:
    """What two sentences that differ in case and punctuation alone share."""
    return " ".join(words(text))


def template(text: str) -> str:
    """The same without numbers: sentences of one mould have one."""
    return re.sub(r"\d+", "0", key(text))


def fault(en: str, fr: str) -> str | None:
    """What is wrong with a pair, if it does not look like a sentence and its translation.

    >>> fault("The cat sleeps.", "Le chat dort.")
    >>> fault("See page 12.", "Voir page 47.")
    'other numbers'
    """
    sides = words(en), words(fr)
    if not all(sides):
        return "no words"
    if max(map(len, sides)) > LONGEST:
        return "too long"
    shorter, longer = sorted((len(en), len(fr)))
    if longer > 2.2 * shorter + 12:
        return "lengths differ"
    for text in (en, fr):
        if sum(c.isalpha() or c.isspace() for c in text) < 0.7 * len(text):
            return "hardly text"
    numbers = [set(re.findall(r"\d+", text)) for text in (en, fr)]
    if numbers[0] - numbers[1] and numbers[1] - numbers[0]:
        return "other numbers"
    if len(sides[0]) > 3 and sides[0] == sides[1]:
        return "not translated"
    for side, own, other in ((sides[0], _ENGLISH, _FRENCH), (sides[1], _FRENCH, _ENGLISH)):
        counts = [sum(word in known for word in side) for known in (own, other)]
        if counts[1] > max(2, 2 * counts[0]):
            return "another language"
    return None


def looped(text: str) -> bool:
    """Does it say the same three words, or one word, again and again?

    >>> looped("il est il est il est il est là"), looped("Il est là, il est là.")
    (True, False)
    """
    found = words(text)
    threes = Counter(zip(found, found[1:], found[2:], strict=False))
    return any(n > 2 for n in threes.values()) or any(len(set(found[i : i + 4])) == 1 for i in range(len(found) - 3))


def alike(text: str, other: str) -> float:
    """How much two texts share of their words and pairs of words, from 0 to 1 (F₁).

    >>> alike("Il est là.", "il est là !"), round(alike("Il est là.", "Elle est là."), 2), alike("Il est", "On va")
    (1.0, 0.6, 0.0)
    """
    sides = [words(text), words(other)]
    counts = [Counter(side) + Counter(pairwise(side)) for side in sides]
    shared = sum((counts[0] & counts[1]).values())
    return 2 * shared / max(1, sum(sum(count.values()) for count in counts))


# --- what must not be seen ---


class Guard:
    """Sentences kept out of training: whole, and in runs of words inside others.

    A text is refused if it is one of them, but for case and punctuation; if it shares RUN words in a row with one; or
    if it contains one of at least LEAST words.

    >>> guard = Guard(["The quick brown fox jumps over it."])
    >>> guard.why("the QUICK brown fox jumps over it")
    'same sentence'
    >>> guard.why("He says the quick brown fox jumps over it, often.")
    'shared run'
    >>> guard.why("The quick brown fox sleeps.")
    """

    def __init__(self, texts: Iterable[str] = (), *, runs: bool = True) -> None:
        self._whole: set[str] = set()
        self._runs: dict[str, set[tuple[str, ...]]] = {}
        self.add(texts, runs=runs)

    def __len__(self) -> int:
        return len(self._whole)

    def add(self, texts: Iterable[str], *, runs: bool = True) -> None:
        for text in texts:
            found = words(text)
            if not found:
                continue
            self._whole.add(" ".join(found))
            size = min(RUN, len(found))
            if runs and size >= LEAST:
                for i in range(len(found) - size + 1):
                    run = tuple(found[i : i + size])
                    self._runs.setdefault(" ".join(run[:START]), set()).add(run)

    def why(self, text: str) -> str | None:
        found = words(text)
        if " ".join(found) in self._whole:
            return "same sentence"
        for i in range(len(found) - LEAST + 1):
            for run in self._runs.get(" ".join(found[i : i + START]), ()):
                if tuple(found[i : i + len(run)]) == run:
                    return "shared run"
        return None

"""The tokens that may continue a hypothesis when all of its words must be known.

A word is checked as it grows: a prefix that no known word has is never written, so every hypothesis can be continued,
letter by letter if necessary. Forbidden tokens get probability 0 and the rest keep theirs: a hypothesis with no likely
continuation loses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

from torch import Tensor

from regard.text.lexicon import Lexicon, plain, runs

LIKELIEST = 32  # tokens checked in each step ...
STEP = 256  # ... and so many more, until one of them is allowed


class _Next(NamedTuple):
    """The unfinished word after a token."""

    rest: bytes  # the word that is unfinished after it, with the bytes of a character that is
    unknown: tuple[str, ...]  # words it has finished that the lexicon does not know
    unknown_start: str | None  # the letters that are unfinished, if no word of the lexicon begins so
    cut: bytes  # those of a character that is not whole, which follows them


class KnownWords:
    """For each sentence the words of a lexicon, and some of its own: those of the source, as they are written there.

    It serves one search, and the next after ``start``.

    ``pieces`` are the bytes of each token, none for special tokens; ``eos`` ends a word as a space does. Only the most
    likely tokens are checked, so samples are drawn from them.
    """

    def __init__(self, lexicon: Lexicon, pieces: Sequence[bytes], own: Sequence[Collection[str]], eos: int) -> None:
        self._lexicon, self._pieces, self._eos = lexicon, pieces, eos
        self._own = [{plain(word) for word in some} for some in own]
        self._spelled = [{word.encode() for word in (*some, *map(plain, some))} for some in own]
        # of each row, its sentence and its unfinished word; None where it has ended
        self._rows: list[tuple[int, bytes | None]] = []
        self._seen: dict[tuple[bytes, int], _Next | None] = {}

    def start(self, beams: int) -> None:
        """A search begins, with so many hypotheses of each sentence."""
        self._rows = [(sentence, b"") for sentence in range(len(self._own)) for _ in range(beams)]

    def follow(self, rows: Tensor, tokens: Tensor) -> None:
        """Continue with these rows, each of which has read a token."""
        before = [self._rows[row] for row in rows.tolist()]
        self._rows = [
            (one, self._after(rest, token)) for (one, rest), token in zip(before, tokens.tolist(), strict=True)
        ]

    def apply(self, log_p: Tensor, free: Tensor | None = None) -> Tensor:
        """−inf for what may not come; log_p is [n, k, V]. In sentences that are ``free`` [n] anything may."""
        n, k, _ = log_p.shape
        held = [True] * n if free is None else (~free).tolist()
        rows = [row for row, (_, rest) in enumerate(self._rows) if held[row // k] and rest is not None]
        found = log_p.flatten(0, 1).clone()
        some = found[rows]
        values, tokens = some.topk(min(LIKELIEST, some.shape[-1]), -1)
        counts = (values > -math.inf).sum(-1).tolist()  # of each row, how many of them may come for other reasons
        for i, (row, likely, count) in enumerate(zip(rows, tokens.tolist(), counts, strict=True)):
            may = [token for token in likely[:count] if self._known(row, token)]
            if may := may or self._search_further(row, some[i]):
                found[row] = -math.inf
                found[row, may] = some[i, may]
        return found.view_as(log_p)

    def _search_further(self, row: int, log_p: Tensor) -> list[int]:
        """The most likely allowed tokens, where none of the first ones is allowed; none, and so any, if no token is."""
        order = log_p.argsort(descending=True)[: int((log_p > -math.inf).sum())].tolist()
        for start in range(LIKELIEST, len(order), STEP):
            if may := [token for token in order[start : start + STEP] if self._known(row, token)]:
                return may
        return []

    def unknown(self, sentence: int, tokens: Sequence[int]) -> list[int]:
        """The first tokens of an output that write a word that is not known; none if there is no such word."""
        rest, word = b"", list[int]()
        for token in tokens:
            if not self._may(sentence, rest, token):
                first = self._pieces[token][:1]
                apart = first < b"\x80" and not first.isalpha()  # it ends the word before
                return [token] if apart and not self._may(sentence, b"", token) else [*word, token]
            found = self._next(rest, token)
            assert found is not None
            word, rest = ([*word, token] if rest and found.rest.startswith(rest) else [token]), found.rest
        return []

    def _known(self, row: int, token: int) -> bool:
        sentence, rest = self._rows[row]
        return rest is not None and self._may(sentence, rest, token)

    def _may(self, sentence: int, rest: bytes, token: int) -> bool:
        found = self._next(rest, token)
        if found is None or any(word not in self._own[sentence] for word in found.unknown):
            return False
        start, own = found.unknown_start, self._own[sentence]
        if start is None:
            return True
        if not found.cut:
            return any(word.startswith(start) for word in own)
        begun = found.rest, start.encode() + found.cut
        over = start in own and _no_letter(found.cut)
        return over or any(word.startswith(begun) for word in self._spelled[sentence])

    def _after(self, rest: bytes | None, token: int) -> bytes | None:
        """The unfinished word after a token; invalid bytes (a prefix may have them) start a new word."""
        if rest is None or token == self._eos:
            return None
        found = self._next(rest, token)
        return found.rest if found else b""

    def _next(self, rest: bytes, token: int) -> _Next | None:
        """None: bytes that are no text."""
        key = rest, token
        if key not in self._seen:
            self._seen[key] = self._read(rest, token)
        return self._seen[key]

    def _read(self, rest: bytes, token: int) -> _Next | None:
        text, cut = _characters(rest + (b" " if token == self._eos else self._pieces[token]))
        if "\ufffd" in text:
            return None
        *over, last = runs(text)
        unknown = tuple(word for word in map(plain, over) if word not in self._lexicon)
        known = self._lexicon.begins(last, cut)
        if cut and (not last or last in self._lexicon):
            known = known or _no_letter(cut)
        return _Next(last.encode() + cut, unknown, None if known else plain(last), cut)


def _characters(raw: bytes) -> tuple[str, bytes]:
    """Text, and the bytes of a last character that is not whole; � for what is no text.

    >>> _characters("été".encode()[:-1])
    ('ét', b'\\xc3')
    """
    for size in range(1, min(4, len(raw) + 1)):
        lead = raw[-size]
        if lead >= 0xC0:  # the first byte of a character of two, three or four
            whole = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            if size < whole:
                return raw[:-size].decode(errors="replace"), raw[-size:]
            break
        if lead < 0x80:
            break
    return raw.decode(errors="replace"), b""


@cache
def _no_letter(cut: bytes) -> bool:
    """Whether a character that begins with these bytes can be something else than a letter.

    >>> _no_letter(b"\\xc3"), _no_letter(b"\\xc4")  # × is none; of Latin Extended-A all are
    (True, False)
    """
    missing = (2 if cut[0] < 0xE0 else 3 if cut[0] < 0xF0 else 4) - len(cut)
    for k in range(64**missing):
        more = bytes(0x80 | (k >> 6 * i) & 0x3F for i in reversed(range(missing)))
        character = (cut + more).decode(errors="replace")
        if len(character) == 1 and character != "\ufffd" and not character.isalpha():
            return True
    return False

"""What hypotheses may go on with where every word that they write has to be known.

A word is judged as it grows: letters that no word begins with are not written in the first place. What may not come has
probability 0 and the rest keeps its own, so that a hypothesis that was led to where nothing likely may come loses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.lexicon import Lexicon, plain

LIKELIEST = 32  # tokens looked at in each step ...
STEP = 256  # ... and so many more, until one of them may come
_LETTERS = re.compile(r"[^\W\d_]+")


class _Next(NamedTuple):
    """What a token makes of an unfinished word."""

    rest: bytes  # the word that is unfinished after it, with the bytes of a character that is
    words: tuple[str, ...]  # words it has finished that the lexicon does not know
    start: bytes | None  # what is unfinished, if no word of the lexicon begins with it


class KnownWords:
    """For each sentence the words of a lexicon, and some of its own: those of the source, say.

    ``pieces`` are the bytes of each token, none for those that are no text; ``eos`` ends a word as a space does. Only
    the likeliest tokens are looked at, so what is drawn is drawn from them.
    """

    def __init__(self, lexicon: Lexicon, pieces: Sequence[bytes], own: Sequence[Collection[str]], eos: int) -> None:
        self._lexicon, self._pieces, self._eos = lexicon, pieces, eos
        self._own = [{plain(word) for word in some} for some in own]
        self._starts = [[word.encode() for word in some] for some in self._own]
        self._rows: list[tuple[int, bytes]] = []  # of each row, its sentence and its unfinished word
        self._seen: dict[tuple[bytes, int], _Next | None] = {}

    def start(self, beams: int) -> None:
        """A search begins, with so many hypotheses of each sentence."""
        self._rows = [(sentence, b"") for sentence in range(len(self._own)) for _ in range(beams)]

    def follow(self, rows: Tensor, tokens: Tensor) -> None:
        """It goes on with these rows, each of which has read a token."""
        chosen = [(*self._rows[row], token) for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
        after = [self._next(rest, token) for _, rest, token in chosen]
        # None: a dead hypothesis, or a prefix that is no text
        self._rows = [(one[0], found.rest if found else b"") for one, found in zip(chosen, after, strict=True)]

    def apply(self, log_p: Tensor) -> Tensor:
        """−inf for what may not come; log_p is [n, k, V]."""
        flat = log_p.flatten(0, 1)
        likely, tokens = flat.topk(min(LIKELIEST, flat.shape[-1]), -1)
        open_ = (likely > -math.inf).sum(-1).tolist()  # of each row, how many of these may come for other reasons
        may = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, (some, count) in enumerate(zip(tokens.tolist(), open_, strict=True)):
            may[row, :count] = torch.tensor([self._known(row, token) for token in some[:count]], dtype=torch.bool)
        may = may.to(flat.device)
        found = torch.full_like(flat, -math.inf).scatter(-1, tokens, likely.masked_fill(~may, -math.inf))
        for row in (~may.any(-1)).nonzero().flatten().tolist():
            if open_[row]:
                self._look_on(row, flat[row], found[row])
        return found.view_as(log_p)

    def _look_on(self, row: int, log_p: Tensor, found: Tensor) -> None:
        """Into ``found`` the likeliest tokens that may come, where none of the first ones may; all, if none may."""
        values, order = log_p.sort(descending=True)
        last = int((values > -math.inf).sum())
        for start in range(LIKELIEST, last, STEP):
            some = order[start : min(start + STEP, last)]
            if known := [token for token in some.tolist() if self._known(row, token)]:
                found[known] = log_p[known]
                return
        found.copy_(log_p)

    def unknown(self, sentence: int, tokens: Sequence[int]) -> list[int]:
        """The first tokens of an output that write a word that is not known; none if there is no such word."""
        rest, word = b"", list[int]()
        for token in tokens:
            if not self._may(sentence, rest, token):
                return [*word, token]
            found = self._next(rest, token)
            assert found is not None
            word, rest = ([*word, token] if rest and found.rest.startswith(rest) else [token]), found.rest
        return []

    def _known(self, row: int, token: int) -> bool:
        return self._may(*self._rows[row], token)

    def _may(self, sentence: int, rest: bytes, token: int) -> bool:
        found = self._next(rest, token)
        if found is None or any(word not in self._own[sentence] for word in found.words):
            return False
        return found.start is None or any(word.startswith(found.start) for word in self._starts[sentence])

    def _next(self, rest: bytes, token: int) -> _Next | None:
        """None: bytes that are no text."""
        key = rest, token
        if key not in self._seen:
            self._seen[key] = self._read(rest, token)
        return self._seen[key]

    def _read(self, rest: bytes, token: int) -> _Next | None:
        raw = rest + (b" " if token == self._eos else self._pieces[token])
        text, cut = _characters(raw)
        if "\ufffd" in text:
            return None
        runs = list(_LETTERS.finditer(text))
        last = runs.pop().group() if runs and runs[-1].end() == len(text) else ""
        words = [plain(run.group()) for run in runs]
        unknown = tuple(word for word in words if word not in self._lexicon)
        ends = cut and (not last or last in self._lexicon)  # what is cut may be no letter
        known = ends or self._lexicon.begins(last, cut)
        return _Next(last.encode() + cut, unknown, None if known else plain(last).encode() + cut)


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

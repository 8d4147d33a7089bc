"""Names of rows and columns as text: tokens put together to words, shown as a side, and searched.

Tokenizers mark where words are: WordPiece what continues one (``##ing``), byte-level BPE and SentencePiece what begins
one (``Ġthe``, ``▁the``). Tokens without such marks are words of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from regard.explorer.http import replies

_SPECIAL = re.compile(r"\[(CLS|SEP|PAD)\]|</?(s|pad|bos|eos)>|<\|[^|<>]+\|>")
_BEGINS = ("Ġ", "▁")
_CONTINUES = "##"


@dataclass(frozen=True)
class Labels:
    """Tokens, the text they make, and where each of them is in it; ``words`` has −1 where a token is of no word."""

    tokens: list[str]
    text: str
    spans: list[tuple[int, int]]
    words: list[int]

    @classmethod
    def of(cls, tokens: Sequence[str]) -> Labels:
        """From a tokenizer's own tokens.

        >>> Labels.of(["[CLS]", "play", "##ing", "chess"]).text
        '[CLS] playing chess'
        """
        begins = _begins(tokens)
        parts: list[str] = []
        spans, words = [], []
        at, word = 0, -1
        for token, begin in zip(tokens, begins, strict=True):
            special = bool(_SPECIAL.fullmatch(token))
            if parts and begin:
                parts.append(" ")
                at += 1
            word += begin and not special
            shown = token if special else _bare(token)
            parts.append(shown)
            spans.append((at, at + len(shown)))
            words.append(-1 if special else word)
            at += len(shown)
        return cls(list(tokens), "".join(parts), spans, words)

    @classmethod
    def of_side(cls, side: replies.SideJson) -> Labels:
        """From a side of a translation, which knows its words."""
        tokens = side["tokens"]
        spans = [(token["start"], token["end"]) for token in tokens]
        return cls([token["text"] for token in tokens], side["text"], spans, [token["word"] for token in tokens])

    def side(self) -> replies.SideJson:
        """As the page shows it."""
        words: dict[int, list[int]] = {}
        for (start, end), word in zip(self.spans, self.words, strict=True):
            if word >= 0:
                words.setdefault(word, [start, end])[1] = end
        tokens: list[replies.TokenJson] = [
            {"text": self.text[start:end] or token, "start": start, "end": end, "word": word}
            for token, (start, end), word in zip(self.tokens, self.spans, self.words, strict=True)
        ]
        return {
            "text": self.text,
            "tokens": tokens,
            "words": [{"text": self.text[start:end], "start": start, "end": end} for start, end in words.values()],
        }

    def search(self, text: str, most: int) -> tuple[list[int], bool]:
        """The first tokens of the first ``most`` places where the text is, in any case; and whether there are more.

        >>> Labels.of(["The", "cat", "and", "the", "catfish"]).search("the cat", 10)
        ([0, 3], False)
        """
        wanted = re.compile(r"\s+".join(map(re.escape, text.split())), re.IGNORECASE)
        found = {i for i, (a, b) in enumerate(self.spans) if a == b and wanted.search(self.tokens[i])}
        starts = [start for start, _ in self.spans]
        for match in wanted.finditer(self.text):
            at = bisect_right(starts, match.start()) - 1
            if at >= 0:
                found.add(at)
        matches = sorted(found)
        return matches[:most], len(matches) > most


def _begins(tokens: Sequence[str]) -> list[bool]:
    """Whether each token begins a word, or stands alone."""
    marked = any(token.startswith(_BEGINS) for token in tokens)
    out, before = [], True
    for token in tokens:
        special = bool(_SPECIAL.fullmatch(token))
        begin = token.startswith(_BEGINS) if marked else not token.startswith(_CONTINUES) or token == _CONTINUES
        out.append(begin or special or before)
        before = special
    return out


def _bare(token: str) -> str:
    if token.startswith(_BEGINS):
        return token[1:]
    return token.removeprefix(_CONTINUES) or token

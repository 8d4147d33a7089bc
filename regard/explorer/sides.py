"""Source, target and alignment as the page shows them: subwords and words, each with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.align import links
from regard.text import Encoded
from regard.translator import Look

Part = tuple[int, str, Encoded]
"""Where a sentence begins in the text, the sentence, and its subwords."""


def source_side(text: str, parts: Sequence[Part]) -> dict[str, Any]:
    """As the encoder reads it: the end symbol comes last."""
    side = _side(text, parts)
    side["tokens"].append({"text": "</s>", "start": len(text), "end": len(text), "word": -1})
    return side


def target_side(text: str, parts: Sequence[Part]) -> dict[str, Any]:
    """As the decoder reads it: the start symbol comes first."""
    side = _side(text, parts)
    side["tokens"].insert(0, {"text": "<s>", "start": 0, "end": 0, "word": -1})
    return side


def alignment(weights: Tensor, look: Look, aer: float | None = None) -> dict[str, Any]:
    """Word weights [J, I] to seven digits, which ones they are, and the links they give."""
    found = sorted(map(list, links(weights)))
    return {"weights": weights.numpy().round(7).tolist(), "links": found, **look._asdict(), "aer": aer}


def placed(text: str, sentences: Sequence[str], encoded: Sequence[Encoded]) -> list[Part]:
    """Sentences with where they are in the text that they were cut from.

    >>> one = Encoded([5], [(0, 1)], [0], [0])
    >>> [start for start, _, _ in placed("a  b", ["a", "b"], [one, one])]
    [0, 3]
    """
    parts, start = [], 0
    for sentence, one in zip(sentences, encoded, strict=True):
        start = text.index(sentence, start)
        parts.append((start, sentence, one))
        start += len(sentence)
    return parts


def _side(text: str, parts: Sequence[Part]) -> dict[str, Any]:
    tokens: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    for begin, sentence, encoded in parts:
        first = len(words)
        for (start, end), word in zip(encoded.offsets, encoded.words, strict=True):
            place = {"text": sentence[start:end], "start": begin + start, "end": begin + end}
            tokens.append(place | {"word": word if word < 0 else first + word})
        for match in re.finditer(r"\S+", sentence):
            words.append({"text": match[0], "start": begin + match.start(), "end": begin + match.end()})
    return {"text": text, "tokens": tokens, "words": words}

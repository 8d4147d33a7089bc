"""Source, target and alignment as the page shows them: subwords and words, each with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.align.attention import links
from regard.explorer.answers import numbers
from regard.tasks.translation.translator import Look
from regard.text.subwords import Encoded

SentencePart = tuple[int, str, Encoded]
"""Where a sentence begins in the text, the sentence, and its subwords."""


def source_side(text: str, parts: Sequence[SentencePart]) -> dict[str, Any]:
    """As the encoder reads it: the end symbol comes last."""
    side = _side(text, parts)
    side["tokens"].append({"text": "</s>", "start": len(text), "end": len(text), "word": -1})
    return side


def target_side(text: str, parts: Sequence[SentencePart]) -> dict[str, Any]:
    """As the decoder reads it: the start symbol comes first."""
    side = _side(text, parts)
    side["tokens"].insert(0, {"text": "<s>", "start": 0, "end": 0, "word": -1})
    return side


def alignment(weights: Tensor, look: Look, aer: float | None = None) -> dict[str, Any]:
    """Word weights [J, I] to seven digits, which ones they are, and the links they give."""
    found = sorted(map(list, links(weights)))
    return {"weights": numbers(weights.round(decimals=7)), "links": found, **look._asdict(), "aer": aer}


def place_sentences(text: str, sentences: Sequence[tuple[str, Encoded]]) -> list[SentencePart]:
    """Sentences with where they are in the text that they were cut from.

    >>> one = Encoded([5], [(0, 1)], [0], [0])
    >>> [start for start, _, _ in place_sentences("a  b", [("a", one), ("b", one)])]
    [0, 3]
    """
    parts, start = [], 0
    for sentence, one in sentences:
        start = text.index(sentence, start)
        parts.append((start, sentence, one))
        start += len(sentence)
    return parts


def passage(text: str) -> dict[str, Any]:
    """A text and its words.

    >>> passage(" a  bc")["words"]
    [{'text': 'a', 'start': 1, 'end': 2}, {'text': 'bc', 'start': 4, 'end': 6}]
    """
    return {"text": text, "words": list(_words(text))}


def weights(of_words: Tensor | None, shape: tuple[int, int]) -> list[list[float]]:
    """Weights of words on both sides, to six digits; 0 for words at the end that have none."""
    out = torch.zeros(shape, dtype=torch.float64)
    if of_words is not None:
        rows, columns = of_words.shape
        out[:rows, :columns] = of_words
    found: list[list[float]] = out.numpy().round(6).tolist()
    return found


def _words(text: str) -> Iterator[dict[str, Any]]:
    for match in re.finditer(r"\S+", text):
        yield {"text": match[0], "start": match.start(), "end": match.end()}


def _side(text: str, parts: Sequence[SentencePart]) -> dict[str, Any]:
    tokens: list[dict[str, Any]] = []
    words = list(_words(text))
    for begin, sentence, encoded in parts:
        first = sum(word["end"] <= begin for word in words)
        for (start, end), word in zip(encoded.offsets, encoded.words, strict=True):
            place = {"text": sentence[start:end], "start": begin + start, "end": begin + end}
            tokens.append(place | {"word": word if word < 0 else first + word})
    return {"text": text, "tokens": tokens, "words": words}

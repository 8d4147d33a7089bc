"""Source, target and alignment as the page shows them: subwords and words, each with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.align.attention import links
from regard.explorer.answers import numbers
from regard.explorer.http import replies
from regard.tasks.translation.translator import Look
from regard.text.subwords import Encoded

SentencePart = tuple[int, str, Encoded]
"""Where a sentence begins in the text, the sentence, and its subwords."""


def source_side(text: str, parts: Sequence[SentencePart]) -> replies.SideJson:
    """As the encoder reads it: the end symbol comes last."""
    side = _side(text, parts)
    side["tokens"].append({"text": "</s>", "start": len(text), "end": len(text), "word": -1})
    return side


def target_side(text: str, parts: Sequence[SentencePart]) -> replies.SideJson:
    """As the decoder reads it: the start symbol comes first."""
    side = _side(text, parts)
    side["tokens"].insert(0, {"text": "<s>", "start": 0, "end": 0, "word": -1})
    return side


def alignment(weights: Tensor, look: Look, aer: float | None = None) -> replies.AlignmentJson:
    """Word weights [J, I] to seven digits, which ones they are, and the links they give."""
    found = sorted(map(list, links(weights)))
    layer, head, shift = look
    matrix = numbers(weights.round(decimals=7))
    return {"weights": matrix, "links": found, "layer": layer, "head": head, "shift": shift, "aer": aer}


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


def passage(text: str) -> replies.PassageJson:
    """A text and its words.

    >>> passage(" a  bc")["words"]
    [{'text': 'a', 'start': 1, 'end': 2}, {'text': 'bc', 'start': 4, 'end': 6}]
    """
    return {"text": text, "words": list(_words(text))}


def weights(of_words: Tensor | None, shape: tuple[int, int]) -> replies.Matrix:
    """Weights of words on both sides, to six digits; 0 for words at the end that have none."""
    out = torch.zeros(shape, dtype=torch.float64)
    if of_words is not None:
        rows, columns = of_words.shape
        out[:rows, :columns] = of_words
    found: replies.Matrix = out.numpy().round(6).tolist()
    return found


def _words(text: str) -> Iterator[replies.WordJson]:
    for match in re.finditer(r"\S+", text):
        yield {"text": match[0], "start": match.start(), "end": match.end()}


def _side(text: str, parts: Sequence[SentencePart]) -> replies.SideJson:
    tokens: list[replies.TokenJson] = []
    words = list(_words(text))
    for begin, sentence, encoded in parts:
        first = sum(word["end"] <= begin for word in words)
        for (start, end), word in zip(encoded.offsets, encoded.words, strict=True):
            at = word if word < 0 else first + word
            tokens.append({"text": sentence[start:end], "start": begin + start, "end": begin + end, "word": at})
    return {"text": text, "tokens": tokens, "words": words}

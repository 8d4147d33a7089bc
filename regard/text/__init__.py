"""Subwords and what surrounds them: characters, words, sentences, lists of words."""

from regard.text.subwords import BOS, EOS, PAD, UNK, Encoded, Subwords

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Encoded",
    "Subwords",
]

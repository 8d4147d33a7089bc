"""Text processing: subwords, grapheme clusters, sentence segmentation, recasing, word lists."""

from regard.text.subwords import BOS, EOS, PAD, UNK, Encoded, Subwords

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Encoded",
    "Subwords",
]

"""Word alignments: from attention, by counting, two directions made one, files of them, and how good they are."""

from regard.align.attention import (
    Alignment,
    Quality,
    links,
    parse,
    pharaoh,
    picture,
    quality,
    read_naacl,
    read_pharaoh,
    swap,
    symmetrize,
    word_weights,
    write_pharaoh,
)

__all__ = [
    "Alignment",
    "Quality",
    "links",
    "parse",
    "pharaoh",
    "picture",
    "quality",
    "read_naacl",
    "read_pharaoh",
    "swap",
    "symmetrize",
    "word_weights",
    "write_pharaoh",
]

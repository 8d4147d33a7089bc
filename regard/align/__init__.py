"""Word alignments: from attention or statistics, their symmetrization, file formats and error rates."""

from regard.align.attention import links, word_weights
from regard.align.error_rate import Quality, quality
from regard.align.formats import parse, pharaoh, read_naacl, read_pharaoh, write_pharaoh
from regard.align.link import Alignment
from regard.align.symmetrization import swap, symmetrize
from regard.align.terminal import picture

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

"""Scores: how well a query aligns with a key.

Every score is a small module with two forms:

- dense: ``score(q, k, offset)`` is the textbook matrix E, [..., heads, L, S]. It is the specification.
- lowered: ``score.queries(q, offset)`` and ``score.keys(k, start)`` are the two halves that kernels run
  (:mod:`regard.score.terms`). The key half depends on the keys alone, so a cache computes it once per key.

Shapes: q [..., H, L, Dq], k [..., K, S, Dk] with H a multiple of K. Key j is at position ``start + j``
(``start`` is 0 outside a cache), query i at ``offset + i``; ``offset`` is an int or one int per batch item.
"""

from regard.score.base import Score
from regard.score.biases import Bias, Key
from regard.score.combine import PerHead, Softcap, Sum
from regard.score.function import Function
from regard.score.pairs import Additive, Bilinear, Cosine, Dot, General
from regard.score.positions import ALiBi, Location, Relative, T5Bias
from regard.score.rotary import Rotary
from regard.score.scale import QKNorm, Scale
from regard.score.scaling import LinearScaling, Llama3Scaling, NTKScaling, YaRNScaling

__all__ = [
    "ALiBi",
    "Additive",
    "Bias",
    "Bilinear",
    "Cosine",
    "Dot",
    "Function",
    "General",
    "Key",
    "LinearScaling",
    "Llama3Scaling",
    "Location",
    "NTKScaling",
    "PerHead",
    "QKNorm",
    "Relative",
    "Rotary",
    "Scale",
    "Score",
    "Softcap",
    "Sum",
    "T5Bias",
    "YaRNScaling",
]

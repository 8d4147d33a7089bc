"""Decoding over a step(): greedy, beam, sampling, and the score of a given output. Knows no architecture.

A hypothesis ends with the end symbol, which counts in its score and its length. Limits count the tokens before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.common.lazy import lazy_names

if TYPE_CHECKING:
    from regard.decode._beam import beam
    from regard.decode._common import Hypothesis, Limits, Model, NoProbabilities, State, named, score
    from regard.decode._generate import LanguageModel, generate
    from regard.decode._repeat import NoRepeat
    from regard.decode._walk import greedy, sample
    from regard.decode._words import KnownWords

__all__ = [
    "Hypothesis",
    "KnownWords",
    "LanguageModel",
    "Limits",
    "Model",
    "NoProbabilities",
    "NoRepeat",
    "State",
    "beam",
    "generate",
    "greedy",
    "named",
    "sample",
    "score",
]

# Imported when asked for: the options of a search (search.py) stand in the help of commands, which need no PyTorch.
__getattr__ = lazy_names(
    __name__,
    {
        "._beam": ["beam"],
        "._common": ["Hypothesis", "Limits", "Model", "NoProbabilities", "State", "named", "score"],
        "._generate": ["LanguageModel", "generate"],
        "._repeat": ["NoRepeat"],
        "._walk": ["greedy", "sample"],
        "._words": ["KnownWords"],
    },
)

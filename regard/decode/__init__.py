"""Decoding over a step(): greedy, beam, sampling, and the score of a given output. Knows no architecture.

A hypothesis ends with the end symbol, which counts in its score and its length. Limits count the tokens before it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
_MODULES = {
    "Hypothesis": "_common",
    "KnownWords": "_words",
    "LanguageModel": "_generate",
    "Limits": "_common",
    "Model": "_common",
    "NoProbabilities": "_common",
    "NoRepeat": "_repeat",
    "State": "_common",
    "beam": "_beam",
    "generate": "_generate",
    "greedy": "_walk",
    "named": "_common",
    "sample": "_walk",
    "score": "_common",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found

"""Decoding over a step(): greedy, beam, sampling, and the score of a given output. Knows no architecture.

A hypothesis ends with the end symbol, which counts in its score and its length. Limits count the tokens before it.
"""

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

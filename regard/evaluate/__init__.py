"""Evaluation metrics: BLEU and chrF here; ROUGE in `rouge`, exact match and F1 in `squad`."""

from regard.evaluate.bleu import Comparison, Metric, compare, evaluate

__all__ = [
    "Comparison",
    "Metric",
    "compare",
    "evaluate",
]

"""BLEU and chrF by sacrebleu, with signatures, and the significance of differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as CorpusMetric

__all__ = ["Comparison", "Metric", "compare", "evaluate"]

SEED, SAMPLES = 12345, 1000


class Metric(NamedTuple):
    """A corpus score with sacrebleu's signature, which records its settings."""

    name: str
    score: float
    signature: str


class Comparison(NamedTuple):
    """The difference of two outputs in one metric, its 95 % interval, and its p-value.

    Paired bootstrap (Koehn 2004, https://aclanthology.org/W04-3250): the same sentences are drawn with replacement for
    both outputs. Draws and p are those of ``sacrebleu --paired-bs`` with the same seed.
    """

    name: str
    difference: float
    low: float
    high: float
    p: float


def evaluate(
    outputs: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    smooth: str = "exp",
) -> list[Metric]:
    """BLEU and chrF of the outputs. ``tokenize="none"`` is for tokenized text."""
    metrics = _metrics(tokenize, lowercase, smooth)
    _check(outputs, references)
    found = []
    for name, metric in metrics.items():
        score = metric.corpus_score(list(outputs), [list(references)]).score
        found.append(Metric(name, score, str(metric.get_signature())))
    return found


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    tokenize: str = "13a",
    lowercase: bool = False,
    smooth: str = "exp",
) -> list[Comparison]:
    """How much better ``second`` is than ``first``, and whether the difference is significant."""
    if samples < 1:
        raise ValueError(f"samples: expected at least 1, got {samples}")
    metrics = _metrics(tokenize, lowercase, smooth)
    for outputs in (first, second):
        _check(outputs, references)
    draws = np.random.default_rng(seed).choice(len(references), size=(samples, len(references)))
    return [_bootstrap(name, metric, (first, second), references, draws) for name, metric in metrics.items()]


def _bootstrap(
    name: str,
    metric: CorpusMetric,
    both: tuple[Sequence[str], Sequence[str]],
    references: Sequence[str],
    draws: NDArray[np.int64],
) -> Comparison:
    counts = [np.array(metric._extract_corpus_statistics(list(x), [list(references)]), np.float64) for x in both]

    def difference(rows: NDArray[np.int64]) -> float:
        first, second = (metric._compute_score_from_stats(c[rows].sum(0).tolist()).score for c in counts)
        return float(second - first)

    real = difference(np.arange(len(references)))
    drawn = np.sort([difference(rows) for rows in draws])
    low, high = drawn[len(drawn) // 40], drawn[len(drawn) - len(drawn) // 40 - 1]
    sizes = np.abs(drawn)
    beyond = int((sizes - sizes.mean() > abs(real)).sum())
    return Comparison(name, real, float(low), float(high), (beyond + 1) / (len(drawn) + 1))


def _metrics(tokenize: str, lowercase: bool, smooth: str) -> Mapping[str, CorpusMetric]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    known, smooths = sorted(BLEU.TOKENIZERS), sorted(BLEU.SMOOTH_DEFAULTS)
    if tokenize not in known:
        raise ValueError(f"tokenize: expected one of {', '.join(known)}, got {tokenize!r}")
    if smooth not in smooths:
        raise ValueError(f"smooth: expected one of {', '.join(smooths)}, got {smooth!r}")
    bleu = BLEU(tokenize=tokenize, lowercase=lowercase, smooth_method=smooth, force=True)  # no warnings
    return {"BLEU": bleu, "chrF": CHRF(lowercase=lowercase)}


def _check(outputs: Sequence[str], references: Sequence[str]) -> None:
    if len(outputs) != len(references):
        raise ValueError(f"expected as many outputs as references, got {len(outputs):,} and {len(references):,}")
    if not references:
        raise ValueError("there is nothing to evaluate: no lines")

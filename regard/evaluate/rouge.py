"""ROUGE by the rouge-score package, as usual for short summaries: stemmed, sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence

from regard.text.segments import sentences

KINDS = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeLsum": "rougeL"}


def rouge(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Mean F₁ · 100 of ROUGE-1, ROUGE-2 and summary-level ROUGE-L; the best of several references for each metric.

    Summaries are split into lines and sentences, as summary-level ROUGE-L expects.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError as error:
        why = 'ROUGE is computed by the package rouge-score, which is not installed: pip install "regard[rouge]"'
        raise ModuleNotFoundError(why) from error

    if len(outputs) != len(references) or not outputs:
        raise ValueError(f"expected as many outputs as references, got {len(outputs):,} and {len(references):,}")
    scorer, totals = RougeScorer(list(KINDS), use_stemmer=True), dict.fromkeys(KINDS, 0.0)
    for output, wanted in zip(outputs, references, strict=True):
        found = scorer.score_multi([_cut(text) for text in wanted], _cut(output))
        for kind in KINDS:
            totals[kind] += found[kind].fmeasure
    return {name: 100 * totals[kind] / len(outputs) for kind, name in KINDS.items()}


def _cut(text: str) -> str:
    return "\n".join(sentence for line in text.splitlines() for sentence in sentences(line))

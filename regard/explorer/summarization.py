"""A model that summarizes as the service runs it: batches of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from regard.explorer.http.schema import Invalid
from regard.explorer.sides import weights
from regard.tasks.summarization.summarizer import Summarizer, SummaryOutput


class SummaryOptions(NamedTuple):
    """How summaries are searched for; ``length`` is about how many words they should have."""

    beam: int
    length: int | None


class SummarizationService:
    """Summaries by one model."""

    task = "summarization"
    kinds: list[dict[str, Any]]

    def __init__(self, summarizer: Summarizer) -> None:
        self.summarizer, self.model, self.limit = summarizer, summarizer.model, summarizer.limit
        self.kinds = []
        summarizer.outputs(["a"], beam=1, max_length=2)

    def run(self, name: str, way: SummaryOptions, requests: Sequence[str]) -> list[dict[str, Any] | Invalid]:
        """The summaries of documents, each with what its words were made of."""
        found = self.summarizer.outputs(requests, beam=way.beam, length=way.length)
        return [
            Invalid(f"text: {output.problem}") if output.problem else {**_told(text, output), "model": name}
            for text, output in zip(requests, found, strict=True)
        ]


def _told(text: str, output: SummaryOutput) -> dict[str, Any]:
    summary = output.summaries[0]
    shape = len(summary.words), len(summary.source)
    return {
        "summary": summary.text,
        "source": {"text": text, "words": [word._asdict() for word in summary.source]},
        "target": {"text": summary.text, "words": list(_placed(summary.text, summary.words))},
        "attention": weights(summary.attention, shape),
        "copied": [copied._asdict() for copied in summary.copied],
        "score": summary.score,
        "log_prob": summary.log_prob,
        "note": output.note,
    }


def _placed(text: str, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Words with where they are in the text; what is not there as it is (half a character) is nowhere.

    >>> [(word["start"], word["end"]) for word in _placed("a b\\na", ["a", "b", "�", "a"])]
    [(0, 1), (2, 3), (3, 3), (4, 5)]
    """
    at = 0
    for word in words:
        start = text.find(word, at)
        end = at if start < 0 else start + len(word)
        yield {"text": word, "start": at if start < 0 else start, "end": end}
        at = end

"""A model that summarizes as the service runs it: batches of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from regard.explorer.http import replies
from regard.explorer.http.schema import Invalid
from regard.explorer.sides import weights
from regard.tasks.summarization.summarizer import Summarizer, SummaryOutput


class SummaryOptions(NamedTuple):
    """How summaries are searched for; ``length`` is about how many words they should have."""

    beam: int
    length: int | None


class SummarizationService:
    """Summaries by one model."""

    task: replies.Task = "summarization"
    kinds: list[replies.KindJson]

    def __init__(self, summarizer: Summarizer) -> None:
        self.summarizer, self.model, self.limit = summarizer, summarizer.model, summarizer.limit
        self.kinds = []
        summarizer.outputs(["a"], beam=1, max_length=2)

    def run(self, name: str, way: SummaryOptions, requests: Sequence[str]) -> list[replies.SummaryJson | Invalid]:
        """The summaries of documents, each with what its words were made of."""
        found = self.summarizer.outputs(requests, beam=way.beam, length=way.length)
        return [
            Invalid(f"text: {output.problem}") if output.problem else _reply(name, text, output)
            for text, output in zip(requests, found, strict=True)
        ]


def _reply(name: str, text: str, output: SummaryOutput) -> replies.SummaryJson:
    summary = output.summaries[0]
    shape = len(summary.words), len(summary.source)
    words: list[replies.WordJson] = [{"text": word, "start": start, "end": end} for word, start, end in summary.source]
    return {
        "summary": summary.text,
        "source": {"text": text, "words": words},
        "target": {"text": summary.text, "words": list(_find_words(summary.text, summary.words))},
        "attention": weights(summary.attention, shape),
        "copied": [{"probability": p, "position": position} for p, position in summary.copied],
        "score": summary.score,
        "log_prob": summary.log_prob,
        "model": name,
        "note": output.note,
    }


def _find_words(text: str, words: Sequence[str]) -> Iterator[replies.WordJson]:
    """Words with where they are in the text; what is not there as it is (half a character) is nowhere.

    >>> [(word["start"], word["end"]) for word in _find_words("a b\\na", ["a", "b", "�", "a"])]
    [(0, 1), (2, 3), (3, 3), (4, 5)]
    """
    at = 0
    for word in words:
        start = text.find(word, at)
        end = at if start < 0 else start + len(word)
        yield {"text": word, "start": at if start < 0 else start, "end": end}
        at = end

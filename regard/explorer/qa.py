"""A model that answers questions as the service runs it: batches of contexts and questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.explorer.http import replies
from regard.explorer.http.schema import Invalid
from regard.explorer.sides import passage, weights
from regard.tasks.qa.answerer import Answer, Answerer


class QuestionRequest(NamedTuple):
    """A question about a text."""

    context: str
    question: str


class QAService:
    """Answers by one model."""

    task: replies.Task = "qa"
    kinds: list[replies.KindJson]

    def __init__(self, answerer: Answerer) -> None:
        self.answerer, self.model, self.limit = answerer, answerer.model, answerer.room.most
        self.kinds = []
        answerer.answer("a", "a")

    def run(self, name: str, n_best: int, requests: Sequence[QuestionRequest]) -> list[replies.AnswerJson | Invalid]:
        """The answers to questions, each with its likeliest places and with what its words attended to."""
        found = self.answerer.answers(requests, n_best=n_best, attention=True)
        return [
            Invalid(answer.problem) if answer.problem else _reply(name, asked, answer)
            for asked, answer in zip(requests, found, strict=True)
        ]


def _reply(name: str, asked: QuestionRequest, answer: Answer) -> replies.AnswerJson:
    context, question = passage(asked.context), passage(asked.question)
    shape = len(question["words"]), len(context["words"])
    return {
        "answer": answer.text,
        "start": answer.start,
        "end": answer.end,
        "score": answer.score,
        "no_answer": answer.no_answer,
        "candidates": [
            {"text": text, "start": start, "end": end, "score": score} for text, start, end, score in answer.candidates
        ],
        "context": context,
        "question": question,
        "attention": weights(answer.attention, shape),
        "model": name,
        "note": answer.note,
    }

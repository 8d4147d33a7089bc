"""The models that are served, by name and task, and what they do with a batch of requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import nn

from regard.explorer.answers import Unable
from regard.explorer.files import unique
from regard.explorer.http import replies
from regard.explorer.http.schema import Invalid
from regard.explorer.qa import QAService
from regard.explorer.summarization import SummarizationService
from regard.explorer.translation import TranslationService
from regard.tasks.load import load
from regard.tasks.qa.answerer import Answerer
from regard.tasks.summarization.summarizer import Summarizer
from regard.tasks.translation.translator import Translator

TaskModel = Translator | Summarizer | Answerer


class ModelService(Protocol):
    """A model and what the service does with it; made once, when it has been run once, so the first request is quick.

    ``limit`` is how many subwords a sentence, a document or a question may have, ``kinds`` what a trace of it has.
    """

    task: replies.Task
    limit: int
    kinds: list[replies.KindJson]

    @property
    def model(self) -> nn.Module: ...

    def run(self, name: str, options: Any, requests: list[Any]) -> Sequence[object]:
        """An answer to each request, or an exception; all with the same options."""


class BatchKey(NamedTuple):
    """What requests have in common that are done together."""

    name: str
    options: Hashable


class Models:
    """Models by name; the first of each task is its default."""

    def __init__(self, models: Iterable[TaskModel]) -> None:
        self._known: dict[str, ModelService] = {}
        for model in models:
            self._known[unique(model.name, self._known)] = _service(model)

    @classmethod
    def load(cls, names: Iterable[str], device: str | None = None) -> Models:
        """Model folders of any task, or names of bundled models."""
        return cls(load(name, device=device) for name in names)

    def name(self, wanted: str | None, task: str) -> str:
        """The name of the model that is meant, for a task."""
        known = [name for name, each in self._known.items() if each.task == task]
        if not known:
            there = "only others" if self._known else "only recorded traces"
            raise Unable(f"no model for {task} is served here, {there}; start the service with --model and its folder")
        if wanted is None:
            return known[0]
        if wanted in known:
            return wanted
        if wanted in self._known:
            other = self._known[wanted].task
            raise Invalid(f"model: {wanted[:60]!r} is for {other}; for {task} there are {', '.join(known)}")
        raise Invalid(f"model: there is no {wanted[:60]!r}; there are {', '.join(known)}")

    def describe(self) -> list[replies.ModelJson]:
        """What /api/models tells of each."""
        return [
            {
                "name": name,
                "task": each.task,
                "architecture": type(each.model).__name__,
                "parameters": sum(p.numel() for p in each.model.parameters()),
                "default": name == self.name(None, each.task),
                "kinds": each.kinds,
                "limit": each.limit,
            }
            for name, each in self._known.items()
        ]

    def run(self, key: BatchKey, requests: list[Any]) -> Sequence[object]:
        """What becomes of requests for one model with the same options."""
        return self._known[key.name].run(key.name, key.options, requests)


def _service(model: TaskModel) -> ModelService:
    if isinstance(model, Translator):
        return TranslationService(model)
    if isinstance(model, Summarizer):
        return SummarizationService(model)
    if isinstance(model, Answerer):
        return QAService(model)
    raise TypeError(f"expected a translator, a summarizer or an answerer, got {type(model).__name__}")

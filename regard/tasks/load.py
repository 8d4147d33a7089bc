"""One door to every model folder: what opens it is what its task says."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Literal, overload

from regard.files.bundled import DEFAULT, find
from regard.tasks import entry
from regard.tasks.base.use import refuse_other_tasks, task_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from regard.tasks.qa.answerer import Answerer, AnswererOptions
    from regard.tasks.summarization.summarizer import Summarizer, SummarizerOptions
    from regard.tasks.translation.translator import Translator, TranslatorOptions

Name = str | os.PathLike[str]


@overload
def load(name: Literal["en-fr-small"] = ..., **options: Unpack[TranslatorOptions]) -> Translator: ...
@overload
def load(name: Name, *, task: Literal["translation"], **options: Unpack[TranslatorOptions]) -> Translator: ...
@overload
def load(name: Name, *, task: Literal["summarization"], **options: Unpack[SummarizerOptions]) -> Summarizer: ...
@overload
def load(name: Name, *, task: Literal["qa"], **options: Unpack[AnswererOptions]) -> Answerer: ...
@overload
def load(name: Name, **options: Unpack[TranslatorOptions]) -> Any: ...
def load(name: Name = DEFAULT, *, task: str | None = None, **options: Any) -> Any:
    """What a model folder, or a model that comes with the package, is for: a :class:`regard.Translator` and so on.

    The folder's task decides. Name the ``task`` that you expect, and editors and type checkers know what they get; a
    model for another one is refused. Options are those of the task's own ``load``; all take ``device``, by default the
    GPU if there is one, else the CPU. See :func:`regard.tasks.translation.translator.load` for translation.
    """
    path = find(name)
    loads = entry(task or task_of(path)).loads
    if task is not None:
        refuse_other_tasks(path, task)
    return importlib.import_module(loads).load(path, **options)

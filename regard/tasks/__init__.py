"""Tasks: data, loss, metric and defaults, brought together for :func:`regard.train.fit`.

A task is one file here and one line of ``TASKS``. Its file has ``WORK``, a :class:`regard.tasks.base.run.Work`;
nothing of it is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from regard.tasks.base.run import Work


class Entry(NamedTuple):
    """Where a task is trained, where ``load`` is that opens a folder of it, and the command that uses one."""

    trains: str
    loads: str
    command: str = ""


TASKS: dict[str, Entry] = {
    "translation": Entry("regard.tasks.translation.train", "regard.tasks.translation.translator", "translate"),
    "summarization": Entry("regard.tasks.summarization.train", "regard.tasks.summarization.summarizer", "summarize"),
    "qa": Entry("regard.tasks.qa.train", "regard.tasks.qa.answerer", "answer"),
}


def work(name: str) -> Work[Any]:
    """The task of this name."""
    found: Work[Any] = importlib.import_module(entry(name).trains).WORK
    return found


def entry(name: str) -> Entry:
    """Where the task of this name is."""
    if name not in TASKS:
        raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]

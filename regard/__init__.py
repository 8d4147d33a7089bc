"""regard: attention you can use, train and see."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regard import decode, mask, models, nn, score, trace
from regard.attend import attend, plan, steps
from regard.kernels.reference import Steps
from regard.plan import Plan
from regard.terms import Keys
from regard.trace import Trace, record

if TYPE_CHECKING:
    from regard.answerer import Answerer
    from regard.explorer.answers import Answers
    from regard.loading import load
    from regard.summarizer import Summarizer
    from regard.translator import Translator

__version__ = "0.1.0"
__all__ = [
    "Answerer",
    "Keys",
    "Plan",
    "Steps",
    "Summarizer",
    "Trace",
    "Translator",
    "attend",
    "decode",
    "load",
    "mask",
    "models",
    "nn",
    "plan",
    "record",
    "score",
    "show",
    "steps",
    "trace",
]

_LATE = {  # imported when they are asked for: who wants attention alone need not wait for what reads model folders
    "Answerer": "regard.answerer",
    "Summarizer": "regard.summarizer",
    "Translator": "regard.translator",
    "load": "regard.loading",
}


_LATE_MODULES = ("align", "data", "evaluate", "grammar", "plot", "text", "train")


def __getattr__(name: str) -> Any:
    if name in _LATE_MODULES:
        return importlib.import_module(f"regard.{name}")
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATE_MODULES, "__version__"})


def show(trace: Trace | Answers, **options: Any) -> Any:
    """The explorer in a notebook, of a trace that :func:`record` made; what is seen is computed when it is seen.

    Options: ``name``, what the trace is called; ``item`` of the batch; and what it opens with: ``view`` ("sentence",
    "steps", "heads", "compare"), ``kind``, ``layer``, ``head``, ``query``. Needs ``pip install "regard[notebook]"``.
    """
    from regard.explorer.widget import show

    return show(trace, **options)

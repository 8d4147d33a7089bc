"""regard: attention you can use, train and see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard import decode, mask, models, nn, score, trace
from regard.answerer import Answerer
from regard.attend import attend, plan, steps
from regard.kernels.reference import Steps
from regard.loading import load
from regard.plan import Plan
from regard.summarizer import Summarizer
from regard.terms import Keys
from regard.trace import Trace, record
from regard.translator import Translator

if TYPE_CHECKING:
    from regard.explorer.answers import Answers

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


def show(trace: Trace | Answers, **options: Any) -> Any:
    """The explorer in a notebook, of a trace that :func:`record` made; what is seen is computed when it is seen.

    Options: ``name``, what the trace is called; ``item`` of the batch; and what it opens with: ``view`` ("sentence",
    "steps", "heads", "compare"), ``kind``, ``layer``, ``head``, ``query``. Needs ``pip install "regard[notebook]"``.
    """
    from regard.explorer.widget import show

    return show(trace, **options)

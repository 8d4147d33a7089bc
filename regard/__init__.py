"""regard: attention you can use, train and see.

What is here is imported when it is asked for. A program that ``torch.export`` saved needs our operators before it is
loaded: ``import regard.nn`` registers them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from regard.common import processors as _processors  # noqa: F401 - what a forked child needs
from regard.common.moved import install as _install

_install()

if TYPE_CHECKING:
    from regard import decode, mask, models, nn, score, trace
    from regard.attention.call import attend, plan, steps
    from regard.attention.plan import Plan
    from regard.explorer.answers import Answers
    from regard.kernels.cpu_additive import warm_up
    from regard.kernels.reference import Steps
    from regard.score.terms import Keys
    from regard.tasks.load import load
    from regard.tasks.qa.answerer import Answerer
    from regard.tasks.summarization.summarizer import Summarizer
    from regard.tasks.translation.translator import Translator
    from regard.trace import Trace, record

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
    "warm_up",
]

# Names and the modules they are in, which are imported when they are asked for: `regard --help` need not wait for
# torch, and who wants attention alone need not wait for what reads model folders.
_NAMES = {
    "Answerer": "regard.tasks.qa.answerer",
    "Keys": "regard.score.terms",
    "Plan": "regard.attention.plan",
    "Steps": "regard.kernels.reference",
    "Summarizer": "regard.tasks.summarization.summarizer",
    "Trace": "regard.trace",
    "Translator": "regard.tasks.translation.translator",
    "attend": "regard.attention.call",
    "load": "regard.tasks.load",
    "plan": "regard.attention.call",
    "record": "regard.trace",
    "steps": "regard.attention.call",
    "warm_up": "regard.kernels.cpu_additive",
}
_MODULES = {"decode", "mask", "models", "nn", "score", "trace"}
_MORE_MODULES = {"align", "data", "evaluate", "plot", "testing", "text", "train"}


def __getattr__(name: str) -> Any:
    if name in _MODULES | _MORE_MODULES | {"aligner", "grammar"}:  # the last two have moved, and say so
        return importlib.import_module(f"regard.{name}")  # which makes it an attribute
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_NAMES[name]), name)
    return found


class _Package(ModuleType):
    """``regard.attend`` and ``regard.plan`` are functions, and also names of modules.

    Python makes a module an attribute of its package once it is imported, by whomever; here the function stays.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _NAMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*__all__, *_MORE_MODULES, "__version__"})


def show(trace: Trace | Answers, **options: Any) -> Any:
    """The explorer in a notebook, of a trace that :func:`record` made; what is seen is computed when it is seen.

    Options: ``name``, what the trace is called; ``item`` of the batch; and what it opens with: ``view`` ("sentence",
    "steps", "heads", "compare"), ``kind``, ``layer``, ``head``, ``query``. Needs ``pip install "regard[notebook]"``.
    """
    from regard.explorer.widget import show

    return show(trace, **options)

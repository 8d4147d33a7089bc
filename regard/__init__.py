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
from regard.common.lazy import lazy_names
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

# Imported when asked for: `regard --help` need not wait for torch, nor attention for what reads model folders.
_MODULES = {"decode", "mask", "models", "nn", "score", "trace"}
_MORE_MODULES = {"align", "data", "evaluate", "plot", "testing", "text", "train"}
_OLD_MODULES = {"aligner", "grammar"}  # they have moved, and say so
_NAMES = {
    "regard.attention.call": ["attend", "plan", "steps"],
    "regard.attention.plan": ["Plan"],
    "regard.kernels.cpu_additive": ["warm_up"],
    "regard.kernels.reference": ["Steps"],
    "regard.score.terms": ["Keys"],
    "regard.tasks.load": ["load"],
    "regard.tasks.qa.answerer": ["Answerer"],
    "regard.tasks.summarization.summarizer": ["Summarizer"],
    "regard.tasks.translation.translator": ["Translator"],
    "regard.trace": ["Trace", "record"],
}
_find = lazy_names(__name__, _NAMES)


def __getattr__(name: str) -> object:
    if name in _MODULES | _MORE_MODULES | _OLD_MODULES:
        return importlib.import_module(f"regard.{name}")  # which makes it an attribute
    return _find(name)


class _Package(ModuleType):
    """``regard.attend`` and ``regard.plan`` are functions, and also names of modules.

    Python makes a module an attribute of its package once it is imported, by whomever; here the function stays.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and any(name in names for names in _NAMES.values())):
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

"""What tasks share. To train: a :class:`Work` with its :class:`Settings`, and for pairs of texts :class:`PairWork` and
:class:`PairTask`. To use a model: :func:`open_model`, :func:`device_of`, :func:`batches_of`.

A name is imported when it is asked for, so that who uses a model does not import training.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.tasks.base.card import CardText, model_card
    from regard.tasks.base.pairs import PairTask, PairWork, autocast, half, measured, without_padding
    from regard.tasks.base.run import Work, train
    from regard.tasks.base.settings import Data, Fitted, PairData, PairTraining, Settings, SubwordSettings, Training
    from regard.tasks.base.use import batches_of, device_of, open_model, refuse_other_tasks, task_of

__all__ = [
    "CardText",
    "Data",
    "Fitted",
    "PairData",
    "PairTask",
    "PairTraining",
    "PairWork",
    "Settings",
    "SubwordSettings",
    "Training",
    "Work",
    "autocast",
    "batches_of",
    "device_of",
    "half",
    "measured",
    "model_card",
    "open_model",
    "refuse_other_tasks",
    "task_of",
    "train",
    "without_padding",
]

_MODULES = {
    "CardText": "card",
    "Data": "settings",
    "Fitted": "settings",
    "PairData": "settings",
    "PairTask": "pairs",
    "PairTraining": "settings",
    "PairWork": "pairs",
    "Settings": "settings",
    "SubwordSettings": "settings",
    "Training": "settings",
    "Work": "run",
    "autocast": "pairs",
    "batches_of": "use",
    "device_of": "use",
    "half": "pairs",
    "measured": "pairs",
    "model_card": "card",
    "open_model": "use",
    "refuse_other_tasks": "use",
    "task_of": "use",
    "train": "run",
    "without_padding": "pairs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found

"""What tasks share. To train: a :class:`Work` with its :class:`Settings`, and for pairs of texts :class:`PairWork` and
:class:`PairTask`. To use a model: :func:`open_model`, :func:`device_of`, :func:`batches_of`.

Names are imported when they are first asked for, so using a model does not import training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.common.lazy import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        ".card": ["CardText", "model_card"],
        ".pairs": ["PairTask", "PairWork", "autocast", "half", "measured", "without_padding"],
        ".run": ["Work", "train"],
        ".settings": ["Data", "Fitted", "PairData", "PairTraining", "Settings", "SubwordSettings", "Training"],
        ".use": ["batches_of", "device_of", "open_model", "refuse_other_tasks", "task_of"],
    },
)

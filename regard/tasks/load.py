"""One door to every model folder: what opens it is what its task says."""

from __future__ import annotations

import importlib
import os
from typing import Any

from regard.files.bundled import DEFAULT, find
from regard.tasks import entry
from regard.tasks.translation.translator import task_of


def load(name: str | os.PathLike[str] = DEFAULT, **options: Any) -> Any:
    """What a model folder, or a model that comes with the package, is for: a :class:`regard.Translator` and so on.

    The folder's ``task`` decides. Options are those of its own ``load``; all take ``device``, by default the GPU if
    there is one, else the CPU. See :func:`regard.tasks.translation.translator.load` for translation.
    """
    path = find(name)
    return importlib.import_module(entry(task_of(path)).loads).load(path, **options)

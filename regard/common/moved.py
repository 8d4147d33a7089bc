"""Old names of modules that have moved. They import for one more release, with a DeprecationWarning.

``regard.folder``, for example, is :mod:`regard.models.folder`: the same module object. If a module was split, as
``regard.store`` was, the old name has the names of all parts.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: dict[str, str | tuple[str, ...]] = {
    "regard.aligner": "regard.align.statistical",
    "regard.answerer": "regard.tasks.qa.answerer",
    "regard.attend": "regard.attention.call",
    "regard.bpe": "regard.text.bpe",
    "regard.characters": "regard.text.graphemes",
    "regard.engine": "regard.decode.engine",
    "regard.folder": "regard.models.folder",
    "regard.grammar": "regard.testing.grammar",
    "regard.kernels.triton_additive": "regard.kernels.gpu.additive",
    "regard.kernels.triton_offset": "regard.kernels.gpu.offset",
    "regard.lexicon": "regard.text.lexicon",
    "regard.loading": "regard.tasks.load",
    "regard.lower": "regard.attention.lower",
    "regard.output": "regard.tasks.translation.output",
    "regard.plan": "regard.attention.plan",
    "regard.protect": "regard.tasks.translation.protect.translate",
    "regard.reading": "regard.tasks.qa.spans",
    "regard.rouge": "regard.evaluate.rouge",
    "regard.search": ("regard.decode.search", "regard.tasks.summarization.search"),
    "regard.segments": "regard.text.segments",
    "regard.spelling": "regard.text.recasing",
    "regard.squad": "regard.evaluate.squad",
    "regard.store": ("regard.files.tensors", "regard.files.toml", "regard.files.bundled"),
    "regard.summarizer": "regard.tasks.summarization.summarizer",
    "regard.terms": "regard.score.terms",
    "regard.translator": "regard.tasks.translation.translator",
    "regard.wordpiece": "regard.text.wordpiece",
}


class _Old(MetaPathFinder, Loader):
    """Import an old name as the module at its new place."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Replace the entry in ``sys.modules``, which is what the import returns."""
        old = module.__name__
        new = MOVED[old]
        if isinstance(new, str):
            warnings.warn(f"{old} has moved: import {new}", DeprecationWarning, stacklevel=2)
            sys.modules[old] = importlib.import_module(new)
            return
        warnings.warn(f"{old} was split: import {', '.join(new)}", DeprecationWarning, stacklevel=2)
        for part in new:
            vars(module).update(
                (name, x) for name, x in vars(importlib.import_module(part)).items() if name[:2] != "__"
            )


def install() -> None:
    """Search for old names after all other finders."""
    sys.meta_path.append(_Old())

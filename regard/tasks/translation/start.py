"""Fine-tuning: a run that starts from a trained model, with its size, its subwords and its weights, on other pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from regard.files.bundled import find
from regard.models.folder import Loaded
from regard.models.folder import open as open_folder
from regard.tasks.base.settings import OF_SUBWORDS, Settings
from regard.train.settings import Values

S = TypeVar("S", bound=Settings)

FREE = {"dropout", "attention_dropout", "activation_dropout"}  # of [model]: no weight depends on them
KEPT = ("align", "translate")  # tables of config.toml that stay true


def start_model(name: str, task: str) -> Loaded:
    """The model to begin with: a folder of ours, or a model that comes with the package."""
    loaded = open_folder(find(name))
    if (found := loaded.settings.get("task", task)) != task:
        raise ValueError(f"training.start: {name} is a model for {found}; expected one for {task}")
    return loaded


def resume_settings(given: S, loaded: Loaded, pairs: int) -> S:
    """The settings with those of the model; defaults of the rest change its weights little."""
    name, own = given.training["start"], loaded.settings["model"]
    model = {key: value for key, value in own.items() if key not in OF_SUBWORDS}
    for key, value in given.model.items():
        if key not in FREE and value != model.get(key):
            raise ValueError(
                f"[model]: {key} is {model.get(key)!r} in {name}, which training starts with; got {value!r}"
            )
    for key in given.subwords:
        if key in ("path", "vocab_size", "lowercase"):
            raise ValueError(f"[subwords]: training starts with {name}, which has its own; {key} cannot be chosen")
    subwords = {"vocab_size": len(loaded.subwords), "lowercase": loaded.subwords.lowercase, "dropout": 0.0}
    updates = given.training.get("updates", given.defaults(pairs)["training"]["updates"] // 4)
    gentle = {"lr": 3e-4, "schedule": "cosine", "updates": updates, "warmup": updates // 10, "rdrop": 0.0}
    return replace(
        given,
        subwords={**subwords, **given.subwords},
        model={**model, **given.model},
        training={**gentle, **given.training},
    )


def search_tables(loaded: Loaded) -> dict[str, Values]:
    """How it is searched and where its alignments are read: fine-tuning does not change that."""
    return {name: loaded.settings[name] for name in KEPT if name in loaded.settings}

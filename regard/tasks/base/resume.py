"""Resuming a run: what its folder holds, and whether its settings are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.models.folder import read_config
from regard.tasks.base.settings import LIMITS, OF_SUBWORDS
from regard.train import Mismatch, Progress, Ranks
from regard.train import Settings as LoopSettings
from regard.train.settings import Values


def read_run_config(folder: Path, task: str) -> dict[str, Any] | None:
    """The settings of the run in this folder; None for a new one. Folders of anything else are refused."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: expected a folder to write the model to, but it is a file")
    if (folder / "config.toml").exists():
        kept = read_config(folder)
        if kept.get("task") != task:
            raise ValueError(f"{folder} holds a model of task {kept.get('task')!r}; choose another folder")
        return kept
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no training run; it was left unchanged")
    return None


def has_checkpoint(folder: Path) -> bool:
    """Has the run in this folder reached a checkpoint, or its end?"""
    ended = any((folder / name).exists() for name in ("model.safetensors", "README.md"))
    return ended or last_checkpoint(folder) is not None


def last_checkpoint(folder: Path) -> int | None:
    """The update of the newest state that a run in this folder can be resumed from."""
    numbers = (path.stem.rsplit("-", 1)[1] for path in (folder / "checkpoints").glob("state-*.safetensors"))
    return max((int(number) for number in numbers if number.isdigit()), default=None)


def restart(kept: Values, now: Values, folder: Path, ranks: Ranks, report: Progress) -> None:
    """A run without a checkpoint does not fix the settings: after correcting one, start again in the same folder."""
    try:
        check_same(kept, now, folder)
    except Mismatch:
        ranks.wait()  # until all have read what goes now
        if ranks.main:
            for name in ("config.toml", "tokenizer.json"):
                (folder / name).unlink(missing_ok=True)
        report.say(
            f"{folder}: a run with other settings ended there before its first checkpoint; this one starts from "
            "the beginning"
        )


def check_same(kept: Values, now: Values, folder: object) -> None:
    """Refuse to resume a run with other settings than it was started with."""
    differ = []
    for section in ("subwords", "model", "training"):
        old, new = kept.get(section, {}), now[section]
        free = {"training": {*LoopSettings.FREE}, "model": OF_SUBWORDS}.get(section, set())
        for key in sorted({*old, *new} - free):
            a, b = _plain(old.get(key)), _plain(new.get(key))
            if a != b:
                differ.append(f"{section}.{key} was {_describe(a)}, is {_describe(b)}")
    for key in LIMITS:
        a, b = kept.get("data", {}).get(key), now["data"].get(key)
        if a != b:
            differ.append(f"data.{key} was {_describe(a)}, is {_describe(b)}")
    for key, name in (("pairs", "the number of training pairs"), ("fingerprint", "the text of the data")):
        if kept.get("data", {}).get(key) != now["data"][key]:
            differ.append(f"{name} was {kept.get('data', {}).get(key)}, is {now['data'][key]}")
    if differ:
        raise Mismatch(
            f"{folder} has a run that was started with other settings: {'; '.join(differ)}. "
            "Use the same settings to resume it, or another folder for a new run"
        )


def _plain(value: object) -> object:
    return [_plain(x) for x in value] if isinstance(value, (list, tuple)) else value


def _describe(value: object) -> str:
    return "not set" if value is None else repr(value)

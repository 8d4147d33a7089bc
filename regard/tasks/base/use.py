"""What tasks share where a trained model is used: opening its folder, a device, batches. Nothing here trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.nn.int8 import to_int8
from regard.tasks import TASKS

if TYPE_CHECKING:
    from regard.models.folder import Loaded


def open_model(path: Path, task: str, device: str | torch.device | None, *, int8: bool = False) -> Loaded:
    """The model and subwords of a folder of this task, on a device, or in 8 bits on a CPU."""
    refuse_other_tasks(path, task)
    place = device_of("cpu" if int8 and device is None else device)
    if int8 and place.type != "cpu":
        raise ValueError(f"int8 is for a CPU, got device {place}")
    from regard.models.folder import open as open_folder  # after the checks: a wrong name is quick to be told

    loaded = open_folder(path)
    return replace(loaded, model=to_int8(loaded.model) if int8 else loaded.model.to(place))


def task_of(path: Path) -> str:
    """What a model folder is for."""
    from regard.models.folder import read_config

    return str(read_config(path).get("task", "translation"))


def refuse_other_tasks(path: Path, task: str) -> None:
    """A folder of a task that is used in another way is told by name, and not by what is missing from it."""
    found = task_of(path)
    if found not in TASKS or TASKS[found].loads != TASKS[task].loads:
        command = TASKS[found].command if found in TASKS else ""
        how = f"`regard {command}` uses this one, " if command else ""
        raise ValueError(f"{path}: a model for {found}, and one for {task} is needed; {how}regard.load opens any")


def device_of(device: str | torch.device | None) -> torch.device:
    """The device of this name, by default the GPU if there is one."""
    there = torch.cuda.is_available()
    try:
        place = torch.device(device or ("cuda" if there else "cpu"))
    except RuntimeError:
        raise ValueError(f"device: expected cpu or cuda, got {device!r}") from None
    if place.type == "cuda" and not there:
        raise ValueError("device: there is no GPU that PyTorch can use; leave it out, or write cpu")
    return place


def what_is_odd(line: str) -> str:
    """What is wrong with a line that is no text."""
    if not isinstance(line, str):
        raise TypeError(f"expected lines of text, got {type(line).__name__}")
    try:
        line.encode()
        return ""
    except UnicodeEncodeError as error:
        return f"not Unicode text: a lone surrogate at character {error.start}"


def batches_of(lengths: Sequence[int], tokens: int, lines: int | None = None) -> list[list[int]]:
    """Indices of lines in batches of similar lengths, the longest first (memory runs out at once or never).

    A batch has at most so many ``tokens``, padding included, and so many ``lines``.
    """
    if tokens < 1:
        raise ValueError(f"batch_tokens: expected at least 1, got {tokens}")
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = batches and (lengths[batches[-1][0]] + 1) * (len(batches[-1]) + 1) <= tokens
        if room and len(batches[-1]) != lines:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches

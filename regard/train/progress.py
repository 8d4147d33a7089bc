"""Telling how training goes: a live bar or plain lines, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from regard.text import write_whole


class Progress(Protocol):
    """Who is told how a run goes."""

    def start(self, update: int, updates: int) -> None: ...
    def step(self, update: int, numbers: Mapping[str, float]) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """Says nothing."""

    def start(self, update: int, updates: int) -> None: ...
    def step(self, update: int, numbers: Mapping[str, float]) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Lines:
    """A plain line for everything, on stderr."""

    def start(self, update: int, updates: int) -> None:
        self.updates, self.first, self.begun = updates, update, time.monotonic()

    def step(self, update: int, numbers: Mapping[str, float]) -> None:
        done = max(1, update - self.first)
        left = (self.updates - update) * (time.monotonic() - self.begun) / done
        self.say(f"{update}/{self.updates}  {shown(numbers)}  {clock(left)} left")

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)  # noqa: T201

    def stop(self) -> None: ...


class Bar:
    """A live bar by rich."""

    def start(self, update: int, updates: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("training", total=updates, completed=update, numbers="")
        self.bar.start()

    def step(self, update: int, numbers: Mapping[str, float]) -> None:
        self.bar.update(self.task, completed=update, numbers=shown(numbers))

    def say(self, message: str) -> None:
        if hasattr(self, "bar"):
            self.bar.console.print(message, highlight=False, markup=False)
        else:
            print(message, file=sys.stderr, flush=True)  # noqa: T201

    def stop(self) -> None:
        if hasattr(self, "bar"):
            self.bar.stop()


def progress() -> Progress:
    """A live bar where stderr is a terminal and rich is installed, else lines."""
    if sys.stderr.isatty():
        try:
            import rich.progress  # noqa: F401

            return Bar()
        except ModuleNotFoundError:
            pass
    return Lines()


def shown(numbers: Mapping[str, float]) -> str:
    """
    >>> shown({"loss": 2.34567, "tokens_per_s": 123456.7})
    'loss 2.346  tokens/s 123,457'
    """
    return "  ".join(
        f"{name.replace('_per_', '/')} {f'{x:,.0f}' if abs(x) >= 1000 else f'{x:.4g}'}" for name, x in numbers.items()
    )


def clock(seconds: float) -> str:
    """
    >>> clock(59), clock(3700)
    ('0:59', '1:01:40')
    """
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


class Metrics:
    """metrics.jsonl: a JSON object per line, each with its update; and TensorBoard if asked."""

    def __init__(self, path: Path, update: int, tensorboard: bool = False) -> None:
        """Goes on after this update: what an earlier, killed process wrote beyond it comes again."""
        self._board = _board(path.parent / "tensorboard") if tensorboard else None
        kept = [line for line in _whole_lines(path) if line["update"] <= update and "final" not in line]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._path, self._file = path, open(path, "a")  # noqa: SIM115, closed by close()

    def write(self, update: int, numbers: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps({"update": update, **numbers}) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, f"could not be written: {error.strerror}", str(self._path)) from error
        if self._board is not None:
            for name, value in numbers.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, update)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written has been told
            self._file.close()
        if self._board is not None:
            self._board.close()


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # cut short when a process was killed
        if isinstance(line, dict) and "update" in line:
            lines.append(line)
    return lines


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ValueError("tensorboard = true needs the tensorboard package: pip install tensorboard") from error
    return SummaryWriter(str(folder))

"""The progress of training: a live bar or plain lines, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from regard.files.whole import write_whole

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Progress(Protocol):
    """Receives the progress of a run: ``tick`` after every update, with the seconds left once they are known."""

    def start(self, update: int, updates: int) -> None: ...
    def tick(self, update: int, left: float | None) -> None: ...
    def step(self, update: int, numbers: Mapping[str, float]) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """Says nothing."""

    def start(self, update: int, updates: int) -> None: ...
    def tick(self, update: int, left: float | None) -> None: ...
    def step(self, update: int, numbers: Mapping[str, float]) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Lines:
    """A plain line for everything, on stderr, and one for the time left when it is first known and nothing is said."""

    QUIET = 30.0  # seconds without a line

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now

    def start(self, update: int, updates: int) -> None:
        self.updates, self.left, self.said = updates, "", -math.inf

    def tick(self, update: int, left: float | None) -> None:
        if left is None:
            return
        self.left = f"  about {clock(left)} left"
        if self.now() - self.said >= self.QUIET:
            self._tell(f"{update}/{self.updates}{self.left}")

    def step(self, update: int, numbers: Mapping[str, float]) -> None:
        self._tell(f"{update}/{self.updates}  {format_numbers(numbers)}{self.left}")

    def _tell(self, line: str) -> None:
        self.said = self.now()
        self.say(line)

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)  # noqa: T201

    def stop(self) -> None: ...


class Bar:
    """A live bar by rich."""

    def start(self, update: int, updates: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("training", total=updates, completed=update, numbers="", left="")
        self.bar.start()

    def tick(self, update: int, left: float | None) -> None:
        told = "" if left is None else f"about {clock(left)} left"
        self.bar.update(self.task, completed=update, left=told)

    def step(self, update: int, numbers: Mapping[str, float]) -> None:
        self.bar.update(self.task, completed=update, numbers=format_numbers(numbers))

    def say(self, message: str) -> None:
        if hasattr(self, "bar"):
            self.bar.console.print(message, highlight=False, markup=False)
        else:
            print(message, file=sys.stderr, flush=True)  # noqa: T201

    def stop(self) -> None:
        if hasattr(self, "bar"):
            self.bar.stop()


class Remaining:
    """How many seconds a run still takes: its updates as long as those of the latter half of what was done took, its
    validations as long as the last one, the first as its ``cost`` in updates says.

    The first update of a process does not count: what it needs is compiled, loaded and allocated then.

    >>> remaining = Remaining(updates=100, every=50, cost=2.0)
    >>> for update, seconds in ((1, 20.0), (2, 21.0), (3, 22.0)):
    ...     remaining.add_update(update, seconds)
    >>> remaining.left(3)  # 97 updates, validations after 50 and 100, and one of the average
    103.0
    """

    def __init__(self, updates: int, every: int, cost: float) -> None:
        self.updates, self.every, self.cost = updates, every if cost else 0, cost
        self._marks: deque[tuple[int, float]] = deque()  # updates done, and when, but for validations
        self._first, self._away, self._validation = 0, 0.0, 0.0

    def add_update(self, update: int, now: float) -> None:
        """This many updates are done at this time."""
        if self._marks and self._marks[-1][0] == update:
            return
        self._first = self._first if self._marks else update
        self._marks.append((update, now - self._away))
        while len(self._marks) > 2 and 2 * (self._marks[1][0] - self._first) <= update - self._first:
            self._marks.popleft()

    def add_validation(self, seconds: float) -> None:
        """A validation took this long."""
        self._away += seconds
        self._validation = seconds

    def left(self, update: int) -> float | None:
        """Seconds left after so many updates, before the validation due then; None before a process's third update."""
        if not self._marks or self._marks[-1][0] - self._first < 2:
            return None
        (first, begun), (last, now) = self._marks[0], self._marks[-1]
        each = (now - begun) / (last - first)
        validation = self._validation or self.cost * each
        return each * (self.updates - update) + validation * self._ahead(update)

    def _ahead(self, update: int) -> int:
        """Validations to come, with that of the average at the end."""
        return 0 if not self.every else -(-self.updates // self.every) - (update - 1) // self.every + 1


def progress() -> Progress:
    """A live bar where stderr is a terminal and rich is installed, else lines."""
    if sys.stderr.isatty():
        try:
            import rich.progress  # noqa: F401

            return Bar()
        except ModuleNotFoundError:
            pass
    return Lines()


def format_numbers(numbers: Mapping[str, float]) -> str:
    """
    >>> format_numbers({"loss": 2.34567, "tokens_per_s": 123456.7})
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


class MetricsFile:
    """metrics.jsonl: a JSON object per line, each with its update; optionally TensorBoard."""

    def __init__(self, path: Path, update: int, tensorboard: bool = False) -> None:
        """Goes on after this update: what an earlier, killed process wrote beyond it comes again."""
        self._board = _board(path.parent / "tensorboard") if tensorboard else None
        kept = [line for line in _whole_lines(path) if line["update"] <= update and "final" not in line]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._path, self._file = path, open(path, "a")  # noqa: SIM115, closed by close()

    def write(self, update: int, numbers: Mapping[str, object]) -> None:
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
        with contextlib.suppress(OSError):  # the write error has been reported
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


def _board(folder: Path) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ValueError("tensorboard = true needs the tensorboard package: pip install tensorboard") from error
    return SummaryWriter(str(folder))

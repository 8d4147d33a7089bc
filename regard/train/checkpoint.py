"""The files of a running training: states to resume from, weights to average, and the best weights.

    checkpoints/state-00001200.safetensors    weights, Adam's moments, position in the run; the last few are kept
    checkpoints/weights-00001200.safetensors  weights alone, for averaging; the last few
    checkpoints/best.safetensors              weights with the best validation

Every file is written whole or not at all, with a checksum. If one is damaged, the one before it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from regard.files.kinds import Total, check_fields
from regard.files.tensors import Shapes, read_tensors, write_tensors
from regard.files.whole import Damaged
from regard.train.settings import Values

FORMAT = 1


@dataclass(frozen=True)
class Position:
    """A position in the data: batch ``batch`` of epoch ``epoch`` is next; ``begun`` batches came before this epoch."""

    epoch: Total = 0
    batch: Total = 0
    begun: Total = 0

    def after(self) -> Position:
        return replace(self, batch=self.batch + 1)

    def next_epoch(self) -> Position:
        return Position(self.epoch + 1, 0, self.begun + self.batch)


@dataclass
class Standing:
    """The state of a run after ``update`` updates."""

    update: Total = 0
    position: Position = Position()
    tokens: Total = 0
    seconds: float = 0.0
    validate_every: Total = 0  # updates; fixed when the run begins
    best: float | None = None  # validation, smaller is better
    best_update: Total = 0
    best_epoch: Total = 0
    stale: Total = 0  # validations since, after the warm-up
    ended: bool = False  # early

    @classmethod
    def from_table(cls, table: Values) -> Standing:
        made = cls(**{**table, "position": Position(**table["position"])})
        check_fields(made)
        check_fields(made.position)
        return made


class Checkpoints:
    """The files of one run. ``say`` receives the warnings."""

    def __init__(self, folder: Path, *, keep: int, average: int, say: Callable[[str], None]) -> None:
        self.folder, self.keep, self.average, self.say = folder, keep, average, say

    def save(self, standing: Standing, tensors: dict[str, Tensor]) -> None:
        """A state to resume from."""
        path = self.folder / f"state-{standing.update:08d}.safetensors"
        self._write(path, tensors, {"format": FORMAT, "standing": asdict(standing)})
        self._prune("state", self.keep, standing.update)

    def latest(self, model: Shapes | None = None) -> tuple[Standing, dict[str, Tensor]] | None:
        """The newest state that is whole, and of this model."""
        for path in reversed(self._files("state")):
            try:
                tensors, about = read_tensors(path, check=partial(_check_model, path, model or {}))
                if about.get("format") != FORMAT:
                    raise Damaged(f"{path}: of format {about.get('format')}, expected {FORMAT}")
                return Standing.from_table(about["standing"]), tensors
            except Damaged as error:
                self.say(f"checkpoint skipped: {error}")
            except (KeyError, TypeError, ValueError) as error:
                self.say(f"checkpoint skipped: {path}: {error}")
        return None

    def snapshot(self, update: int, weights: dict[str, Tensor]) -> None:
        """Weights for the average at the end."""
        self._write(self.folder / f"weights-{update:08d}.safetensors", weights, {"update": update})
        self._prune("weights", self.average, update)

    def save_best(self, update: int, weights: dict[str, Tensor]) -> None:
        self._write(self.folder / "best.safetensors", weights, {"update": update})

    def best(self) -> dict[str, Tensor] | None:
        """The best weights, if they are there and whole."""
        path = self.folder / "best.safetensors"
        try:
            return read_tensors(path)[0] if path.exists() else None
        except Damaged as error:
            self.say(f"the best weights are skipped: {error}")
            return None

    def average_weights(self, update: int) -> tuple[dict[str, Tensor], int] | None:
        """The mean of the last weights up to this update, of its second half, and how many they were."""
        kept = []
        for path in self._files("weights"):
            if not update / 2 < _number(path) <= update:
                continue
            try:
                kept.append(read_tensors(path)[0])
            except Damaged as error:
                self.say(f"weights left out of the average: {error}")
        return (average(kept[-self.average :]), len(kept[-self.average :])) if kept else None

    def forget(self) -> None:
        """Remove everything: the run is over."""
        for path in self.folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)
        self.sweep()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def sweep(self) -> None:
        """Remove what a killed process was writing."""
        for path in self.folder.glob(".*.safetensors.*"):
            path.unlink(missing_ok=True)

    def _write(self, path: Path, tensors: dict[str, Tensor], about: Mapping[str, object]) -> None:
        try:
            write_tensors(path, tensors, about)
        except OSError as error:
            states = self._files("state")
            left = (
                f"the run can resume from update {_number(states[-1])}" if states else "there is no earlier checkpoint"
            )
            raise OSError(
                error.errno,
                f"the checkpoint {error.strerror}; {left}: free some space and run the command again",
                str(path),
            ) from error

    def _files(self, kind: str) -> list[Path]:
        return sorted(
            path for path in self.folder.glob(f"{kind}-*.safetensors") if path.stem[len(kind) + 1 :].isdigit()
        )

    def _prune(self, kind: str, keep: int, update: int) -> None:
        """Later files are damaged or older; they will be written again, and must not replace the current ones."""
        for path in [path for path in self._files(kind) if _number(path) <= update][:-keep]:
            path.unlink(missing_ok=True)


MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam, each of its parameter's shape


def _check_model(path: Path, model: Shapes, stored: Shapes) -> None:
    """Raises where a state is of another model: its weights have other names or shapes, or its moments have."""
    wanted = {f"model.{name}": shape for name, shape in model.items()}
    moments = {f"{of}.{name}": shape for name, shape in model.items() for of in MOMENTS if f"{of}.{name}" in stored}
    for name, shape in {**wanted, **moments}.items():
        if name not in stored or stored[name] != tuple(shape):
            got = list(stored[name]) if name in stored else "missing"
            raise Damaged(f"{path}: of another model: {name} is {got}, expected {list(shape)}")


def average(weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Their mean, summed in float64.

    >>> average([{"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}])
    {'w': tensor([1.5000])}
    """
    out = {}
    for name, first in weights[0].items():
        total = torch.zeros(first.shape, dtype=torch.float64)
        for some in weights:
            total += some[name]
        out[name] = (total / len(weights)).to(first.dtype)
    return out


def _number(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[1])

"""How the loop trains, whatever the task; plain values, each with a default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from regard.files.kinds import check_fields
from regard.train.schedule import SCHEDULES, Schedule, learning_rate

T = TypeVar("T", bound="Table")
Values = Mapping[str, Any]
"""A table of settings by name, as people write it: each value is checked where it is read."""

Precision = Literal["auto", "bfloat16", "float32"]
Parallel = Literal["ddp", "fsdp"]
SHARE, ENDS = 0.1, 2  # the most of a run's time that validations take; those of the average and the best at its end


class Mismatch(ValueError):
    """A run that was started with other settings cannot be resumed with these."""


class Table:
    """A dataclass that comes from a table and becomes one again; what is None is not in it."""

    @classmethod
    def from_table(cls: type[T], table: Values, name: str = "") -> T:
        """Checked by name; ``name`` says in messages which table this is."""
        if not isinstance(table, Mapping):
            raise ValueError(f"{name or cls.__name__}: expected a table, got {table!r}")
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := [key for key in table if key not in known]:
            raise ValueError(
                f"[{name or cls.__name__}] has no {', '.join(map(repr, unknown))}; it takes {', '.join(known)}"
            )
        try:
            made = cls(**table)
            check_fields(made)
            return made
        except (TypeError, ValueError) as error:
            raise ValueError(f"[{name or cls.__name__}]: {error}") from error

    def to_table(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True)
class Settings(Table):
    """What the loop does.

    Updates: ``updates`` of them, each over ``accumulate`` batches; Adam (``betas``, ``eps``) with decoupled
    ``weight_decay``; gradients clipped to norm ``clip`` (0: not). ``lr`` is the peak of the ``schedule``, reached after
    ``warmup`` updates; the cosine ends at ``final_lr``.

    Watching: every ``valid_every`` updates a checkpoint is written, the weights are kept for averaging and the model is
    validated. None: fifty checkpoints in a run, and as many of them validated as take a tenth of its time, counted in
    subwords. At the end the weights of the last ``average`` checkpoints are averaged, and the ``best`` single ones are
    kept instead if they did better (false: the average in any case). Training ends early when the validation was not
    better ``patience`` times in a row (0: never); None: when it was not for 0.4 of all updates, at least 1,000 of them,
    and two epochs. What comes before the end of the warm-up does not count. Every ``log_every`` updates a line is
    logged.

    Machine: ``device`` "auto", "cpu", "cuda"; ``precision`` "auto" (bfloat16 on a GPU), "bfloat16" or "float32";
    ``graphs`` replays CUDA graphs, one per shape of batch; ``compile`` runs the model through torch.compile, once for
    all shapes; ``parallel`` "ddp" or "fsdp" under torchrun.
    """

    updates: int = 8000
    accumulate: int = 1
    lr: float = 1e-3
    schedule: Schedule = "inverse_sqrt"
    warmup: int = 2000
    final_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 1
    valid_every: int | None = None
    average: int = 10
    best: bool = True
    patience: int | None = None
    keep: int = 2
    log_every: int = 50
    device: str = "auto"
    precision: Precision = "auto"
    graphs: bool = True
    compile: bool = False
    parallel: Parallel = "ddp"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        for name in ("updates", "accumulate", "average", "keep", "log_every"):
            self.whole(name, 1)
        self.whole("warmup", 0)
        for name, least in (("valid_every", 1), ("patience", 0)):
            if getattr(self, name) is not None:
                self.whole(name, least)
        for name in ("lr", "final_lr", "eps", "weight_decay", "clip"):
            self.number(name)
        self.whole("seed", 0)
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas must be two numbers from 0 to below 1, got {self.betas}")
        self.one_of("schedule", SCHEDULES)
        self.one_of("precision", get_args(Precision))
        self.one_of("parallel", get_args(Parallel))

    # Changing one of these between a kill and a restart changes nothing about what is learned.
    FREE = ("log_every", "device", "graphs", "compile", "parallel", "tensorboard", "keep")

    def rate(self, update: int) -> float:
        """The learning rate of this update."""
        return learning_rate(
            update,
            schedule=self.schedule,
            peak=self.lr,
            warmup=self.warmup,
            updates=self.updates,
            final=self.final_lr,
        )

    @property
    def interval(self) -> int:
        """Updates between checkpoints."""
        return self.valid_every or max(1, self.updates // 50)

    def validations(self, cost: float) -> int:
        """Updates between validations of which each costs as much as ``cost`` updates: a multiple of ``interval``.

        With those at the end they are a tenth of the run at the most, unless ``valid_every`` says otherwise. It depends
        on counts alone, so that the same run is validated at the same places wherever, and however slowly, it goes.

        >>> Settings(updates=400).validations(0.5), Settings(updates=400).validations(6.2)
        (8, 80)
        """
        if self.valid_every is not None or not cost:
            return self.interval
        wanted = max(1, int(self.updates * SHARE / ((1 - SHARE) * cost)) - ENDS)
        return self.interval * math.ceil(self.updates / (self.interval * wanted))

    def whole(self, name: str, low: int, high: int = 2**63 - 1) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")
        if value > high:
            raise ValueError(f"{name} must be at most {high:,}, got {value:,}")

    def number(self, name: str, high: float = float("inf")) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < high:
            below = "" if high == float("inf") else f" and below {high:g}"
            raise ValueError(f"{name} must be a number of at least 0{below}, got {value!r}")

    def one_of(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")

"""The training loop: updates, validation, early stopping, checkpoints, exact resumption. It knows no task.

A run is a function of its settings and data: the order of batches depends on (seed, epoch), dropout on (seed, update,
batch, rank), and a checkpoint holds everything else. So on a CPU a run that was killed and resumed gives the same
weights, bit for bit.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn, Protocol

from torch import Tensor, nn

from regard.data import prefetch
from regard.train.checkpoint import Checkpoints, Position, Standing
from regard.train.progress import MetricsFile, Progress, Remaining
from regard.train.ranks import Ranks, shard_like, whole
from regard.train.settings import Settings
from regard.train.updater import GraphEngine, Updater

AHEAD = 64  # batches made ahead of the training, in a thread
QUIET, LEAST_QUIET, EPOCHS = 0.4, 1000, 2  # a share of all updates, updates and epochs without progress that end a run
TIMED = 3  # updates after which a GPU is waited for, to say how long the run takes


class Step(NamedTuple):
    """A batch: the objective's input, its tokens on all ranks, and the position in the data after it."""

    tensors: Sequence[Tensor]
    tokens: int
    after: Position


class Task(Protocol):
    """The input of the loop."""

    @property
    def model(self) -> nn.Module:
        """The model to train and save."""

    @property
    def objective(self) -> nn.Module:
        """Holds the model. ``objective(*tensors)`` are sums over a batch: to minimise first, then others to report."""

    @property
    def sums(self) -> Sequence[str]:
        """Names of these sums."""

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Parts of the model to shard one by one."""

    @property
    def static(self) -> bool:
        """Can the objective be captured as a CUDA graph?"""

    @property
    def validation_cost(self) -> float:
        """The cost of a validation in updates, counted, not measured; 0 without validation data."""

    def pace(self, name: str) -> float:
        """How fast a parameter of the model learns: its learning rate is so many times the schedule's."""

    def steps(self, position: Position, ranks: Ranks) -> Iterator[Step]:
        """The batches from here on, without end."""

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Measures of a model; ``valid_loss``, smaller is better, decides. Empty without validation data."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run: weights, how they were made, their validation, and where the run ended."""

    weights: dict[str, Tensor]
    made: str
    scores: dict[str, float]
    standing: Standing


class Diverged(RuntimeError):
    """The loss is NaN or infinite."""


def fit(
    task: Task,
    settings: Settings,
    folder: Path,
    ranks: Ranks,
    progress: Progress,
    now: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Trains to the end, resuming the run in the folder if there is one. ``now`` is the clock, in seconds."""
    return _TrainingRun(task, settings, folder, ranks, progress, now).run()


class _TrainingRun:
    def __init__(
        self,
        task: Task,
        settings: Settings,
        folder: Path,
        ranks: Ranks,
        progress: Progress,
        now: Callable[[], float],
    ) -> None:
        self.task, self.settings, self.ranks, self.progress, self.now = task, settings, ranks, progress, now
        self.files = Checkpoints(folder / "checkpoints", keep=settings.keep, average=settings.average, say=self._say)
        found = self.files.latest({name: tuple(t.shape) for name, t in task.model.state_dict().items()})
        self.standing = found[0] if found else Standing()
        cost = ranks.agree([task.validation_cost])[0]
        self.standing.validate_every = self.standing.validate_every or settings.validations(cost)
        self.remaining = Remaining(settings.updates, self.standing.validate_every, cost)
        model = task.model.to(ranks.device)
        if found:
            model.load_state_dict(_strip(found[1], "model."))
        # FSDP shards the model in place: then a plain one beside it is validated and saved
        self.sharded = ranks.world > 1 and settings.parallel == "fsdp"
        self.plain = copy.deepcopy(model) if self.sharded else model
        objective = ranks.wrap(task.objective, task.blocks, settings.parallel)
        paces = {p: task.pace(name) for name, p in task.model.named_parameters()}
        graphs = ranks.device.type == "cuda" and settings.graphs and task.static and ranks.world == 1
        self.engine = (
            GraphEngine(objective, settings, ranks, len(task.sums), self._say, paces)
            if graphs
            else Updater(objective, settings, ranks, len(task.sums), paces)
        )
        if found:
            self._load_moments(found[1])
        self.metrics = None
        if ranks.main:
            self.files.sweep()
            self.metrics = MetricsFile(folder / "metrics.jsonl", self.standing.update, settings.tensorboard)

    def run(self) -> Outcome:
        standing, settings = self.standing, self.settings
        if standing.update:
            self._say(f"resuming from update {standing.update:,}")
        if every := self.remaining.every:
            self._say(
                f"validation every {every:,} updates; it takes as long as about {self.remaining.cost:.2g} of them"
            )
        self.progress.start(standing.update, settings.updates)
        self.since, self.logged, self.fresh, self.begun = self.now(), standing.update, 0, standing.update
        try:
            made = prefetch(self.task.steps(standing.position, self.ranks), AHEAD)
            with contextlib.closing(made) as steps, self._stop_on_interrupt() as asked:  # type: ignore[type-var]
                while standing.update < settings.updates and not standing.ended and not asked.is_set():
                    self._update([next(steps) for _ in range(settings.accumulate)])
                if asked.is_set():
                    self._pause()
            return self._finish()
        finally:
            self.progress.stop()
            if self.metrics is not None:
                self.metrics.close()

    def _update(self, steps: Sequence[Step]) -> None:
        standing, settings = self.standing, self.settings
        standing.update += 1
        self.engine.update([(step.tensors, step.tokens) for step in steps], standing.update)
        standing.position = steps[-1].after
        tokens = sum(step.tokens for step in steps)
        standing.tokens += tokens
        self.fresh += tokens
        self._tick()
        last = standing.update == settings.updates
        if standing.update % settings.log_every == 0 or last:
            self._log()
        if standing.update % settings.interval == 0 or last:
            self._check()

    def _tick(self) -> None:
        """Show the time left. On a GPU, which is not waited for, only the first updates are timed here."""
        update = self.standing.update
        if self.ranks.device.type == "cpu" or update - self.begun <= TIMED:
            self.engine.wait()
            self.remaining.add_update(update, self.now())
        self.progress.tick(update, self.remaining.left(update))

    def _log(self) -> None:
        standing = self.standing
        sums = self.engine.read()
        now = self.now()
        self.remaining.add_update(standing.update, now)
        numbers = {name: value / max(1, self.fresh) for name, value in zip(self.task.sums, sums, strict=True)}
        if not all(math.isfinite(x) for x in numbers.values()):
            raise Diverged(
                f"the loss is not finite between updates {self.logged} and {standing.update}, {numbers}: training "
                "diverged; lower lr, lengthen warmup or clip more"
            )
        numbers["tokens_per_s"] = self.fresh / max(1e-9, now - self.since)
        standing.seconds += now - self.since
        rate, norm = self.settings.rate(standing.update), self.engine.norm.item()
        if self.metrics is not None:
            where = {"epoch": standing.position.epoch, "lr": rate, "gradient_norm": norm}
            self.metrics.write(standing.update, {**numbers, **where, "seconds": standing.seconds})
            self.progress.step(standing.update, numbers)
        self.since, self.logged, self.fresh = now, standing.update, 0

    def _check(self) -> None:
        """Validate, keep the weights, and write a state that all of this is in."""
        if self.logged != self.standing.update:
            self._log()
        standing = self.standing
        weights, moments = self._weights(), self._moments()
        due = standing.update % standing.validate_every == 0 or standing.update == self.settings.updates
        scores = self._time_validation(weights) if due else {}
        if scores:
            better = self._judge(scores["valid_loss"])
            if self.metrics is not None:
                self.metrics.write(standing.update, scores)
                self._say_scores(f"update {standing.update:,}", scores)
                if better:
                    self.files.save_best(standing.update, weights)
        if self.ranks.main:
            self.files.snapshot(standing.update, weights)
            self._save(weights, moments)
        self.ranks.wait()
        self.since = self.now()

    def _time_validation(self, weights: dict[str, Tensor]) -> dict[str, float]:
        """Validate; its time is not counted as time of updates."""
        begun = self.now()
        scores = self._validate(weights)
        self.remaining.add_validation(self.now() - begun)
        return scores

    def _judge(self, loss: float) -> bool:
        """Is it the best so far? Also decides whether to stop early."""
        standing, patience = self.standing, self.settings.patience
        epoch = standing.position.epoch
        if standing.best is None or loss < standing.best:
            standing.best, standing.best_update, standing.best_epoch, standing.stale = loss, standing.update, epoch, 0
            return True
        quiet = standing.update - max(standing.best_update, self.settings.warmup)
        standing.stale += quiet > 0  # before, the learning rate still rises
        if patience is None:
            long = quiet >= max(LEAST_QUIET, QUIET * self.settings.updates)
            standing.ended = long and epoch - standing.best_epoch >= EPOCHS
        else:
            standing.ended = 0 < patience <= standing.stale
        if standing.ended and standing.update < self.settings.updates:
            self._say(f"no improvement for {standing.stale} validations, {quiet:,} updates: stopping early")
        return False

    def _pause(self) -> NoReturn:
        """Writes a state between two validations, to resume from."""
        if self.logged != self.standing.update:
            self._log()
        self._save(self._weights(), self._moments())
        raise KeyboardInterrupt

    def _save(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        self.files.save(self.standing, {**{f"model.{name}": t for name, t in weights.items()}, **moments})

    @contextlib.contextmanager
    def _stop_on_interrupt(self) -> Iterator[threading.Event]:
        """Set by the first Ctrl-C, so that the run stops between two updates and loses none; the second interrupts.

        Processes that train together would have to agree on the update: there every Ctrl-C interrupts.
        """
        asked, before = threading.Event(), signal.getsignal(signal.SIGINT)

        def ask(number: int, frame: FrameType | None) -> None:
            asked.set()
            signal.signal(signal.SIGINT, before)
            with contextlib.suppress(OSError):  # not by print: what was interrupted may be printing
                os.write(2, b"\nstopping after this update; Ctrl-C again stops at once\n")

        alone = self.ranks.world == 1 and threading.current_thread() is threading.main_thread()
        if not alone or before is not signal.default_int_handler:
            yield asked
            return
        signal.signal(signal.SIGINT, ask)
        try:
            yield asked
        finally:
            signal.signal(signal.SIGINT, before)

    def _validate(self, weights: dict[str, Tensor]) -> dict[str, float]:
        """Decided by rank 0 and sent to the others."""
        if self.sharded:
            self.plain.load_state_dict(weights)
        scores = self.task.validate(self.plain) if self.ranks.main else {}
        loss = self.ranks.agree([scores.get("valid_loss", math.nan)])[0]
        return {} if math.isnan(loss) else {"valid_loss": loss, **scores}

    def _finish(self) -> Outcome:
        """The average of the last weights, unless the best single ones are better."""
        standing = self.standing
        self.ranks.wait()
        averaged, best = self.files.average_weights(standing.update), self.files.best()
        weights, made = self._weights(), f"the weights of update {standing.update}"
        if averaged and averaged[1] > 1:
            weights, made = averaged[0], f"the average of {averaged[1]} checkpoints up to update {standing.update}"
        self.plain.load_state_dict(weights)
        scores = self._validate(weights)
        if scores:
            self._say_scores(made, scores)
        if (
            self.settings.best
            and scores
            and best
            and standing.best is not None
            and standing.best < scores["valid_loss"]
        ):
            weights, made = best, f"the weights of update {standing.best_update}, the best in validation"
            self.plain.load_state_dict(weights)
            scores = self._validate(weights)
            self._say_scores(made, scores)
        if self.metrics is not None:
            self.metrics.write(standing.update, {"final": made, **scores})
        return Outcome({name: t.cpu() for name, t in weights.items()}, made, scores, standing)

    # --- the state of the run as tensors ---

    def _weights(self) -> dict[str, Tensor]:
        return {name: whole(t.detach()) for name, t in self.task.model.state_dict().items()}

    def _moments(self) -> dict[str, Tensor]:
        """Adam's, by the names of the parameters."""
        out = {}
        for name, p in self.task.model.named_parameters():
            for key, value in self.engine.optimizer.state.get(p, {}).items():
                out[f"{key}.{name}"] = whole(value)
        return out

    def _load_moments(self, tensors: dict[str, Tensor]) -> None:
        keys = ("step", "exp_avg", "exp_avg_sq")
        for name, p in self.task.model.named_parameters():
            state = {key: tensors[f"{key}.{name}"] for key in keys if f"{key}.{name}" in tensors}
            if state:
                device = self.ranks.device
                moved = {key: x.to(device) if key == "step" else shard_like(x, p) for key, x in state.items()}
                self.engine.optimizer.state[p] = moved

    def _say(self, message: str) -> None:
        if self.ranks.main:
            self.progress.say(message)

    def _say_scores(self, of: str, scores: dict[str, float]) -> None:
        self._say(f"{of}: " + "  ".join(f"{name} {value:.4g}" for name, value in scores.items()))


def _strip(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}

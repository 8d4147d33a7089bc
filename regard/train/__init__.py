"""Training: the loop, its schedules, losses and checkpoints. It knows no task; see :mod:`regard.tasks`."""

from regard.train.checkpoint import Position
from regard.train.loop import Diverged, Outcome, Step, Task, fit
from regard.train.loss import sequence_loss
from regard.train.progress import Lines, Progress, Silent, progress
from regard.train.ranks import Ranks
from regard.train.schedule import learning_rate
from regard.train.settings import Mismatch, Settings, Table

__all__ = [
    "Diverged",
    "Lines",
    "Mismatch",
    "Outcome",
    "Position",
    "Progress",
    "Ranks",
    "Settings",
    "Silent",
    "Step",
    "Table",
    "Task",
    "fit",
    "learning_rate",
    "progress",
    "sequence_loss",
]

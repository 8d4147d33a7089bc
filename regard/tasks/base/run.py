"""From files to a model folder: the part of training that all tasks share. A ``Work`` has what differs.

A run that was killed resumes from its last checkpoint; under torchrun it is one of several processes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch
from torch import nn

from regard.models.folder import alone, make_model, save, sweep, write_config
from regard.tasks.base.card import TRANSLATION, CardText, model_card
from regard.tasks.base.resume import check_same, has_checkpoint, read_run_config, restart
from regard.tasks.base.settings import Fitted, Settings
from regard.tasks.base.sizes import check_room, expectation
from regard.text.subwords import Subwords
from regard.text.wordpiece import Cutter
from regard.train import Outcome, Progress, Ranks, Silent, Task, fit, progress
from regard.train.settings import Values

S = TypeVar("S", bound=Settings)


class Work(ABC, Generic[S]):
    """What a task adds: its settings, its data, and what :func:`regard.train.fit` is to train.

    ``train`` calls these in the order in which they stand here. A subclass names the task, and says for the command
    what it is ``about``, which ``files`` of the table [data] are flags, which setting of a kind of model is its
    ``--score``, and what quality to expect of the preset "laptop".
    """

    name: ClassVar[str]
    about: ClassVar[str]
    examples: ClassVar[str]
    files: ClassVar[tuple[tuple[str, str], ...]]
    settings: type[S]
    words: ClassVar[CardText] = TRANSLATION
    scores: ClassVar[Mapping[str, str]] = {"transformer": "cross_score", "rnn": "score"}
    score_help: ClassVar[str] = "the score of cross-attention"
    laptop_quality: ClassVar[str] = "validation will show how good it is"
    unasked: ClassVar[frozenset[str]] = frozenset()  # settings of its models that are no flags: they have one value

    @abstractmethod
    def survey(self, settings: S) -> Values:
        """Read all data once: ``pairs``, ``valid_pairs``, and a ``fingerprint`` of the text. Bad data are refused."""

    def fit_settings(self, settings: S, pairs: int, on_gpu: bool, kept: Values | None) -> Fitted:
        """All settings; ``kept`` are those of the resumed run, if there is one."""
        return Fitted.of(settings, pairs, on_gpu, kept)

    @abstractmethod
    def learn(self, fitted: Fitted, report: Progress) -> Cutter:
        """New subwords; one process learns them once."""

    def read(self, path: Path) -> Cutter:
        """The subwords that were saved."""
        return Subwords.load(path)

    def model(self, fitted: Fitted, subwords: Cutter) -> nn.Module:
        """The model with fresh weights, of a kind that :mod:`regard.models.folder` knows."""
        model: nn.Module = make_model({**fitted.model, "vocab_size": len(subwords)})
        return model

    @abstractmethod
    def task(self, model: nn.Module, fitted: Fitted, subwords: Cutter, ranks: Ranks, report: Progress) -> Task:
        """Data in numbers, objective and validation, for the loop."""

    def inspect(self, model: nn.Module, task: Task, report: Progress) -> Values:
        """More tables for config.toml: what is measured about the finished model."""
        return {}

    def data_facts(self, task: Task) -> Values:
        """More entries of the folder's [data] table, known once the data are tokenized; see also :meth:`survey`."""
        return {}

    def card(self, tables: Values) -> CardText:
        """The task's texts in README.md of the folder."""
        return self.words

    def config(self, tables: Values) -> Values:
        """config.toml of the folder, beside [model]."""
        return {"task": self.name, **tables}


def train(
    work: Work[S],
    settings: S,
    out: str | Path,
    *,
    store: str = "float32",
    keep_checkpoints: bool = False,
    report: Progress | None = None,
) -> Outcome | None:
    """Trains the model of ``out``, or resumes its run; writes a model folder there.

    Args:
        work: the task.
        settings: the data, and whatever else is not to be fitted to its size.
        out: a folder that is new, empty, or of this same run.
        store: how weights are stored, see :func:`regard.models.folder.save`.
        keep_checkpoints: do not delete them at the end.
        report: receives the progress; by default a live bar or lines on stderr.

    Returns None if the folder already holds the finished model of this run.
    """
    folder = Path(out)
    with ExitStack() as held:
        ranks = held.enter_context(Ranks.join(settings.training.get("device", "auto")))
        known = folder.is_dir()
        if ranks.main and known:
            held.enter_context(alone(folder))
        report = (progress() if report is None else report) if ranks.main else Silent()
        kept, learned = read_run_config(folder, work.name), has_checkpoint(folder)
        about = work.survey(settings)
        fitted = work.fit_settings(settings, about["pairs"], ranks.device.type == "cuda", kept if learned else None)
        tables = fitted.tables()
        tables["data"] |= about
        if kept is not None and not learned:
            restart(kept, tables, folder, ranks, report)
        elif kept is not None:
            check_same(kept, tables, folder)
            if (folder / "model.safetensors").exists():
                report.say(f"{folder} holds the finished model of this run: nothing to do")
                return None
        check_room(fitted, about["pairs"], ranks)
        if ranks.main and not known:
            held.enter_context(alone(folder))
        subwords = _subwords(work, fitted, folder, ranks, report, tables)
        torch.manual_seed(fitted.training.seed)
        model = work.model(fitted, subwords)
        size = sum(p.numel() for p in model.parameters())
        task = work.task(model, fitted, subwords, ranks, report)
        tables["data"] |= work.data_facts(task)
        used = tables["data"].get("used_pairs", about["pairs"])
        report.say(f"{used:,} pairs, {len(subwords):,} subwords, {size:,} parameters, {_where(ranks)}")
        if ranks.device.type == "cpu" and (told := expectation(fitted, size, work.laptop_quality)):
            report.say(told)
        begun = time.time()
        outcome = fit(task, fitted.training, folder, ranks, report)
        if ranks.main:
            made = _load_outcome(work.model(fitted, subwords), outcome)
            card = model_card(
                tables,
                outcome,
                size=size,
                store=store,
                device=_where(ranks),
                begun=begun,
                files=[name for name, _ in work.files],
                words=work.card(tables),
            )
            about_it = {**work.inspect(made.eval(), task, report), **work.config(tables)}
            save(folder, made, subwords, settings=about_it, card=card, store=store)
            if not keep_checkpoints:
                _forget(folder)
            report.say(f"{folder} holds the model")
        ranks.wait()
        return outcome


def _load_outcome(model: nn.Module, outcome: Outcome) -> nn.Module:
    model.load_state_dict(outcome.weights)
    return model


def _subwords(work: Work[S], fitted: Fitted, folder: Path, ranks: Ranks, report: Progress, tables: Values) -> Cutter:
    """Learned by rank 0 once, kept in the folder; config.toml is written first, to know the run by."""
    path = folder / "tokenizer.json"
    if ranks.main:
        sweep(folder)
        if not (folder / "config.toml").exists():
            write_config(folder, work.config(tables))
        if not path.exists():
            work.learn(fitted, report).save(path)
    ranks.wait()
    return work.read(path)


def _where(ranks: Ranks) -> str:
    name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else str(ranks.device)
    return name if ranks.world == 1 else f"{ranks.world} × {name}"


def _forget(folder: Path) -> None:
    from regard.train.checkpoint import Checkpoints

    Checkpoints(folder / "checkpoints", keep=1, average=1, say=lambda _: None).forget()

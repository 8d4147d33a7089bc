"""``regard train``: settings from flags and a TOML file, whatever the task. It imports what training needs and no more.

A task's flags are fields of its settings: FLAGS has their help, their types are those of the fields.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from regard.cli._console import Failure, columns
from regard.cli._parser import Flag, Parser, wrap_text
from regard.common.start import quick_start
from regard.files.toml import parse_value, read_toml
from regard.tasks import TASKS, work

if TYPE_CHECKING:
    from regard.tasks.base.run import S, Work
    from regard.train.settings import Values

PRESET = "laptop: a small model in five to ten minutes on a CPU; other flags override it"
NOTES = """
Settings that you leave out are fitted to the size of the corpus; model/config.toml records them. If training is killed,
the same command resumes it from the last checkpoint. --config and --set accept every setting, with the names of
config.toml."""
CORPUS, TABLES = 8000, ("subwords", "training")  # pairs of the corpus for which --help lists the presets
TASK = Flag("what to train; each task has its own --help", choices=TASKS)
# The most common settings, by table and key.
FLAGS = {
    "data.held_out": "training pairs to hold out for validation; by default one in 20, at most 1,000",
    "subwords.vocab_size": "subwords to learn, both sides together",
    "model.kind": "what to train",
    "model.dim": "width",
    "model.ffn_dim": "width of the feed-forward layers (transformer)",
    "model.heads": "attention heads",
    "model.encoder_layers": "layers that read",
    "model.decoder_layers": "layers that write",
    "model.dropout": "dropout rate",
    "training.start": "a trained model to start from: fine-tune it on other pairs",
    "training.updates": "steps of the optimizer",
    "training.tokens": "subwords per update, both sides",
    "training.lr": "highest learning rate",
    "training.warmup": "updates until that peak is reached",
    "training.schedule": "how it falls",
    "training.smoothing": "label smoothing",
    "training.rdrop": "weight of R-Drop",
    "training.valid_every": "updates between validations; by default they take at most a tenth of the time",
    "training.patience": "validations without improvement that stop training; 0: never",
    "training.seed": "the same seed trains the same model",
    "training.device": "auto, cpu or cuda",
    "training.precision": "auto is bfloat16 on a GPU",
    "training.parallel": "how several processes share the work",
}


def train(
    *,
    task: Annotated[str, TASK] = "translation",
    out: Annotated[str, Flag("the model folder to write", metavar="FOLDER")],
    store: Annotated[Literal["float32", "float16", "int8"], Flag("weights as stored")] = "float32",
    keep_checkpoints: Annotated[bool, Flag("do not delete them at the end")] = False,
    config: Annotated[
        str | None, Flag("settings: [data], [subwords], [model], [training]", metavar="FILE.toml")
    ] = None,
    set: Annotated[
        list[str] | None, Flag("any setting: training.clip=0.5; repeatable", metavar="TABLE.KEY=VALUE")
    ] = None,
    **given: Any,
) -> int:
    """Train a model of a task, translation by default; `regard train --task TASK --help` lists its options."""
    import torch

    from regard.tasks.base import run
    from regard.train import Diverged

    of = work(task)
    settings = settings_of(of, given, config, set or [])
    try:
        run.train(of, settings, out, store=store, keep_checkpoints=keep_checkpoints)
    except Diverged as error:
        raise Failure(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise Failure(no_memory(str(error), settings.training, resume_hint(out))) from error
    except KeyboardInterrupt:
        print(f"stopped; {resume_hint(out)}", file=sys.stderr)  # noqa: T201
        return 130
    return 0


def extend(parser: Parser, arguments: Sequence[str]) -> None:
    """Adds the flags and the help of the task that ``--task`` names."""
    with quick_start():
        of = work(task_of(arguments))
        from regard.tasks.base.settings import PRESETS

    parser.description = of.about
    parser.epilog = f"examples:\n{of.examples.rstrip()}\n\n{wrap_text(NOTES)}\n\n{_presets(of)}"
    parser.flag("preset", str, Flag(PRESET, choices=PRESETS))
    files = parser.add_argument_group("data")
    for name, about in of.files:
        parser.flag(f"data.{name}", str, Flag(about, metavar="FILE"), group=files)
    fitted = parser.add_argument_group("settings, fitted to the corpus unless given")
    for name, hint in flags_of(of).items():
        parser.flag(name, hint, Flag(FLAGS[name]), group=fitted)
    score = Flag(f"{of.score_help}: dot, additive, general, …", metavar="KIND")
    parser.flag("score", str, score, group=fitted)


def task_of(arguments: Sequence[str]) -> str:
    """The task that ``--task`` names: it decides what the other flags are."""
    parser = Parser("regard train", "", usage="regard train [options] --out FOLDER", add_help=False)
    parser.flag("task", str, TASK)
    return str(getattr(parser.parse_known_args(arguments)[0], "task", "translation"))


def flags_of(of: Work[S]) -> dict[str, object]:
    """Those of FLAGS that the settings of this task have, with their types."""
    hints = {f"{table}.{key}": hint for table, keys in of.settings.hints().items() for key, hint in keys.items()}
    return {name: hints[name] for name in FLAGS if name in hints and name.partition(".")[2] not in of.unasked}


def settings_of(of: Work[S], given: Values, config: str | None, assignments: Sequence[str]) -> S:
    """Those of the file, then flags, then --set."""
    tables: dict[str, Any] = read_toml(config) if config else {}
    if "preset" in given:
        tables["preset"] = given["preset"]
    for name, value in given.items():
        table, dot, key = name.partition(".")
        if dot:
            _put(tables, table, key, value)
    if "score" in given:
        kind = tables.get("model", {}).get("kind", of.settings.kinds[0])
        _put(tables, "model", of.scores[kind], given["score"])
    for assignment in assignments:
        _assign(tables, assignment)
    return of.settings.from_tables(tables)


def _put(tables: dict[str, Any], table: str, key: str, value: object) -> None:
    tables[table] = {**tables.get(table, {}), key: value}


def _assign(tables: dict[str, Any], assignment: str) -> None:
    """training.lr=1e-3 as in TOML; anything that is not a TOML value is a string."""
    name, sign, value = assignment.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (sign and dot and key):
        raise ValueError(f"--set: expected TABLE.KEY=VALUE, got {assignment!r}")
    _put(tables, table, key, parse_value(value))


def _presets(of: Work[S]) -> str:
    """The settings of the presets, for a corpus of that size."""
    values = {
        name: table
        for name, table in of.settings.laptop(CORPUS).items()
        if name in TABLES or name == of.settings.kinds[0]
    }
    parts = [
        f"{'model' if name not in TABLES else name}.{key}={value}"
        for name, table in values.items()
        for key, value in table.items()
    ]
    return textwrap.fill(
        f"--preset laptop, for {CORPUS:,} pairs: {', '.join(parts)}", columns(), break_on_hyphens=False
    )


def resume_hint(out: str) -> str:
    """What the same command will do after an unfinished run in this folder."""
    from regard.tasks.base.resume import last_checkpoint

    last = last_checkpoint(Path(out))
    if last is None:
        return "there is no checkpoint yet: the same command starts from the beginning"
    return f"the same command resumes from the last checkpoint, of update {last:,}"


def no_memory(error: str, training: Values, again: str) -> str:
    """What to do when memory runs out: split each update into smaller batches."""
    batches = 2 * int(training.get("accumulate", 1))
    return (
        f"{error.split('. ')[0]}. If other programs use its memory, end them: {again}. Otherwise start in another "
        f"folder with --set training.accumulate={batches}: it splits each update into smaller batches, with the same "
        "result"
    )

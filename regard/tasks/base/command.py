"""The command that trains: settings from flags and a TOML file, whatever the task."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.files.toml import parse_value, read_toml
from regard.tasks import TASKS, work
from regard.tasks.base.run import Work, last_checkpoint, train
from regard.tasks.base.settings import PRESETS
from regard.train import Diverged

NOTES = """
What is not given is fitted to the size of the corpus; model/config.toml tells what was chosen. Started again after it
was killed, the same command goes on where the last checkpoint stands. --config and --set take every setting, by the
names of config.toml."""

CORPUS, TABLES = 8000, ("subwords", "training")  # pairs of the corpus that --help tells presets for
# The settings that are asked for most, as flags: table, key, type or choices, help.
FLAGS: tuple[tuple[str, str, Any, str], ...] = (
    ("data", "held_out", int, "pairs of the training data to validate on; else one in 20, at most 1,000"),
    ("subwords", "vocab_size", int, "subwords to learn, both sides together"),
    ("model", "kind", (), "what to train"),
    ("model", "dim", int, "width"),
    ("model", "ffn_dim", int, "width of the feed-forward layers (transformer)"),
    ("model", "heads", int, "attention heads"),
    ("model", "encoder_layers", int, "layers that read"),
    ("model", "decoder_layers", int, "layers that write"),
    ("model", "dropout", float, "share of units left out"),
    ("training", "start", str, "a trained model to begin with, and to go on from with other pairs"),
    ("training", "updates", int, "steps of the optimizer"),
    ("training", "tokens", int, "subwords of an update, both sides"),
    ("training", "lr", float, "highest learning rate"),
    ("training", "warmup", int, "updates until it is reached"),
    ("training", "schedule", ("inverse_sqrt", "cosine"), "how it falls"),
    ("training", "smoothing", float, "label smoothing"),
    ("training", "rdrop", float, "weight of R-Drop"),
    ("training", "valid_every", int, "updates between validations; else they take at most a tenth of the time"),
    ("training", "patience", int, "validations without progress that end training; 0: never"),
    ("training", "seed", int, "the same seed trains the same model"),
    ("training", "device", str, "auto, cpu or cuda"),
    ("training", "precision", ("auto", "bfloat16", "float32"), "auto is bfloat16 on a GPU"),
    ("training", "parallel", ("ddp", "fsdp"), "how several processes share the work"),
)


def flags(of: Work[Any]) -> tuple[tuple[str, str, Any, str], ...]:
    """Those that the settings of this task know."""
    known = of.settings.keys()
    kinds = {("model", "kind"): of.settings.kinds}
    asked = [flag for flag in FLAGS if flag[1] in known[flag[0]] - of.unasked]
    return tuple((t, key, kinds.get((t, key), kind), about) for t, key, kind, about in asked)


def named(argv: Sequence[str] | None) -> Work[Any]:
    """The task that ``--task`` names; what is no task is told as argparse tells it."""
    parser = argparse.ArgumentParser(prog="regard train", add_help=False, allow_abbrev=False)
    parser.add_argument("--task", default="translation", choices=tuple(TASKS))
    return work(parser.parse_known_args(argv)[0].task)


def parse(of: Work[Any], argv: Sequence[str] | None = None) -> tuple[Any, argparse.Namespace]:
    """Settings of a command line: --config first, then what is given beside it."""
    parser, own = _parser(of), flags(of)
    options = parser.parse_args(argv)
    if options.task != of.name:
        parser.error(f"this is the command of {of.name}; write `regard train --task {options.task} …`")
    tables: dict[str, Any] = read_toml(options.config) if options.config else {}
    if options.preset is not None:
        tables["preset"] = options.preset
    given = [("data", name, getattr(options, name)) for name, _ in of.files]
    given += [(table, key, getattr(options, key)) for table, key, *_ in own]
    kind = getattr(options, "kind", None) or tables.get("model", {}).get("kind", of.settings.kinds[0])
    given.append(("model", of.scores[kind], options.score))
    for table, key, value in given:
        if value is not None:
            tables[table] = {**tables.get(table, {}), key: value}
    for assignment in options.set:
        _assign(tables, assignment)
    return of.settings.from_tables(tables), options


def _parser(of: Work[Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="regard train",
        description=of.about,
        epilog=f"examples:\n{of.examples.rstrip()}\n{NOTES}\n\n{_presets(of)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--task", default=of.name, choices=tuple(TASKS), help="what is learned; each has its own --help"
    )
    for name, about in of.files:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="FILE", help=about)
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the model folder to make")
    parser.add_argument("--config", metavar="FILE.toml", help="settings: [data], [subwords], [model], [training]")
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        help="laptop: a small model in five to ten minutes on a CPU; any flag beside it counts",
    )
    parser.add_argument("--store", default="float32", choices=("float32", "float16", "int8"), help="weights as stored")
    parser.add_argument("--keep-checkpoints", action="store_true", help="leave them in the folder")
    fitted = parser.add_argument_group("settings, fitted to the corpus unless given")
    for _, key, kind, about in flags(of):
        how = {"choices": kind} if isinstance(kind, tuple) else {"type": kind, "metavar": kind.__name__.upper()}
        fitted.add_argument(f"--{key.replace('_', '-')}", help=about, **how)
    fitted.add_argument("--score", metavar="KIND", help=f"{of.score_help}: dot, additive, general, …")
    fitted.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any other: training.clip=0.5; repeatable"
    )
    return parser


def _presets(of: Work[Any]) -> str:
    """What they set, for the corpus that they are made for."""
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
    return textwrap.fill(f"--preset laptop, for {CORPUS:,} pairs: {', '.join(parts)}", 100, break_on_hyphens=False)


def _assign(tables: dict[str, Any], assignment: str) -> None:
    """training.lr=1e-3 as in TOML; what is no TOML value is a string."""
    name, sign, value = assignment.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (sign and dot and key):
        raise ValueError(f"--set: expected TABLE.KEY=VALUE, got {assignment!r}")
    tables[table] = {**tables.get(table, {}), key: parse_value(value)}


def run(of: Work[Any], argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, 2 for bad input or an unwritable folder, 1 if training diverged or found
    no memory on the GPU."""
    try:
        settings, options = parse(of, argv)
    except (ValueError, TypeError, OSError) as error:
        return _failed(_message(error), 2)
    try:
        train(of, settings, options.out, store=options.store, keep_checkpoints=options.keep_checkpoints)
    except (ValueError, TypeError, OSError) as error:
        return _failed(_message(error), 2)
    except Diverged as error:
        return _failed(str(error), 1)
    except torch.OutOfMemoryError as error:
        return _failed(no_memory(error, settings.training, resumed(options.out)), 1)
    except KeyboardInterrupt:
        print(f"stopped; {resumed(options.out)}", file=sys.stderr)  # noqa: T201
        return 130
    return 0


def _failed(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    return code


def resumed(out: str) -> str:
    """What the same command will do, after a run into this folder that did not come to its end."""
    last = last_checkpoint(Path(out))
    if last is None:
        return "there is no checkpoint yet: the same command begins anew"
    return f"the same command goes on from the last checkpoint, of update {last:,}"


def no_memory(error: torch.OutOfMemoryError, training: Mapping[str, Any], again: str) -> str:
    """What can be done about it: the same update fits in smaller batches."""
    batches = 2 * int(training.get("accumulate", 1))
    return (
        f"{str(error).split('. ')[0]}. If other programs take its memory, end them: {again}. Else begin in another "
        f"folder with --set training.accumulate={batches}, which makes each update of smaller batches and learns the "
        "same"
    )


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)

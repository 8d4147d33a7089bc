"""Teacher, its translations and student, one after another, on a machine that is lent for minutes at a time.

    python recipes/en-fr-small/run.py --seconds 560 --copies copies --words french.gz

Each call does what is still to be done until its time is up, and the same call again goes on: a training that was
stopped from its last checkpoint, translations from their last shard. Before it ends, whatever is worth keeping is in
--copies, in parts of 15 MiB: the finished student, or the unfinished one without Adam's moments, or before it the
teacher (`parts.py join` makes folders of them again), and what was distilled. What stands after -- is given to both
trainings. Prepare the data before (`prepare.py`); --subwords that were learned before save half a minute of each.
With `--student again` the model of the package goes on instead of a new one, with its own subwords.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import parts
from distill import SETS, shards

RECIPE = Path(__file__).resolve().parent
GRACE = 15.0  # seconds that a stopped training has to come to its end
COPYING = 20.0  # and that the copies take


class Stage(NamedTuple):
    """Something to do: the command, given the seconds that are left, and whether it is done."""

    name: str
    command: Callable[[float], list[str]]
    done: Callable[[], bool]


def stages(folder: Path, options: argparse.Namespace) -> list[Stage]:
    data, out = folder / "data", folder / "shards"
    sets = tuple(options.sets.split(","))

    def train(name: str, settings: str) -> Stage:
        cut = ["--set", f"subwords.path={options.subwords}"] if options.subwords and settings != "again" else []
        where = ["--out", str(folder / name), "--store", "int8"]
        config = ["--config", str(RECIPE / f"{settings}.toml"), *where, *cut, *options.rest]
        return Stage(
            name,
            lambda _: [sys.executable, "-m", "regard", "train", *config],
            (folder / name / "model.safetensors").exists,
        )

    where = ["--data", str(data), "--out", str(out), "--sets", options.sets]
    script = [sys.executable, str(RECIPE / "distill.py"), *where]
    words = ["--words", str(options.words)] if options.words else []
    return [
        train("teacher", "teacher"),
        Stage(
            "distillation",
            lambda left: [*script, "--model", str(folder / "teacher"), "--minutes", f"{left / 60:.2f}"],
            lambda: all(path.exists() for path, _ in shards(data, out, sets, 8192)),
        ),
        Stage("merging", lambda _: [*script, "--merge", *words], (data / f"distilled-{sets[-1]}.tsv.gz").exists),
        train("student", options.student),
    ]


def run(todo: Sequence[Stage], deadline: float, say: Callable[[str], None]) -> str | None:
    """Does one after another until the deadline; the stage that is not done, if one is not."""
    for stage in todo:
        if stage.done():
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            return stage.name
        start = time.monotonic()
        say(f"{stage.name}: {left:.0f} s are left")
        process = subprocess.Popen(stage.command(left))
        try:
            code = process.wait(timeout=left)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
            say(f"{stage.name}: no time any more; the same command goes on with it")
            return stage.name
        if code:
            raise SystemExit(f"error: {stage.name} ended with exit code {code}; what it printed stands above")
        say(f"{stage.name}: {time.monotonic() - start:.0f} s")
        if not stage.done():
            return stage.name
    return None


def keep(folder: Path, copies: Path, say: Callable[[str], None]) -> None:
    """What a machine that forgets everything must not forget."""
    copies.mkdir(parents=True, exist_ok=True)
    for path in sorted((folder / "data").glob("distilled-*.gz")):
        shutil.copy(path, copies / path.name)
    student = folder / "student"
    if (student / "model.safetensors").exists():
        made = parts.split(student, copies, 15 * parts.MIB)
    elif any((student / "checkpoints").glob("state-*")):
        slim = folder / "slim" / "student"
        shutil.rmtree(slim, ignore_errors=True)
        made = parts.split(parts.slim(student, slim), copies, 15 * parts.MIB)
    elif (folder / "teacher" / "model.safetensors").exists():
        made = parts.split(folder / "teacher", copies, 15 * parts.MIB)
    else:
        made = []
    for path in made:
        say(f"{path.stat().st_size / parts.MIB:6.2f} MiB  {path}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="the whole call takes at most so many")
    parser.add_argument("--folder", type=Path, default=Path("out/en-fr-small"), help="where data/ is, and all is made")
    parser.add_argument("--copies", type=Path, help="what is worth keeping goes here")
    parser.add_argument(
        "--sets", default="tatoeba,mono,docs", help=f"that the teacher translates, of {', '.join(SETS)}"
    )
    parser.add_argument("--words", type=Path, help="French words that are not invented; see distill.py")
    parser.add_argument("--subwords", type=Path, help="a tokenizer.json, not to learn subwords anew")
    parser.add_argument("--student", default="student", choices=("student", "again"), help="which settings it has")
    parser.add_argument("rest", nargs="*", help="after --: settings of both trainings")
    options = parser.parse_args(arguments)
    start = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {message}", flush=True)

    reserved = GRACE + (COPYING if options.copies else 0.0)
    try:
        left = run(stages(options.folder, options), start + options.seconds - reserved, say)
    finally:
        if options.copies:
            keep(options.folder, options.copies, say)
    say(f"{left} is not done yet" if left else f"done: {options.folder / 'student'}")


if __name__ == "__main__":
    main()

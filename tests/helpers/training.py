"""Training by toy.toml: in this process, or in one of its own where it is killed, launched or limited."""

import contextlib
import io
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command(*arguments, launcher=()):
    return [sys.executable, *launcher, "-m", "regard", "train", "--config", "toy.toml", *arguments]


def main(arguments, task="translation"):
    """`regard train` in this process: its exit code."""
    from regard import cli

    return cli.main(["train", "--task", task, *arguments])


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def train_here(folder, *arguments):
    """Exit code, and what was said. It imports nothing anew, which takes ten times as long as a toy training."""
    from regard import cli

    before, said = os.getcwd(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = cli.main(["train", "--config", "toy.toml", *arguments])
    finally:
        os.chdir(before)
    return code, said.getvalue()


def train(folder, *arguments, launcher=(), limit=None):
    """Runs to its end in a process of its own; no file may become larger than ``limit`` bytes."""
    return subprocess.run(
        command(*arguments, launcher=launcher),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None,
    )

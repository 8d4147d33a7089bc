"""Commands run by tests, and the toy language's test set that they are run on."""

import os
import subprocess
import sys
from pathlib import Path

import toy

ROOT = Path(__file__).parents[2]
SOURCES, TARGETS, GOLD = (list(side) for side in zip(*toy.pairs(60, seed=1), strict=True))
PAIRS = list(zip(SOURCES, TARGETS, strict=True))


class Done:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self):
        return self.out.decode().split("\n")[:-1]


def process(*arguments, stdin=b"", module="regard", cwd=None):
    """Runs a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())

"""Several of these recipes side by side on one GPU: trained, tested, and packed into files of at most 15 MiB.

    python recipes/squad/run.py --out results                                  # all of them
    python recipes/squad/run.py qamr/minilm squad/both --out results --set training.updates=20
    python recipes/squad/run.py qamr/scratch qamr/scratch@additive --out results    # the same with another similarity

Needs what prepare.py and `encoder.py pack` wrote: out/squad, out/qamr, out/minilm. Leaves the models in out/, and in
--out their answers to the test questions, metrics, logs and, for those named by --bring, the models themselves without
the token vectors that they share (see encoder.py), stored as --store. On another machine:

    python recipes/en-fr-small/parts.py join results/answered.part-* --into out
    python recipes/squad/encoder.py fill out/answered/squad-both --into out/squad/both
    python recipes/squad/evaluate.py --questions out/squad/test.jsonl.gz --model out/squad/both
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "en-fr-small"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from parts import MIB, split

HERE = Path(__file__).resolve().parent
ALL = ("qamr/scratch", "qamr/minilm", "squad/scratch", "squad/minilm", "squad/both")


def plain(name: str, slash: str = "-") -> str:
    """As the name of a file."""
    return name.replace("/", slash).replace("@", "-")


def commands(name: str, results: Path, options: argparse.Namespace) -> list[list[str]]:
    """Train, test, and make small."""
    recipe, _, score = name.partition("@")
    model, data = Path("out") / plain(name, "/"), Path("out") / name.split("/")[0]
    changes = [part for change in options.set for part in ("--set", change)] + (["--score", score] if score else [])
    settings, questions = str(HERE.parent / f"{recipe}.toml"), str(data / "test.jsonl.gz")
    train = [
        sys.executable,
        "-m",
        "regard",
        "train",
        "--task",
        "qa",
        "--config",
        settings,
        "--out",
        str(model),
        *changes,
    ]
    test = [sys.executable, str(HERE / "evaluate.py"), "--questions", questions, "--model", str(model)]
    found = [train, [*test, "--out", str(results / "answers")]]
    if name in options.bring:
        small = [sys.executable, str(HERE / "encoder.py"), "slim", str(model), "--store", options.store]
        found.append([*small, "--into", str(results / plain(name))])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*ALL], help=f"of {', '.join(ALL)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bring", nargs="*", default=["qamr/scratch", "qamr/minilm", "squad/scratch", "squad/both"])
    parser.add_argument("--store", default="int8", choices=("float32", "float16", "int8"))
    parser.add_argument("--set", action="append", default=[], help="a setting for all of them, as regard train has it")
    options = parser.parse_args()
    results = Path(tempfile.mkdtemp()) / "answered"
    results.mkdir()
    begun, running = time.time(), {}
    for name in options.names:
        line = " && ".join(" ".join(f"'{part}'" for part in command) for command in commands(name, results, options))
        log = open(results / f"{plain(name)}.log", "wb")  # noqa: SIM115, the process writes to it
        running[name] = subprocess.Popen(["sh", "-c", line], stdout=log, stderr=subprocess.STDOUT)
    failed = False
    for name, process in running.items():
        code = process.wait()
        failed |= bool(code)
        log = results / f"{plain(name)}.log"
        said = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print(f"--- {name}: {'done' if not code else f'failed with {code}'}, {time.time() - begun:.0f} s", flush=True)
        print("\n".join(said[-6:] if not code else said[-25:]), flush=True)
        metrics = Path("out") / plain(name, "/") / "metrics.jsonl"
        if metrics.exists():
            shutil.copy(metrics, results / f"{plain(name)}.metrics.jsonl")
    for path in split(results, options.out, 15 * MIB):
        print(f"{path.stat().st_size / MIB:6.2f} MiB  {path}")
    sys.exit(failed)


if __name__ == "__main__":
    main()

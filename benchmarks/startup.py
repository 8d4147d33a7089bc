"""How long it takes until `regard translate "…"` has answered, and how much of it is importing torch.

    python benchmarks/startup.py             the fastest of 5 of each, in turn
    python benchmarks/startup.py --json      also into benchmarks/results/startup.json

Processes are started as a user does, one thread, nothing kept between them but the file cache. The parts come from
more turns under -X importtime: torch, what of regard and its other needs is imported, and the rest, which is Python's
own start and end, reading the model and searching.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time

from _measure import RESULTS, ROOT, machine

SENTENCE = "The cat sat on the mat."
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import regard": ["-c", "import regard"],
    "regard --help": ["-m", "regard", "--help"],
    "regard translate": ["-m", "regard", "translate", SENTENCE],
    "regard translate, ctranslate2": ["-m", "regard", "translate", "--engine", "ctranslate2", SENTENCE],
}


def run(arguments: list[str]) -> tuple[float, str]:
    """Seconds, and what was written to stderr."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    settings = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=settings, capture_output=True, text=True, check=True)
    return time.perf_counter() - start, done.stderr


def parts(turns: int) -> dict[str, float]:
    """Shares of the fastest run of the command: importing torch, importing all else, and the rest."""
    seconds, said = min(run(["-X", "importtime", *COMMANDS["regard translate"]]) for _ in range(turns))
    lines = [line.split("|") for line in said.splitlines() if re.match(r"import time: +\d", line)]
    own = sum(int(line[0].split(":")[1]) for line in lines)
    torch = next(int(line[1]) for line in lines if line[2].strip() == "torch")
    micro = {"torch": torch, "other imports": own - torch, "the rest": 1e6 * seconds - own}
    return {name: value / 1e6 / seconds for name, value in micro.items()}


def measure(turns: int) -> dict[str, float]:
    """The fastest of so many runs of each command, in turn, in seconds."""
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(turns):
        for name, arguments in COMMANDS.items():
            best[name] = min(best[name], run(arguments)[0])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="keep the figures")
    options = parser.parse_args()
    seconds, shares = measure(options.turns), parts(options.turns)
    for name, value in seconds.items():
        print(f"{name:32} {value:6.2f} s   {value / seconds['import torch']:5.2f} × import torch")
    print("of `regard translate`: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    if options.json:
        figures = {"machine": machine(), "seconds": seconds, "shares": shares}
        path = RESULTS / "startup.json"
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()

"""Every scoring function side by side: formula, parameters, lowering, kernel, and its cost as n and d grow.

    python examples/score_table.py             prints the tables (about two minutes)
    python examples/score_table.py --write     also refreshes them in docs/scores.md

Time is the best of several runs on one thread (--threads), forward only, batch 1, 4 heads. Memory is the growth of
a process's peak resident set during one call, so it holds everything beyond q, k, v and the parameters; it is read
from /proc, on Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import torch
from show import refresh
from torch import Tensor

import regard
from regard.attention.plan import describe
from regard.score import (
    Additive,
    ALiBi,
    Bias,
    Bilinear,
    Cosine,
    Dot,
    Function,
    General,
    Key,
    Location,
    PerHead,
    QKNorm,
    Relative,
    Rotary,
    Scale,
    Score,
    Softcap,
    T5Bias,
)

HEADS = 4
REACH = 32  # max_distance of the scores with a table of relative positions
SIZES = [(n, d) for d in (32, 64, 128) for n in (128, 512, 2048)]
FIT = [(n, 64) for n in (512, 1024, 2048)]  # below 512 much of the time is the call itself
DENSE_LIMIT = 2**30  # bytes of one n × n × d tensor, up to which the written-out formula is measured

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Entry:
    name: str
    formula: str
    paper: str
    make: Callable[[int, int], Score]  # of n and d


def mixed(n: int, d: int) -> Score:
    return PerHead((2, Dot()), (1, Additive(d, d, d)), (1, Rotary(Dot())))


def by_head(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s * (1 + 0.1 * h)


DOT, ADDITIVE = "`Dot()`", "`Additive(d, d, d)`"
VASWANI = "[Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)"
LUONG = "[Luong et al. 2015](https://arxiv.org/abs/1508.04025)"
SHAW = "[Shaw et al. 2018](https://arxiv.org/abs/1803.02155)"
ENTRIES = [
    Entry(DOT, "q·k / √d", VASWANI, lambda n, d: Dot()),
    Entry(
        "`Cosine()`",
        "τ · cos(q, k)",
        "[Liu et al. 2022](https://arxiv.org/abs/2111.09883)",
        lambda n, d: Cosine(heads=HEADS),
    ),
    Entry("`General(d, d)`", "qᵀ W k", LUONG, lambda n, d: General(d, d, heads=HEADS)),
    Entry(
        "`Bilinear(d, d, d/2)`",
        "(W_q q)ᵀ (W_k k)",
        f"{LUONG}, W of low rank",
        lambda n, d: Bilinear(d, d, d // 2, heads=HEADS),
    ),
    Entry(
        ADDITIVE,
        "vᵀ tanh(W q + U k)",
        "[Bahdanau et al. 2015](https://arxiv.org/abs/1409.0473)",
        lambda n, d: Additive(d, d, d, heads=HEADS),
    ),
    Entry(f"`Location(d, {REACH})`", "q · r_clip(j−i)", SHAW, lambda n, d: Location(d, REACH, heads=HEADS)),
    Entry(f"`Relative(d, {REACH})`", "q·(k + r_clip(j−i)) / √d", SHAW, lambda n, d: Relative(d, REACH, heads=HEADS)),
    Entry(
        f"`Relative(d, {REACH}, values=True)`",
        "the same; context + Σ_j α_ij r′_clip(j−i)",
        SHAW,
        lambda n, d: Relative(d, REACH, values=True, heads=HEADS),
    ),
    Entry(
        "`Rotary(Dot())`",
        "(R_i q)·(R_j k) / √d",
        "[Su et al. 2021](https://arxiv.org/abs/2104.09864)",
        lambda n, d: Rotary(Dot()),
    ),
    Entry(
        "`Dot() + ALiBi(4)`",
        "q·k / √d − m_h·abs(j−i)",
        "[Press et al. 2022](https://arxiv.org/abs/2108.12409)",
        lambda n, d: Dot() + ALiBi(HEADS),
    ),
    Entry(
        "`Dot() + T5Bias(4)`",
        "q·k / √d + b_h[bucket(j−i)]",
        "[Raffel et al. 2020](https://arxiv.org/abs/1910.10683)",
        lambda n, d: Dot() + T5Bias(HEADS),
    ),
    Entry("`Dot() + Key(d)`", "q·k / √d + w·k", "", lambda n, d: Dot() + Key(d, heads=HEADS)),
    Entry("`Dot() + Bias(b)`", "q·k / √d + b_ij", "", lambda n, d: Dot() + Bias(torch.randn(n, n))),
    Entry(
        "`Softcap(Dot(), 50.0)`",
        "c · tanh(q·k / (c √d))",
        "[Gemma 2, 2024](https://arxiv.org/abs/2408.00118)",
        lambda n, d: Softcap(Dot(), 50.0),
    ),
    Entry("`Scale(Dot(), heads=4)`", "s_h · q·k / √d", "", lambda n, d: Scale(Dot(), heads=HEADS)),
    Entry(
        "`QKNorm(Dot())`",
        "cos(q, k) / √d",
        "[Henry et al. 2020](https://arxiv.org/abs/2010.04245)",
        lambda n, d: QKNorm(Dot()),
    ),
    Entry("`Function(f)`", "f(q·k / √d, b, h, i, j), here s · (1 + 0.1 h)", "", lambda n, d: Function(by_head)),
    Entry("`PerHead(…)`: 2 Dot, 1 Additive, 1 Rotary", "one of them per group of heads", "", mixed),
]
WRITTEN_OUT = "Additive written out: `softmax(score(q, k)) @ v`"


def inputs(n: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, n, d)
    return q, k, v


def calls(n: int, d: int) -> Iterable[tuple[str, Call]]:
    """Every score as a call that attends once, and additive attention as a textbook writes it."""
    q, k, v = inputs(n, d)
    for entry in ENTRIES:
        score = entry.make(n, d)
        yield entry.name, lambda score=score: regard.attend(q, k, v, score=score)
    if HEADS * n * n * d * 4 <= DENSE_LIMIT:
        additive = Additive(d, d, d, heads=HEADS)
        yield WRITTEN_OUT, lambda: torch.softmax(additive(q, k), -1) @ v


def best_time(call: Call, budget: float = 0.05) -> float:
    """Seconds of the fastest run: one at least, more while the budget lasts.

    On one thread this is processor time, which is what a clock shows when nothing else runs.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: list[float] = []
    while not times or sum(times) < budget:
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def peak_memory(call: Call) -> float | None:
    """Bytes by which the resident set grew at its peak, or None where the system does not tell."""
    call()  # what the first call sets up for good does not count
    try:
        _return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present size
        before = _status("VmRSS")
        call()
        return max(_status("VmHWM") - before, 0)
    except OSError:
        return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _return_freed_memory() -> None:
    """Give back what earlier calls freed, and blocks of 64 KiB or more from now on: reused, they would not show."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for parameter in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(parameter, 2**16)
        libc.malloc_trim(0)


Results = dict[str, dict[tuple[int, int], float | None]]


def measure(sizes: list[tuple[int, int]], what: Callable[[Call], float | None], rounds: int = 1) -> Results:
    """The least of several rounds over everything, so that a busy moment does not stick to one score."""
    results: Results = {name: {} for name in (*(e.name for e in ENTRIES), WRITTEN_OUT)}
    for _ in range(rounds):
        for n, d in sizes:
            for name, call in calls(n, d):
                found = [x for x in (results[name].get((n, d)), what(call)) if x is not None]
                results[name][n, d] = min(found, default=None)
    return results


def measure_memory(sizes: list[tuple[int, int]], threads: int) -> Results:
    torch.set_num_threads(threads)
    with torch.no_grad():
        return measure(sizes, peak_memory)


def exponent(row: dict[tuple[int, int], float | None], sizes: list[tuple[int, int]]) -> str:
    """p of the fit time = c · n^p, by least squares over the logarithms."""
    points = [(math.log(n), math.log(t)) for n, d in sizes if (t := row.get((n, d))) is not None and t > 0]
    if len(points) < 2:
        return "–"
    x, y = torch.tensor(points, dtype=torch.float64).T
    x = x - x.mean()
    return f"{(x @ y / (x @ x)).item():.2f}"


def formulas(n: int, d: int) -> str:
    q, k, v = inputs(n, d)
    lines = ["| score | e_ij | parameters | paper | lowered to | kernel |", "|---|---|---:|---|---|---|"]
    for entry in ENTRIES:
        score = entry.make(n, d)
        with torch.no_grad():
            plan = regard.plan(q, k, v, score=score)
        training = regard.plan(q, k, v, score=score).kernel
        lowered = "; ".join(describe(choice.problem) for choice in plan.choices)
        kernel = plan.kernel if training == plan.kernel else f"{plan.kernel}; in training {training}"
        parameters = sum(p.numel() for p in score.parameters())
        lines.append(
            f"| {entry.name} | {entry.formula} | {parameters:,} | {entry.paper or '–'} | {lowered} | {kernel} |"
        )
    return "\n".join(lines)


def grid(results: Results, sizes: list[tuple[int, int]], fit: list[tuple[int, int]], unit: float, power: str) -> str:
    lines = ["| score | " + " | ".join(f"{n} × {d}" for n, d in sizes) + f" | {power} |"]
    lines.append("|---|" + "---:|" * (len(sizes) + 1))
    for name, row in results.items():
        cells = [_number(row.get(size), unit) for size in sizes]
        lines.append(f"| {name} | {' | '.join(cells)} | {exponent(row, fit)} |")
    return "\n".join(lines)


def _number(x: float | None, unit: float) -> str:
    if x is None:
        return "–"
    x /= unit
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def in_words(times: Results, size: tuple[int, int]) -> str:
    """The ratios a reader would work out, from the same run."""
    dot, additive, written_out = (times[name].get(size) for name in (DOT, ADDITIVE, WRITTEN_OUT))
    if dot is None or additive is None or written_out is None:
        return ""
    return (
        f"At n = {size[0]}, d = {size[1]}, additive attention takes {additive / dot:.1f} times as long as the dot "
        f"product. Written out, it takes {written_out / additive:.0f} times as long as through `regard.attend`."
    )


def machine() -> str:
    kind = {"x86_64": "x86-64", "AMD64": "x86-64"}.get(platform.machine(), platform.machine())
    threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    version = torch.__version__.split("+")[0]
    today = date.today()
    return f"{os.cpu_count()}-core {kind} CPU, {threads}, torch {version}, {today.day} {today:%B %Y}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only, to try the script")
    parser.add_argument("--write", action="store_true", help="refresh docs/scores.md")
    parser.add_argument("--threads", type=int, default=1, help="with 1, other programs disturb least (default)")
    args = parser.parse_args()
    if args.quick and args.write:
        parser.error("--write needs the full sizes; leave out --quick")
    torch.set_num_threads(args.threads)
    os.environ["NUMBA_NUM_THREADS"] = str(args.threads)  # numba is imported when a kernel needs it
    sizes, fit, rounds = ([(32, 16), (64, 16)],) * 2 + (1,) if args.quick else (SIZES, FIT, 4)
    start = time.perf_counter()
    first = formulas(*fit[0])
    with torch.no_grad():
        times = measure(sorted({*sizes, *fit}), best_time, rounds)
    at_64 = sizes if args.quick else SIZES[3:6]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:  # whose heap has no holes to fill unseen
        memory = fresh.submit(measure_memory, sorted({*at_64, *fit}), args.threads).result()
    tables = {
        "formulas": [first],
        "time": [
            f"Milliseconds, n × d. {machine()}.",
            grid(times, sizes, fit, 1e-3, "time ∝ n^"),
            in_words(times, fit[0]),
        ],
        "memory": [f"MiB beyond the inputs, n × d. {machine()}.", grid(memory, at_64, fit, 2**20, "memory ∝ n^")],
    }
    for name, parts in tables.items():
        text = "\n\n".join(parts)
        print(f"\n{text}")
        if args.write:
            refresh("scores.md", name, text)
    print(f"\nTook {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()

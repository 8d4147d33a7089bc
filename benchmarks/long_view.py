"""How long a look into 100,000 tokens takes over HTTP, what the service needs for it, and what n² JSON would weigh.

    python benchmarks/long_view.py [--tokens 100000] [--write]    --write puts the tables into docs/explorer.md

The service is a process of its own, `regard serve --trace file`, with one thread. Times are the CPU time that it spends
on a request, the least of several: how long a client waits on a machine that does nothing else. "Known" rows are those
whose logsumexp an earlier tile has left. Takes about two minutes; BertViz is measured where it is installed
(pip install --no-deps bertviz).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _measure import machine

import regard
from regard.score import Additive, Dot, Relative, Score

PAGE = Path(__file__).parent.parent / "docs" / "explorer.md"
DIM, HIDDEN, REACH, SIDE = 64, 32, 64, 256
SCORES: dict[str, Callable[[], Score]] = {
    "Dot": Dot,
    "Additive": lambda: Additive(DIM, DIM, HIDDEN),
    "Relative": lambda: Relative(DIM, REACH),
}
LENGTHS = (128, 512, 2048)


# --- the service ---


def save(path: Path, score: Score, tokens: int) -> Path:
    """A trace of one causal head with random queries and keys."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, tokens, DIM)
    trace = regard.Trace.of(q, k, k, score=score, mask=regard.mask.Causal())
    trace.label([f"token{i}" for i in range(tokens)])
    trace.save(path)
    return path


class Service:
    """`regard serve` of one trace, its answers timed."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--trace", str(path)]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert self.process.stderr is not None
        line = next((line for line in self.process.stderr if "Ctrl-C" in line), "")
        if not line:
            raise SystemExit("the service did not start")
        port = int(line.split(":")[3].split("/")[0])
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.at = f"/api/trace/{path.stem}"

    def seconds(self, rows: tuple[int, int], cols: tuple[int, int], tries: int = 1, **more: object) -> float:
        """The service's CPU time for a tile; asked again if that took too long and there are ``tries`` left."""
        asked = "".join(f"&{name}={value}" for name, value in more.items())
        start = self._spent()
        self.connection.request(
            "GET", f"{self.at}/tile?rows={rows[0]}:{rows[1]}&cols={cols[0]}:{cols[1]}&height={SIDE}&width={SIDE}{asked}"
        )
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status == 503 and tries > 1:
            return self.seconds(rows, cols, tries - 1, **more)
        if answer.status != 200:
            raise SystemExit(body.decode())
        return self._spent() - start

    def _spent(self) -> float:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text(encoding="utf-8").split()[0]) for task in tasks) * 1e-9

    def peak(self) -> int:
        """The most memory that the process ever had, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait(30)


def row(name: str, tokens: int, folder: Path, idle: int) -> str:
    """One score's row of the table."""
    path = save(folder / f"{name.lower()}.safetensors", SCORES[name](), tokens)
    service = Service(path)
    try:
        size, near = SIDE, min(1024, tokens - SIDE)
        service.seconds((0, size), (0, size), tries=5)  # what is made once, such as compiled kernels
        whole = (0, tokens)
        overview = min(service.seconds(whole, (i, tokens), samples=1) for i in range(5))  # a column less: none is kept
        cold, known = [], []
        for i in range(5):
            rows = (tokens - (i + 1) * size, tokens - i * size)  # the last rows see the most keys
            cold.append(service.seconds(rows, (near, near + size)))
            known += [service.seconds(rows, (near + j, near + j + size)) for j in range(1, 6)]
        peak = service.peak()
    finally:
        service.close()
    return (
        f"| {name} | {overview:.2f} s | {min(cold) * 1e3:.0f} ms | {min(known) * 1e3:.1f} ms | "
        f"{path.stat().st_size / 2**20:.0f} MiB | {(peak - idle) / 2**20:.0f} MiB |"
    )


def idle_memory(folder: Path) -> int:
    """What the service takes with a trace of nothing to speak of."""
    service = Service(save(folder / "small.safetensors", Dot(), 2 * SIDE))
    try:
        service.seconds((0, SIDE), (0, SIDE))
        return service.peak()
    finally:
        service.close()


# --- n² JSON ---


def json_bytes(n: int) -> int:
    """All weights of one causal head as JSON, as tools ship them that put every weight into their page."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, n, DIM)
    return len(json.dumps(regard.Trace.of(q, k, k, mask=regard.mask.Causal()).weights(0, 0).tolist()))


def bertviz_bytes(n: int) -> int | None:
    """The page that BertViz makes of one head, or None where it is not installed."""
    try:
        from bertviz import head_view
    except ImportError:
        return None
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, n, DIM)
    weights = regard.Trace.of(q, k, k, mask=regard.mask.Causal()).weights(0, 0)[None, None]
    page = head_view([weights], [f"token{i}" for i in range(n)], html_action="return")
    return len(page.data.encode())


def written(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def weights_table(tokens: int, trace: int) -> list[str]:
    """Bytes of all weights of one head; the last row is computed from the one before it: n² times its bytes a pair."""
    lines = ["| tokens | JSON of all weights | BertViz page | a tile of regard |", "|---:|---:|---:|---:|"]
    last: list[int | None] = []
    for n in LENGTHS:
        last = [json_bytes(n), bertviz_bytes(n)]
        shown = ["–" if size is None else written(size) for size in last]
        lines.append(f"| {n:,} | {shown[0]} | {shown[1]} | {written(4 * min(n, SIDE) ** 2)} |")
    grown = ["–" if size is None else f"≈ {written(size * (tokens / LENGTHS[-1]) ** 2)}" for size in last]
    lines.append(f"| {tokens:,} | {grown[0]} | {grown[1]} | {written(4 * SIDE**2)} |")
    return [
        *lines,
        "",
        f"One head. The last row is not measured: it is the row before it, times the square of the tokens' ratio. The "
        f"trace itself is {written(trace)} (Dot) and stays in the service.",
    ]


# --- in all ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/explorer.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    lines = [
        "| score | overview, sampled | a tile, rows new | a tile, rows known | file | memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        idle = idle_memory(folder)
        for score in SCORES:
            lines.append(row(score, options.tokens, folder, idle))
            print(lines[-1], flush=True)
        size = (folder / "dot.safetensors").stat().st_size
    lines += [
        "",
        f"{options.tokens:,} tokens, one causal head of {DIM} dims (Additive: {HIDDEN} hidden, Relative: {REACH} "
        f"distances to each side), tiles of {SIDE} × {SIDE} over HTTP, the new rows being the last ones, which see all "
        f"keys; CPU time of the service, float32, one thread of {about['cpu']}, torch {about['torch']}, "
        f"{about['date']}. Memory is the peak above that of the same service with a short trace "
        f"({idle / 2**20:.0f} MiB, most of it PyTorch).",
        "",
        *weights_table(options.tokens, size),
    ]
    print("\n".join(lines[len(SCORES) + 2 :]))
    if options.write:
        before, rest = PAGE.read_text(encoding="utf-8").split("<!-- long:begin -->")
        after = rest.split("<!-- long:end -->")[1]
        table = "\n".join(lines)
        PAGE.write_text(f"{before}<!-- long:begin -->\n{table}\n<!-- long:end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The measured tables of docs/kernels.md, made from the JSON files in benchmarks/results/; plots.py puts them there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extremes
import torch
from _measure import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from show import DOCS, refresh

sys.path.insert(0, str(ROOT))
from regard.kernels.gpu.additive import TOLERANCE
from regard.kernels.gpu.series import SERIES

PAGE = "kernels.md"
Table = list[list[str]]
# An H200 by its data sheet: multiprocessors × lanes × clock; special functions a clock; float16 tensor cores; memory.
CLOCK = 132 * 1.98e9
H200 = {"float32": 128 * CLOCK, "special": 16 * CLOCK, "tensor": 989e12 / 2, "bytes": 4.8e12}
PAIRS, UNITS = 16 * 2048**2, 64  # of the table of floors
LANES = 16  # float32 numbers of a 512-bit vector


def read(folder: Path, name: str) -> dict[str, Any]:
    file = folder / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def markdown(head: list[str], rows: Table) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def floors(folder: Path) -> str:
    """Per four hidden units of a pair: instructions; the cycles of a core that takes one 512-bit multiplication a
    cycle (additions run beside it); milliseconds of an H200, 16 heads, n 2048, d 64 (additions take their turn there).
    """
    forms = {  # multiplications and multiply-adds, additions, minima, special functions
        "tanh, one by one": (4, 4, 0, 4),
        "fractions, w in the numerators": (13, 1, 4, 1),
        "fractions, w in the denominators": (9, 3, 0, 1),
        "the same, clamped": (9, 3, 8, 1),
        "wide, two per reciprocal": (12, 8, 4, 6),
        "gradients by fractions": (21, 12, 0, 1),
    }
    rows = []
    groups = PAIRS * UNITS / 4
    for name, (multiply, add, least, special) in forms.items():
        gpu = max((multiply + add + least) / H200["float32"], special / H200["special"])
        cycles = "–" if special > 1 else f"{multiply * UNITS / 4 / LANES:.0f}"  # a polynomial there, not an instruction
        cells = (multiply, add, least, special, cycles, f"{1e3 * groups * gpu:.2f}")
        rows.append([name, *map(str, cells)])
    head = ["", "× and ×+", "+", "min, max", "÷, exp, tanh", "CPU: cycles per pair, d 64", "H200: ms"]
    return markdown(head, rows)


def tensor_floor(folder: Path) -> str:
    """Of the series: features of 2 M d, a context of d, on tensor cores; and writing and reading the features."""
    rows = []
    for terms in (5, 8, 12, 16):
        product = PAIRS * UNITS * (2 * terms + 1) / H200["tensor"]
        traffic = 2 * 2 * 2 * (16 * 2048 * 2 * terms * UNITS) / H200["bytes"]
        rows.append([str(terms), f"{1e3 * product:.3f}", f"{1e3 * traffic:.3f}"])
    return markdown(["M", "products, ms", "features written and read once, ms"], rows)


def at_the_ends(folder: Path) -> str:
    torch.manual_seed(0)
    head = ["a and b", "context", "gradients", "textbook: context", "gradients"]
    return markdown(head, extremes.rows())


def picture(name: str, words: str) -> str:
    """The line that shows a plot, if it was drawn."""
    return f"\n\n![{words}](img/{name}.svg)" if (DOCS / "img" / f"{name}.svg").exists() else ""


def memory(folder: Path) -> str | None:
    return picture("kernel-memory", "Peak memory of forward and backward together, against n").strip() or None


def series(folder: Path) -> str:
    """How far each number of terms reaches."""
    bf16, fp16 = (SERIES[TOLERANCE[dtype]] for dtype in (torch.bfloat16, torch.float16))
    rows = [[str(len(x[1])), f"{x[0]:.2f}", f"{y[0]:.2f}"] for x, y in zip(bf16, fp16, strict=True)]
    return markdown(["M", "R, bfloat16", "R, float16"], rows)


def terms(folder: Path) -> str | None:
    """Time and error of the series against M on the GPU."""
    found = read(folder, "h200-additive")
    if not isinstance(found.get("terms"), dict):
        return None
    rows = [[m, f"{x['ms']:.3f}", f"{x['error']:.1e}"] for m, x in found["terms"].items()]
    return markdown(["M", "ms", "error of the output"], rows)


def cpu(folder: Path) -> str | None:
    found = read(folder, "cpu")
    if not found.get("rows"):
        return None
    rows = [row for row in found["rows"] if "limit" in row["ms"]] + found.get("decode", [])
    peers = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    about, ceiling = found["machine"], found["ceilings"]
    cells = [[row["what"], *(f"{row['ms'][p]:.2f}" if p in row["ms"] else "–" for p in peers)] for row in rows]
    note = (
        f"Milliseconds. {about['cpu']}, {about['threads']} threads, {about['vectors']}; torch {about['torch']}, numba "
        f"{about['numba']}, keras {about['keras']}; {about['date']}. Ceilings in the same run: "
        f"{ceiling['multiply_adds_per_second'] / 1e9:.0f} billion multiply-adds and "
        f"{ceiling['bytes_per_second'] / 1e9:.0f} GB a second."
    )
    plot = picture("kernel-time-cpu", "Forward time against n and d on a CPU")
    return markdown(["", *peers], cells) + "\n\n" + note + plot


def gpu(folder: Path) -> str | None:
    """Additive attention in each type against its peers."""
    found = read(folder, "h200-additive")
    rows = []
    for dtype in ("fp32", "bf16", "fp16"):
        for what in ("forward", "backward"):
            ours, eager, *others = (found.get(f"{who} {dtype}") or {} for who in ("ours", "eager", "compiled", "dot"))
            if f"{what} graph" in ours:
                ms = [ours[f"{what} graph"], *(x.get(what) for x in (eager, *others))]
                size = f"{what} GiB"
                cells = [f"{ours[size]:.2f} / {eager[size]:.0f}"] if size in ours and size in eager else ["–"]
                ratio = f"{ms[1] / ms[0]:.0f}×" if ms[1] else "–"
                rows.append([f"{dtype}, {what}", *("–" if x is None else f"{x:.2f}" for x in ms), ratio, *cells])
    if not rows:
        return None
    about = found["machine"]
    note = (
        f"Milliseconds, 16 heads, n 2048, d 64, regard replayed as a CUDA graph (host time is in "
        f"`benchmarks/results/`); GiB: peak beyond the inputs. {about['gpu']}, torch {about['torch']}, "
        f"triton {about['triton']}; {about['date']}."
    )
    plot = picture("kernel-time-h200", "Forward time against n and d on an H200")
    return (
        markdown(
            ["additive", "regard", "textbook eager", "compiled", "SDPA dot", "eager / regard", "GiB, regard / eager"],
            rows,
        )
        + "\n\n"
        + note
        + plot
    )


def relative(folder: Path) -> str | None:
    """Scores with relative position on the GPU, against FlexAttention."""
    found = read(folder, "h200-offset")
    times = {(r["what"], r["causal"]): r for r in found.get("rows") or []}
    rows = []
    for causal in (False, True):
        for name in dict.fromkeys(what.removeprefix("attend ") for what, _ in times if what.startswith("attend ")):
            parts = [times.get((f"{who} {name}", causal)) for who in ("kernel", "attend", "flex")]
            cells = ["–" if r is None else f"{r['fwd']:.2f} / {r['bwd']:.2f}" for r in parts]
            rows.append([name + ", causal" * causal, *cells])
        for name in ("SDPA dot", "flex dot"):
            r = times.get((name, causal))
            if r is not None:
                rows.append([name + ", causal" * causal, "–", "–", f"{r['fwd']:.2f} / {r['bwd']:.2f}"])
    if not rows:
        return None
    note = "Milliseconds, forward / backward; 4 × 16 heads, n 4096, d 64, bfloat16, the same machine."
    return markdown(["score", "kernel", "`regard.attend`", "FlexAttention, or as named"], rows) + "\n\n" + note


def decoding(folder: Path) -> str | None:
    """One query and a long cache on the GPU, beside reading the cache once."""
    rows = []
    for r in read(folder, "h200-offset").get("decode") or []:
        rows.append([r["what"], f"{r['ms']:.3f}", f"{r['floor_ms']:.3f}", f"{r['ms'] / r['floor_ms']:.2f}"])
    found = read(folder, "h200-additive")
    for dtype in ("bf16", "fp32"):
        r = found.get(f"decode {dtype}")
        if isinstance(r, dict):
            name = f"additive {dtype}, 1x16 heads, 65536 keys"
            rows.append([name, f"{r['ms']:.3f}", f"{r['limit']:.3f}", f"{r['ms'] / r['limit']:.2f}"])
    return markdown(["one step", "ms", "cache read once at 4 TB/s, ms", "ratio"], rows) if rows else None


def exponents(folder: Path) -> str | None:
    """Of time and memory, by machine."""
    rows = []
    files = [folder / "cpu.json", *sorted(folder.glob("*-sweeps.json"))]
    for file in files:
        found = read(folder, file.stem)
        where = file.stem.removesuffix("-sweeps")
        for field, what in (("sweeps", "time"), ("memory", "memory")):
            for s in found.get(field) or []:
                title = f"{where}, {s['dtype']}, {what} against {s['over']}"
                rows.append((title, s["exponents"]))
    found = read(folder, "h200-additive")
    for over in ("n", "d"):
        for dtype in ("fp32", "bf16"):
            e = (found.get(f"over {over}, {dtype}") or {}).get("exponents") or {}
            for what, keys in (("time", ("forward", "backward")), ("memory", ("forward GiB", "backward GiB"))):
                if all(key in e for key in keys):
                    cells = {"additive": e[keys[0]], "additive backward": e[keys[1]]}
                    rows.append((f"h200, {dtype}, {what} against {over}", cells))
    if not rows:
        return None
    names = list(dict.fromkeys(name for _, p in rows for name in p))
    cells = [[title, *("–" if p.get(n) is None else f"{p[n]:.2f}" for n in names)] for title, p in rows]
    return markdown(["exponent", *names], cells)


TABLES: dict[str, Callable[[Path], str | None]] = {
    "floors": floors,
    "tensor": tensor_floor,
    "extremes": at_the_ends,
    "memory": memory,
    "series": series,
    "terms": terms,
    "cpu": cpu,
    "gpu": gpu,
    "relative": relative,
    "decoding": decoding,
    "exponents": exponents,
}


def refresh_all(folder: Path) -> list[str]:
    """Write the tables whose figures are there into the page; their names."""
    done = []
    for name, make in TABLES.items():
        text = make(folder)
        if text is not None:
            refresh(PAGE, name, text)
            done.append(name)
    return done

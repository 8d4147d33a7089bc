"""Draws the plots of docs/kernels.md and refreshes its tables, from what benchmarks/results/ holds.

    python benchmarks/plots.py [--out docs/img] [--results benchmarks/results] [--png]

Two plots are of arithmetic alone and need no results: the error of the sine series against its number of terms, and the
error of the fractions against the range. The others are left out, with a line that says so, where their figures are
missing. The same numbers give the same files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fit_series
import numpy as np
import tables
from _measure import RESULTS, ROOT

sys.path.insert(0, str(ROOT / "examples"))
from show import pyplot, save

REACHES, TERMS = (4, 8, 16), range(2, 17)
LEAST = 1e-7
SWITCH = 33.0  # cpu_additive's RANGE in float32
UNITS, PAIRS = 64, 4096  # hidden units and pairs of the plot of the fractions
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#8A4F7D"  # told apart by every kind of colour vision
STYLES: dict[str, dict[str, Any]] = {
    "additive": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "relative": {"color": GREEN, "marker": "^", "linestyle": "-"},
    "SDPA dot": {"color": "0.35", "marker": "x", "linestyle": ":"},
    "additive eager": {"color": ORANGE, "marker": "s", "linestyle": "--"},
}


# --- the error of the series ---


def closed_form(reach: float, terms: int) -> float:
    """Largest error on |x| ≤ reach of c_m = (π/L) / sinh(π ω_m/2) for the best L."""
    x, errors = np.linspace(0, reach, 600), []
    for length in np.linspace(0.5 * reach + 0.3, 3 * reach, 60):
        omega = (2 * np.arange(1, terms + 1) - 1) * np.pi / (2 * length)
        errors.append(np.abs(fit_series.values(x, omega, np.pi / length / np.sinh(np.pi * omega / 2))[0]).max())
    return float(min(errors))


def least_squares(reach: float, terms: int) -> float:
    """The same with coefficients by least squares."""
    return float(np.abs(fit_series.values(np.linspace(0, reach, 600), *fit_series.start(reach, terms))[0]).max())


def fitted(reach: float, terms: int) -> float:
    """The same with frequencies fitted too, and the slope along with the value: what the kernels use."""
    return fit_series.fit(reach, terms)[0]


FORMS: dict[str, tuple[Callable[[float, int], float], dict[str, Any]]] = {
    "closed form": (closed_form, {"color": ORANGE, "marker": "s", "linestyle": "--"}),
    "least squares": (least_squares, {"color": GREEN, "marker": "^", "linestyle": "-."}),
    "frequencies and slope fitted too": (fitted, {"color": BLUE, "marker": "o", "linestyle": "-"}),
}


def series_error(plt: Any) -> Any:
    figure, axes = plt.subplots(1, len(REACHES), figsize=(11, 3.8), layout="constrained", sharey=True)
    for axis, reach in zip(axes, REACHES, strict=True):
        for name, (error, style) in FORMS.items():
            errors = [error(reach, m) for m in TERMS]
            end = next((i for i, e in enumerate(errors) if e < LEAST), len(errors))  # below it the fit is but noise
            axis.semilogy(TERMS[:end], errors[:end], label=name, markersize=4, linewidth=1.5, **style)
        for kind, tolerance in zip(("bfloat16", "float16"), fit_series.TOLERANCES, strict=True):
            allowed = tolerance * min(1.0, (reach / 10) ** 2)
            axis.axhline(allowed, color="0.6", linewidth=1, linestyle=":")
            x, side = (16, "right") if reach <= 4 else (1.8, "left")  # where no line runs
            axis.text(x, allowed * 1.1, kind, color="0.35", ha=side, va="bottom", fontsize=8)
        tidy(axis, title=f"|x| ≤ {reach}", xlabel="M, the number of sines", ylim=(LEAST / 3, 1.5))
        axis.set_xticks(range(2, 17, 2))
    axes[0].set_ylabel("largest error of tanh")
    axes[2].legend(frameon=False, loc="lower left", fontsize=9)
    return figure


# --- the error of the fractions ---


def textbook(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (w * np.tanh(a + b)).sum(-1)


def by_fractions(a: np.ndarray, b: np.ndarray, w: np.ndarray, wide: bool) -> np.ndarray:
    """Σ w tanh(a + b) as the kernels compute it, in the dtype of the arguments: one division for four units."""
    one, limit, largest = a.dtype.type(1), a.dtype.type(2.0**30), np.abs(w).max()
    u = np.where(w < 0, -1, 1).astype(a.dtype) * np.maximum(np.abs(w / largest), one / limit)
    if wide:
        y = (one + np.exp(np.minimum(2 * a + 2 * b, 80))) / u
    else:
        y = one / u + np.exp(2 * a) / u * np.exp(2 * b)
    y0, y1, y2, y3 = np.moveaxis(np.clip(y, -limit, limit).reshape(*y.shape[:-1], -1, 4), -1, 0)
    p, q = y0 * y1, y2 * y3
    return w.sum() - 2 * largest * (((y0 + y1) * q + (y2 + y3) * p) / (p * q)).sum(-1)


def fraction_error(plt: Any) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", sharey=True)
    ranges = np.geomspace(0.1, 1e4, 31)
    forms: dict[str, tuple[Callable[..., np.ndarray], dict[str, Any]]] = {
        "textbook, float32": (textbook, {"color": ORANGE, "marker": "s", "linestyle": "--"}),
        "fractions, $e^{2a}\\,e^{2b}$": (lambda *x: by_fractions(*x, False), {"color": BLUE, "marker": "o"}),
        "fractions, $e^{2a+2b}$ (wide)": (lambda *x: by_fractions(*x, True), {"color": GREEN, "marker": "^"}),
    }
    for axis, opposite in zip(axes, (False, True), strict=True):
        for name, (form, style) in forms.items():
            errors = [score_error(form, r, opposite) for r in ranges]
            axis.loglog(ranges, errors, label=name, markersize=4, linewidth=1.5, **style)
        axis.axvline(SWITCH, color="0.6", linewidth=1, linestyle=":")
        axis.text(SWITCH * 1.1, 1.3e-9, f"{SWITCH:g}: the kernel\nturns to the wide form", color="0.35", fontsize=9)
        title = "b = −a + a number in ±3" if opposite else "a and b drawn alone"
        tidy(axis, title=title, xlabel="largest |a|, |b|", ylim=(1e-9, 1e-5))
    axes[0].set_ylabel("largest error of a score / Σ|w|")
    axes[1].legend(frameon=False, loc="upper left", fontsize=9)
    return figure


def score_error(form: Callable[..., np.ndarray], reach: float, opposite: bool) -> float:
    """Against float64 on the same float32 numbers; NaN, which is not drawn, where exponentials leave the range."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-reach, reach, (2, PAIRS, UNITS)).astype(np.float32)
    w = rng.normal(size=UNITS).astype(np.float32)
    if opposite:
        b = (rng.uniform(-3, 3, b.shape) - a).astype(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        got = form(a, b, w).astype(np.float64)
    exact = textbook(*(x.astype(np.float64) for x in (a, b, w)))
    return float(np.abs(got - exact).max() / np.abs(w).sum())


# --- time and memory, measured ---


def time_plot(plt: Any, results: dict[str, Any]) -> Any | None:
    """Rows: dtypes; columns: against n, against d."""
    sweeps = results.get("sweeps") or []
    dtypes = list(dict.fromkeys(s["dtype"] for s in sweeps))
    if not sweeps:
        return None
    figure, axes = plt.subplots(
        len(dtypes), 2, figsize=(13, 0.6 + 3.2 * len(dtypes)), layout="constrained", squeeze=False
    )
    for s in sweeps:
        axis = axes[dtypes.index(s["dtype"])][("n", "d").index(s["over"])]
        lines(axis, s, "ms", 1.0)
        fixed = f"d {s['d']}" if s["over"] == "n" else f"n {s['n']}"
        tidy(axis, title=f"{s['heads']} heads, {fixed}, {s['dtype']}", xlabel=s["over"], ylabel="forward, ms")
    figure.suptitle(name_of(results), fontsize=10, color="0.35")
    return figure


def memory_plot(plt: Any, found: dict[str, dict[str, Any]]) -> Any | None:
    """A panel for each machine."""
    memory = [(r, m) for r in found.values() for m in r.get("memory") or []]
    if not memory:
        return None
    figure, axes = plt.subplots(1, len(memory), figsize=(6.5 * len(memory), 3.6), layout="constrained", squeeze=False)
    for axis, (results, m) in zip(axes[0], memory, strict=True):
        lines(axis, m, "bytes", 2**20)
        title = f"{m['heads']} heads, d {m['d']}, {m['dtype']}\n{name_of(results)}"
        tidy(axis, xlabel="n", ylabel="added to the peak, MiB")
        axis.set_title(title, fontsize=9)
    return figure


def lines(axis: Any, sweep: dict[str, Any], field: str, scale: float) -> None:
    """One line per contender, with its exponent in the legend."""
    for name, y in sweep[field].items():
        points = [(a, b / scale) for a, b in zip(sweep["x"], y, strict=True) if b]
        if not points:
            continue
        p = sweep["exponents"].get(name)
        label = name if p is None else f"{name}: {sweep['over']}$^{{{p:.2f}}}$"
        axis.loglog(*zip(*points, strict=True), label=label, markersize=5, linewidth=1.5, **STYLES.get(name, {}))
    axis.set_xscale("log", base=2)
    axis.set_xticks(sweep["x"], [str(x) for x in sweep["x"]])
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def name_of(results: dict[str, Any]) -> str:
    about = results["machine"]
    where = about.get("gpu") or f"{about['cpu']}, threads: {about['threads']}"
    return f"{where}, torch {about['torch']}, {about['date']}"


def tidy(axis: Any, **settings: Any) -> None:
    axis.set(**settings)
    axis.minorticks_off()
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


# --- all of it ---


def figures(plt: Any, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """By file name; None where figures are missing."""
    drawn = {"kernel-series-error": series_error(plt), "kernel-fraction-error": fraction_error(plt)}
    for machine, results in found.items():
        drawn[f"kernel-time-{machine}"] = time_plot(plt, results)
    drawn["kernel-memory"] = memory_plot(plt, found)
    return drawn


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Results with sweeps, by machine: cpu.json, and NAME-sweeps.json as benchmarks/gpu.py writes it."""
    files = {"cpu": folder / "cpu.json", **{f.name.split("-")[0]: f for f in sorted(folder.glob("*-sweeps.json"))}}
    found = {}
    for name, file in files.items():
        if file.exists():
            found[name] = json.loads(file.read_text(encoding="utf-8"))
        else:
            print(f"{file}: not there; `make bench` writes it")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--png", action="store_true", help="PNG instead of SVG, to look at")
    args = parser.parse_args()
    plt = pyplot()
    if plt is not None:
        for name, figure in figures(plt, load(args.results)).items():
            path = args.out / f"{name}.{'png' if args.png else 'svg'}"
            if figure is None:
                print(f"{name}: left out, its figures are missing")
                continue
            save(figure, path)
            plt.close(figure)
            print(f"drew {path}")
    if args.results == RESULTS and args.out == ROOT / "docs" / "img":
        for name in tables.refresh_all(args.results):
            print(f"refreshed the table {name} of docs/kernels.md")


if __name__ == "__main__":
    main()

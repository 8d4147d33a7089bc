"""The figures of docs/evidence.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from _evidence_tables import SETS, tasks

BLUE, ORANGE = "#0072B2", "#D55E00"  # told apart by every kind of colour vision


def pronoun_heads(plt: Any, results: dict[str, Any]) -> Any:
    """How often each head is right, both collections; a ring where luck does not explain it."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.3), layout="constrained", sharey=True)
    for axis, which in zip(axes, SETS, strict=True):
        found = results["winograd"][which]["measures"]["weights"]
        rates, p = np.array(found["heads"]), np.array(found["p"])
        image = axis.imshow(100 * rates, cmap="RdBu_r", vmin=40, vmax=60, aspect="auto")
        rows, columns = np.nonzero(p < 0.05)
        axis.scatter(columns, rows, s=180, facecolors="none", edgecolors="black", linewidths=1.5)
        axis.set(title=f"{which.capitalize()}, {results['winograd'][which]['cases']} sentences", xlabel="head")
        axis.set_xticks(range(rates.shape[1]))
        axis.set_yticks(range(rates.shape[0]))
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="right, %", shrink=0.9)
    return figure


def fact_heads(plt: Any, results: dict[str, Any]) -> Any:
    """The share of the supporting facts in each head and task, as a multiple of chance."""
    some = tasks(results["babi"])
    grids, widths = [], []
    for look in ("question", "answer"):
        shares = [np.array(x["trained"][f"{look} weights"]["share"]) for _, x in some]
        grids.append(np.stack([s.flatten() / x["chance"]["share"] for s, (_, x) in zip(shares, some, strict=True)]))
        widths.append(shares[0].shape)
    ratio = [grid.shape[1] for grid in grids]
    figure, axes = plt.subplots(
        1, 2, figsize=(11, 0.9 + 0.27 * len(some)), layout="constrained", sharey=True, width_ratios=ratio
    )
    titles = ("from the question, encoder", "from the answer, cross-attention")
    for axis, grid, (layers, heads), title in zip(axes, grids, widths, titles, strict=True):
        image = axis.imshow(np.log2(np.maximum(grid, 1e-3)), cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto")
        for edge in range(1, layers):
            axis.axvline(edge * heads - 0.5, color="0.2", linewidth=1)
        axis.set_xticks([heads * (i + 0.5) - 0.5 for i in range(layers)], [f"layer {i}" for i in range(layers)])
        axis.set_title(title, fontsize=10)
        axis.tick_params(length=0)
    axes[0].set_yticks(range(len(some)), [f"{n} {x['name']}" for n, x in some], fontsize=8)
    bar = figure.colorbar(image, ax=axes, label="share, × chance", shrink=0.9)
    bar.set_ticks([-2, -1, 0, 1, 2], labels=["¼", "½", "1", "2", "4"])
    return figure


def facts_taken(plt: Any, results: dict[str, Any]) -> Any:
    """How often the answer changes: supporting facts removed, hidden from the answer's attention, others removed."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained", sharey=True)
    for axis, (which, title) in zip(axes, (("babi", "seed 1"), ("babi_seed2", "seed 2")), strict=True):
        some = [(n, x["together"]) for n, x in tasks(results[which]) if x["together"]["questions"]]
        bars = {
            "supporting facts removed": ([t["not_told"]["gold"] for _, t in some], BLUE),
            "hidden from the answer's attention": ([t["hidden"]["gold"] for _, t in some], ORANGE),
            "as many other facts removed": ([t["not_told"]["other"] for _, t in some], "0.6"),
        }
        at = np.arange(len(some))
        for k, (name, (values, color)) in enumerate(bars.items()):
            axis.bar(at + 0.27 * (k - 1), [100 * x for x in values], 0.25, label=name, color=color)
        axis.set_xticks(at, [n for n, _ in some])
        axis.set(title=title, xlabel="task", ylim=(0, 100))
        axis.grid(axis="y", color="0.9")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("answers that change, %")
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside upper center", ncols=3)
    return figure


FIGURES = {"evidence-pronouns": pronoun_heads, "evidence-facts": fact_heads, "evidence-changes": facts_taken}

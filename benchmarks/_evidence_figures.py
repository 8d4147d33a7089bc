"""The figures of docs/evidence.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from _evidence_tables import SETS, tasks

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by every kind of colour vision


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
    """How often the answer changes: supporting facts not told, hidden from the answer's attention, others not told."""
    models = (("babi", "{}"), ("babi_task1", "{}, another\nmodel"))
    each = [(name.format(n), x) for which, name in models for n, x in tasks(results[which])]
    some = [(name, x) for name, x in each if x["together"]["questions"]]
    bars = {
        "supporting facts not told": ([x["together"]["not_told"]["gold"] for _, x in some], BLUE),
        "told, but hidden from the answer's attention": ([x["together"]["hidden"]["gold"] for _, x in some], ORANGE),
        "as many other facts not told": ([x["together"]["not_told"]["other"] for _, x in some], "0.6"),
    }
    figure, axis = plt.subplots(figsize=(11, 3.6), layout="constrained")
    at = np.arange(len(some))
    for k, (name, (values, color)) in enumerate(bars.items()):
        axis.bar(at + 0.27 * (k - 1), [100 * x for x in values], 0.25, label=name, color=color)
    axis.set_xticks(at, [n for n, _ in some])
    axis.set(xlabel="task", ylabel="answers that change, %", ylim=(0, 100))
    axis.grid(axis="y", color="0.9")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3)
    return figure


FIGURES = {"evidence-pronouns": pronoun_heads, "evidence-facts": fact_heads, "evidence-changes": facts_taken}

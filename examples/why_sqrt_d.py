"""Why the dot product is divided by √d: variance, entropy and gradient as d grows, measured.

Queries and keys of independent numbers with mean 0 and variance 1 have dot products of variance d; the paper's
remedy is the factor 1/√d (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.1).

    python examples/why_sqrt_d.py               prints the table, draws out/why-sqrt-d.png
    python examples/why_sqrt_d.py --write       refreshes docs/why-sqrt-d.md and its picture
"""

from __future__ import annotations

import argparse
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from show import DOCS, heading, pyplot, refresh, save
from torch import Tensor

import regard
from regard.score import Bias, Dot

DIMS = (1, 4, 16, 64, 256, 1024)
KEYS = 64
PICTURE = Path("out") / "why-sqrt-d.png"


@dataclass(frozen=True)
class Row:
    """What happened at one d: over all draws, the scores' variance and the means or quartiles of the rest."""

    variance: float
    entropy: float  # of a row of weights, in nats; log(KEYS) when uniform
    largest: float  # weight of a row
    low: float  # quartiles of the norm of a row's gradient
    gradient: float
    high: float


def measure(draws: int = 1000, seed: int = 0) -> dict[str, list[Row]]:
    """One row per d, without and with the scale."""
    random = torch.Generator().manual_seed(seed)
    scores = {"unscaled": Dot(scale=1.0), "scaled": Dot()}
    rows: dict[str, list[Row]] = {name: [] for name in scores}
    for d in DIMS:
        q, k = torch.randn(draws, 1, 1, d, generator=random), torch.randn(draws, 1, KEYS, d, generator=random)
        pull = torch.randn(draws, 1, 1, KEYS, generator=random)
        for name, score in scores.items():
            rows[name].append(_row(q, k, pull, score))
    return rows


def _row(q: Tensor, k: Tensor, pull: Tensor, score: Dot) -> Row:
    """One query per draw. The values are the identity, so the context is the weights themselves; each weight is
    pulled by a random number, and a zero added to every score catches the gradient that comes through."""
    zero = torch.zeros(len(q), 1, 1, KEYS, requires_grad=True)
    s = regard.steps(q, k, torch.eye(KEYS)[None], score=score + Bias(zero))
    (pull * s.context).sum().backward()
    assert zero.grad is not None
    entropy = torch.special.entr(s.weights).sum(-1)
    low, middle, high = zero.grad.norm(dim=-1).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    return Row(s.scaled.var().item(), entropy.mean().item(), s.weights.amax(-1).mean().item(), low, middle, high)


def as_markdown(rows: dict[str, list[Row]]) -> str:
    lines = [
        "| d | variance of q·k | of q·k/√d | entropy | scaled | largest weight | scaled | gradient | scaled |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for d, a, b in zip(DIMS, rows["unscaled"], rows["scaled"], strict=True):
        cells = (f"{a.variance:.2f}", f"{b.variance:.2f}", f"{a.entropy:.2f}", f"{b.entropy:.2f}")
        cells += (f"{a.largest:.2f}", f"{b.largest:.2f}", f"{a.gradient:.5f}", f"{b.gradient:.5f}")
        lines.append(f"| {d} | {' | '.join(cells)} |")
    return "\n".join(lines)


def as_text(rows: dict[str, list[Row]]) -> str:
    head = f"{'':>6}{'variance':>20}{'entropy':>18}{'largest weight':>18}{'gradient':>20}"
    lines = [head, f"{'d':>6}" + f"{'q·k':>11}{'/√d':>9}" + f"{'q·k':>9}{'/√d':>9}" * 2 + f"{'q·k':>11}{'/√d':>9}"]
    for d, a, b in zip(DIMS, rows["unscaled"], rows["scaled"], strict=True):
        line = f"{d:>6}{a.variance:>11.2f}{b.variance:>9.2f}{a.entropy:>9.2f}{b.entropy:>9.2f}"
        lines.append(line + f"{a.largest:>9.2f}{b.largest:>9.2f}{a.gradient:>11.5f}{b.gradient:>9.5f}")
    return "\n".join(lines)


STYLES = {  # two colours told apart by every kind of colour vision, and a marker and a dash each
    "unscaled": {"color": "#D55E00", "marker": "s", "linestyle": "--", "label": "q·k"},
    "scaled": {"color": "#0072B2", "marker": "o", "linestyle": "-", "label": "q·k / √d"},
}


def draw(rows: dict[str, list[Row]], plt: Any) -> Any:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    for name, style in STYLES.items():
        variance, entropy, _, low, gradient, high = zip(*map(astuple, rows[name]), strict=True)
        for axis, series in zip(axes, (variance, entropy, gradient), strict=True):
            axis.plot(DIMS, series, linewidth=2, markersize=6, **style)
        axes[2].fill_between(DIMS, low, high, color=style["color"], alpha=0.18, linewidth=0)
    axes[1].axhline(torch.tensor(KEYS).log(), color="0.5", linewidth=1, linestyle=":")
    axes[1].text(DIMS[-1], 4.24, f"{KEYS} equal weights", color="0.35", ha="right", va="bottom", fontsize=9)
    axes[1].text(DIMS[0], 0.08, "one key takes all", color="0.35", ha="left", va="bottom", fontsize=9)
    axes[1].axhline(0, color="0.5", linewidth=1, linestyle=":")
    axes[1].set(title="Entropy of the weights", ylabel="nats, mean", ylim=(-0.25, 4.8))
    axes[0].set(title="Variance of the scores", ylabel="over all pairs", yscale="log")
    axes[2].set(title="Gradient that reaches the scores", ylabel="norm per row: median, quartiles", yscale="log")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(DIMS, [str(d) for d in DIMS])
        axis.minorticks_off()
        axis.set_xlabel("d, the length of queries and keys")
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, loc="upper left")
    return figure


def picture(rows: dict[str, list[Row]], path: Path) -> None:
    plt = pyplot()
    if plt is None:
        return
    figure = draw(rows, plt)
    save(figure, path)
    plt.close(figure)
    print(f"\nThe picture: {path.resolve()}")


def show(rows: dict[str, list[Row]], draws: int) -> None:
    heading("Why divide by √d")
    print(f"{draws} random queries per d, each against {KEYS} random keys; all numbers are N(0, 1).\n")
    print(as_text(rows))
    print(
        f"\nentropy: mean over the rows of weights, in nats; {KEYS} equal weights have {torch.tensor(KEYS).log():.2f}"
    )
    print("gradient: median norm of what comes through the softmax when each weight is pulled by N(0, 1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 draws instead of 1000")
    parser.add_argument("--write", action="store_true", help="refresh the page and its picture")
    args = parser.parse_args()
    draws = 200 if args.quick else 1000
    rows = measure(draws)
    show(rows, draws)
    if args.write:
        print(f"\nRefreshed {refresh('why-sqrt-d.md', 'table', as_markdown(rows))}")
    picture(rows, DOCS / "img" / "why-sqrt-d.svg" if args.write else PICTURE)


if __name__ == "__main__":
    main()

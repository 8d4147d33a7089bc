"""How the evidence pages count: who is preferred, how sure that is, and what luck would have done.

A *case* is one sentence with a right answer. Cases come in *groups* (the two sentences of a Winograd schema): within a
group nothing is independent, so intervals and permutations go by group. Shapes: C cases, G groups, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "results"
Z = 1.959963984540054  # of a 95 % interval
PERMUTATIONS, SPLITS = 10_000, 1_000


def preferred(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """1 where the right one has more, 0 where the other has, ½ where they are equal: [C, H]."""
    return (np.sign(np.asarray(right) - np.asarray(wrong)) + 1) / 2


def by_group(points: np.ndarray, groups: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Sums [G, H] and sizes [G] of the points of each group, in order of first sight."""
    places = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    index = np.array([places[name] for name in groups], dtype=np.int64)
    sums = np.zeros((len(places), points.shape[1]))
    np.add.at(sums, index, points)
    return sums, np.bincount(index, minlength=len(places))


def rate(points: np.ndarray, groups: Sequence[Any]) -> dict[str, Any]:
    """The mean of points [C], and its 95 % interval: p ± 1.96 √Σ_g (s_g − n_g p)² / C, g being groups.

    With each case a group of its own this is the usual p ± 1.96 √(p (1 − p) / C). Where groups agree exactly (a habit
    that is right once in every pair) it has no width, as it should.
    """
    points = np.asarray(points, dtype=float)
    sums, sizes = by_group(points[:, None], groups)
    p = float(points.mean())
    half = Z * float(np.sqrt(((sums[:, 0] - sizes * p) ** 2).sum())) / len(points)
    return {"rate": p, "low": max(0.0, p - half), "high": min(1.0, p + half), "cases": len(points)}


def corrected(
    points: np.ndarray, groups: Sequence[Any], *, permutations: int = PERMUTATIONS, seed: int = 0
) -> np.ndarray:
    """p of each head, [H], corrected for having looked at all of them.

    If heads knew nothing of what is right, right and wrong could be exchanged in any group and nothing would be odd.
    So they are, at random, many times; p is how often the best head of all is then as good as this one is in truth
    (Westfall & Young 1993, the maximum statistic). The truth counts as one of the permutations.
    """
    sums, sizes = by_group(points, groups)
    gained = sums - sizes[:, None] / 2  # above a coin, [G, H]
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(permutations, len(gained)))
    best = (signs @ gained).max(1)
    reached = (best[:, None] >= gained.sum(0) - 1e-9).sum(0)
    return (reached + 1) / (permutations + 1)


def held_out(points: np.ndarray, groups: Sequence[Any], *, splits: int = SPLITS, seed: int = 0) -> dict[str, Any]:
    """Choose the best head on one half of the groups, and see how good it is on the other: means over random halves."""
    sums, sizes = by_group(points, groups)
    rng = np.random.default_rng(seed)
    chosen, shown, kept = [], [], []
    for _ in range(splits):
        order = rng.permutation(len(sums))
        half, rest = order[: len(order) // 2], order[len(order) // 2 :]
        rates = sums[half].sum(0) / sizes[half].sum()
        best = int(rates.argmax())
        chosen.append(best)
        shown.append(rates[best])
        kept.append(sums[rest, best].sum() / sizes[rest].sum())
    most = int(np.bincount(chosen).argmax())
    return {
        "chosen_on": float(np.mean(shown)),
        "tested_on": float(np.mean(kept)),
        "low": float(np.quantile(kept, 0.025)),
        "high": float(np.quantile(kept, 0.975)),
        "head": most,
        "how_often": float(np.mean(np.array(chosen) == most)),
    }


def consistency(points: np.ndarray, pairs: Sequence[Any]) -> dict[str, Any]:
    """Of pairs (two cases whose right answers differ; None is no pair): both right, neither, or one.

    A coin is right twice in a quarter of them; a habit that does not see what differs, never.
    """
    some = [i for i, name in enumerate(pairs) if name is not None]
    sums, sizes = by_group(np.asarray(points, dtype=float)[some, None], [pairs[i] for i in some])
    if not (sizes == 2).all():
        raise ValueError(f"a pair is two cases, got {sorted(set(sizes.tolist()))}")
    sums = sums[:, 0]
    count = max(len(sums), 1)
    return {
        "pairs": len(sums),
        "both": float((sums == 2).sum()) / count,
        "neither": float((sums == 0).sum()) / count,
        "one": float(((sums > 0) & (sums < 2)).sum()) / count,
    }


def correlation(x: np.ndarray, y: np.ndarray, *, permutations: int = PERMUTATIONS, seed: int = 0) -> dict[str, float]:
    """Pearson's r, and how often |r| is as large with one side shuffled."""
    x, y = ((np.asarray(v, float) - np.mean(v)) / (np.std(v) or 1.0) for v in (x, y))
    r = float(np.mean(x * y))
    rng = np.random.default_rng(seed)
    shuffled = np.stack([rng.permutation(y) for _ in range(permutations)])
    luck = np.abs(shuffled @ x / len(x)) >= abs(r) - 1e-12
    return {"r": r, "p": float((luck.sum() + 1) / (permutations + 1))}


def rounded(x: Any, digits: int = 4) -> Any:
    """A tree of results with numbers of so many digits after the point, for files that people read."""
    if isinstance(x, dict):
        return {key: rounded(value, digits) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [rounded(value, digits) for value in x]
    return round(x, digits) if isinstance(x, float) else x


def head_name(index: int, heads: int) -> str:
    """Layer and head, as in the rest of the docs: 3.1."""
    return "{}.{}".format(*divmod(index, heads))

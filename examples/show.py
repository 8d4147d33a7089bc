"""How the examples show things: headings, tables and bars in plain text, pictures, and tables kept in docs/."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

DOCS = Path(__file__).resolve().parent.parent / "docs"
SHADES = "█▒░"

with contextlib.suppress(AttributeError):  # a notebook's output is no file
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without these signs gets "?"


def heading(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}")


def table(matrix: Tensor, rows: Sequence[str], columns: Sequence[str], digits: int = 3, more: str = "") -> str:
    """A matrix with names around it; ``more`` ends every row, for columns that are not shown."""
    wide = max(map(len, rows))
    cells = [[f"{x:.{digits}f}" for x in row] for row in matrix.tolist()]
    cell = max(len(x) for row in [*cells, list(columns)] for x in row) + 2
    lines = [" " * (wide + 2) + "".join(f"{name:>{cell}}" for name in columns)]
    for name, row in zip(rows, cells, strict=True):
        lines.append(f"  {name:<{wide}}" + "".join(f"{x:>{cell}}" for x in row) + more)
    return "\n".join(lines)


def stacked_bar(weights: Sequence[float], width: int = 40) -> str:
    """Weights that sum to 1 as lengths, one shade each."""
    ends = [round(width * sum(weights[: i + 1])) for i in range(len(weights))]
    return "".join(shade * (end - start) for shade, start, end in zip(SHADES, [0, *ends[:-1]], ends, strict=True))


def pyplot() -> ModuleType | None:
    """matplotlib's pyplot, writing files only; without it, None and a word on how to get it."""
    try:
        import matplotlib
    except ImportError:
        print("\nThe picture needs matplotlib: pip install 'regard[plot]'")
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "regard", "svg.fonttype": "path", "font.size": 10})
    return plt


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None  # the same numbers give the same file
    figure.savefig(path, dpi=150, metadata=metadata)


def refresh(page: str, name: str, text: str) -> Path:
    """Replace what stands between ``<!-- name:begin -->`` and ``<!-- name:end -->`` of a page in docs/."""
    path = DOCS / page
    old = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{path} has no lines {begin} and {end}")
    path.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", old), encoding="utf-8")
    return path

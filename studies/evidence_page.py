"""Writes docs/evidence.md and its figures from studies/results/evidence-*.json.

    python studies/evidence_page.py [--results studies/results] [--docs docs]

The text is studies/evidence_page.md: ``{{ expression }}`` is filled with what the expression gives, so that no
number is typed; ``<!-- check: claim -->`` is left out of the page, and stops the command if the claim is not true of
the results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _evidence_figures as figures
import _evidence_tables as tables
from _evidence import RESULTS, ROOT

sys.path.insert(0, str(ROOT / "examples"))
from show import pyplot, save

TEMPLATE = ROOT / "studies" / "evidence_page.md"
NAMES = ("winograd", "babi", "babi-seed2", "babi-task1", "babi-many")
_VALUE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
_CHECK = re.compile(r"^<!-- check: (.*?) -->\n\n?", re.DOTALL | re.MULTILINE)


def load(folder: Path) -> dict[str, Any]:
    """The results, by name."""
    texts = {name: (folder / f"evidence-{name}.json").read_text(encoding="utf-8") for name in NAMES}
    return {name.replace("-", "_"): json.loads(text) for name, text in texts.items()}


def filled(template: str, results: dict[str, Any]) -> str:
    """The page."""
    names = {**vars(tables), **results}
    for letter, which in (("W", "winograd"), ("G", "winogender")):
        names[letter] = results["winograd"][which]["measures"].__getitem__
    for claim in _CHECK.findall(template):
        if not eval(claim, names):
            raise SystemExit(f"the page says {claim}, and that is not so: change the text")
    return _VALUE.sub(lambda found: str(eval(found[1].strip(), names)), _CHECK.sub("", template))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args(argv)
    results = load(options.results)
    page = options.docs / "evidence.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(filled(TEMPLATE.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(f"wrote {page}")
    plt = pyplot()
    if plt is not None:
        for name, draw in figures.FIGURES.items():
            figure = draw(plt, results)
            save(figure, options.docs / "img" / f"{name}.svg")
            plt.close(figure)
            print(f"drew {options.docs / 'img' / name}.svg")


if __name__ == "__main__":
    main()

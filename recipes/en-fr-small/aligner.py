"""How good the statistical aligner is that guides the models of this recipe: its error rate on the Hansards.

    python recipes/en-fr-small/aligner.py --corpora CORPORA
    python recipes/en-fr-small/aligner.py --corpora CORPORA --pairs 30000 --device cpu

It learns from the recipe's own text and from the Hansards' 447 pairs, without their links.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from evaluate import hansards
from prepare import rows

from regard.align import quality
from regard.align.statistical import align_words

SETS = ("tatoeba", "laws", "docs")


def words(text: str) -> list[str]:
    """As the Hansards are cut: an elided word keeps its apostrophe."""
    return re.findall(r"\w+['’]?|[^\w\s]+", text)


def texts(data: Path, pairs: int | None) -> list[tuple[list[str], list[str]]]:
    """All pairs of the sets, or so many of them, evenly."""
    found = [row for name in SETS if (path := data / f"{name}.tsv.gz").exists() for row in rows(path)]
    step = 1 if pairs is None else max(1, -(-len(found) // pairs))
    return [(words(row[0]), words(row[1])) for row in found[::step]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True, help="the folder that prepare.py read")
    parser.add_argument("--data", type=Path, default=Path("out/en-fr-small/data"))
    parser.add_argument("--pairs", type=int, help="learn from so many pairs only")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    tested, gold = hansards(options.corpora)
    every = [(en.split(), fr.split()) for en, fr in tested] + texts(options.data, options.pairs)
    start = time.perf_counter()
    found = align_words(every, device=options.device, say=print)
    print(f"{len(every):,} pairs, {time.perf_counter() - start:.0f} s on {options.device}")
    print(quality(found[: len(gold)], gold))


if __name__ == "__main__":
    main()

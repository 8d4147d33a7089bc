"""The weights of two models of one line, mixed: where a training began, and where it ended.

    python recipes/en-fr-small/mix.py OLD NEW --share 0.7 --out MIXED

A model that goes on from another one mostly stays in its valley, and points between them can be better than both ends
(Wortsman et al. 2021, https://arxiv.org/abs/2109.01903). --share is that of the new one. Everything but the weights is
taken from it, and weights are stored in int8.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from regard.models.folder import open as open_folder
from regard.models.folder import save


def mix(old: Path, new: Path, share: float, out: Path) -> None:
    """Makes the folder; models of different subwords or settings are refused."""
    first, second = open_folder(old), open_folder(new)
    if not 0 <= share <= 1:
        raise ValueError(f"--share: expected a number from 0 to 1, got {share}")
    if first.subwords.fingerprint != second.subwords.fingerprint:
        raise ValueError(f"{old} and {new} have different subwords, so their weights mean different things")
    before, after = first.model.state_dict(), second.model.state_dict()
    if first.settings["model"] != second.settings["model"]:
        raise ValueError(f"{old} and {new} differ in [model]: expected models of one kind and size")
    second.model.load_state_dict(
        {name: t.lerp(after[name], share) if t.is_floating_point() else after[name] for name, t in before.items()}
    )
    save(out, second.model, second.subwords, settings=second.settings, store="int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--share", type=float, default=0.7)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        mix(options.old, options.new, options.share, options.out)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""What each set contributes to en-fr-small: the same short training with all of them, and without each.

    python recipes/en-fr-small/ablate.py train --tokenizer tokenizer.json --corpora CORPORA    # on a GPU, side by side
    python recipes/en-fr-small/ablate.py report --corpora CORPORA                              # where sacrebleu is

Every model has the size, the subwords and the number of updates of every other; settings are those of quoted.toml but
for R-Drop, BPE-dropout and guidance, which short runs do without. --more FILE is trained on beside all sets: one that
may not be shipped, to tell what is missing in the data from what is missing in the recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from evaluate import scores, test_sets, translations

from regard.store import read_toml, to_toml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETS = ("tatoeba", "newstest2014", "multi30k test2016", "laws")


def runs(corpora: Sequence[dict[str, Any]], more: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Name → what it is trained on. Variants and quotations are made of Tatoeba: without it there are none.

    >>> sets = [{"tsv": "data/tatoeba.tsv.gz"}, {"tsv": "data/variants.tsv.gz"}, {"tsv": "data/laws.tsv.gz"}]
    >>> {name: len(some) for name, some in runs(sets, None).items()}
    {'all': 3, 'without tatoeba': 1, 'without variants': 2, 'without laws': 2}
    """
    names = [Path(table["tsv"]).name.split(".")[0] for table in corpora]
    gone = {name: {name, "variants", "quotations"} if name == "tatoeba" else {name} for name in names}
    found = {"all": list(corpora)}
    for name in names:
        found[f"without {name}"] = [t for t, own in zip(corpora, names, strict=True) if own not in gone[name]]
    if more:
        found[f"with {more.name.split('.')[0]}"] = [*corpora, {"tsv": str(more)}]
    return found


def settings(corpora: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    tables = read_toml(HERE / "quoted.toml")
    tables["data"]["corpora"] = corpora
    tables["subwords"] = {"path": str(options.tokenizer), "dropout": 0.0}
    short = {"updates": options.updates, "warmup": options.updates // 8, "rdrop": 0.0, "guided": 0.0, "bleu": False}
    tables["training"] |= {**short, "valid_every": options.updates // 6, "average": 2}
    return tables


def train(name: str, corpora: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Trains it and translates the tests, in processes of their own; what is done is not done again."""
    folder = options.out / name.replace(" ", "-")
    config = options.out / f"{folder.name}.toml"
    options.out.mkdir(parents=True, exist_ok=True)
    config.write_text(to_toml(settings(corpora, options)), encoding="utf-8")
    training = ["-m", "regard.tasks.translation", "--config", str(config), "--out", str(folder)]
    tested = options.out / "tested" / folder.name
    asked = ["--corpora", str(options.corpora), "--out", str(tested), "--only", ",".join(SETS)]
    testing = [str(HERE / "evaluate.py"), "--model", str(folder), *asked, "--batch-tokens", "16384"]
    with open(options.out / f"{folder.name}.log", "ab") as log:
        for command in (training, testing):
            done = subprocess.run(
                [sys.executable, *command], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
            )
            if done.returncode:
                print(f"{name}: FAILED, see {log.name}", flush=True)
                return
    print(f"{name}: done", flush=True)


def report(names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """BLEU of the translations that are there."""
    tests = test_sets(options.corpora, options.data)
    found: dict[str, Any] = {}
    for name in names:
        places = {test: options.tested / name.replace(" ", "-") / f"{test.replace(' ', '-')}.fr" for test in tests}
        found[name] = {}
        for test, path in places.items():
            if path.exists():
                outputs, _ = translations(tests[test], path, None, options)
                found[name][test] = scores(outputs, [fr for _, fr in tests[test]]).get("BLEU")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "report"))
    parser.add_argument("--corpora", type=Path, required=True, help="the folder that prepare.py read")
    parser.add_argument("--data", type=Path, default=Path("out/en-fr-small/data"))
    parser.add_argument("--tokenizer", type=Path, default=Path("out/en-fr-small/tokenizer.json"))
    parser.add_argument("--more", type=Path, help="a TSV file to train on beside all sets, for comparison")
    parser.add_argument("--out", type=Path, default=Path("out/en-fr-small/ablate"))
    parser.add_argument("--tested", type=Path, help="translations to report on; default: those in --out")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--side-by-side", type=int, default=3)
    options = parser.parse_args()
    options.tested = options.tested or options.out / "tested"
    wanted = runs(read_toml(HERE / "quoted.toml")["data"]["corpora"], options.more)
    if options.what == "train":
        with ThreadPoolExecutor(options.side_by_side) as threads:
            for done in [threads.submit(train, name, some, options) for name, some in wanted.items()]:
                done.result()
        return
    rows = report(list(wanted), options)
    print("| trained on | " + " | ".join(SETS) + " |\n|---|" + "---|" * len(SETS))
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{row[test]:.1f}" if row.get(test) else "–" for test in SETS) + " |")
    (options.tested / "bleu.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

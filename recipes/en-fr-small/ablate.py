"""What each set contributes to en-fr-small: the same short training with all of them, and without each.

    python recipes/en-fr-small/ablate.py cut                                  # corpora into subwords, beforehand
    python recipes/en-fr-small/ablate.py train --corpora CORPORA              # on a GPU, side by side
    python recipes/en-fr-small/ablate.py report --corpora CORPORA             # where sacrebleu is

Every model has the size, the subwords and the number of updates of every other: half the parameters of en-fr-small and
half its batch, so that nine of them take the minutes of one. Settings are those of student.toml but for BPE-dropout and
guidance, which short runs do without. --more FILE is trained on beside all sets: one that may not be shipped, to
tell what is missing in the data from what is missing in the recipe.
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

from evaluate import scores, some_of, test_sets, translations

from regard.data import Corpus, Limits
from regard.files.toml import read_toml, to_toml
from regard.tasks.base.settings import Settings
from regard.text import Subwords

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETS = ("tatoeba", "newstest2014", "multi30k test2016", "laws")


def set_of(table: dict[str, Any]) -> str:
    """What a file of pairs is called here: its name, and that of the teacher for what was translated by it."""
    return Path(table["tsv"]).name.split(".")[0]


def runs(corpora: Sequence[dict[str, Any]], more: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Name → what it is trained on. What is made of a set goes with it.

    >>> names = ("tatoeba", "variants", "quotations", "laws", "distilled-tatoeba", "distilled-docs")
    >>> for name, some in runs([{"tsv": f"data/{name}.tsv.gz"} for name in names], None).items():
    ...     print(name, [set_of(table) for table in some])
    all ['tatoeba', 'variants', 'quotations', 'laws', 'distilled-tatoeba', 'distilled-docs']
    without tatoeba ['laws', 'distilled-docs']
    without variants and quotations ['tatoeba', 'laws', 'distilled-tatoeba', 'distilled-docs']
    without laws ['tatoeba', 'variants', 'quotations', 'distilled-tatoeba', 'distilled-docs']
    without docs ['tatoeba', 'variants', 'quotations', 'laws', 'distilled-tatoeba']
    without the teacher ['tatoeba', 'variants', 'quotations', 'laws']
    """
    names = [set_of(table) for table in corpora]
    gone = {
        "tatoeba": {"tatoeba", "variants", "quotations", "longer", "distilled-tatoeba"},
        "variants and quotations": {"variants", "quotations"},
        "longer": {"longer"},
        "laws": {"laws", "distilled-laws"},
        "docs": {"docs", "distilled-docs"},
        "help": {"help"},
        "names": {"names"},
        "the teacher": {name for name in names if name.startswith("distilled-")},
    }
    found = {"all": list(corpora)}
    for name, some in gone.items():
        if some & set(names):
            found[f"without {name}"] = [t for t, own in zip(corpora, names, strict=True) if own not in some]
    if more:
        found[f"with {more.name.split('.')[0]}"] = [*corpora, {"tsv": str(more)}]
    return found


def settings(corpora: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    tables = read_toml(HERE / "student.toml")
    tables["data"]["corpora"] = corpora
    tables["subwords"] = {"path": str(options.tokenizer), "dropout": 0.0}
    tables["model"] |= {"dim": 256, "ffn_dim": 1024, "heads": 4, "encoder_layers": 4}
    short = {"updates": options.updates, "warmup": options.updates // 5, "tokens": 24_000, "guided": 0.0}
    tables["training"] |= {**short, "valid_every": options.updates // 4, "average": 2}
    return tables


def cut(corpora: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """The pairs of a run in subwords, into the cache that its training reads."""
    data = Settings.from_tables(settings(corpora, options)).data
    limits = Limits(max_tokens=data.max_tokens, max_ratio=data.max_ratio)
    Corpus.build(data.training(), Subwords.load(options.tokenizer), limits=limits, bad=data.bad, cache=data.cache)


def train(name: str, corpora: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Trains it and translates the tests, in processes of their own; what is done is not done again."""
    folder = options.out / name.replace(" ", "-")
    config = options.out / f"{folder.name}.toml"
    options.out.mkdir(parents=True, exist_ok=True)
    config.write_text(to_toml(settings(corpora, options)), encoding="utf-8")
    training = ["-m", "regard", "train", "--config", str(config), "--out", str(folder)]
    tested = options.out / "tested" / folder.name
    asked = ["--corpora", str(options.corpora), "--data", str(options.data), "--out", str(tested)]
    asked += ["--only", ",".join(SETS), "--pairs", str(options.pairs)]
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
    tests = {name: some_of(pairs, options.pairs) for name, pairs in test_sets(options.corpora, options.data).items()}
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
    parser.add_argument("what", choices=("cut", "train", "report"))
    parser.add_argument("--corpora", type=Path, help="the folder that prepare.py read")
    parser.add_argument("--data", type=Path, default=Path("out/en-fr-small/data"))
    parser.add_argument(
        "--tokenizer", type=Path, default=ROOT / "regard" / "bundled" / "en-fr-small" / "tokenizer.json"
    )
    parser.add_argument("--more", type=Path, help="a TSV file to train on beside all sets, for comparison")
    parser.add_argument("--out", type=Path, default=Path("out/en-fr-small/ablate"))
    parser.add_argument("--tested", type=Path, help="translations to report on; default: those in --out")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=1000, help="of each test set")
    parser.add_argument("--side-by-side", type=int, default=9)
    options = parser.parse_args()
    if options.corpora is None and options.what != "cut":
        parser.error(f"{options.what} asks for --corpora")
    options.tested = options.tested or options.out / "tested"
    wanted = runs(read_toml(HERE / "student.toml")["data"]["corpora"], options.more)
    if options.what == "cut":
        for some in wanted.values():
            cut(some, options)
        return
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

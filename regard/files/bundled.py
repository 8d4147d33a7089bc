"""Find a model folder: a path, or the name of a model bundled with the package."""

from __future__ import annotations

from pathlib import Path

from regard.files.text import PathLike

BUNDLED = Path(__file__).parents[1] / "bundled"
DEFAULT = "en-fr-small"


def find(name: PathLike) -> Path:
    """The folder of a model, given its path or the name of a bundled one."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{path}: expected a model folder, as `regard train` writes it, got a file")
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir()) if BUNDLED.is_dir() else []
    if str(name) in bundled:
        return BUNDLED / str(name)
    known = f"bundled models: {', '.join(bundled)}" if bundled else "no model is bundled with this version"
    raise FileNotFoundError(f"{name}: there is no such model folder ({known}); train one with `regard train`")

"""The scripts of the recipe of the bundled model, as modules, and small gzipped files for them."""

import gzip
import importlib.util
import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "en-fr-small"


def script(name):
    """A script of the recipe, as a module; its folder is no package."""
    sys.path.insert(0, str(RECIPE))
    try:
        found = sys.modules.get(f"recipe_{name}")
        if found is None:
            spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPE / f"{name}.py")
            found = sys.modules[f"recipe_{name}"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found)
        return found
    finally:
        sys.path.remove(str(RECIPE))
        for other in ("prepare", "evaluate"):  # other recipes have scripts of these names too
            sys.modules.pop(other, None)


def put(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def got(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()

"""The explorer's page: files that are read when the service starts. A request only picks one of them by name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}
_MISSING = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>regard</title>
<h1>The page is not there</h1>
<p>This copy of regard has no built page. The service itself runs: see <a href="/api/openapi.json">its description</a>.
In a copy of the source, <code>npm run build</code> in <code>web/</code> makes the page.</p>
</html>
"""


class File(NamedTuple):
    """What is sent for an address."""

    content: bytes
    type: str
    cache: str


def files(folder: Path = FOLDER) -> dict[str, File]:
    """Addresses and what is there. Names under /assets/ change with their content, so they are kept for good."""
    found = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or path.is_symlink() or any(part.startswith(".") for part in Path(name).parts):
            continue
        cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
        found["/" if name == "index.html" else f"/{name}"] = File(path.read_bytes(), _type(path), cache)
    found.setdefault("/", File(_MISSING, "text/html; charset=utf-8", "no-cache"))
    return found


def _type(path: Path) -> str:
    kind = _TYPES.get(path.suffix, "application/octet-stream")
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind

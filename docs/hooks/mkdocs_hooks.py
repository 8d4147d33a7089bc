"""What MkDocs calls while it builds: lessons are run, and their pictures, live figures and notebooks join the site."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lesson
import render
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "out" / "docs"
_rendered: dict[str, str] = {}


def on_files(files: Any, config: Any) -> Any:
    """Runs every lesson; what it made is added to the site beside its page."""
    _quiet()
    for file in list(files.documentation_pages()):
        source = file.content_string
        if not lesson.is_lesson(source):
            continue
        name, folder = Path(file.src_uri).stem, Path(file.src_uri).parent
        start, parts = time.perf_counter(), lesson.parse(source)
        work = Path(os.environ.get("REGARD_DOCS_WORK", WORK)) / f"{name}-{_fingerprint(parts)}"
        parts = lesson.run(parts, name, work)
        print(f"{name}: ran in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        _rendered[file.src_uri] = render.page(parts, notebook=f"{name}.ipynb")
        for made in _made(parts):
            files.append(File.generated(config, (folder / made).as_posix(), abs_src_path=str(work / made)))
        book = render.notebook(parts, name)
        files.append(File.generated(config, (folder / f"{name}.ipynb").as_posix(), content=book))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return _rendered.get(page.file.src_uri, markdown)


def _made(parts: list[lesson.Part]) -> list[str]:
    """The files that a page shows."""
    made = [part.picture for part in parts if isinstance(part, (lesson.Code, lesson.Live))]
    made += [part.file for part in parts if isinstance(part, (lesson.Picture, lesson.Live))]
    return list(dict.fromkeys(filter(None, made)))


def _fingerprint(parts: list[lesson.Part]) -> str:
    """Of the package and a page's cells: what another version of them left, such as a model, is not used again."""
    digest = hashlib.sha256("\0".join(part.source for part in parts if isinstance(part, lesson.Code)).encode())
    for path in sorted((ROOT / "regard").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _quiet() -> None:
    """The models of Hugging Face are read from disk, without a word; all are so small that one thread is fastest."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["MPLBACKEND"] = "Agg"
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

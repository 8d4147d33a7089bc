"""The README as people read it outside the repository, on PyPI say: links that are relative here are absolute there.

Everything else about the package is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>(?![a-z]+:|#)[^)\s]+)\)")  # no address, no place on the page


def absolute(text: str, repository: str) -> str:
    """Markdown with absolute links: pictures to the files themselves, the rest to the repository's pages."""

    def replace(link: re.Match[str]) -> str:
        kind = "raw" if link["text"].startswith("!") else "blob"
        return f"{link['text']}({repository}/{kind}/main/{link['target']})"

    text = re.sub(r'(<img [^>]*src=")(?![a-z]+:)', rf"\1{repository}/raw/main/", text)
    return LINK.sub(replace, text)


def repository() -> str:
    """``Repository`` of [project.urls]."""
    return re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]


if __name__ == "__main__":
    setup(
        long_description=absolute((ROOT / "README.md").read_text("utf-8"), repository()),
        long_description_content_type="text/markdown",
    )

"""What README.md and docs/ say that the bundled model answers, made anew or compared with what it does answer.

    python examples/transcripts.py           compares: exit code 1 and the differences, if there are any
    python examples/transcripts.py --write   writes what it answers into the pages

A transcript is a console block between `<!-- bundled:begin -->` and `<!-- bundled:end -->`: commands after `$ `, each
followed by what it prints. Whoever bundles another model runs this with --write, and reads what has changed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?<=<!-- bundled:begin -->\n```console\n)(.*?)(?=```\n<!-- bundled:end -->)", re.DOTALL)


def answered(command: str, folder: str) -> str:
    """What a command prints, in a shell in which `regard` is that of this repository."""
    shell = f'regard() {{ "{sys.executable}" -m regard "$@"; }}; set -e; exec 2>&1; {command}'
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    settings = {**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}
    done = subprocess.run(["bash", "-c", shell], cwd=folder, env=settings, capture_output=True, check=True)
    return done.stdout.decode()


def again(page: str) -> str:
    """The page with its transcripts made anew; blank lines at the end of an answer are left out."""

    def block(match: re.Match[str]) -> str:
        commands = [line[2:] for line in match[1].split("\n") if line.startswith("$ ")]
        with tempfile.TemporaryDirectory() as folder:
            return "".join(f"$ {command}\n{answered(command, folder).rstrip()}\n" for command in commands)

    return BLOCK.sub(block, page)


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "<!-- bundled:begin -->" in path.read_text(encoding="utf-8")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write what is answered into the pages")
    options, wrong = parser.parse_args(), 0
    for path in pages():
        old = path.read_text(encoding="utf-8")
        new, name = again(old), str(path.relative_to(ROOT))
        print(
            "\n".join(difflib.unified_diff(old.split("\n"), new.split("\n"), name, "answered", lineterm="", n=1)),
            end="",
        )
        if new != old:
            print()
            wrong += 1
            if options.write:
                path.write_text(new, encoding="utf-8")
    print("as answered" if not wrong else f"{wrong} pages {'written' if options.write else 'differ'}")
    return int(bool(wrong) and not options.write)


if __name__ == "__main__":
    sys.exit(main())

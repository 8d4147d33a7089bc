"""The tables of results, from answers that were made: EM and F1 of every model, people, and the answers' files.

    python recipes/squad/results.py out/answered/answers              # prints them
    python recipes/squad/results.py out/answered/answers --write      # into docs/answer.md and the two READMEs

ANSWERS has files MODEL-SET-test.jsonl, as evaluate.py and run.py leave them; out/SET/test.jsonl.gz are the questions.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from evaluate import people

from regard.data.questions import read_questions
from regard.evaluate.squad import quality

ROOT = Path(__file__).resolve().parents[2]
SETS = {"qamr": "QAMR, test", "squad": "SQuAD v1.1 dev, 10 articles"}
ABOUT = {
    "scratch": "from scratch, trilinear",
    "minilm": "from MiniLM",
    "both": "from MiniLM, on QAMR's dev file too",
}


def about(model: str) -> str:
    kind, _, score = model.partition("-")
    return f"from scratch, {score}" if score else ABOUT.get(kind, kind)


def rows(name: str, answers: Path, data: Path) -> list[str]:
    """A table's rows for one test set."""
    questions = list(read_questions(data / name / "test.jsonl.gz"))
    human = people(questions)
    found = [f"| {SETS[name]} | people, one against the others | {human.exact:.1f} | {human.f1:.1f} |"]
    for path in sorted(answers.glob(f"*-{name}-test.jsonl")):
        texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
        marks = quality(texts, [q.answers for q in questions])
        model = path.name.removesuffix(f"-{name}-test.jsonl")
        found.append(f"| {SETS[name]} | {about(model)} | {marks.exact:.1f} | {marks.f1:.1f} |")
    return found


def put(path: Path, table: str) -> None:
    """The table between the page's marks."""
    page = path.read_text(encoding="utf-8")
    begin, end = "<!-- results:begin -->", "<!-- results:end -->"
    if begin not in page:
        raise ValueError(f"{path}: there is no {begin} in it")
    changed = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table}\n{end}", page, flags=re.DOTALL)
    path.write_text(changed, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--data", type=Path, default=Path("out"))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    head = ["| tested on | model | EM | F1 |", "|---|---|---:|---:|"]
    tables = {name: rows(name, options.answers, options.data) for name in SETS if (options.data / name).is_dir()}
    print("\n".join([*head, *(row for some in tables.values() for row in some)]))
    if options.write:
        put(ROOT / "docs" / "answer.md", "\n".join([*head, *(row for some in tables.values() for row in some)]))
        for name, some in tables.items():
            put(ROOT / "recipes" / name / "README.md", "\n".join([*head, *some]))


if __name__ == "__main__":
    main()

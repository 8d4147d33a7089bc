"""EM and F1 of models on questions, as SQuAD's script counts them, and of people where several answered.

    python recipes/squad/evaluate.py --questions out/squad/test.jsonl.gz --model out/squad/minilm

Answers go to --out (default: beside the model, NAME-tested), and those that are there are not made again. People: the
first answer to a question against the other ones, where there are some.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from regard.data.questions import Question, read_questions
from regard.evaluate.squad import AnswerQuality, quality


def people(questions: Sequence[Question]) -> AnswerQuality:
    some = [q.answers for q in questions if len(q.answers) > 1]
    return quality([answers[0] for answers in some], [answers[1:] for answers in some])


def answered(
    model: Path, questions: Sequence[Question], path: Path, device: str | None
) -> tuple[list[str], float | None]:
    """The answer to each question, made once and kept in a file; and seconds, if made now."""
    seconds = None
    if not path.exists():
        from regard.tasks.qa.answerer import load

        answerer = load(model, device=device)
        start = time.perf_counter()
        found: list[Any] = []
        for at in range(0, len(questions), 500):
            found += answerer.answers([(q.context, q.question) for q in questions[at : at + 500]])
        seconds = time.perf_counter() - start
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"id": q.id, "text": a.text, "start": a.start, "score": round(a.score, 4)}, ensure_ascii=False)
            for q, a in zip(questions, found, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if len(entries) != len(questions):
        raise ValueError(f"{path} has {len(entries)} answers, the test set {len(questions)} questions; remove it")
    return [entry["text"] for entry in entries], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, help="a folder for the answers")
    parser.add_argument("--device")
    options = parser.parse_args()
    questions = list(read_questions(options.questions))
    name = options.questions.name.split(".")[0]
    report: dict[str, Any] = {}
    print("| model | EM | F1 |\n|---|---|---|")
    if any(len(q.answers) > 1 for q in questions):
        report["people"] = people(questions)._asdict()
        print(f"| people, one against the others | {report['people']['exact']:.1f} | {report['people']['f1']:.1f} |")
    for model in options.model:
        folder = options.out or model.with_name(f"{model.name}-tested")
        path = folder / f"{model.name}-{options.questions.parent.name}-{name}.jsonl"
        answers, seconds = answered(model, questions, path, options.device)
        marks = quality(answers, [q.answers for q in questions])
        report[model.name] = {**marks._asdict(), "seconds": seconds}
        print(f"| {model.name} | {marks.exact:.1f} | {marks.f1:.1f} |", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

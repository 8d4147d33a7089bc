"""Questions about contexts that contain the answers: SQuAD's JSON, JSON lines, or TSV.

    .json   {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text", "answer_start"}]}]}]}]}
    .jsonl  {"context": …, "question": …, "answers": ["text", {"text": …, "start": 17}, …]} on each line
    .tsv    context TAB question TAB answer TAB answer … on each line

An answer without a position is taken at its first occurrence. An empty list of answers, or no column, means that the
context has no answer (SQuAD 2.0).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.readers import Bad, Policy, Report, numbered_lines, parse_object, sift
from regard.files.bounds import parse_json
from regard.files.text import whole as read_whole

KINDS = {".json": "squad", ".jsonl": "jsonl", ".tsv": "tsv"}


@dataclass(frozen=True)
class Question:
    """A question, its context, and its answers as character spans of the context, repeated as given."""

    context: str
    question: str
    spans: tuple[tuple[int, int], ...] = ()
    id: str = ""

    @property
    def answers(self) -> list[str]:
        """The answers as texts."""
        return [self.context[start:end] for start, end in self.spans]


def read_questions(
    path: str | os.PathLike[str], *, bad: Policy = "raise", report: Report | None = None
) -> Iterator[Question]:
    """The questions of a .json, .jsonl or .tsv file, gzipped or not. ``bad`` is as in ``read``."""
    path = Path(path)
    report = Report(str(path)) if report is None else report
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending not in KINDS:
        raise ValueError(f"{path}: expected a file of questions that ends in {', '.join(KINDS)} (or .gz after it)")
    rows = _squad(path) if ending == ".json" else _by_line(path, _json_line if ending == ".jsonl" else _tsv_line)
    yield from sift(rows, bad, report)


def _squad(path: Path) -> Iterator[Question | Bad]:
    raw = read_whole(path)
    try:
        whole = parse_json(raw)
        paragraphs = [(p["context"], p["qas"]) for article in whole["data"] for p in article["paragraphs"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: not in SQuAD's format, data → paragraphs → context and qas ({type(error).__name__}: {error}); "
            "a file with an object per line ends in .jsonl"
        ) from error
    for number, (context, asked) in enumerate(paragraphs, 1):
        where = f"{path}, paragraph {number}"
        if not isinstance(asked, list):
            yield Bad(where, "not a JSON list", f"expected a list under 'qas', got a {type(asked).__name__}")
            continue
        for entry in asked:
            if not isinstance(entry, dict):
                yield Bad(where, "not a JSON object", f"got a {type(entry).__name__} among qas")
                continue
            if entry.get("is_impossible"):
                entry["answers"] = []
            yield _parse_entry({**entry, "context": context}, where)


def _by_line(path: Path, make: Callable[[str, str], Question | Bad]) -> Iterator[Question | Bad]:
    for where, text in numbered_lines(path):
        yield text if isinstance(text, Bad) else make(text, where)


def _json_line(text: str, where: str) -> Question | Bad:
    entry = parse_object(text, where)
    return entry if isinstance(entry, Bad) else _parse_entry(entry, where)


def _parse_entry(entry: Mapping[str, object], where: str) -> Question | Bad:
    """The question of a JSON object. The key "answers" is required, even if empty: it may be misspelt."""
    expected = {"context": "a string", "question": "a string", "answers": "a list of answers, empty if there is none,"}
    for key, kind in expected.items():
        if key not in entry:
            got = f"no such key, but {', '.join(map(repr, entry)) or 'none'}"
            return Bad(where, "no text under a key", f"expected {kind} under {key!r}, got {got}")
    return _question(entry["context"], entry["question"], entry["answers"], where, str(entry.get("id", "")))


def _tsv_line(text: str, where: str) -> Question | Bad:
    cells = text.split("\t")
    if len(cells) < 2:
        return Bad(where, "wrong number of columns", f"expected context, question and answers, got {len(cells)}")
    return _question(cells[0], cells[1], [cell for cell in cells[2:] if cell], where, "")


def _question(context: object, question: object, answers: object, where: str, id: str) -> Question | Bad:
    for name, text in (("context", context), ("question", question)):
        if not isinstance(text, str):
            return Bad(where, "no text under a key", f"expected a string under {name!r}, got a {type(text).__name__}")
        if not text.strip():
            return Bad(where, "empty side", name)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return Bad(where, "not Unicode text", f"a lone surrogate at character {error.start} of the {name}")
    assert isinstance(context, str) and isinstance(question, str)
    spans = []
    each = _list_answers(answers)
    if each is None:
        return Bad(where, "no such answer", "expected as many places under 'answer_start' as texts under 'text'")
    for answer in each:
        found = _span(context, answer)
        if isinstance(found, str):
            return Bad(where, "no such answer", found)
        spans.append(found)
    return Question(context, question, tuple(spans), id)


def _list_answers(answers: object) -> Sequence[object] | None:
    """A list of answers, also of Hugging Face's {"text": […], "answer_start": […]}; None if its lengths differ."""
    if isinstance(answers, Mapping) and isinstance(answers.get("text"), list):
        starts = answers.get("answer_start", [None] * len(answers["text"]))
        if not isinstance(starts, list) or len(starts) != len(answers["text"]):
            return None
        return [{"text": t, "start": s} for t, s in zip(answers["text"], starts, strict=True)]
    return answers if isinstance(answers, list) else [answers]


def _span(context: str, answer: object) -> tuple[int, int] | str:
    """The span of an answer, or what is wrong with it."""
    text: object = answer
    start: object = None
    if isinstance(answer, Mapping):
        text, start = answer.get("text"), answer.get("start", answer.get("answer_start"))
    if not isinstance(text, str) or not text.strip():
        return f"expected the text of an answer, got {answer!r}"
    if start is None:
        start = context.find(text)
        if start < 0:
            return f"{text!r} is not in the context"
    elif isinstance(start, bool) or not isinstance(start, int) or start < 0 or not context.startswith(text, start):
        return f"{text!r} is not at character {start!r} of the context"
    return start, start + len(text)

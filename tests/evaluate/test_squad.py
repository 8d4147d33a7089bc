"""EM and F1 on cases whose marks are known, and questions from files."""

import gzip
import json

import pytest

from regard.data import Report
from regard.data.questions import Question, read_questions
from regard.evaluate.squad import exact_match, f1, normalize, quality

# --- marks: worked out by hand after the rules of SQuAD's evaluation script ---


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "overlap"),
    [
        ("Denver Broncos", "The Denver Broncos", 1, 1.0),  # articles
        ("denver  broncos!", "Denver Broncos", 1, 1.0),  # case, punctuation, white space
        ("an apple a day", "apple day", 1, 1.0),
        ("the", "a", 1, 1.0),  # nothing is left of both
        ("Broncos", "Denver Broncos", 0, 2 / 3),  # P 1, R 1/2
        ("Denver Broncos of Denver", "Denver Broncos", 0, 2 / 3),  # Denver counts once: P 2/4, R 1
        ("Denver Denver", "Denver Denver Broncos", 0, 4 / 5),  # and twice where it is twice: P 1, R 2/3
        ("Carolina Panthers", "Denver Broncos", 0, 0.0),
        ("", "Denver", 0, 0.0),
        ("Denver", "", 0, 0.0),
        ("", "", 1, 1.0),
        ("U.S.", "US", 1, 1.0),  # a sign goes, and leaves no space
        ("twenty-four", "twenty four", 0, 0.0),
        ("Santa Clara, California", "santa clara california", 1, 1.0),
        ("anthem", "them", 0, 0.0),  # articles are words, not letters
        ("“Denver”", "Denver", 0, 0.0),  # only ASCII signs go
        ("5,000", "5000", 1, 1.0),
        ("the a an", "an", 1, 1.0),
    ],
)
def test_known_marks(answer, reference, exact, overlap):
    assert exact_match(answer, reference) == exact
    assert f1(answer, reference) == pytest.approx(overlap)


def test_the_best_reference_counts_and_none_is_the_empty_answer():
    found = quality(
        ["Denver", "", "x", ""],
        [["Broncos", "Denver Broncos", "denver"], [], [], ["y"]],
    )
    assert found.exact == 50 and found.f1 == 50 and found.questions == 4
    assert quality(["Denver Broncos"], [["Denver", "Broncos of Denver"]]).f1 == pytest.approx(80.0)
    assert quality(["right"], [["the", "right"]]) == (100, 100, 1)
    assert normalize("The  A-Team's an “apple” ") == "ateams “apple”"
    with pytest.raises(ValueError, match="expected an answer to each of 2 questions, got 1"):
        quality(["a"], [["a"], ["b"]])


# --- files ---

CONTEXT = "Ana has 👩‍🚀 the hat. Bo has the hat."


def squad(answers, **more):
    asked = {"id": "q1", "question": "Who?", "answers": answers, **more}
    return json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [asked]}]}]}
    )


def written(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_squad_files(tmp_path, name):
    start = CONTEXT.index("Bo")
    path = written(tmp_path / name, squad([{"text": "Bo", "answer_start": start}, {"text": "Ana", "answer_start": 0}]))
    (found,) = read_questions(path)
    assert found == Question(CONTEXT, "Who?", ((start, start + 2), (0, 3)), "q1") and found.answers == ["Bo", "Ana"]
    none = squad([{"text": "Bo", "answer_start": start}], is_impossible=True)  # SQuAD 2.0 has plausible ones there
    assert next(read_questions(written(tmp_path / name, none))).spans == ()


@pytest.mark.parametrize(
    ("answers", "spans"),
    [
        (["the hat"], [(12, 19)]),  # where it stands first
        ([{"text": "the hat", "start": 28}, "Ana"], [(28, 35), (0, 3)]),
        ({"text": ["the hat", "Bo"], "answer_start": [28, 21]}, [(28, 35), (21, 23)]),
        ("Bo", [(21, 23)]),
        ([], []),
    ],
)
def test_json_lines(tmp_path, answers, spans):
    entry = {"context": CONTEXT, "question": "What?", "answers": answers}
    (found,) = read_questions(written(tmp_path / "a.jsonl", json.dumps(entry) + "\n"))
    assert [list(span) for span in found.spans] == [list(span) for span in spans]
    assert all(CONTEXT[a:b] for a, b in found.spans)


def test_tsv(tmp_path):
    rows = list(read_questions(written(tmp_path / "a.tsv.gz", f"{CONTEXT}\tWho?\tBo\tAna\n{CONTEXT}\tWhy?\n")))
    assert [q.answers for q in rows] == [["Bo", "Ana"], []]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "x", r"ends in \.json, \.jsonl, \.tsv"),
        ("a.json", "{", r"not in SQuAD's format"),
        ("a.json", '{"data": 3}', r"not in SQuAD's format"),
        ("a.json", squad([{"text": "Bo", "answer_start": 3}]), "'Bo' is not at character 3 of the context"),
        ("a.json", squad([{"text": "Bo", "answer_start": -2}]), "is not at character -2"),
        ("a.json", squad([{"text": "Ana", "answer_start": -1}]), "'Ana' is not at character -1"),
        ("a.json", squad([{"text": "Eve"}]), "'Eve' is not in the context"),
        (
            "a.json",
            squad({"text": ["Bo", "Ana"], "answer_start": [21]}),
            "as many places under 'answer_start' as texts",
        ),
        ("a.json", squad({"text": ["Bo"], "answer_start": 21}), "as many places under .answer_start."),
        ("a.json", squad([]).replace('"answers"', '"answer"'), "under 'answers', got no such key, but .*'answer'"),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"context": "x", "qas": 5}]}]}',
            "paragraph 1: .*list under 'qas', got a int",
        ),
        (
            "a.jsonl",
            "{}\n",
            "a.jsonl:1: no text under a key .expected a string under .context., got no .* none",
        ),
        ("a.jsonl", '{"text": "x"}\n', "under 'context', got no such key, but 'text'.*--set data.bad=skip"),
        ("a.jsonl", '{"context": "x", "question": " ", "answers": []}\n', "empty side .question"),
        (
            "a.jsonl",
            '{"context": "x", "question": "y", "answer": "x"}\n',
            "empty if there is none, under 'answers', got no",
        ),
        ("a.jsonl", '{"context": "x", "question": "y", "answers": [3]}\n', "expected the text of an answer, got 3"),
        ("a.jsonl", "nonsense\n", "a.jsonl:1: not JSON"),
        ("a.jsonl", '{"context": "\\ud800", "question": "y", "answers": []}\n', "lone surrogate"),
        ("a.tsv", "only one\n", "wrong number of columns"),
    ],
)
def test_bad_files_are_told(tmp_path, name, text, message):
    path = written(tmp_path / name, text)
    with pytest.raises(ValueError, match=message):
        list(read_questions(path))


def test_bad_lines_may_be_skipped_and_are_counted(tmp_path):
    good = json.dumps({"context": "a b", "question": "c", "answers": ["a"]})
    path = written(tmp_path / "a.jsonl", f"{good}\nnonsense\n{good}\n")
    report = Report("a")
    assert len(list(read_questions(path, bad="skip", report=report))) == 2
    assert (report.read, report.kept, report.bad["not JSON"]) == (3, 2, 1)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        list(read_questions(tmp_path / "none.json"))
    for name in ("folder.json", "folder.jsonl"):
        (tmp_path / name).mkdir()
        with pytest.raises(IsADirectoryError, match="expected a file, got a folder"):
            list(read_questions(tmp_path / name))

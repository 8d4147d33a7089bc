"""Summaries and answers over real connections: the models' own numbers, what is refused, all tasks in one service."""

import json
import os
import random
import threading

import chats
import numpy as np
import pytest
from serving import save_models, save_task_models, serving
from test_explorer import LIMITS, good, like

import regard
from regard.explorer.http import api
from regard.explorer.models import Models

CHAT = chats.chats(1, 5)[0][0]
CONTEXT = "Ana has the hat .\n Bo has the\u00a0egg . 🐈 Cy has the oar ."
QUESTION = "What does Bo have ?"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("served")
    return [*save_task_models(path), *save_models(path)]


@pytest.fixture(scope="module")
def client(folders):
    with serving(folders) as client:
        yield client


@pytest.fixture(scope="module")
def summarizer(folders):
    return regard.load(folders[0], device="cpu")


@pytest.fixture(scope="module")
def answerer(folders):
    return regard.load(folders[1], device="cpu")


def test_models_say_what_they_are_for(client):
    models = good(client.get("/api/models"), "Models")["models"]
    assert [(m["name"], m["task"], m["default"]) for m in models] == [
        ("summarization", "summarization", True),
        ("qa", "qa", True),
        ("transformer", "translation", True),
        ("rnn", "translation", False),
    ]
    assert [m["architecture"] for m in models[:2]] == ["PointerTransformer", "Reader"]
    assert models[0]["kinds"] == models[1]["kinds"] == [] and models[2]["kinds"]


# --- summaries ---


@pytest.mark.parametrize("more", [{}, {"beam": 2, "length": 4, "model": "summarization"}])
def test_summaries_are_the_models(client, summarizer, more):
    answer = good(client.post("/api/summarize", {"text": CHAT, **more}), "Summary")
    found = summarizer.summarize(CHAT, beam=more.get("beam", 5), length=more.get("length"), no_repeat=3)
    assert answer["summary"] == found.text and answer["model"] == "summarization"
    np.testing.assert_allclose(answer["attention"], found.attention, atol=1e-5)
    assert np.shape(answer["attention"]) == (len(found.words), len(CHAT.split()))
    assert [(c["probability"], c["position"]) for c in answer["copied"]] == [
        (pytest.approx(probability, abs=1e-5), position) for probability, position in found.copied
    ]
    assert answer["log_prob"] == pytest.approx(found.log_prob, rel=1e-4)
    source, target = answer["source"], answer["target"]
    assert source["text"] == CHAT and [w["text"] for w in source["words"]] == CHAT.split()
    assert all(CHAT[w["start"] : w["end"]] == w["text"] for w in source["words"])
    assert target["text"] == found.text and [w["text"] for w in target["words"]] == list(found.words)


def test_a_text_longer_than_in_training_is_told(client):
    assert (
        "longer than any training document (64)"
        in good(client.post("/api/summarize", {"text": CHAT * 5, "beam": 1}), "Summary")["note"]
    )


# --- answers ---


@pytest.mark.parametrize("context", [CONTEXT, CONTEXT * 6])
def test_answers_are_the_models(client, answerer, context):
    answer = good(client.post("/api/answer", {"context": context, "question": QUESTION, "n_best": 3}), "Answer")
    found = answerer.answer(context, QUESTION, n_best=3, attention=True)
    assert (answer["answer"], answer["start"], answer["end"], answer["note"]) == (
        found.text,
        found.start,
        found.end,
        found.note,
    )
    assert answer["score"] == pytest.approx(found.score, abs=1e-6)
    assert answer["no_answer"] == pytest.approx(found.no_answer, abs=1e-6)
    assert len(answer["candidates"]) == 3
    for told, candidate in zip(answer["candidates"], found.candidates, strict=True):
        assert (told["text"], told["start"], told["end"]) == candidate[:3] and told["text"] == (
            context[told["start"] : told["end"]]
        )
        assert told["score"] == pytest.approx(candidate.score, abs=1e-6)
    rows, columns = found.attention.shape
    shown = np.array(answer["attention"])
    assert shown.shape == (len(QUESTION.split()), len(context.split()))
    np.testing.assert_allclose(shown[:rows, :columns], found.attention, atol=1e-5)
    for side, text in (("context", context), ("question", QUESTION)):
        assert [w["text"] for w in answer[side]["words"]] == text.split()
        assert all(text[w["start"] : w["end"]] == w["text"] for w in answer[side]["words"])


def test_a_model_that_abstains_says_so(client, answerer):
    """One of random weights may or may not; what the service says is what the model does."""
    asked = [{"context": CHAT, "question": word} for word in CHAT.split()]
    for body in asked:
        answer = good(client.post("/api/answer", body), "Answer")
        found = answerer.answer(CHAT, body["question"])
        assert (answer["start"] is None) == (found.text == "") == (answer["answer"] == "")


# --- what is refused ---


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("summarize", {}, "text is missing"),
        ("summarize", {"text": "a\0b"}, "text: binary data, not text: a NUL"),
        ("summarize", {"text": "a\ud800"}, "text: not Unicode text"),
        ("summarize", {"text": "a" * 20_001}, "text: 20,001 characters; the maximum is 20,000"),
        ("summarize", {"text": "a " * 3_001}, "text: 3,001 words; the maximum is 3,000"),
        ("summarize", {"text": "a", "length": 0}, "length: expected 1 to 500, got 0"),
        ("summarize", {"text": "a", "model": "qa"}, "'qa' is for qa; for summarization there are summarization"),
        ("summarize", {"text": "a", "model": "nope"}, "there is no 'nope'; there are summarization"),
        ("answer", {"context": "a"}, "question is missing"),
        ("answer", {"context": "a\0", "question": "a"}, "the context is not text: a NUL at character 1"),
        ("answer", {"context": "a", "question": "a" * 501}, "question: 501 characters; the maximum is 500"),
        ("answer", {"context": "a", "question": "x y z " * 20}, "the question has"),
        ("answer", {"context": "a " * 3_001, "question": "a"}, "context: 3,001 words; the maximum is 3,000"),
        ("answer", {"context": "a", "question": "a", "n_best": 21}, "n_best: expected 1 to 20, got 21"),
        ("answer", {"context": "a", "question": "a", "model": "rnn"}, "'rnn' is for translation; for qa there are qa"),
        ("translate", {"text": "a", "model": "qa"}, "'qa' is for qa; for translation there are transformer, rnn"),
        ("trace", {"text": "a", "model": "qa"}, "for translation there are"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_refused(client, path, body, reason):
    answer = client.post(f"/api/{path}", body)
    assert answer.status == 422 and reason in answer.error, answer


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_a_bad_request(client, text):
    for path, body, field in (
        ("summarize", {"text": text}, "text"),
        ("answer", {"context": text, "question": "a"}, "context"),
        ("answer", {"context": "a", "question": text}, "question"),
    ):
        answer = client.post(f"/api/{path}", body)
        assert answer.status == 400 and answer.error == f"{field}: it is empty; send some text"


def test_documents_may_be_larger_than_sentences(client):
    body = {"text": "a", "model": "x" * 100_000}
    assert client.post("/api/translate", body).status == 413
    assert client.post("/api/summarize", body).status == 422
    assert client.post("/api/summarize", {"text": "é" * 140_000}).status == 413


def test_without_a_model_of_the_task(folders):
    with serving(folders[:1]) as client:
        assert good(client.post("/api/summarize", {"text": "hi", "beam": 1}))["summary"] is not None
        for path, body, task in (
            ("answer", {"context": "a", "question": "b"}, "qa"),
            ("translate", {"text": "a"}, "translation"),
            ("trace", {"text": "a"}, "translation"),
        ):
            answer = client.post(f"/api/{path}", body)
            assert answer.status == 409 and f"no model for {task} is served here, only others" in answer.error


# --- many at once ---


class Counting(Models):
    """Models that wait for a sign, and note what they did together."""

    def __init__(self, models):
        super().__init__(models)
        self.gate, self.begun, self.batches = threading.Event(), threading.Event(), []

    def run(self, key, requests):
        self.begun.set()
        assert self.gate.wait(60)
        self.batches.append((key.name, len(requests)))
        return super().run(key, requests)


def test_questions_are_answered_in_batches_as_alone_and_bounded(folders, answerer):
    from concurrent.futures import ThreadPoolExecutor

    models = Counting(regard.load(folder, device="cpu") for folder in folders[:2])
    questions = [f"What does {name} have ?" for name in ("Ana", "Bo", "Cy", "Dee")]
    with serving(models, queue=4) as client, ThreadPoolExecutor(8) as pool:
        first = pool.submit(client.post, "/api/summarize", {"text": CHAT, "beam": 1})
        assert models.begun.wait(60)
        asked = [{"context": CONTEXT, "question": question} for question in questions]
        waiting = [pool.submit(client.post, "/api/answer", body) for body in asked]
        while client.metric("regard_model_waiting ") < 4:
            pass
        refused = client.post("/api/answer", asked[0])
        assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1 and "try again" in refused.error
        models.gate.set()
        assert good(first.result(), "Summary")
        for question, future in zip(questions, waiting, strict=True):
            found = answerer.answer(CONTEXT, question)
            told = good(future.result(), "Answer")
            assert (told["start"], told["end"]) == (found.start, found.end)
            assert told["score"] == pytest.approx(found.score, abs=1e-5)
    assert models.batches == [("summarization", 1), ("qa", 4)]


def test_one_that_cannot_be_answered_spoils_no_other(folders):
    models = Models([regard.load(folders[1], device="cpu")])
    from regard.explorer.models import BatchKey
    from regard.explorer.qa import QuestionRequest

    good_one, bad = models.run(BatchKey("qa", 2), [QuestionRequest(CONTEXT, QUESTION), QuestionRequest(" ", QUESTION)])
    assert len(good_one["candidates"]) == 2 and "the context is empty" in str(bad)


@pytest.mark.slow
def test_fuzz_from_the_description(client):
    """Whatever is sent, the answer is one that the description tells of, and never a failure of the service."""
    draw = random.Random(0 if "CI" in os.environ else None)
    described = good(client.get("/api/openapi.json"))
    known, statuses = described["components"]["schemas"], {}
    for number in range(120):
        path = ("/api/summarize", "/api/answer")[number % 2]
        operation = described["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        answer = client.post(path, json.dumps(like(draw, schema, known)))
        statuses.setdefault(path, set()).add(answer.status)
        assert str(answer.status) in operation["responses"] and answer.status < 500, answer
        if answer.status == 200:
            good(answer, {"/api/summarize": "Summary", "/api/answer": "Answer"}[path])
    assert all({200, 422} <= found for found in statuses.values()), statuses
    assert {"summarize", "answer"} < {operation.name for operation in api.operations(LIMITS)}

"""Question answering from files to answers: it learns in seconds, by attention alone, resumes exactly, is asked."""

import json

import asked
import pytest
import torch
from largest import Largest
from safetensors.torch import load_file
from training import main

import regard
from regard.cli._console import draw_answer
from regard.evaluate.squad import quality
from regard.models import Reader, ReaderConfig
from regard.models import reader as reader_module
from regard.tasks.qa.answerer import Answer, Answerer, whole
from regard.tasks.qa.spans import AnswerSpan, Prediction
from regard.tasks.qa.train import WORK, Settings
from regard.text import Subwords
from regard.text.graphemes import width
from regard.text.wordpiece import WordPiece
from regard.train import Ranks, Silent

CONTEXT = "Ana has the hat . Bo has the egg . Cy has the oar ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return asked.trained(tmp_path_factory.mktemp("qa"))


@pytest.fixture(scope="module")
def answerer(folder):
    return regard.load(folder[0], device="cpu")


def marks(answerer, seed=2, none=0.0):
    some = list(asked.questions(100, seed, none))
    found = answerer.answers([(e["context"], e["question"]) for e in some])
    return quality([a.text for a in found], [[a["text"] for a in e["answers"]] for e in some])


# --- learning ---


def test_it_learns_in_seconds_and_answers_what_it_has_not_seen(folder, answerer):
    assert folder[1].scores["em"] > 90
    assert marks(answerer).exact > 90  # a guess among two to four is right one time in three


@pytest.mark.slow
def test_with_attention_between_question_and_context_cut_it_cannot(tmp_path, monkeypatch):
    def nothing(q, k, v, **_):
        return torch.zeros(*q.shape[:-1], v.shape[-1])

    monkeypatch.setattr(reader_module, "attend", nothing)
    _, outcome = asked.trained(tmp_path)
    assert outcome.scores["em"] < 60


@pytest.mark.slow
def test_no_answer_is_learned(tmp_path):
    path, _ = asked.trained(tmp_path, none=0.4, count=2000, training={"updates": 220})
    answerer = regard.load(path, device="cpu")
    assert answerer.abstains
    assert marks(answerer, none=0.5).exact > 80
    found = answerer.answer(CONTEXT, "What does Pia have ?")
    assert (found.text, found.start, found.end) == ("", None, None) and found.no_answer == found.score > 0.5
    told = answerer.answer(CONTEXT, "What does Pia have ?", abstain=False)
    assert told.text and CONTEXT[told.start : told.end] == told.text


def test_a_validation_costs_the_tokens_that_are_read(tmp_path):
    settings, passed = Settings.from_tables(asked.tables(tmp_path, count=60, training={"rdrop": 1.0})), []
    fitted = WORK.fit_settings(settings, 60, False, None)
    subwords = WORK.learn(fitted, Silent())
    model = WORK.model(fitted, subwords)
    task = WORK.task(model, fitted, subwords, Ranks(0, 1, torch.device("cpu")), Silent())
    model.encoder.embedding.register_forward_hook(lambda _, given, __: passed.append(given[0].numel()))
    task.validate(model)
    update = 3 * 2 * 2000  # there, and back twice; two passes; tokens
    assert 0.8 * sum(passed) < task.validation_cost * update <= sum(passed)  # which has padding
    task.valid = None
    assert task.validation_cost == 0.0


class Killed(Silent):
    def __init__(self, at):
        self.at = at

    def say(self, message):
        if message.startswith(f"update {self.at}:"):
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"model": {"dropout": 0.2}, "training": {"rdrop": 1.0, "negatives": 0.2}}])
def test_resuming_is_exact(tmp_path, changes):
    short = {"updates": 12, "valid_every": 4, "average": 2, "tokens": 800, **changes.get("training", {})}
    more = {"count": 60, "model": changes.get("model", {}), "training": short}
    whole_run, _ = asked.trained(tmp_path, out="whole", **more)
    with pytest.raises(KeyboardInterrupt):  # after update 8 was looked at, before it was saved: from 4 on again
        asked.trained(tmp_path, out="killed", report=Killed(8), **more)
    again, _ = asked.trained(tmp_path, out="killed", **more)
    a, b = (load_file(path / "model.safetensors") for path in (whole_run, again))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(ValueError, match=r"training\.lr was 0\.004, is 0\.1"):
        asked.trained(tmp_path, out="killed", **more | {"training": short | {"lr": 0.1}})


def test_from_an_encoder_of_before_with_its_vectors_frozen(tmp_path, folder):
    """A reader's own encoder, here: the vectors stay to the last bit, the rest moves."""
    path, _ = asked.trained(
        tmp_path,
        count=60,
        model={"pretrained": str(folder[0]), "dropout": 0.0},
        training={"updates": 3, "freeze": True},
    )
    before, after = (load_file(f / "model.safetensors") for f in (folder[0], path))
    assert torch.equal(before["encoder.embedding.weight"], after["encoder.embedding.weight"])
    assert not torch.equal(
        before["encoder.encoder.0.feed_forward.up.weight"], after["encoder.encoder.0.feed_forward.up.weight"]
    )
    assert regard.load(path, device="cpu").model.config.joint


def test_the_preset_s_length_holds_for_an_encoder_of_before(folder):
    model = {"pretrained": str(folder[0])}
    for preset, updates, tokens in ((None, 1000, 10_000), ("laptop", 1300, 4000)):
        s = WORK.fit_settings(
            Settings(data=Settings.data_table(), model=model, preset=preset), 9000, False, None
        ).training
        assert (s.updates, s.tokens, s.lr, s.warmup) == (updates, tokens, 1e-4, updates // 10)


# --- answers ---


def test_an_answer_has_its_place(answerer):
    found = answerer.answer(CONTEXT, "What does Bo have ?", n_best=4, attention=True)
    assert found.text == "egg" == CONTEXT[found.start : found.end] and not found.problem and not found.note
    assert len(found.candidates) == 4 and found.candidates[0][:3] == ("egg", found.start, found.end)
    scores = [c.score for c in found.candidates]
    assert scores == sorted(scores, reverse=True) and sum(scores) + found.no_answer <= 1 + 1e-9
    assert all(CONTEXT[c.start : c.end] == c.text for c in found.candidates)
    assert found.attention.shape == (5, 15)
    torch.testing.assert_close(found.attention.sum(1), torch.ones(5), atol=1e-5, rtol=0)
    assert int(found.attention[2].argmax()) == CONTEXT.split().index("Bo")


def test_a_context_longer_than_the_model_is_read_in_windows(answerer):
    """The same fact far behind: the same answer, at its exact place."""
    narrow = Answerer(answerer.model, answerer.subwords, window=60, stride=16)
    before = " ".join(f"{name} has the nut ." for name in ["Dee", "Eli", "Fay", "Gus", "Hal", "Ivy", "Jan"] * 6)
    text = f"{before} Pia has the pen . Lou has the map ."
    found = narrow.answer(text, "What does Pia have ?", attention=True)
    assert found.text == "pen" and found.start == text.index("pen") and "windows" in found.note
    assert found.attention.shape == (5, len(text.split())) and float(found.attention[:, 0].sum()) == 0


def test_the_attention_to_a_long_context_needs_no_matrix_of_it(answerer):
    """Words by tokens of a novel would be hundreds of gigabytes."""
    text = f"{'Dee has the nut . ' * 1000}Pia has the pen ."
    with Largest() as largest:
        found = answerer.answer(text, "What does Pia have ?", attention=True)
    assert found.attention.shape == (5, len(text.split()))
    assert largest.elements < 2_000_000  # 5,005 words by as many tokens are 25 million


def test_words_that_the_model_does_not_see_have_their_place_in_the_attention():
    """BERT's subwords drop what cannot be seen; a word of it is a word of ``split()`` all the same."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    subwords = WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters)])
    config = ReaderConfig(vocab_size=len(subwords), dim=16, ffn_dim=16, heads=2, encoder_layers=1, **ids(subwords))
    answerer = Answerer(Reader(config), subwords)
    context = "who \u200b has it \u200b"
    found = answerer.answer(context, "\u200b what \u200b", attention=True)
    assert found.attention.shape == (3, 5)
    assert found.attention[:, [1, 4]].abs().max() == 0 and found.attention[0].sum() == 0
    assert any("has" in line for line in draw_answer(context, found))


def ids(subwords):
    return {name: getattr(subwords, name) for name in ("pad_id", "bos_id", "eos_id")}


def test_questions_of_one_context_and_bad_ones_among_them(answerer):
    found = answerer.answers(
        [(CONTEXT, "What does Cy have ?"), ("", "x"), (CONTEXT, " "), (CONTEXT, "What does Ana have ?")]
    )
    assert [a.text for a in found] == ["oar", "", "", "hat"]
    assert [a.problem for a in found] == ["", "the context is empty", "the question is empty", ""]


@pytest.mark.parametrize(
    ("context", "question", "message"),
    [
        ("", "What ?", "the context is empty"),
        (" \n ", "What ?", "the context is empty"),
        (CONTEXT, "", "the question is empty"),
        ("PK\x03\x00\x00", "What ?", "the context is not text: a NUL at character 3"),
        ("\ud800", "What ?", "the context is not Unicode text: a lone surrogate"),
        (CONTEXT, "why " * 400, r"the question has [\d,]+ subwords; the maximum is 349"),
    ],
)
def test_what_cannot_be_asked_is_told(answerer, context, question, message):
    with pytest.raises(ValueError, match=message):
        answerer.answer(context, question)
    with pytest.raises(TypeError, match="expected a line of text, got bytes"):
        answerer.answer(b"x", question)


class Marked:
    """An Answerer whose model says that these characters are the answer."""

    class model:
        class config:
            max_length = None

    def __init__(self, subwords):
        self.answerer = Answerer(self.model, subwords)
        self.subwords = subwords

    def at(self, text, start, end):
        line = self.subwords.encode(text)
        touched = [i for i, (a, b) in enumerate(line.offsets) if a < end and b > start]
        span = AnswerSpan(touched[0], touched[-1] + 1, 0.9)
        return self.answerer._answer(
            (text, "x"), self.subwords.encode("x"), line, Prediction([span], 0.1), 1, False, False
        )


UNICODE = "東京 café cafe\u0301 👩‍👩‍👧‍👦 👍🏽 naïve Ωμέγα नमस्ते 🇫🇷 e\u0301te\u0301 end"


@pytest.mark.parametrize("kind", ["bytes", "wordpiece"])
def test_places_are_exact_in_any_script(kind):
    if kind == "bytes":
        subwords = Subwords.learn([["plain english text that knows none of it"]], 280)
    else:
        letters = sorted({c for c in UNICODE.lower() if c.isalpha()} | set("abcdefghijklmnopqrstuvwxyzωμεγα"))
        subwords = WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters)])
    marked = Marked(subwords)
    for word in UNICODE.split():
        start = UNICODE.index(f" {word} ") + 1 if f" {word} " in UNICODE else UNICODE.index(word)
        found = marked.at(UNICODE, start, start + len(word))
        assert (found.text, found.start, found.end) == (word, start, start + len(word))
        assert UNICODE[found.start : found.end] == found.text
    # a part of what people see as one character is all of it
    for part, all_of_it in [("cafe\u0301", "cafe\u0301"), ("👩", "👩‍👩‍👧‍👦"), ("👍", "👍🏽")]:
        start = UNICODE.index(part)
        begin, end = whole(UNICODE, start, start + len(part) - (part != part[0] and 1))
        assert UNICODE[begin:end] == all_of_it
    assert whole("a  b", 1, 3) == (3, 3)


# --- the command ---


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(f"{CONTEXT} Dee has the key .\r\n", newline="")
    return path


def test_answers_from_the_command_line(run, folder, text, tmp_path):
    ask = ["answer", "--model", folder[0], "--device", "cpu"]
    done = run(*ask, "--context", text, "What does Bo have ?", "What does Dee have ?")
    assert done.code == 0 and done.lines == ["egg", "key"]
    lines = tmp_path / "questions.txt"
    lines.write_text("What does Cy have ?\n\nWhat does Ana have ?\n")
    done = run(*ask, "--context", text, "--input", lines, "--json")
    found = [json.loads(line) for line in done.lines]
    whole_text = text.read_bytes().decode()
    assert [whole_text[f["start"] : f["end"]] if f["answer"] else f["problem"] for f in found] == [
        "oar",
        "the question is empty",
        "hat",
    ]
    assert f"{lines}:2: the question is empty" in done.err
    done = run(*ask, "--context", text, stdin=b"What does Cy have ?\n")
    assert done.lines == ["oar"]
    done = run(*ask, "--context", "-", "What does Bo have ?", "--n-best", "2", stdin=CONTEXT.encode())
    assert done.lines[0].startswith("0 ||| egg ||| 29-32 ||| ") and len(done.lines) == 2
    done = run(*ask, "--context", text, "--show", "What does Bo have ?")
    assert "Bo has the [egg] ." in done.out.decode() and "█" in done.out.decode()


def test_a_drawn_answer_fits_the_terminal_in_any_script():
    """Two columns a character, no spaces: the brackets are around the answer, not around the whole text."""
    context = "東京は日本の首都です。" * 30 + "卵はボブにあります。" + "京都は古い都です。" * 200
    start = context.index("ボブ")
    found = Answer("ボブ", start, start + 2, 0.9, 0.1, attention=torch.ones(2, 1))
    drawn = draw_answer(context, found, width=40)
    assert "[ボブ]" in "".join(drawn[1::2]).replace(" ", "")
    assert max(map(width, drawn)) <= 40 and len(drawn) < 100  # what is far is not drawn
    for above, below in zip(drawn[1:-1:2], drawn[2:-1:2], strict=True):
        assert width(above) == width(below)
    found = Answer("ein Ei", 7, 13, 0.9, 0.1, attention=torch.tensor([[0.1, 0.7, 0.2, 0.0]]))
    assert draw_answer("Bo hat ein Ei.", found, width=80)[1] == "Bo hat [ein Ei]."
    spelled = "👩\u200d🚀 می\u200cخواهم \x1b[2J"  # with joiners; the last would clear the screen
    found = Answer(spelled[4:12], 4, 12, 0.9, 0.1, attention=torch.ones(1, 3))
    assert draw_answer(spelled, found)[1] == "👩\u200d🚀 [می\u200cخواهم] �[2J"


def test_no_question_at_all_is_told(run, folder, text):
    ask = ["answer", "--model", folder[0], "--device", "cpu", "--context", text]
    done = run(*ask, stdin=b"")
    assert done.code == 2 and "there are no questions" in done.err and not done.out
    kept = text.parent / "kept"
    kept.write_text("before")
    assert run(*ask, " ", "--output", kept).code == 2 and kept.read_text() == "before"  # none could be asked
    done = run(*ask, " ", "What does Bo have ?")
    assert done.code == 0 and done.lines == ["", "egg"]


def test_a_figure_of_the_first_answer(run, folder, text, tmp_path):
    pytest.importorskip("matplotlib")
    ask = ["answer", "--model", folder[0], "--device", "cpu", "--context", text]
    done = run(*ask, "", "What does Bo have ?", "What does Cy have ?", "--plot", tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert done.code == 0 and done.lines == ["", "egg", "oar"]
    assert all(f">{word}</text>" in drawn for word in ("What", "have", "[egg]", "Dee", "oar"))
    long = tmp_path / "long.txt"
    long.write_text(f"{'Dee has the nut . ' * 40}{CONTEXT}")
    done = run(*ask[:-1], long, "What does Bo have ?", "--plot", tmp_path / "b.svg")
    drawn = (tmp_path / "b.svg").read_text()
    assert "155 words with less attention are left out" in drawn and drawn.count(">Dee</text>") < 40
    done = run(*ask, "What does Bo have ?", "--plot", tmp_path / "a.txt")
    assert done.code == 2 and "expected a name that ends in .svg" in done.err and not done.out


def test_what_is_no_text_is_told(run, folder, tmp_path):
    ask = ["answer", "--model", folder[0], "--device", "cpu"]
    cases = {
        "empty": (b" \n", "expected a text, but it is empty"),
        "binary": (b"ab\x00cd", "expected a text, got a binary file (a zero byte at 2)"),
        "latin": ("é".encode("latin-1"), "expected a text, but it is not UTF-8 (byte 0xe9 at 0)"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        done = run(*ask, "--context", tmp_path / name, "What ?")
        assert done.code == 2 and message in done.err and "Traceback" not in done.err and not done.out
    done = run(*ask, "--context", tmp_path / "none", "What ?")
    assert done.code == 2 and "there is no such file" in done.err
    done = run(*ask, "--context", "-", stdin=b"x")
    assert done.code == 2 and "cannot both be read from the standard input" in done.err


def test_training_from_the_command_line(tmp_path, capsys):
    given = asked.tables(tmp_path, count=40)
    arguments = ["--questions", given["data"]["questions"], "--vocab-size", "330", "--dim", "16", "--device", "cpu"]
    arguments += ["--updates", "2", "--score", "general", "--set", "training.average=1", "--encoder-layers", "1"]
    assert main([*arguments, "--out", str(tmp_path / "m")], "qa") == 0
    config = regard.load(tmp_path / "m", device="cpu").model.config
    assert config.cross_score == "general" and config.dim == 16
    assert main(["--out", str(tmp_path / "n")], "qa") == 2
    assert "no training data: give --questions" in capsys.readouterr().err
    (tmp_path / "none.jsonl").write_text("")
    assert main(["--questions", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "n")], "qa") == 2
    assert "there are no questions in" in capsys.readouterr().err
    with pytest.raises(ValueError, match="bad must be raise or skip"):
        Settings.from_tables({"data": {"bad": "x"}})


def test_marks_from_the_command_line(run, folder, answerer, tmp_path):
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in asked.questions(100, 2)))
    done = run("evaluate", "--model", folder[0], "--questions", path, "--device", "cpu", "--json")
    (found,) = json.loads(done.out)
    right = marks(answerer)
    assert [score["score"] for score in found["scores"]] == [right.exact, right.f1] and right.f1 > 50
    path.write_text("")
    done = run("evaluate", "--model", folder[0], "--questions", path)
    assert done.code == 2 and "there are no questions in it" in done.err
    done = run("evaluate", "--questions", path)
    assert done.code == 2 and "give the --model" in done.err


def test_drawings_do_not_mix_with_json(run, folder, text):
    done = run("answer", "-m", folder[0], "-c", text, "What?", "--json", "--show")
    assert done.code == 2 and "give one of them" in done.err


def test_settings_of_a_model_that_cannot_be_are_told_before_anything_is_written(tmp_path, capsys):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in asked.questions(20, 1)))
    assert main(["--questions", str(path), "--score", "nonsense", "--out", str(tmp_path / "model")], "qa") == 2
    assert "score kind must be one of" in capsys.readouterr().err and not (tmp_path / "model").exists()
    assert main(["--help"], "qa") == 0
    said = capsys.readouterr().out
    assert "--encoder-layers" in said and "--decoder-layers" not in said

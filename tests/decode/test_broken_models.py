"""Models whose weights are NaN, or whose searches are asked for too much: an error with the name, and an end."""

import json
import math

import pytest
import torch
from serving import save_models, save_task_models, serving

import regard
from regard.decode import NoProbabilities
from regard.decode.search import Search
from regard.models import folder
from regard.tasks.base import batches_of
from regard.tasks.summarization.search import SummarySearch

SAYS = r"the model {} gives no probabilities \(NaN, or 0 for every allowed token\)"


def spoil(path, out, value=math.nan):
    """The model with one number of the last matrix changed."""
    loaded = folder.open(path)
    with torch.no_grad():
        [*loaded.model.parameters()][-1].view(-1)[0] = value
    settings = {key: table for key, table in loaded.settings.items() if key not in ("format", "regard", "model")}
    folder.save(out, loaded.model, loaded.subwords, settings=settings)
    return out


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Folders by name; the model's weights are such that it gives no probabilities."""
    path = tmp_path_factory.mktemp("broken")
    whole = [*save_models(path / "whole"), *save_task_models(path / "whole")]
    return {each.rsplit("/", 1)[1]: spoil(each, path / each.rsplit("/", 1)[1]) for each in whole}


@pytest.mark.parametrize("name", ["transformer", "rnn"])
def test_translators(broken, name):
    translator = regard.load(broken[name], device="cpu")
    for options in ({}, {"beam": 1}, {"sample": True}, {"nbest": 3, "max_length": 60_000}):
        with pytest.raises(NoProbabilities, match=SAYS.format(name)):
            translator.translate("the dog sees a cat .", **options)
    with pytest.raises(NoProbabilities, match=SAYS.format(name)):
        translator.score([("the dog", "le chien")])


def test_the_other_engine(broken, tmp_path):
    pytest.importorskip("ctranslate2")
    from regard.interop.ctranslate2 import export

    path = tmp_path / "exported"
    export(spoil(broken["transformer"].parent / "whole" / "transformer", tmp_path / "model"), path)
    translator = regard.load(path, device="cpu", engine="ctranslate2")
    for options in ({}, {"beam": 1}, {"min_length": 3}):
        with pytest.raises(NoProbabilities, match=SAYS.format("exported")):
            translator.translate("the dog sees a cat .", **options)
    with pytest.raises(NoProbabilities, match=SAYS.format("exported")):
        translator.score([("the dog", "le chien")])


def test_summarizers(broken):
    summarizer = regard.load(broken["summarization"], device="cpu")
    for options in ({}, {"consensus": 2}):
        with pytest.raises(NoProbabilities, match=SAYS.format("summarization")):
            summarizer.summarize("Anna: the tickets are here .", **options)


def test_answerers(broken):
    answerer = regard.load(broken["qa"], device="cpu")
    with pytest.raises(NoProbabilities, match=SAYS.format("qa")):
        answerer.answer("the tickets are here .", "where ?")


def test_the_command(broken, run):
    done = run("translate", "-m", broken["transformer"], "the dog")
    assert done.code == 2 and done.err.startswith("regard: error: the model transformer gives no probabilities")
    assert done.err.count("\n") == 1 and not done.out


def test_the_service_says_which_model_it_is(broken, tmp_path, caplog):
    good = save_models(tmp_path)
    with serving([broken["transformer"], good[0]]) as client:
        for path in ("/api/translate", "/api/trace"):
            answer = client.post(path, {"text": "the dog"})
            assert answer.status == 500 and answer.error.startswith("the model transformer gives no probabilities")
        assert client.get("/api/health").json == {"status": "ok"}
        assert client.post("/api/translate", {"text": "the dog", "model": "transformer-2"}).status == 200
    assert "Traceback" not in caplog.text and "the model transformer gives no probabilities" in caplog.text


# --- too much ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 1_000_000}, "beam and nbest of at most 1,024, got beam=1000000"),
        ({"nbest": 5000, "sample": True}, "at most 1,024, got beam=5 and nbest=5000"),
        ({"max_length": 10**12}, "max_length of at most 65,536 subwords, got 0 and 1000000000000"),
        ({"min_length": 10**6}, "min_length and max_length of at most 65,536"),
        ({"beam": "5"}, "beam must be a whole number, got '5'"),
        ({"beam": 5.0}, "beam must be a whole number, got 5.0"),
        ({"known_words": 1}, "known_words must be true or false, got 1"),
        ({"length_penalty": math.nan}, "length_penalty: expected a number from 0 to 7, got nan"),
        ({"length_penalty": 400.0}, "length_penalty: expected a number from 0 to 7, got 400.0"),
    ],
)
@pytest.mark.parametrize("kind", [Search, SummarySearch])
def test_searches_have_bounds(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_a_wide_search_takes_few_sentences_at_once():
    assert Search(beam=1000).sentences == 16 and Search().sentences > 1000
    assert [len(batch) for batch in batches_of([3] * 40, 1024, 16)] == [16, 16, 8]


def test_the_bounds_hold_for_what_a_folder_says(run, tmp_path):
    """It is refused when it is opened, before anything is computed."""
    path, _ = save_models(tmp_path, translate={"beam": 1_000_000})
    done = run("translate", "-m", path, "the dog")
    assert done.code == 2 and "config.toml: [translate]: expected beam and nbest of at most 1,024" in done.err
    assert json.dumps(done.err).count("\\n") == 1

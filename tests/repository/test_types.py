"""What a type checker and an editor know of regard's options."""

import inspect
import typing
from dataclasses import fields

import pytest
from commands import ROOT

import regard
from regard.decode.search import Search, SearchOptions
from regard.tasks.qa import answerer
from regard.tasks.summarization import summarizer
from regard.tasks.summarization.search import SummarySearch
from regard.tasks.translation import translator

PROGRAM = """
import regard

small = regard.load(device="cpu")
one: str = small.translate("the dog", beam=2, prefix="le")
many: list[str] = small.translate(["the dog"], sample=True, seed=1)
found = regard.load("a folder", task="qa", device="cpu").answer("context", "question", n_best=2)
text: str = found.text
summary: str = regard.load("a folder", task="summarization").summarize("text", length=9, beam=2).text
scores: list[float] = small.score([("a", "b")], batch_tokens=100)
links = small.align([("a", "b")], mutual=True)
"""
WRONG = {
    'small.translate("the dog", beams=2)': "translate",
    'small.translate("the dog", beam="two")': "translate",
    'small.outputs(["the dog"], topp=0.5)': "topp",
    'small.score([("a", "b")], mutual=True)': "mutual",
    'small.align([("a", "b")], layers=1)': "layers",
    'regard.load(devise="cpu")': "load",
    'regard.load("a folder", devise="cpu")': "load",
    'regard.load("a folder", task="qa", int8=True)': "load",
    'regard.load("a folder", task="qa").answer("c", "q", nbest=2)': "nbest",
    'regard.load("a folder", task="summarization").summarize("text", lenght=9)': "summarize",
}


def checked(tmp_path, *lines):
    api = pytest.importorskip("mypy.api")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "\n".join(lines))
    out, problems, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(path)])
    assert not problems, problems
    first = len(PROGRAM.splitlines()) + 1
    return {int(line.split(":")[1]) - first: line for line in out.splitlines() if ": error:" in line}


@pytest.mark.slow
def test_a_misspelt_option_is_an_error_of_types(tmp_path):
    found = checked(tmp_path, *WRONG)
    assert set(found) == set(range(len(WRONG))), found
    for line, name in zip(found.values(), WRONG.values(), strict=True):
        assert name in line


def typed(options):
    """An options table without those of a search."""
    hints = typing.get_type_hints(options)
    return {name: kind for name, kind in hints.items() if name not in SearchOptions.__annotations__}


def named_only(method):
    """What a method takes by name alone, other than a search's options."""
    kinds = inspect.signature(method).parameters.values()
    return {p.name for p in kinds if p.kind is p.KEYWORD_ONLY}


def test_the_options_of_a_search_are_its_fields():
    hints = typing.get_type_hints(SearchOptions)
    for search in (Search, SummarySearch):
        known = typing.get_type_hints(search)
        assert hints == {f.name: known[f.name] for f in fields(search)}


@pytest.mark.parametrize(
    ("options", "method", "without"),
    [
        (translator.TranslateOptions, regard.Translator.outputs, {"attention"}),
        (translator.ForcedOptions, regard.Translator.forced, {"attention"}),
        (translator.TranslatorOptions, translator.load, set()),
        (summarizer.SummarizeOptions, regard.Summarizer.outputs, set()),
        (summarizer.SummarizerOptions, summarizer.load, set()),
        (answerer.AnswerOptions, regard.Answerer.answers, set()),
        (answerer.AnswererOptions, answerer.load, set()),
    ],
)
def test_options_are_those_of_the_method_that_takes_them(options, method, without):
    assert set(typed(options)) == named_only(method) - without


def test_a_task_that_is_named_is_the_one_that_loads():
    assert isinstance(regard.load(task="translation", device="cpu"), regard.Translator)
    with pytest.raises(ValueError, match="a model for translation, and one for qa is needed"):
        regard.load(task="qa")
    with pytest.raises(ValueError, match="task: expected one of translation, summarization, qa, got 'chat'"):
        regard.load(task="chat")

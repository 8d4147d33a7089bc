"""Flags from parameters and settings: types, bounds, what is given, and what is told."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from regard.cli._parser import Fields, Flag, Options, Parser, run


@dataclass
class Settings:
    depth: int = 3
    kind: Literal["slow", "fast"] = "slow"


def command(
    options: Options,
    first: Annotated[str, Flag("One.")],
    more: Annotated[list[str] | None, Flag("Others.", metavar="MORE")] = None,
    *,
    rate: Annotated[float | None, Flag("100 % of it.", "-r", least=0, most=1)] = None,
    pair: Annotated[tuple[str, str], Flag("Two.")] = ("a", "b"),
    loud: Annotated[bool | None, Flag("So?", off="--quiet")] = None,
    name: Annotated[list[str] | None, Flag("Repeatable.")] = None,
    **settings: Annotated[Any, Fields("settings", Settings, {"depth": Flag("How deep."), "kind": Flag("Which.")})],
) -> None:
    found.append((options, first, more, rate, pair, loud, name, settings))


found: list[Any] = []


def given(*arguments):
    found.clear()
    assert run(command, Parser("program", "About.").parameters(command), arguments) == 0
    return found[0]


def test_what_is_not_given_is_not_passed():
    def align(source: Annotated[str, Flag("One.")], target: Annotated[str | None, Flag("Another.")] = None) -> None:
        pass

    assert Parser("align", "").parameters(align).values(["x"]) == {"source": "x"}
    assert Parser("align", "").parameters(align).values(["x", "y"]) == {"source": "x", "target": "y"}
    assert given("x") == ({"first"}, "x", None, None, ("a", "b"), None, None, {})


def test_each_type_is_read():
    words = [
        "x",
        "-r",
        "0.5",
        "y",
        "--pair",
        "c",
        "d",
        "--quiet",
        "z",
        "--name",
        "1",
        "--name",
        "2",
        "--depth",
        "4",
        "--kind",
        "fast",
    ]
    options, *rest = given(*words)
    assert rest == ["x", ["y", "z"], 0.5, ("c", "d"), False, ["1", "2"], {"depth": 4, "kind": "fast"}]
    assert options.among("rate", "loud", "depth") == "--rate, --loud, --depth" and options.among("nothing") == ""
    assert given("x", "--loud")[5] is True


def test_a_value_may_begin_with_a_hyphen_and_is_no_option():
    assert given("x", "--name", "-y", "--name=--z", "--", "--loud")[2:7] == (
        ["--loud"],
        None,
        ("a", "b"),
        None,
        ["-y", "--z"],
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "1"], "required: FIRST"),
        (["x", "--rate", "2"], "--rate: expected at least 0 and at most 1, got 2"),
        (["x", "--rate", "-1"], "--rate: expected at least 0 and at most 1, got -1"),
        (["x", "--rate", "much"], "'much' is not a valid number"),
        (["x", "--depth", "1.5"], "'1.5' is not a valid integer"),
        (["x", "--kind", "odd"], "invalid choice: 'odd'"),
        (["x", "--pair", "c"], "expected 2 arguments"),
        (["x", "--rate", "--loud"], "--rate: expected one argument"),
        (["x", "--rat", "1"], "unrecognized arguments: --rat 1; did you mean --rate? (see program --help)"),
    ],
)
def test_what_is_wrong_is_told_with_the_nearest_option(capsys, arguments, says):
    with pytest.raises(SystemExit) as stopped:
        given(*arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.startswith("usage: program [options] FIRST [MORE ...]\n") and says in said


def test_help_has_types_and_defaults_of_functions_and_settings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        given("--help")
    said = " ".join(capsys.readouterr().out.split())
    for part in ("-r FLOAT, --rate FLOAT 100 % of it.", "--pair STR STR Two. [default: a b]", "--loud, --quiet So?"):
        assert part in said
    assert "--depth INT How deep. [default: 3]" in said and "--kind {slow,fast} Which. [default: slow]" in said

"""From the parameters of a command's function to its flags: names, types and defaults are theirs, the rest a `Flag`.

The fields of a settings dataclass become flags in the same way, by :class:`Fields` or :meth:`Parser.flag`. What is not
on the command line is not passed to the function: its own defaults, or those of the settings, hold. argparse does the
work, since training must run where nothing but PyTorch and a few packages for files are installed.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from regard.cli._console import columns
from regard.files.kinds import hints_of

NOTHING = inspect.Parameter.empty
Command = Callable[..., int | None]
"""A command's function; its exit code is 0 where it returns none."""


class Flag:
    """What the name, type and default of a parameter leave open.

    ``names`` are short ones, or a long one instead of the parameter's own; ``off`` is the name that says no. A number
    is from ``least`` to ``most``. ``hidden`` keeps a default out of the help, where another may hold.
    """

    def __init__(
        self,
        help: str,
        *names: str,
        off: str = "",
        metavar: str | None = None,
        least: float | None = None,
        most: float | None = None,
        choices: Iterable[str] | None = None,
        hidden: bool = False,
    ) -> None:
        self.help, self.names, self.off, self.metavar = help, names, off, metavar
        self.least, self.most, self.choices, self.hidden = least, most, choices, hidden

    def spellings(self, name: str) -> list[str]:
        """The names of the option for this parameter, or table.field, short ones first."""
        own = (
            []
            if any(each.startswith("--") for each in self.names)
            else [f"--{name.rpartition('.')[2].replace('_', '-')}"]
        )
        return [*self.names, *own, *([self.off] if self.off else [])]

    def number(self, kind: type[int] | type[float]) -> Callable[[str], float]:
        """Reads a number in its bounds."""

        def read(text: str) -> float:
            try:
                value = kind(text)
            except ValueError:
                noun = "integer" if kind is int else "number"
                raise argparse.ArgumentTypeError(f"{text!r} is not a valid {noun}") from None
            if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
                upper = "" if self.most is None else f" and at most {self.most}"
                raise argparse.ArgumentTypeError(f"expected at least {self.least}{upper}, got {text}")
            return value

        return read


@dataclass(frozen=True)
class Fields:
    """Flags from fields of a settings dataclass, for ``**name: Annotated[Any, Fields(...)]``: those that are given."""

    title: str
    settings: type
    flags: Mapping[str, Flag]


class Options(frozenset[str]):
    """The options that are on the command line, by the names of their parameters."""

    def among(self, *names: str) -> str:
        """Which of these they are, as they are written: "" for none."""
        return ", ".join(f"--{name.replace('_', '-')}" for name in names if name in self)


class Parser(argparse.ArgumentParser):
    """The parser of one command."""

    def __init__(
        self, prog: str, about: str, *, usage: str | None = None, epilog: str | None = None, add_help: bool = True
    ) -> None:
        super().__init__(
            prog,
            usage,
            wrap_text(about),
            epilog,
            formatter_class=_formatter,
            add_help=add_help,
            allow_abbrev=False,
        )
        self.valued: set[str] = set()  # the options that have a value
        self.known: set[str] = {"-h", "--help"}

    def flag(
        self,
        name: str,
        hint: object,
        flag: Flag,
        default: object = None,
        group: argparse._ArgumentGroup | None = None,
    ) -> None:
        """Adds an option; it is required where ``default`` is NOTHING."""
        names, how = flag.spellings(name), _how(hint, flag)
        self.known.update(names)
        if how.get("nargs") != 0:
            self.valued.update(names)
        how["help"] += "" if flag.hidden else _default(default)
        (group or self).add_argument(*names, dest=name, required=default is NOTHING, **how)

    def argument(self, name: str, hint: object, flag: Flag, default: object) -> None:
        """Adds a positional argument."""
        how = _how(hint, flag)
        many = how.pop("action", None) == "append"
        nargs = {"nargs": "*"} if many else {} if default is NOTHING else {"nargs": "?", "default": None}
        self.add_argument(name, **{**how, **nargs, "metavar": flag.metavar or name.upper()})

    def parameters(self, command: Command) -> Parser:
        """Adds those of a function."""
        hints = hints_of(command)
        for name, parameter in inspect.signature(command).parameters.items():
            if get_origin(hints[name]) is not Annotated:
                continue
            hint, about = get_args(hints[name])[:2]
            if isinstance(about, Fields):
                self.fields(about)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                self.flag(name, hint, about, parameter.default)
            else:
                self.argument(name, hint, about, parameter.default)
        return self

    def fields(self, about: Fields) -> None:
        """Adds fields of settings."""
        group = self.add_argument_group(about.title)
        hints, fields = hints_of(about.settings), inspect.signature(about.settings).parameters
        for name, flag in about.flags.items():
            self.flag(name, hints[name], flag, fields[name].default, group)

    def values(self, arguments: Sequence[str]) -> dict[str, Any]:
        """What is on the command line, by the names of parameters."""
        self.usage = self.short_usage()
        found = vars(self.parse_intermixed_args(_join_values(arguments, self.valued, self.known)))
        return {name: value for name, value in found.items() if value is not None}

    def short_usage(self) -> str:
        """What must be given, and no more: all options would be a page."""
        required = [f"{a.option_strings[-1]} {a.metavar}" for a in self._actions if a.required and a.option_strings]
        return " ".join([self.prog, "[options]", *required, *map(_position, self._get_positional_actions())])

    def error(self, message: str) -> NoReturn:
        words = re.findall(r"--[\w-]+", message)
        near = [n for word in words if word not in self.known for n in get_close_matches(word, sorted(self.known), 1)]
        hint = f"; did you mean {near[0]}?" if near else ""
        super().error(f"{message}{hint} (see {self.prog} --help)")


def run(command: Command, parser: Parser, arguments: Sequence[str]) -> int:
    """Runs a command with its arguments; returns its exit code."""
    given = parser.values(arguments)
    told = {name: Options(given) for name, hint in hints_of(command).items() if hint is Options}
    return command(**given, **told) or 0


class _Switch(argparse.Action):
    """True, or false by the name that says no."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, option_string != self.const)


class _Pair(argparse.Action):
    """A tuple of values."""

    def __call__(
        self,
        parser: object,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, tuple(values or ()))


def _how(hint: object, flag: Flag) -> dict[str, Any]:
    """The arguments of ``add_argument`` for a type."""
    how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": flag.help.replace("%", "%%")}
    kind = next((one for one in get_args(hint) if one is not NoneType), hint) if _optional(hint) else hint
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if kind is bool:
        return {**how, "action": _Switch, "nargs": 0, "const": flag.off or None}
    origin, args = get_origin(kind), get_args(kind)
    if origin is list:
        how, kind = {**how, "action": "append"}, args[0]
    elif origin is tuple:
        how, kind = {**how, "action": _Pair, "nargs": len(args)}, args[0]
    if choices := args if origin is Literal else flag.choices:
        return {**how, "choices": choices, "metavar": flag.metavar or "{" + ",".join(choices) + "}"}
    assert isinstance(kind, type)
    metavar = flag.metavar or ("FILE" if kind is Path else kind.__name__.upper())
    return {**how, "type": flag.number(kind) if kind in (int, float) else kind, "metavar": metavar}


def _optional(hint: object) -> bool:
    return NoneType in get_args(hint)


def _default(value: object) -> str:
    """What help says of a default: nothing of switches and of none."""
    if isinstance(value, bool) or value in (None, NOTHING, ""):
        return ""
    return f" [default: {' '.join(value) if isinstance(value, tuple) else value}]"


def _join_values(arguments: Iterable[str], valued: set[str], known: set[str]) -> list[str]:
    """--prefix -x as --prefix=-x: a value may begin with a hyphen, if it is no option itself.

    >>> _join_values(["--prefix", "-x", "--", "--prefix", "-x"], {"--prefix"}, {"--prefix"})
    ['--prefix=-x', '--', '--prefix', '-x']
    """
    found: list[str] = []
    for word in arguments:
        hyphen = len(word) > 1 and word.startswith("-") and word.partition("=")[0] not in {*known, "--"}
        if found and found[-1] in valued and hyphen and "--" not in found:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _position(action: argparse.Action) -> str:
    name = str(action.metavar)
    return {"*": f"[{name} ...]", "?": f"[{name}]"}.get(str(action.nargs), name)


def summary(command: Command) -> str:
    """The first paragraph of its docstring."""
    return inspect.cleandoc(command.__doc__ or "").partition("\n\n")[0]


def wrap_text(text: str) -> str:
    """A docstring's paragraphs as wide as the terminal; what is indented stays as it is."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else textwrap.fill(part, columns()) for part in parts)


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=columns())

"""The command line: the only place that wires everything.

``regard translate`` is translate.py, and so on: a function whose parameters are the options and whose docstring is the
help. _parser.py makes flags of parameters and of settings, _flags.py has those that several commands share, _input.py
reads what they work on. ``regard train`` is one of them, and training runs from source where little is
installed: nothing here imports more than the standard library before a command needs it.

An error that the user can fix (a missing file, a wrong option, a damaged model) is one line, with exit code 2; set
REGARD_DEBUG to see where it arose. Slow imports are inside the commands.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module

from regard.cli._console import Failure, columns, message, say
from regard.cli._parser import Command, Parser, run, summary
from regard.cli.train import extend

__all__ = ["COMMANDS", "main"]

COMMANDS = ("train", "translate", "summarize", "answer", "evaluate", "align", "export", "serve", "explore")
ABOUT = "Attention you can use, train and see: train, translate, summarize, answer, evaluate, align and explore."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code is 0, or 2 for something that the user can mend."""
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _close_output()
        return 1
    except (ValueError, TypeError, OSError, ImportError, Failure) as error:
        if os.environ.get("REGARD_DEBUG"):
            raise
        say(f"error: {message(error)}")
        return error.code if isinstance(error, Failure) else 2


def _run(arguments: list[str]) -> int:
    name, rest = (arguments or [""])[0], arguments[1:]
    if name not in COMMANDS:
        return _no_command(arguments)
    command = function(name)
    parser = Parser(f"regard {name}", command.__doc__ or "").parameters(command)
    if name == "train":  # what else it takes depends on the task
        extend(parser, rest)
    return run(command, parser, rest)


def function(name: str) -> Command:
    """A command's function; its module has its name."""
    found: Command = getattr(import_module(f"regard.cli.{name}"), name)
    return found


def _no_command(arguments: list[str]) -> int:
    """Help, the version, or the error."""
    rows = [f"  {name:<10} {summary(function(name))}" for name in COMMANDS]
    rows = [textwrap.fill(row, columns(), subsequent_indent=" " * 13) for row in rows]
    parser = Parser("regard", ABOUT, epilog="\n".join(["commands:", *rows]))
    parser.add_argument("--version", action="version", version=f"regard {sys.modules['regard'].__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help=argparse.SUPPRESS)
    parser.usage = parser.short_usage()
    if arguments:
        parser.values(arguments)
    parser.print_help(sys.stderr)
    return 2


def _close_output() -> None:
    """The reader has closed it: flushing its buffer when Python ends would be an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

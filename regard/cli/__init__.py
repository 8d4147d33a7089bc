"""The command line: the only place that wires everything.

``regard translate`` is translate.py, and so on: a function whose arguments are the options and whose docstring is the
help. _options.py has what several commands share, _input.py the lines they read.

What a user can mend (a missing file, a wrong option, a damaged model) is told in a line, with exit code 2; set
REGARD_DEBUG to see where it came from. Imports that take time stand inside the commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from regard.cli import align, answer, evaluate, explore, export, serve, summarize, train, translate
from regard.cli._console import message, say
from regard.cli.align import METHODS

__all__ = ["METHODS", "app", "main"]

app = typer.Typer(
    name="regard",
    help="Attention you can use, train and see: train, translate, summarize, answer, evaluate, align and explore.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code is 0, or 2 for something that the user can mend."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="regard")
        return 0
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except (ValueError, TypeError, OSError, ImportError) as error:
        if os.environ.get("REGARD_DEBUG"):
            raise
        say(f"error: {message(error)}")
        return 2


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {sys.modules['regard'].__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
]


@app.callback()
def _top(version: Version = False) -> None:
    pass


# --- the commands, in the order of the help ---

app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    train.train
)
app.command()(translate.translate)
app.command()(summarize.summarize)
app.command()(answer.answer)
app.command()(evaluate.evaluate)
app.command()(align.align)
app.command()(export.export)
app.command()(serve.serve)
app.command()(explore.explore)

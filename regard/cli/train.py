"""``regard train``: it has a command line of its own, which needs no typer."""

from __future__ import annotations

import typer


def train(context: typer.Context) -> None:
    """Train a model of a task, translation by default; `regard train --task TASK --help` tells how."""
    from regard.tasks import main

    raise typer.Exit(main(context.args))

"""``regard serve``: models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli._console import say
from regard.cli._options import DEFAULT_MODEL, Device
from regard.common.start import starting

Models = Annotated[list[str] | None, typer.Option("--model", "-m", help="A model folder of any task; may be repeated.")]
Traces = Annotated[
    list[Path] | None, typer.Option("--trace", help="A file of trace.save; may be repeated. Then no model is needed.")
]
Host = Annotated[str, typer.Option(help="Address to listen on; 127.0.0.1 is for this machine alone.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="By default 8000, or the next that is free.")]
AllowHost = Annotated[list[str] | None, typer.Option(help="Another name that the server answers to; may be repeated.")]


def serve(
    *,
    model: Models = None,
    trace: Traces = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    allow_host: AllowHost = None,
    device: Device = None,
) -> None:
    """Answer over HTTP: translations, summaries, answers to questions, and what a model looked at.

    \b
    regard serve --model model/
    curl -H "Content-Type: application/json" -d '{"text": "A dog runs."}' http://127.0.0.1:8000/api/translate

    GET /api/openapi.json describes everything there is. Ctrl-C or SIGTERM stop it after what runs has been answered.
    """
    with starting():
        from regard.explorer import start

    start(
        served(model, trace),
        traces=trace or [],
        with_page=False,
        host=host,
        port=port,
        allow_hosts=allow_host or [],
        device=device,
        say=say,
    )


def served(models: list[str] | None, traces: list[Path] | None) -> list[str]:
    """The models that are asked for; the bundled one where nothing is."""
    return models or ([] if traces else [DEFAULT_MODEL])

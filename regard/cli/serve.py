"""``regard serve``: models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from regard.cli._console import say
from regard.cli._flags import DEFAULT_MODEL, Device
from regard.cli._parser import Flag
from regard.common.start import quick_start

if TYPE_CHECKING:
    from typing_extensions import Unpack

Models = Annotated[list[str] | None, Flag("A model folder of any task; may be repeated.", "-m")]
Traces = Annotated[list[Path] | None, Flag("A file of trace.save; may be repeated; needs no model.")]
Host = Annotated[str, Flag("Address to listen on; 127.0.0.1: this machine only.")]
Port = Annotated[int | None, Flag("By default 8000, or the next free port.", least=0, most=65535)]
AllowHost = Annotated[list[str] | None, Flag("Another host name to accept; may be repeated.")]


def serve(
    *,
    model: Models = None,
    trace: Traces = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    allow_host: AllowHost = None,
    device: Device = None,
) -> None:
    """Serve over HTTP: translations, summaries, answers to questions, and the attention behind them.

        regard serve --model model/
        curl -H "Content-Type: application/json" -d '{"text": "A dog runs."}' http://127.0.0.1:8000/api/translate

    GET /api/openapi.json describes the API. Ctrl-C or SIGTERM stops it after the running requests are answered.
    """
    start_service(model, trace, allow_host, with_page=False, host=host, port=port, device=device)


class ServiceOptions(TypedDict, total=False):
    """The options of a service that need no more than to be handed on."""

    with_page: bool
    browser: bool
    host: str
    port: int | None
    device: str | None


def start_service(
    models: list[str] | None,
    traces: list[Path] | None,
    hosts: list[str] | None,
    **options: Unpack[ServiceOptions],
) -> None:
    """Serves models and traces until it is stopped; by default the bundled model."""
    with quick_start():
        from regard.explorer import start

    models = models or ([] if traces else [DEFAULT_MODEL])
    start(models, traces=traces or [], allow_hosts=hosts or [], say=say, **options)

"""``regard explore``: what ``regard serve`` answers, with a page."""

from __future__ import annotations

from typing import Annotated

from regard.cli._flags import Device
from regard.cli._parser import Flag
from regard.cli.serve import AllowHost, Host, Models, Port, Traces, start_service


def explore(
    *,
    model: Models = None,
    trace: Traces = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    allow_host: AllowHost = None,
    browser: Annotated[bool, Flag("Open the page in a browser.", off="--no-browser")] = True,
    device: Device = None,
) -> None:
    """Open the explorer: type a text, and see what each word looks at and how every number was made.

        regard explore
        regard explore --model transformer/ --model rnn/ --port 9000 --no-browser
        regard explore --model translator/ --model summarizer/ --model reader/
        regard explore --trace book.safetensors

    It is `regard serve` with a page. Everything stays on this machine.
    """
    start_service(model, trace, allow_host, browser=browser, host=host, port=port, device=device)

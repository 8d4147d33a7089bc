"""From a command to a running server: a port, a browser, and a stop that lets what runs be finished."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from regard.explorer import page
from regard.explorer.files import open_traces
from regard.explorer.http import _app
from regard.explorer.http._connection import Connection, watch
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.security import Hosts, is_loopback
from regard.explorer.models import Models

PORT = 8000
TRIES = 20  # ports after it, where it is taken
WRITING = 1.0  # seconds for answers to be written when it is stopped, and again for clients to read them


def start(
    models: Sequence[str],
    *,
    traces: Sequence[str | Path] = (),
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str | None = None,
    with_page: bool = True,
    browser: bool = True,
    allow_hosts: Sequence[str] = (),
    limits: ServiceLimits | None = None,
    say: Callable[[str], None],
) -> None:
    """Serves models, and traces from files, until SIGINT or SIGTERM.

    ``port`` None is 8000, or the next that is free; 0 is any that is free.
    """
    limits = limits or ServiceLimits()
    with contextlib.closing(listen(host, port)) as listener:
        address = url(host, listener)
        if not is_loopback(host):
            say(
                f"WARNING: on {host} everyone who can reach this machine over the network can use the service; there "
                "is no password and no encryption"
            )
        given = open_traces(traces, device)
        loaded = Models.load(models, device)
        files = page.files() if with_page else None
        made = _app.make(loaded, hosts=Hosts(host, allow_hosts), limits=limits, files=files, traces=given)
        server = Server(made, limits)
        if with_page and browser:
            threading.Thread(target=_open, args=(server, address), daemon=True).start()
        say(f"{'the explorer' if with_page else 'the service'} is at {address} (Ctrl-C stops it)")
        asyncio.run(server.serve(sockets=[listener]))
        if name := made.service.working():
            say(f"stopped; the {name} thread was still busy, and was abandoned")
            sys.stderr.flush()
            os._exit(0)  # an interpreter that ends around native code which still runs may crash
        say("stopped")


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket. Another port is taken only if none was asked for."""
    wanted = [port] if port is not None else [*range(PORT, PORT + TRIES), 0]
    for number in wanted:
        try:
            return _bind(host, number)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port is not None:
                raise ValueError(f"cannot listen on {host}, port {number}: {error.strerror or error}") from error
    raise AssertionError("port 0 is always free")


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(1024)  # at once: a port that is only bound could be taken by another
    except OSError:
        listener.close()
        raise
    return listener


def url(host: str, listener: socket.socket) -> str:
    """Where a browser on this machine finds it."""
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def _open(server: Server, address: str) -> None:
    if server.running.wait(60):
        with contextlib.suppress(Exception):  # a machine without a browser still serves
            webbrowser.open(address)


class Server(uvicorn.Server):
    """uvicorn, ended by a signal with exit code 0; what runs then is answered within ``limits.stop``, or refused."""

    def __init__(self, made: _app.Application, limits: ServiceLimits) -> None:
        self.running = threading.Event()
        self._service, self._stop = made.service, limits.stop
        config = uvicorn.Config(
            watch(made.app),  # type: ignore[arg-type]
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=round(limits.idle),
        )
        config.load()
        inner = config.http_protocol_class

        def connection(**settings: Any) -> Connection:
            return Connection(inner(**settings), patience=limits.header, idle=round(limits.idle))

        config.http_protocol_class = connection  # type: ignore[assignment]
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.running.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no new connections and waits for those there are, which the service meanwhile answers or refuses."""
        ending = asyncio.ensure_future(self._end())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
        if self.force_exit:  # a second Ctrl-C, after which uvicorn does not wait for the application
            await self.lifespan.shutdown()

    async def _end(self) -> None:
        await self._service.stop(self._stop)
        await asyncio.sleep(WRITING)
        for task in list(self.server_state.tasks):  # of clients that have not sent all of their request
            task.cancel()
        await asyncio.sleep(WRITING)
        for connection in list(self.server_state.connections):  # of those that do not read their answer
            if transport := connection.transport:
                transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's own, but a signal that was handled is not raised again: to be stopped is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

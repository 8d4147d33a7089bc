"""A connection: closed where a request does not come, kept for a client that has sent its end and still reads.

It stands between asyncio and uvicorn's protocol, hands everything through, and learns from the application, as ASGI has
it, when a request begins, when it is whole and when it is answered. Nothing of uvicorn but public settings is used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from regard.explorer.http.security import App, Message, Receive, Scope, Send

THERE = 1.0  # seconds after a client's end until it is asked whether it still reads
LOOK = 0.2  # seconds between looks at what it said to that
UNREAD = 1.0  # seconds for a client to read its last answer, after an idle connection is closed

_current: ContextVar[Connection] = ContextVar("connection")  # of a request


@dataclass
class _Request:
    """What the application has of the request that it answers."""

    asks: bool  # a client of HTTP/1.1, which passes over interim answers
    whole: bool = False
    waits: bool = False  # the application, for more of it
    answered: bool = False  # at least in part


def watch(app: App) -> App:
    """The application, which tells connections of its requests."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
        else:
            await _current.get().answer(app, scope, receive, send)

    return call


class Connection(asyncio.Protocol):
    """Closed where the headers of a request do not come within ``patience``, or its refused body does not end.

    A client that has sent its end has either closed the connection for sending alone, and gets its answers, or has
    gone. To know, after a while it is sent an interim "100 Continue", which clients pass over (RFC 9110, 15.2.1): the
    machine of one that has gone answers that with a reset.
    """

    transport: asyncio.Transport

    def __init__(self, inner: asyncio.Protocol, *, patience: float, idle: float) -> None:
        self._inner, self._patience, self._idle = inner, patience, idle
        self._loop = asyncio.get_running_loop()
        self._request: _Request | None = None
        self._clocks: dict[str, asyncio.TimerHandle] = {}
        self._ended = False  # nothing more will come

    # --- as asyncio calls it ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._inner.connection_made(transport)
        self._set("request", self._patience, transport.close)

    def data_received(self, data: bytes) -> None:
        token = _current.set(self)  # the inner protocol starts a task for a request, which inherits it
        try:
            self._inner.data_received(data)
        finally:
            _current.reset(token)
        self._stop("unread")
        if self._request is None and "request" not in self._clocks:
            self._set("request", self._patience, self.transport.close)

    def eof_received(self) -> bool:
        """Whether the connection stays: for the answer to a request."""
        self._ended = True
        if self._request is not None:
            self._set("look", LOOK, self._look, self._loop.time() + THERE)
        return self._request is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(*self._clocks)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # --- as the application calls it ---

    async def answer(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application, and watches what it hears and says."""
        self._stop("request", "unread")
        mine = self._request = _Request(asks=scope["http_version"] != "1.0")

        async def hear() -> Message:
            mine.waits = True
            message = await receive()
            mine.waits = False
            mine.whole = mine.whole or not message.get("more_body", False)
            return message

        async def say(message: Message) -> None:
            mine.answered = True
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._finish(mine)

        try:
            await app(scope, hear, say)
        finally:
            self._finish(mine)

    def _finish(self, request: _Request) -> None:
        if self._request is not request:
            return  # it was done before, and the next one may run
        self._request = None
        self._set("unread", self._idle + UNREAD, self.transport.abort)
        if self._ended:
            self._loop.call_soon(self._close_if_idle)  # after the next request, if there is one, has begun

    # --- clocks ---

    def _set(self, clock: str, seconds: float, do: Callable[..., None], *arguments: float) -> None:
        self._clocks[clock] = self._loop.call_later(seconds, do, *arguments)

    def _stop(self, *clocks: str) -> None:
        for clock in clocks:
            if clock in self._clocks:
                self._clocks.pop(clock).cancel()

    def _close_if_idle(self) -> None:
        if self._request is None:
            self.transport.close()

    def _look(self, ask: float) -> None:
        """Whether a client that has sent its end still reads; from a time on it is asked."""
        request = self._request
        if request is not None and request.waits and not request.whole:  # half a request
            self.transport.close()
        elif self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            if asks := self._loop.time() >= ask and request is not None and request.asks and not request.answered:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._set("look", LOOK, self._look, float("inf") if asks else ask)

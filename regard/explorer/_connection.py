"""A connection: closed where a request does not come, kept for a client that has sent its end and still reads."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

THERE = 1.0  # seconds after a client's end until it is asked whether it still reads
LOOK = 0.2  # seconds between looks at what it said to that


class Connection(H11Protocol):
    """Closed where the headers of a request do not come within ``patience``, or its refused body does not end.

    A client that has sent its end has either closed the connection for sending alone, and gets its answers, or has
    gone. To know, after a while it is sent an interim "100 Continue", which clients pass over (RFC 9110, 15.2.1): the
    machine of one that has gone answers that with a reset.
    """

    patience: float
    _timer: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _ended = False  # nothing more will come

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """An idle connection is closed; one whose answer is still not read is dropped with it."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(1.0, self.transport.abort)

    # --- requests that do not come ---

    def _watch(self) -> None:
        waiting = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if not waiting:
            self._unwatch()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.patience, self.transport.close)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- clients that have sent their end ---

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """Whether the connection stays: for the answer to a request that is whole."""
        if not self._owes() or self.cycle.more_body:
            return False
        self._ended = True
        self._unwatch()
        self._look = self.loop.call_later(THERE, self._ask_whether_there)
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which begins the next request, if there is one
        if self._ended and not self._owes():
            self.transport.close()

    def _owes(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _ask_whether_there(self) -> None:
        if self._owes() and self.conn.our_state is h11.SEND_RESPONSE and self.cycle.scope["http_version"] != "1.0":
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        self._look_whether_there()

    def _look_whether_there(self) -> None:
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        elif self._owes():
            self._look = self.loop.call_later(LOOK, self._look_whether_there)

"""Access: only pages of this server, under its allowed names, may send requests; and the security headers of answers.

A page of another site could otherwise reach a server on this machine: with its own name pointed at 127.0.0.1 (DNS
rebinding, seen in the Host header), or with requests across sites (seen in Origin and Sec-Fetch-Site).
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from regard.explorer.http.metrics import SECONDS, ServiceMetrics

Scope = MutableMapping[str, Any]  # as ASGI has it
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
CLOSE = {"connection": "close"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Hosts:
    """The names that the server answers to.

    >>> hosts = Hosts("127.0.0.1", ["box.lan"])
    >>> [hosts.allows(name) for name in ("localhost:8000", "[::1]:80", "BOX.lan", "evil.example", "10.0.0.1")]
    [True, True, True, False, False]
    """

    def __init__(self, host: str, extra: Iterable[str] = ()) -> None:
        self.names = {*LOOPBACK, host.strip("[]").lower(), *(name.strip("[]").lower() for name in extra)}
        # An address is no name that somebody else could make point here.
        self.any_address = not is_loopback(host)

    def allows(self, header: str) -> bool:
        """Whether a Host header has one of the names; the port does not matter."""
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?", header)
        if not match:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        return name in self.names or (self.any_address and _is_address(name))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        return False


class Gate:
    """Around the application: refuses, adds headers, and counts."""

    def __init__(self, app: App, *, hosts: Hosts, metrics: ServiceMetrics) -> None:
        self._app, self._hosts, self._metrics = app, hosts, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = "gone", time.monotonic()

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                message["headers"] = [*message["headers"], *_headers(scope["path"])]
            await send(message)

        try:
            if _two_lengths(scope):
                await _refuse(send_guarded, 400, "a request has Content-Length or Transfer-Encoding, not both", CLOSE)
            elif problem := self.refuses(scope):
                await _refuse(send_guarded, 403, problem)
            else:
                await self._app(scope, receive, send_guarded)
        except asyncio.CancelledError:  # the service stops, and this has taken too long
            if status == "gone":
                await _refuse(
                    send_guarded, 503, "the service is being stopped; try again", CLOSE | {"retry-after": "5"}
                )
        finally:
            route = scope.get("operation", "other")
            self._metrics.count("requests", route=route, status=status)
            self._metrics.observe("request_seconds", time.monotonic() - start, SECONDS, route=route)

    def refuses(self, scope: Scope) -> str | None:
        """Why a request is not answered, or None."""
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        host = headers.get(b"host", [])
        if len(host) != 1 or not self._hosts.allows(host[0]):
            return "this host name is not allowed; `--allow-host NAME` allows one"
        site = headers.get(b"sec-fetch-site", ["none"])
        navigates = scope["path"] == "/" and scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == ["navigate"]
        if any(value not in ("same-origin", "none") for value in site) and not navigates:
            return "only the explorer's own page may send requests; this one comes from another site"
        own = {f"{scheme}://{host[0].lower()}" for scheme in ("http", "https")}
        if any(value.lower() not in own for value in headers.get(b"origin", [])):
            return "only the explorer's own page may send requests; this one comes from another origin"
        return None


def _headers(path: str) -> list[tuple[bytes, bytes]]:
    headers = HEADERS | ({"cache-control": "no-store"} if path.startswith("/api/") else {})
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _two_lengths(scope: Scope) -> bool:
    """Whether a body has two lengths: servers that take different ones see different requests (RFC 9112, 6.3)."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


async def _refuse(send: Send, status: int, problem: str, more: Mapping[str, str] | None = None) -> None:
    body = json.dumps({"error": problem}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(more or {})}
    written = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": written})
    await send({"type": "http.response.body", "body": body})

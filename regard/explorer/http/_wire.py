"""Reads requests within limits, writes answers, and turns errors into statuses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from regard.decode import NoProbabilities
from regard.explorer.answers import Unable
from regard.explorer.http import api
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.queue import Busy, Closing, Late
from regard.explorer.http.schema import Arguments, Empty, Invalid, from_text

logger = logging.getLogger("regard.explorer")

# --- in ---


def parameters(request: Request, operation: api.Operation) -> Arguments:
    """Path and query, checked, with defaults."""
    given = request.query_params.multi_items()
    arguments = {name: schema["default"] for name, schema in operation.parameters.items() if "default" in schema}
    for name, text in [*request.path_params.items(), *given]:
        if name not in operation.parameters:
            known = ", ".join(operation.parameters) or "none"
            raise Invalid(f"unknown parameter {json.dumps(name[:60])}; there are: {known}")
        arguments[name] = from_text(text, operation.parameters[name], where=name)
    return arguments


async def body(request: Request, limits: ServiceLimits, *, document: bool = False) -> object:
    """The JSON of a request, read within bounds of size and time; with a document in it it may be larger."""
    most = limits.document_bytes if document else limits.bytes
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != api.JSON:
        raise HTTPException(415, "expected Content-Type: application/json")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:12]) > most:
        raise HTTPException(413, f"the request's body is too large: the maximum is {most:,} bytes")
    try:
        content = await asyncio.wait_for(_read(request, most), limits.body)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the request's body took more than {limits.body:g} s") from None
    try:
        found: object = json.loads(content.decode(), parse_constant=_no_constant)
        return found
    except RecursionError:
        raise HTTPException(400, "not usable JSON: nested too deeply") from None
    except ValueError as error:  # also what is not UTF-8
        raise HTTPException(400, f"not JSON: {str(error)[:200]}") from None


async def _read(request: Request, limit: int) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limit:
            raise HTTPException(413, f"the request's body is too large: the maximum is {limit:,} bytes")
    return bytes(content)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


async def unless_disconnected(request: Request, answer: Awaitable[Response]) -> Response:
    """The answer, given up as soon as the client hangs up."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- out ---


def to_bytes(value: object) -> bytes:
    """JSON in UTF-8; a number that JSON does not have is a mistake of ours, and raises."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def to_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_bytes(value), status, headers, media_type=api.JSON)


def error_response(error: Exception) -> Response:
    """An error as an answer: what the client can mend is 4xx, with the reason."""
    if isinstance(error, HTTPException):
        return to_json({"error": error.detail}, error.status_code)
    if isinstance(error, Empty):
        return to_json({"error": str(error)}, 400)
    if isinstance(error, Invalid):
        return to_json({"error": str(error)}, 422)
    if isinstance(error, Unable):
        return to_json({"error": str(error)}, 409)
    if isinstance(error, Busy):
        return to_json({"error": str(error)}, 429, {"retry-after": str(error.retry_after)})
    if isinstance(error, Late):
        return to_json({"error": str(error)}, 504 if error.begun else 503, {"retry-after": "5"})
    if isinstance(error, Closing):
        return to_json({"error": str(error)}, 503, {"retry-after": "5", "connection": "close"})
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # the client has disconnected
    if isinstance(error, NoProbabilities):
        logger.error("%s", error)
        return to_json({"error": str(error)}, 500)
    logger.error("a request failed", exc_info=error)
    return to_json({"error": "internal error; the service's log has the details"}, 500)


def no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "there is nothing here; /api/openapi.json lists the addresses", 405: "this method is not allowed here"}
    return to_json({"error": text.get(error.status_code, error.detail)}, error.status_code, error.headers)

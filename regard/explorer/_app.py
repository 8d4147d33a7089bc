"""The routes: inputs are checked against the description, work waits in line, answers are JSON or bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from regard.explorer import api, view
from regard.explorer.batching import Busy, Closing, Late, Line
from regard.explorer.limits import Limits
from regard.explorer.metrics import Metrics
from regard.explorer.models import Models, Recorded
from regard.explorer.models import Request as Wanted
from regard.explorer.page import File
from regard.explorer.schema import Invalid, checked, from_text
from regard.explorer.security import App, Gate, Hosts
from regard.explorer.traces import Traces

Arguments = dict[str, Any]
Handler = Callable[[Arguments], Awaitable[Response]]

GONE = "this trace is gone: send the sentence again"
logger = logging.getLogger("regard.explorer")


def make(models: Models, *, hosts: Hosts, limits: Limits, files: Mapping[str, File] | None = None) -> App:
    """The whole application. Without ``files`` there is no page."""
    metrics = Metrics()
    service = Service(models, limits, metrics)
    described = api.schemas(limits)

    def route(operation: api.Operation) -> Route:
        handler: Handler = getattr(service, operation.name)
        body = None if operation.body is None else described[operation.body]

        async def endpoint(request: Request) -> Response:
            request.scope["operation"] = operation.name
            try:
                arguments = _parameters(request, operation)
                if body is not None:
                    arguments |= checked(await _body(request, limits), body, where="body", known=described)
                return await _unless_gone(request, handler(arguments))
            except Exception as error:
                return _refused(error)

        return Route(operation.path, endpoint, methods=[operation.method])

    routes = [route(operation) for operation in api.operations(limits)]
    routes += [Route(path, _static(file), methods=["GET"]) for path, file in (files or {}).items()]
    app = Starlette(
        routes=routes,
        lifespan=service.lifespan,
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False
    return Gate(app, hosts=hosts, metrics=metrics)


class Service:
    """What each operation does; its methods are named as in the description."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics) -> None:
        self._models, self._limits, self._metrics = models, limits, metrics
        self._traces: Traces[view.Recording] = Traces(count=limits.traces, size=limits.trace_bytes)
        self._model = Line(
            models.run,
            name="model",
            limit=limits.queue,
            metrics=metrics,
            batch=limits.batch,
            weight=limits.batch_characters,
            gather=limits.gather,
        )
        self._views = Line(
            lambda _, calls: [call() for call in calls], name="view", limit=limits.views, metrics=metrics
        )
        metrics.gauge("traces", lambda: len(self._traces))
        metrics.gauge("trace_bytes", lambda: self._traces.bytes)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """While the service runs."""
        self._model.open()
        self._views.open()
        yield
        await self._model.close()
        await self._views.close()

    async def health(self, _: Arguments) -> Response:
        return _json({"status": "ok"})

    async def metrics(self, _: Arguments) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Arguments) -> Response:
        return _json(api.openapi(self._limits, _version()))

    async def models(self, _: Arguments) -> Response:
        known = {"models": self._models.described(), "scores": api.SCORES, "measures": api.MEASURES}
        return _json({**known, "version": _version()})

    async def translate(self, arguments: Arguments) -> Response:
        return _json(await self._run(arguments, Wanted(arguments["text"])))

    async def trace(self, arguments: Arguments) -> Response:
        found: Recorded = await self._run(arguments, Wanted(arguments["text"], True, arguments.get("target")))
        return _json({"id": self._traces.add(found.kept, found.kept.size), **found.answer})

    async def _run(self, arguments: Arguments, wanted: Wanted) -> Any:
        key = self._models.name(arguments.get("model")), arguments.get("beam", 5)
        if (words := len(wanted.text.split())) > self._limits.words:
            raise Invalid(f"text: {words:,} words, and the most is {self._limits.words:,}")
        size = len(wanted.text) + len(wanted.target or "")
        return await self._model.ask(key, wanted, seconds=self._limits.answer, weight=size)

    # --- what is read from a trace ---

    async def row(self, arguments: Arguments) -> Response:
        return Response(await self._view(arguments, lambda kept: _bytes(kept.row(**arguments))), media_type=api.JSON)

    async def steps(self, arguments: Arguments) -> Response:
        return Response(await self._view(arguments, lambda kept: _bytes(kept.steps(**arguments))), media_type=api.JSON)

    async def align(self, arguments: Arguments) -> Response:
        return Response(await self._view(arguments, lambda kept: _bytes(kept.align(**arguments))), media_type=api.JSON)

    async def tile(self, arguments: Arguments) -> Response:
        limit = self._limits.side
        tile = await self._view(arguments, lambda kept: kept.tile(**arguments, limit=limit))
        height, width = tile.values.shape
        shape = {"x-regard-shape": f"{height},{width}", "x-regard-exact": "exact" if tile.exact else "sampled"}
        return Response(tile.values.astype("<f4").tobytes(), media_type=api.BINARY, headers=shape)

    async def _view(self, arguments: Arguments, read: Callable[[view.Recording], Any]) -> Any:
        kept = self._traces.get(arguments.pop("id"))
        if kept is None:
            raise HTTPException(404, GONE)
        return await self._views.ask(None, lambda: read(kept), seconds=self._limits.answer)


def _each(_: object, calls: list[Callable[[], Any]]) -> list[Any]:
    return [call() for call in calls]


# --- in ---


def _parameters(request: Request, operation: api.Operation) -> Arguments:
    """Path and query, checked, with defaults."""
    given = request.query_params.multi_items()
    arguments = {name: schema["default"] for name, schema in operation.parameters.items() if "default" in schema}
    for name, text in [*request.path_params.items(), *given]:
        if name not in operation.parameters:
            known = ", ".join(operation.parameters) or "none"
            raise Invalid(f"unknown parameter {json.dumps(name[:60])}; there are: {known}")
        arguments[name] = from_text(text, operation.parameters[name], where=name)
    return arguments


async def _body(request: Request, limits: Limits) -> Any:
    """The JSON of a request, read within bounds of size and time."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != api.JSON:
        raise HTTPException(415, "expected Content-Type: application/json")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:12]) > limits.bytes:
        raise HTTPException(413, f"the request's body is too large: the most is {limits.bytes:,} bytes")
    try:
        content = await asyncio.wait_for(_read(request, limits.bytes), limits.body)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the request's body took more than {limits.body:g} s") from None
    try:
        return json.loads(content.decode(), parse_constant=_no_constant)
    except RecursionError:
        raise HTTPException(400, "not usable JSON: nested too deeply") from None
    except ValueError as error:  # also what is not UTF-8
        raise HTTPException(400, f"not JSON: {str(error)[:200]}") from None


async def _read(request: Request, limit: int) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limit:
            raise HTTPException(413, f"the request's body is too large: the most is {limit:,} bytes")
    return bytes(content)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


async def _unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """The answer, given up as soon as the client hangs up."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- out ---


def _bytes(value: Any) -> bytes:
    """JSON in UTF-8; a number that JSON does not have is a mistake of ours, and raises."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_bytes(value), status, headers, media_type=api.JSON)


def _refused(error: Exception) -> Response:
    """An error as an answer: what the client can mend is 4xx, with the reason."""
    if isinstance(error, HTTPException):
        return _json({"error": error.detail}, error.status_code)
    if isinstance(error, Invalid):
        return _json({"error": str(error)}, 422)
    if isinstance(error, Busy):
        return _json({"error": str(error)}, 429, {"retry-after": str(error.retry_after)})
    if isinstance(error, Late):
        return _json({"error": str(error)}, 504 if error.begun else 503, {"retry-after": "5"})
    if isinstance(error, Closing):
        return _json({"error": str(error)}, 503, {"retry-after": "5", "connection": "close"})
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    logger.error("a request failed", exc_info=error)
    return _json({"error": "something went wrong in the service; its log tells more"}, 500)


def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "there is nothing here; /api/openapi.json tells what there is", 405: "not with this method"}
    return _json({"error": text.get(error.status_code, error.detail)}, error.status_code, error.headers)


def _static(file: File) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        request.scope["operation"] = "page"
        return Response(file.content, media_type=file.type, headers={"cache-control": file.cache})

    return endpoint


def _version() -> str:
    return str(sys.modules["regard"].__version__)

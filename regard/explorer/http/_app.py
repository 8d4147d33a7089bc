"""The routes: inputs are checked against the description, work waits in line, answers are JSON or bytes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.explorer.answers import Answers, Tile
from regard.explorer.http import api, replies, shapes
from regard.explorer.http._wire import (
    body,
    error_response,
    no_route,
    parameters,
    to_bytes,
    to_json,
    unless_disconnected,
)
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.metrics import ServiceMetrics
from regard.explorer.http.queue import Queue
from regard.explorer.http.schema import Arguments, Invalid, check_value
from regard.explorer.http.security import App, Gate, Hosts
from regard.explorer.models import BatchKey, Models
from regard.explorer.page import File
from regard.explorer.qa import QuestionRequest
from regard.explorer.summarization import SummaryOptions
from regard.explorer.traces import Recent, Traces
from regard.explorer.translation import RecordedTranslation, TranslationRequest
from regard.tasks.summarization.search import SummarySearch
from regard.trace import wanted

T = TypeVar("T")
Handler = Callable[[Arguments], Awaitable[Response]]

EXPIRED = "this trace has expired: send the sentence again"
RERUN = None  # the key of work that is not a batch of texts: calls, each for itself


def make(
    models: Models,
    *,
    hosts: Hosts,
    limits: ServiceLimits,
    files: Mapping[str, File] | None = None,
    traces: Mapping[str, Answers] | None = None,
) -> Application:
    """The whole application. Without ``files`` there is no page; ``traces`` are there from the start and stay."""
    metrics = ServiceMetrics()
    service = Service(models, traces or {}, limits, metrics)
    described = shapes.schemas(limits)

    def route(operation: api.Operation) -> Route:
        handler: Handler = getattr(service, operation.name)
        wanted_body = None if operation.body is None else described[operation.body]

        async def endpoint(request: Request) -> Response:
            request.scope["operation"] = operation.name
            try:
                arguments = parameters(request, operation)
                if wanted_body is not None:
                    given = await body(request, limits, document=operation.document)
                    arguments |= check_value(given, wanted_body, where="body", known=described)
                return await unless_disconnected(request, handler(arguments))
            except Exception as error:
                return error_response(error)

        return Route(operation.path, endpoint, methods=[operation.method])

    routes = [route(operation) for operation in api.operations(limits)]
    routes += [Route(path, _static(file), methods=["GET"]) for path, file in (files or {}).items()]
    app = Starlette(
        routes=routes,
        lifespan=service.lifespan,
        exception_handlers={HTTPException: no_route},
    )
    app.router.redirect_slashes = False
    return Application(Gate(app, hosts=hosts, metrics=metrics), service)


class Application(NamedTuple):
    """The HTTP application, and the service behind it."""

    app: App
    service: Service


class Service:
    """What each operation does; its methods are named as in the description."""

    def __init__(
        self, models: Models, traces: Mapping[str, Answers], limits: ServiceLimits, metrics: ServiceMetrics
    ) -> None:
        self._models, self._given, self._limits, self._metrics = models, traces, limits, metrics
        self._traces: Traces[Answers] = Traces(count=limits.traces, size=limits.trace_bytes)
        self._tiles: Recent[Tile] = Recent(count=limits.tiles, size=limits.tile_bytes)
        self._model = Queue(
            lambda key, items: models.run(key, items) if isinstance(key, BatchKey) else _each(key, items),
            name="model",
            limit=limits.queue,
            metrics=metrics,
            batch=limits.batch,
            weight=limits.batch_characters,
            gather=limits.gather,
        )
        self._views = Queue(_each, name="view", limit=limits.views, metrics=metrics)
        self._stopping = False
        metrics.gauge("traces", lambda: len(self._traces))
        metrics.gauge("trace_bytes", lambda: self._traces.bytes)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """While the service runs."""
        self._model.open()
        self._views.open()
        yield
        await self.stop(0.0)

    async def stop(self, seconds: float) -> None:
        """Takes nothing more; what has not been done in so many seconds is refused."""
        self._stopping = True
        await asyncio.gather(self._model.close(seconds), self._views.close(seconds))

    def working(self, seconds: float = 0.0) -> str:
        """Which thread has been working for more than so many seconds on one thing; empty where none has."""
        return next((line.name for line in (self._model, self._views) if line.seconds > seconds), "")

    async def health(self, _: Arguments) -> Response:
        if name := self.working(self._limits.stuck):
            problem = f"the {name} thread has been working for more than {self._limits.stuck:g} s on one batch"
            return to_json({"status": "stuck", "problem": problem}, 503)
        if self._stopping:
            return to_json({"status": "stopping", "problem": "the service is being stopped"}, 503)
        return to_json({"status": "ok"})

    async def metrics(self, _: Arguments) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Arguments) -> Response:
        return to_json(api.openapi(self._limits, _version()))

    async def models(self, _: Arguments) -> Response:
        found: replies.ModelsJson = {
            "models": self._models.describe(),
            "scores": list(shapes.SCORES),
            "measures": list(replies.MEASURES),
            "version": _version(),
        }
        return to_json(found)

    async def translate(self, arguments: Arguments) -> Response:
        return to_json(await self._translate(arguments, TranslationRequest(arguments["text"])))

    async def summarize(self, arguments: Arguments) -> Response:
        text = arguments["text"]
        options = SummaryOptions(arguments.get("beam", SummarySearch.beam), arguments.get("length"))
        key = BatchKey(self._models.name(arguments.get("model"), "summarization"), options)
        _check_words("text", text, self._limits.document_words)
        return await self._ask(key, text, len(text))

    async def answer(self, arguments: Arguments) -> Response:
        context, question = arguments["context"], arguments["question"]
        key = BatchKey(self._models.name(arguments.get("model"), "qa"), arguments.get("n_best", 5))
        _check_words("context", context, self._limits.document_words)
        return await self._ask(key, QuestionRequest(context, question), len(context) + len(question))

    async def trace(self, arguments: Arguments) -> Response:
        request = TranslationRequest(arguments["text"], True, arguments.get("target"))
        found = await self._translate(arguments, request)
        assert isinstance(found, RecordedTranslation)
        return to_json({"id": self._traces.add(found.kept, found.kept.size), **found.answer})

    async def traces(self, _: Arguments) -> Response:
        given: list[replies.NamedJson] = [
            {"id": id, "name": each.name, "kinds": each.kinds()} for id, each in self._given.items()
        ]
        return to_json({"traces": given})

    async def _translate(self, arguments: Arguments, request: TranslationRequest) -> object:
        key = BatchKey(self._models.name(arguments.get("model"), "translation"), arguments.get("beam"))
        _check_words("text", request.text, self._limits.words)
        size = len(request.text) + len(request.target or "")
        return await self._model.ask(key, request, seconds=self._limits.answer, weight=size)

    async def _ask(self, key: BatchKey, request: object, size: int) -> Response:
        """The model's answer; one with a matrix as long as a document is written by a thread that may take its time."""
        found = await self._model.ask(key, request, seconds=self._limits.answer, weight=size)
        return Response(await asyncio.to_thread(to_bytes, found), media_type=api.JSON)

    # --- what is read from a trace ---

    async def described(self, arguments: Arguments) -> Response:
        id = arguments["id"]
        return await self._read(arguments, lambda kept: {"id": id, **kept.describe()})

    async def row(self, arguments: Arguments) -> Response:
        return await self._read(arguments, lambda kept: kept.row(**arguments))

    async def steps(self, arguments: Arguments) -> Response:
        return await self._read(arguments, lambda kept: kept.steps(**arguments))

    async def align(self, arguments: Arguments) -> Response:
        return await self._read(arguments, lambda kept: kept.align(**arguments))

    async def heads(self, arguments: Arguments) -> Response:
        return await self._read(arguments, lambda kept: kept.heads(**arguments))

    async def search(self, arguments: Arguments) -> Response:
        return await self._read(arguments, lambda kept: kept.search(**arguments))

    async def tokens(self, arguments: Arguments) -> Response:
        span = {"first": arguments.pop("from"), "end": arguments.pop("to", None)}
        return await self._read(arguments, lambda kept: kept.tokens(**arguments, **span))

    async def effects(self, arguments: Arguments) -> Response:
        return await self._read(arguments, lambda kept: kept.effects(**arguments), self._model)

    async def knockout(self, arguments: Arguments) -> Response:
        return await self._read(arguments, lambda kept: kept.knockout(**arguments), self._model)

    async def tile(self, arguments: Arguments) -> Response:
        limit, key = self._limits.side, tuple(sorted(arguments.items()))
        tile = self._tiles.get(key)
        if tile is None or self._find(arguments["id"]) is None:
            tile = await self._view(arguments, lambda kept: kept.tile(**arguments, limit=limit))
            self._tiles.put(key, tile, tile.values.nbytes)
        height, width = tile.values.shape
        shape = {"x-regard-shape": f"{height},{width}", "x-regard-exact": "exact" if tile.exact else "sampled"}
        return Response(tile.values.astype("<f4").tobytes(), media_type=api.BINARY, headers=shape)

    async def _read(
        self, arguments: Arguments, read: Callable[[Answers], object], line: Queue | None = None
    ) -> Response:
        """The JSON of what is read; also written in the line's thread, since it may be long."""
        return Response(await self._view(arguments, lambda kept: to_bytes(read(kept)), line), media_type=api.JSON)

    async def _view(self, arguments: Arguments, read: Callable[[Answers], T], line: Queue | None = None) -> T:
        """Reads a trace in a line of its own, or where the model itself has to run, in the model's."""
        kept = self._find(arguments.pop("id"))
        if kept is None:
            raise HTTPException(404, EXPIRED)
        line, gone = line or self._views, threading.Event()

        def work() -> T:
            with wanted(lambda: not gone.is_set()):
                return read(kept)

        try:
            found: T = await line.ask(RERUN, work, seconds=self._limits.answer, weight=self._limits.batch_characters)
            return found
        finally:  # requests whose client disconnected, or whose time is up, are cancelled
            gone.set()

    def _find(self, id: str) -> Answers | None:
        return self._given.get(id) or self._traces.get(id)


def _check_words(where: str, text: str, most: int) -> None:
    if (words := len(text.split())) > most:
        raise Invalid(f"{where}: {words:,} words; the maximum is {most:,}")


def _each(_: object, calls: list[Callable[[], T]]) -> list[T]:
    return [call() for call in calls]


def _static(file: File) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        request.scope["operation"] = "page"
        return Response(file.content, media_type=file.type, headers={"cache-control": file.cache})

    return endpoint


def _version() -> str:
    return str(sys.modules["regard"].__version__)

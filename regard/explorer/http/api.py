"""The description of the service, in one place.

The same tables make the OpenAPI description, check requests, and are compared with answers by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.replies import KIND, MEASURE
from regard.explorer.http.schema import Schema
from regard.explorer.http.shapes import LAYER, SCORES, ref, schemas

JSON = "application/json"
BINARY = "application/octet-stream"


@dataclass(frozen=True)
class Operation:
    """One kind of request. Parameters in the query may be left out."""

    name: str
    method: str
    path: str
    summary: str
    answer: str | None = None  # the schema of what comes back, if that is JSON
    body: str | None = None
    parameters: dict[str, Schema] = field(default_factory=dict)
    content: str = JSON
    needs_model: bool = False  # else it is answered with 409
    document: bool = False  # there may be one in the body, which may then be larger


# --- operations ---

_ID: Schema = {"type": "string", "maxLength": 64, "description": "what POST /api/trace or GET /api/traces gave"}
_INDEX: Schema = {"type": "integer", "minimum": 0, "maximum": 10_000_000}
_HEAD: Schema = {"type": "string", "pattern": "^(mean|[0-9]{1,4})$", "description": "the number of a head, or mean"}
_SPAN: Schema = {"type": "string", "pattern": "^[0-9]{1,8}:[0-9]{1,8}$", "description": "first:end, as 0:20"}
_TRACE = "/api/trace/{id}"


def operations(limits: ServiceLimits) -> list[Operation]:
    """All kinds of requests."""
    at: dict[str, Schema] = {
        "id": _ID,
        "kind": {**KIND, "default": "self"},
        "layer": {**LAYER, "default": 0},
        "head": {**_HEAD, "default": "0"},
    }
    query = {"query": {**_INDEX, "default": 0}}
    named: dict[str, Schema] = {
        "id": _ID,
        "kind": at["kind"],
        "side": {"type": "string", "enum": ["rows", "columns"], "default": "columns"},
    }
    size: Schema = {"type": "integer", "minimum": 1, "maximum": limits.side}
    return [
        Operation("health", "GET", "/api/health", "Whether the service runs: 503 where it does not.", "Health"),
        Operation("metrics", "GET", "/api/metrics", "Counts and times, for Prometheus.", content="text/plain"),
        Operation("openapi", "GET", "/api/openapi.json", "This description."),
        Operation("models", "GET", "/api/models", "The models that are served.", "Models"),
        Operation(
            "translate",
            "POST",
            "/api/translate",
            "A translation with word links.",
            "Translation",
            "Translate",
            needs_model=True,
        ),
        Operation(
            "summarize",
            "POST",
            "/api/summarize",
            "A summary, and the words of the text that each of its words was made of.",
            "Summary",
            "Summarize",
            needs_model=True,
            document=True,
        ),
        Operation(
            "answer",
            "POST",
            "/api/answer",
            "The answer to a question, and its place in a text.",
            "Answer",
            "Ask",
            needs_model=True,
            document=True,
        ),
        Operation(
            "trace",
            "POST",
            "/api/trace",
            "Record a model's attention on a text.",
            "Trace",
            "Record",
            needs_model=True,
        ),
        Operation("traces", "GET", "/api/traces", "The traces that were given when the service started.", "Traces"),
        Operation("described", "GET", _TRACE, "The contents of a trace.", "Trace", parameters={"id": _ID}),
        Operation(
            "row",
            "GET",
            f"{_TRACE}/row",
            "One query's attention to each key.",
            "Row",
            parameters=at | query | {"measure": {**MEASURE, "default": "weights"}},
        ),
        Operation(
            "tile",
            "GET",
            f"{_TRACE}/tile",
            "A part of a matrix of weights, float32 little-endian. X-Regard-Shape is its height,width; X-Regard-Exact "
            "is exact, or sampled where only so many rows of each cell were looked at.",
            parameters=at
            | {"rows": _SPAN, "cols": _SPAN, "height": size, "width": size}
            | {"samples": {"type": "integer", "minimum": 1, "maximum": limits.samples}}
            | {"pool": {"type": "string", "enum": ["max", "sum"], "default": "max"}},
            content=BINARY,
        ),
        Operation(
            "tokens",
            "GET",
            f"{_TRACE}/tokens",
            "The names of some rows or columns.",
            "Tokens",
            parameters=named | {"from": {**_INDEX, "default": 0}, "to": _INDEX},
        ),
        Operation(
            "search",
            "GET",
            f"{_TRACE}/search",
            "Rows or columns whose names contain a text, one by one or several together.",
            "Found",
            parameters=named | {"text": {"type": "string", "maxLength": 200, "default": ""}},
        ),
        Operation(
            "heads",
            "GET",
            f"{_TRACE}/heads",
            "Measures of each head.",
            "Heads",
            parameters={"id": _ID, "kind": at["kind"]},
        ),
        Operation(
            "effects",
            "GET",
            f"{_TRACE}/effects",
            "How log p changes without each head, in one layer or in all.",
            "Effects",
            parameters={"id": _ID, "kind": at["kind"], "layer": {**LAYER, "description": "by default all"}},
            needs_model=True,
        ),
        Operation(
            "knockout",
            "POST",
            f"{_TRACE}/knockout",
            "How log p changes without some heads.",
            "Without",
            "Knockout",
            parameters={"id": _ID},
            needs_model=True,
        ),
        Operation(
            "steps",
            "GET",
            f"{_TRACE}/steps",
            "Every number on the way from one query to its context.",
            "Steps",
            parameters=at
            | query
            | {"key": _INDEX, "score": {"type": "string", "enum": list(SCORES), "default": "trained"}},
        ),
        Operation(
            "align",
            "GET",
            f"{_TRACE}/align",
            "Word links, and their error rate if gold links are given.",
            "Alignment",
            parameters={
                "id": _ID,
                "layer": {**LAYER, "description": "by default the model's own choice"},
                "head": _HEAD,
                "shift": {"type": "string", "enum": ["0", "1"]},
                "gold": {"type": "string", "maxLength": limits.characters, "description": "links: 0-0 1-2 2p3"},
            },
            needs_model=True,
        ),
    ]


def openapi(limits: ServiceLimits, version: str) -> dict[str, object]:
    """The description in OpenAPI 3.1."""
    paths: dict[str, dict[str, object]] = {}
    for operation in operations(limits):
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "regard",
            "version": version,
            "description": "Translations, summaries, answers, and the attention behind them.",
        },
        "paths": paths,
        "components": {"schemas": schemas(limits)},
    }


def _describe(operation: Operation) -> dict[str, object]:
    content: dict[str, object] = {operation.content: {}}
    if operation.content == JSON:
        content = {JSON: {"schema": {"type": "object"} if operation.answer is None else ref(operation.answer)}}
    out: dict[str, object] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{status: _error(text) for status, text in _errors(operation).items()},
        },
    }
    if operation.body is not None:
        out["requestBody"] = {"required": True, "content": {JSON: {"schema": ref(operation.body)}}}
    if operation.parameters:
        out["parameters"] = [
            {
                "name": name,
                "in": "path" if f"{{{name}}}" in operation.path else "query",
                "required": f"{{{name}}}" in operation.path,
                "schema": schema,
            }
            for name, schema in operation.parameters.items()
        ]
    return out


def _errors(operation: Operation) -> dict[str, str]:
    known = {"403": "The request comes from another site, or names another host."}
    if operation.body is not None:
        known |= {
            "400": "Not JSON, or an empty text.",
            "408": "The body did not arrive in time.",
            "413": "The body is too large.",
            "415": "Not application/json.",
        }
    if operation.parameters:
        known |= {"404": "The trace has expired: send the sentence again."}
    if operation.needs_model:
        known |= {"409": "No model of this task is served, or the trace is not a translation."}
    if operation.parameters or operation.body is not None:
        known |= {
            "422": "The request does not match this description, or the model cannot do it.",
            "429": "Too many requests; Retry-After says when to retry.",
            "503": "The request waited too long, or the service is stopping.",
            "504": "The computation took too long.",
        }
    return dict(sorted(known.items()))


def _error(text: str) -> dict[str, object]:
    return {"description": text, "content": {JSON: {"schema": ref("Error")}}}

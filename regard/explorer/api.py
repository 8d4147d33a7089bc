"""What the service offers, described once.

The same tables make the OpenAPI description, check what comes in, and are what tests compare answers with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from regard.explorer.limits import Limits
from regard.explorer.schema import Schema

SCORES = ("trained", "dot", "additive", "general", "bilinear", "location", "relative", "rotary")
MEASURES = ("weights", "norms")
KINDS = ("self", "decoder", "cross")
JSON = "application/json"
BINARY = "application/octet-stream"


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked for. Parameters in the query may be left out."""

    name: str
    method: str
    path: str
    summary: str
    answer: str | None = None  # the schema of what comes back, if that is JSON
    body: str | None = None
    parameters: dict[str, Schema] = field(default_factory=dict)
    content: str = JSON


# --- schemas ---

_TEXT: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_MAYBE: Schema = {"type": ["number", "null"]}
_PLACE: Schema = {"type": ["integer", "null"]}
_VECTOR: Schema = {"type": "array", "items": _NUMBER}
_MATRIX: Schema = {"type": "array", "items": _VECTOR}
_MAYBE_VECTOR: Schema = {"type": ["array", "null"], "items": _NUMBER}
_SIDE: Schema = {"type": "string", "enum": ["source", "target"]}
_KIND: Schema = {"type": "string", "enum": list(KINDS)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _object(optional: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def schemas(limits: Limits) -> dict[str, Schema]:
    """Everything that goes in or comes out, by name."""
    text = {"type": "string", "maxLength": limits.characters}
    model = {"type": "string", "maxLength": 200, "description": "a name of /api/models; by default the first"}
    beam = {"type": "integer", "minimum": 1, "maximum": limits.beam, "default": 5}
    span = {"text": _TEXT, "start": _INTEGER, "end": _INTEGER}
    answered = {
        "translation": _TEXT,
        "model": _TEXT,
        "source": _ref("Side"),
        "target": _ref("Side"),
        "alignment": _ref("Alignment"),
        "note": {"type": "string", "description": "what was done to the text, or empty"},
    }
    return {
        "Error": _object(error={"type": "string", "description": "what was wrong, for a person to read"}),
        "Health": _object(status={"type": "string", "enum": ["ok"]}),
        "Word": _object(**span),
        "Token": _object(**span, word={"type": "integer", "description": "index into words; -1 for none"}),
        "Side": _object(text=_TEXT, tokens=_many(_ref("Token")), words=_many(_ref("Word"))),
        "Kind": _object(
            ("queries", "keys"),
            kind=_KIND,
            layers=_INTEGER,
            heads=_INTEGER,
            rows=_SIDE,
            columns=_SIDE,
            score=_TEXT,
            queries={"type": "integer", "description": "rows of its matrices; of a trace, not of a model"},
            keys=_INTEGER,
        ),
        "Model": _object(
            name=_TEXT,
            architecture=_TEXT,
            parameters=_INTEGER,
            default={"type": "boolean"},
            kinds=_many(_ref("Kind")),
            limit={"type": "integer", "description": "subwords that a sentence may have"},
        ),
        "Models": _object(models=_many(_ref("Model")), scores=_many(_TEXT), measures=_many(_TEXT), version=_TEXT),
        "Alignment": _object(
            weights={**_MATRIX, "description": "a row per target word, a column per source word"},
            links=_many({**_many(_INTEGER), "description": "source word, target word"}),
            layer=_PLACE,
            head={**_PLACE, "description": "null: the mean over heads"},
            shift={"type": "boolean", "description": "a word's row is where it is the decoder's input"},
            aer=_MAYBE,
        ),
        "Translate": _object(("model", "beam"), text=text, model=model, beam=beam),
        "Translation": _object(**answered),
        "Record": _object(
            ("target", "model", "beam"),
            text={**text, "minLength": 1},
            target={**text, "description": "read this instead of translating"},
            model=model,
            beam=beam,
        ),
        "Trace": _object(id=_TEXT, name=_TEXT, kinds=_many(_ref("Kind")), **answered),
        "Row": _object(
            values=_VECTOR,
            query=_INTEGER,
            kind=_KIND,
            layer=_INTEGER,
            head={"type": ["integer", "string"]},
            measure={"type": "string", "enum": list(MEASURES)},
            entropy={"type": "number", "description": "of the weights, in nats"},
        ),
        "Steps": _steps(),
    }


def _steps() -> Schema:
    return _object(
        query_input=_MAYBE_VECTOR,
        key_inputs={"type": "null", "description": "ask for one with key="},
        key_input=_MAYBE_VECTOR,
        q=_VECTOR,
        k=_MATRIX,
        v=_MATRIX,
        products=_MATRIX,
        similarity=_VECTOR,
        added={**_many(_MAYBE), "description": "what positions and biases add to the scaled similarity"},
        scaled=_many(_MAYBE),
        masked={**_many(_MAYBE), "description": "null where the query may not look"},
        weights=_VECTOR,
        weighted=_MATRIX,
        context=_VECTOR,
        output=_MAYBE_VECTOR,
        recorded=_MAYBE_VECTOR,
        difference=_MAYBE,
        score=_TEXT,
        counterfactual={"type": "boolean"},
        formula=_TEXT,
        scale=_MAYBE,
    )


# --- operations ---

_ID: Schema = {"type": "string", "maxLength": 64, "description": "what POST /api/trace gave"}
_LAYER: Schema = {"type": "integer", "minimum": 0, "maximum": 10_000}
_INDEX: Schema = {"type": "integer", "minimum": 0, "maximum": 10_000_000}
_HEAD: Schema = {"type": "string", "pattern": "^(mean|[0-9]{1,4})$", "description": "the number of a head, or mean"}
_SPAN: Schema = {"type": "string", "pattern": "^[0-9]{1,8}:[0-9]{1,8}$", "description": "first:end, as 0:20"}
_TRACE = "/api/trace/{id}"


def operations(limits: Limits) -> list[Operation]:
    """Everything that can be asked for."""
    at: dict[str, Schema] = {
        "id": _ID,
        "kind": {**_KIND, "default": "self"},
        "layer": {**_LAYER, "default": 0},
        "head": {**_HEAD, "default": "0"},
    }
    query = {"query": {**_INDEX, "default": 0}}
    size: Schema = {"type": "integer", "minimum": 1, "maximum": limits.side}
    return [
        Operation("health", "GET", "/api/health", "Whether the service runs.", "Health"),
        Operation("metrics", "GET", "/api/metrics", "Counts and times, for Prometheus.", content="text/plain"),
        Operation("openapi", "GET", "/api/openapi.json", "This description."),
        Operation("models", "GET", "/api/models", "The models that are served.", "Models"),
        Operation("translate", "POST", "/api/translate", "A translation with word links.", "Translation", "Translate"),
        Operation("trace", "POST", "/api/trace", "Record what a model looks at in a text.", "Trace", "Record"),
        Operation(
            "row",
            "GET",
            f"{_TRACE}/row",
            "How much one query looks at each key.",
            "Row",
            parameters=at | query | {"measure": {"type": "string", "enum": list(MEASURES), "default": "weights"}},
        ),
        Operation(
            "tile",
            "GET",
            f"{_TRACE}/tile",
            "A part of a matrix of weights, float32 little-endian; X-Regard-Shape is its height,width.",
            parameters=at
            | {"rows": _SPAN, "cols": _SPAN, "height": size, "width": size}
            | {"pool": {"type": "string", "enum": ["max", "sum"], "default": "max"}},
            content=BINARY,
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
            "Word links, and their error rate where right ones are given.",
            "Alignment",
            parameters={
                "id": _ID,
                "layer": {**_LAYER, "description": "by default the model's own choice"},
                "head": _HEAD,
                "shift": {"type": "string", "enum": ["0", "1"]},
                "gold": {"type": "string", "maxLength": limits.characters, "description": "links: 0-0 1-2 2p3"},
            },
        ),
    ]


def openapi(limits: Limits, version: str) -> dict[str, Any]:
    """The description in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations(limits):
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "regard", "version": version, "description": "Translations, and what a model looked at."},
        "paths": paths,
        "components": {"schemas": schemas(limits)},
    }


def _described(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.content: {}}
    if operation.content == JSON:
        content = {JSON: {"schema": {"type": "object"} if operation.answer is None else _ref(operation.answer)}}
    out: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{status: _error(text) for status, text in _errors(operation).items()},
        },
    }
    if operation.body is not None:
        out["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(operation.body)}}}
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
    known = {"403": "Another site asks, or a name that this server does not answer to."}
    if operation.body is not None:
        known |= {
            "400": "Not JSON.",
            "408": "The body did not come in time.",
            "413": "The body is too large.",
            "415": "Not application/json.",
        }
    if operation.parameters:
        known |= {"404": "The trace is gone: send the sentence again."}
    if operation.parameters or operation.body is not None:
        known |= {
            "422": "Not what the description says, or what the model can do.",
            "429": "Too many requests; Retry-After tells when to come back.",
            "503": "It waited too long, or the service is being stopped.",
            "504": "It took too long.",
        }
    return dict(sorted(known.items()))


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": _ref("Error")}}}

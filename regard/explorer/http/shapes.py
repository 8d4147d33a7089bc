"""What goes into the service and comes out of it, as JSON Schema: the first half of its description."""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from regard.explorer.http import replies
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.replies import KIND
from regard.explorer.http.schema import Schema
from regard.tasks.summarization.search import SummarySearch

SCORES = ("trained", "dot", "additive", "general", "bilinear", "location", "relative", "rotary")
LAYER: Schema = {"type": "integer", "minimum": 0, "maximum": 10_000}

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(optional: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def schemas(limits: ServiceLimits) -> dict[str, Schema]:
    """Everything that goes in or comes out, by name."""
    return _answers() | _requests(limits)


def _requests(limits: ServiceLimits) -> dict[str, Schema]:
    text = {"type": "string", "minLength": 1, "maxLength": limits.characters}
    model = {
        "type": "string",
        "maxLength": 200,
        "description": "one of /api/models; by default the first of the task",
    }
    beams = {"type": "integer", "minimum": 1, "maximum": limits.beam}
    beam = {**beams, "default": SummarySearch.beam}
    own = {**beams, "description": "by default what the model folder says, usually 5"}
    document = {"type": "string", "minLength": 1, "maxLength": limits.document}
    head = _object(kind=KIND, layer=LAYER, head={"type": "integer", "minimum": 0, "maximum": 9999})
    return {
        "Translate": _object(("model", "beam"), text=text, model=model, beam=own),
        "Summarize": _object(
            ("model", "beam", "length"),
            text=document,
            model=model,
            beam=beam,
            length={"type": "integer", "minimum": 1, "maximum": limits.length, "description": "in words, about"},
        ),
        "Ask": _object(
            ("model", "n_best"),
            context=document,
            question={"type": "string", "minLength": 1, "maxLength": limits.question},
            model=model,
            n_best={"type": "integer", "minimum": 1, "maximum": limits.candidates, "default": 5},
        ),
        "Record": _object(
            ("target", "model", "beam"),
            text=text,
            target={**text, "description": "read this instead of translating"},
            model=model,
            beam=own,
        ),
        "Knockout": _object(heads={"type": "array", "items": head}),
    }


@cache
def _answers() -> dict[str, Schema]:
    found = {}
    for answer in replies.ANSWERS:
        fields = {name: schema_of(hint) for name, hint in get_type_hints(answer, include_extras=True).items()}
        optional = tuple(sorted(answer.__optional_keys__))
        found[_name(answer)] = _object(optional, **fields)
    return found


def _name(answer: type) -> str:
    return answer.__name__.removesuffix("Json")


def schema_of(hint: object) -> Schema:
    """The schema of a type.

    >>> schema_of(list[int] | None)
    {'type': ['array', 'null'], 'items': {'type': 'integer'}}
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = schema_of(inner[0])
        for note in inner[1:]:
            schema = {**schema, "description": note} if isinstance(note, str) else note
        return schema
    if isinstance(hint, type) and is_typeddict(hint):
        return ref(_name(hint))
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin in (Union, UnionType):
        one, *others = map(schema_of, inner)
        if "$ref" in one:
            return {"anyOf": [one, *others]}
        return {**one, "type": [one["type"], *(other["type"] for other in others)]}
    assert isinstance(hint, type)
    return {"type": _NAMES[hint]}

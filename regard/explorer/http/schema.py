"""Values checked against JSON Schema: the part of it that the service's own description uses, with clear messages.

>>> check_value({"beam": 3}, {"type": "object", "properties": {"beam": {"type": "integer", "maximum": 8}}})
{'beam': 3}
>>> check_value("x", {"type": "integer"}, where="beam")
Traceback (most recent call last):
regard.explorer.http.schema.Invalid: beam: expected an integer, got "x"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
Arguments = dict[str, Any]  # of a request, checked against its schema

CHECKED = {"type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "items", "properties", "required"}
CHECKED |= {"additionalProperties", "$ref", "anyOf"}
ANNOTATIONS = {"default", "description"}  # for readers
"""What a schema may use; ``$ref`` names one of the ``known`` schemas, ``anyOf`` has one of them and null."""


class Invalid(ValueError):
    """A value that is not what the description says."""


class Empty(Invalid):
    """A text with nothing in it."""


def check_value(
    value: object, schema: Schema, *, where: str = "value", known: Mapping[str, Schema] | None = None
) -> Any:
    """The value, with 3.0 made 3 where an integer is expected; raises :class:`Invalid`."""
    if "anyOf" in schema:
        if value is None:
            return None
        schema = schema["anyOf"][0]
    if "$ref" in schema:
        schema = (known or {})[schema["$ref"].rsplit("/", 1)[1]]
    value = _check_type(value, schema, where)
    if "enum" in schema and value not in schema["enum"]:
        raise Invalid(f"{where}: expected one of {', '.join(map(str, schema['enum']))}; got {show_value(value)}")
    if isinstance(value, str):
        _check_text(value, schema, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(value, schema, where)
    elif isinstance(value, list) and "items" in schema:
        return [check_value(v, schema["items"], where=f"{where}[{i}]", known=known) for i, v in enumerate(value)]
    elif isinstance(value, dict):
        return _check_object(value, schema, where, known)
    return value


def from_text(text: str, schema: Schema, *, where: str) -> Any:
    """A query parameter, which comes as text.

    >>> from_text("12", {"type": "integer"}, where="layer")
    12
    """
    if schema.get("type") != "integer":
        return check_value(text, schema, where=where)
    if not re.fullmatch(r"-?[0-9]{1,15}", text):
        raise Invalid(f"{where}: expected an integer, got {show_value(text)}")
    return check_value(int(text), schema, where=where)


def show_value(value: object) -> str:
    """A value in a message, in ASCII and cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- the keywords ---


def _is_whole(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


_TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "string": ("a string", lambda v: isinstance(v, str)),
    "integer": ("an integer", _is_whole),
    "number": ("a number", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)),
    "boolean": ("true or false", lambda v: isinstance(v, bool)),
    "array": ("an array", lambda v: isinstance(v, list)),
    "object": ("an object", lambda v: isinstance(v, dict)),
    "null": ("null", lambda v: v is None),
}


def _check_type(value: object, schema: Schema, where: str) -> object:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_TYPES[kind][1](value) for kind in kinds):
        raise Invalid(f"{where}: expected {' or '.join(_TYPES[kind][0] for kind in kinds)}, got {show_value(value)}")
    return int(value) if "integer" in kinds and isinstance(value, float) else value


def _check_text(value: str, schema: Schema, where: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{where}: not Unicode text: a lone surrogate at character {error.start}") from None
    if len(value) > schema.get("maxLength", len(value)):
        raise Invalid(f"{where}: {len(value):,} characters; the maximum is {schema['maxLength']:,}")
    if schema.get("minLength") and not value.strip():
        raise Empty(f"{where}: it is empty; send some text")
    if len(value) < schema.get("minLength", 0):
        raise Invalid(f"{where}: expected at least {schema['minLength']} characters, got {len(value)}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise Invalid(f"{where}: expected {schema.get('description', schema['pattern'])}; got {show_value(value)}")


def _check_number(value: float, schema: Schema, where: str) -> None:
    low, high = schema.get("minimum", -float("inf")), schema.get("maximum", float("inf"))
    if not low <= value <= high:
        expected = f"at least {low}" if high == float("inf") else f"{low} to {high}"
        raise Invalid(f"{where}: expected {expected}, got {show_value(value)}")


def _check_object(
    value: dict[str, object], schema: Schema, where: str, known: Mapping[str, Schema] | None
) -> dict[str, object]:
    fields = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        raise Invalid(f"{where}: {', '.join(missing)} is missing")
    if schema.get("additionalProperties") is False and (odd := [name for name in value if name not in fields]):
        raise Invalid(f"{where}: unknown field {show_value(odd[0])}; there are {', '.join(fields)}")
    inner = "" if where == "body" else f"{where}."
    return {
        name: check_value(v, fields[name], where=f"{inner}{name}", known=known) if name in fields else v
        for name, v in value.items()
    }

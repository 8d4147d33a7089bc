"""Writes src/lib/answers.ts: types of what the service answers, from its description (regard/explorer/http/replies.py).

python dev/answers.py    # in web/; a test says when it is due
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WEB = Path(__file__).parents[1]
sys.path.insert(0, str(WEB.parent))

from regard.explorer.http import api, shapes  # noqa: E402  # of this copy of the repository
from regard.explorer.http.limits import ServiceLimits  # noqa: E402

FILE = WEB / "src" / "lib" / "answers.ts"
HEAD = "// What the service answers. Written by `python dev/answers.py` from regard/explorer/http/replies.py.\n"
NUMBERS = ("integer", "number")
OBVIOUS = "or a number"  # what is said of every number that may be NaN


def text() -> str:
    """The whole file: an interface for each schema that an answer has in it."""
    known, limits = shapes.schemas(ServiceLimits()), ServiceLimits()
    todo = [operation.answer for operation in api.operations(limits) if operation.answer]
    found: dict[str, str] = {}
    while todo:
        if (name := todo.pop()) not in found:
            found[name] = interface(name, known[name])
            todo += references(known[name])
    return "\n".join([HEAD, *(found[name] for name in known if name in found)])


def interface(name: str, schema: shapes.Schema) -> str:
    """
    >>> print(interface("Word", {"properties": {"n": {"type": "integer", "description": "of it"}}, "required": ["n"]}))
    export interface Word {
      /** of it */
      n: number;
    }
    <BLANKLINE>
    """
    lines = [f"export interface {name} {{"]
    for field, inner in schema["properties"].items():
        about = inner.get("description", OBVIOUS)
        lines += [f"  /** {about} */"] if about != OBVIOUS else []
        lines.append(f"  {field}{'' if field in schema['required'] else '?'}: {typed(inner)};")
    return "\n".join([*lines, "}\n"])


def typed(schema: shapes.Schema) -> str:
    """A schema as a type.

    >>> typed({"type": ["array", "null"], "items": {"type": ["number", "string"]}}), typed({"enum": ["a", "b"]})
    ('number[] | null', '"a" | "b"')
    """
    if "anyOf" in schema:
        return " | ".join(map(typed, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if "number" in kinds:
        kinds = [kind for kind in kinds if kind != "string"]  # NaN and Infinity, which the page reads as numbers
    return " | ".join(_plain(kind, schema) for kind in kinds)


def _plain(kind: str, schema: shapes.Schema) -> str:
    if kind == "array":
        inner = typed(schema["items"])
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object":
        return f"Record<string, {typed(schema['additionalProperties'])}>"
    return "number" if kind in NUMBERS else kind


def references(schema: Any) -> Iterator[str]:
    """The names of the schemas that one refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield typed(schema)
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from references(inner)


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")

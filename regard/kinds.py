"""Are values of the kinds that they are declared as? For tables that people, also strangers, write into TOML files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_EITHER = (Union, UnionType)
_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a table",
}


def check_fields(made: Any) -> None:
    """Those of a dataclass. What is declared as more than ``_KINDS`` has is not asked."""
    cls: Any = type(made)
    hints = _hints(cls)
    check({name: getattr(made, name, None) for name in hints}, hints)


@cache
def _hints(made: Any) -> dict[str, Any]:
    return get_type_hints(made)


def check(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raises ValueError for the first value that is of another kind than its hint.

    >>> check({"beam": 3, "seed": None}, {"beam": int, "seed": int | None})
    >>> check({"beam": "3"}, {"beam": int})
    Traceback (most recent call last):
    ValueError: beam must be a whole number, got '3'
    """
    for name, hint in hints.items():
        if name not in values:
            continue
        value, kinds = values[name], get_args(hint) if get_origin(hint) in _EITHER else (hint,)
        if not {*kinds} <= {*_KINDS, type(None)} or (value is None and type(None) in kinds):
            continue
        if not any(_is(value, kind) for kind in kinds):
            expected = " or ".join(_KINDS[kind] for kind in kinds if kind in _KINDS)
            raise ValueError(f"{name} must be {expected}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is(value: object, kind: type) -> bool:
    """A whole number is a number too, and true is none."""
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))

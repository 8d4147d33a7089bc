"""Check values from files, also untrusted ones, against declared types.

A table's types are declared once: as the fields of a dataclass, the parameters of a function, or a TypedDict.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

Count = Annotated[int, range(1, 2**31)]
Index = Annotated[int, range(2**31)]
Total = Annotated[int, range(2**63)]

_EITHER = (Union, UnionType)
_LISTS = (list, tuple, Sequence)
_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    **dict.fromkeys((dict, Mapping), "a table"),
    **dict.fromkeys(_LISTS, "a list"),
}


def check_fields(made: object) -> None:
    """Check the fields of a dataclass instance."""
    cls: Any = type(made)
    hints = hints_of(cls)
    check({name: getattr(made, name, None) for name in hints}, hints)


@cache
def hints_of(made: Hashable) -> dict[str, Any]:
    """The declared types of a class's fields or a function's parameters."""
    return get_type_hints(made, include_extras=True)


def check(values: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Raise ValueError for the first value that does not match its type; a TypedDict is checked as a nested table.

    >>> check({"beam": 3, "seed": None}, {"beam": int, "seed": int | None})
    >>> check({"beam": "3"}, {"beam": int})
    Traceback (most recent call last):
    ValueError: beam must be a whole number, got '3'
    """
    for name, hint in hints.items():
        if name not in values:
            continue
        value, table = values[name], is_typeddict(hint)
        if not _fits(value, dict if table else hint):
            raise ValueError(f"{name} must be {_describe(dict if table else hint)}, got {excerpt(value)}")
        if table:
            assert isinstance(value, dict)
            try:
                if missing := sorted(hint.__required_keys__ - value.keys()):
                    raise ValueError(f"{', '.join(missing)} missing")
                check(value, hints_of(hint))
            except ValueError as error:
                raise ValueError(f"[{name}]: {error}") from None


def excerpt(value: object) -> str:
    """A value for a message, shortened if long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fits(value: object, hint: Any) -> bool:
    """Whether a value matches a type. An int is also a float; a bool is neither. Unknown hints match anything."""
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind in _EITHER:
        return any(_fits(value, one) for one in args)
    if kind is Annotated:
        return _fits(value, args[0]) and all(value in bounds for bounds in args[1:])
    if kind is Literal:
        return any(value == one and type(value) is type(one) for one in args)
    if kind is NoneType:
        return value is None
    if kind not in _KINDS:
        return kind is Any or not isinstance(kind, type) or isinstance(value, kind)
    if kind in _LISTS:
        inner = args[:1] if kind is not tuple or args[1:] == (...,) else ()
        return isinstance(value, (list, tuple)) and all(_fits(each, one) for one in inner for each in value)
    fits = isinstance(value, (int, float) if kind is float else kind)
    return fits and (kind is bool or not isinstance(value, bool))


def _describe(hint: Any) -> str:
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind in _EITHER:
        return " or ".join(dict.fromkeys(_describe(one) for one in args if one is not NoneType))
    if kind is Annotated:
        low, high = args[1].start, args[1].stop - 1
        return f"{_describe(args[0])} of at least {low}" + (f" and at most {high:,}" if high < 2**31 - 1 else "")
    if kind is Literal:
        return "one of " + ", ".join(map(str, args))
    if kind in _LISTS and args and (inner := _KINDS.get(get_origin(args[0]) or args[0])):
        return f"a list of {inner.removeprefix('a ')}s"
    return _KINDS.get(kind) or f"a {kind.__name__}"

"""A trace in a notebook: ``regard.show``. The widget's questions are answered from the live trace.

A question is ``{"id", "method", "params"}``; its answer ``{"id", "ok"}``, tiles with their numbers as a buffer, or
``{"id", "error", "status"}``. Methods are those of the service.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from regard.explorer.answers import MAX_TOKENS, Answers, Unable
from regard.explorer.document import has_rollout
from regard.explorer.http import api, replies, shapes
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.schema import Arguments, Invalid, check_value, from_text
from regard.explorer.initial_view import ViewOptions, initial_view
from regard.explorer.view import Recording
from regard.trace import Trace

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from regard.explorer._widget import Explorer

FOLDER = Path(__file__).parent / "widget"
TRACE = "0"  # the only one there is
logger = logging.getLogger(__name__)

Reply = tuple[object, list[bytes]]
"""What is sent as JSON, and what beside it as bytes."""


def show(trace: Trace | Answers, *, name: str = "", item: int = 0, **chosen: Unpack[ViewOptions]) -> Explorer:
    """The explorer as a widget; see :func:`regard.show`."""
    try:
        import anywidget  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'notebooks need {error.name}, which is not installed: pip install "regard[notebook]"'
        ) from error
    from regard.explorer._widget import Explorer

    if not isinstance(trace, (Trace, Answers)):
        raise TypeError(f"expected a trace, as regard.record gives it, got {type(trace).__name__}")
    answers = trace if isinstance(trace, Answers) else Answers(trace, name=name, item=item)
    if not answers.trace.kinds:
        raise ValueError(f"the trace is empty: {answers.trace.why_empty()}")
    return Explorer(Desk(answers), initial_view(answers.trace, **chosen).address)


def bundle(name: str) -> str:
    """The widget's program or style."""
    path = FOLDER / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: this copy of regard has no built widget; in its source, `npm run build` in web/ makes it"
        )
    return path.read_text("utf-8")


class Desk:
    """Where the widget's questions are answered.

    >>> import torch
    >>> desk = Desk(Answers(Trace.of(*torch.ones(3, 1, 1, 2, 4))))
    >>> desk.ask({"id": 7, "method": "row", "params": {"kind": "self", "query": 1}})[0]["ok"]["values"]
    [0.5, 0.5]
    >>> desk.ask({"id": 8, "method": "row", "params": {"layer": 3}})[0]
    {'id': 8, 'error': "layer: there are 1 of kind 'self', from 0; got 3", 'status': 422}
    """

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._limits = ServiceLimits()
        self._known = {operation.name: operation for operation in api.operations(self._limits)}
        self._schemas = shapes.schemas(self._limits)

    def can(self) -> dict[str, object]:
        """The features of the widget; those that need a model it lacks are not shown."""
        translated = isinstance(self.answers, Recording)
        views = ["sentence", "steps", "heads", "compare"] + ["align"] * translated + ["long"]
        if max(max(kind["queries"], kind["keys"]) for kind in self.answers.kinds()) > MAX_TOKENS:
            views = ["long"]  # the others show every token
        found = {"translate": False, "knockout": translated, "effects": translated, "views": views}
        return {**found, "rollout": has_rollout(self.answers.trace)}

    def measures(self) -> list[str]:
        """The measures of a row: weights, and those for which enough was recorded."""
        calls = self.answers.trace.recorded
        there = {
            "weights": True,
            "norms": all(call.projection is not None for call in calls),
            "rollout": has_rollout(self.answers.trace),
            "gradient": all(call.gradient is not None for call in calls),
        }
        return [name for name, found in there.items() if found]

    def ask(self, question: object) -> Reply:
        """The answer to a question, or its problem; never an exception."""
        number = question.get("id") if isinstance(question, Mapping) else None
        try:
            ok, buffers = self._answer(question)
            return {"id": number, "ok": ok}, buffers
        except Unable as problem:
            return {"id": number, "error": str(problem), "status": 409}, []
        except Invalid as problem:
            return {"id": number, "error": str(problem), "status": 422}, []
        except Exception as problem:  # a bug: the widget shows it, and the notebook's log says where it arose
            logger.exception("a question of the widget failed")
            return {"id": number, "error": f"something went wrong: {problem!r}", "status": 500}, []

    def _answer(self, question: object) -> Reply:
        if not isinstance(question, Mapping) or not isinstance(question.get("params", {}), Mapping):
            raise Invalid("expected a question: an id, a method and its params")
        name, given = str(question.get("method")), dict(question.get("params") or {})
        if name not in METHODS:
            raise Invalid(f"method: expected one of {', '.join(METHODS)}; got {name[:60]!r}")
        if str(given.pop("trace", TRACE)) != TRACE:
            raise Invalid("trace: a widget has one")
        return METHODS[name](self, given)

    # --- requests ---

    def models(self, _: Arguments) -> Reply:
        described = self.describe()
        model: replies.ModelJson = {
            "name": described["model"],
            "task": "translation",
            "architecture": "",
            "parameters": 0,
            "default": True,
            "kinds": described["kinds"],
            "limit": 0,
        }
        found: replies.ModelsJson = {
            "models": [model],
            "scores": list(shapes.SCORES),
            "measures": self.measures(),
            "version": str(sys.modules["regard"].__version__),
        }
        return found, []

    def traces(self, _: Arguments) -> Reply:
        return {"traces": [{"id": TRACE, "name": self.answers.name, "kinds": self.answers.kinds()}]}, []

    def describe(self) -> replies.TraceJson:
        found = self.answers.describe()
        return {**found, "id": TRACE, "model": found["model"] or self.answers.name or "trace"}

    def tile(self, given: Arguments) -> Reply:
        found = self.answers.tile(**self._check("tile", given), limit=self._limits.side)
        shape = {"shape": list(found.values.shape), "exact": "exact" if found.exact else "sampled"}
        return shape, [found.values.astype("<f4").tobytes()]

    def tokens(self, given: Arguments) -> Reply:
        arguments = self._check("tokens", given)
        return self.answers.tokens(first=arguments.pop("from", 0), end=arguments.pop("to", None), **arguments), []

    def plain(self, name: str, given: Arguments) -> Reply:
        """Answers that have the same arguments here and there."""
        method: Callable[..., object] = getattr(self.answers, name)
        return method(**self._check(name, given)), []

    def _check(self, name: str, given: Arguments) -> Arguments:
        """Arguments as the service's description has them, with its defaults."""
        operation = self._known[name]
        if operation.body is not None:
            found: Arguments = check_value(given, self._schemas[operation.body], where="body", known=self._schemas)
            return found
        known = {key: schema for key, schema in operation.parameters.items() if key != "id"}
        arguments = {key: schema["default"] for key, schema in known.items() if "default" in schema}
        for key, value in given.items():
            if key not in known:
                raise Invalid(f"{name}: unknown parameter {key[:60]!r}; there are {', '.join(known)}")
            arguments[key] = from_text(str(value), known[key], where=key)
        return arguments


def _plain(name: str) -> Callable[[Desk, Arguments], Reply]:
    return lambda desk, given: desk.plain(name, given)


METHODS: dict[str, Callable[[Desk, Arguments], Reply]] = {
    "models": Desk.models,
    "traces": Desk.traces,
    "described": lambda desk, _: (desk.describe(), []),
    "tile": Desk.tile,
    "tokens": Desk.tokens,
    **{name: _plain(name) for name in ("row", "steps", "align", "heads", "effects", "knockout", "search")},
}

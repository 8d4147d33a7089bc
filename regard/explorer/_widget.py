"""The widget itself. Only this file needs anywidget."""

from __future__ import annotations

import anywidget
import traitlets

from regard.explorer.widget import TRACE, Desk, bundle


class Explorer(anywidget.AnyWidget):
    """The explorer's page in a notebook; every number it shows is computed from the trace behind it."""

    _esm = bundle("widget.js")
    _css = bundle("widget.css")
    trace = traitlets.Unicode(TRACE).tag(sync=True)
    can = traitlets.Dict().tag(sync=True)
    start = traitlets.Unicode("").tag(sync=True)

    def __init__(self, desk: Desk, start: str) -> None:
        super().__init__(can=desk.can(), start=start)
        self.desk = desk
        self.on_msg(self._answer)

    def _answer(self, _: object, question: object, __: object) -> None:
        content, buffers = self.desk.ask(question)
        self.send(content, buffers)

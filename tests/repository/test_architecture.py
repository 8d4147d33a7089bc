"""docs/architecture.md: every file and every function that its walks name is there."""

import ast
import re

import pytest
from commands import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
WALKS = dict(zip(re.findall(r"^## (.*)$", PAGE, re.M), re.split(r"^## .*$", PAGE, flags=re.M)[1:], strict=True))
FILE = re.compile(r"[\w./-]+/[\w.-]+\.\w+")


def steps(walk):
    """The numbered steps of a walk, and what stands below them."""
    return [step for step in re.split(r"^\d+\. |\n\n", walk, flags=re.M) if "`" in step]


def named(step):
    """(file, name) of each name in a step; a name is of the file before it."""
    path = None
    for span in re.findall(r"`([^`]+)`", step):
        if FILE.fullmatch(span):
            path = span
        yield path, "" if span == path else span


NAMED = sorted({(path or "", name) for walk in WALKS.values() for step in steps(walk) for path, name in named(step)})


def defined(tree):
    """The functions, classes and constants of a module, and the methods of its classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in defined(node))
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def defines(path, name):
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".py"):
        return name in {*defined(ast.parse(text))}
    of, _, method = name.rpartition(".")
    if not of:
        return bool(re.search(rf"\b(?:function|class|const|interface) {re.escape(name)}\b", text))
    body = re.search(rf"^export class {of}\b.*?^}}", text, re.M | re.S)
    return body is not None and bool(re.search(rf"^  (?:async )?{re.escape(method)}\(", body[0], re.M))


def test_there_are_four_walks_of_about_ten_steps():
    assert len(WALKS) == 4
    for title, walk in WALKS.items():
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", walk, re.M)]
        assert numbers == [*range(1, len(numbers) + 1)] and 8 <= len(numbers) <= 11, title
        assert all(FILE.search(step) for step in steps(walk)), title


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_files_and_functions_named_there_exist(path, name):
    if name.startswith("regard."):
        import regard

        assert name.removeprefix("regard.") in regard.__all__
    else:
        assert (ROOT / path).is_file(), f"there is no {path}"
        assert not name or defines(path, name), f"{path} has no {name}"

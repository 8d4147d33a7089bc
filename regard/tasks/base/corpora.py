"""Readers of pairs of texts, from tables of settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data import Files, JsonLines, Reader, Tsv, read
from regard.train.settings import Values


def survey(readers: Sequence[Reader], bad: str) -> tuple[int, str]:
    """The number of pairs, and a fingerprint of them all and of their weights."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for reader in readers:
        digest.update(f"weight {reader.weight}\n".encode())
        for source, target in read(reader, bad=bad):  # type: ignore[arg-type]
            digest.update(f"{source}\t{target}\n".encode())
            count += 1
    return count, digest.hexdigest()


def readers_of(
    prefix: str, source: str | None, target: str | None, more: Sequence[Values]
) -> list[Reader]:  # fmt: skip
    readers: list[Reader] = []
    if isinstance(more, str) or not all(isinstance(table, Mapping) for table in more):
        name = "valid" if prefix else "corpora"
        raise ValueError(f'[data]: {name} must be a list of tables such as {{tsv = "more.tsv"}}, got {more!r}')
    if source is None and target is not None:
        raise ValueError(f"{prefix}target is given without {prefix}source")
    if source is not None:
        readers.append(_both_sides(source, prefix) if target is None else Files(source, target))
    return readers + [_reader(table) for table in more]


def _both_sides(path: str, prefix: str) -> Reader:
    """A file that has both texts of a pair in each line, by its name."""
    kinds: dict[str, type[Tsv] | type[JsonLines]] = {".tsv": Tsv, ".jsonl": JsonLines}
    kind = kinds.get(Path(path.removesuffix(".gz")).suffix)
    if kind is None:
        raise ValueError(
            f"{prefix}source is given without {prefix}target; a file with both, such as {path} would be, "
            f"has a name that ends in {' or '.join(kinds)}"
        )
    return kind(path)


def _reader(table: Values) -> Reader:
    kinds: dict[str, type[Files] | type[Tsv] | type[JsonLines]] = {"source": Files, "tsv": Tsv, "jsonl": JsonLines}
    kind = next((key for key in kinds if key in table), None)
    if kind is None:
        raise ValueError(f"a corpus needs source and target, tsv or jsonl, got {dict(table)!r}")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise ValueError(f"a corpus of kind {kind}: weight must be a number, got {weight!r}")
    names = {"tsv": "path", "jsonl": "path"}
    values: dict[str, Any] = {names.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    try:
        return kinds[kind](**values)
    except TypeError as error:
        raise ValueError(f"a corpus of kind {kind}: {error}, got {dict(table)!r}") from error

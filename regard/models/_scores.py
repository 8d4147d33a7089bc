"""Scores from the plain values of a configuration file.

A specification is a kind, ``"additive"``; a table with parameters, ``{kind = "additive", hidden_dim = 32}``; or groups
of heads in order, ``[[4, "dot"], [4, {kind = "relative", max_distance = 8}]]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from regard.files.kinds import check, hints_of
from regard.score import (
    Additive,
    ALiBi,
    Bilinear,
    Cosine,
    Dot,
    General,
    Key,
    Location,
    PerHead,
    Relative,
    Rotary,
    Score,
    T5Bias,
)

ScoreSpec = str | Mapping[str, object] | Sequence[object]


@dataclass(frozen=True)
class ScorePlace:
    """The attention that a score is for: its heads and dimensions."""

    heads: int
    kv_heads: int
    head_dim: int
    dim: int
    causal: bool = False

    def sets(self, per_head: bool) -> dict[str, int]:
        """Arguments for parameters per head, or none for one shared set."""
        return {"heads": self.heads, "kv_heads": self.kv_heads} if per_head else {}


def _dot(at: ScorePlace, *, scale: float | None = None) -> Score:
    return Dot(scale)


def _additive(
    at: ScorePlace, *, hidden_dim: int | None = None, per_head: bool = True, init: str = "glorot", form: str = "auto"
) -> Score:
    sets = at.sets(per_head)
    return Additive(
        at.head_dim,
        at.head_dim,
        hidden_dim or at.head_dim,
        heads=sets.get("heads"),
        kv_heads=sets.get("kv_heads"),
        init=init,
        form=form,
    )


def _general(at: ScorePlace, *, per_head: bool = True, scale: float = 1.0) -> Score:
    heads, kv_heads = (at.heads, at.kv_heads) if per_head else (None, None)
    return General(at.head_dim, at.head_dim, heads=heads, kv_heads=kv_heads, scale=scale)


def _trilinear(at: ScorePlace, *, per_head: bool = True) -> Score:
    """BiDAF's score, without the term of the query, which the softmax over keys cancels."""
    heads, kv_heads = (at.heads, at.kv_heads) if per_head else (None, None)
    scale = at.head_dim**-0.5
    pair = General(at.head_dim, at.head_dim, heads=heads, kv_heads=kv_heads, scale=scale, diagonal=True)
    return pair + Key(at.head_dim, heads=heads, kv_heads=kv_heads)


def _bilinear(
    at: ScorePlace, *, rank: int | None = None, shared: bool = False, per_head: bool = True, scale: float | None = None
) -> Score:
    rank = rank or at.head_dim
    scale = rank**-0.5 if scale is None else scale
    return Bilinear(at.head_dim, at.head_dim, rank, shared, scale=scale, **at.sets(per_head))


def _location(at: ScorePlace, *, max_distance: int = 16, per_head: bool = True, scale: float = 1.0) -> Score:
    return Location(at.head_dim, max_distance, scale, **at.sets(per_head))


def _relative(at: ScorePlace, *, max_distance: int = 16, values: bool = False, per_head: bool = False) -> Score:
    return Relative(at.head_dim, max_distance, values, **at.sets(per_head))


def _rotary(at: ScorePlace, *, base: float = 10000.0, interleaved: bool = False) -> Score:
    return Rotary(Dot(), base, interleaved=interleaved)


def _alibi(at: ScorePlace) -> Score:
    return Dot() + ALiBi(at.heads)


def _t5(at: ScorePlace, *, buckets: int = 32, max_distance: int = 128) -> Score:
    return Dot() + T5Bias(at.heads, buckets, max_distance, bidirectional=not at.causal, dim=at.dim)


def _cosine(at: ScorePlace, *, scale: float = 10.0, per_head: bool = True) -> Score:
    return Cosine(scale, heads=at.heads if per_head else None)


KINDS: dict[str, Callable[..., Score]] = {
    "dot": _dot,
    "additive": _additive,
    "general": _general,
    "trilinear": _trilinear,
    "bilinear": _bilinear,
    "location": _location,
    "relative": _relative,
    "rotary": _rotary,
    "alibi": _alibi,
    "t5": _t5,
    "cosine": _cosine,
}


def make_score(spec: ScoreSpec, at: ScorePlace) -> Score:
    """A new score from a specification."""
    if isinstance(spec, str):
        return _one(spec, {}, at)
    if isinstance(spec, Mapping):
        if "kind" not in spec:
            raise ValueError(f'a score table needs a kind, as in {{kind = "additive"}}, got {dict(spec)!r}')
        return _one(spec["kind"], {key: value for key, value in spec.items() if key != "kind"}, at)
    if not isinstance(spec, Sequence):
        raise ValueError(f"a score is a kind, a table or a list of [heads, score], got {spec!r}")
    return _groups(spec, at)


def _one(kind: object, parameters: Mapping[str, object], at: ScorePlace) -> Score:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"score kind must be one of {', '.join(KINDS)}, got {kind!r}")
    make = KINDS[kind]
    known = list(inspect.signature(make).parameters)[1:]
    for key in parameters:
        if key not in known:
            raise ValueError(f"score {kind!r} takes {', '.join(known) or 'no parameters'}, got {key!r}")
    try:
        check(parameters, hints_of(make))
    except ValueError as error:
        raise ValueError(f"score {kind!r}: {error}") from None
    return make(at, **parameters)


def _groups(spec: Sequence[object], at: ScorePlace) -> Score:
    group = at.heads // at.kv_heads
    parts = []
    for entry in spec:
        if not (isinstance(entry, Sequence) and len(entry) == 2 and isinstance(entry[0], int)):
            raise ValueError(f'a group of heads is [number, score], as in [4, "dot"], got {entry!r}')
        count, inner = entry
        if count < 1 or count % group:
            raise ValueError(f"a group of heads covers whole key/value groups of {group}, got a group of {count}")
        if not isinstance(inner, (str, Mapping)):
            raise ValueError(f"a group of heads has a kind or a table, not groups of its own, got {inner!r}")
        parts.append((count, make_score(inner, replace(at, heads=count, kv_heads=count // group))))
    if sum(count for count, _ in parts) != at.heads:
        counts = " + ".join(str(count) for count, _ in parts) or "nothing"
        raise ValueError(f"the groups of heads must add up to {at.heads}, got {counts}")
    return PerHead(*parts)

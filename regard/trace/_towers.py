"""Towers: separate stacks of layers in one model, distinguished by their paths."""

from __future__ import annotations

import re
from collections.abc import Iterable

Stack = tuple[str, ...]


def towers(paths: Iterable[str]) -> dict[str, str]:
    """The tower of each path; {} where there is one stack of layers.

    A stack is what comes before the first number, ``text_model.layers`` of ``text_model.layers.3.attn``; a tower is called
    by where stacks part. What is in no stack belongs where it shares a tower's name, else to none.

    >>> towers(["clip.text_model.layers.0.attn", "clip.vision_model.layers.0.attn", "clip.vision_model.head"])
    {'clip.text_model.layers.0.attn': 'text_model', 'clip.vision_model.layers.0.attn': 'vision_model', 'clip.vision_model.head': 'vision_model'}
    >>> towers(["layers.0.attn", "layers.1.local_attn"]), towers(["stage1.0.attn", "stage2.0.attn"])
    ({}, {})
    """  # noqa: E501
    known = list(paths)
    stacks = {path: stack for path in known if (stack := _stack(path))}
    kinds = {_drop_numbers(stack) for stack in stacks.values()}
    if len(kinds) < 2:
        return {}
    shared = _common_length(kinds)
    names = {path: stack[min(shared, len(stack) - 1)] for path, stack in stacks.items()}
    called = set(names.values())
    for path in known:
        parts = path.split(".")
        if path not in names and len(parts) > shared and parts[shared] in called:
            names[path] = parts[shared]
    return {path: names[path] for path in known if path in names}


def _stack(path: str) -> Stack:
    parts = path.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return tuple(parts[:first])


def _drop_numbers(stack: Stack) -> Stack:
    """``stage1`` and ``stage2`` follow one another."""
    return tuple(re.sub(r"\d+", "#", part) for part in stack)


def _common_length(stacks: Iterable[Stack]) -> int:
    """The number of leading parts that all have in common."""
    count = 0
    for parts in zip(*stacks, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count

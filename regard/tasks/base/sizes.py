"""The cost of a training, from its settings: parameters and memory, counted on PyTorch's meta device before anything is
allocated, and operations, from which the time on a CPU is estimated."""

from __future__ import annotations

import os

import torch

from regard.models.folder import make_model
from regard.tasks.base.settings import Fitted
from regard.train import Ranks
from regard.train.settings import Values

STATE = 16  # bytes of a parameter in training: weight, gradient and Adam's two moments in float32
PAIR = 40  # subwords of a pair, both sides, where they are not counted yet
GIB = 2**30
# Operations of a parameter for each subword of an update: a multiplication and an addition, there and twice back, but a
# subword of a pair passes through one half of the model, that reads or that writes.
OPERATIONS = 3
CPU = (40e9, 80e9)  # a second: one thread, and two, of benchmarks/results/cpu-train-speed.json
LONG = 30  # minutes


def check_room(fitted: Fitted, pairs: int, ranks: Ranks) -> None:
    """Refuses a model or a batch that does not fit in this machine's memory, and invalid model settings."""
    if fitted.model.get("pretrained"):
        return
    size, room = parameters({**fitted.model, "vocab_size": fitted.cutting.vocab_size}), memory(ranks.device)
    shards = ranks.world if fitted.training.parallel == "fsdp" else 1
    state, batch = STATE * size // shards, activations(fitted, pairs) // ranks.world
    if room is None or state + batch <= room:
        return
    sizes = [f"{key} {value:,}" for key, value in fitted.model.items() if type(value) is int and value]
    raise ValueError(
        f"[model]: {', '.join(sizes)} and {fitted.cutting.vocab_size:,} subwords are {size:,} parameters: training "
        f"needs {state / GIB:,.1f} GiB for them and their optimizer, and at least {batch / GIB:,.1f} GiB for a batch "
        f"of training.tokens = {fitted.training.tokens:,}; {ranks.device} has {room / GIB:,.1f} GiB. "
        f"Choose {'smaller sizes, or fewer layers' if state > batch else 'fewer tokens'}"
    )


def parameters(table: Values) -> int:
    """Of the model of this table. Of many layers two are made: each more has as many parameters as the second."""
    deep: dict[str, int] = {key: n for key, n in table.items() if key.endswith("layers") and n > 1}
    flat = {**table, **dict.fromkeys(deep, 1)}
    base = _count(flat)
    return base + sum((n - 1) * (_count({**flat, key: 2}) - base) for key, n in deep.items())


def activations(fitted: Fitted, pairs: int) -> int:
    """Bytes that a batch keeps for its gradients at the least: what comes into the parts of each layer, in bfloat16."""
    model, training = fitted.model, fitted.training
    tokens = min(training.tokens // training.accumulate, PAIR * pairs)
    width = 2 * model["dim"] + model.get("ffn_dim", model.get("hidden_dim", 0))
    return int(tokens * width * max(n for key, n in model.items() if key.endswith("layers")) * 2)


def expectation(fitted: Fitted, size: int, quality: str) -> str:
    """What to expect of a training on a CPU; nothing is said of one of a minute."""
    training = fitted.training
    passes = 2 if training.rdrop else 1
    operations = OPERATIONS * size * training.updates * training.tokens * passes
    least, most = (max(1, round(operations / speed / 60)) for speed in reversed(CPU))
    if most <= 1 and fitted.preset is None:
        return ""
    minutes = f"{least:,} to {most:,} minutes" if least < most else "a minute or two"
    told = (
        f"{training.updates:,} updates of {training.tokens:,} subwords, about {operations / 1e12:,.0f} trillion "
        f"operations: {minutes} on a laptop's CPU; the time left is shown after the third update"
    )
    if fitted.preset is not None:
        return f"preset {fitted.preset}: {told}; {quality}"
    return told + ("; --preset laptop takes five to ten" if most > LONG else "")


def memory(device: torch.device) -> int | None:
    """The device's memory in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return None


def _count(table: Values) -> int:
    with torch.device("meta"):
        return sum(int(p.numel()) for p in make_model(table).parameters())

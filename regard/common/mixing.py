"""Random numbers by hashing: a draw depends on a seed and a position, not on earlier draws."""

from __future__ import annotations

from functools import reduce

import numpy as np

from regard.common.ragged import Integers


def mix(key: Integers | int, value: Integers | int) -> Integers:
    """64 pseudo-random bits for each (key, value): SplitMix64 (Steele et al. 2014) with the state ``key``."""
    key, value = np.atleast_1d(np.asarray(key, np.uint64)), np.atleast_1d(np.asarray(value, np.uint64))
    z: Integers = key + (value + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def line_keys(seed: int, epoch: int, side: int, lines: Integers) -> Integers:
    """One key per line; see ``mix``."""
    return mix(mix(mix(mix(seed % 2**64, epoch), side), lines), 0)


def mix_all(*numbers: int) -> int:
    """64 pseudo-random bits for a sequence of numbers; see ``mix``."""
    bits = reduce(mix, (number % 2**64 for number in numbers), np.zeros(1, np.uint64))
    return int(bits[0])

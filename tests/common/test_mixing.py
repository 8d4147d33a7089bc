"""Seeded mixing is SplitMix64, of arrays and of numbers alike; and what was drawn before is drawn again."""

import numpy as np

from regard.common.mixing import line_keys, mix, mix_all


def test_the_hash_spreads():
    bits = mix(mix(7, np.arange(2000)), 1)
    assert len(np.unique(bits)) == 2000
    ones = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.01
    assert mix(0, 0)[0] == 0xE220A8397B1DCDAF, "SplitMix64's first number from seed 0"


def test_numbers_are_mixed_as_arrays_are():
    assert mix_all(1, 2) == int(mix(mix(0, 1), 2)[0]) != mix_all(2, 1)
    assert mix_all(2**64 + 5, -1) == mix_all(5, 2**64 - 1)


def test_what_was_drawn_before_is_drawn_again():
    """Runs that were begun by an older version go on with the same dropout and the same order of the data."""
    assert mix_all(7) == 14232521865600346940
    assert mix_all(1, 5, 0, 0) == 10129446434954731787
    assert mix_all(-3, 2) == 15901311968987731000
    assert line_keys(3, 1, 2, np.arange(2)).tolist() == [1114282206887315974, 13279838601265882630]

"""Rows of different lengths against lists."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from regard.common.ragged import Ragged


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6), st.data())
def test_ragged_rows(rows, data):
    ragged = Ragged.of(rows)
    pick = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    assert ragged.lists() == rows and ragged.lengths.tolist() == [len(r) for r in rows] and ragged.rows == len(rows)
    assert ragged.take(np.array(pick, np.int64)).lists() == [rows[i] for i in pick]
    table = Ragged.of([[i] * (i % 3) for i in range(10)])
    assert ragged.spread(table).lists() == [[x for i in r for x in [i] * (i % 3)] for r in rows]

"""Relative positions by strides, against looking every pair up."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from regard.kernels._skew import Diagonals

TILES = st.builds(Diagonals, base=st.integers(-14, 14), rows=st.integers(1, 6), cols=st.integers(1, 6))


def pairs(tile, reach):
    """δ of every pair, its table entry and how far it is beyond the table, [l, s]."""
    delta = tile.base + torch.arange(tile.cols) - torch.arange(tile.rows)[:, None]
    near = delta.clamp(-reach, reach)
    return delta, near + reach, (delta - near).abs()


@given(tile=TILES, reach=st.integers(0, 5), own=st.booleans(), sloped=st.booleans())
@example(tile=Diagonals(0, 1, 1), reach=0, own=True, sloped=True)
def test_look_up(tile, reach, own, sloped):
    _, entry, beyond = pairs(tile, reach)
    table, slope = torch.randn(2, tile.rows if own else 1, 2 * reach + 1), torch.randn(2) if sloped else None
    expected = table.expand(2, tile.rows, -1).gather(-1, entry.expand(2, -1, -1))
    expected = expected if slope is None else expected - slope[:, None, None] * beyond
    torch.testing.assert_close(tile.look_up(table, slope, torch.empty), expected)


@given(tile=TILES, reach=st.integers(0, 5))
def test_spread_and_fold_are_the_transpose_of_look_up(tile, reach):
    _, entry, _ = pairs(tile, reach)
    x, size = torch.randn(2, tile.rows, tile.cols), 2 * reach + 1
    out = torch.ones(2, tile.rows, size)
    expected = out.scatter_add(-1, entry.expand(2, -1, -1), x)
    tile.fold(tile.spread(x, lambda shape: torch.full(shape, torch.nan)), out)
    torch.testing.assert_close(out, expected)


@given(tile=TILES, reach=st.integers(0, 5))
def test_near_columns(tile, reach):
    """Every column that is left out has one entry, the first before and the last after."""
    _, entry, _ = pairs(tile, reach)
    near = tile.near(reach)
    assert 0 <= near.start <= near.stop <= tile.cols
    assert (entry[:, : near.start] == 0).all() and (entry[:, near.stop :] == 2 * reach).all()
    some = slice(near.start, tile.cols)
    assert torch.equal(tile.columns(some).distances(torch.zeros(())), tile.distances(torch.zeros(()))[near.start :])
    for column in (near.start, near.stop - 1):  # and no more than needed is kept
        if reach and near.start < near.stop:
            assert len(entry[:, column].unique()) > 1 or not {0, 2 * reach} & set(entry[:, column].tolist())

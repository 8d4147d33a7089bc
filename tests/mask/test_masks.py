"""Every mask against its definition, and its verdicts on tiles."""

import numpy as np
import pytest
import torch
from cases import MASKS, Sizes, items, tensors
from formulas import positions
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.mask import Causal, Dense, Documents, Lengths, Prefix, Window
from regard.mask.shape import Grid, Shape

OFFSETS = [0, 4, -3, "items"]
LENGTHS = st.sampled_from([1, 2, 3, 7, 16, 17])
SIZES = st.builds(Sizes, batch=st.sampled_from([(2,), (), (2, 3)]), queries=LENGTHS, keys=LENGTHS)


def offset_for(offset, sizes):
    return torch.randint(-6, 9, sizes.batch) if offset == "items" else offset


def meaning(means, sizes, offset):
    where = positions(offset, items(sizes), sizes.queries)
    seen = np.zeros((items(sizes), sizes.heads, sizes.queries, sizes.keys), dtype=bool)
    for b, h, i, j in np.ndindex(*seen.shape):
        seen[b, h, i, j] = means(b, h, i, where[b][i], j)
    return seen


def bound(mask, sizes, offset):
    """The mask bound to these sizes, and the indices and positions of the queries."""
    rows = torch.arange(sizes.queries)
    where = torch.tensor(positions(offset, items(sizes), sizes.queries))
    shape = Shape(sizes.batch, sizes.heads, sizes.queries, sizes.keys, torch.device("cpu"))
    return mask.bind(shape), rows, where


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("batch", [(2,), (), (2, 3)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_visible_agrees_with_what_the_mask_means(name, batch, offset):
    sizes = Sizes(batch=batch)
    offset = offset_for(offset, sizes)
    mask, means = MASKS[name](sizes)
    expected = meaning(means, sizes, offset)
    made, rows, where = bound(mask, sizes, offset)
    seen = made.visible(rows, where, torch.arange(sizes.keys)).expand(expected.shape)
    np.testing.assert_array_equal(seen, expected)
    q, k, v = tensors(sizes)
    masked = regard.steps(q, k, v, mask=mask, offset=offset).masked.reshape(expected.shape)
    np.testing.assert_array_equal(masked > -torch.inf, expected)
    if isinstance(offset, int):
        shown = mask.dense(sizes.queries, sizes.keys, batch=batch, heads=sizes.heads, offset=offset)
        np.testing.assert_array_equal(shown.reshape(expected.shape), expected)


@given(
    name=st.sampled_from(sorted(MASKS)),
    sizes=SIZES,
    offset=st.sampled_from([0, 1, 5, -4, 30, -30, "items"]),
    block_q=st.integers(1, 20),
    block_k=st.integers(1, 20),
    reversed_rows=st.booleans(),
)
def test_verdicts_on_tiles_are_right(name, sizes, offset, block_q, block_k, reversed_rows):
    offset = offset_for(offset, sizes)
    mask, means = MASKS[name](sizes)
    seen = meaning(means, sizes, offset)
    made, rows, where = bound(mask, sizes, offset)
    if reversed_rows:  # picked rows come in any order
        seen, rows, where = seen[:, :, ::-1], rows.flip(0), where.flip(1)
    empty, full = made.tiles(Grid(rows, where, sizes.keys, block_q, block_k))
    n_q, n_k = -(-sizes.queries // block_q), -(-sizes.keys // block_k)
    empty, full = (torch.as_tensor(x).expand(items(sizes), sizes.heads, n_q, n_k) for x in (empty, full))
    for b, h, i, j in np.ndindex(items(sizes), sizes.heads, n_q, n_k):
        tile = seen[b, h, i * block_q : (i + 1) * block_q, j * block_k : (j + 1) * block_k]
        assert not (empty[b, h, i, j] and tile.any()), "a tile called empty has a visible pair"
        assert not (full[b, h, i, j] and not tile.all()), "a tile called full has a hidden pair"


# (empty, full) tiles of a 64 × 64 problem in blocks of 16: 16 tiles.
@pytest.mark.parametrize(
    ("mask", "empty", "full"),
    [
        (Causal(), 6, 6),
        (Window(15, 15), 6, 4),
        (Window(31, 0), 7, 3),
        (Window(), 0, 16),
        (Prefix(32), 8, 8),
        (Lengths(torch.tensor([40])), 4, 8),
        (Documents.packed([0, 16, 48, 64]), 10, 6),
        (Documents.packed([0, 20, 64]), 4, 5),
        (Dense(torch.arange(64) < 32), 8, 8),
        (~Causal(), 6, 6),
        (Causal() & Documents.packed([0, 32, 64]), 10, 2),
        (Causal() | Prefix(16), 6, 7),
    ],
    ids=str,
)
def test_verdicts_are_useful(mask, empty, full):
    made = mask.bind(Shape((1,), 1, 64, 64, torch.device("cpu")))
    rows = torch.arange(64)
    verdicts = made.tiles(Grid(rows, rows[None], 64, 16, 16))
    assert [int(x.expand(1, 1, 4, 4).sum()) for x in verdicts] == [empty, full]


def test_kernels_skip_empty_tiles(monkeypatch):
    from regard.kernels import blockwise

    looked = []
    scores = blockwise._TileRun.scores

    def look(run, tile, **options):
        looked.append(tile)
        return scores(run, tile, **options)

    monkeypatch.setattr(blockwise, "_block_sizes", lambda p: blockwise.Blocks(1, 16, 16))
    monkeypatch.setattr(blockwise._TileRun, "scores", look)
    q, k, v = tensors(Sizes(batch=(2,), queries=64, keys=64), grad=True)
    out = regard.attend(q, k, v, mask=Causal() & Documents.packed([0, 32, 64]), backend="blockwise")
    assert len(looked) == 2 * 6 and sum(tile.full for tile in looked) == 2 * 2
    out.sum().backward()
    assert len(looked) == 2 * 2 * 6


@given(name=st.sampled_from(sorted(MASKS)), other=st.sampled_from(sorted(MASKS)))
def test_de_morgan(name, other):
    sizes = Sizes()
    a, b = MASKS[name](sizes)[0], MASKS[other](sizes)[0]

    def dense(mask):
        return mask.dense(sizes.queries, sizes.keys, batch=sizes.batch, heads=sizes.heads)

    assert torch.equal(dense(~(a & b)), dense(~a | ~b))
    assert torch.equal(dense(~(a | b)), dense(~a & ~b))
    assert torch.equal(dense(~~a), dense(a))


def test_a_bool_tensor_is_a_mask_alone_and_combined():
    q, k, v = tensors(Sizes())
    seen = torch.rand(5, 7) < 0.5
    expected = regard.steps(q, k, v, mask=Dense(seen)).masked
    assert torch.equal(regard.steps(q, k, v, mask=seen).masked, expected)
    both = regard.steps(q, k, v, mask=Causal() & seen).masked
    assert torch.equal(both, regard.steps(q, k, v, mask=Causal() & Dense(seen)).masked)


def test_a_bool_tensor_may_stand_on_the_left():
    seen = torch.rand(4, 4) < 0.5
    assert torch.equal((seen & Causal()).dense(4), (Causal() & seen).dense(4))
    assert torch.equal((seen | Causal()).dense(4), (Causal() | seen).dense(4))


@pytest.mark.parametrize("kind", [Lengths, Prefix])
@pytest.mark.parametrize("n", [3, [3], (3,), torch.tensor(3), torch.tensor([3]), torch.tensor([3, 3])], ids=str)
def test_a_count_in_every_form(kind, n):
    q, k, v = tensors(Sizes())
    seen = regard.steps(q, k, v, mask=kind(n)).masked > -torch.inf
    assert torch.equal(seen, (torch.arange(7) < 3).expand(seen.shape))


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Causal(), "Causal()"),
        (Window(None, 3), "Window(None, 3)"),
        (Lengths(3), "Lengths(3)"),
        ((Causal() | Prefix(2)) & ~Window(1, 1), "((Causal() | Prefix(2)) & ~Window(1, 1))"),
        (Dense(torch.ones(2, 3, dtype=torch.bool)), "Dense([2, 3])"),
    ],
)
def test_masks_read_as_they_are_written(mask, text):
    assert repr(mask) == text

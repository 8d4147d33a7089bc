"""Alignment: cases worked by hand, the definitions of Och & Ney and Koehn written out again, files, pictures."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.align import (
    Alignment,
    links,
    parse,
    pharaoh,
    picture,
    quality,
    read_naacl,
    read_pharaoh,
    swap,
    symmetrize,
    word_weights,
    write_pharaoh,
)

HANSARDS = Path(__file__).parents[3] / "shared/data/hansards_word_alignment"
LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)

# --- from attention ---

# One layer, two heads; rows: <s> y1 y2 y3 as inputs; source x1 x2 x3 </s>. y1 and y2 are one word, so are x2 and x3.
WEIGHTS = torch.tensor(
    [
        [
            [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.5, 0.2, 0.2, 0.1], [0.0, 0.4, 0.5, 0.1]],
            [[0.3, 0.2, 0.1, 0.4], [0.1, 0.3, 0.3, 0.3], [0.1, 0.6, 0.2, 0.1], [0.2, 0.2, 0.3, 0.3]],
        ]
    ]
)
SOURCE, TARGET = [0, 1, 1, -1], [0, 0, 1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # rows 1 and 2 for the first word, row 3 for the second; columns 1 and 2 added up
        ({"head": 0}, [[0.6, 0.3], [0.0, 0.9]]),
        ({"head": 1}, [[0.1, 0.7], [0.2, 0.5]]),
        ({"head": None}, [[0.35, 0.5], [0.1, 0.7]]),
        ({"head": 0, "layer": -1, "merge": "max"}, [[0.7, 0.4], [0.0, 0.9]]),
        # rows 0 and 1, row 2
        ({"head": 0, "shift": False}, [[0.4, 0.35], [0.5, 0.4]]),
    ],
)
def test_word_weights_by_hand(options, expected):
    got = word_weights(WEIGHTS, SOURCE, TARGET, **options)
    assert torch.allclose(got, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


def test_subwords_of_no_word_are_left_out():
    got = word_weights(WEIGHTS, [0, -1, 1, -1], [0, -1, 1], head=0)
    assert torch.allclose(got, torch.tensor([[0.7, 0.1], [0.0, 0.5]], dtype=torch.float64), atol=1e-6)
    assert word_weights(WEIGHTS, [], []).shape == (0, 0)
    assert word_weights(WEIGHTS, [0], [], merge="max").shape == (0, 1)


def test_more_layers_are_averaged():
    two = torch.cat([WEIGHTS, torch.zeros_like(WEIGHTS)])
    assert torch.allclose(word_weights(two, SOURCE, TARGET), word_weights(WEIGHTS, SOURCE, TARGET) / 2)
    assert torch.equal(word_weights(two, SOURCE, TARGET, layer=0), word_weights(WEIGHTS, SOURCE, TARGET))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": WEIGHTS[0]}, r"expected \[layers, heads, T, S\], got shape \(2, 4, 4\)"),
        ({"weights": WEIGHTS[:, :, :3]}, r"at least 4 rows \(target subwords and <s>\) and 4 columns"),
        ({"source_words": [0] * 5}, "5 columns"),
        ({"layer": 1}, "layer of cross-attention: expected one of 1, counted from 0, got 1"),
        ({"head": 2}, "head of cross-attention: expected one of 2, counted from 0, got 2"),
        ({"merge": "sum"}, "'mean' or 'max', got 'sum'"),
    ],
)
def test_word_weights_refuse(change, message):
    arguments = {"weights": WEIGHTS, "source_words": SOURCE, "target_words": TARGET} | change
    with pytest.raises(ValueError, match=message):
        word_weights(**arguments)


def test_links_by_hand():
    matrix = torch.tensor([[0.2, 0.8], [0.0, 0.0], [0.5, 0.4]])
    assert links(matrix) == {(1, 0), (0, 2)}
    assert links(matrix, threshold=0.4) == {(1, 0), (0, 2), (1, 2)}
    assert links(matrix, threshold=0.0) == {(0, 0), (1, 0), (0, 2), (1, 2)}, "no weight, no link"
    assert links(torch.zeros(0, 3)) == links(torch.zeros(3, 0)) == frozenset()


def test_mutual_links_by_hand():
    matrix = torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.0, 0.0], [0.1, 0.9, 0.0], [0.6, 0.4, 0.0]])
    assert links(matrix, mutual=True) == {(1, 2), (0, 3)}, "target 0 looks at 1 most, which target 2 does more"
    assert links(matrix, mutual=True, threshold=0.62) == {(1, 2), (0, 3)}  # 0.9 / √2.1 = 0.621, 0.6 / √0.9 = 0.632
    assert links(matrix, mutual=True, threshold=0.63) == {(0, 3)}
    assert links(matrix, mutual=True, threshold=0.64) == frozenset()
    assert links(torch.zeros(2, 3), mutual=True, threshold=0.0) == links(torch.zeros(0, 3), mutual=True) == frozenset()


@given(st.integers(0, 2**31), st.integers(1, 7), st.integers(1, 7))
def test_mutual_links_are_those_that_both_sides_choose(seed, rows, columns):
    matrix = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))
    found = links(matrix, mutual=True)
    assert found == links(matrix) & swap(links(matrix.T)) and found
    assert found == swap(links(matrix.T, mutual=True)), "the same from the other side"


# --- two directions ---


def grow_diag_final_and(forward, backward, size=6):
    """Koehn's pseudo-code, on a grid."""
    grid = [[(s, t) in forward and (s, t) in backward for s in range(size)] for t in range(size)]
    neighbours = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]

    def target_free(t):
        return not any(grid[t])

    def source_free(s):
        return not any(row[s] for row in grid)

    new = True
    while new:
        new = False
        for t in range(size):
            for s in range(size):
                if not grid[t][s]:
                    continue
                for ds, dt in neighbours:
                    a, b = s + ds, t + dt
                    if (a, b) not in forward | backward or grid[b][a]:
                        continue
                    if source_free(a) or target_free(b):
                        grid[b][a] = new = True
    for direction in (forward, backward):
        for t in range(size):
            for s in range(size):
                if (s, t) in direction and source_free(s) and target_free(t):
                    grid[t][s] = True
    return {(s, t) for t in range(size) for s in range(size) if grid[t][s]}


@given(LINKS, LINKS)
def test_symmetrization(forward, backward):
    intersection, union = (symmetrize(forward, backward, m) for m in ("intersection", "union"))
    grown = symmetrize(forward, backward)
    assert intersection == forward & backward and union == forward | backward
    assert intersection <= grown <= union
    assert grown == grow_diag_final_and(forward, backward)
    assert symmetrize(forward, forward) == forward
    for method in ("intersection", "union"):
        assert swap(symmetrize(swap(backward), swap(forward), method)) == symmetrize(forward, backward, method)


def test_grow_diag_final_and_by_hand():
    forward = {(0, 0), (1, 1), (2, 1), (4, 4)}
    backward = {(0, 0), (1, 1), (1, 2), (5, 3), (4, 1)}
    # (0,0), (1,1) agree; (2,1) and (1,2) are beside (1,1) and new to source 2, target 2; (4,1) is beside nothing;
    # (4,4) and (5,3) join free words
    assert symmetrize(forward, backward) == {(0, 0), (1, 1), (2, 1), (1, 2), (4, 4), (5, 3)}
    # target 1 has its link: source 4's only chance is taken by (4, 4)
    assert (4, 1) not in symmetrize(forward, backward)


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="got 'grow'"):
        symmetrize(set(), set(), "grow")


# --- files ---


@given(LINKS, LINKS, st.integers(0, 1))
def test_pharaoh_lines_come_back(sure, more, base):
    assert parse(pharaoh(sure, more, base=base), base=base) == (sure, sure | more)


def test_pharaoh_by_hand():
    assert parse("1-2 3p1 2?2\n", base=1) == ({(0, 1)}, {(0, 1), (2, 0), (1, 1)})
    assert pharaoh({(1, 0), (0, 2)}, {(0, 1)}) == "0p1 0-2 1-0"
    assert pharaoh(()) == "" and parse("") == (frozenset(), frozenset())


@pytest.mark.parametrize("line", ["1-", "a-b", "1-2-3", "1–2", "-1-2", "1x2", "٣-1"])
def test_bad_pharaoh_lines_are_refused(line):
    with pytest.raises(ValueError, match="expected links such as"):
        parse(line)
    with pytest.raises(ValueError, match="counted from 1, got '0-1'"):
        parse("0-1", base=1)


def test_pharaoh_files(tmp_path):
    path = tmp_path / "a.align"
    write_pharaoh(path, [{(0, 0), (1, 2)}, set(), {(3, 1)}], base=1)
    assert path.read_text() == "1-1 2-3\n\n4-2\n"
    assert [one.sure for one in read_pharaoh(path, base=1)] == [{(0, 0), (1, 2)}, set(), {(3, 1)}]
    path.write_text("0-0\nnonsense\n")
    with pytest.raises(ValueError, match=r"a\.align:2: expected links"):
        read_pharaoh(path)


def test_naacl_files(tmp_path):
    path = tmp_path / "a.wa"
    path.write_text("0001 1 1 S\n0001 2 1 P\n0003 4 2\n0003 1 2 P 0.75\n")
    assert read_naacl(path) == {1: ({(0, 0)}, {(0, 0), (1, 0)}), 3: ({(3, 1)}, {(3, 1), (0, 1)})}
    for line in ("1 0 1 S", "1 2", "1 2 3 X", ""):
        path.write_text(f"1 1 1\n{line}\n")
        with pytest.raises(ValueError, match=r"a\.wa:2: expected 'sentence source target"):
            read_naacl(path)


# --- how good ---


def test_quality_by_hand():
    """A = {ab, bb, cc, dd}, S = {ab, cc, ee}, P = S ∪ {bb}: |A∩S| = 2, |A∩P| = 3, AER = 1 − 5/7."""
    found = {(0, 1), (1, 1), (2, 2), (3, 3)}
    gold = parse("0-1 2-2 4-4 1p1")
    one = quality([found], [gold])
    assert (one.found, one.sure, one.found_sure, one.found_possible) == (4, 3, 2, 3)
    assert one.precision == 3 / 4 and one.recall == 2 / 3 and one.aer == pytest.approx(2 / 7)
    assert str(one) == "AER 28.57 %, precision 75.00 %, recall 66.67 %"
    both = quality([found, {(0, 0)}], [gold, {(0, 0)}])  # summed over the set, not averaged
    assert both.aer == pytest.approx(1 - 7 / 9)


@given(LINKS, LINKS, LINKS)
def test_quality_from_the_definition(found, sure, more):
    possible = sure | more
    got = quality([found], [Alignment(sure, more)])
    if found and sure:
        assert got.precision == len(found & possible) / len(found)
        assert got.recall == len(found & sure) / len(sure)
        assert got.aer == pytest.approx(1 - (len(found & sure) + len(found & possible)) / (len(found) + len(sure)))
    assert 0 <= got.aer <= 1
    assert quality([sure], [Alignment(sure, possible)]).aer == 0
    # without possible links it is 1 − F₁
    plain = quality([found], [sure])
    if plain.precision + plain.recall and found and sure:
        assert plain.aer == pytest.approx(1 - 2 * plain.precision * plain.recall / (plain.precision + plain.recall))


def test_quality_of_nothing():
    assert quality([], []).aer == 0 and quality([set()], [set()]).aer == 0
    assert quality([set()], [{(0, 0)}]).aer == 1
    with pytest.raises(ValueError, match="got 1 and 2"):
        quality([set()], [set(), set()])


@pytest.mark.skipif(not HANSARDS.is_dir(), reason="the Hansards files are not here")
def test_the_hansards_gold():
    gold = read_pharaoh(HANSARDS / "enfr.gold", base=1)
    assert len(gold) == 447 and sum(len(g.sure) for g in gold) == 4038 and sum(len(g.possible) for g in gold) == 17438
    sides = [line.split("|||") for line in (HANSARDS / "enfr.src-tgt").read_text().splitlines()]
    for one, (english, french) in zip(gold, sides, strict=True):
        assert all(i < len(english.split()) and j < len(french.split()) for i, j in one.possible)


# --- a picture ---


def test_a_picture():
    matrix = torch.tensor([[1.0, 0.0, 0.25], [0.0, 0.5, 0.75]])
    assert picture(matrix, ["a", "bée", "日"], ["le", "chat"], marked={(1, 1)}).splitlines() == [
        "           b",
        "           é",
        "        a  e  日",
        "  le    █     ░",
        "chat      [▒] ▓",
    ]
    assert picture(matrix[:, 1:2], ["e\u0301t"], ["x", "日本"]).splitlines()[0] == "        e\u0301"
    assert picture(torch.zeros(0, 0), [], []) == ""
    assert "█" not in picture(torch.zeros(1, 1), ["a"], ["b"])
    with pytest.raises(ValueError, match=r"expected weights \[1, 2\] for these words, got \(2, 3\)"):
        picture(matrix, ["a", "b"], ["c"])

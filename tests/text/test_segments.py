"""Lines cut into segments that fit, and put together again."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from regard.tasks.translation.output import Translation, in_blocks, join_segments
from regard.text import Encoded
from regard.text.graphemes import border
from regard.text.segments import Joint, gap, segments, sentences


def bytes_of(texts):
    """As if each byte was a subword."""
    return [Encoded(*([0] * len(text.encode()),) * 4) for text in texts]


def parts(line, limit, **options):
    return [line[one.start : one.end] for one in segments(line, bytes_of, limit, **options)]


@given(st.text(alphabet="ab ,;.。，é😀\u0301", max_size=60), st.integers(4, 30))
@example("a" * 50, 7)
def test_nothing_is_lost_and_everything_fits(line, limit):
    found = segments(line, bytes_of, limit)
    assert "".join("".join(line[one.start : one.end] for one in found).split()) == "".join(line.split())
    for one, text in zip(found, parts(line, limit), strict=True):
        assert text == text.strip() != "" and len(text.encode()) <= limit
        assert one.joint.spaced == (one.start == 0 or line[one.start - 1].isspace())


def test_sentences_come_first_then_commas_then_spaces_then_characters():
    assert parts("One two. Three four.", 12) == ["One two.", "Three four."] == sentences("One two. Three four.")
    assert parts("I saw a big red dog, and then a very old cat", 30) == [
        "I saw a big red dog,",
        "and then a very old cat",
    ]
    assert parts("one two three four", 10) == ["one two", "three four"]
    assert parts("abcdefgh", 4) == ["abcd", "efgh"]
    assert parts("1,000,000 is", 11) == ["1,000,000", "is"]  # a comma in a number ends no clause
    assert parts("我有一只狗，你有一只猫", 18) == ["我有一只狗，", "你有一只猫"]


def test_what_is_seen_as_one_character_stays_whole_while_it_fits():
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    for text in parts(family * 8, 40):
        assert text == family * (len(text) // len(family))
    assert all(border(family * 2, at) for at in (0, len(family)))
    assert "".join(parts(family, 5)) == family  # there is no other way


def test_what_is_kept_is_not_cut():
    assert parts("aaaa X1 bbbb", 5, keep=[(5, 7)]) == ["aaaa", "X1", "bbbb"]
    assert "X1" in "|".join(parts("abcdX1efgh", 5, keep=[(4, 6)]))
    assert parts("abcdef", 3, keep=[(0, 6)]) == ["abcdef"]


def test_a_cut_word_is_one_again():
    found = segments("antidisestablishment of it", bytes_of, 12)
    assert [one.joint for one in found] == [Joint(), Joint(spaced=False, gap=""), Joint()]
    whole = join_segments(
        [Translation(text, -1.0, -2.0) for text in ("anti", "dis", "de ça")], [one.joint for one in found]
    )
    assert whole == Translation("antidis de ça", -1.0, -6.0)
    weights = [torch.tensor([[1.0]]), torch.tensor([[3.0]]), torch.tensor([[5.0, 6.0]])]
    blocks = in_blocks(weights, [(True, True), (False, False), (True, True)])
    assert blocks.tolist() == [[2.0, 0.0, 0.0], [0.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("left", "right", "between"),
    [("Un.", "Deux.", " "), ("一。", "二。", ""), ("Un.", "二。", " "), ("", "Un", ""), ("か\u3099", "二", "")],
)
def test_what_belongs_between(left, right, between):
    assert gap(left, right) == between


def test_a_long_line_is_cut_quickly():
    for line in ("word " * 20_000, "a" * 50_000, "a, " * 20_000, "\U0001f1eb" * 20_000):
        assert sum(map(len, parts(line, 400))) >= len(line) - line.count(" ")

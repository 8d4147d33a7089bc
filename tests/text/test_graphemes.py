"""What people see as one character is never cut, and takes the columns that it takes."""

import pytest

from regard.tasks.qa.answerer import whole
from regard.text.graphemes import border, clusters, width

FRANCE, GERMANY = "\U0001f1eb\U0001f1f7", "\U0001f1e9\U0001f1ea"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
JAMO = "\u1112\u1161\u11ab"  # 한 in three parts


@pytest.mark.parametrize(
    "signs",
    [
        ["a", "e\u0301", "x"],
        [FRANCE, GERMANY, " ", FRANCE],
        ["a", FRANCE, "\U0001f1eb"],  # half a flag is left over
        ["x", ENGLAND, "y"],
        ["\U0001f469\u200d\U0001f680", "!", "\U0001f44d\U0001f3fd"],
        ["1\ufe0f\u20e3", "\u2764\ufe0f"],
        [JAMO, "\uae00", "a"],
        ["\uac00\u11a8", "\uac01", "\u1100\uac00", "b"],  # a tail joins a syllable without one, a lead the next
        ["न", "म", "स\u094d", "त\u0947"],
        ["\r\n", " ", "\n", "\u0301"],  # a mark does not join the end of a line
        ["م\u200c", "خ", "a\u200d", "b"],  # a joiner belongs to the letter before it alone
        ["ก\u0e33", "ｱﾞ", "\u0600" + "1", "2"],  # Thai and Japanese without marks by category; a sign before a number
    ],
)
def test_characters_are_whole(signs):
    text = "".join(signs)
    assert list(clusters(text)) == signs
    ends = {len("".join(signs[:k])) for k in range(len(signs) + 1)}
    assert {at for at in range(len(text) + 1) if border(text, at)} == ends
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            a, b = whole(text, start, end)
            assert a == b or ({a, b} <= ends and not text[a].isspace() and not text[b - 1].isspace())


def test_nothing_and_widths():
    assert list(clusters("")) == [] and border("", 0) and width("") == 0
    assert (
        width(FRANCE) == 2 and width("e\u0301") == 1 and width(JAMO) == 2 and width("\U0001f469\u200d\U0001f680") == 2
    )
    assert width("1\ufe0f\u20e3") == width("\u2764\ufe0f") == width("😀") == 2 and width("\u2764") == 1
    assert width("東京、ｱ") == 7 and width("\u0301") == width("\u200b") == 0
    assert width("\x07") == width("\r\n") == 0 and width("a\x07b") == 2 and width("Tokyo") == 5

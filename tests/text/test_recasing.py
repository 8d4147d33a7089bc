"""Lower-case words and marks become text: spaces, the document's spelling, capitals."""

import pytest

from regard.text.recasing import Spelling, Written, join_words, space_words

CHAT = (
    "Amanda: I'm at Café Lux at 8:30! Larry called. ¶ Mary Ann: Are you ok? LOOK at gmail.com, I <3 it ¶ "
    "Bob: Sure! my new iPhone - cool, and a NASA mug for McKay"
)


@pytest.fixture(scope="module")
def chat():
    return Spelling.of(CHAT, str.lower)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("don ' t , it ' s 8 : 30 .", "don't, it's 8:30."),
        ("they ' ve seen o ' clock and y ' all", "they've seen o'clock and y'all"),
        ("james ' dog and the parents ' house", "james' dog and the parents' house"),
        ("he said , ' fine . ' and \" no ! \" twice", "he said, 'fine.' and \"no!\" twice"),
        ("it costs $ 5 . 50 or 1 , 000 € , 30 % off", "it costs $5.50 or 1,000 €, 30% off"),
        ("on 5 , 6 people came at 5 p . m . ( again )", "on 5, 6 people came at 5 p.m. (again)"),
        ("a well - known and / or so . . .", "a well-known and/or so..."),
        ("see you # soon @ home", "see you #soon @home"),
        ("one ¶ two .", "one\ntwo."),
        ("", ""),
    ],
)
def test_spaces_are_where_people_put_them(tokens, text):
    assert space_words(tokens.split()) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("bob meets amanda at café lux .", "Bob meets Amanda at Café Lux."),
        ("larry and mary ann are sure .", "Larry and Mary Ann are sure."),  # a name that stands first; words that do
        ("look at nasa , mckay !", "Look at NASA, McKay!"),
        ("iphone - cool . iphone", "iPhone - cool. iPhone"),
        ("gmail . com is < 3 . bye", "Gmail.com is <3. Bye"),
        ("it ' s on at 5 p . m . in paris . . . or so ? yes ¶ no", "It's on at 5 p.m. in paris... or so? Yes\nNo"),
    ],
)
def test_words_are_spelled_as_the_document_does(chat, tokens, text):
    assert chat.text(tokens.split()) == text


def test_a_copied_word_has_the_letters_of_its_place():
    chat = Spelling.of("Ann: they MAY meet in May, and in may", str.lower)
    at = [word.text for word in chat.words].index("May")
    assert chat.spell("may", at) == "May" and chat.spell("may", at - 3) == "MAY"
    assert chat.spell("may", 0) == chat.spell("may")  # of another word it is no copy
    assert chat.spell("june") == "june"


def test_what_has_its_letters_keeps_them(chat):
    written = chat.write(["bob", "'", "s", "House", "."], cased=True)
    assert join_words(written) == "bob's House." and written[1] == Written("'", True)

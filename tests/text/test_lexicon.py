"""The words a translation may have: the automaton against a plain set, and searches against filtered enumeration."""

from __future__ import annotations

import itertools
import math
import random
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import process
from enumeration import EOS, Toy, enumerated, memory

import regard.decode._words as known_words
from regard.decode import KnownWords, Limits, beam, greedy, sample
from regard.files.bundled import BUNDLED, DEFAULT
from regard.tasks.translation.translator import Translator, load
from regard.text.lexicon import FILE, Lexicon, runs, words_of


@pytest.fixture(scope="module")
def some_words() -> set[str]:
    draw = random.Random(4)
    return {"".join(draw.choices("abé", k=draw.randint(1, 6))) for _ in range(150)}


# --- the set ---


def test_it_knows_words_and_their_beginnings(some_words: set[str]) -> None:
    lexicon = Lexicon.of(some_words)
    assert list(lexicon) == sorted(some_words) and len(lexicon) == len(some_words)
    for n in range(1, 6):
        for letters in itertools.product("abé", repeat=n):
            text = "".join(letters)
            assert (text in lexicon) == (text in some_words)
            assert lexicon.begins(text) == any(word.startswith(text) for word in some_words)
    assert lexicon.begins("") and "" not in lexicon and "z" not in lexicon and 3 not in lexicon


def test_case_and_forms_of_characters_do_not_matter() -> None:
    lexicon = Lexicon.of(["L'ÉTÉ 2024", "ﬁn"])
    assert list(lexicon) == ["fin", "l", "été"]
    assert "Été" in lexicon and "e\u0301te\u0301" in lexicon and lexicon.begins("FI")
    assert lexicon.beyond("L'été dernier, FIN de B12 !", {"b"}) == ["dernier", "de"]


def test_it_is_the_smallest_automaton(some_words: set[str]) -> None:
    """A state for each set of ends that a beginning may have, and one more for the start."""
    lexicon = Lexicon.of(some_words)
    starts = {word[:k] for word in some_words for k in range(1, len(word) + 1)}
    ends = {frozenset(word[len(start) :] for word in some_words if word.startswith(start)) - {""} for start in starts}
    assert len(lexicon._first) - 1 == len(ends) + 1


def test_of_nothing() -> None:
    lexicon = Lexicon.of([])
    assert len(lexicon) == 0 and list(lexicon) == [] and "a" not in lexicon and not lexicon.begins("a")


def test_what_is_saved_comes_back(some_words: set[str], tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        Lexicon.of(sorted(some_words, key=hash)).save(tmp_path / name)
    assert list(Lexicon.load(tmp_path / "a.npz")) == sorted(some_words)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.npz"
    with pytest.raises(FileNotFoundError):
        Lexicon.load(path)
    Lexicon.of(["chat", "chien"]).save(path)
    whole = path.read_bytes()
    for data in (b"", whole[:-30], b"no archive"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"lexicon\.npz: cut short, or not a lexicon that regard wrote"):
            Lexicon.load(path)


def test_whatever_is_damaged_nothing_else_is_raised(some_words: set[str], tmp_path: Path) -> None:
    path, draw, told = tmp_path / "lexicon.npz", random.Random(1), 0
    Lexicon.of(some_words).save(path)
    whole = path.read_bytes()
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 8))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data)
        try:
            lexicon = Lexicon.load(path)
        except ValueError as error:
            told += "lexicon.npz" in str(error)
        else:
            list(itertools.islice(lexicon, 1000))
            lexicon.begins("a", b"\xc3")
    assert told > 300


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("targets", [-1, 1]),  # to itself: walks would not end
        ("targets", [-1, -3]),
        ("letters", [97, 0x110000]),
        ("letters", [0xD800, 97]),
        ("first", [0, 3, 2]),
        ("first", [0, 0, 1]),
        ("first", [0, 2**31 - 1, -2, 2]),
        ("letters", [98, 97]),  # of one state, and not in order
        ("letters", [97, 97]),
    ],
)
def test_arrows_that_lead_nowhere_are_refused(tmp_path: Path, name: str, values: list[int]) -> None:
    path = tmp_path / "lexicon.npz"
    good = {"letters": [97, 98], "targets": [-1, 0], "first": [0, 0, 2]}
    np.savez(path, **{key: np.array(x, np.int32) for key, x in good.items()})
    assert list(Lexicon.load(path)) == ["a"]  # b is an arrow by which no word ends
    np.savez(path, **{key: np.array(values if key == name else x, np.int32) for key, x in good.items()})
    with pytest.raises(ValueError, match="its transitions are invalid"):
        Lexicon.load(path)


def test_a_string_is_no_list_of_words() -> None:
    with pytest.raises(TypeError, match="put it into a list"):
        Lexicon.of("le chat")


def test_no_pickle_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "lexicon.npz", letters=np.array([object()]), targets=np.zeros(1), first=np.zeros(1))
    with pytest.raises(ValueError, match="not a lexicon"):
        Lexicon.load(tmp_path / "lexicon.npz")


# --- searching among known words ---

# <pad> <s> </s>, then what tokens spell; é is two bytes, in one token or in two, and × has the same first one
PIECES = [b"", b"", b"", b" a", b"b", "é".encode(), b"\xc3", b"\xa9", b".", b"a", b"\x97", b" .b"]
LEXICON = Lexicon.of(["a", "ab", "éa", "aéb"])


def is_known(tokens: tuple[int, ...], own: set[str]) -> bool:
    """By definition: the text is text, and all its words are known."""
    try:
        text = b"".join(PIECES[token] for token in tokens).decode()
    except UnicodeDecodeError:
        return False
    return not LEXICON.beyond(text, own)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_that_holds_everything_finds_the_best_that_is_known(seed: int) -> None:
    model, longest, own = Toy(len(PIECES), seed=seed), 4, [{"bé"}, set(), {"b"}]
    words = KnownWords(LEXICON, PIECES, own, EOS)
    limits = Limits(maximum=longest)
    found = beam(model, memory(3, 1, 7), beams=600, best=8, alpha=1.0, exact=True, limits=limits, words=words)
    for sentence, some, row in zip((3, 1, 7), own, found, strict=True):
        every = enumerated(model, sentence, len(PIECES), longest, 1.0)
        # at the limit an output ends wherever it is, in the middle of a word or of a character; begun as known it is
        expected = [entry for entry in every if is_known(entry[1][:-1], some)]
        got, cut = [], []
        for h in row:
            (got if is_known(tuple(h.tokens.tolist()[:-1]), some) else cut).append(h)
        assert got and len(row) == 8
        for hypothesis, entry in zip(got, expected, strict=False):
            assert tuple(hypothesis.tokens.tolist()) == entry[1]
            assert hypothesis.score == pytest.approx(entry[0], abs=1e-9)
        assert all(len(h.tokens) == longest + 1 for h in cut)


@pytest.mark.parametrize("likeliest", [1, 2, 32])
def test_every_search_writes_known_words(monkeypatch: pytest.MonkeyPatch, likeliest: int) -> None:
    """Also where few tokens are looked at first, and none of them may come."""
    monkeypatch.setattr(known_words, "LIKELIEST", likeliest)
    monkeypatch.setattr(known_words, "STEP", 2)
    model, own, longest = Toy(len(PIECES), seed=5), [{"bé"}, set(), {"b"}], 30
    options = {"limits": Limits(maximum=longest), "words": KnownWords(LEXICON, PIECES, own, EOS)}
    rows = [
        [[one] for one in greedy(model, memory(3, 1, 7), **options)],
        beam(model, memory(3, 1, 7), beams=3, best=3, **options),
        sample(model, memory(3, 1, 7), samples=40, seed=2, **options),
    ]
    ended = 0
    for found in rows:
        for some, row in zip(own, found, strict=True):
            for hypothesis in row:
                tokens = tuple(hypothesis.tokens.tolist())
                assert hypothesis.log_probs.isfinite().all()
                if len(tokens) <= longest:
                    ended += 1
                    assert is_known(tokens[:-1], some), tokens
    assert ended > 60


def test_the_first_unknown_word_is_told() -> None:
    words = KnownWords(LEXICON, PIECES, [set(), {"abb"}], EOS)
    assert words.unknown(0, [3, 4, 8, 3, EOS]) == []  # ab. a
    assert words.unknown(0, [3, 8, 3, 4, 4, 8]) == [3, 4, 4]  # no word begins with abb
    assert words.unknown(1, [3, 8, 3, 4, 4, 8]) == []
    assert words.unknown(0, [3, 5, EOS]) == [3, 5, EOS]  # aéb begins so, but it is no word
    assert words.unknown(0, [3, 7]) == [3, 7]  # no character begins with this byte
    assert words.unknown(0, [3, 4, 11]) == [11]  # no word begins so, wherever it stands


def test_words_are_cut_in_one_way() -> None:
    """What a text has of words, the search sees token by token: for characters of every kind, one byte a token."""
    pieces = [bytes([byte]) for byte in range(256)]
    characters = [*range(0x3100), *range(0x3100, 0x20000, 61), 0x1F9D1, 0x10FFFF]
    texts = [f"a{chr(c)}b" for c in characters if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    words = KnownWords(Lexicon.of(["x"]), pieces, [runs(text) for text in texts], EOS)
    assert [text for k, text in enumerate(texts) if words.unknown(k, list(text.encode()))] == []
    assert words_of("12 m², x₁ ½ ™ İstanbul") == ["m", "x", "i\u0307stanbul"]


@pytest.mark.slow
def test_there_is_always_a_way_on() -> None:
    """With a token for each byte, whatever begins a word can go on to one that is known, or to the end of the text."""
    pieces = [b"", b"", b"", *(bytes([byte]) for byte in range(256))]
    own, draw = ["Lambasté", "marvel", "œuf", "日本", "a"], random.Random(3)
    words = KnownWords(Lexicon.of(["chat", "châtié", "éa"]), pieces, [own], EOS)
    words.start(1)
    flat, ended = torch.zeros(1, 1, len(pieces)), 0
    flat[..., :2] = -math.inf
    for _ in range(3000):
        left = words.apply(
            flat + torch.rand(flat.shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))
        )
        may = (left[0, 0] > -math.inf).nonzero().flatten().tolist()
        assert may != (flat[0, 0] > -math.inf).nonzero().flatten().tolist(), words._rows  # all: there was no way on
        token = draw.choice(may)
        words.follow(torch.tensor([0]), torch.tensor([token]))
        if token == EOS:
            ended += 1
            words.start(1)
    assert ended > 10


# --- a translator that has a lexicon ---

SOURCES = ["The cat sat on the mat.", "I like the red cat of Zorglub.", "It is raining."]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return load("en-fr-small", device="cpu")


@pytest.fixture
def without_cats(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """The model of the package, which may not write some words that it would write."""
    free = translator.outputs(SOURCES, known_words=False, nbest=4)
    said = {word for output in free for found in output.translations for word in words_of(found.text)}
    assert {"chat", "zorglub"} <= said
    more = "minet chatte félin animal bête il elle tapis natte rouge roux"
    monkeypatch.setattr(translator, "lexicon", Lexicon.of([*(said - {"chat", "zorglub"}), more]))
    return translator


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"nbest": 3}, {"sample": True, "seed": 1, "nbest": 2}])
def test_a_translator_writes_known_words(without_cats: Translator, options: dict) -> None:
    outputs = without_cats.outputs(SOURCES, max_length=40, **options)
    for source, output in zip(SOURCES, outputs, strict=True):
        assert len(output.translations) == options.get("nbest", 1)
        for found in output.translations:
            assert without_cats.lexicon.beyond(found.text, words_of(source)) == []
            assert "chat" not in words_of(found.text)
    assert "Zorglub" in outputs[1].text  # of the source
    free = without_cats.outputs(SOURCES, max_length=40, known_words=False, **options)
    assert "chat" in words_of(free[0].text)
    if "sample" not in options:
        assert free[2].translations == outputs[2].translations  # it had known words alone


def test_what_is_translated_again_is_so_in_one_batch(without_cats: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is of several batches: a batch of one costs nearly as much as one of many."""
    calls, search, told = [], without_cats.engine.search, []

    def counted(sources: list, *args: object, **how: Any) -> object:
        calls.append((how["words"] is not None, [list(row) for row in sources]))
        return search(sources, *args, **how)

    monkeypatch.setattr(without_cats.engine, "search", counted)
    rain = ["It is raining" + ", it is raining" * k + "." for k in range(3)]
    without_cats.outputs([*SOURCES[:2], *rain * 2], batch_tokens=30, max_length=20, progress=told.append)
    first, again = ([rows for known, rows in calls if known == k] for k in (False, True))
    assert [len(rows) for rows in again] == [2] and calls[-1][0]
    assert len({i for i, rows in enumerate(first) for row in rows if row in again[0]}) == 2
    assert sum(told) == 8


def test_of_several_those_that_are_known_stay(without_cats: Translator) -> None:
    free = without_cats.outputs(SOURCES[:1], nbest=4, known_words=False)[0].translations
    best, second = (set(words_of(one.text)) for one in free[:2])
    assert second - best
    without_cats.lexicon = Lexicon.of([*(set(without_cats.lexicon) - (second - best)), *best])
    good = [one for one in free if not without_cats.lexicon.beyond(one.text, words_of(SOURCES[0]))]
    found = without_cats.outputs(SOURCES[:1], nbest=4)[0].translations
    assert found[0] == free[0] and free[1] not in found and len(found) == 4
    assert all(one in found for one in good)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    drawn = {"sample": True, "seed": 5, "nbest": 8}
    free, found = (
        without_cats.outputs(SOURCES[:1], **drawn, known_words=known)[0].translations for known in (False, True)
    )
    known = [not without_cats.lexicon.beyond(one.text, words_of(SOURCES[0])) for one in free]
    assert 0 < sum(known) < 8
    assert [a == b for a, b in zip(free, found, strict=True)] == known


def test_a_prefix_is_written_as_it_is(without_cats: Translator) -> None:
    [output] = without_cats.outputs(SOURCES[:1], prefix="Chamallow, le")
    assert output.text.startswith("Chamallow, le ") and "chat" not in words_of(output.text)
    assert output.translations[0].log_prob > -100


@pytest.mark.slow
def test_other_engines_write_them_too(without_cats: Translator, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from regard.interop.ctranslate2 import export

    folder = tmp_path / "model"
    shutil.copytree(BUNDLED / DEFAULT, folder)
    without_cats.lexicon.save(folder / FILE)
    export(folder, tmp_path / "ct2")
    other = load(tmp_path / "ct2", engine="ctranslate2", device="cpu")
    assert set(other.lexicon) == set(without_cats.lexicon)
    assert "chat" in words_of(other.translate(SOURCES[0], known_words=False))
    for nbest in (1, 3):
        for source, output in zip(SOURCES, other.outputs(SOURCES, nbest=nbest), strict=True):
            for found in output.translations:
                assert other.lexicon.beyond(found.text, words_of(source)) == []
    [ours], [theirs] = (one.outputs(SOURCES[:1])[0].translations for one in (without_cats, other))
    assert theirs.log_prob == pytest.approx(without_cats.score([(SOURCES[0], theirs.text)])[0], abs=0.01)
    assert ours.score == pytest.approx(theirs.score, abs=0.1)


@pytest.mark.slow
def test_any_word_may_be_asked_for(without_cats: Translator, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED / DEFAULT, folder)
    without_cats.lexicon.save(folder / FILE)
    known, every = (
        process("translate", "--model", folder, *option, SOURCES[0]).out.decode() for option in ((), ("--any-word",))
    )
    assert "chat" not in words_of(known) and "chat" in words_of(every)


def test_a_damaged_lexicon_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED / DEFAULT, folder)
    (folder / FILE).write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"lexicon\.npz: cut short, or not a lexicon that regard wrote"):
        load(folder, device="cpu")

"""Subwords: exact round trips, the way back to words, files, and dropout that depends on its seed alone."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

import regard.text.bpe
from regard.common.mixing import line_keys
from regard.common.ragged import Ragged
from regard.files.whole import write_whole
from regard.text.subwords import SPECIAL, Encoded, Subwords

EN = ["two young , white males are outside near many bushes .", "a little girl climbing into a wooden playhouse ."] * 3
FR = ["deux jeunes hommes blancs sont dehors près de buissons .", "une petite fille grimpe dans une maisonnette ."] * 3
ODD = [
    "",
    " ",
    "   ",
    " leading",
    "trailing ",
    "two  spaces",
    "\ttab\tand\u00a0nbsp\u202f!",
    "e\u0301 combining \u0301",
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 🇫🇷",
    "nul\0inside",
    "</s> <pad> <s> <fr>",
    "line\nbreak\r\n",
    "\x1c\x1d separators \x85 \u2028",
    "İstanbul ǅ ß ﬁ ΟΔΟΣ",
    "<s>",
    "Ġ",
    "\ufeffbom \uffff \U0010ffff",
]
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


@cache
def fixed():
    return Subwords.learn([EN, FR], 380, extra=["<fr>", "<summary>"])


@cache
def lowered():
    return Subwords.learn([EN, FR], 380, lowercase=True)


@pytest.fixture
def subwords():
    return fixed()


@pytest.fixture
def lower():
    return lowered()


# --- learning ---


def test_the_fixed_ids(subwords):
    assert [subwords.token(i) for i in range(4)] == list(SPECIAL) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert subwords.extra == {"<fr>": 4, "<summary>": 5} and subwords.token(5) == "<summary>"
    assert len(subwords) == 380


def test_the_vocabulary_is_joint_and_learned(subwords):
    tokens = {subwords.token(i) for i in range(len(subwords))}
    assert {" a", " fille", " young"} <= tokens


def test_learning_twice_gives_the_same(subwords):
    again = Subwords.learn([EN, FR], 380, extra=["<fr>", "<summary>"])
    assert again.to_json() == subwords.to_json() and again.fingerprint == subwords.fingerprint
    assert Subwords.learn([EN, FR], 379).fingerprint != subwords.fingerprint


def test_nothing_is_learned_from_what_is_no_word():
    """A rule of a million dashes would take hours, and a picture in base64 the vocabulary."""
    plain = Subwords.learn([[*EN, EN[0]]], 400)
    odd = Subwords.learn([[*EN, "-" * 1_000_000, "ab" * 501, f"{EN[0]} {'aB3+/' * 300}"]], 400)
    assert odd.to_json() == plain.to_json()
    long = Subwords.learn([[*EN, EN[0], "ab" * 500]], 400)
    assert long.to_json() != plain.to_json()  # a long word is one


def test_a_long_text_without_spaces_is_learned_from():
    """In Chinese and Japanese signs end what is learned from as a word, and a whole article has no space."""
    said = "東京大学の学生が、世界の研究をする。"
    subwords = Subwords.learn([[said * 100]], 300)
    assert len(subwords) > 260 and len(subwords.encode(said).ids) < len(said)
    rule = Subwords.learn([[said * 100, f"{said}{'=' * 2000}{said}"]], 300)
    assert "==" not in map(rule.token, range(len(rule)))


def test_progress_counts_lines():
    seen = []
    Subwords.learn([["a b"] * 1500, ["c"] * 700], 270, progress=seen.append)
    assert seen == [1000, 2000, 2200]


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        ([EN], {"vocab_size": 259}, ValueError, "at least 260 .* got 259"),
        ([EN], {"extra": ["fr"]}, ValueError, "such as <fr>, got 'fr'"),
        ([EN], {"extra": ["<s>"]}, ValueError, "got '<s>'"),
        ([EN], {"extra": ["<a>", "<a>"]}, ValueError, "got '<a>', '<a>'"),
        ([[]], {}, ValueError, "0 lines, and no text"),
        ([["", "  "]], {}, ValueError, "2 lines, and no text"),
        (EN, {}, TypeError, r"write \[lines\]"),
        ("text", {}, TypeError, "got one string"),
        ([["a\ud800b"]], {}, ValueError, r"lone surrogate, U\+D800, at character 1"),
    ],
)
def test_learning_refuses(texts, options, error, message):
    with pytest.raises(error, match=message):
        Subwords.learn(texts, **options)


# --- encoding and decoding ---


@pytest.mark.parametrize("line", ODD)
def test_odd_lines_come_back(subwords, line):
    assert subwords.decode(subwords.encode(line).ids) == line
    assert subwords.decode(subwords.encode(line, dropout=0.3).ids) == line


@pytest.mark.slow
@given(TEXT)
def test_any_text_comes_back(line):
    subwords = fixed()
    for dropout in (0.0, 0.2):
        encoded = subwords.encode(line, dropout=dropout, seed=3)
        assert subwords.decode(encoded.ids) == line
        assert all(i >= 6 for i in encoded.ids), "a special token was made of text"


@given(st.lists(TEXT, min_size=1, max_size=4), st.booleans())
def test_a_corpus_is_cut_as_its_lines_are(lines, lowercase):
    """Word by word, where words stand one space apart."""
    subwords = lowered() if lowercase else fixed()
    chunks = subwords.chunks()
    texts = [*lines, " ".join(lines), "the cat", *lines]
    rows = Ragged.of([chunks.line(line) for line in texts])
    assert rows.spread(chunks.table()).lists() == [subwords.encode(line).ids for line in texts]
    assert [chunks.count(row) for row in rows.lists()] == [len(subwords.encode(line).ids) for line in texts]


def test_tokenised_text_keeps_its_spaces(subwords):
    for line in EN + FR:
        assert subwords.decode(subwords.encode(line).ids).split(" ") == line.split(" ")


def test_decoding_leaves_out_special_tokens_and_marks_broken_bytes(subwords):
    ids = subwords.encode("a fille").ids
    assert subwords.decode([1, 4, *ids, 2, 0, 0]) == "a fille"
    assert subwords.decode(subwords.encode("é").ids[:-1]) == "�"
    assert subwords.decode([]) == ""


def test_the_first_word_is_a_word_like_others(subwords):
    assert subwords.encode("fille fille").ids == subwords.encode("fille").ids * 2


def test_lone_surrogates_are_refused(subwords):
    for call in (subwords.encode, subwords.chunks().line, lambda line: subwords.encode(line, dropout=0.1)):
        with pytest.raises(ValueError, match=r"U\+DC80, at character 3"):
            call("abc\udc80")
    with pytest.raises(ValueError, match=r"U\+DC80, at character 7"):
        subwords.chunks().line("the abc\udc80")
    with pytest.raises(TypeError, match="got bytes"):
        subwords.encode(b"abc")


def test_a_very_long_line(subwords):
    line = "x" * 60_000 + " fille" * 10_000
    for dropout in (0.0, 0.1):
        encoded = subwords.encode(line, dropout=dropout)
        assert subwords.decode(encoded.ids) == line
        assert encoded.words[0] == 0 and encoded.words[-1] == 10_000


def test_lower_casing_is_an_option(subwords, lower):
    assert subwords.decode(subwords.encode("Une FILLE").ids) == "Une FILLE"
    assert lower.decode(lower.encode("Une FILLE").ids) == "une fille"
    assert lower.encode("Une FILLE").ids == lower.encode("une fille").ids
    assert lower.encode("İ x").offsets[-1] == (2, 3), "İ becomes two characters"


# --- offsets and words ---


def test_offsets_and_words_by_hand(subwords):
    encoded = subwords.encode("a  fille, é")
    texts = [subwords.token(i) for i in encoded.ids]
    assert texts == [" a", " ", " fille", ",", " ", "�", "�"]
    assert encoded.offsets == [(0, 1), (1, 2), (3, 8), (8, 9), (9, 10), (10, 11), (10, 11)]
    assert encoded.words == [0, -1, 1, 1, 2, 2, 2]
    assert encoded.pieces == [0, 1, 2, 3, 4, 4, 4]


@given(TEXT, st.sampled_from([0.0, 0.3]), st.booleans())
def test_offsets_words_and_pieces_agree_with_the_line(line, dropout, lowercase):
    subwords = lowered() if lowercase else fixed()
    ids, offsets, words, pieces = subwords.encode(line, dropout=dropout)
    assert len(ids) == len(offsets) == len(words) == len(pieces)
    assert pieces == sorted(pieces)
    assert all(0 <= a <= b <= len(line) for a, b in offsets)
    # every character that is not white space is covered, by subwords of its own word only
    split = line.split()
    covered = {c: w for (a, b), w in zip(offsets, words, strict=True) for c in range(a, b)}
    word, inside = -1, False
    for c, char in enumerate(line):
        if not char.isspace():
            word += not inside
            assert covered[c] == word
        inside = not char.isspace()
    assert {w for w in words if w >= 0} == set(range(len(split)))


def test_a_batch_is_its_lines(subwords):
    assert subwords.encode_batch(ODD) == [subwords.encode(line) for line in ODD]
    assert subwords.encode_batch([]) == []
    assert subwords.encode("") == Encoded([], [], [], [])


# --- files ---


def test_a_file_comes_back(subwords, lower, tmp_path):
    for one in (subwords, lower):
        one.save(tmp_path / "deep" / "tokenizer.json")
        again = Subwords.load(tmp_path / "deep" / "tokenizer.json")
        assert again.fingerprint == one.fingerprint and again.lowercase == one.lowercase and again.extra == one.extra
        assert again.encode_batch([*EN, "</s> ÀÉ"]) == one.encode_batch([*EN, "</s> ÀÉ"])
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["tokenizer.json"]


def test_the_library_reads_the_file(lower, tmp_path):
    lower.save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("Une FILLE ici").ids == lower.encode("Une FILLE ici").ids
    assert tokenizer.decode(lower.encode("une fille ici").ids) == "une fille ici"


def broken(change):
    def edit(whole):
        change(whole)
        return json.dumps(whole)

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: json.dumps(whole)[:1000], "not a usable tokenizer.json"),
        (lambda whole: "", "not a usable tokenizer.json"),
        (lambda whole: "[]", "not a usable tokenizer.json"),
        (broken(lambda w: w.pop("model")), "not a usable tokenizer.json"),
        (broken(lambda w: w["model"]["merges"].append(["qq", "zz"])), "not a usable tokenizer.json"),
        (broken(lambda w: w.update(normalizer=None)), "made by something else"),
        (broken(lambda w: w.update(normalizer={"type": "Lowercase"})), "made by something else"),
        (broken(lambda w: w.update(model={"type": "WordLevel", "vocab": {}, "unk_token": ""})), "expected a BPE model"),
        (
            broken(lambda w: w["model"]["vocab"].update({"a b": len(w["model"]["vocab"])})),
            "not a usable tokenizer.json",
        ),
        (broken(lambda w: w["model"]["vocab"].update({"道": len(w["model"]["vocab"])})), "not a usable tokenizer.json"),
        (broken(lambda w: w["model"].update(vocab={"<pad>": 0}, merges=[])), "made by something else"),
    ],
)
def test_a_broken_file_is_refused_by_name(subwords, tmp_path, damage, message):
    path = tmp_path / "tokenizer.json"
    path.write_text(damage(json.loads(subwords.to_json())))
    with pytest.raises(ValueError, match=message) as error:
        Subwords.load(path)
    assert str(path) in str(error.value)


def test_tokens_with_a_line_end():
    lines = ["one \ntwo", "three \ntwo", "four\r five", "six\r five"]
    subwords = Subwords.learn([lines], 280)
    expected = [i for i in range(len(subwords)) if {"\n", "\r"} & set(subwords.token(i))]
    assert subwords.breaks == expected and len(expected) > 2


def test_other_bytes_than_utf8_are_refused_by_name(tmp_path):
    (tmp_path / "t.json").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match=r"t\.json: not a usable"):
        Subwords.load(tmp_path / "t.json")
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        Subwords.load(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_whole(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*x'"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["x"]


# --- dropout ---


def test_without_dropout_the_walk_is_plain_bpe(subwords):
    chunks = subwords.chunks()
    lines = Ragged.of([chunks.line(line) for line in [*EN, *FR, *ODD]])
    plain = [subwords.encode(line).ids for line in [*EN, *FR, *ODD]]
    assert lines.spread(chunks.table()).lists() == plain
    keys = line_keys(0, 0, 0, np.arange(lines.rows))
    assert subwords.dropout.draw(lines, chunks.table(), keys, 0.0).lists() == plain


def test_dropout_depends_on_seed_epoch_and_number_alone(subwords):
    lines = EN + FR
    drawn = subwords.encode_batch(lines, dropout=0.3, seed=5, epoch=2)
    again = [subwords.encode(line, dropout=0.3, seed=5, epoch=2, number=i) for i, line in enumerate(lines)]
    assert drawn == again
    assert drawn != subwords.encode_batch(lines, dropout=0.3, seed=6, epoch=2)
    assert drawn != subwords.encode_batch(lines, dropout=0.3, seed=5, epoch=3)
    assert drawn[0].ids != drawn[2].ids, "the same line at another number"


def test_dropout_is_the_same_in_another_process_and_with_a_fresh_graph(subwords, monkeypatch):
    ids = subwords.encode(EN[0], dropout=0.5, seed=1).ids
    code = f"from regard.text import Subwords; s = Subwords.learn([{EN}, {FR}], 380, extra=['<fr>', '<summary>']);"
    code += f"print(s.encode({EN[0]!r}, dropout=0.5, seed=1).ids)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ids
    monkeypatch.setattr(regard.text.bpe, "MAX_NODES", 3)
    monkeypatch.setattr(regard.text.bpe, "_BLOCK", 2)
    assert subwords.encode(EN[0], dropout=0.5, seed=1).ids == ids


def test_the_same_word_is_cut_in_different_ways_within_a_line(subwords):
    drawn = subwords.encode("fille " * 20, dropout=0.3)
    cuts = {tuple(i for i, w in zip(drawn.ids, drawn.words, strict=True) if w == word) for word in range(20)}
    assert len(cuts) > 3


def test_long_stretches_are_drawn_in_parts(subwords):
    chunks = subwords.chunks()
    chunks.line("x" * 5000 + "日本語" * 500 + " fille")
    sizes = [sum(len(subwords._bytes[i]) for i in row) for row in chunks.table().lists()]
    assert max(sizes) <= regard.text.bpe.CHUNK_BYTES


def test_dropout_draws_what_the_library_draws(subwords):
    """Shares of each segmentation of a word, against the library's own (unseeded) BPE-dropout."""
    draws, p, word = 8000, 0.25, "fille"
    ours = Counter(tuple(e.ids) for e in subwords.encode_batch([word] * draws, dropout=p, seed=1))
    library = Tokenizer.from_str(subwords.to_json())
    model = json.loads(subwords.to_json())["model"]
    library.model = models.BPE(model["vocab"], [tuple(m) for m in model["merges"]], dropout=p)
    theirs = Counter(tuple(library.encode(word).ids) for _ in range(draws))
    assert len(ours) > 5
    for cut in ours | theirs:
        share = (ours[cut] + theirs[cut]) / 2 / draws
        spread = 5 * (2 * share * (1 - share) / draws) ** 0.5 + 1e-3
        assert abs(ours[cut] - theirs[cut]) / draws < spread, cut


def test_dropout_refuses(subwords):
    for p in (1.0, -0.1):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            subwords.encode("a", dropout=p)

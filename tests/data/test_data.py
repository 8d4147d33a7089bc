"""Readers that name what is wrong, a corpus that keeps every subword, batches that are the same from anywhere."""

import contextlib
import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard.data.corpus
from regard.data import Corpus, Files, JsonLines, Limits, Pairs, Report, Tsv, batches, pad, prefetch, read, texts
from regard.text import BOS, EOS, PAD, Subwords

WORDS = ["the", "cat", "dog", "sat", "on", "mat", "le", "chat", "chien", "tapis", "sur", "assis", "été", "🐈"]
MULTI30K = Path(__file__).parents[3] / "shared/data/multi30k/tok"


@cache
def subwords():
    return Subwords.learn([[" ".join(WORDS)] * 3], 300)


def some_pairs(count, seed=0, longest=12):
    draw = np.random.default_rng(seed)
    return [tuple(" ".join(draw.choice(WORDS, draw.integers(1, longest + 1))) for _ in range(2)) for _ in range(count)]


def corpus(count=100, **options):
    return Corpus.build([Pairs(some_pairs(count))], subwords(), **options)


# --- readers ---

PAIRS = [("a cat", "un chat"), ("é 🐈", "\u2028x\u0085y"), ("nul\0", "tab")]


def plain(data):
    return data


@pytest.mark.parametrize("pack", [plain, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "open"])
def test_every_format_gives_the_same_pairs(tmp_path, pack, end, last):
    def write(name, lines):
        text = end.join(lines) + (end if last else "")
        (tmp_path / name).write_bytes(pack(text.encode()))
        return tmp_path / name

    two = Files(write("a.en", [s for s, _ in PAIRS]), write("a.fr", [t for _, t in PAIRS]))
    tsv = Tsv(write("a.tsv", [f"x\t{t}\t{s}\ty" for s, t in PAIRS]), columns=(2, 1), width=4)
    objects = [json.dumps({"en": s, "fr": t, "id": 3}, ensure_ascii=i % 2 == 0) for i, (s, t) in enumerate(PAIRS)]
    lines = JsonLines(write("a.jsonl", objects), keys=("en", "fr"))
    for reader in (two, tsv, lines):
        assert list(read(reader)) == PAIRS
    assert list(texts([two])) == [text for pair in PAIRS for text in pair]


def test_a_byte_order_mark_is_left_out(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbfa\tb\n\xef\xbb\xbfc\td\n")
    assert list(read(Tsv(tmp_path / "a.tsv"))) == [("a", "b"), ("\ufeffc", "d")]


BAD = {
    "empty.tsv": (Tsv, b"a\tb\na\t \nc\td\n", r"empty\.tsv:2: empty side \(target\)"),
    "columns.tsv": (Tsv, b"a\tb\na\tb\tc\n", r"columns\.tsv:2: wrong number of columns \(expected 2, got 3\)"),
    "blank.tsv": (Tsv, b"\na\tb\n", r"blank\.tsv:1: wrong number of columns \(expected 2, got 1\)"),
    "latin.tsv": (Tsv, b"a\tb\nc\t\xe9t\xe9\n", r"latin\.tsv:2: not UTF-8 \(byte 0xe9 at 2\)"),
    "surrogate.tsv": (Tsv, b"a\t\xed\xa0\x80\n", r"surrogate\.tsv:1: not UTF-8"),
    "bad.jsonl": (JsonLines, b'{"source": "a"', r"bad\.jsonl:1: not JSON"),
    "deep.jsonl": (JsonLines, b"[" * 100_000, r"deep\.jsonl:1: not JSON"),
    "list.jsonl": (JsonLines, b'["a", "b"]', r"list\.jsonl:1: not a JSON object \(got a list\)"),
    "key.jsonl": (JsonLines, b'{"source": "a"}', r"expected a string under 'target', got no such key"),
    "number.jsonl": (JsonLines, b'{"source": "a", "target": 1}', r"under 'target', got a int"),
    "half.jsonl": (JsonLines, b'{"source": "\\ud800", "target": "b"}', r"half\.jsonl:1: not Unicode text"),
    "cut.tsv.gz": (
        Tsv,
        gzip.compress(b"a\tb\n" * 999)[:-9],
        r"cut\.tsv\.gz:\d+: the gzip file is cut short or damaged",
    ),
    "none.tsv": (Tsv, None, r"none\.tsv: there is no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, name):
    kind, data, message = BAD[name]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        list(read(kind(tmp_path / name)))


def test_bad_lines_are_skipped_counted_and_the_first_few_shown(tmp_path):
    en, fr = tmp_path / "a.en", tmp_path / "a.fr"
    en.write_bytes(b"one\ntwo\n\nfour\xff\nfive\n" + b"\n" * 10)
    fr.write_bytes(b"un\n \ntrois\nquatre\ncinq\n" + b"x\n" * 10)
    report = Report("a")
    assert list(read(Files(en, fr), bad="skip", report=report)) == [("one", "un"), ("five", "cinq")]
    assert report.read == 15 and report.kept == 2
    assert report.bad == {"empty side": 12, "not UTF-8": 1}
    assert str(report).splitlines()[:4] == [
        "a: 15 lines read, 2 pairs kept; 12 empty side, 1 not UTF-8",
        f"  {fr}:2: empty side (target)",
        f"  {en}:3: empty side (source)",
        f"  {en}:4: not UTF-8 (byte 0xff at 4)",
    ]
    assert str(report).endswith("and 8 more")


@pytest.mark.parametrize("bad", ["raise", "skip"])
def test_different_line_counts_are_always_refused(tmp_path, bad):
    (tmp_path / "a.en").write_text("a\nb\nc\n")
    (tmp_path / "a.fr").write_text("a\n" * 1002)
    with pytest.raises(ValueError, match=r"a\.en has 3 lines, .*a\.fr 1,002: expected the same number"):
        list(read(Files(tmp_path / "a.en", tmp_path / "a.fr"), bad=bad))


def test_wrong_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'raise' or 'skip', got 'ignore'"):
        list(read(Pairs(PAIRS), bad="ignore"))
    for columns, width in (((1, 1), None), ((-1, 0), None), ((0, 2), 2)):
        with pytest.raises(ValueError, match="two different columns"):
            Tsv("x", columns, width)


@given(st.binary(max_size=200), st.sampled_from([Tsv, JsonLines]), st.booleans())
def test_no_bytes_break_a_reader(tmp_path_factory, data, kind, pack):
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(gzip.compress(data)[: len(data)] if pack else data)
    report = Report("fuzz")
    with contextlib.suppress(DamagedGzip):
        with named_gzip_errors():
            pairs = list(read(kind(path), bad="skip", report=report))
        assert len(pairs) + report.bad.total() == report.read
        for pair in pairs:
            assert all(subwords().decode(subwords().encode(text).ids) == text for text in pair)


class DamagedGzip(Exception):
    pass


@contextlib.contextmanager
def named_gzip_errors():
    """Lets through, as DamagedGzip, the one error that random bytes may cause."""
    try:
        yield
    except ValueError as error:
        if "fuzz:" in str(error) and "gzip" in str(error):
            raise DamagedGzip from error
        raise


@given(st.lists(st.binary(max_size=6).filter(lambda b: b"\n" not in b), max_size=6), st.randoms())
def test_broken_lines_do_not_shift_the_others(tmp_path_factory, junk, random):
    """Good lines among junk: each is still paired with its own partner."""
    base = tmp_path_factory.getbasetemp()
    lines = [(b"good %d" % i, b"bon %d" % i) for i in range(5)] + [(j, b"bon") for j in junk]
    random.shuffle(lines)
    lines.insert(0, (b"first", b"premier"))  # or junk might look like a gzip file
    for k, name in enumerate(("f.en", "f.fr")):
        (base / name).write_bytes(b"".join(pair[k] + b"\n" for pair in lines))
    pairs = dict(read(Files(base / "f.en", base / "f.fr"), bad="skip"))
    assert all(pairs[f"good {i}"] == f"bon {i}" for i in range(5))


# --- corpus ---


def test_a_corpus_keeps_every_subword():
    pairs = [*some_pairs(50), ("odd \0 " + "x" * 100, "日本語" * 30)]
    built = Corpus.build([Pairs(pairs)], subwords(), limits=Limits(None))
    assert len(built) == 51 and [built.text(i) for i in range(51)] == pairs
    for side in (0, 1):
        encoded = [subwords().encode(pair[side]).ids for pair in pairs]
        assert built.take(side, np.arange(51)).lists() == encoded
        assert built.lengths[side].tolist() == [len(ids) for ids in encoded]


def test_lengths_are_right_across_blocks(monkeypatch):
    built = corpus(500)
    assert built.lengths[0].tolist() == built.take(0, np.arange(500)).lengths.tolist()
    big = built.sides[0].take(np.arange(70_000) % 500)
    many = Corpus(built.subwords, (big, big), built.table, [], [])
    assert np.array_equal(many.lengths[1], built.lengths[0][np.arange(70_000) % 500])


def test_storage_is_compact():
    built = corpus(200)
    assert built.sides[0].values.dtype == np.uint16
    assert built.sides[0].values.nbytes < sum(len(s.encode()) for s, _ in some_pairs(200))


def test_limits_leave_out_and_count():
    pairs = [("the", "le"), ("the " * 9, "le " * 9), ("the " * 4, "le"), ("cat", "cat " * 2)]
    built = Corpus.build([Pairs(pairs)], subwords(), limits=Limits(max_tokens=9, max_ratio=2.0))
    assert [built.text(i) for i in range(len(built))] == [("the", "le")]
    assert built.reports[0].left_out.total() == 3 and built.reports[0].kept == 1
    assert "1 pairs kept" in str(built.reports[0]) and "longer than 9 subwords" in str(built.reports[0])


def test_an_empty_corpus_is_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("a\n")
    for readers, message in (([Tsv(tmp_path / "a.tsv")], r"a\.tsv:1: wrong number"), ([], "no files were given")):
        with pytest.raises(ValueError, match=rf"(?s)the corpus is empty: .*{message}"):
            Corpus.build(readers, subwords(), bad="skip")
    with pytest.raises(ValueError, match=r"p: expected a weight of 0 or more, got -1"):
        Corpus.build([Pairs(PAIRS, "p", weight=-1)], subwords())


def test_progress_counts_pairs():
    seen = []
    corpus(1500, progress=seen.append)
    assert seen == [1000, 1500]


def test_the_cache_is_used_mapped_and_renewed(tmp_path, monkeypatch):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{s}\t{t}\n" for s, t in some_pairs(40)) + "bad\n")
    options = {"cache": tmp_path / "cache", "bad": "skip"}
    first = Corpus.build([Tsv(path, weight=2.0)], subwords(), **options)
    assert isinstance(first.sides[0].values, np.memmap)

    calls = []
    real = regard.data.corpus._tokenise
    monkeypatch.setattr(regard.data.corpus, "_tokenise", lambda *a: calls.append(1) or real(*a))
    again = Corpus.build([Tsv(path, weight=2.0)], subwords(), **options)
    assert not calls
    assert [again.text(i) for i in range(40)] == some_pairs(40) and again.parts == first.parts
    assert again.reports == first.reports and str(again.reports[0]) == str(first.reports[0])
    assert sum(batch.pairs for batch in batches(again, tokens=200)) == 80

    for change in ("limits", "subwords", "file", "damage"):
        calls.clear()
        if change == "damage":
            for file in (tmp_path / "cache").glob("*/source_values.npy"):
                file.write_bytes(file.read_bytes()[:-3])
        if change == "file":
            path.write_text(path.read_text() + "the\tle\n")
        vocabulary = Subwords.learn([WORDS], 280) if change == "subwords" else subwords()
        limits = Limits(50) if change == "limits" else Limits()
        built = Corpus.build([Tsv(path, weight=2.0)], vocabulary, limits=limits, **options)
        assert calls, change
        assert built.text(0) == some_pairs(1)[0]
    assert not list((tmp_path / "cache").glob(".*"))


# --- batches ---


def same(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("source", "target_in", "target_out"))


@given(st.integers(1, 60), st.integers(60, 400), st.integers(0, 9), st.integers(1, 8), st.sampled_from([0.0, 0.2]))
def test_a_batch_is_what_it_says(count, tokens, seed, multiple, dropout):
    built = corpus(count)
    tokens += 40 * multiple if dropout == 0 else 400
    epoch = batches(built, tokens=tokens, seed=seed, multiple=multiple, bucket=3, dropout=dropout)
    seen = Counter()
    for batch in epoch:
        assert batch.source.numel() + batch.target_in.numel() <= tokens
        assert batch.source.shape[1] % multiple == batch.target_in.shape[1] % multiple == 0
        assert batch.source.dtype == batch.target_in.dtype == batch.target_out.dtype == torch.int64
        assert batch.pairs == len(batch.rows) and batch.tokens == (batch.target_out != PAD).sum()
        seen.update(batch.rows.tolist())
        for n, row in enumerate(batch.rows.tolist()):
            source, target = built.text(row)
            s, t = int(batch.source_lengths[n]), int(batch.target_lengths[n])
            assert subwords().decode(batch.source[n, : s - 1].tolist()) == source
            assert subwords().decode(batch.target_out[n, : t - 1].tolist()) == target
            assert batch.source[n, s - 1] == batch.target_out[n, t - 1] == EOS and batch.target_in[n, 0] == BOS
            assert torch.equal(batch.target_in[n, 1:t], batch.target_out[n, : t - 1])
            assert (batch.source[n, s:] == PAD).all() and (batch.target_in[n, t:] == PAD).all()
            assert (batch.target_out[n, t:] == PAD).all()
    assert seen == Counter(range(count)), "each pair once"


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_epoch_depends_on_seed_and_epoch_alone(dropout):
    options = {"tokens": 150, "dropout": dropout}
    one = batches(corpus(), seed=3, epoch=1, **options)
    assert all(map(same, one, batches(corpus(), seed=3, epoch=1, **options)))
    assert all(map(same, one[7:], [one[k] for k in range(7, len(one))])), "resumed at batch 7"
    assert len(one[7:]) == len(one) - 7 and same(one[-1], one[len(one) - 1])
    for other in (batches(corpus(), seed=3, epoch=2, **options), batches(corpus(), seed=4, epoch=1, **options)):
        assert [b.rows.tolist() for b in one] != [b.rows.tolist() for b in other]
    with pytest.raises(IndexError):
        one[len(one)]


def test_dropout_changes_the_subwords_and_not_the_text():
    built = corpus()
    first, second = (
        {
            r: s
            for b in batches(built, tokens=900, epoch=e, dropout=0.2)
            for r, s in zip(b.rows.tolist(), b.source.tolist(), strict=True)
        }
        for e in (0, 1)
    )
    assert first != second
    assert all(subwords().decode(first[r]) == subwords().decode(second[r]) == built.text(r)[0] for r in first)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_share_the_batches_of_one_process(world, dropout):
    options = {"tokens": 120, "seed": 1, "dropout": dropout}
    whole = batches(corpus(60), **options)
    ranks = [batches(corpus(60), rank=r, world=world, **options) for r in range(world)]
    assert {len(r) for r in ranks} == {len(whole)}
    idle = 0
    for batch, *shares in zip(whole, *ranks, strict=True):
        rows = []
        for share in shares:
            assert (share.pairs, share.tokens) == (batch.pairs, batch.tokens)
            assert share.source.shape[1] == batch.source.shape[1]
            if (share.target_out == PAD).all():
                idle += 1
                assert len(share.source) == 1 and (share.target_in[0, 0] == BOS)
            else:
                rows += share.rows.tolist()
                place = [batch.rows.tolist().index(r) for r in share.rows.tolist()]
                assert torch.equal(share.source, batch.source[place])
                assert torch.equal(share.target_out, batch.target_out[place])
        assert sorted(rows) == sorted(batch.rows.tolist())
        assert sum(int((s.target_out != PAD).sum()) for s in shares) == batch.tokens
    assert world < 5 or idle


def test_weights_are_times_per_epoch():
    parts = [Pairs(some_pairs(40), "a", 1.0), Pairs(some_pairs(20, 1), "b", 2.5), Pairs(some_pairs(9, 2), "c", 0.0)]
    built = Corpus.build(parts, subwords())
    drawn = []
    for epoch in (0, 1):
        seen = Counter(r for b in batches(built, tokens=300, epoch=epoch) for r in b.rows.tolist())
        assert all(seen[i] == 1 for i in range(40)) and not any(seen[i] for i in range(60, 69))
        assert Counter(seen[i] for i in range(40, 60)) == {2: 10, 3: 10}
        drawn.append({i for i in range(40, 60) if seen[i] == 3})
    assert drawn[0] != drawn[1]
    copies = [
        b.source[n].tolist()
        for b in batches(built, tokens=300, dropout=0.5)
        for n, r in enumerate(b.rows.tolist())
        if r == 45
    ]
    assert len({tuple(x for x in c if x) for c in copies}) > 1, "copies are drawn each for itself"
    with pytest.raises(ValueError, match="an epoch would have no pairs"):
        batches(Corpus.build([Pairs(PAIRS, weight=0.0)], subwords()), tokens=99)


def test_without_shuffling_every_pair_comes_once_and_always_alike():
    built = Corpus.build([Pairs(some_pairs(40), weight=2.5)], subwords())
    one, other = ([b.rows.tolist() for b in batches(built, tokens=200, shuffle=False, seed=s)] for s in (0, 1))
    assert one == other and sorted(row for rows in one for row in rows) == list(range(40))


def test_padding_is_little_in_a_large_corpus():
    built = corpus(3000)
    used = sum(int((b.source != PAD).sum() + (b.target_in != PAD).sum()) for b in batches(built, tokens=1000))
    total = sum(b.source.numel() + b.target_in.numel() for b in batches(built, tokens=1000))
    by_target = used / padded_by_target_alone(built, 1000)
    assert used / total > 0.9 > by_target
    assert total / len(batches(built, tokens=1000)) > 850, "batches are nearly full"


def padded_by_target_alone(built, tokens):
    s, t = (length + 1 for length in built.lengths)
    total, batch = 0, []
    for i in np.lexsort((s, t)):
        if (len(batch) + 1) * (s[[*batch, i]].max() + t[[*batch, i]].max()) > tokens:
            total += len(batch) * (s[batch].max() + t[batch].max())
            batch = []
        batch.append(i)
    return total + len(batch) * (s[batch].max() + t[batch].max())


def test_batches_are_not_sorted_overall():
    widths = [b.target_in.shape[1] for b in batches(corpus(1000), tokens=300)]
    assert widths != sorted(widths) and abs(np.corrcoef(widths, range(len(widths)))[0, 1]) < 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 5}, r"a batch of 5 cannot hold pair \d+, which takes \d+ \+ \d+; raise tokens"),
        ({"tokens": 500, "rank": 2, "world": 2}, "rank 2 of 2"),
        ({"tokens": 500, "multiple": 0}, "at least 1, got 0 and 100"),
        ({"tokens": 500, "dropout": 1.0}, "below 1"),
    ],
)
def test_batches_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        batches(corpus(), **options)


def test_moving_a_batch():
    batch = batches(corpus(), tokens=300)[0]
    moved = batch.to("meta")
    assert moved.source.device.type == moved.rows.device.type == "meta" and moved.tokens == batch.tokens


def test_pad():
    source, lengths = pad([[5, 6, 7], [], [8]], multiple=8)
    assert source.shape == (3, 8) and lengths.tolist() == [4, 1, 2]
    assert source[0, :4].tolist() == [5, 6, 7, EOS] and source[1].tolist() == [EOS] + [PAD] * 7
    assert pad([])[0].shape == (0, 1)


def test_prefetch_gives_the_same_and_raises_what_went_wrong():
    assert list(prefetch(range(100), depth=2)) == list(range(100))

    def failing():
        yield 1
        raise OSError("disk")

    ahead = prefetch(failing())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="disk"):
        next(ahead)
    endless = prefetch(iter(int, 1))
    assert next(endless) == 0
    endless.close()  # ends the thread


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="the Multi30k files are not here")
def test_multi30k(tmp_path):
    files = Files(MULTI30K / "val.lc.norm.tok.en.gz", MULTI30K / "val.lc.norm.tok.fr.gz")
    built = Corpus.build([files], Subwords.learn([texts([files])], 3000))
    assert len(built) == 1014
    assert [built.text(i) for i in range(1014)] == list(read(files))

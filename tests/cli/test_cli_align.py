"""regard align: word alignments of pairs, by one model or by two of both directions."""

import re

import pytest
from commands import GOLD, SOURCES, TARGETS

from regard import align
from regard.cli.align import METHODS


def test_pairs_are_aligned(run, model, files):
    out = files / "links"
    done = run("align", "-m", model, files / "test.en", files / "test.fr", "--gold", files / "test.gold", "-o", out)
    rate = float(re.search(r"AER ([\d.]+) %", done.err)[1])
    assert done.code == 0 and rate < 15
    found = align.read_pharaoh(out)
    right = [align.parse(line) for line in GOLD]
    assert 100 * align.quality([a.sure for a in found], right).aer == pytest.approx(rate, abs=0.01)


def test_mutual_links_are_fewer_and_surer(run, model, files):
    def found(*more):
        done = run("align", "-m", model, files / "test.en", files / "test.fr", "--gold", files / "test.gold", *more)
        assert done.code == 0, done.err
        return [align.parse(line).sure for line in done.lines], float(re.search(r"precision ([\d.]+) %", done.err)[1])

    each, mutual, sure = found(), found("--mutual"), found("--mutual", "--threshold", "0.7")
    assert all(a >= b >= c for a, b, c in zip(each[0], mutual[0], sure[0], strict=True))
    assert each[1] < mutual[1] <= sure[1]
    assert sum(map(len, sure[0])) < sum(map(len, mutual[0])) < sum(map(len, each[0]))
    assert sum(map(len, found("--threshold", "0.01")[0])) > sum(map(len, each[0]))


@pytest.mark.slow
def test_both_directions_are_better_than_one(run, model, reverse, files):
    def rate(*more):
        done = run("align", "-m", model, files / "test.en", files / "test.fr", "--gold", files / "test.gold", *more)
        return float(re.search(r"AER ([\d.]+) %", done.err)[1])

    one = rate()
    rates = {how: rate("--reverse", reverse, "--symmetrize", how) for how in METHODS}
    assert rates["grow-diag-final-and"] < one and len({one, *rates.values()}) == 4


def test_the_other_direction_is_turned_round(run, model, reverse):
    done = run(
        *("align", "-m", model, "--reverse", reverse, "--symmetrize", "union", "-"),
        stdin=b"the dog sees a cat . ||| le chien",
    )
    found = align.parse(done.lines[0]).sure
    assert {s for s, _ in found} == set(range(6)) and {t for _, t in found} == {0, 1}


def test_the_row_and_layer_that_are_read_matter(run, model, files):
    def links(*more):
        return run("align", "-m", model, files / "test.en", files / "test.fr", *more).out

    assert len({links(), links("--shift"), links("--layer", 0), links("--head", 1)}) == 4
    assert links() == links("--layer", 1, "--no-shift"), "the folder's own [align]"
    assert links("--layer", "mean") not in (links("--layer", 0), links("--layer", 1))
    assert links("--layer", "mean", "--head", "mean") == links("--layer", "mean")
    done = run("align", "-m", model, files / "test.en", files / "test.fr", "--layer", "all")
    assert done.code == 2 and "layer: expected a number from 0, or mean, got 'all'" in done.err


def test_pairs_of_one_file(run, model, tmp_path):
    path = tmp_path / "pairs"
    path.write_text(f"{SOURCES[0]} ||| {TARGETS[0]}\n{SOURCES[1]}\t{TARGETS[1]}\nno target\n")
    done = run("align", "-m", model, path)
    assert done.code == 0 and len(done.lines) == 3 and done.lines[2] == ""
    assert all(re.fullmatch(r"\d+-\d+( \d+-\d+)*", line) for line in done.lines[:2])
    assert f"{path}:3: expected a source and a target" in done.err
    assert run("align", "-m", model, "-", stdin=path.read_bytes()).out == done.out


def test_gold_links_may_count_from_one(run, model, files):
    shifted = [" ".join(f"{int(s) + 1}-{int(t) + 1}" for s, t in re.findall(r"(\d+)-(\d+)", line)) for line in GOLD]
    (files / "one").write_text("\n".join(shifted) + "\n")
    both = [files / "test.en", files / "test.fr"]
    assert (
        run("align", "-m", model, *both, "--gold", files / "one", "--gold-base", 1).err
        == run("align", "-m", model, *both, "--gold", files / "test.gold").err
    )


def test_an_empty_side_is_reported(run, model):
    done = run("align", "-m", model, "-", stdin=b"the dog ||| \n")
    assert (done.code, done.lines) == (0, [""]) and "the target is empty" in done.err


def test_without_a_model_pairs_are_aligned_by_counting(run, files):
    both = (files / "test.en", files / "test.fr")
    done = run("align", "--statistical", *both, "--gold", files / "test.gold")
    assert done.code == 0 and len(done.out.splitlines()) == len(SOURCES)
    assert "word alignment: 5 of 5" in done.err
    assert float(re.search(r"AER ([\d.]+) %", done.err)[1]) < 2
    done = run("align", "--statistical", "-", stdin=b"the dog ||| le chien\nthe\n")
    assert done.out.splitlines() == [b"0-0 1-1", b""] and "standard input:2: expected a source and a target" in done.err
    done = run("align", "--statistical", *both, "--show")
    assert done.code == 2 and "leave out --show" in done.err


def test_counting_has_no_layers_and_heads(run, files):
    done = run("align", "--statistical", files / "test.en", files / "test.fr", "--layer", 1)
    assert done.code == 2 and "--statistical needs no model: leave out --layer" in done.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--symmetrize", "union"], "--symmetrize: makes one of two directions; give --reverse"),
        (["--gold-base", 1], "--gold-base: says how --gold counts"),
        (
            ["--statistical", "--engine", "torch", "--batch-tokens", 9],
            "needs no model: leave out --batch-tokens, --engine",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(run, files, options, told):
    done = run("align", files / "test.en", files / "test.fr", *options)
    assert done.code == 2 and told in done.err and not done.out

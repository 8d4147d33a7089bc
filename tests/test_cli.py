"""The command line, driven as people drive it, on a small model that is trained here."""

import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sacrebleu
import torch
import toy

import regard
from regard import align, cli, decode
from regard.evaluate import compare, evaluate
from regard.translator import Translator

ROOT = Path(regard.__file__).parent.parent
TEST = toy.pairs(60, seed=1)
SOURCES, TARGETS, GOLD = (list(side) for side in zip(*TEST, strict=True))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "model"
    toy.train(path)
    return path


@pytest.fixture(scope="session")
def reverse(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "reverse"
    toy.train(path, reverse=True)
    return path


@pytest.fixture(scope="session")
def translator(model):
    return regard.load(model, device="cpu")


class Done:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self):
        return self.out.decode().split("\n")[:-1]


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Runs a command in this process; its standard input is bytes."""

    def call(*arguments, stdin=b""):
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main([str(a) for a in arguments])
        out, err = capfdbinary.readouterr()
        return Done(code, out, err.decode())

    return call


def process(*arguments, stdin=b"", module="regard", cwd=None):
    """Runs a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


@pytest.fixture
def files(tmp_path):
    """test.en, test.fr and test.gold."""
    for name, lines in (("test.en", SOURCES), ("test.fr", TARGETS), ("test.gold", GOLD)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


# --- translate: what goes in ---


def test_a_sentence_as_an_argument(run, model):
    done = run("translate", "--model", model, SOURCES[0])
    assert (done.code, done.lines, done.err) == (0, [TARGETS[0]], "")


def test_several_arguments_are_several_lines(run, model):
    assert run("translate", "-m", model, *SOURCES[:3]).lines == TARGETS[:3]


def test_a_file_keeps_its_order(run, model, files):
    done = run("translate", "-m", model, "--input", files / "test.en", "--batch-tokens", 50)
    assert done.lines == TARGETS


def test_windows_change_nothing(run, model, files):
    assert run("translate", "-m", model, "-i", files / "test.en", "--window", 7).lines == TARGETS


def test_several_files_one_after_another(run, model, files):
    done = run("translate", "-m", model, "-i", files / "test.en", "-i", files / "test.en")
    assert done.lines == TARGETS * 2


def test_standard_input(run, model):
    text = "\n".join(SOURCES[:5]).encode()  # no line end at the end
    assert run("translate", "-m", model, stdin=text).lines == TARGETS[:5]
    assert run("translate", "-m", model, "-i", "-", stdin=text).lines == TARGETS[:5]


def test_gzip_byte_order_mark_and_windows_line_ends(run, model, tmp_path):
    import gzip

    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + "\r\n".join(SOURCES[:3]).encode()))
    assert run("translate", "-m", model, "-i", path).lines == TARGETS[:3]


def test_nothing_in_nothing_out(run, model):
    done = run("translate", "-m", model, stdin=b"")
    assert (done.code, done.out, done.err) == (0, b"", "")


def test_the_name_of_a_file_as_text_gets_a_hint(run, model, files):
    done = run("translate", "-m", model, files / "test.en")
    assert done.code == 0 and "write --input" in done.err


@pytest.mark.parametrize("module", ["regard", "regard.__main__"])
def test_a_real_process_through_pipes(model, module):
    done = process("translate", "-m", model, stdin="\n".join(SOURCES[:3]).encode(), module=module)
    assert (done.code, done.lines, done.err) == (0, TARGETS[:3], "")


# --- translate: lines that are bad ---


def test_bad_lines_are_reported_and_stay_empty(run, model, tmp_path):
    path = tmp_path / "mixed"
    good = [line.encode() for line in SOURCES[:3]]
    path.write_bytes(b"\n".join([good[0], b"caf\xe9", b"", good[1], b"word " * 10_000, b"\x00 the", good[2]]) + b"\n")
    done = run("translate", "-m", model, "-i", path)
    assert done.code == 0 and len(done.lines) == 7
    assert [done.lines[i] for i in (0, 3, 6)] == TARGETS[:3]
    assert done.lines[1] == done.lines[2] == done.lines[4] == ""
    assert f"{path}:2: not UTF-8 (byte 0xe9 at 3)" in done.err
    assert re.search(rf"{path}:5: \d+,\d+ subwords without a sentence end; the most is 256", done.err)
    assert "2 of 7 lines could not be used" in done.err
    assert len(done.err.splitlines()) == 3


def test_strict_stops_and_writes_nothing(run, model, tmp_path):
    out = tmp_path / "out"
    out.write_text("old")
    done = run("translate", "-m", model, "--strict", "-o", out, stdin=b"the\n\xff\n")
    assert done.code == 2 and "standard input:2: not UTF-8" in done.err
    assert out.read_text() == "old" and os.listdir(tmp_path) == ["out"]


def test_an_argument_that_is_not_utf_8(model):
    done = process("translate", "-m", model, os.fsdecode(b"caf\xe9"))
    assert done.code == 0 and done.lines == [""] and "lone surrogate" in done.err


def test_a_long_line_is_cut_after_sentence_ends(run, model):
    source, target = " ".join(SOURCES[:40]), " ".join(TARGETS[:40])
    assert len(source) > 1000
    done = run("translate", "-m", model, "--alignment", source)
    text, links = done.lines[0].split(" ||| ")
    assert text == target
    assert "translated as 40 sentences" in done.err
    found = align.parse(links).sure
    assert {t for _, t in found} == set(range(len(target.split()))), "words are counted over the whole line"
    assert sum(abs(s - t) <= 1 for s, t in found) > 0.8 * len(found)


# --- translate: searches ---


def test_nbest_lists(run, model, translator):
    done = run("translate", "-m", model, "--nbest", 3, *SOURCES[:2])
    rows = [line.split(" ||| ") for line in done.lines]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3
    assert rows[0][1] == TARGETS[0] and len({row[1] for row in rows[:3]}) == 3
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    expected = translator.outputs(SOURCES[:1], nbest=3)[0].translations
    assert scores[0] == pytest.approx(expected[0].score, abs=1e-3)


def test_sampling_is_repeated_by_its_seed(run, model):
    draw = ["translate", "-m", model, "--sample", "--temperature", 3, *SOURCES[:4]]
    one, two, other = (run(*draw, "--seed", seed).out for seed in (1, 1, 2))
    assert one == two != other


def test_sampling_among_one_is_greedy(run, model):
    done = run("translate", "-m", model, "--sample", "--top-k", 1, *SOURCES[:4])
    assert done.lines == run("translate", "-m", model, "--beam", 1, *SOURCES[:4]).lines == TARGETS[:4]


@pytest.mark.parametrize("prefix", ["un oiseau", "le", "Étrange", "un ois"])
def test_a_prefix_is_kept(run, model, prefix):
    done = run("translate", "-m", model, "--prefix", prefix, SOURCES[0])
    assert done.lines[0].startswith(prefix) and len(done.lines[0]) > len(prefix)


def test_lengths(run, model, translator):
    count = len(translator.subwords.encode(TARGETS[0]).ids)
    short = run("translate", "-m", model, "--max-length", 3, SOURCES[0]).lines[0]
    assert 0 < len(translator.subwords.encode(short).ids) <= 3 and TARGETS[0].startswith(short)
    long = run("translate", "-m", model, "--min-length", count + 2, SOURCES[0]).lines[0]
    assert len(translator.subwords.encode(long).ids) >= count + 1


def test_length_penalty_and_beam_reach_the_search(model, monkeypatch, run):
    seen = {}

    def spy(*_, **options):
        seen.update(options)
        return beam(*_, **options)

    beam = decode.beam
    monkeypatch.setattr(decode, "beam", spy)
    run("translate", "-m", model, "--beam", 7, "--length-penalty", 0.3, SOURCES[0])
    assert (seen["beams"], seen["alpha"], seen["best"]) == (7, 0.3, 1)


def test_eight_bits_say_the_same(run, model, files, monkeypatch):
    from regard.nn import int8

    monkeypatch.setattr(int8.to_int8, "__kwdefaults__", {"at_least": 0})  # this model is small
    done = run("translate", "-m", model, "-i", files / "test.en", "--int8")
    assert sum(a == b for a, b in zip(done.lines, TARGETS, strict=True)) > 55
    fine = run("translate", "-m", model, "-i", files / "test.en", "--score", files / "test.fr").out
    coarse = run("translate", "-m", model, "-i", files / "test.en", "--score", files / "test.fr", "--int8").out
    assert coarse != fine


def test_scores_of_given_pairs(run, model, translator, files):
    done = run("translate", "-m", model, "-i", files / "test.en", "--score", files / "test.fr")
    assert [float(line) for line in done.lines] == pytest.approx(translator.score(TEST_PAIRS), abs=1e-3)


TEST_PAIRS = list(zip(SOURCES, TARGETS, strict=True))


# --- translate: alignments ---


def test_alignments_are_pharaoh_lines_on_words(run, model, files):
    done = run("translate", "-m", model, "-i", files / "test.en", "--alignment")
    texts, links = zip(*(line.split(" ||| ") for line in done.lines), strict=True)
    assert list(texts) == TARGETS
    found = [align.parse(line).sure for line in links]
    assert align.quality(found, [align.parse(line) for line in GOLD]).aer < 0.15


def test_an_alignment_is_drawn(run, model):
    done = run("translate", "-m", model, "--show", SOURCES[0])
    assert done.lines[0] == TARGETS[0]
    drawn = "\n".join(done.lines[1:])
    assert all(word in drawn for word in TARGETS[0].split()) and "█" in drawn and "[" in drawn


@pytest.mark.parametrize("name", ["a.svg", "a.png", "a.pdf"])
def test_an_alignment_is_drawn_as_a_figure(run, model, files, name):
    done = run("translate", "-m", model, "-i", files / "test.en", "--plot", files / name)
    assert (done.code, done.lines) == (0, TARGETS)
    drawn = (files / name).read_bytes()
    assert drawn.startswith({"a.svg": b"<?xml", "a.png": b"\x89PNG", "a.pdf": b"%PDF"}[name])
    if name == "a.svg":
        for word in [*SOURCES[0].split(), *TARGETS[0].split()]:
            assert f">{word}</text>" in drawn.decode()


def test_a_figure_that_cannot_be_drawn(run, model, tmp_path):
    done = run("translate", "-m", "no model is looked for", "--plot", tmp_path / "a.jpg", SOURCES[0])
    assert done.code == 2 and "expected a name that ends in .svg, .png or .pdf, got .jpg" in done.err
    done = run("translate", "-m", model, "--plot", tmp_path / "a.svg", "")
    assert done.code == 0 and "not drawn, the first line has no translation" in done.err
    assert not list(tmp_path.iterdir())


# --- output files ---


def test_an_output_file_is_written_whole(run, model, files):
    out = files / "out"
    done = run("translate", "-m", model, "-i", files / "test.en", "--output", out)
    assert (done.code, done.out) == (0, b"") and out.read_text().splitlines() == TARGETS
    assert sorted(os.listdir(files)) == ["out", "test.en", "test.fr", "test.gold"]


def test_the_input_may_be_the_output(run, model, files):
    run("translate", "-m", model, "-i", files / "test.en", "-o", files / "test.en")
    assert (files / "test.en").read_text().splitlines() == TARGETS


@pytest.mark.parametrize("out", ["missing/out", "."])
def test_an_unwritable_output_is_told_before_the_work(run, files, out):
    done = run("translate", "-m", "no model is looked for", "-i", files / "test.en", "-o", files / out)
    assert done.code == 2 and str(files) in done.err and "no model" not in done.err


def test_a_device_can_be_written_to(run, model):
    assert run("translate", "-m", model, "-o", "/dev/null", SOURCES[0]).code == 0
    assert not Path("/dev/null").is_file()


# --- mistakes ---


def damaged(model, path, name, change):
    shutil.copytree(model, path)
    data = (path / name).read_bytes()
    (path / name).write_bytes(change(data))
    return path


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("model.safetensors", lambda b: b[:-100], "cut short"),
        ("model.safetensors", lambda b: b[:-4] + b"\x00\x01\x02\x03", "checksum"),
        ("tokenizer.json", lambda b: b[: len(b) // 2], "tokenizer.json"),
        ("config.toml", lambda b: b.replace(b"format = 1", b"format = 99"), "format 99"),
        ("config.toml", lambda b: b"\xff", "config.toml"),
    ],
)
def test_a_damaged_model(run, model, tmp_path, name, change, says):
    done = run("translate", "-m", damaged(model, tmp_path / "m", name, change), "x")
    assert done.code == 2 and says in done.err and "Traceback" not in done.err and done.out == b""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["translate", "-m", "nowhere", "x"], "nowhere: there is no such model folder"),
        (["translate", "-m", "{files}/test.en", "x"], "expected a model folder"),
        (["translate", "-m", "{files}", "x"], "not a model folder"),
        (["translate", "-m", "{model}", "-i", "nowhere.en"], "nowhere.en: No such file"),
        (["translate", "-m", "{model}", "-i", "{files}"], "Is a directory"),
        (["translate", "-m", "{model}", "-i", "{files}/test.en", "text"], "not both"),
        (["translate", "-m", "{model}", "--beam", "0", "x"], "--beam"),
        (["translate", "-m", "{model}", "--beam", "many", "x"], "valid integer"),
        (["translate", "-m", "{model}", "--top-p", "0.5", "x"], "add --sample"),
        (["translate", "-m", "{model}", "--sample", "--top-p", "2", "x"], "top_p"),
        (["translate", "-m", "{model}", "--layer", "9", "--alignment", "x"], "layer: expected one of 2, got 9"),
        (["translate", "-m", "{model}", "--min-length", "9", "--max-length", "3", "x"], "minimum"),
        (["translate", "-m", "{model}", "--device", "abacus", "x"], "abacus"),
        (["translate", "-m", "{model}", "--device", "cuda", "--int8", "x"], "device"),
        (["translate", "-m", "{model}", "--wrong", "x"], "--wrong"),
        (["translate", "-m", "{model}", "-i", "{files}/test.en", "--score", "{files}/short"], "60 lines"),
        (["evaluate", "{files}/short", "-r", "{files}/test.fr"], "has 1 lines"),
        (["evaluate", "nowhere", "-r", "{files}/test.fr"], "nowhere: there is no such file"),
        (["evaluate", "-r", "{files}/test.fr"], "give files of translations"),
        (["evaluate", "{files}/test.fr", "-m", "{model}", "-r", "{files}/test.fr"], "--source"),
        (["evaluate", "{files}/test.fr", "-r", "{files}/test.fr", "--tokenize", "x"], "one of 13a"),
        (["evaluate", "{files}/test.fr", "-r", "{files}/test.fr", "--smooth", "x"], "one of add-k"),
        (["evaluate", "{files}/latin1", "-r", "{files}/latin1"], "latin1:1: not UTF-8"),
        (["evaluate", "{files}/empty", "-r", "{files}/empty"], "no lines"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/short"], "60 lines"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/test.fr", "--gold", "{files}/short.gold"], "1 lines"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/test.fr", "--gold", "{files}/test.fr"], "test.fr:1"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/test.fr", "--symmetrize", "x"], "grow-diag-final-and"),
        (["align", "-m", "{model}", "--strict", "{files}/test.en"], "test.en:1: expected a source and a target"),
        (["nonsense"], "nonsense"),
    ],
)
def test_mistakes_are_told_in_a_line(run, model, files, arguments, says):
    (files / "short").write_text("one\n")
    (files / "short.gold").write_text("0-0\n")
    (files / "latin1").write_bytes(b"\xe9\n")
    (files / "empty").write_text("")
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    done = run(*(a.format(model=model, files=files) for a in arguments))
    assert done.code == 2 and says in done.err and done.out == b"" and "Traceback" not in done.err
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_a_traceback_can_be_had(run, monkeypatch):
    monkeypatch.setenv("REGARD_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        run("translate", "-m", "nowhere", "x")


def test_no_model_is_bundled_yet_and_that_is_told(run):
    if (ROOT / "regard" / "bundled" / "en-fr-small").is_dir():
        pytest.skip("it is bundled now")
    done = run("translate", "hello")
    assert done.code == 2 and "en-fr-small" in done.err and "no model is bundled" in done.err


def test_nobody_reads_on(model):
    """`regard … | head -1` ends quietly."""
    command = f"{sys.executable} -m regard translate -m {model} --window 1 | head -1"
    text = ("\n".join(SOURCES * 3) + "\n").encode()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, input=text, capture_output=True, check=False, env=environment)
    assert done.stdout.decode() == TARGETS[0] + "\n" and done.stderr == b""


# --- evaluate ---


def worse(lines):
    return [line.replace("chat", "chien") for line in lines]


def test_scores_are_sacrebleu_s(run, files):
    (files / "out").write_text("\n".join(worse(TARGETS)))
    done = run("evaluate", files / "out", "-r", files / "test.fr", "--json")
    (entry,) = json.loads(done.out)
    bleu = sacrebleu.corpus_bleu(worse(TARGETS), [TARGETS])
    chrf = sacrebleu.corpus_chrf(worse(TARGETS), [TARGETS])
    assert [s["score"] for s in entry["scores"]] == [bleu.score, chrf.score]
    assert 20 < bleu.score < 99
    assert re.fullmatch(
        r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:.*", entry["scores"][0]["signature"]
    )
    plain = run("evaluate", files / "out", "-r", files / "test.fr").out.decode()
    assert f"{bleu.score:6.2f}   nrefs:1" in plain


def test_tokenizer_case_and_smoothing_reach_sacrebleu(run, files):
    (files / "out").write_text("\n".join(worse(TARGETS)).upper())
    done = run(
        "evaluate",
        files / "out",
        "-r",
        files / "test.fr",
        "--tokenize",
        "none",
        "--smooth",
        "none",
        "--lowercase",
        "--json",
    )
    (entry,) = json.loads(done.out)
    bleu = sacrebleu.corpus_bleu(
        worse(TARGETS), [TARGETS], tokenize="none", smooth_method="none", lowercase=True, force=True
    )
    assert entry["scores"][0]["score"] == bleu.score
    assert "case:lc" in entry["scores"][0]["signature"] and "tok:none" in entry["scores"][0]["signature"]


def test_a_model_is_evaluated(run, model, files):
    done = run("evaluate", "-m", model, "-s", files / "test.en", "-r", files / "test.fr", "--json")
    (entry,) = json.loads(done.out)
    assert entry["name"] == str(model) and entry["scores"][0]["score"] == pytest.approx(100)


def test_the_paired_bootstrap_is_sacrebleu_s(monkeypatch):
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    monkeypatch.setenv("SACREBLEU_SEED", "7")
    first, second = worse(TARGETS), [t.replace("grand", "gros") for t in TARGETS]
    _, found = PairedTest(
        [("a", first), ("b", second)], {"BLEU": BLEU(), "chrF": CHRF()}, [TARGETS], "bs", n_samples=100
    )()
    ours = {c.name: c for c in compare(first, second, TARGETS, samples=100, seed=7)}
    for name, theirs in (("BLEU", found["BLEU"]), ("chrF", found["chrF2"])):
        assert ours[name].p == pytest.approx(theirs[1].p_value)
        assert ours[name].difference == pytest.approx(theirs[1].score - theirs[0].score)
        assert ours[name].low <= ours[name].difference <= ours[name].high


def test_the_bootstrap_is_repeated_by_its_seed(run, files):
    (files / "a").write_text("\n".join(worse(TARGETS)))
    (files / "b").write_text("\n".join(t.replace("grand", "gros") for t in TARGETS))
    command = ["evaluate", files / "a", files / "b", "-r", files / "test.fr", "--bootstrap", 50, "--json", "--seed"]
    one, two, other = (json.loads(run(*command, seed).out) for seed in (1, 1, 2))
    assert one == two != other
    assert "against" not in one[0] and one[1]["against"]["name"] == str(files / "a")
    assert "p = " in run(*command[:-2]).out.decode()


def test_equal_outputs_do_not_differ():
    for found in compare(TARGETS, TARGETS, TARGETS, samples=20):
        assert (found.difference, found.low, found.high) == (0, 0, 0) and found.p > 0.04


def test_evaluate_refuses():
    with pytest.raises(ValueError, match="got 2 and 1"):
        evaluate(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="samples: expected at least 1"):
        compare(["a"], ["a"], ["a"], samples=0)


# --- align ---


def test_pairs_are_aligned(run, model, files):
    out = files / "links"
    done = run("align", "-m", model, files / "test.en", files / "test.fr", "--gold", files / "test.gold", "-o", out)
    rate = float(re.search(r"AER ([\d.]+) %", done.err)[1])
    assert done.code == 0 and rate < 15
    found = align.read_pharaoh(out)
    right = [align.parse(line) for line in GOLD]
    assert 100 * align.quality([a.sure for a in found], right).aer == pytest.approx(rate, abs=0.01)


def test_both_directions_are_better_than_one(run, model, reverse, files):
    def rate(*more):
        done = run("align", "-m", model, files / "test.en", files / "test.fr", "--gold", files / "test.gold", *more)
        return float(re.search(r"AER ([\d.]+) %", done.err)[1])

    one = rate()
    rates = {how: rate("--reverse", reverse, "--symmetrize", how) for how in cli.METHODS}
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


# --- train ---


@pytest.fixture
def corpus(files):
    """train.en and train.fr, and options with which training takes seconds."""
    data = toy.pairs(300, seed=0)
    for name, side in (("train.en", 0), ("train.fr", 1)):
        (files / name).write_text("".join(f"{row[side]}\n" for row in data))
    small = (
        "--vocab-size 330 --dim 32 --ffn-dim 32 --heads 2 --encoder-layers 1 --decoder-layers 1 --dropout 0 --rdrop 0"
    )
    return [
        *("--source", files / "train.en", "--target", files / "train.fr"),
        *("--valid-source", files / "test.en", "--valid-target", files / "test.fr"),
        *small.split(),
        *["--updates", "6", "--tokens", "400", "--warmup", "2", "--device", "cpu", "--set", "training.valid_every=3"],
    ]


def test_train_then_translate(corpus, files):
    done = process("train", *corpus, "--out", files / "model")
    assert done.code == 0, done.err
    assert {"model.safetensors", "tokenizer.json", "config.toml", "metrics.jsonl", "README.md"} <= set(
        os.listdir(files / "model")
    )
    done = process("translate", "-m", files / "model", "--max-length", 5, SOURCES[0])
    assert done.code == 0 and len(done.lines) == 1 and done.err == ""


def test_training_needs_no_typer(corpus, files):
    """A GPU machine may have neither the command line's packages nor sacrebleu."""
    code = "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'sacrebleu', 'numba'])); "
    code += "from regard.__main__ import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["train", *map(str, corpus), "--out", str(files / "model")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "sacrebleu is not installed" in done.stderr and (files / "model" / "model.safetensors").exists()


def test_flags_are_settings(tmp_path):
    from regard.tasks.translation import FLAGS, parse

    (tmp_path / "c.toml").write_text("[model]\ndim = 8\nheads = 2\n[training]\nupdates = 5\n")
    settings, _ = parse(["--config", str(tmp_path / "c.toml"), "--out", "m", "--dim", "16", "--score", "additive"])
    assert settings.model == {"dim": 16, "heads": 2, "cross_score": "additive"} and settings.training == {"updates": 5}
    settings, _ = parse(
        ["--out", "m", "--kind", "rnn", "--score", "general", "--lr", "1e-3", "--set", "training.clip=2"]
    )
    assert settings.model == {"kind": "rnn", "score": "general"} and settings.training == {"lr": 1e-3, "clip": 2}
    values = {int: "8", float: "0.5", str: "cpu"}
    for table, key, kind, _ in FLAGS:  # each has a name that its table knows
        value = kind[0] if isinstance(kind, tuple) else values[kind]
        settings, _ = parse(["--out", "m", f"--{key.replace('_', '-')}", value])
        assert str(getattr(settings, table)[key]) == value


def test_train_tells_what_is_wrong(run, corpus, files):
    done = run("train", *corpus[2:], "--out", files / "model")
    assert done.code == 2 and "without source" in done.err
    done = run("train", "--source", "nowhere.en", *corpus[2:], "--out", files / "model")
    assert done.code == 2 and "nowhere.en" in done.err and not (files / "model").exists()
    assert run("train", *corpus, "--out", files / "test.en").code == 2
    assert (files / "test.en").read_text().splitlines() == SOURCES
    done = run("train", "--help")
    assert done.code == 0 and "regard train --source" in done.out.decode() and "--encoder-layers" in done.out.decode()


# --- the library ---


def test_a_translator(translator):
    assert translator.translate(SOURCES[0]) == TARGETS[0]
    assert translator.translate(SOURCES[:4], beam=1, batch_tokens=1) == TARGETS[:4]
    assert translator.translate([]) == [] and translator.translate("  ") == ""
    assert "Transformer" in repr(translator)


def test_one_prefix_each(translator):
    found = translator.translate(SOURCES[:2], prefix=["le chien", "un chat"])
    assert found[0].startswith("le chien") and found[1].startswith("un chat")
    with pytest.raises(ValueError, match="one for each of 2 lines; got 1"):
        translator.translate(SOURCES[:2], prefix=["le"])


def test_scores_are_the_model_s_own(translator):
    """Σ log p by hand, one pair at a time."""
    model, subwords = translator.model, translator.subwords
    for (source, target), found in zip(TEST_PAIRS[:3], translator.score(TEST_PAIRS[:3]), strict=True):
        ids = [*subwords.encode(target).ids, model.eos_id]
        logits = model(
            torch.tensor([[*subwords.encode(source).ids, model.eos_id]]), torch.tensor([[model.bos_id, *ids[:-1]]])
        )
        by_hand = sum(logits.log_softmax(-1)[0, t, i].item() for t, i in enumerate(ids))
        assert found == pytest.approx(by_hand, abs=1e-4) and found < 0
    assert translator.score([("the dog", "chat chat")])[0] < translator.score([("the dog", "le chien")])[0]


def test_a_search_s_score_is_the_forced_one(translator):
    (found,) = translator.outputs(SOURCES[:1], length_penalty=0.5)
    best = found.translations[0]
    assert best.log_prob == pytest.approx(translator.score([(SOURCES[0], best.text)])[0], abs=1e-4)
    length = len(translator.subwords.encode(best.text).ids) + 1
    assert best.score == pytest.approx(best.log_prob / math.sqrt(length), abs=1e-4)


def test_word_alignments(translator):
    found = translator.align(TEST_PAIRS)
    assert align.quality(found, [align.parse(line) for line in GOLD]).aer < 0.15
    output = translator.outputs(SOURCES[:1], attention=True)[0].translations[0]
    weights = translator.word_weights(output)
    assert weights.shape == (len(TARGETS[0].split()), len(SOURCES[0].split()))
    assert align.links(weights) == found[0]


def test_a_paragraph_is_cut_with_a_warning(translator):
    with pytest.warns(UserWarning, match="translated as 40 sentences"):
        assert translator.translate(" ".join(SOURCES[:40])) == " ".join(TARGETS[:40])
    with pytest.raises(ValueError, match=r"line 2: .* without a sentence end"):
        translator.translate(["the", "word " * 10_000])


def test_a_model_s_own_limit(tmp_path):
    toy.train(tmp_path / "m", updates=1, max_length=12)
    translator = regard.load(tmp_path / "m")
    assert translator.limit == 11
    assert isinstance(translator.translate("dog " * 5), str)
    with pytest.raises(ValueError, match="the most is 11"):
        translator.translate("dog " * 50)


def test_nothing_but_lines_comes_out(translator):
    """Subwords with a line end in them, special and extra ones are never written."""
    banned = [translator.subwords.token(i) for i in translator._ban]
    assert "\n" in banned and "<unk>" in banned
    assert not any("\n" in translator.translate(SOURCES[0], sample=True, temperature=50.0, seed=s) for s in range(20))


def test_an_ended_line_stays_one(tmp_path):
    from regard.lines import Writer

    with Writer(tmp_path / "x") as writer:
        writer.write(["a\nb\rc", "d"])
    assert (tmp_path / "x").read_text() == "a b c\nd\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"beam": 0}, "beam=0"),
        ({"nbest": 6}, "make beam at least nbest"),
        ({"top_k": 3}, "add sample=True"),
        ({"min_length": -1}, "minimum"),
        ({"batch_tokens": 0}, "at least 1"),
    ],
)
def test_a_translator_refuses(translator, options, says):
    with pytest.raises(ValueError, match=says):
        translator.translate("x", **options)


def test_a_translator_knows_its_options(translator):
    with pytest.raises(TypeError, match="unknown option beams; there are beam, nbest"):
        translator.translate("x", beams=3)
    with pytest.raises(TypeError, match="expected lines of text, got int"):
        translator.translate([3])


def test_sentence_ends():
    from regard.translation import sentences

    assert sentences("One. Two! “Three?” Four… 3.14 is pi") == ["One.", "Two!", "“Three?”", "Four…", "3.14 is pi"]
    assert sentences("一。二！三") == ["一。", "二！", "三"]
    assert sentences("") == []


def test_batches_hold_similar_lengths_within_their_room():
    from regard.translator import _batches

    lengths = [3, 50, 4, 5, 3, 49, 200]
    batches = _batches(lengths, 102)
    assert batches == [[6], [1, 5], [3, 2, 0, 4]]
    assert sorted(i for batch in batches for i in batch) == list(range(7))


# --- what starting costs ---


def test_translating_imports_what_it_needs_alone(model):
    code = (
        "import sys; from regard.cli import main; main(sys.argv[1:]); "
        "print(*sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, "translate", "-m", str(model), SOURCES[0]],
        capture_output=True,
        check=True,
        text=True,
        env=environment,
    )
    loaded = set(done.stderr.split())
    assert done.stdout == TARGETS[0] + "\n" and {"torch", "tokenizers", "typer"} <= loaded
    assert not loaded & {"sacrebleu", "numba", "transformers", "matplotlib", "pandas", "scipy", "sklearn"}


def test_the_version(run):
    assert run("--version").out.decode() == f"regard {regard.__version__}\n"


def test_a_terminal_gets_a_bar_and_answers_at_once(model):
    """Through a pseudo-terminal: what is typed is answered before the input ends."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-m", "regard", "translate", "-m", str(model)]
    child = subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment)
    shown: list[bytes] = []
    looking = threading.Thread(target=_look, args=(master, shown), daemon=True)
    looking.start()
    try:
        os.write(master, f"{SOURCES[0]}\n".encode())
        assert child.stdout.readline().decode() == TARGETS[0] + "\n"
        os.write(master, f"{SOURCES[1]}\n\x04".encode())
        assert child.stdout.readline().decode() == TARGETS[1] + "\n"
        assert child.wait(60) == 0
        os.close(slave)
        slave = None
        looking.join(60)
        assert "2/2" in b"".join(shown).decode(errors="replace")
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
        if slave is not None:
            os.close(slave)
        looking.join(60)
        os.close(master)


def _look(terminal, shown):
    """Read what is written to a terminal until nobody has it open any more."""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            return
        if not chunk:
            return
        shown.append(chunk)


def test_help_teaches(run):
    assert "translate" in run("--help").out.decode()
    for command in ("translate", "evaluate", "align"):
        done = run(command, "--help")
        assert done.code == 0 and f"regard {command} " in done.out.decode()


def test_a_translator_is_public():
    assert regard.load and Translator.__doc__


# --- the documentation ---


def transcripts(page):
    """Commands and what the page says that they print, block by block."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        yield [(part.split("\n")[0], part.split("\n")[1:]) for part in ("\n" + block.rstrip("\n")).split("\n$ ")[1:]]


@pytest.mark.slow
def test_the_transcripts_of_the_documentation(model, files):
    """As they stand in docs/cli.md, with … standing for anything."""
    os.symlink(model, files / "model")
    shell = f'regard() {{ {sys.executable} -m regard "$@"; }}; set -e; exec 2>&1; '
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    page = (ROOT / "docs" / "cli.md").read_text()
    count = 0
    for block in transcripts(page):
        for command, expected in block:
            done = subprocess.run(
                ["bash", "-c", shell + command], cwd=files, capture_output=True, check=False, text=True, env=environment
            )
            pattern = re.escape("\n".join(expected)).replace(r"\.\.\.", ".*?")
            if expected:
                pattern += "\n"
            assert re.fullmatch(pattern, done.stdout, re.DOTALL), f"$ {command}\n{done.stdout}"
            count += 1
    assert count == 17

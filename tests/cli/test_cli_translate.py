"""regard translate, driven as people drive it, on a small model that is trained for the tests."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from commands import GOLD, PAIRS, ROOT, SOURCES, TARGETS, process

from regard import align, decode
from regard.cli._lines import Writer

# --- what goes in ---


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


# --- lines that are bad ---


def test_bad_lines_are_reported_and_stay_empty(run, model, tmp_path):
    path = tmp_path / "mixed"
    good = [line.encode() for line in SOURCES[:3]]
    path.write_bytes(b"\n".join([good[0], b"caf\xe9", b"", good[1], b"word " * 1_000, b"\x00 the", good[2]]) + b"\n")
    done = run("translate", "-m", model, "-i", path)
    assert done.code == 0 and len(done.lines) == 7
    assert [done.lines[i] for i in (0, 3, 6)] == TARGETS[:3]
    assert done.lines[1] == done.lines[2] == "" != done.lines[4]
    assert f"{path}:2: not UTF-8 (byte 0xe9 at 3)" in done.err
    assert re.search(rf"{path}:5: \d+,\d+ subwords: translated as \d+ parts, some of them cut", done.err)
    assert "1 of 7 lines could not be used" in done.err
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


# --- searches ---


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
    monkeypatch.setattr("regard.decode._beam.beam", spy)
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
    assert [float(line) for line in done.lines] == pytest.approx(translator.score(PAIRS), abs=1e-3)


# --- alignments ---


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


@pytest.mark.slow
def test_a_full_disk_is_told_with_the_file(run, model):
    done = run("translate", "-m", model, "--output", "/dev/full", SOURCES[0])
    assert done.code == 2 and done.err.strip().endswith("/dev/full: could not be written: No space left on device")
    command = f"{sys.executable} -m regard translate -m {model} '{SOURCES[0]}' > /dev/full"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, shell=True, capture_output=True, check=False, env=environment)
    assert told.returncode == 2 and b"standard output: could not be written: No space left on device" in told.stderr


def test_a_device_can_be_written_to(run, model):
    assert run("translate", "-m", model, "-o", "/dev/null", SOURCES[0]).code == 0
    assert not Path("/dev/null").is_file()


# --- pipes and terminals ---


@pytest.mark.slow
def test_nobody_reads_on(model):
    """`regard … | head -1` ends quietly."""
    command = f"{sys.executable} -m regard translate -m {model} --window 1 | head -1"
    text = ("\n".join(SOURCES * 3) + "\n").encode()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, input=text, capture_output=True, check=False, env=environment)
    assert done.stdout.decode() == TARGETS[0] + "\n" and done.stderr == b""


@pytest.mark.parametrize(("closed", "told"), [("<&-", "standard input: it is closed"), (">&-", "--output")])
def test_a_closed_stream_is_told_in_a_line(model, closed, told):
    text = "" if closed == "<&-" else "'the dog sees a cat .'"
    command = f"{sys.executable} -m regard translate -m {model} {text} {closed}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, capture_output=True, check=False, env=environment)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, b"", 1) and told in lines[0]


@pytest.mark.slow
def test_reports_stay_out_of_the_output_when_there_is_nowhere_to_report(model):
    command = f"{sys.executable} -m regard translate -m {model} 2>&-"
    environment, text = os.environ | {"PYTHONPATH": str(ROOT)}, SOURCES[0].encode() + b"\n\377\n"
    done = subprocess.run(command, shell=True, input=text, capture_output=True, check=False, env=environment)
    assert done.stdout.decode() == TARGETS[0] + "\n\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--score", "test.fr", "--show"), "--score translates nothing: leave out"),
        (("--score", "test.fr", "--nbest", 3), "--score translates nothing: leave out"),
        (("--score", "test.fr", "--beam", 3, "--min-length", 2), "leave out --beam, --min-length"),
        (("--sample", "--beam", 3, "--length-penalty", 0.5), "leave out --beam, --length-penalty"),
        (("--layer", 1), "--layer and --head choose the attention shown: add --alignment"),
        (("--head", 0), "--layer and --head choose the attention shown: add --alignment"),
    ],
)
def test_options_that_would_do_nothing_are_refused(run, model, files, options, told):
    done = run("translate", "-m", model, "-i", files / "test.en", *options)
    assert done.code == 2 and told in done.err and done.out == b""


@pytest.mark.slow
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


# --- what starting costs ---


@pytest.mark.slow
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
    assert done.stdout == TARGETS[0] + "\n" and {"torch", "tokenizers"} <= loaded
    assert not loaded & {
        "sacrebleu",
        "numba",
        "regex",
        "wcwidth",
        "transformers",
        "matplotlib",
        "pandas",
        "scipy",
        "sklearn",
    }


# --- ended from outside ---


def test_ended_by_sigterm_it_leaves_nothing_behind(model, tmp_path):
    """An older file stays, no part of a new one does, and the exit code is the signal's."""
    out = tmp_path / "out.txt"
    out.write_text("older\n")
    program = [sys.executable, "-m", "regard", "translate", "-m", str(model), "--output", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(list(tmp_path.iterdir())) == 2, "it should wait for lines, with a part of the output open"
        running.terminate()
        errors = running.stderr.read()
    assert (running.returncode, errors) == (143, b"")
    assert out.read_text() == "older\n" and list(tmp_path.iterdir()) == [out]


def test_writers_handle_sigterm_only_while_they_write_and_where_nobody_else_does(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, Writer(tmp_path / "new"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143 and not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("mine"))
    try:
        with Writer(tmp_path / "new"):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["mine"] and (tmp_path / "new").exists()


def test_a_page_opens_with_any_kind_of_attention(run, model, tmp_path):
    page = tmp_path / "page.html"
    given = ("translate", "-m", model, "--html", page, "a dog sees a cat")
    done = run(*given, "--kind", "decoder", "--layer", "1", "--head", "5")
    assert not done.err and "#/sentence?kind=decoder&layer=1&head=5" in page.read_text().replace("\\u0026", "&")
    for options, text in (
        (("--kind", "self", "--layer", "9"), "layer: there are 1 of kind 'self', from 0; got 9"),
        (("--kind", "decoder", "--head", "9"), "head: there are 8 of kind 'decoder', from 0"),
        (("--layer", "9"), "layer of cross-attention: expected one of 2, counted from 0, got 9"),
        (("--kind", "own"), "--kind: expected one of self, decoder, cross, got 'own'"),
        (("--kind", "self", "--layer", "0", "--alignment"), "word links need cross: leave out --alignment"),
    ):
        done = run(*given, *options)
        assert done.code == 2 and text in done.err and done.err.count("\n") == 1
    done = run("translate", "-m", model, "--kind", "self", "a dog")
    assert done.code == 2 and "--kind chooses what --html shows first: add --html" in done.err

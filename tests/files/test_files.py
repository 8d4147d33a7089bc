"""Files as people have them: gzipped, UTF-16, with a byte order mark; and what a name that ends in .gz is given."""

import contextlib
import gzip
import io
import os
import sys

import pytest
from commands import SOURCES, TARGETS

from regard.cli._lines import Writer, document_of, lines_of, whole_text
from regard.data import Files, Report, Tsv, read
from regard.data.questions import read_questions
from regard.files.text import lines, whole

TEXT = "the cat\r\nl'été 🐈\n\u2028x"
LINES = ["the cat", "l'été 🐈", "\u2028x"]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_text_is_read_in_any_of_these(tmp_path, monkeypatch, encoding, pack):
    path = tmp_path / "x"
    path.write_bytes(pack(TEXT.encode(encoding)))
    assert [line.decode() for line in lines(path)] == [line.text for line in lines_of(path)] == LINES
    assert document_of(path).text == "\n".join(LINES) and whole_text(path) == TEXT
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert [line.text for line in lines_of("-")] == LINES


def test_a_large_one_is_read_a_part_at_a_time(tmp_path):
    rows = [f"{i} the cat 🐈" for i in range(50_000)]
    (tmp_path / "x").write_bytes("\n".join(rows).encode("utf-16"))
    assert [line.decode() for line in lines(tmp_path / "x")] == rows and whole(tmp_path / "x").decode() == "\n".join(
        rows
    )


def test_pairs_and_questions_are_read_from_them(tmp_path):
    (tmp_path / "a.en").write_bytes("a cat\na dog\n".encode("utf-16-be"))
    (tmp_path / "a.fr").write_bytes("un chat\nun chien\n".encode("utf-16"))
    (tmp_path / "q.json").write_bytes('{"data": [{"paragraphs": [{"context": "a", "qas": []}]}]}'.encode("utf-16"))
    assert list(read(Files(tmp_path / "a.en", tmp_path / "a.fr"))) == [("a cat", "un chat"), ("a dog", "un chien")]
    assert list(read_questions(tmp_path / "q.json")) == []


def test_what_is_no_character_is_a_bad_line(tmp_path):
    good, half, cut = "a\tb\n".encode("utf-16"), "c\t".encode("utf-16-le") + b"\x00\xd8\n\x00", b"d\x00\t\x00e\x00f"
    (tmp_path / "x.tsv").write_bytes(good + half + cut)
    report = Report("x")
    assert list(read(Tsv(tmp_path / "x.tsv"), bad="skip", report=report)) == [("a", "b")]
    assert report.bad == {"not UTF-8": 2} and report.shown[0].startswith(f"{tmp_path / 'x.tsv'}:2: ")


def test_numbers_in_sixteen_bits_are_no_text(tmp_path):
    (tmp_path / "x").write_bytes(bytes(byte for number in range(1, 200) for byte in (number, 0)))
    with pytest.raises(ValueError, match="expected a text, got a binary file"):
        whole_text(tmp_path / "x")


def test_output_is_gzipped_where_its_name_says_so(run, model, files):
    out = files / "out.fr.gz"
    assert run("translate", "-m", model, "-i", files / "test.en", "-o", out).code == 0
    assert gzip.decompress(out.read_bytes()).decode().splitlines() == TARGETS
    before = out.read_bytes()
    assert run("translate", "-m", model, "-i", files / "test.en", "-o", out).code == 0
    assert out.read_bytes() == before  # the same lines are the same bytes
    out.rename(files / "in.gz")
    assert run("translate", "-m", model, "-i", files / "in.gz").code == 0


def test_gzipped_output_appears_when_it_is_whole(tmp_path):
    out = tmp_path / "x.gz"
    out.write_bytes(b"before")
    with contextlib.suppress(RuntimeError), Writer(out) as writer:
        writer.write(SOURCES)
        writer.flush()
        raise RuntimeError
    assert os.listdir(tmp_path) == ["x.gz"] and out.read_bytes() == b"before"

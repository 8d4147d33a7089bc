"""What a run says while it goes: lines, a bar, metrics that survive a kill, TensorBoard."""

import importlib.util
import io
import json
import sys

import pytest

from regard.train.progress import Bar, Lines, Metrics, progress


def test_lines_say_numbers_and_time_left(capsys):
    lines = Lines()
    lines.start(0, 100)
    lines.step(50, {"loss": 2.5, "tokens_per_s": 12345.6})
    said = capsys.readouterr().err
    assert said == "50/100  loss 2.5  tokens/s 12,346  0:00 left\n"


def test_a_bar_where_there_is_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = progress()
    assert isinstance(bar, Bar)
    bar.start(0, 10)
    bar.step(5, {"loss": 1.25})
    bar.say("update 5: valid_loss [1.5]")
    bar.stop()
    said = terminal.getvalue()
    assert "5/10" in said and "loss 1.25" in said and "valid_loss [1.5]" in said


def test_lines_where_there_is_none(capsys):
    assert isinstance(progress(), Lines)


def test_metrics_go_on_after_a_kill(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "loss": 3}\n{"update": 2, "loss": 2}\n{"update": 3, "loss": 1}\n{"upda')
    metrics = Metrics(path, 2)
    metrics.write(3, {"loss": 1.5, "note": "again"})
    metrics.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"update": 1, "loss": 3},
        {"update": 2, "loss": 2},
        {"update": 3, "loss": 1.5, "note": "again"},
    ]


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed")
def test_tensorboard_that_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"tensorboard = true needs the tensorboard package: pip install tensorboard"):
        Metrics(tmp_path / "metrics.jsonl", 0, tensorboard=True)


def test_tensorboard_gets_the_numbers(tmp_path, monkeypatch):
    written = []

    class Board:
        def add_scalar(self, *what):
            written.append(what)

        def close(self):
            written.append("closed")

    monkeypatch.setattr(sys.modules["regard.train.progress"], "_board", lambda folder: Board())
    metrics = Metrics(tmp_path / "metrics.jsonl", 0, tensorboard=True)
    metrics.write(7, {"loss": 2.0, "final": "words"})
    metrics.close()
    assert written == [("loss", 2.0, 7), "closed"]


def test_metrics_of_an_end_that_was_not_reached_come_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 2, "loss": 2}\n{"update": 2, "final": "the weights of update 2"}\n')
    metrics = Metrics(path, 2)
    metrics.write(2, {"final": "the weights of update 2"})
    metrics.close()
    assert [json.loads(line).get("final") for line in path.read_text().splitlines()] == [
        None,
        "the weights of update 2",
    ]


def test_a_full_disk_is_told_with_the_file(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl", 0)
    metrics._file.close()
    metrics._file = open("/dev/full", "a")  # noqa: SIM115, closed by close()
    with pytest.raises(OSError, match="could not be written: No space left") as told:
        metrics.write(1, {"loss": 1.0})
    assert told.value.filename == str(tmp_path / "metrics.jsonl")
    metrics.close()  # and no second error instead of this one

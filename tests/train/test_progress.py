"""What a run says while it goes: lines, a bar, metrics that survive a kill, TensorBoard."""

import importlib.util
import io
import json
import sys

import pytest

from regard.train.progress import Bar, Lines, MetricsFile, Remaining, progress


def test_lines_say_numbers_and_time_left(capsys):
    at = [0.0]
    lines = Lines(lambda: at[0])
    lines.start(0, 100)
    for update, left in ((1, None), (2, None), (3, 3725.0), (4, 3600.0)):
        lines.tick(update, left)
    lines.step(50, {"loss": 2.5, "tokens_per_s": 12345.6})
    for at[0], update in ((29.0, 51), (31.0, 52), (60.0, 53)):
        lines.tick(update, 65.0)
    assert capsys.readouterr().err.splitlines() == [
        "3/100  about 1:02:05 left",  # as soon as it is known
        "50/100  loss 2.5  tokens/s 12,346  about 1:00:00 left",
        "52/100  about 1:05 left",  # after half a minute of silence
    ]


def test_the_time_left_is_that_of_the_latter_half():
    """Updates that get faster, as graphs are captured, and a validation that took less than was thought."""
    remaining = Remaining(updates=1000, every=300, cost=4.0)
    assert remaining.left(0) is None
    now = 0.0
    for update in range(1, 201):
        now += 100.0 if update == 1 else 3.0 if update <= 100 else 1.0
        remaining.add_update(update, now)
        assert (remaining.left(update) is None) is (update < 3)
    assert remaining.left(200) == pytest.approx(800 * 1.0 + 5 * 4.0)  # after 300, 600, 900 and 1000, and of the average
    remaining.add_validation(2.5)
    remaining.add_update(201, now + 1.0 + 2.5)
    assert remaining.left(201) == pytest.approx(799 * 1.0 + 5 * 2.5, rel=1e-3)
    alone = Remaining(updates=10, every=2, cost=0.0)  # nothing to validate with
    for update in (1, 2, 3):
        alone.add_update(update, float(update))
    assert alone.left(3) == 7.0


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
    bar.tick(4, None)
    bar.tick(5, 75.0)
    bar.step(5, {"loss": 1.25})
    bar.say("update 5: valid_loss [1.5]")
    bar.stop()
    said = terminal.getvalue()
    assert "5/10" in said and "about 1:15 left" in said and "loss 1.25" in said and "valid_loss [1.5]" in said


def test_lines_where_there_is_none(capsys):
    assert isinstance(progress(), Lines)


def test_metrics_go_on_after_a_kill(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "loss": 3}\n{"update": 2, "loss": 2}\n{"update": 3, "loss": 1}\n{"upda')
    metrics = MetricsFile(path, 2)
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
        MetricsFile(tmp_path / "metrics.jsonl", 0, tensorboard=True)


def test_tensorboard_gets_the_numbers(tmp_path, monkeypatch):
    written = []

    class Board:
        def add_scalar(self, *what):
            written.append(what)

        def close(self):
            written.append("closed")

    monkeypatch.setattr(sys.modules["regard.train.progress"], "_board", lambda folder: Board())
    metrics = MetricsFile(tmp_path / "metrics.jsonl", 0, tensorboard=True)
    metrics.write(7, {"loss": 2.0, "final": "words"})
    metrics.close()
    assert written == [("loss", 2.0, 7), "closed"]


def test_metrics_of_an_end_that_was_not_reached_come_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 2, "loss": 2}\n{"update": 2, "final": "the weights of update 2"}\n')
    metrics = MetricsFile(path, 2)
    metrics.write(2, {"final": "the weights of update 2"})
    metrics.close()
    assert [json.loads(line).get("final") for line in path.read_text().splitlines()] == [
        None,
        "the weights of update 2",
    ]


def test_a_full_disk_is_told_with_the_file(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl", 0)
    metrics._file.close()
    metrics._file = open("/dev/full", "a")  # noqa: SIM115, closed by close()
    with pytest.raises(OSError, match="could not be written: No space left") as told:
        metrics.write(1, {"loss": 1.0})
    assert told.value.filename == str(tmp_path / "metrics.jsonl")
    metrics.close()  # and no second error instead of this one

"""Training in real processes: killed and started again, with damaged checkpoints, full disks and bad input."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from resuming import train, train_until, updates, weights
from training import command, environment, main

# --- killed ---


@pytest.mark.slow
def test_killed_twice_and_started_again_gives_the_same_weights(data):
    assert train(data, "--out", "whole")[0] == 0
    train_until(data, 8, "--out", "killed")
    train_until(data, 24, "--out", "killed")
    (data / "killed" / ".tokenizer.json.99").write_bytes(b"half")  # as if it had been killed there too
    code, said = train(data, "--out", "killed")
    assert code == 0 and "resuming from update" in said
    assert weights(data / "killed") == weights(data / "whole")
    assert updates(data / "killed") == list(range(4, 41, 4))
    assert sorted(p.name for p in (data / "killed").iterdir()) == sorted(p.name for p in (data / "whole").iterdir())


@pytest.mark.slow
def test_interrupted_it_stops_where_it_is(data):
    """Ctrl-C between two validations: the updates since the last one are kept, and the end is the same."""
    long = [f"--set=training.{key}={value}" for key, value in (("updates", 160), ("valid_every", 80), ("log_every", 5))]
    assert train(data, "--out", "whole", *long)[0] == 0
    process = subprocess.Popen(command("--out", "m", *long), cwd=data, env=environment(), stderr=subprocess.PIPE)
    logged = data / "m" / "metrics.jsonl"
    for _ in range(6000):
        if (logged.exists() and logged.read_text().count("\n") > 2) or process.poll() is not None:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1].decode()
    assert process.returncode == 130 and "resumes from the last checkpoint" in said and "Traceback" not in said, said
    assert "Ctrl-C again stops at once" in said
    [state] = (data / "m" / "checkpoints").glob("state-*")
    stopped = int(state.stem.removeprefix("state-"))
    assert 10 <= stopped < 80
    code, said = train(data, "--out", "m", *long)
    assert code == 0 and f"resuming from update {stopped}" in said
    assert weights(data / "m") == weights(data / "whole")
    assert updates(data / "m") == updates(data / "whole") == [80, 160]


def test_an_interrupt_before_a_checkpoint_does_not_promise_one(data, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(data)
    monkeypatch.setattr("regard.tasks.base.run.fit", interrupted)
    assert main(["--config", "toy.toml", "--out", "m"]) == 130
    assert capsys.readouterr().err.endswith(
        "stopped; there is no checkpoint yet: the same command starts from the beginning\n"
    )
    (data / "m" / "checkpoints").mkdir()
    (data / "m" / "checkpoints" / "state-00001200.safetensors").touch()
    assert main(["--config", "toy.toml", "--out", "m"]) == 130
    assert "the same command resumes from the last checkpoint, of update 1,200\n" in capsys.readouterr().err


@pytest.mark.slow
def test_two_at_once_do_not_write_to_one_folder(data):
    """The second is refused, whatever it was to do, and the first is not disturbed."""
    long = ("--out", "m", "--set", "training.updates=100000")
    first = subprocess.Popen(command(*long), cwd=data, env=environment(), stderr=subprocess.DEVNULL)
    try:
        for _ in range(6000):
            if any((data / "m").glob("checkpoints/state-*")) or first.poll() is not None:
                break
            time.sleep(0.01)
        for more in (long, ("--out", "m")):
            code, said = train(data, *more)
            assert code == 2 and "m: another process is training there" in said, said
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
    code, said = train(data, "--out", "m")  # a killed process holds nothing; its settings are still told
    assert code == 2 and "another process" not in said and "updates" in said


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(data):
    short = ("--out", "m", "--set", "training.updates=12", "--keep-checkpoints")
    assert train(data, *short)[0] == 0
    first = weights(data / "m")
    (data / "m" / "model.safetensors").unlink()
    state = data / "m" / "checkpoints" / "state-00000012.safetensors"
    os.truncate(state, state.stat().st_size // 2)
    (data / "m" / "checkpoints" / ".state-00000016.safetensors.99").write_bytes(b"half")  # of a killed process
    code, said = train(data, *short)
    assert code == 0
    assert "checkpoint skipped" in said and "state-00000012.safetensors: cut short" in said
    assert "resuming from update 8" in said
    assert weights(data / "m") == first
    assert not list((data / "m" / "checkpoints").glob(".*"))


@pytest.mark.slow
def test_damaged_checkpoints_do_not_push_out_new_ones(data):
    """Where none is left, training begins anew, and must not lose what it writes to the numbers of damaged files."""
    train_until(data, 24, "--out", "m")
    states = list((data / "m" / "checkpoints").glob("state-*"))
    for state in states:
        os.truncate(state, 100)
    train_until(data, 8, "--out", "m")
    code, said = train(data, "--out", "m")
    assert code == 0 and said.count("checkpoint skipped") == len(states) and "resuming from update 8" in said
    assert train(data, "--out", "whole")[0] == 0
    assert weights(data / "m") == weights(data / "whole")


@pytest.mark.slow
def test_other_settings_are_refused_by_name(data):
    train_until(data, 4, "--out", "m")
    before = {p: p.stat().st_mtime_ns for p in (data / "m").rglob("*")}
    code, said = train(data, "--out", "m", "--set", "training.lr=0.5", "--set", "model.dim=32")
    assert code == 2
    assert "started with other settings" in said
    assert "training.lr was 0.003, is 0.5" in said and "model.dim was 16, is 32" in said and "warmup" not in said
    for limit, told in (("max_tokens=5", "max_tokens was 256, is 5"), ("max_ratio=2", "max_ratio was not set, is 2")):
        code, said = train(data, "--out", "m", "--set", f"data.{limit}")
        assert code == 2 and f"data.{told}" in said
    (data / "train.en").write_text((data / "train.en").read_text().replace("zero", "nought"))
    code, said = train(data, "--out", "m")
    assert code == 2 and "the text of the data was" in said
    assert before == {p: p.stat().st_mtime_ns for p in (data / "m").rglob("*")}


def test_a_run_that_failed_before_its_first_checkpoint_may_be_mended(data):
    code, said = train(data, "--out", "m", "--set", "training.updates=4", "--set", "model.cross_score=foo")
    assert code == 2 and "score kind must be one of" in said and not (data / "m").exists()
    code, said = train(data, "--out", "m", "--set", "training.updates=4", "--set", "training.tokens=2")
    assert code == 2 and "cannot hold pair" in said and (data / "m" / "config.toml").exists()
    code, said = train(data, "--out", "m", "--set", "training.updates=4", "--set", "subwords.vocab_size=300")
    assert code == 0 and "this one starts from the beginning" in said
    assert train(data, "--out", "whole", "--set", "training.updates=4", "--set", "subwords.vocab_size=300")[0] == 0
    assert weights(data / "m") == weights(data / "whole")


def test_settings_that_change_nothing_learned_may_differ(data):
    short = ("--out", "m", "--set", "training.updates=4")
    assert train(data, *short)[0] == 0
    code, said = train(data, *short, "--set", "training.log_every=1")
    assert code == 0 and "holds the finished model of this run: nothing to do" in said


# --- no room ---


@pytest.mark.slow
def test_a_full_disk_is_said_and_the_last_checkpoint_stays(data):
    """A limit on the size of a file: states, three times as large as weights, do not fit from some point on."""
    train_until(data, 8, "--out", "m", "--set", "training.keep=9")
    states = sorted((data / "m" / "checkpoints").glob("state-*.safetensors"))
    kept = {p: p.read_bytes() for p in states}
    limit = states[-1].stat().st_size - 100
    code, said = train(data, "--out", "m", limit=limit)
    assert code == 2, said
    assert "the checkpoint could not be written: File too large; the run can resume from update" in said
    assert all(p.read_bytes() == content for p, content in kept.items() if p.exists())
    assert states[-1].exists() and not list((data / "m" / "checkpoints").glob(".*"))


# --- bad input ---


def bad_input(data, *arguments):
    code, said = train(data, *arguments)
    assert code == 2 and "Traceback" not in said, said
    return said


def test_bad_input_is_said_with_exit_code_2(data, monkeypatch, capsys):
    (data / "short.fr").write_text("un\n")
    (data / "empty").write_text("")
    (data / "latin.fr").write_bytes((data / "train.fr").read_bytes().replace(b"\n", b" \xe9\n", 3))
    (data / "notes").mkdir()
    (data / "notes" / "mine.txt").write_text("mine")
    (data / "file").write_text("mine")
    cases = [
        (("--source", "nowhere.en", "--out", "m"), "nowhere.en: there is no such file"),
        (("--target", "short.fr", "--out", "m"), "train.en has 200 lines, short.fr 1: expected the same number"),
        (("--source", "empty", "--target", "empty", "--out", "m"), "the corpus is empty: no pairs in empty + empty"),
        (("--target", "latin.fr", "--out", "m"), "latin.fr:1: not UTF-8"),
        (("--out", "notes"), "notes is not empty and holds no training run; it was left unchanged"),
        (("--out", "file"), "file: expected a folder to write the model to, but it is a file"),
        (("--out", "m", "--set", "training.lr=fast"), "lr must be a number of at least 0, got 'fast'"),
        (("--out", "m", "--set", "model.width=3"), "[model] has no width; a transformer takes"),
        (("--out", "m", "--set", "optimizer.lr=3"), "unknown tables 'optimizer'"),
        (("--out", "m", "--set", "training.tokens=10"), "cannot hold pair"),
        (("--out", "m", "--set", "data.max_tokens=many"), "[data]: max_tokens must be a whole number, got 'many'"),
        (("--out", "m", "--set", "data.max_ratio=true"), "[data]: max_ratio must be a number, got True"),
        (("--out", "m", "--set", "data.source=5"), "[data]: source must be a text, got 5"),
        (("--out", "m", "--set", "subwords.vocab_size=big"), "[subwords]: vocab_size must be a whole number"),
        (("--out", "m", "--set", "training.best=no"), "[training]: best must be true or false, got 'no'"),
        (("--out", "m", "--set", "training.bleu=true", "--set", "training.bleu_tokenize=x"), "must be one of 13a"),
        (("--out", "m", "--set", "data.corpora=more.tsv"), "corpora must be a list of tables, got 'more.tsv'"),
        (("--out", "m", "--set", "data.corpora=[{tsv='x', weight='2'}]"), "weight must be a number, got '2'"),
        (("--out", "m", "--set", "data.corpora=[{tsv='x', columns=['a', 'b']}]"), "two different columns, from 0"),
        (("--out", "m", "--set", "training.device=tpu9"), "device must be auto, cpu or cuda"),
        (("--out", "m", "--set", "model.dim=1e9"), "[model]: dim must be at most 16,777,216, got 1,000,000,000.0"),
        (("--out", "m", "--encoder-layers", "2000"), "[model]: encoder_layers must be at most 1,000, got 2,000"),
        (("--out", "m", "--set", "model.cross_score={kind='additive', hidden_dim=1e11}"), "hidden_dim must be at most"),
        (("--out", "m", "--vocab-size", "1" + 12 * "0"), "vocab_size must be at most 1,048,576, got 1,000,000,000,000"),
        (("--out", "m", "--tokens", "1" + 12 * "0"), "tokens must be at most 1,073,741,824"),
        (
            ("--out", "m", "--dim", str(2**20)),
            "[model]: dim 1,048,576, ffn_dim 32, heads 2, encoder_layers 1, decoder_l",
        ),
    ]
    monkeypatch.chdir(data)
    for arguments, message in cases:
        code = main(["--config", "toy.toml", *arguments])
        said = capsys.readouterr().err
        assert code == 2 and message in said, (arguments, said)
    assert (data / "notes" / "mine.txt").read_text() == "mine" and (data / "file").read_text() == "mine"


def test_a_bad_command_says_so_in_one_line(data):
    said = bad_input(data, "--source", "nowhere.en", "--out", "m")
    assert said.strip().splitlines()[-1] == "regard: error: nowhere.en: there is no such file"
    assert not (data / "m").exists()


def test_an_unwritable_folder_is_said(data):
    said = bad_input(data, "--out", "/proc/nowhere")
    assert "/proc/nowhere" in said


@pytest.mark.slow
def test_training_needs_nothing_optional(data):
    """A GPU machine may have torch, tokenizers, safetensors and numpy alone."""
    absent = ["numba", "rich", "sacrebleu", "triton", "tensorboard", "matplotlib", "tomli"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); from regard.cli import main; "
    code += "sys.exit(main(sys.argv[1:]))"
    options = ["--config", "toy.toml", "--out", "m", "--set", "training.updates=4", "--set", "training.bleu=true"]
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *options],
        cwd=data,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sacrebleu is not installed: validation is by loss alone" in done.stderr
    assert (data / "m" / "model.safetensors").exists()


def test_a_gpu_without_memory_is_said_in_one_line(data, monkeypatch, capsys):
    """No GPU is needed for it: what PyTorch raises there is raised here."""
    said = "CUDA out of memory. Tried to allocate 38.00 MiB. GPU 0 has a total capacity of 139.80 GiB"

    def full(*_, **__):
        raise torch.OutOfMemoryError(said)

    monkeypatch.chdir(data)
    monkeypatch.setattr("regard.tasks.base.run.fit", full)
    assert main(["--config", "toy.toml", "--out", "m"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("regard: error: CUDA out of memory. If other programs use its memory, end them: there is")
    assert "--set training.accumulate=4" in error

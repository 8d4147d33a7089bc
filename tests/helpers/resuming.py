"""A toy training in processes that are killed and started again."""

import hashlib
import json
import signal
import subprocess
import time

import training
from training import command, environment

TOY = """
[data]
source = "train.en"
target = "train.fr"
valid_source = "val.en"
valid_target = "val.fr"
[subwords]
vocab_size = 300
[model]
dim = 16
ffn_dim = 32
heads = 2
encoder_layers = 1
decoder_layers = 1
attention_dropout = 0.1
[training]
updates = 40
tokens = 600
accumulate = 2
warmup = 5
valid_every = 4
average = 3
rdrop = 1.0
bleu = false
device = "cpu"
"""


def corpus(tmp_path):
    """A folder with a toy corpus of numbers and its settings."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for name, count in (("train", 200), ("val", 20)):
        rows = [
            [int(d) for d in hashlib.sha256(f"{name}{i}".encode()).hexdigest() if d.isdigit()] for i in range(count)
        ]
        sides = {"en": lambda d: words[d], "fr": lambda d: words[d][::-1]}
        for side, word in sides.items():
            lines = [" ".join(word(d) for d in row[: 2 + i % 5]) for i, row in enumerate(rows)]
            (tmp_path / f"{name}.{side}").write_text("\n".join(lines) + "\n")
    (tmp_path / "toy.toml").write_text(TOY)
    return tmp_path


def train(folder, *arguments, limit=None):
    """Exit code, and what was said."""
    if limit is None:
        return training.train_here(folder, *arguments)
    done = training.train(folder, *arguments, limit=limit)
    return done.returncode, done.stdout + done.stderr


def train_until(folder, update, *arguments):
    """Killed, by SIGKILL, as soon as this checkpoint is there."""
    process = subprocess.Popen(
        command(*arguments), cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    out = folder / arguments[arguments.index("--out") + 1] / "checkpoints" / f"state-{update:08d}.safetensors"
    try:
        for _ in range(6000):
            if out.exists() or process.poll() is not None:
                break
            time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def weights(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def updates(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["update"] for line in lines if "valid_loss" in line and "final" not in line]

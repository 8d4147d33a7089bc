"""Training on two real processes that torchrun starts: the same tokens per update, the same result as on one."""

import json

import pytest
import torch
import training

from regard.files.tensors import read_tensors

TOY = """
[data]
source = "train.en"
target = "train.fr"
valid_source = "train.en"
valid_target = "train.fr"
[subwords]
vocab_size = 300
[model]
dim = 16
ffn_dim = 32
heads = 2
encoder_layers = 1
decoder_layers = 1
dropout = 0.0
[training]
updates = 12
tokens = 400
accumulate = 2
warmup = 4
valid_every = 4
eps = 1e-4
log_every = 4
rdrop = 0.0
bleu = false
device = "cpu"
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    rows = [[(7 * i + 3 * j * j) % 10 for j in range(1 + i % 6)] for i in range(101)]  # odd: a rank has one less
    for side, words in (("en", "abcdefghij"), ("fr", "klmnopqrst")):
        (folder / f"train.{side}").write_text("".join(" ".join(words[d] for d in row) + "\n" for row in rows))
    (folder / "toy.toml").write_text(TOY)
    return folder


def train(folder, out, *arguments, launcher=()):
    """The model's folder, and what was said."""
    if not launcher:
        code, said = training.train_here(folder, "--out", out, *arguments)
        assert code == 0, said
        return folder / out, said
    done = training.train(folder, "--out", out, *arguments, launcher=launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / out, done.stderr


def weights(folder):
    return read_tensors(folder / "model.safetensors")[0]


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def alone(data):
    return train(data, "alone")[0]


def assert_same(one, other):
    """Up to float error; eps keeps Adam from blowing up the gradients that are 0 but for rounding (keys' biases)."""
    assert losses(one) == pytest.approx(losses(other), rel=1e-5)
    a, b = weights(one), weights(other)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module")
def ddp(data):
    return train(data, "ddp", "--keep-checkpoints", launcher=TORCHRUN)


@pytest.mark.slow
def test_ddp_on_two_processes_is_one_process(ddp, alone):
    two, said = ddp
    assert "2 × cpu" in said
    assert said.count("holds the model") == 1  # one of them speaks, and writes
    assert_same(two, alone)


@pytest.mark.slow
def test_fsdp_goes_on_where_ddp_was_and_is_one_process(data, ddp, alone):
    """Checkpoints are of the whole model: they may be resumed on another number of processes, in another way."""
    two, _ = ddp
    (two / "model.safetensors").unlink()
    (two / "checkpoints" / "state-00000012.safetensors").unlink()
    _, said = train(data, "ddp", "--set", "training.parallel=fsdp", launcher=TORCHRUN)
    assert "resuming from update 8" in said
    assert_same(two, alone)


@pytest.mark.slow
def test_guided_alignment_by_fsdp_on_two_processes_is_one_process(data):
    options = ("--set", "training.guided=0.3")
    one, _ = train(data, "guided", *options)
    two, said = train(data, "guided-fsdp", *options, "--set", "training.parallel=fsdp", launcher=TORCHRUN)
    assert said.count("word links guide head 0") == 1
    assert_same(two, one)

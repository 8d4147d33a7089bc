"""Opening a model folder: weights are read and not drawn first, and the model is the one that was saved, to the bit."""

import pytest
import torch

from regard.models import folder
from regard.text import Subwords

SIZE = {"dim": 16, "ffn_dim": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
SCORES = ["dot", "additive", "general", "bilinear", "location", "relative", "rotary", "alibi", "t5", "cosine"]
TABLES = {
    **{score: {**SIZE, "self_score": score} for score in SCORES},
    "per head": {**SIZE, "self_score": [[1, "t5"], [1, {"kind": "additive", "hidden_dim": 4}]]},
    "learned positions, nothing tied": {**SIZE, "positions": "learned", "max_length": 20, "tied": "none"},
    "segments": {**SIZE, "decoder_layers": 0, "segments": 2, "embedding_norm": True},
    "output bias": {**SIZE, "output_bias": True},
    "decoder alone": {**SIZE, "encoder_layers": 0},
    "gru": {"kind": "rnn", "dim": 8, "hidden_dim": 12, "score": "additive"},
    "lstm": {"kind": "rnn", "dim": 8, "hidden_dim": 12, "score": "general", "cell": "lstm", "tied": "none"},
    "pointer": {"kind": "pointer", **SIZE, "copy_dim": 8, "coverage": True, "told_length": True},
    "reader": {"kind": "reader", **SIZE, "decoder_layers": 0, "model_layers": 1},
    "joint reader": {
        "kind": "reader",
        **SIZE,
        "decoder_layers": 0,
        "joint": True,
        "segments": 2,
        "positions": "learned",
        "max_length": 20,
    },
}


@pytest.fixture(scope="module")
def subwords():
    return Subwords.learn([["the cat sat on the mat", "le chat était assis"]], 270)


def tensors(model):
    """Everything that a model holds, by name: parameters, buffers, kept or not, and tensors beside them."""
    found = {}
    for at, module in model.named_modules():
        kept = {**vars(module), **module._parameters, **module._buffers}
        lists = {f"{name}.{i}": t for name, some in kept.items() if isinstance(some, list) for i, t in enumerate(some)}
        found |= {f"{at}.{name}": t for name, t in {**kept, **lists}.items() if isinstance(t, torch.Tensor)}
    return found


def made(table, subwords):
    torch.manual_seed(0)
    model = folder.make_model({"kind": "transformer", "vocab_size": len(subwords), **table}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", TABLES)
def test_every_tensor_comes_back(tmp_path, subwords, name):
    model = made(TABLES[name], subwords)
    folder.save(tmp_path / "m", model, subwords)
    opened = folder.open(tmp_path / "m").model
    ours, theirs = tensors(opened), tensors(model)
    assert ours.keys() == theirs.keys()
    for at, tensor in theirs.items():
        assert torch.equal(ours[at], tensor) and ours[at].dtype == tensor.dtype, at
        assert ours[at].requires_grad == tensor.requires_grad and type(ours[at]) is type(tensor), at


def test_a_table_that_is_not_stored_is_computed(tmp_path, subwords):
    model = made(TABLES["t5"], subwords)
    assert any(at.endswith(".buckets") for at in tensors(model)) and not any(
        "buckets" in at for at in model.state_dict()
    )


@pytest.mark.parametrize("name", ["dot", "lstm", "pointer", "reader"])
def test_nothing_is_drawn(tmp_path, subwords, name):
    folder.save(tmp_path / "m", made(TABLES[name], subwords), subwords)
    before = torch.get_rng_state()
    folder.open(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("store", folder.STORES)
def test_weights_are_those_of_the_stored_numbers(tmp_path, subwords, store):
    model = made(TABLES["per head"], subwords)
    folder.save(tmp_path / "m", model, subwords, store=store)
    opened = folder.open(tmp_path / "m").model.state_dict()
    for at, weight in model.state_dict().items():
        expected = weight.half().float() if store == "float16" else weight
        if store == "int8" and weight.ndim == 2:
            numbers, scale = folder.quantize(weight)
            expected = numbers.float() * scale.float()[:, None]
        assert torch.equal(opened[at], expected), at


@pytest.mark.parametrize("store", folder.STORES)
def test_a_file_that_is_overwritten_changes_nothing(tmp_path, subwords, store):
    folder.save(tmp_path / "m", made(TABLES["dot"], subwords), subwords, store=store)
    opened = folder.open(tmp_path / "m").model
    before = {at: weight.clone() for at, weight in opened.state_dict().items()}
    path = tmp_path / "m" / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\x55" * path.stat().st_size)
    assert all(torch.equal(opened.state_dict()[at], weight) for at, weight in before.items())


def test_an_opened_model_learns(tmp_path, subwords):
    folder.save(tmp_path / "m", made(TABLES["gru"], subwords), subwords)
    model = folder.open(tmp_path / "m").model.train()
    model(torch.tensor([[5, 6, 2]]), torch.tensor([[1, 9]])).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

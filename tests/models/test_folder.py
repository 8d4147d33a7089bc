"""Model folders: what is saved comes back, in each way of storing; whatever else is there is refused by name."""

import os
import re
import resource
import shutil

import pytest
import torch

from regard.files.tensors import read_tensors, write_tensors
from regard.files.toml import read_toml, to_toml
from regard.files.whole import Damaged
from regard.models import RNNConfig, RNNSeq2Seq, Transformer, TransformerConfig, folder
from regard.text import Subwords


@pytest.fixture(scope="module")
def subwords():
    return Subwords.learn([["the cat sat on the mat", "le chat était assis"]], 270)


def transformer(subwords, **options):
    size = {"dim": 16, "ffn_dim": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return Transformer(TransformerConfig(**{"vocab_size": len(subwords), **size, **options})).eval()


@pytest.fixture
def saved(tmp_path, subwords):
    path = tmp_path / "model"
    folder.save(path, transformer(subwords), subwords, settings={"task": "translation"}, card="# A model\n")
    return path


SOURCE, TARGET = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])


@pytest.mark.parametrize("store", folder.STORES)
def test_what_is_saved_comes_back(tmp_path, subwords, store):
    model = transformer(subwords, cross_score=[[1, "dot"], [1, {"kind": "additive", "hidden_dim": 4}]])
    folder.save(tmp_path / "m", model, subwords, settings={"task": "translation", "x": {"y": 1.5}}, store=store)
    loaded = folder.open(tmp_path / "m")
    assert not loaded.model.training and loaded.settings["x"] == {"y": 1.5}
    assert loaded.model.config == model.config or loaded.model.config.to_table() == model.config.to_table()
    assert loaded.subwords.fingerprint == subwords.fingerprint
    with torch.no_grad():
        ours, theirs = loaded.model(SOURCE, TARGET), model(SOURCE, TARGET)
    allowed = {"float32": 0.0, "float16": 0.01, "int8": 0.1}[store]
    assert (ours - theirs).abs().max() <= allowed * theirs.abs().max()


def test_a_recurrent_model_comes_back(tmp_path, subwords):
    model = RNNSeq2Seq(RNNConfig(vocab_size=len(subwords), dim=8, hidden_dim=16, cell="lstm", score="general")).eval()
    folder.save(tmp_path / "m", model, subwords)
    torch.testing.assert_close(folder.open(tmp_path / "m").model(SOURCE, TARGET), model(SOURCE, TARGET), rtol=0, atol=0)


def test_int8_is_within_half_a_step():
    w = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-7, 3, 50)[:, None]
    w[7] = 0.0
    numbers, scale = folder.quantize(w)
    assert numbers.dtype == torch.int8 and scale.dtype == torch.float16 and scale.isfinite().all()
    error = (numbers.float() * scale.float()[:, None] - w).abs()
    assert (error <= 0.5001 * scale.float()[:, None]).all()
    # and a step is one 127th of the row's peak, but for the rounding of the scale and where float16 is too coarse
    rows = w.abs().amax(1) > 1e-2
    assert (scale.float()[rows] * 127 <= w.abs().amax(1)[rows] * 1.001).all()


def test_int8_takes_a_byte_a_weight(tmp_path, subwords):
    model = transformer(subwords, dim=128, ffn_dim=256)
    folder.save(tmp_path / "m", model, subwords, store="int8")
    weights = sum(p.numel() for p in model.parameters())
    assert (tmp_path / "m" / "model.safetensors").stat().st_size < 1.08 * weights + 20_000


# --- whatever else is there ---


def test_there_is_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such model folder"):
        folder.open(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"not a model folder: it has no config.toml"):
        folder.open(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_file_is_missing(saved, name):
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{name} missing from the model folder; copy it again")):
        folder.open(saved)


def test_training_has_not_ended(saved):
    (saved / "model.safetensors").unlink()
    (saved / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match="its training is not finished: run the same command again"):
        folder.open(saved)


@pytest.mark.parametrize("part", [0, 7, 0.5, 0.999])
def test_weights_cut_short(saved, part):
    path = saved / "model.safetensors"
    size = part if part in (0, 7) else int(part * path.stat().st_size)
    os.truncate(path, size)
    with pytest.raises(Damaged, match=r"model.safetensors: cut short, or not a safetensors file"):
        folder.open(saved)


def test_a_changed_byte_is_seen(saved):
    path = saved / "model.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1
    path.write_bytes(whole)
    with pytest.raises(Damaged, match="its contents have changed since it was written"):
        folder.open(saved)


def test_another_version(saved):
    config = saved / "config.toml"
    config.write_text(config.read_text().replace("format = 1", 'format = 7\nmore = "x"'))
    with pytest.raises(Damaged, match=r"a model folder of format 7, written by regard .*; this version reads format 1"):
        folder.open(saved)


def test_a_broken_configuration(saved):
    config = saved / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("dim = 16", "dim = "))
    with pytest.raises(Damaged, match=r"config.toml: not a TOML file"):
        folder.open(saved)
    config.write_text(text.replace("heads = 2", "heads = 3"))
    with pytest.raises(Damaged, match="not a usable configuration: TransformerConfig: dim must be a multiple of heads"):
        folder.open(saved)
    config.write_text(text.replace('kind = "transformer"', 'kind = "convolution"'))
    with pytest.raises(Damaged, match="kind must be one of transformer, rnn, pointer, reader, got 'convolution'"):
        folder.open(saved)


def test_parts_of_different_models(saved, subwords, tmp_path):
    folder.save(tmp_path / "other", transformer(subwords, dim=8), subwords)
    shutil.copy(tmp_path / "other" / "model.safetensors", saved)
    with pytest.raises(
        Damaged, match=r"is \[\d+(, \d+)?\], config.toml says \[\d+(, \d+)?\]; they belong to different models"
    ):
        folder.open(saved)
    folder.save(tmp_path / "other", transformer(subwords, encoder_layers=2), subwords)
    shutil.copy(tmp_path / "other" / "model.safetensors", saved)
    with pytest.raises(Damaged, match=r"weights too many, encoder.1"):
        folder.open(saved)
    folder.save(tmp_path / "other", transformer(subwords, decoder_layers=0), subwords)
    shutil.copy(tmp_path / "other" / "model.safetensors", saved)
    with pytest.raises(Damaged, match="weights are missing, decoder"):
        folder.open(saved)


def test_subwords_of_another_model(saved):
    Subwords.learn([["something else altogether"]], 262).save(saved / "tokenizer.json")
    with pytest.raises(Damaged, match=r"config.toml says 265 subwords, tokenizer.json has 262"):
        folder.open(saved)


def test_a_way_to_store_that_is_not_known(tmp_path, subwords):
    with pytest.raises(ValueError, match="store must be one of float32, float16, int8, got 'int4'"):
        folder.save(tmp_path / "m", transformer(subwords), subwords, store="int4")


def test_a_file_where_the_folder_should_be(tmp_path, subwords):
    (tmp_path / "m").write_text("mine")
    with pytest.raises(NotADirectoryError, match="expected a folder to write the model to, but it is a file"):
        folder.save(tmp_path / "m", transformer(subwords), subwords)
    assert (tmp_path / "m").read_text() == "mine"


# --- the files themselves ---


def test_tensors_of_another_library_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(Damaged, match="a safetensors file, but not one of regard's"):
        read_tensors(tmp_path / "x.safetensors")


def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"x": torch.ones(3)}, {"n": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="could not be written: File too large"):
            write_tensors(path, {"x": torch.ones(30_000)}, {"n": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tensors, about = read_tensors(path)
    assert about == {"n": 1} and torch.equal(tensors["x"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_tensors_keep_their_kind(tmp_path):
    some = {
        "f": torch.randn(3, 2),
        "b": torch.randn(4).bfloat16(),
        "i": torch.tensor([1, -2]),
        "n": torch.tensor(3.0),
        "e": torch.zeros(0, 5),
        "t": torch.randn(3, 4).T,
    }
    write_tensors(tmp_path / "x", some, {"list": [1, None]})
    back, about = read_tensors(tmp_path / "x")
    assert about == {"list": [1, None]}
    for name, t in some.items():
        assert back[name].dtype == t.dtype and torch.equal(back[name], t)


def test_equal_tensors_make_equal_files(tmp_path):
    some = {f"t{i}": torch.full((i + 1,), float(i)) for i in range(9)}
    for n in range(8):
        write_tensors(tmp_path / f"{n}", some, {"a": 1, "b": 2, "c": 3})
    assert len({(tmp_path / f"{n}").read_bytes() for n in range(8)}) == 1


def test_toml_comes_back(tmp_path):
    table = {
        "a": 1,
        "b": -2.5e-8,
        "s": 'quotes " and \\ and é\n',
        "t": True,
        "none": None,
        "l": [1, "x", [2.0, {"k": [False]}]],
        "m": {"x": 1, "inner": {"odd key": "v", "é": 2}},
    }
    (tmp_path / "x.toml").write_text(to_toml(table))
    assert read_toml(tmp_path / "x.toml") == {key: value for key, value in table.items() if value is not None}

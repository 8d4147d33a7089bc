"""The models of the recipe: cut into parts and made whole, mixed, put into the package; and how they search best."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from commands import PAIRS
from recipe import RECIPE, put, script

import regard
from regard.files.tensors import read_tensors, write_tensors
from regard.files.toml import read_toml, write_toml
from regard.models.folder import open as open_folder

install, mix, parts, tune = map(script, ("install", "mix", "parts", "tune"))


def test_parts_are_whole_again(tmp_path):
    (tmp_path / "model").mkdir()
    data = torch.randint(0, 255, (100_000,), dtype=torch.uint8).numpy().tobytes()
    (tmp_path / "model" / "weights").write_bytes(data)
    made = parts.split(tmp_path / "model", tmp_path / "cut", 30_000)
    assert len(made) == 4 and all(p.stat().st_size <= 30_000 for p in made)
    assert (parts.join(made[::-1], tmp_path / "again") / "weights").read_bytes() == data
    with pytest.raises(ValueError, match="parts 2 of 4 are missing"):
        parts.join(made[:1] + made[2:], tmp_path / "again")
    with pytest.raises(ValueError, match="expected a name such as"):
        parts.join([tmp_path / "model"], tmp_path / "again")


def test_a_slim_run_keeps_weights_and_place(tmp_path):
    from regard.train.checkpoint import Checkpoints, Standing

    run = tmp_path / "run"
    files = Checkpoints(run / "checkpoints", keep=2, average=1, say=lambda _: None)
    for update in (10, 20):
        weights = {
            "model.w": torch.full((4, 4), update / 7),
            "exp_avg.w": torch.ones(4, 4),
            "step.w": torch.tensor(3.0),
        }
        files.save(Standing(update=update, tokens=update * 100), weights)
    write_tensors(run / "checkpoints" / "weights-00000020.safetensors", {"w": torch.zeros(2)}, {})
    (run / "config.toml").write_text("format = 1\n")
    slim = parts.slim(run, tmp_path / "slim")
    assert sorted(p.name for p in slim.rglob("*") if p.is_file()) == ["config.toml", "state-00000020.safetensors"]
    standing, tensors = Checkpoints(slim / "checkpoints", keep=2, average=1, say=lambda _: None).latest()
    assert standing.update == 20 and standing.tokens == 2000 and list(tensors) == ["model.w"]
    torch.testing.assert_close(tensors["model.w"].float(), torch.full((4, 4), 20 / 7), rtol=1e-3, atol=0)
    with pytest.raises(FileNotFoundError, match="no unfinished run"):
        parts.slim(tmp_path, tmp_path / "slim")


@pytest.mark.parametrize("name", ["teacher", "student", "again", "reverse"])
def test_settings_can_be_trained_with(name):
    from regard.models.folder import make_model, pack
    from regard.tasks.base.settings import Settings
    from regard.tasks.translation.train import WORK

    fitted = WORK.fit_settings(Settings.from_tables(read_toml(RECIPE / f"{name}.toml")), 300_000, True, None)
    with torch.device("meta"):
        model = make_model({**fitted.model, "vocab_size": fitted.cutting.vocab_size})
    if name != "teacher":
        stored = pack({k: torch.zeros(v.shape) for k, v in model.state_dict().items()}, "int8")
        assert 14e6 < sum(t.nbytes for t in stored.values()) < 16 * 2**20
    names = [Path(table["tsv"]).name.split(".")[0].removeprefix("distilled-") for table in fitted.data.corpora]
    assert set(names) <= {"tatoeba", "variants", "quotations", "longer", "laws", "docs", "help", "names", "mono"}


# --- mixed ---


def test_weights_are_mixed(model, tmp_path):
    shutil.copytree(model, tmp_path / "old")
    tensors, about = read_tensors(tmp_path / "old" / "model.safetensors")
    write_tensors(tmp_path / "old" / "model.safetensors", {k: -t for k, t in tensors.items()}, about)
    for share in (0.0, 0.25, 1.0):
        mix.mix(tmp_path / "old", model, share, tmp_path / f"mixed-{share}")
        mixed, new = (open_folder(path) for path in (tmp_path / f"mixed-{share}", model))
        assert mixed.settings["model"] == new.settings["model"]
        for name, found in mixed.model.state_dict().items():
            wanted = new.model.state_dict()[name] * (2 * share - 1)
            step = wanted.abs().amax(-1, keepdim=True) / 127 if wanted.ndim > 1 else 1e-3
            assert ((found - wanted).abs() <= 0.51 * step + 1e-3 * wanted.abs() + 1e-6).all(), name


def test_what_cannot_be_mixed_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"from 0 to 1, got 1\.5"):
        mix.mix(model, model, 1.5, tmp_path / "mixed")
    with pytest.raises(ValueError, match="have different subwords"):
        mix.mix(model, regard.files.bundled.BUNDLED / regard.files.bundled.DEFAULT, 0.5, tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()


# --- into the package ---


@pytest.fixture
def trained(model, tmp_path):
    """A trained folder whose settings name places of the machine that it was trained on."""
    path = tmp_path / "student"
    shutil.copytree(model, path)
    table = read_toml(path / "config.toml")
    table["data"] = {
        "source": "C:\\data\\train.en",
        "valid_source": "../valid.en",
        "corpora": [{"tsv": "/home/me/data/tatoeba.tsv.gz", "weight": 2.0}],
        "cache": "/home/me/cache",
    }
    write_toml(path / "config.toml", table)
    return path


HOW = {"split": 80, "beam": 4, "length_penalty": 0.8}


def test_a_trained_model_is_installed(trained, translator, tmp_path, capsys):
    to = tmp_path / "bundled" / "en-fr-small"
    size = install.install(trained, to, HOW, {"layer": 1, "head": 2, "shift": False})
    assert sorted(path.name for path in to.iterdir()) == ["config.toml", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in to.parent.iterdir()) == ["en-fr-small"]
    assert size == sum(path.stat().st_size for path in to.iterdir()) < install.LIMIT
    assert read_tensors(to / "model.safetensors")[1]["store"] == "int8"
    assert (
        "/" not in (to / "config.toml").read_text().replace("c/", "") and "home" not in (to / "config.toml").read_text()
    )
    data = read_toml(to / "config.toml")["data"]
    assert data["corpora"] == [{"tsv": "tatoeba.tsv.gz", "weight": 2.0}] and "cache" not in data
    assert (data["source"], data["valid_source"]) == ("train.en", "valid.en")
    found = regard.load(to, device="cpu")
    assert (found.search.beam, found.search.length_penalty, found.split) == (4, 0.8, 80)
    assert tuple(found.look(2)) == (1, 2, False)
    assert found.translate("the dog sees a cat .") == translator.translate("the dog sees a cat .")
    (to / "README.md").write_text("an old card")
    install.install(to, tmp_path / "again", HOW)  # what is int8 stays as it is, what is guided stays guided
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (to / "model.safetensors").read_bytes()
    assert read_toml(tmp_path / "again" / "config.toml") == read_toml(to / "config.toml")
    install.install(trained, to, HOW, {"layer": 0, "head": None, "shift": True})
    assert not (to / "README.md").exists() and read_toml(to / "config.toml")["align"] == {"layer": 0, "shift": True}


def test_what_cannot_be_installed_leaves_the_old_one(trained, tmp_path, monkeypatch):
    to = tmp_path / "en-fr-small"
    install.install(trained, to, HOW, {"layer": 0})
    before = {path.name: path.read_bytes() for path in to.iterdir()}
    table = read_toml(trained / "config.toml")
    write_toml(trained / "config.toml", {name: value for name, value in table.items() if name != "align"})
    with pytest.raises(ValueError, match=r"no \[align\]: give --layer"):
        install.install(trained, to, HOW)
    with pytest.raises(ValueError, match=r"\[translate\]: unknown option beams"):
        install.install(trained, to, {"beams": 3}, {"layer": 0})
    monkeypatch.setattr(install, "LIMIT", 20_000)
    with pytest.raises(ValueError, match="at most 16 MiB may be"):
        install.install(trained, to, HOW, {"layer": 0})
    with pytest.raises(FileNotFoundError, match="there is no such model folder"):
        install.install(tmp_path / "nowhere", to, HOW)
    assert {path.name: path.read_bytes() for path in to.iterdir()} == before
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_searches_and_cuts_are_measured(translator, monkeypatch, tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    put(tmp_path / "valid.tsv.gz", *("\t".join(pair) for pair in PAIRS[:6]))
    monkeypatch.setattr("regard.tasks.translation.translator.load", lambda *_, **__: translator)
    said = []
    for more in (["--beams", "1,2", "--penalties", "0.5,1.5"], ["--joined", "3", "--splits", "0,99"]):
        given = ["tune.py", "--model", "m", "--valid", str(tmp_path / "valid.tsv.gz"), *more]
        monkeypatch.setattr(sys, "argv", given)
        monkeypatch.setattr(translator, "split", translator.split)
        tune.main()
        said.append([line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:])
    assert [row[:2] for row in said[0]] == [["| 1", "any"], ["| 2", "0.5"], ["| 2", "1.5"]]
    assert [row[0] for row in said[1]] == ["| 0", "| 99"]
    assert float(said[0][0][2]) > 90 and float(said[1][0][1]) > 90

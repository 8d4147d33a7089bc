"""Files written before the package's modules moved: model, weights, trace, program and checkpoint mean what they meant.

``before`` holds them and what they gave then, in ``expected.json``.
"""

import importlib
import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training import main

import regard
import regard.nn
from regard.common.moved import MOVED
from regard.mask import Causal
from regard.score import Additive, Dot, PerHead, Relative, Rotary

BEFORE = Path(__file__).parent / "before"
EXPECTED = json.loads((BEFORE / "expected.json").read_text())
ENGLISH, FRENCH = ((BEFORE / "run" / f"train.{side}").read_text().splitlines()[:3] for side in ("en", "fr"))
INPUT = torch.linspace(-1, 1, 2 * 5 * 16).reshape(2, 5, 16).sin() * 3


def close(found, expected):
    np.testing.assert_allclose(torch.as_tensor(found).detach().numpy(), np.array(expected), rtol=1e-5, atol=1e-6)


def test_a_model_folder_translates_and_scores_as_before():
    translator = regard.load(BEFORE / "model", device="cpu")
    assert translator.translate(ENGLISH, beam=2, max_length=6, known_words=False) == EXPECTED["translations"]
    close(translator.score(list(zip(ENGLISH, FRENCH, strict=True))), EXPECTED["scores"])


def test_a_state_dict_loads():
    score = PerHead((1, Dot()), (1, Relative(4, 3, values=True)), (1, Rotary(Dot())), (1, Additive(4, 4, 3)))
    attention = regard.nn.MultiHeadAttention(16, 4, score=score).eval()
    attention.load_state_dict(load_file(BEFORE / "attention.safetensors"))
    close(attention(INPUT, mask=Causal()), EXPECTED["attention"])


def test_a_trace_opens():
    close(regard.trace.load(BEFORE / "trace.safetensors").weights(0, 1), EXPECTED["weights"])


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the program was exported by torch 2.13")
def test_an_exported_program_runs():
    program = torch.export.load(BEFORE / "program.pt2").module()
    close(program(INPUT), EXPECTED["program"])


def test_a_killed_run_is_resumed_to_the_same_weights(tmp_path, monkeypatch, capsys):
    shutil.copytree(BEFORE / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    assert main(["--config", "toy.toml", "--out", "killed"]) == 0
    assert "from update 4" in capsys.readouterr().err
    found, expected = (load_file(path) for path in ("killed/model.safetensors", "whole.safetensors"))
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(
            found[name], weight, rtol=1e-4, atol=1e-6, msg=name
        )  # another CPU may round otherwise


@pytest.mark.parametrize("old", [old for old, new in MOVED.items() if isinstance(new, str)])
def test_the_old_place_of_a_module_is_the_new_one_and_says_so(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{old} has moved: import {MOVED[old]}$") as caught:
        found = importlib.import_module(old)
    assert found is importlib.import_module(MOVED[old]) and len(caught) == 1


def test_public_names_of_before_are_there():
    for name in ("align", "data", "evaluate", "plot", "text", "train"):
        assert importlib.import_module(f"regard.{name}").__all__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert regard.grammar.pairs is regard.testing.grammar.pairs
        assert regard.aligner.learn is regard.align.statistical.learn

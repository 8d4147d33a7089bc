"""The benchmarks run and measure what they say they measure; how fast anything is, no test asks."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _measure

    return _measure


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _peers

    return _peers


def run(script, *arguments, **environment):
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.slow
def test_the_cpu_command_in_small(tmp_path):
    done = run("run.py", "--quick", "--json", tmp_path / "cpu.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "cpu.json").read_text(encoding="utf-8"))
    assert {"cpu", "threads", "torch", "numba", "date"} <= set(found["machine"])
    assert found["ceilings"]["multiply_adds_per_second"] > 1e8 and found["ceilings"]["bytes_per_second"] > 1e8
    additive = next(row for row in found["rows"] if row["what"] == "additive, forward")
    assert {"regard", "eager", "SDPA dot", "limit"} <= set(additive["ms"])
    for name, ratio in additive["ratio"].items():
        assert ratio == pytest.approx(additive["ms"][name] / additive["ms"]["regard"])
    assert [row["what"] for row in found["decode"]] == ["additive, one step", "relative, one step", "dot, one step"]
    assert [(s["over"], len(s["x"])) for s in found["sweeps"]] == [("n", 2), ("d", 2)]
    for sweep in found["sweeps"]:
        assert all(len(ms) == 2 and min(ms) > 0 for ms in sweep["ms"].values())
    assert min(found["memory"][0]["bytes"]["additive"]) > 0
    for part in ("eager", "Keras", "limit", "exponent"):
        assert part in done.stdout


def test_the_gpu_command_says_what_it_needs():
    done = run("gpu.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1 and "needs a CUDA GPU" in done.stderr and "make bench" in done.stderr
    assert "additive" in run("gpu.py", "--only", "tanh").stderr


def test_exponents_are_those_of_a_power(measure):
    x = [128, 256, 512, 1024]
    assert measure.exponent(x, [3e-5 * n**1.5 for n in x]) == pytest.approx(1.5)
    assert measure.exponent(x, [0, 7, 0, 7]) == pytest.approx(0)  # what could not be measured is left out
    assert measure.exponent([1], [1]) is None


def test_medians_take_turns(measure):
    order = []
    times = measure.medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 4 and set(times) == {"a", "b"}
    order.clear()
    measure.medians({"a": lambda: order.append("a")}, 1000, budget=0.0)
    assert len(order) == 2  # one to warm up, one timed


def test_keras_does_the_same_work(peers, monkeypatch, tmp_path):
    """Heads as batch items of one layer: the benchmark compares equal numbers."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    torch.manual_seed(0)
    score = peers.score("additive", 16)
    theirs = peers.keras_additive(score)
    if isinstance(theirs, str):
        pytest.skip(theirs)
    peers.agree(theirs, peers.fused(score), 3, 16)
    with pytest.raises(AssertionError):
        peers.agree(theirs, peers.fused(peers.score("additive", 16)), 3, 16)


def test_the_limit_counts_what_the_page_counts(peers):
    """Per pair of 64 hidden units and value dims: 9/4 and 1 forward; 9/4 + 6 and 2 more backward."""
    assert peers.multiply_adds("additive", 1, 1, 64) == 64 * 3.25
    assert peers.multiply_adds("additive", 2, 3, 64, backward=True) == 18 * 64 * (3.25 + 10.25)
    assert peers.multiply_adds("dot", 1, 10, 64, backward=True) == 100 * 64 * 7
    assert math.isclose(peers.multiply_adds("relative", 1, 10, 64), 100 * 64 * 2)

"""The benchmarks run and measure what they say they measure; how fast anything is, no test asks."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard.attention.plan

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tables

    return tables


@pytest.mark.slow
def test_looks_into_long_texts_in_small():
    done = run("long_view.py", "--tokens", "3000")
    assert done.returncode == 0, done.stderr
    assert all(f"| {score} |" in done.stdout for score in ("Dot", "Additive", "Relative"))
    assert re.search(r"\| 3,000 \| ≈ \d+ MB \|", done.stdout)


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


@pytest.mark.slow
def test_the_gpu_command_says_what_it_needs():
    done = run("gpu.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1 and "needs a CUDA GPU" in done.stderr and "make bench" in done.stderr
    assert "additive" in run("gpu.py", "--only", "tanh").stderr


def test_everyday_calls_are_compared_with_calls_that_mean_the_same(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import everyday

    data = everyday.inputs(2, 64, 16, "cpu", torch.float64)
    found = everyday.cases(2, 64, 16, data[0].detach())
    assert len(found) == 12
    for name, peers in found.items():
        ours = peers["regard"](*data)
        assert everyday.kernel_of(peers["regard"], data) in regard.attention.plan.KERNELS
        for peer, call in peers.items():
            if "dropout" not in name:  # which drops other weights
                torch.testing.assert_close(call(*data), ours, rtol=1e-6, atol=1e-6, msg=f"{name}: {peer}")


def test_exponents_are_those_of_a_power(measure):
    x = [128, 256, 512, 1024]
    assert measure.exponent(x, [3e-5 * n**1.5 for n in x]) == pytest.approx(1.5)
    assert measure.exponent(x, [0, 7, 0, 7]) == pytest.approx(0)  # what could not be measured is left out
    assert measure.exponent([1], [1]) is None


def test_medians_take_turns(measure, monkeypatch):
    order = []
    both = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    warm = measure.REPEATS + 1  # what is short runs once more, untimed, before it is timed
    times = measure.medians(both, 3)
    assert order == ["a", "b"] * 2 + (["a"] * warm + ["b"] * warm) * 3 and set(times) == {"a", "b"}
    order.clear()
    monkeypatch.setattr(measure, "SHORT", 0.0)
    measure.medians(both, 3)
    assert order == ["a", "b"] * 5  # one to warm up, one to see how long it takes, three timed
    order.clear()
    measure.medians({"a": both["a"]}, 1000, budget=0.0)
    assert len(order) == 3  # one of them timed


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
    """Per pair of 64 hidden units and value dims: 9/4 and 1 forward; 9/4 + 21/4 and 2 more backward."""
    assert peers.multiply_adds("additive", 1, 1, 64) == 64 * 3.25
    assert peers.multiply_adds("additive", 2, 3, 64, backward=True) == 18 * 64 * (3.25 + 9.5)
    assert peers.multiply_adds("dot", 1, 10, 64, backward=True) == 100 * 64 * 7
    assert math.isclose(peers.multiply_adds("relative", 1, 10, 64), 100 * 64 * 2)


# --- docs/kernels.md ---

PAGE = ROOT / "docs" / "kernels.md"


def block(name):
    page = PAGE.read_text(encoding="utf-8")
    return page.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0].strip()


@pytest.mark.parametrize("name", ["series", "terms", "floors", "tensor", "cpu", "gpu", "exponents"])
def test_the_page_quotes_the_results(tables, name):
    """No measured number is typed by hand; `python benchmarks/plots.py` writes them anew."""
    text = tables.TABLES[name](BENCHMARKS / "results")
    if text is None:
        assert "Not measured yet" in block(name)
    else:
        assert block(name) == text


def test_the_pages_pictures_are_there_and_small():
    names = re.findall(r"\]\(img/(\S+?)\)", PAGE.read_text(encoding="utf-8"))
    assert {"kernel-series-error.svg", "kernel-fraction-error.svg"} <= set(names)
    for name in names:
        assert (ROOT / "docs" / "img" / name).stat().st_size < 150_000


def test_the_range_on_the_page_is_the_kernels():
    from regard.kernels import cpu_additive

    page = PAGE.read_text(encoding="utf-8")
    for limit in cpu_additive.RANGE.values():
        assert re.search(rf"\\\|[abx]\\\| ≤ {limit:g}\b", page)


@pytest.fixture
def results(tmp_path):
    """A folder of results as the commands write them, with made-up numbers."""
    x = [512, 1024, 2048]
    about = {"cpu": "a CPU", "gpu": "a GPU", "threads": 2, "torch": "2", "numba": "0", "keras": "3", "vectors": "V"}
    sweep = {"x": x, "heads": 8, "n": 512, "d": 64, "dtype": "float32"}
    values = {"additive": [1.0, 4.0, 16.0], "additive eager": [9.0, None, None]}
    exponents = {"additive": 2.0, "additive eager": None}
    both = [{**sweep, "over": over, "ms": values, "exponents": exponents} for over in ("n", "d")]
    memory = [{**sweep, "over": "n", "bytes": values, "exponents": exponents}]
    rows = [{"what": "additive, forward", "ms": {"regard": 1.0, "eager": 50.0, "limit": 0.5}}]
    ceilings = {"multiply_adds_per_second": 1e11, "bytes_per_second": 1e10}
    whole = {
        "machine": {**about, "date": "today"},
        "sweeps": both,
        "memory": memory,
        "rows": rows,
        "ceilings": ceilings,
    }
    for name in ("cpu", "h200-sweeps"):
        (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    return tmp_path


def test_tables_from_results(tables, results):
    assert "| additive, forward | 1.00 | 50.00 | 0.50 |" in tables.cpu(results)
    assert "| cpu, float32, time against n | 2.00 | – |" in tables.exponents(results)
    assert tables.terms(results) is None and tables.gpu(results) is None


@pytest.mark.slow
def test_plots_are_drawn_from_what_there_is(results, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import plots

    out = tmp_path / "img"
    monkeypatch.setattr(plots, "TERMS", (4, 8))  # fitting more takes a quarter of a minute
    monkeypatch.setattr(sys, "argv", ["plots.py", "--results", str(results), "--out", str(out)])
    plots.main()
    drawn = {"series-error", "fraction-error", "time-cpu", "time-h200", "memory"}
    assert {path.name for path in out.iterdir()} == {f"kernel-{name}.svg" for name in drawn}
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    (results / "cpu.json").write_text(json.dumps({"machine": {}, "rows": []}))
    (results / "h200-sweeps.json").unlink()
    plots.main()
    assert "kernel-memory: left out" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first  # the same numbers, the same files


def test_decoding_is_of_the_same_tokens(monkeypatch):
    """Ours and, where it is installed, Hugging Face's ``generate`` write as many as they are told to."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import decode_speed

    for name, value in {"VOCAB": 500, "DIM": 16, "FFN": 16, "HEADS": 2, "ENCODER": 1, "DECODER": 1, "BATCH": 3}.items():
        monkeypatch.setattr(decode_speed, name, value)
    batches = decode_speed.in_batches(decode_speed.sentences([4, 9, 5, 4, 7]))
    assert list(map(len, batches)) == [3, 2]
    assert decode_speed.decode_ours(decode_speed.ours(), batches) == 29
    pytest.importorskip("transformers")
    assert decode_speed.decode_theirs(decode_speed.theirs(), batches) == 29


def test_a_trainer_learns_what_the_plain_loop_learns(monkeypatch):
    """The same updates on the same batches: then their speeds may be compared."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _marian
    import train_speed

    monkeypatch.setattr(train_speed, "VOCABULARY", 50)
    cpu = torch.device("cpu")
    size = {"dim": 16, "ffn_dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    epoch = train_speed.batches(train_speed.corpus(40), tokens=200, multiple=8)
    some = [train_speed.tensors(epoch[k]) for k in range(4)]
    torch.manual_seed(0)
    ours, theirs = (_marian.marian(size, 50, cpu) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    step = train_speed.marian_step(ours, cpu)
    for batch in (some[-1], *some):  # one to warm up
        step(batch)
    before = theirs.model.shared.weight.detach().clone()
    assert 0 < _marian.trainer_seconds(theirs, some, cpu) < 60
    assert (theirs.model.shared.weight - before).abs().max() > 3e-4  # five updates of at most 1e-4
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(theirs.state_dict()[name], weight, rtol=0, atol=1e-7, msg=name)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_peer_that_fails_says_why(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import train_speed

    monkeypatch.setitem(sys.modules, "transformers", None)
    size = {"dim": 16, "ffn_dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    found = train_speed.measure(size, torch.device("cpu"), 200, 2, 1, False)
    assert found["regard"] > 0 and found["torch.nn.Transformer"] > 0
    for name in ("transformers Marian", "transformers Marian, Trainer"):
        assert "transformers" in found[name]


@pytest.fixture
def scores(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scores_on_multi30k

    return scores_on_multi30k


def test_every_model_of_the_score_table_can_be_made(scores):
    from regard.models.folder import make_model

    sizes = {}
    for family, score in scores.names():
        model = make_model({**scores.model_table(family, score), "vocab_size": 100})
        sizes[family, score] = sum(p.numel() for p in model.parameters())
    assert len(sizes) == 16 and sizes["Transformer", "Additive"] > sizes["Transformer", "Dot"]
    assert sizes["RNN", "General"] > sizes["RNN", "Dot"]


def test_a_partial_score_table_says_so(scores):
    row = {"parameters": 1234, "bleu": {}, "ms_per_update": 1.26, "sentences_per_s": 99.6, "updates": 5, "seed": 1}
    row |= {"beam": 5, "machine": "a machine", "torch": "2", "alignment": {}}
    table = scores.markdown({"rnn-dot": row})
    assert (
        table.startswith("PARTIAL: 1 of 16 models; not yet Transformer Dot, ")
        and "RNN Dot" not in table.splitlines()[0]
    )
    assert "| RNN | Dot | 1,234 | not scored yet |  | 1.3 | 100 |" in table
    row = {
        **row,
        "bleu": dict.fromkeys(scores.TESTS, 61.84),
        "alignment": {"test2016": {"aer": 33.33}, "Hansards": {"aer": 44.44}},
    }
    table = scores.markdown({scores.slug(*name): row for name in scores.names()})
    assert "PARTIAL" not in table and "NOT TIMED" not in table and "| 61.8 / 61.8 / 61.8 | 33.3 / 44.4 |" in table
    untimed = {key: value for key, value in row.items() if key not in ("machine", "ms_per_update", "sentences_per_s")}
    table = scores.markdown({scores.slug(*name): untimed for name in scores.names()})
    assert table.startswith("NOT TIMED: Transformer Dot, ") and "| 33.3 / 44.4 | – | – |" in table


@pytest.mark.slow
def test_the_score_table_in_small(tmp_path):
    for name in ("train", "val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"):
        for side, text in (("en", "the cat number {} sleeps ."), ("fr", "le chat numéro {} dort .")):
            lines = "".join(text.format(n) + "\n" for n in range(60))
            (tmp_path / f"{name}.lc.norm.tok.{side}").write_text(lines, encoding="utf-8")
    small = ["--updates", 4, "--tokens", 600, "--vocab-size", 300, "--test-lines", 4, "--timed", 2, "--beam", 2]
    small += ["--device", "cpu", "--minutes", 15]
    paths = ["--work", tmp_path / "work", "--records", tmp_path / "records.json", "--results", tmp_path / "results"]
    done = run("scores_on_multi30k.py", tmp_path, *small, *paths, "--scores", "Dot")
    assert done.returncode == 0, done.stderr
    assert "PARTIAL: 2 of 16 models" in done.stdout
    before = (tmp_path / "records.json").read_text()
    assert set(json.loads(before)) == {"transformer-dot", "rnn-dot"}
    done = run("scores_on_multi30k.py", tmp_path, *small, *paths, "--scores", "Dot")
    assert not any(word in done.stdout for word in ("trained", "translated", "timed", "done"))
    assert (tmp_path / "records.json").read_text() == before
    done = run(
        "scores_on_multi30k.py", tmp_path, *small, *paths, "--scores", "General", "--families", "RNN", "--tokens", 2
    )
    assert "rnn-general: FAILED" in done.stdout and "cannot hold pair" in done.stdout  # and why
    done = run("scores_on_multi30k.py", tmp_path, *paths, "--evaluate")
    found = json.loads((tmp_path / "results" / "scores-on-multi30k.json").read_text())
    assert done.returncode == 0 and set(found["rnn-dot"]["bleu"]) == {"test2016", "test2017", "mscoco"}


def test_start_up_is_told_in_parts(monkeypatch):
    """Of a command that imports little, and of one that says what it took."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import startup

    said = "import time: self [us] | cumulative | imported package\nimport time:   100000 |     100000 |   numpy\n"
    said += "import time:   400000 |     500000 | torch\nimport time:   250000 |     250000 | regard\nregard: a note\n"
    monkeypatch.setattr(startup, "run", lambda _: (1.0, said))
    assert startup.parts(2) == pytest.approx({"torch": 0.5, "other imports": 0.25, "the rest": 0.25})
    monkeypatch.undo()
    assert startup.run(["-X", "importtime", "-c", "import json"])[1].count("import time:") > 3

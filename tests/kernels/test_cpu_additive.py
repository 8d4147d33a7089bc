"""What is particular to the numba kernel: range, threads, life without numba. The rest is in test_kernels."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard.kernels import _dropout, _threads, cpu_additive
from regard.mask import Causal, Dense, Documents, Lengths, Window
from regard.score import Additive, ALiBi, Bias, Key, Location

pytest.importorskip("numba")


def problem(n: int = 70, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> tuple[Additive, list[Tensor]]:
    torch.manual_seed(n)
    score = Additive(8, 8, 6).to(dtype)
    return score, [torch.randn(2, 4, n, 8, dtype=dtype) * scale for _ in range(2)] + [
        torch.randn(2, 4, n, 5, dtype=dtype)
    ]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("kind", ["random", "opposite", "equal", "one side"])
def test_range(scale: float, kind: str) -> None:
    """Exact where e^{2a} overflows too: the error is that of the textbook formula in the same precision."""
    score, (q, k, v) = problem(scale=scale)
    if kind == "opposite":
        k = -q @ score.W.T @ torch.linalg.pinv(score.U.T)  # U k = −W q: large values that cancel
        k[:, :, 1:] = k[:, :, :1]
    elif kind == "equal":
        q, k = q[:, :, :1].expand_as(q), k[:, :, :1].expand_as(k)
    elif kind == "one side":
        k = k / scale
    expected = regard.attend(q.double(), k.double(), v.double(), score=score.double(), backend="reference")
    score = score.float()
    eager = (regard.attend(q, k, v, score=score, backend="reference") - expected).abs().max().item()
    error = (regard.attend(q, k, v, score=score, backend="cpu_additive") - expected).abs().max().item()
    assert error <= 2 * eager + 1e-6


def test_calls_from_many_threads_at_once() -> None:
    """As in servers."""
    score, inputs = problem(200)
    expected = regard.attend(*inputs, score=score)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: regard.attend(*inputs, score=score), range(24)))
    assert all(torch.equal(r, expected) for r in results)


def test_threads_follow_torch() -> None:
    score, inputs = problem(300)
    expected = regard.attend(*inputs, score=score)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = regard.attend(*leaves, score=score)
        three = torch.autograd.grad(out.sum(), leaves)
        assert torch.equal(out, expected)
        torch.set_num_threads(1)
        one = torch.autograd.grad(regard.attend(*leaves, score=score).sum(), leaves)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(three, one, strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture(params=["PyTorch's threads", "our own"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads, of OpenMP or of the pool."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if request.param == "our own":
        monkeypatch.setattr(_threads, "_openmp", lambda process: None)
    elif _threads._openmp(os.getpid()) is None:
        pytest.skip("PyTorch does not run on GNU OpenMP here")


@pytest.mark.usefixtures("threads")
def test_work_is_spread() -> None:
    """Every number once, on three threads (which wait for each other, so that each gets something)."""
    seen: list[int] = []
    idents: set[int] = set()
    meeting = threading.Barrier(3, timeout=20)

    def work(i: int, j: int) -> None:
        if threading.get_ident() not in idents:
            idents.add(threading.get_ident())
            meeting.wait()
        seen.extend(range(i, j))

    _threads.spread(100, 2**30, work)
    assert sorted(seen) == list(range(100))
    assert len(idents) == 3


@pytest.mark.usefixtures("threads")
def test_what_a_thread_raises_is_raised() -> None:
    def fail(i: int, j: int) -> None:
        raise ZeroDivisionError("in a thread")

    with pytest.raises(ZeroDivisionError, match="in a thread"):
        _threads.spread(100, 2**30, fail)


def _in_a_child(queue: multiprocessing.Queue[list[int]]) -> None:
    seen: list[int] = []
    _threads.spread(100, 2**30, lambda i, j: seen.extend(range(i, j)))
    queue.put(sorted(seen))


@pytest.mark.usefixtures("threads")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_makes_threads_of_its_own() -> None:
    """A forked child has no threads. (Neither has PyTorch, so the child only runs our part.)"""
    _threads.spread(100, 2**30, lambda i, j: None)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,), daemon=True)
    child.start()
    assert queue.get(timeout=30) == list(range(100))


def test_dropout_is_the_common_hash() -> None:
    """One head and weights that are all equal: what is left of them shows which were dropped."""
    score, n, seed = Additive(4, 4, 4), 300, (7 << 32) + 5
    q, k, v = torch.zeros(1, 2, n, 4), torch.zeros(1, 2, n, 4), torch.eye(n).expand(1, 2, n, n)
    out = regard.attend(q, k, v, score=score, dropout=0.4, seed=seed, backend="cpu_additive")
    index = torch.arange(n)
    kept = _dropout.keep(0.4, torch.tensor([seed]), torch.arange(1), torch.arange(2), index, index)
    assert torch.equal(out > 0, kept)


def test_without_numba_the_planner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    score, inputs = problem()
    monkeypatch.setattr(cpu_additive, "NUMBA_MISSING", True)
    plan = regard.plan(*inputs, score=score)
    assert plan.kernel == "blockwise"
    assert "pip install numba" in plan.refusals["cpu_additive"]


SIZES = [  # queries, keys, hidden dims, value dims: around the vectors (2 to 16 numbers) and tiles (8 to 64) of any CPU
    (9, 15, 4, 63),
    (12, 16, 8, 64),
    (11, 33, 6, 65),
    (10, 130, 64, 130),
    (17, 525, 20, 16),
]


@pytest.mark.parametrize("size", [1.0, 4.0])  # 4: products of denominators must be kept in range
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("queries", "keys", "hidden", "values"), SIZES)
def test_whole_vectors_and_what_is_left(
    queries: int, keys: int, hidden: int, values: int, dtype: torch.dtype, size: float
) -> None:
    """Context and every gradient are as near the float64 reference as the formula written out in the same precision."""
    score = Additive(8, 8, hidden)
    inputs = [torch.randn(1, 2, n, d) * s for n, d, s in ((queries, 8, size), (keys, 8, size), (keys, values, 1.0))]
    wanted = torch.randn(1, 2, queries, values)

    def results(kind: torch.dtype, backend: str) -> list[Tensor]:
        score.to(kind)
        leaves = [*(x.to(kind).requires_grad_() for x in inputs), *score.parameters()]
        out = regard.attend(*leaves[:3], score=score, backend=backend)
        return [out, *torch.autograd.grad(out, leaves, wanted.to(kind))]

    expected = [x.detach() for x in results(torch.float64, "reference")]
    eager, found = results(dtype, "reference"), results(dtype, "cpu_additive")
    for right, plain, ours in zip(expected, eager, found, strict=True):
        floor = 64 * torch.finfo(dtype).eps * right.abs().max()
        assert (ours - right).abs().max() <= 2 * (plain - right).abs().max() + floor


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of this kind")
@pytest.mark.parametrize(
    ("name", "features", "size", "dtype"),
    [("generic", "", 16, "float32"), ("haswell", "+avx,+avx2,+fma", 32, "float64")],
)
def test_on_processors_with_other_vectors(name: str, features: str, size: int, dtype: str, tmp_path: Path) -> None:
    """Compiling all loops takes a quarter of a minute for a type; 2 to 16 numbers to a vector are tried in all."""
    code = f"""
import sys
from regard.kernels.cpu_additive._numba._vectors import BYTES
assert BYTES == {size}, BYTES
import pytest
chosen = ["-k", "whole_vectors and {dtype}"]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-o", "addopts=", {__file__!r}, *chosen]))
"""
    env = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features
    }  # fmt: skip
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{2 * len(SIZES)} passed" in done.stdout


@pytest.mark.parametrize("keys", [3, 16, 40])
def test_scores_that_are_nan_stay(keys: int) -> None:
    """Also if a query sees no other keys; other queries are unaffected."""
    score, (q, k, v) = problem(keys)
    bias = torch.zeros(2, 4, keys, keys)
    bias[0, 1, 2] = torch.nan
    bias[1, 3, 1, -1] = torch.nan
    for mask in (None, Causal()):
        out = regard.attend(q, k, v, score=score + Bias(bias), mask=mask, backend="cpu_additive")
        right = regard.attend(q, k, v, score=score + Bias(bias), mask=mask, backend="reference")
        assert torch.equal(out.isnan(), right.isnan()) and bool(right[0, 1, 2].isnan().all())
        torch.testing.assert_close(out, right, equal_nan=True)


def test_many_tiles_of_every_kind() -> None:
    """Longer than a tile both ways, with masks that leave tiles empty, full and mixed."""
    score, (q, k, v) = problem(dtype=torch.float64, n=600)
    documents = torch.arange(600) // 150
    for mask in (
        Causal(),
        Window(100, 20),
        Documents(documents) & Causal(),
        Lengths(torch.tensor([600, 33])),
        ~Window(300, 300),
        Dense(torch.rand(2, 4, 1, 600) > 0.5),
    ):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        results = []
        for backend in ("cpu_additive", "blockwise"):
            out, lse = regard.attend(*leaves, score=score, mask=mask, backend=backend, return_logsumexp=True)
            results.append((out, lse, *torch.autograd.grad(out.square().sum(), leaves)))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [4096, 512])
def test_decode_step(chunk: int, dtype: torch.dtype, exponential: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few queries, keys in several chunks and tiles, every other term, from a cache whose room is not full."""
    monkeypatch.setattr(cpu_additive, "CHUNK", chunk)
    torch.manual_seed(chunk)
    n, queries = 1700, 3
    additive = Additive(8, 8, 6, heads=4, kv_heads=2).to(dtype)
    score = additive + Location(8, 5).to(dtype) + Key(8).to(dtype) + Bias(torch.randn(1, 4, 1, n, dtype=dtype))
    q = torch.randn(2, 4, queries, 8, dtype=dtype)
    k = torch.randn(2, 2, n, 8, dtype=dtype)
    room = torch.randn(2, 2, n + 40, 5, dtype=dtype)
    v = room[:, :, :n]
    sink = torch.randn(4, dtype=dtype)
    offset = torch.tensor([n - queries, 700])
    mask = Causal() & Window(1200, 0) & Lengths(torch.tensor([n - 1, 650]))
    with torch.no_grad():
        keys = score.cached_keys(k) if exponential else score.keys(k)
        assert keys.exponential == exponential
        out, lse = regard.attend(
            q, keys, v, score=score, mask=mask, offset=offset, sink=sink, return_logsumexp=True, backend="cpu_additive"
        )
        score.double()
        expected, expected_lse = regard.attend(
            q.double(), k.double(), v.double(), score=score, mask=mask, offset=offset, sink=sink.double(),
            return_logsumexp=True, backend="reference",
        )  # fmt: skip
    bound = 200 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=bound, atol=bound)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=bound, atol=bound)


@pytest.mark.parametrize("size", [1.0, 25.0, 42.0])
def test_cached_exponentials(size: float) -> None:
    """Up to |U k| = 43, and for any query, a cache of e^{2b} gives what b gives; other kernels take b back."""
    score, (q, k, v) = problem(40)
    k = k * size / (k @ score.U.T).abs().max()
    q = torch.cat((q[:, :, :2], q[:, :, 2:4] * 1e3), 2)
    with torch.no_grad():
        keys = score.cached_keys(k)
        expected = regard.attend(q.double(), k.double(), v.double(), score=score.double(), backend="reference")
        score.float()
        for backend in ("cpu_additive", "blockwise", "reference"):
            out = regard.attend(q, keys, v, score=score, backend=backend)
            torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-5)
        shown = regard.steps(q, keys, v, score=score)
    torch.testing.assert_close(shown.context.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("queries", "dropout"), [(cpu_additive.FEW + 1, 0.0), (2, 0.5)])
def test_more_than_a_decoding_step_takes_the_keys_back(queries: int, dropout: float) -> None:
    """The loops over many queries and those with dropout take b: a cache's e^{2b} must not reach them."""
    score, (q, k, v) = problem(40)
    options = {"score": score, "dropout": dropout, "seed": 3, "backend": "cpu_additive"}
    with torch.no_grad():
        expected = regard.attend(q[:, :, :queries], k, v, **options)
        out = regard.attend(q[:, :, :queries], score.cached_keys(k), v, **options)
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-5)


def test_decode_from_lowered_keys_has_gradients() -> None:
    score, (q, k, v) = problem(20, dtype=torch.float64)
    q = q[:, :, :2].requires_grad_()
    grads = []
    for keys in (k, score.keys(k), score.cached_keys(k)):
        out = regard.attend(q, keys, v, score=score)
        grads.append(torch.autograd.grad(out.square().sum(), [q, score.W, score.U, score.v]))
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0])


def test_bias_gradient_only_when_wanted() -> None:
    score, (q, k, v) = problem(20, dtype=torch.float64)
    bias = torch.randn(1, 4, 1, 20, dtype=torch.float64, requires_grad=True)
    whole = score + Bias(torch.nn.Parameter(bias))
    for backend in ("cpu_additive", "reference"):
        regard.attend(q, k, v, score=whole, backend=backend).square().sum().backward()
    grads = whole.parts[1].bias.grad  # type: ignore[union-attr]
    once = grads / 2
    (alone,) = torch.autograd.grad(
        regard.attend(q, k, v, score=whole, backend="reference").square().sum(), whole.parts[1].bias
    )
    torch.testing.assert_close(once, alone)


@pytest.mark.slow
def test_first_call_says_what_it_does_and_others_find_it_on_disk(tmp_path: object) -> None:
    """Compiling takes seconds: with a fresh cache there is a notice. `warm_up` has the rest compiled by others."""
    call = (
        "import torch, regard; q = torch.randn(1, 1, 40, 4); "
        "regard.attend(q, q, q, score=regard.score.Additive(4, 4, 4), backend='cpu_additive')"
    )
    warm = (
        "import regard; from regard.kernels.cpu_additive import _numba as loops; regard.warm_up(training=False); "
        "print(*(sum(f.stats.cache_hits.values()) for f in (loops.forward, loops.decode)))"
    )
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    first, then = (
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        for code in (call, warm)
    )
    assert "preparing the additive attention kernel (compiled once" in first.stderr and "warm_up()" in first.stderr
    assert then.stdout.split() == ["1", "1"]  # of the first process, and of one that `warm_up` started


@pytest.mark.slow
def test_warm_up_compiles_what_calls_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parallel processes if there are cores, otherwise in this one; a second call does nothing."""
    started: list[list[str]] = []
    begin = subprocess.Popen
    monkeypatch.setattr(cpu_additive, "_READY", set())
    monkeypatch.setattr(cpu_additive, "_load_loops", lru_cache(cpu_additive._load_loops.__wrapped__))
    monkeypatch.setattr(subprocess, "Popen", lambda command, **rest: started.append(command) or begin(command, **rest))
    monkeypatch.setattr(cpu_additive, "usable", lambda: 2)
    assert regard.warm_up(torch.bfloat16) > 0
    assert [command[3:5] for command in started] == [["float32", "decode"], ["float32", "backward"]]
    assert {("float32", which) for which in ("forward", "decode", "backward")} == cpu_additive._READY
    regard.warm_up()
    monkeypatch.setattr(cpu_additive, "usable", lambda: 1)
    regard.warm_up(torch.float64, training=False)
    assert len(started) == 2 and ("float64", "decode") in cpu_additive._READY
    with pytest.raises(TypeError, match=r"warm_up takes float16, .* got torch\.int64"):
        regard.warm_up(torch.int64)


def test_a_loop_is_compiled_once_for_a_type() -> None:
    """numba would compile it again for each mixture of contiguous and broadcast arrays, within the call that has it."""
    from regard.kernels.cpu_additive import _numba as loops

    score, inputs = problem(20)
    row, whole = (torch.nn.Parameter(torch.randn(shape)) for shape in ((1, 1, 1, 20), (2, 4, 20, 20)))
    of_all, of_each = ALiBi(heads=4), Location(8, 4)  # tables of offsets
    for terms in (score, score + Bias(row), score + Bias(whole) + Key(8), score + of_all, score + of_each):
        for mask in (None, Causal(), Dense(torch.rand(1, 1, 20, 20) < 0.5), Dense(torch.rand(2, 4, 20, 20) < 0.5)):
            for q, k, v in (inputs, [x.mT.contiguous().mT for x in inputs]):
                regard.attend(q, k, v, score=terms, mask=mask, backend="cpu_additive").sum().backward()
                regard.attend(q[:, :, -1:], k, v, score=score + of_each, backend="cpu_additive")
    for loop in (loops.keys, loops.forward, loops.backward, loops.decode, loops.gather):
        assert len(loop.overloads) <= 2, loop  # float32 and float64


KEYS = """
import sys, types
for name in ("regard", "regard.kernels", "regard.kernels.cpu_additive"):  # the loops alone, without PyTorch
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [name.replace(".", "/")]
import numpy as np
from regard.kernels.cpu_additive import _numba as loops
made, top = np.zeros((1, 1, 4, 3), np.float32), np.zeros((1, 4), np.float32)
loops.keys(0, 1, np.ones((1, 1, 3, 4), np.float32), made, top, True)
print(made.max(), sum(loops.keys.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_what_is_cached_goes_out_of_date_with_any_file_of_the_loops(tmp_path: Path) -> None:
    """`keys` stands in one file and calls `_query` in another, whose change numba itself would not see."""
    folder = tmp_path / "regard/kernels/cpu_additive/_numba"
    shutil.copytree(Path(cpu_additive.__file__).parent / "_numba", folder, ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}

    def doubled_and_hits() -> list[str]:
        done = subprocess.run([sys.executable, "-c", KEYS], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert doubled_and_hits() == ["2.0", "0"]
    assert doubled_and_hits() == ["2.0", "1"]
    other = folder / "_fractions.py"
    text = other.read_text()
    assert "out[d] = a[d] + a[d]\n" in text
    other.write_text(text.replace("out[d] = a[d] + a[d]\n", "out[d] = a[d] + a[d] + a[d]\n"))
    assert doubled_and_hits() == ["3.0", "0"]

"""How many threads PyTorch computes on: by the work, by what the process may use, and in the child of a fork."""

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from commands import SOURCES

import regard
from regard.common import processors
from regard.common.processors import WORTH, quota, threads, usable
from regard.files.bundled import DEFAULT

ROOT = Path(__file__).parents[2]


@pytest.fixture
def four():
    """PyTorch has been told four threads, and there are as many processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


V1 = "cpu/x/cpu.cfs_quota_us", "cpu/x/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "share"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"cpu.max": "9 1", "a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/only/outside", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {"cpu.max": "what is this"}, math.inf),
        ("5:memory:/\n4:cpu,cpuacct:/x", dict(zip(V1, ("300000", "100000"), strict=True)), 3.0),
        ("4:cpu:/x", dict(zip(V1, ("-1", "100000"), strict=True)), math.inf),
        ("no groups here", {}, math.inf),
    ],
)
def test_the_share_of_a_container(tmp_path: Path, groups: str, files: dict[str, str], share: float) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{groups}\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert quota(tmp_path) == share
    assert 1 <= usable(tmp_path) <= max(1, math.inf if share == math.inf else math.ceil(share))


def test_without_control_groups(tmp_path: Path) -> None:
    assert quota(tmp_path) == math.inf and usable(tmp_path) >= 1


def test_a_command_in_a_container_tells_pytorch_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(processors, "quota", lambda *_: math.inf)
    processors.limit()
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setattr(processors, "quota", lambda *_: 0.5)
    processors.limit()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    os.environ["OMP_NUM_THREADS"] = "7"  # who says so knows better
    processors.limit()
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("own", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}])
def test_threads_of_a_command_do_not_spin(monkeypatch: pytest.MonkeyPatch, own: dict[str, str]) -> None:
    monkeypatch.setattr(os, "environ", dict(own))
    monkeypatch.setattr(processors, "quota", lambda *_: math.inf)
    processors.limit()
    assert os.environ == (own or {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"})


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is libgomp that says so")
def test_openmp_has_read_how_long_to_spin() -> None:
    """That is: the command says it before anything loads PyTorch."""
    hidden = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {"OMP_DISPLAY_ENV": "VERBOSE"}
    command = [sys.executable, "-m", "regard", "translate", "I see a dog."]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("PyTorch runs on another OpenMP here")
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


@pytest.mark.usefixtures("four")
def test_threads_are_as_many_as_the_work_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(work: int) -> int:
        with threads(work):
            return torch.get_num_threads()

    monkeypatch.setattr(processors, "usable", lambda: 64)
    assert [inside(work) for work in (0, WORTH, 3 * WORTH, 100 * WORTH)] == [1, 1, 3, 4]
    monkeypatch.setattr(processors, "usable", lambda: 2)
    assert inside(100 * WORTH) == 2
    with pytest.raises(ZeroDivisionError), threads(0):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four")
def test_a_sentence_is_not_worth_a_second_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as it is read nor as it is written, nor as its attention is read."""
    translator, used = regard.load(DEFAULT, device="cpu"), set[int]()
    monkeypatch.setattr(processors, "usable", lambda: 4)
    for part in (*translator.model.encoder, *translator.model.decoder):
        part.register_forward_hook(lambda *_: used.add(torch.get_num_threads()))
    translator.outputs(["The cat sat on the mat and looked at the dog."], attention=True)
    assert used == {1}


@pytest.mark.usefixtures("four")
def test_a_thread_that_begins_within_anothers_call_gets_the_usual_number() -> None:
    after: list[int] = []

    def other() -> None:
        with threads(0):
            pass
        after.append(torch.get_num_threads())

    with threads(0):
        one = threading.Thread(target=other)
        one.start()
        one.join()
    assert after == [4] and torch.get_num_threads() == 4


@pytest.mark.usefixtures("four")
def test_a_sentence_is_decoded_on_one_thread_and_many_on_more(translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "usable", lambda: 4)
    monkeypatch.setattr(processors, "WORTH", 4 * translator.engine._weights * translator.search.beam)
    used: set[int] = set()
    step = type(translator.model).step

    def watched(*args):
        used.add(torch.get_num_threads())
        return step(*args)

    monkeypatch.setattr(type(translator.model), "step", watched)
    one = translator.translate(SOURCES[0])
    assert used == {1}
    used.clear()
    assert translator.translate(SOURCES[:20])[0] == one
    assert used == {4} and torch.get_num_threads() == 4


CHILD = """
import os, torch, regard
torch.set_num_threads(2)
translator = regard.load()
torch.randn(400, 400) @ torch.randn(400, 400), torch.randn(10**6).exp()
before = translator.translate(["The cat sat on the mat.", "It is raining."])
child = os.fork()
if not child:
    assert translator.translate(["The cat sat on the mat.", "It is raining."]) == before
    torch.randn(400, 400) @ torch.randn(400, 400), torch.randn(10**6).exp()
    score = regard.score.Additive(64, 64, 64)
    regard.attend(*(torch.randn(1, 4, 128, 64) for _ in range(3)), score=score, backend="blockwise")
    os._exit(7 if torch.get_num_threads() == 1 else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_child_of_a_fork_does_not_hang() -> None:
    """PyTorch's threads are not there any more; computing on one does not wait for them."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | {"TOKENIZERS_PARALLELISM": "false"}
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD],
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = parent.communicate(timeout=120)
        assert out.split()[-1] == "7"
    except subprocess.TimeoutExpired:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
        pytest.fail("the child of a fork hangs")

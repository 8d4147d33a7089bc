"""One thread, fresh draws (the same ones each time where CI is set), a seed for what is drawn without hypothesis.

And what tests of commands share: a small model of the toy language, trained once, its test set in files, and a runner.
What that needs is imported where it is used: a GPU machine may not have it.
"""

import io
import os
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred processes start: they share what one has compiled
settings.register_profile(
    "regard",
    max_examples=40,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# --- commands ---


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    import toy

    path = tmp_path_factory.mktemp("toy") / "model"
    toy.train(path)
    return path


@pytest.fixture(scope="session")
def reverse(tmp_path_factory):
    import toy

    path = tmp_path_factory.mktemp("toy") / "reverse"
    toy.train(path, reverse=True)
    return path


@pytest.fixture(scope="session")
def translator(model):
    import regard

    return regard.load(model, device="cpu")


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Runs a command in this process; its standard input is bytes."""
    from commands import Done

    from regard import cli

    def call(*arguments, stdin=b""):
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main([str(a) for a in arguments])
        out, err = capfdbinary.readouterr()
        return Done(code, out, err.decode())

    return call


@pytest.fixture
def files(tmp_path):
    """test.en, test.fr and test.gold."""
    from commands import GOLD, SOURCES, TARGETS

    for name, lines in (("test.en", SOURCES), ("test.fr", TARGETS), ("test.gold", GOLD)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.fixture
def data(tmp_path):
    """A folder with a toy corpus of numbers and the settings of a training."""
    from resuming import corpus

    return corpus(tmp_path)


# --- a browser ---


@pytest.fixture(scope="module")
def browser():
    """Chromium. Of a module and no longer: while it runs, this thread has an event loop."""
    from browsing import chromium

    with chromium() as found:
        yield found

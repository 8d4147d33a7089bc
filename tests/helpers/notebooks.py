"""Real notebooks in a real browser: JupyterLab and marimo, started on a free port of this machine, each in a folder."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT = 120  # seconds; a busy machine starts a kernel slowly

# What a notebook shows: numbers that the tests compute as well.
CODE = """\
import torch
import regard

torch.manual_seed(0)
model = regard.nn.EncoderLayer(32, 4).eval()
with torch.no_grad(), regard.record(model) as trace:
    model(torch.randn(1, 6, 32))
trace.label(["the", "cat", "sat", "on", "the", "mat"])
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _environment(folder):
    """Nothing of this user's settings, and this copy of the package."""
    own = {name: str(folder / name.lower()) for name in ("HOME", "IPYTHONDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    own |= {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JUPYTER_PLATFORM_DIRS": "1"}
    for path in own.values():
        if path.startswith(str(folder)):
            Path(path).mkdir(exist_ok=True)
    return os.environ | own


@contextmanager
def _running(command, folder, url):
    """A server from its first answer on; it is stopped with its kernels."""
    log = (folder / "server.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=folder, env=_environment(folder), stdout=log, stderr=subprocess.STDOUT
    )
    try:
        deadline = time.monotonic() + WAIT
        while not _answers(url):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-4000:]
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def jupyterlab(folder, *cells):
    """The address of a notebook with these cells, in a JupyterLab of its own."""
    notebook = {
        "cells": [
            {"cell_type": "code", "id": f"c{i}", "metadata": {}, "outputs": [], "execution_count": None, "source": cell}
            for i, cell in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "notebook.ipynb").write_text(json.dumps(notebook))
    quiet = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (folder / "config" / "labconfig").mkdir(parents=True)
    (folder / "config" / "labconfig" / "page_config.json").write_text(json.dumps(quiet))
    port, token = free_port(), secrets.token_hex(16)
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder,
        "IdentityProvider.token": token,
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.extension_manager": "readonly",
    }
    command = ["jupyterlab", "--no-browser", "--allow-root", *(f"--{name}={value}" for name, value in options.items())]
    at = f"http://127.0.0.1:{port}"
    with _running(command, folder, f"{at}/api?token={token}"):
        yield f"{at}/doc/tree/notebook.ipynb?token={token}"


def run_cells(page, count):
    """Runs the first cells of an open JupyterLab notebook, one after another.

    Until its kernel is connected, JupyterLab runs nothing and says nothing: then a cell is run again. On a busy machine
    it may ask, over all the page, which kernel to use or whether to go on without its server: what it offers is taken.
    """
    from playwright.sync_api import TimeoutError as Covered

    asked = page.locator(".jp-Dialog .jp-Dialog-button.jp-mod-accept")
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=1000 * WAIT)
    for number in range(count):
        cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        prompt = cell.locator(".jp-InputPrompt")
        deadline = time.monotonic() + WAIT
        while not re.match(r"\[(\*|\d+)\]:", prompt.inner_text()):
            assert time.monotonic() < deadline, "the notebook runs no cell"
            with suppress(Covered):  # it asks now, or no longer: once more
                if asked.count():
                    asked.first.click(timeout=5_000)
                cell.locator(".cm-content").click(timeout=10_000)
                page.keyboard.press("Shift+Enter")
            page.wait_for_timeout(2000)
        cell.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]:")).wait_for(timeout=1000 * WAIT)


@contextmanager
def marimo(folder, *cells):
    """The address of a marimo app of these cells; what each of them defines is global."""
    first, *others = cells
    body = "\n\n".join([f"with app.setup:\n{_indented(first)}", *map(_cell, others)])
    (folder / "app.py").write_text(f"import marimo\n\napp = marimo.App()\n\n{body}\n")
    port = free_port()
    options = ["--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port)]
    command = ["marimo", "run", "app.py", *options]
    with _running(command, folder, f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}/"


def _cell(code):
    return f"@app.cell\ndef _():\n{_indented(code)}\n    return\n"


def _indented(code):
    return "".join(f"    {line}\n" if line else "\n" for line in code.splitlines())

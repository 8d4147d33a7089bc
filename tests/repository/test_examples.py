"""The examples run as scripts, as a reader would run them, and show what they say they show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(tmp_path):
    """Run an example in an empty folder and return what it printed."""

    def run(name, *arguments, path=()):
        paths = [*map(str, path), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def numbers(line):
    return [float(x) for x in re.findall(r"-?\d+\.\d+", line)]


@pytest.mark.slow
def test_a_terminal_without_these_signs_gets_others(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, str(EXAMPLES / "one_score_by_hand.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert done.returncode == 0 and b"steps(q, k, v).weights" in done.stdout, done.stderr


@pytest.mark.slow
def test_four_steps(run):
    out = run("four_steps")
    assert "Embeddings x, shape [3, 512]" in out and "Queries Q = x W_Q, shape [3, 64]" in out
    assert "random numbers with a fixed seed" in out
    similarity, scaled, weights = (
        [numbers(line) for line in part.splitlines()[2:5]] for part in re.split(r"\n\d\. ", out)[1:4]
    )
    for row, divided, shares in zip(similarity, scaled, weights, strict=True):
        assert divided == pytest.approx([x / 8 for x in row], abs=1e-3)
        assert shares[-1] == 1.0 and sum(shares[:-1]) == pytest.approx(1, abs=2e-3)
    assert float(re.search(r"steps\.context − attend\| = (\S+)", out)[1]) < 1e-5


@pytest.mark.slow
def test_one_score_by_hand(run):
    out = run("one_score_by_hand")
    assert "0.2 · 0.3 = 0.06" in out and "0.1 · 0.4 = 0.04" in out
    assert out.count("= 0.10") == 3 and out.count("= 0.0707") == 3


@pytest.mark.slow
def test_weights_to_contexts(run):
    out = run("weights_to_contexts")
    for row in ("0.900  0.070  0.030", "0.025  0.950  0.025", "0.210  0.030  0.760"):
        assert row in out
    for context in ("(9.150, 0.850)", "(0.375, 9.625)", "(5.900, 4.100)"):
        assert context in out
    assert "the  " + "█" * 36 + "▒" * 3 + "░" in out


@pytest.mark.slow
def test_why_sqrt_d(run, tmp_path):
    out = run("why_sqrt_d", "--quick")
    rows = {int(line.split()[0]): numbers(line) for line in out.splitlines() if re.match(r" +\d+ +\d+\.", line)}
    assert list(rows) == [1, 4, 16, 64, 256, 1024]
    for d, (raw, scaled, *_) in rows.items():
        assert raw == pytest.approx(d, rel=0.2) and scaled == pytest.approx(1, rel=0.2)
    assert rows[1024][2] < 0.3 < 3 < rows[1024][3]  # entropy
    assert rows[1024][6] < 0.01 < 0.1 < rows[1024][7]  # gradient
    assert (tmp_path / "out" / "why-sqrt-d.png").stat().st_size > 10_000


@pytest.mark.slow
def test_why_sqrt_d_says_how_to_get_matplotlib(run, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    out = run("why_sqrt_d", "--quick", path=[tmp_path])
    assert "pip install 'regard[plot]'" in out and "1024" in out


def test_the_page_about_sqrt_d_quotes_its_own_table():
    page = (ROOT / "docs" / "why-sqrt-d.md").read_text(encoding="utf-8")
    table = page.split("<!-- table:begin -->")[1].split("<!-- table:end -->")[0]
    cells = {cell.strip() for line in table.splitlines() for cell in line.split("|")}
    quoted = ["64.06", "1021.60", "0.12", "3.69", "0.11", "0.00016"]
    for number in quoted:
        assert number in cells and number in page.split("<!-- table:end -->")[1]
    picture = ROOT / "docs" / "img" / "why-sqrt-d.svg"
    assert picture.stat().st_size < 100_000


@pytest.mark.slow
def test_score_table(run):
    out = run("score_table", "--quick")
    formulas, times, memory = (part for part in out.split("\n\n") if part.lstrip().startswith("| score"))
    assert "| `Additive(d, d, d)` | vᵀ tanh(W q + U k) | 2,112 |" in formulas  # 4 · (16·16 + 16·16 + 16)
    for name in ("Dot", "General", "Bilinear", "Location", "Relative", "Rotary", "ALiBi", "T5Bias", "PerHead"):
        assert name in formulas and name in times and name in memory


def test_the_page_of_scores_has_every_score():
    page = (ROOT / "docs" / "scores.md").read_text(encoding="utf-8")
    tables = {
        name: page.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]
        for name in ("formulas", "time", "memory")
    }
    for score in set(regard.score.__all__) - {"Score", "Sum"}:
        told = re.search(rf"^(.*\. )?\*\*{score}\*\* ", page, re.MULTILINE)
        assert told, f"docs/scores.md says nothing about {score}"
        if not issubclass(getattr(regard.score, score), regard.score.Score):
            continue  # a setting of a score
        for name, table in tables.items():
            assert f"{score}(" in table, f"docs/scores.md: no {score} in the table of {name}"


@pytest.mark.slow
def test_figures(run, tmp_path):
    out = run("figures", "--updates", "5")
    drawn = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert drawn == ["figure-alignment.svg", "figure-arcs-two.svg", "figure-steps.svg"]
    assert all(f"out/{name}" in out for name in drawn)
    shown = (tmp_path / "out" / "figure-steps.svg").read_text(encoding="utf-8")
    assert "“pas” attends by Dot()" in shown and "11 of 21 hidden" in shown


def test_the_pictures_of_the_page_of_figures_are_small():
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\((img/\S+)\)", page)
    assert len(pictures) == 6
    for picture in pictures:
        assert (ROOT / "docs" / picture).stat().st_size < 100_000


@pytest.mark.slow
def test_demo(run, tmp_path):
    out = run("demo")
    for part in ("the cat sat", "= 0.10", "(9.150, 0.850)", "terms    tanh(64 hidden)", "heads 4–5", "times the speed"):
        assert part in out
    assert out.index("gare") < out.index("L'animal") < out.index("[█]") < out.index("the cat sat")
    assert all(len(line) <= 100 for line in out.splitlines() if str(tmp_path) not in line)
    made = [Path(path) for path in re.findall(r": (/\S+)$", out, re.MULTILINE)]
    assert made == [tmp_path / "out" / name for name in ("translation.png", "translation.html", "why-sqrt-d.png")]
    assert all(path.stat().st_size > 10_000 for path in made)
    for page in re.findall(r"docs/\S+\.md", out):
        assert (ROOT / page).exists()


@pytest.mark.slow
def test_a_translation_of_your_own(run, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    out = run("a_translation", "Where is the dog?", "The cat sleeps.", path=[tmp_path])
    assert out.index("Where is the dog?") < out.index("chien") < out.index("The cat sleeps.") < out.index("chat")
    assert "pip install 'regard[plot]'" in out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["translation.html"]
    assert "The cat sleeps." in (tmp_path / "out" / "translation.html").read_text(encoding="utf-8")

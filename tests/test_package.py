"""The package as a whole: its public names, the direction of its imports, and what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regard
import regard.align
import regard.aligner
import regard.data
import regard.evaluate
import regard.folder
import regard.grammar
import regard.plot
import regard.tasks.translation
import regard.text
import regard.train

ROOT = Path(regard.__file__).parent

# Imports point up this list only.
LAYOUT = [
    "terms",
    "score",
    "mask",
    "kernels",
    "plan",
    "arguments",
    "lower",
    "attend",
    "bpe",
    "text",
    "spelling",
    "wordpiece",
    "store",
    "trace",
    "nn",
    "models",
    "data",
    "decode",
    "folder",
    "train",
    "reading",
    "squad",
    "align",
    "aligner",
    "plot",
    "grammar",
    "engine",
    "interop",
    "output",
    "rouge",
    "tasks",
    "search",
    "translator",
    "summarizer",
    "answerer",
    "loading",
    "evaluate",
    "explorer",
    "lines",
    "console",
    "cli",
    "__main__",
]
OPTIONAL = ["numba", "triton", "matplotlib", "starlette", "transformers", "ctranslate2", "uvicorn", "onnx", "keras"]
OPTIONAL += ["tokenizers", "anywidget", "traitlets"]
LATE = {*OPTIONAL[:7], "anywidget", "traitlets"}
# A method that hands its object to what is far below it, and imports that when it is called.
HANDED = {"trace/_trace.py": "regard.explorer.export"}
COMMANDS = ["typer", "rich", "sacrebleu", "rouge_score"]  # what only commands need


def test_public_names():
    functions, modules = (
        {"attend", "load", "plan", "record", "show", "steps"},
        {"decode", "mask", "models", "nn", "score", "trace"},
    )
    own = {"Answerer", "Keys", "Plan", "Steps", "Summarizer", "Trace", "Translator"}
    assert set(regard.__all__) == own | functions | modules
    assert regard.trace.__all__ == [
        "QuerySteps",
        "Stopped",
        "TopK",
        "Trace",
        "load",
        "record",
        "wanted",
        "without",
    ]
    assert regard.score.__all__ == [
        "ALiBi",
        "Additive",
        "Bias",
        "Bilinear",
        "Cosine",
        "Dot",
        "General",
        "Key",
        "Location",
        "PerHead",
        "Relative",
        "Rotary",
        "Score",
        "Softcap",
        "Sum",
        "T5Bias",
    ]
    assert regard.mask.__all__ == [
        "And",
        "Causal",
        "Dense",
        "Documents",
        "Lengths",
        "Mask",
        "Not",
        "Or",
        "Prefix",
        "Window",
    ]
    assert regard.models.__all__ == [
        "Memory",
        "PointerConfig",
        "PointerTransformer",
        "RNNConfig",
        "RNNSeq2Seq",
        "Reader",
        "ReaderConfig",
        "Transformer",
        "TransformerConfig",
    ]
    assert regard.decode.__all__ == [
        "Hypothesis",
        "Limits",
        "Model",
        "NoRepeat",
        "State",
        "beam",
        "greedy",
        "sample",
        "score",
    ]


def test_public_names_of_the_text_half():
    assert regard.text.__all__ == ["BOS", "EOS", "PAD", "UNK", "Encoded", "Subwords"]
    assert regard.data.__all__ == [
        "Batch",
        "Batches",
        "Corpus",
        "Files",
        "JsonLines",
        "Limits",
        "Pairs",
        "Reader",
        "Report",
        "Tsv",
        "batches",
        "pad",
        "prefetch",
        "read",
        "texts",
    ]
    assert regard.align.__all__ == [
        "Alignment",
        "Quality",
        "links",
        "parse",
        "pharaoh",
        "picture",
        "quality",
        "read_naacl",
        "read_pharaoh",
        "swap",
        "symmetrize",
        "word_weights",
        "write_pharaoh",
    ]
    assert regard.aligner.__all__ == ["Model", "align", "align_words", "best", "learn", "links_of", "words_of"]
    assert regard.grammar.__all__ == ["Pair", "pairs"]
    assert regard.plot.__all__ == ["alignment", "arcs", "head_grid", "heatmap", "save", "steps"]

    assert regard.train.__all__ == [
        "Diverged",
        "Lines",
        "Mismatch",
        "Outcome",
        "Position",
        "Progress",
        "Ranks",
        "Settings",
        "Silent",
        "Step",
        "Table",
        "Task",
        "fit",
        "learning_rate",
        "progress",
        "sequence_loss",
    ]


MODULES = [
    regard,
    regard.score,
    regard.mask,
    regard.models,
    regard.decode,
    regard.text,
    regard.data,
    regard.train,
    regard.align,
    regard.aligner,
    regard.grammar,
    regard.plot,
    regard.evaluate,
]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_every_public_name_is_there_and_documented(module):
    for name in module.__all__:
        assert getattr(module, name).__doc__, f"{name} has no docstring"


def test_one_import_is_enough_and_completion_shows_what_there_is():
    code = "import regard; assert regard.plot.heatmap and regard.grammar.pairs; print(*dir(regard))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    shown = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert {*regard.__all__, "plot", "grammar"} <= {*shown} and "importlib" not in shown


def test_the_version_is_the_installed_one():
    assert regard.__version__.count(".") == 2


# --- the direction of imports ---


def modules():
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imports(path):
    """Every module that a file imports, anywhere in it but for names used in annotations alone."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts[:-1]
    tree = ast.parse(path.read_text())
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    typed = {id(n) for guard in guards for n in ast.walk(guard)}
    for node in (n for n in ast.walk(tree) if id(n) not in typed):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if is_module(f"{module}.{alias.name}"))


def is_module(name):
    path = ROOT.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def within(name):
    """regard.kernels.sdpa → (kernels, sdpa)."""
    return name.split(".")[1:]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_up_only(path):
    own = within(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    assert own[0] in LAYOUT, f"{own[0]} is not in the layout"
    for name in imports(path):
        if not name.startswith("regard"):
            continue
        other = within(name)
        assert other, f"{path.name} imports the whole package; import what it needs from where it is"
        if HANDED.get(path.relative_to(ROOT).as_posix()) == name:
            continue
        assert LAYOUT.index(other[0]) <= LAYOUT.index(own[0]), f"{path.name} imports {name}, which is below it"
        if own[0] == other[0] == "kernels" and len(other) > 1:
            assert other[1].startswith("_") or other[1] == own[1], f"{path.name} imports another kernel, {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_optional_packages_are_not_imported_at_the_top(path):
    for node in ast.parse(path.read_text()).body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] not in LATE or path.name.startswith("_"), f"{path.name} imports {name}"


# --- what importing costs ---


def python(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    return done


def test_importing_pulls_in_nothing_optional():
    code = "import sys, regard; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = set(python("-c", code).stdout.split())
    assert "torch" in loaded and not loaded & {*OPTIONAL, *COMMANDS}


def import_times():
    """Microseconds of ``-X importtime``: what regard adds to torch, and what of it is its own files."""
    lines = [line.split("|") for line in python("-X", "importtime", "-c", "import regard").stderr.splitlines()]
    cumulative = {line[2].strip(): int(line[1]) for line in lines if len(line) == 3 and line[1].strip().isdigit()}
    own = sum(int(line[0].split(":")[1]) for line in lines if len(line) == 3 and line[2].strip().startswith("regard"))
    return cumulative["regard"] - cumulative["torch"], own


def test_importing_is_fast():
    """A tenth of this on a quiet machine; a busy one, or one that compiles the files first, gets more turns."""
    tried = []
    while not tried or (len(tried) < 6 and not (tried[-1][0] < 1_000_000 and tried[-1][1] < 500_000)):
        tried.append(import_times())
    assert tried[-1][0] < 1_000_000 and tried[-1][1] < 500_000, tried


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()

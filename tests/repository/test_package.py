"""The package as a whole: its public names, the direction of its imports, and what importing it costs."""

import ast
import gc
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import regard
import regard.align
import regard.align.statistical
import regard.data
import regard.evaluate
import regard.models.folder
import regard.plot
import regard.tasks.base
import regard.tasks.translation.train
import regard.testing.grammar
import regard.text
import regard.train
from regard.common.start import quick_start

ROOT = Path(regard.__file__).parent

# Imports point up this list only; rooms of one row do not import each other.
LAYOUT = [
    ["common", "files"],
    ["mask", "text"],
    ["score"],
    ["kernels"],
    ["attention"],
    ["nn", "trace", "data"],
    ["models", "align", "evaluate", "testing"],
    ["decode", "plot"],
    ["train", "interop"],
    ["tasks"],
    ["explorer"],
    ["cli"],
    ["__main__"],
]
ROW = {room: number for number, row in enumerate(LAYOUT) for room in row}
KERNELS = {"reference", "blockwise", "sdpa", "cpu_dot", "flex", "cpu_additive", "additive", "offset"}
OPTIONAL = ["numba", "triton", "matplotlib", "starlette", "transformers", "ctranslate2", "uvicorn", "onnx", "keras"]
OPTIONAL += ["tokenizers", "anywidget", "traitlets"]
LATE = {*OPTIONAL[:7], "anywidget", "traitlets"}
# A method that hands its object to what is far below it, and imports that when it is called.
HANDED = {"trace/_trace.py": "regard.explorer.export"}
COMMANDS = ["rich", "sacrebleu", "rouge_score"]  # what only commands need


def test_public_names():
    functions, modules = (
        {"attend", "load", "plan", "record", "show", "steps", "warm_up"},
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
        "Function",
        "General",
        "Key",
        "LinearScaling",
        "Llama3Scaling",
        "Location",
        "NTKScaling",
        "PerHead",
        "QKNorm",
        "Relative",
        "Rotary",
        "Scale",
        "Score",
        "Softcap",
        "Sum",
        "T5Bias",
        "YaRNScaling",
    ]
    assert regard.mask.__all__ == [
        "And",
        "Causal",
        "Dense",
        "Documents",
        "Function",
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
        "KnownWords",
        "LanguageModel",
        "Limits",
        "Model",
        "NoProbabilities",
        "NoRepeat",
        "State",
        "beam",
        "generate",
        "greedy",
        "named",
        "sample",
        "score",
    ]


def test_public_names_of_the_text_half():
    assert regard.text.subwords.__all__ == ["BOS", "EOS", "PAD", "UNK", "Encoded", "Subwords"]
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
    counted = regard.align.statistical.__all__
    assert counted == ["Model", "align", "align_words", "best", "learn", "links_of", "words_of"]
    assert regard.testing.grammar.__all__ == ["Pair", "pairs"]
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
    regard.align.statistical,
    regard.testing.grammar,
    regard.plot,
    regard.evaluate,
    regard.tasks.base,
]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_every_public_name_is_there_and_documented(module):
    for name in module.__all__:
        assert getattr(module, name).__doc__, f"{name} has no docstring"


# Public names of two rooms each; the data, training and settings of a task are read with the task's name.
SHARED = {"Data", "Documents", "Function", "Limits", "Model", "Reader", "Settings", "Training"}


def test_no_two_classes_have_one_name():
    names = Counter(node.name for path in modules() for node in ast.parse(path.read_text()).body if is_class(node))
    assert {name for name, count in names.items() if count > 1} == SHARED


def is_class(node):
    return isinstance(node, ast.ClassDef)


@pytest.mark.slow
def test_one_import_is_enough_and_completion_shows_what_there_is():
    code = "import regard; assert regard.plot.heatmap and regard.testing; print(*dir(regard))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    shown = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert {*regard.__all__, "plot", "testing"} <= {*shown} and "importlib" not in shown


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
            inner = [name for alias in node.names if is_module(name := f"{module}.{alias.name}")]
            yield from (inner if len(inner) == len(node.names) else (module, *inner))


def is_module(name):
    path = ROOT.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def within(name):
    """regard.kernels.sdpa → (kernels, sdpa)."""
    return name.split(".")[1:]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_up_only(path):
    own = within(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    assert own[0] in ROW, f"{own[0]} is not in the layout"
    for name in imports(path):
        if not name.startswith("regard"):
            continue
        other = within(name)
        assert other, f"{path.name} imports the whole package; import what it needs from where it is"
        if HANDED.get(path.relative_to(ROOT).as_posix()) == name:
            continue
        assert other[0] == own[0] or ROW[other[0]] < ROW[own[0]], f"{path.name} imports {name}, which is not above it"
        if own[0] == other[0] == "kernels" and len(other) > 1:
            kernel = [part for part in other[1:3] if part != "gpu"][:1]
            assert not {*kernel} & KERNELS or kernel[0] in own, f"{path.name} imports another kernel, {name}"


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


def loaded_by(code):
    """The packages that are loaded after some code."""
    return set(python("-c", f"import sys; {code}; print(*{{m.split('.')[0] for m in sys.modules}})").stdout.split())


ATTENTION = "import regard; regard.attend, regard.nn, regard.models, regard.decode, regard.trace"


@pytest.mark.slow
def test_importing_pulls_in_nothing_optional():
    loaded = loaded_by(ATTENTION)
    assert "torch" in loaded and not loaded & {*OPTIONAL, *COMMANDS}


def test_torch_waits_until_it_is_needed():
    assert "torch" not in loaded_by("import regard")
    assert "torch" not in loaded_by("from regard.tasks.summarization.search import SummarySearch")  # shown in helps


USE = """
import regard.explorer.export, regard.explorer.widget, regard.explorer.http._app, regard.interop.bert
import regard.tasks.qa.answerer, regard.tasks.summarization.summarizer, regard.testing.grammar
translator = regard.load(device="cpu")
assert translator.outputs(["The cat sleeps."], attention=True)[0].translations
"""


@pytest.mark.slow
def test_using_a_model_does_not_import_training():
    code = f"{USE}\nimport sys; print(*(name for name in sys.modules if name.startswith('regard.')))"
    loaded = python("-c", f"import regard{code}").stdout.split()
    assert "regard.tasks.base" in loaded and "regard.tasks.translation.translator" in loaded
    assert not [name for name in loaded if name.startswith("regard.train") or name.endswith(".train")]


@pytest.mark.slow
def test_functions_that_are_named_as_their_modules_stay_functions():
    calls = "assert callable(regard.attend) and callable(regard.plan)"
    for first in ("import regard.nn", "import regard.attention.call", "from regard.attention.plan import Plan"):
        python("-c", f"{first}; import regard; {calls}; from regard import attend, plan; assert callable(plan)")
    python("-c", f"import regard; {calls}; import regard.plan, regard.attend; {calls}")


@pytest.mark.slow
def test_operators_are_registered_for_exported_programs():
    python("-c", "import torch, regard.nn; torch.ops.regard.attention, torch.ops.regard.attention_backward")


def processor_time(code):
    """Seconds that a process of ours computes: a busy machine takes longer for it, but does not compute more."""
    return float(python("-c", f"import os; {code}; print(sum(os.times()[:2]))").stdout)


def test_importing_is_fast():
    """A fourth of a second, usually, that regard adds to torch; what compiles the files first gets more turns."""
    tried = []
    while not tried or (len(tried) < 4 and tried[-1] >= 0.5):
        tried.append(processor_time(ATTENTION) - processor_time("import torch"))
    assert tried[-1] < 0.5, tried


def test_the_readme_can_be_read_outside_the_repository():
    """Its relative links and pictures become absolute, and each names a file that is there."""
    sys.path.insert(0, str(ROOT.parent))
    import setup

    base, text = setup.repository(), (ROOT.parent / "README.md").read_text("utf-8")
    links = re.findall(r"(?:\]\(|src=\")([^)\"\s]+)", setup.absolute(text, base))
    ours = [link.removeprefix(base) for link in links if link.startswith(base)]
    assert all(link.startswith(("https://", "#")) for link in links) and len(ours) > 10
    for link in ours:
        kind, path = re.fullmatch(r"/(raw|blob)/main/([^#]+)(?:#.*)?", link).groups()
        assert (ROOT.parent / path).is_file(), link
        assert (kind == "raw") == (Path(path).suffix in {".png", ".svg"}), link


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()


# --- the command ---

COMMAND = ("translate", "summarize", "answer", "evaluate", "align", "export", "serve", "explore")
WRONG = (
    "",
    "translat",
    "translate --bem 3 x",
    "translate --beam x y",
    "translate --top-k 3 x",
    "translate --input nowhere",
    "summarize x",
    "summarize -m x --max-length 1 --min-length 2 y",
    "answer x",
    "evaluate x",
    "align nowhere",
    "align --symmetrize x y",
    "export -o x -f y",
    "train --task cooking",
)
USAGE = dict.fromkeys(["--help", "--version", *(f"{name} --help" for name in COMMAND)], 0) | dict.fromkeys(WRONG, 2)


def test_a_command_is_a_file_of_its_name():
    from regard import cli

    files = {path.stem for path in (ROOT / "cli").glob("[!_]*.py")}
    assert ("train", *COMMAND) == cli.COMMANDS and {*cli.COMMANDS} == files
    for name in files:
        assert cli.function(name).__module__ == f"regard.cli.{name}"


@pytest.mark.parametrize("arguments", USAGE)
def test_help_and_wrong_usage_do_without_torch(arguments):
    code = "import sys; from regard.__main__ import main; code = main(sys.argv[1:]); sys.exit(code + 4 * loaded)"
    code = code.replace("loaded", "('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code, *arguments.split()], capture_output=True, check=False)
    assert done.returncode == USAGE[arguments], done.stderr


def test_garbage_is_collected_again_after_the_start():
    gc.collect()
    frozen = gc.get_freeze_count()
    with quick_start():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() == frozen  # this process is the tests', and not a command's
    gc.disable()
    try:
        with quick_start():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_command_sets_aside_what_its_start_has_made():
    code = "import gc; from regard.common.start import own_process, quick_start; own_process()\n"
    code += "with quick_start(): pass\nassert gc.isenabled() and gc.get_freeze_count() > 1000"
    python("-c", code)

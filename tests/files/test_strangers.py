"""Files of strangers: whatever is in them, what is wrong is one line, and nothing is allocated for it before."""

import gzip
import io
import json
import os
import re
import shutil
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from serving import save_models, save_task_models

import regard
from regard.files.bounds import bytes_of, toml
from regard.files.tensors import read_tensors, write_tensors
from regard.files.toml import read_toml
from regard.files.whole import Damaged
from regard.models import folder
from regard.text import Subwords
from regard.text.lexicon import Lexicon
from regard.text.wordpiece import WordPiece
from regard.train.checkpoint import Checkpoints, Standing

CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Model folders by name, as they should be."""
    path = tmp_path_factory.mktemp("whole")
    made = [*save_models(path, align={"layer": 0, "head": 0, "shift": True}, translate={"split": 0})]
    return {each.rsplit("/", 1)[1]: each for each in (*made, *save_task_models(path))}


@pytest.fixture
def changed(whole, tmp_path):
    """A folder with another text in its config.toml."""

    def make(name, old, new):
        path = shutil.copytree(whole[name], tmp_path / name)
        text = (path / "config.toml").read_text()
        assert old in text
        (path / "config.toml").write_text(text.replace(old, new, 1))
        return path

    return make


# --- TOML ---

DEEP = {
    "a" + ".a" * 200_000 + " = 1": "a key of more than 32 parts",
    "'a'" + " . 'a'" * 100_000 + " = 1": "a key of more than 32 parts",
    "[a" + ".a" * 100_000 + "]": "a key of more than 32 parts",
    "x = " + "[" * 100_000 + "]" * 100_000: "lists or tables nested more than 32 deep",
    "x = " + "{a=" * 20_000 + "1" + "}" * 20_000: "lists or tables nested more than 32 deep",
    "# " + "x" * (1 << 20): "more than 1,048,576 bytes",
    "x = 0x" + "f" * 100_000: "x: a whole number of more than 64 bits",
    'x = "' + '\\"' * 100_000: "Unterminated string",
}


@pytest.mark.parametrize(("text", "message"), DEEP.items(), ids=lambda x: x[:20])
def test_toml_is_bounded(tmp_path, text, message):
    (tmp_path / "x.toml").write_text(text)
    begun = time.process_time()
    with pytest.raises(ValueError, match=rf"x\.toml: .*{message}") as refused:
        read_toml(tmp_path / "x.toml")
    assert "\n" not in str(refused.value) and time.process_time() - begun < 1


def test_what_looks_deep_and_is_not():
    text = "a = [\"[[[[\", '{{{{']  # " + "[" * 99 + '\nb = """' + "\n[a.a" * 99 + '"""\nc = "' + ".a" * 99 + '"\n'
    assert [len(str(value)) for value in toml(text).values()] == [16, 494, 198]


# --- the tables of a model folder ---

WRONG = [
    ("transformer", "layer = 0", 'layer = "1"', r"\[align\]: layer must be a whole number of at least 0, got '1'"),
    ("transformer", "layer = 0", "layer = 3", r"\[align\]: layer must be below 3, got 3"),
    ("rnn", "head = 0", "head = 9", r"\[align\]: head must be below 2, got 9"),
    ("transformer", "[align]", "[[align]]", r"align must be a table, got \[{'layer'"),
    ("transformer", "split = 0", "split = []", r"\[translate\]: split must be a whole number of at least 0, got \[\]"),
    ("transformer", "max_tokens = 64", "max_tokens = 1979-05-27", r"\[data\]: max_tokens must be a whole number of at"),
    ("qa", "window = 60", "window = {}", r"\[data\]: window must be a whole number of at least 1, got {}"),
    ("qa", 'task = "qa"', "task = [1]", r"task must be a text, got \[1\]"),
    ("transformer", "[align]", "[ctranslate2]\nlayer = 0\n[align]", r"\[ctranslate2\]: positions missing"),
    ("transformer", 'kind = "transformer"', "kind = [1]", r"\[model\]: kind must be a text, got \[1\]"),
    ("transformer", "dim = 32", "dim = nan", "TransformerConfig: dim must be a whole number, got nan"),
    ("rnn", "input_feeding = true", "input_feeding = 1", "RNNConfig: input_feeding must be true or false, got 1"),
    ("transformer", 'self_score = "dot"', "self_score = {kind = []}", r"score kind must be one of dot, .*, got \[\]"),
    (
        "transformer",
        'self_score = "dot"',
        'self_score = {kind = "additive", hidden_dim = "8"}',
        "score 'additive': hidden_dim must be a whole number, got '8'",
    ),
    ("transformer", "eos_id = 2", "eos_id = 0", "eos_id must differ from pad_id and bos_id, got 0"),
]


@pytest.mark.parametrize(("name", "old", "new", "message"), WRONG)
def test_wrong_types_of_a_folder(changed, name, old, new, message):
    with pytest.raises(Damaged, match=rf"config\.toml: .*{message}") as refused:
        regard.load(changed(name, old, new), **CPU)
    assert "\n" not in str(refused.value)


HUGE = [
    ("transformer", "dim = 32", "dim = 1000000000"),
    ("transformer", "dim = 32", "dim = 1000000000000000000"),
    ("transformer", "ffn_dim = 48", "ffn_dim = 1000000000"),
    ("transformer", "encoder_layers = 2", "encoder_layers = 1000000000"),
    ("transformer", 'cross_score = "dot"', 'cross_score = {kind = "t5", max_distance = 1000000000}'),
    ("transformer", 'positions = "sinusoidal"', 'positions = "learned"\nmax_length = 1000000000'),
    ("rnn", "hidden_dim = 24", "hidden_dim = 1000000000"),
    ("summarization", "copy_dim = 16", "copy_dim = 1000000000"),
    ("qa", "model_layers = 1", "model_layers = 1000000000"),
]


@pytest.mark.parametrize(("name", "old", "new"), HUGE)
def test_sizes_are_checked_before_anything_is_allocated(changed, name, old, new, monkeypatch):
    """The model is made once, of shapes alone: no tensor gets memory but small ones that are computed."""
    path, made = changed(name, old, new), []
    monkeypatch.setattr(folder, "make_model", lambda table, make=folder.make_model: made.append(1) or make(table))
    with torch.autograd.profiler.profile(profile_memory=True) as memory, pytest.raises(Damaged) as refused:
        regard.load(path, **CPU)
    assert "belong to different models" in str(refused.value) or "config.toml" in str(refused.value)
    assert "\n" not in str(refused.value) and len(made) <= 1
    assert sum(max(event.cpu_memory_usage, 0) for event in memory.function_events) < 1 << 20


def test_the_command_says_it_in_a_line(changed, run):
    done = run("translate", "-m", changed("transformer", "dim = 32", "dim = 1000000000"), "the dog")
    assert done.code == 2 and done.err.count("\n") == 1 and "they belong to different models" in done.err


# --- words ---


def archive(*, claims=None, size=0, packed=zipfile.ZIP_DEFLATED, shape=None):
    """A lexicon whose first file has so many bytes of zeros more, and heads that claim something else."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packed) as out:
        for name in ("letters", "targets", "first"):
            head = io.BytesIO()
            about = {"descr": "<i4", "fortran_order": False, "shape": shape or (0,)}
            np.lib.format.write_array_header_1_0(head, about)
            with out.open(f"{name}.npy", "w") as member:
                member.write(head.getvalue())
                for _ in range(size >> 20):
                    member.write(bytes(1 << 20))
    raw = file.getvalue()
    return raw if claims is None else raw.replace(struct.pack("<I", size + 128), struct.pack("<I", claims))


BOMBS = [
    ({"size": 64 << 20}, r"it unpacks to [\d,]+ bytes; the maximum is 33,554,432"),
    ({"size": 64 << 20, "claims": 500}, "Bad CRC-32"),  # read no further than it claims
    ({"size": 1 << 20, "packed": zipfile.ZIP_LZMA}, "packed in a way other than deflate"),
    ({"shape": (10**12,)}, r"expected a list of 0 whole numbers; the header claims \(1000000000000,\) of int32"),
]


@pytest.mark.parametrize(("how", "message"), BOMBS, ids=str)
def test_words_unpack_within_bounds(tmp_path, how, message):
    (tmp_path / "lexicon.npz").write_bytes(archive(**how))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"cut short, or not a lexicon that regard wrote .*{message}") as refused:
            Lexicon.load(tmp_path / "lexicon.npz")
        assert "\n" not in str(refused.value) and tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


# --- subwords and weights ---


@pytest.mark.parametrize("pattern", [None, {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}])
def test_subwords_cut_as_ours_do(whole, tmp_path, pattern):
    """A pattern of one's own may take for ever."""
    table = json.loads((Path(whole["transformer"]) / "tokenizer.json").read_text())
    if pattern is not None:
        pattern = table["pre_tokenizer"] | {"pretokenizers": [pattern | {"invert": False}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(table | {"pre_tokenizer": pattern}))
    with pytest.raises(ValueError, match=r"expected Subwords' own pre-tokenizer( or BERT's)?; it was made by some"):
        Subwords.load(tmp_path / "tokenizer.json")


PARTS = [
    ("model", {"continuing_subword_prefix": "#" * 20}, "expected no continuing_subword_prefix"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}, "expected Subwords' own normalizer"),
    ("decoder", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}, "expected Subwords' own decoder"),
]


@pytest.mark.parametrize(("name", "part", "message"), PARTS, ids=[part[0] for part in PARTS])
def test_what_the_library_of_subwords_panics_at_does_not_get_there(whole, tmp_path, name, part, message, capfd):
    path = shutil.copytree(whole["transformer"], tmp_path / "m") / "tokenizer.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps(table | {name: (table[name] if name == "model" else {}) | part}))
    with pytest.raises(ValueError, match=f"not a usable tokenizer.json: {message}"):
        regard.load(path.parent, **CPU)
    assert not capfd.readouterr().err


def test_berts_cut_as_berts_do(tmp_path):
    words = WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    for part in (pattern, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}, None):
        (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(words.to_json()) | {"pre_tokenizer": part}))
        with pytest.raises(ValueError, match=r"expected (Subwords' own|BERT's) pre-tokenizer"):
            WordPiece.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "lexicon.npz", "config.toml"])
def test_long_files_are_not_read(whole, tmp_path, name, run):
    """Sparse ones take no room where they are."""
    path = shutil.copytree(whole["transformer"], tmp_path / "m")
    with open(path / name, "ab") as file:
        file.truncate(1 << 36)
    done = run("translate", "-m", path, "the dog")
    assert done.code == 2 and done.err.count("\n") == 1 and f"{name}: more than " in done.err


def test_what_is_no_file_is_not_waited_for(whole, tmp_path, run):
    path = shutil.copytree(whole["transformer"], tmp_path / "m")
    os.mkfifo(path / "lexicon.npz")
    assert run("translate", "-m", path, "the dog").code == 0
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        bytes_of("/dev/zero", 1000)


def test_scales_are_of_matrices(whole, tmp_path):
    path = shutil.copytree(whole["transformer"], tmp_path / "m")
    tensors, about = read_tensors(path / "model.safetensors")
    vector = next(name for name, t in tensors.items() if t.ndim == 1)
    write_tensors(path / "model.safetensors", tensors | {f"{vector}.scale": tensors[vector].clone()}, about)
    with pytest.raises(Damaged, match=rf"1 weights too many, {vector}\.scale first"):
        regard.load(path, **CPU)


@pytest.mark.parametrize("about", ["[" * 100_000, "3", '{"crc32": 1, "about": 5}', "{}"])
def test_what_a_file_of_tensors_says_of_itself(tmp_path, about):
    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors", {"regard": about})
    with pytest.raises(Damaged, match=r"x\.safetensors: a safetensors file, but not one of regard's"):
        read_tensors(tmp_path / "x.safetensors")


# --- traces ---


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace in a file: what it stores, and what it says of that."""
    layer, path = regard.nn.EncoderLayer(12, 3), tmp_path_factory.mktemp("trace") / "whole.safetensors"
    with regard.record(layer, inputs=True) as trace:
        layer(torch.randn(2, 7, 12))
    trace.save(path, inputs=True)
    return read_tensors(path)


def put(table, path, value):
    """The same with another value at a path, "calls.0.name" for one."""
    first, _, rest = path.partition(".")
    out = list(table) if isinstance(table, list) else dict(table)
    key = int(first) if isinstance(out, list) else first
    out[key] = put(out[key], rest, value) if rest else value
    return out


HUGE_CLAIM = "it claims 1,000,000,000,000 queries, keys or heads, and stores"
CLAIMS = [
    ("calls.0.problems.0.fields.queries", 10**12, HUGE_CLAIM),
    ("calls.0.problems.0.fields.heads", 3 * 10**12, HUGE_CLAIM.replace("1,", "3,", 1)),
    ("calls.0.problems.0.fields.heads", 2, r"2 heads with values of shape \[2, 3, 7, 4\]"),
    ("calls.0.problems.0.fields.queries", 8, "q has the shape"),
    ("calls.0.problems.0.fields.queries", "7", "queries must be a whole number, got '7'"),
    ("calls.0.problems.0.fields.first_head", 1, "its groups of heads are not of one call"),
    ("calls.0.problems.0.fields.v", None, "v must be a Tensor, got None"),
    ("calls.0.problems.0.fields.mask", {"mask": "Window", "tensors": [], "ints": [-1, 10**30], "parts": []}, "."),
    ("calls.0.problems.0.fields.offset", {"tensor": "0.bias"}, "offset has the shape"),
    ("calls.0.problems", {"tuple": []}, "."),
    ("calls.0.problems", [], "0 problems and 1 scores"),
    ("calls.0.kind", [], "kind must be a text"),
    ("calls.0.kind", "other", "kind must be self or cross, got 'other'"),
    ("calls.0.name", 3, "name must be a text, got 3"),
    ("calls.0.known", [[0, 9, {"tensor": "0.bias"}]], "what is known of head 0, item 9 is not of this call"),
    ("calls.0.q", {"tensor": "0.projection"}, "q has the shape"),
    ("calls.0.q", {"tensor": "nowhere"}, "KeyError: 'nowhere'"),
    ("calls", 3, "TypeError: "),
    ("labels", [["self", 0, [1, 2], ["x"]]], r"rows must be a list of texts, got \[1, 2\]"),
    ("labels", [[[], 0, ["x"], ["x"]]], "kind must be a text"),
]


@pytest.mark.parametrize(("path", "value", "message"), CLAIMS)
def test_claims_of_a_trace(recorded, tmp_path, run, path, value, message):
    file = tmp_path / "x.safetensors"
    write_tensors(file, recorded[0], put(recorded[1], path, value))
    with pytest.raises(Damaged, match=rf"x\.safetensors: a trace that cannot be read: .*{message}") as refused:
        regard.trace.load(file)
    assert "\n" not in str(refused.value)
    done = run("explore", "--no-browser", "--trace", file) if value == 10**12 else None
    assert done is None or (done.code == 2 and done.err.count("\n") == 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float64])
@pytest.mark.parametrize("name", ["0.q", "0.0.v", "0.projection"])
def test_numbers_of_a_trace(recorded, tmp_path, name, dtype):
    """Of another type they are refused; or all that can be asked is answered, as for a projection in float64."""
    given = [key for key in recorded[0] if key.endswith(name)] or [key for key in recorded[0] if key.endswith("q")]
    write_tensors(tmp_path / "x", recorded[0] | {given[0]: recorded[0][given[0]].to(dtype)}, recorded[1])
    if dtype == torch.float64 and "projection" in name:
        assert regard.trace.load(tmp_path / "x").norms(0, 0, 0).shape == (7,)
        return
    with pytest.raises(Damaged, match=r"a trace that cannot be read: [^\n]*(holds|one dtype|TypeError)[^\n]*$"):
        regard.trace.load(tmp_path / "x")


# --- packed texts ---


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_texts_unpack_within_bounds(tmp_path, monkeypatch, run, whole, end):
    """With smaller bounds: 16 MB of zeros are quick."""
    from regard.files import text as files

    monkeypatch.setattr(files, "LINE", 1 << 20)
    monkeypatch.setattr(files, "WHOLE", 4 << 20)
    (tmp_path / "x.gz").write_bytes(gzip.compress((b"x" * (1 << 19) + end) * 32, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"x\.gz: more than 4,194,304 bytes when unpacked; split the file"):
            files.whole(tmp_path / "x.gz")
        if end:
            assert sum(map(len, files.lines(tmp_path / "x.gz"))) == 16 << 20
        else:
            with pytest.raises(ValueError, match=r"x\.gz:1: a line of more than 1,048,576 bytes: is it a file of text"):
                list(files.lines(tmp_path / "x.gz"))
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
    done = None if end else run("translate", "-m", whole["transformer"], "--input", tmp_path / "x.gz")
    assert done is None or (done.code == 2 and done.err.count("\n") == 1)


# --- checkpoints ---


STATES = [
    ({"standing.update": "5"}, {}, "update must be a whole number of at least 0, got '5'"),
    ({"standing.seconds": []}, {}, r"seconds must be a number, got \[\]"),
    ({"standing.position": {"epoch": -1}}, {}, "epoch must be a whole number of at least 0, got -1"),
    ({"standing.position": {"page": 1}}, {}, "unexpected keyword argument 'page'"),
    ({"standing": 3}, {}, "."),
    ({}, {"model.w": torch.ones(3)}, r"of another model: model.w is \[3\], expected \[2\]"),
    ({}, {"exp_avg.w": torch.ones(3)}, r"of another model: exp_avg.w is \[3\], expected \[2\]"),
    ({}, {"model.w": None}, "of another model: model.w is missing"),
]


@pytest.mark.parametrize(("said", "held", "message"), STATES)
def test_a_checkpoint_of_another_kind_is_passed_over(tmp_path, said, held, message):
    """For the one before it."""
    heard = []
    files = Checkpoints(tmp_path, keep=2, average=1, say=heard.append)
    tensors = {"model.w": torch.ones(2), "exp_avg.w": torch.ones(2)}
    for update in (4, 5):
        files.save(Standing(update), tensors)
    path = tmp_path / "state-00000005.safetensors"
    about = read_tensors(path)[1]
    for place, value in said.items():
        about = put(about, place, value)
    write_tensors(path, {name: t for name, t in (tensors | held).items() if t is not None}, about)
    found = files.latest({"w": (2,)})
    assert found is not None and found[0].update == 4 and len(heard) == 1
    assert re.search(rf"^checkpoint skipped: .*state-00000005.safetensors: .*{message}[^\n]*$", heard[0])


# --- vocabularies ---


@pytest.mark.parametrize(
    ("names", "about", "message"),
    [
        (b"[PAD]\n\xff", None, "'utf-8' codec can't decode"),
        (b"a\nb", None, "expected the tokens"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]", "[" * 100_000, "nested too deeply"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]", "[1]", "tokenizer_config.json: expected do_lower_case to be true or false"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]", '{"do_lower_case": "no"}', "expected do_lower_case to be true or false"),
    ],
)
def test_a_vocabulary_of_a_stranger(tmp_path, names, about, message):
    (tmp_path / "vocab.txt").write_bytes(names)
    if about is not None:
        (tmp_path / "tokenizer_config.json").write_text(about)
    with pytest.raises(ValueError, match=rf"vocab\.txt: not a usable vocabulary: .*{message}"):
        WordPiece.load(tmp_path)

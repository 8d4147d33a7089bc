"""The model folder: all files of a trained model in one folder that can be copied.

    model.safetensors   weights: float32, float16, or int8 with a scale per row
    tokenizer.json      subwords
    lexicon.npz         optional: the words that translations may contain (regard.text.lexicon)
    config.toml         format, task, [model], and the training settings
    metrics.jsonl       the training metrics
    README.md           the model card

``model.safetensors`` is written last: a folder that contains it is complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.files.kinds import Count, Index, check, hints_of
from regard.files.tensors import Shapes, read_tensors, write_tensors
from regard.files.toml import read_toml, write_toml
from regard.files.whole import Damaged, write_whole
from regard.models import (
    PointerConfig,
    PointerTransformer,
    Reader,
    ReaderConfig,
    RNNConfig,
    RNNSeq2Seq,
    Transformer,
    TransformerConfig,
)
from regard.text.lexicon import FILE as LEXICON
from regard.text.wordpiece import Cutter, load_subwords

FORMAT = 1
STORES = ("float32", "float16", "int8")
KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "transformer": (TransformerConfig, Transformer),
    "rnn": (RNNConfig, RNNSeq2Seq),
    "pointer": (PointerConfig, PointerTransformer),
    "reader": (ReaderConfig, Reader),
}
_NEEDED = ("config.toml", "tokenizer.json", "model.safetensors")


class Align(TypedDict, total=False):
    """[align]: the layer and head that a translator reads word alignments from."""

    layer: Index
    head: Index
    shift: bool


class _Model(TypedDict, total=False):
    kind: str


class _Data(TypedDict, total=False):
    max_tokens: Count
    window: Count
    stride: Count
    longest: Count
    longest_document: Index
    unanswerable: int


class _Translate(TypedDict, total=False):
    split: Index


class _Shown(TypedDict):
    positions: Count
    layer: Index


class _Exported(_Shown, total=False):
    head: Index


class Sections(TypedDict, total=False):
    """The parts of config.toml used to open a model; the rest documents its training."""

    regard: str
    task: str
    model: _Model
    data: _Data
    align: Align
    translate: _Translate
    ctranslate2: _Exported


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, its subwords, and all of config.toml."""

    model: Any
    subwords: Any
    settings: dict[str, Any]
    path: Path


def make_model(table: Mapping[str, Any]) -> Any:
    """A new model from a table: its ``kind``, one of ``KINDS``, and its configuration."""
    rest = dict(table)
    kind = rest.pop("kind", "transformer")
    if kind not in KINDS:
        raise ValueError(f"[model]: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    config, model = KINDS[kind]
    return model(config.from_table(rest))


def model_table(model: Any) -> dict[str, Any]:
    """The table of a model; the inverse of ``make_model``."""
    (kind,) = [name for name, (_, cls) in KINDS.items() if type(model) is cls]
    return {"kind": kind, **model.config.to_table()}


def save(
    path: str | os.PathLike[str],
    model: Any,
    subwords: Cutter,
    *,
    settings: Mapping[str, object] | None = None,
    card: str | None = None,
    store: str = "float32",
) -> None:
    """Write a model folder.

    Args:
        settings: more tables for config.toml, besides [model].
        card: the content of README.md.
        store: "float32", "float16", or "int8": matrices as integers with a float16 scale per row.
    """
    if store not in STORES:
        raise ValueError(f"store must be one of {', '.join(STORES)}, got {store!r}")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: expected a folder to write the model to, but it is a file")
    (folder / "model.safetensors").unlink(missing_ok=True)
    table = {**(settings or {}), "model": model_table(model)}
    write_config(folder, table)
    subwords.save(folder / "tokenizer.json")
    if card is not None:
        write_whole(folder / "README.md", card.encode())
    write_tensors(folder / "model.safetensors", pack(model.state_dict(), store), {"format": FORMAT, "store": store})


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no other process writes to it; create it if needed.

    The operating system releases the lock when the process ends, however it ends. Where the system or the file system
    has no locks, the folder is not locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder}: another process is training there; wait until it ends, or give another --out"
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove temporary files left by a killed process."""
    for name in (*_NEEDED, "README.md", "metrics.jsonl", LEXICON):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)


def write_config(folder: Path, table: Mapping[str, object]) -> None:
    """Write config.toml, with the format first."""
    head = {"format": FORMAT, "regard": sys.modules["regard"].__version__}
    write_toml(folder / "config.toml", head | {key: value for key, value in table.items() if key not in head})


def open(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Loaded:
    """Open the model in a folder, in evaluation mode."""
    folder = Path(path)
    settings = read_config(folder)
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        begun = (folder / "checkpoints").is_dir()
        hint = (
            "its training is not finished: run the same command again" if begun else "copy it again, or train it again"
        )
        if "ctranslate2" in settings:
            hint = 'it was exported: use it with --engine ctranslate2 or load(..., engine="ctranslate2") alone'
        raise FileNotFoundError(f"{folder}: {', '.join(missing)} missing from the model folder; {hint}")
    subwords = load_subwords(folder / "tokenizer.json")
    said = settings["model"].get("vocab_size")
    if isinstance(said, int) and said != len(subwords):
        raise Damaged(
            f"{folder}: config.toml says {said} subwords, tokenizer.json has {len(subwords)}; "
            "they belong to different models"
        )
    weights = folder / "model.safetensors"
    tensors, about = read_tensors(weights, check=lambda shapes: _check_shapes(settings["model"], shapes, folder))
    if about.get("store") not in STORES:
        raise Damaged(f"{weights}: unknown storage of weights, {about.get('store')!r}")
    with _SkipInit():
        model = make_model(settings["model"])
    _check_look(settings.get("align", {}), model.config, folder)
    _load(model, unpack(tensors), weights)
    return Loaded(model.to(device).eval(), subwords, settings, folder)


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.toml, and check that this version can read the folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such model folder")
    if not (folder / "config.toml").is_file():
        raise FileNotFoundError(f"{folder}: not a model folder: it has no config.toml")
    table = read_toml(folder / "config.toml")
    if table.get("format") != FORMAT:
        raise Damaged(
            f"{folder}: a model folder of format {table.get('format')!r}, written by regard "
            f"{table.get('regard', 'of an unknown version')}; this version reads format {FORMAT}"
        )
    try:
        check(table, hints_of(Sections))
    except ValueError as error:
        raise Damaged(f"{folder / 'config.toml'}: {error}") from None
    return table


def _check_shapes(table: Mapping[str, Any], stored: Shapes, folder: Path) -> None:
    """Check the weights' shapes against the configuration, without allocating what it asks for."""
    path = folder / "model.safetensors"
    layers = sum(value for name, value in table.items() if name.endswith("_layers") and isinstance(value, int))
    try:
        if layers > len(stored):  # every layer has weights
            raise ValueError(f"{layers:,} layers, and model.safetensors has {len(stored)} weights")
        with torch.device("meta"), _SkipInit(shapes=True):
            model = make_model(table)
        wanted = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # the last: more than 2⁶³ bytes
        raise Damaged(f"{folder / 'config.toml'}: not a usable configuration: {error}") from error
    rows = {f"{name}.scale": shape[:1] for name, shape in wanted.items() if len(shape) == 2}
    scales = {name: shape for name, shape in rows.items() if name in stored}
    other = "config.toml belongs to another model, or was written by another version of regard"
    if missing := sorted(wanted.keys() - stored.keys()):
        raise Damaged(f"{path}: {len(missing)} weights are missing, {missing[0]} first; {other}")
    if unknown := sorted(stored.keys() - wanted.keys() - scales.keys()):
        raise Damaged(f"{path}: {len(unknown)} weights too many, {unknown[0]} first; {other}")
    for name, shape in {**wanted, **scales}.items():
        if stored[name] != shape:
            raise Damaged(
                f"{path}: {name} is {list(stored[name])}, config.toml says {list(shape)}; "
                "they belong to different models"
            )


def _check_look(align: Align, config: TransformerConfig | RNNConfig, folder: Path) -> None:
    """Check that the model has the layer and the head of [align]."""
    given = (("layer", align.get("layer"), config.decoder_layers), ("head", align.get("head"), config.heads))
    for name, number, count in given:
        if number is not None and number >= count:
            raise Damaged(f"{folder / 'config.toml'}: [align]: {name} must be below {count}, got {number}")


def _load(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    for name, own in model.state_dict().items():
        if weights[name].is_floating_point() != own.is_floating_point():
            raise Damaged(f"{path}: {name} holds {weights[name].dtype}, and {own.dtype} is needed")
    model.load_state_dict(weights, assign=True)


class _SkipInit(TorchFunctionMode):
    """Skip the random initialization of parameters, which takes longer than reading the weights that replace them.

    Computed tensors, such as tables of distances, are still computed. With ``shapes``, for a model on the "meta"
    device, ``torch.arange`` runs on the CPU: on "meta" it needs an import that takes a second.
    """

    def __init__(self, *, shapes: bool = False) -> None:
        super().__init__()
        self._counted = {"device": "cpu"} if shapes else {}

    DRAWS = frozenset({Tensor.normal_, Tensor.uniform_, nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_})

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.arange:
            return func(*args, **{**self._counted, **kwargs})
        if func in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        if func is torch.linalg.qr:  # nn.init.orthogonal_ orthogonalizes its draw
            return args[0], args[0]
        return func(*args, **kwargs)


# --- int8 ---


def pack(weights: Mapping[str, Tensor], store: str) -> dict[str, Tensor]:
    """Weights in their storage format."""
    out: dict[str, Tensor] = {}
    for name, w in weights.items():
        if store == "int8" and w.ndim == 2 and w.is_floating_point():
            out[name], out[f"{name}.scale"] = quantize(w)
        else:
            out[name] = w.half() if store == "float16" and w.is_floating_point() else w
    return out


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float32 copies of stored weights."""
    out: dict[str, Tensor] = {}
    for name, t in tensors.items():
        if name.endswith(".scale") and name.removesuffix(".scale") in tensors:
            continue
        scale = tensors.get(f"{name}.scale")
        out[name] = t.to(torch.float32 if t.is_floating_point() or scale is not None else t.dtype, copy=True)
        if scale is not None:
            out[name].mul_(scale.float()[:, None])
    return out


def quantize(w: Tensor) -> tuple[Tensor, Tensor]:
    """Integers n in −127 … 127 and a float16 scale s per row, w_rc ≈ s_r n_rc, s_r = max_c |w_rc| / 127.

    The stored, rounded scale is used for n, so the error is at most half a step.

    >>> numbers, scale = quantize(torch.tensor([[1.0, -0.25], [0.0, 0.0]]))
    >>> numbers
    tensor([[127, -32],
            [  0,   0]], dtype=torch.int8)
    """
    peak = w.detach().float().abs().amax(1)
    scale = (peak / 127).half()
    # float16 may round the scale down, and then the largest number would not fit
    scale = torch.where(scale.float() * 127.5 < peak, torch.nextafter(scale, scale.new_tensor(float("inf"))), scale)
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale)).float()
    numbers = (w.detach().float() / divisor[:, None]).round().clamp(-127, 127)
    return numbers.to(torch.int8), scale

"""Settings of text-to-text training: tables as in a TOML file, and defaults that fit the size of the corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

from regard.align.symmetrization import Method
from regard.data import Files, JsonLines, Reader, Tsv, read
from regard.data.heldout import Split, hold_out
from regard.files.kinds import hints_of
from regard.models.folder import KINDS
from regard.train import Mismatch, Table
from regard.train import Settings as LoopSettings

Tables = dict[str, dict[str, Any]]
LIMITS = ("max_tokens", "max_ratio", "window", "stride", "longest")  # of [data]: what is learned of the same text
OF_SUBWORDS = {"vocab_size", "pad_id", "bos_id", "eos_id"}  # of [model]: what the subwords decide
MOST_TOKENS, MOST_SUBWORDS, MOST_LAYERS, WIDEST = 2**30, 2**20, 1000, 2**24  # larger ones are slips of the pen
PRESETS = ("laptop",)
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class PairData(Table):
    """What [data] of pairs of texts has, wherever they come from.

    ``bad`` lines are refused ("raise") or counted and left out ("skip"). Pairs longer than ``max_tokens`` subwords a
    side, or with one side more than ``max_ratio`` times the other, are left out. ``cache`` is a folder in which the
    tokenised corpus is kept. Where there is nothing to validate on, ``held_out`` of the training pairs are (None: one
    in 20, at most 1,000; 0: none), see :mod:`regard.data.heldout`.

    A subclass says where the pairs are: :meth:`training` and :meth:`validation`.
    """

    bad: str = "raise"
    max_tokens: int = 256
    max_ratio: float | None = None
    cache: str | None = None
    held_out: int | None = None

    def __post_init__(self) -> None:
        if self.bad not in ("raise", "skip"):
            raise ValueError(f"bad must be raise or skip, got {self.bad!r}")
        check_held_out(self.held_out)

    def training(self) -> list[Reader]:
        """Readers of what was given to train on."""
        raise NotImplementedError

    def validation(self) -> list[Reader]:
        """Readers of what was given to validate on."""
        return []

    @cached_property
    def split(self) -> Split:
        """The training and the validation data."""
        training, validation = self.training(), self.validation()
        if validation and self.held_out:
            raise ValueError(f"held_out is {self.held_out:,}, and validation data are given: give one of them")
        given = validation or self.held_out == 0
        return Split(training, validation) if given else hold_out(training, self.held_out)


def check_held_out(count: Any) -> None:
    """What is no number is told with the other fields."""
    if isinstance(count, int) and count < 0:
        raise ValueError(f"held_out must be a whole number of at least 0, got {count}")


@dataclass(frozen=True, kw_only=True)
class Data(PairData):
    """Where the pairs are, and :class:`PairData`.

    ``source`` and ``target`` are two files of lines; ``source`` alone is a file with both sides, whose name ends in
    .tsv or .jsonl (or .gz after it). ``corpora`` are more of them, or others, each a table:
    ``{source, target}``, ``{tsv, columns, width}`` or ``{jsonl, keys}``, with a ``weight``. The same for validation.
    """

    source: str | None = None
    target: str | None = None
    corpora: Sequence[Mapping[str, Any]] = ()
    valid_source: str | None = None
    valid_target: str | None = None
    valid: Sequence[Mapping[str, Any]] = ()

    def training(self) -> list[Reader]:
        readers = _readers("", self.source, self.target, self.corpora)
        if not readers:
            raise ValueError("no training data: give source and target, or corpora")
        return readers

    def validation(self) -> list[Reader]:
        return _readers("valid_", self.valid_source, self.valid_target, self.valid)


@dataclass(frozen=True, kw_only=True)
class SubwordSettings(Table):
    """[subwords]: ``vocab_size`` of them learned on the training text, or those of a tokenizer.json at ``path``.

    ``dropout`` is BPE-dropout; in the last ``plain`` share of training there is none.
    """

    vocab_size: int = 10000
    path: str | None = None
    lowercase: bool = False
    dropout: float = 0.0
    plain: float = 0.2

    def __post_init__(self) -> None:
        check_vocabulary(self.vocab_size)
        for name in ("dropout", "plain"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class PairTraining(LoopSettings):
    """[training] of what is learned from pairs of texts: the loop's settings, and

    ``tokens``: subwords of an update, padding included, N (S + T), on all ranks together, split into ``accumulate``
    batches; lengths are padded to a ``multiple``; label ``smoothing``; ``rdrop``, the weight of R-Drop (0: off).
    """

    tokens: int = 16000
    multiple: int = 1
    smoothing: float = 0.1
    rdrop: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole("tokens", 1, MOST_TOKENS)
        self.whole("multiple", 1, MOST_TOKENS)
        self.number("smoothing", 1.0)
        self.number("rdrop")


@dataclass(frozen=True, kw_only=True)
class Training(PairTraining):
    """[training] of translation: that of pairs, and

    ``bleu`` and chrF are measured by greedy decoding of at most ``bleu_sentences`` validation sentences, with
    sacrebleu's tokenizer ``bleu_tokenize``. ``guided``: the weight of the loss that teaches word alignments to
    ``guided_head`` of the cross-attention in ``guided_layer`` (None: the last); 0: off. The alignments are found by
    :mod:`regard.align.statistical` before training starts; ``guided_links`` says how its two directions are combined.
    ``start``: a model folder, or the name of a bundled model, to start from with its weights and subwords.
    """

    bleu: bool = True
    bleu_tokenize: str = "13a"
    bleu_sentences: int = 1000
    guided: float = 0.0
    guided_layer: int | None = None
    guided_head: int = 0
    guided_links: str = "grow-diag-final-and"
    start: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole("bleu_sentences", 1)
        self.number("guided")
        self.whole("guided_head", 0)
        self.one_of("guided_links", get_args(Method))
        if self.guided_layer is not None:
            self.whole("guided_layer", 0)

    def to_table(self) -> dict[str, Any]:
        """Without settings that have no effect, so that a run of a version that lacks them can be resumed."""
        table = super().to_table()
        return table if self.guided else {key: value for key, value in table.items() if not key.startswith("guided")}


@dataclass(frozen=True, kw_only=True)
class Settings(Table):
    """The data, and any other settings; those left out are fitted to the corpus.

    ``preset`` "laptop" takes minutes on a CPU, see :meth:`laptop`. Each task has a subclass, with the classes of its
    own tables, its ``kinds`` of model, the settings ``sized`` by the number of pairs, and those of the ``laptop``
    preset.
    """

    data_table: ClassVar[type[Any]] = Data
    subwords_table: ClassVar[type[Any]] = SubwordSettings
    training_table: ClassVar[type[Any]] = Training
    kinds: ClassVar[tuple[str, ...]] = ("transformer", "rnn")

    data: Any
    subwords: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None

    def __post_init__(self) -> None:
        if self.preset not in (None, *PRESETS):
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        self.subwords_table.from_table(self.subwords, "subwords")
        self.training_table.from_table(self.training, "training")
        complete(self.model, self.kinds)

    @classmethod
    def from_tables(cls: type[S], tables: Mapping[str, Any]) -> S:
        """Of a TOML file."""
        known = [f.name for f in fields(cls)]
        if unknown := [key for key in tables if key not in known]:
            raise ValueError(f"unknown tables {', '.join(map(repr, unknown))}; expected {', '.join(known)}")
        rest = {name: tables[name] for name in known if name != "data" and name in tables}
        return cls(data=cls.data_table.from_table(tables.get("data", {}), "data"), **rest)

    @classmethod
    def hints(cls) -> dict[str, dict[str, Any]]:
        """What each table takes, by name: the types of its fields."""
        tables: dict[str, Any] = {
            "data": cls.data_table,
            "subwords": cls.subwords_table,
            "training": cls.training_table,
        }
        model: dict[str, Any] = {"kind": Literal[cls.kinds]} if len(cls.kinds) > 1 else {}
        for kind in reversed(cls.kinds):  # where two have a field, its type is that of the first
            config: Any = KINDS[kind][0]
            model |= hints_of(config)
        return {name: hints_of(table) for name, table in tables.items()} | {"model": model}

    @staticmethod
    def sized(pairs: int) -> Tables:
        """Defaults for so many pairs: tables "subwords" and "training", and one by the name of each kind of model."""
        return size_defaults(pairs)

    @staticmethod
    def laptop(pairs: int) -> Tables:
        """What differs from :meth:`sized` in the preset "laptop": some 24 trillion operations of training."""
        updates = few_updates(pairs, 2400)
        small = {"dim": 128, "heads": 4, "dropout": 0.1}
        return {
            "subwords": {"vocab_size": 4000, "dropout": 0.0},
            "transformer": {**small, "ffn_dim": 512, "encoder_layers": 3, "decoder_layers": 2},
            "rnn": {"dim": 128, "hidden_dim": 256, "dropout": 0.2},
            "training": {**brief(updates), "lr": 3e-3, "tokens": 2000, "rdrop": 0.0, "bleu_sentences": 200},
        }

    def defaults(self, pairs: int) -> Tables:
        """``sized``, with what the preset has instead."""
        fit, own = self.sized(pairs), self.laptop(pairs) if self.preset == "laptop" else {}
        return {name: {**fit.get(name, {}), **own.get(name, {})} for name in {**fit, **own}}

    def short_run(self, pairs: int) -> dict[str, Any]:
        """How long the preset trains, if there is one: that holds for an encoder that was trained before too."""
        table = {} if self.preset is None else self.defaults(pairs)["training"]
        return {key: table[key] for key in ("updates", "warmup", "tokens") if key in table}


def brief(updates: int) -> dict[str, Any]:
    """Training whose learning rate has decayed when it ends: it is not meant to be continued."""
    return {"updates": updates, "warmup": updates // 10, "schedule": "cosine"}


def few_updates(pairs: int, most: int) -> int:
    """At most so many, and of a small corpus no more than some 60 times through it."""
    return min(most, max(300, pairs * 9 // 10))


@dataclass(frozen=True)
class Fitted:
    """All settings, fitted to a corpus."""

    data: Any
    cutting: Any
    model: dict[str, Any]
    training: Any
    preset: str | None = None

    @classmethod
    def of(cls, given: Settings, pairs: int, on_gpu: bool, kept: Mapping[str, Any] | None = None) -> Fitted:
        """``kept``: the settings of the resumed run, if there is one."""
        fit = given.defaults(pairs)
        kind = given.model.get("kind", given.kinds[0])
        model = complete({"kind": kind, **_fitting(fit.get(kind, {}), given.model), **given.model}, given.kinds)
        before = (kept or {}).get("training", {})
        multiple = before.get("multiple", 8 if on_gpu else 1)
        training = {**fit["training"], "multiple": multiple, **given.training}
        if "warmup" not in given.training:  # a short run must not end before its learning rate is reached
            training["warmup"] = min(training["warmup"], training["updates"] // 4)
        return cls(
            given.data,
            given.subwords_table.from_table({**fit["subwords"], **given.subwords}, "subwords"),
            model,
            given.training_table.from_table(training, "training"),
            given.preset,
        )

    def tables(self) -> dict[str, Any]:
        return {
            **({} if self.preset is None else {"preset": self.preset}),
            "data": self.data.to_table(),
            "subwords": self.cutting.to_table(),
            "model": self.model,
            "training": self.training.to_table(),
        }


def complete(model: Mapping[str, Any], kinds: Sequence[str] = ("transformer", "rnn")) -> dict[str, Any]:
    """A model's table with every value that it has, but for those that its subwords decide."""
    kind = model.get("kind", kinds[0])
    if kind not in kinds:
        raise ValueError(f"[model]: kind must be one of {', '.join(kinds)}, got {kind!r}")
    config, own = KINDS[kind][0], OF_SUBWORDS
    if unknown := [key for key in model if key in own or key not in {"kind", *(f.name for f in fields(config))}]:
        known = sorted({f.name for f in fields(config)} - own)
        raise ValueError(f"[model] has no {', '.join(unknown)}; a {kind} takes {', '.join(known)}")
    check_sizes(model)
    table = config.from_table({"vocab_size": 2**31, **{key: value for key, value in model.items() if key != "kind"}})
    return {"kind": kind, **{key: value for key, value in table.to_table().items() if key not in own}}


def check_sizes(value: Any, name: str = "") -> None:
    """Refuses numbers in [model], or in a score in it, that are larger than any model's, before a model is made."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_sizes(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for part in value:
            check_sizes(part, name)
    most = MOST_LAYERS if name.endswith("layers") else WIDEST
    if isinstance(value, (int, float)) and value > most:
        raise ValueError(f"[model]: {name} must be at most {most:,}, got {value:,}")


def check_vocabulary(size: Any) -> None:
    """What is no number is told with the other fields."""
    if isinstance(size, int) and size > MOST_SUBWORDS:
        raise ValueError(f"vocab_size must be at most {MOST_SUBWORDS:,}, got {size:,}")


def _fitting(sized: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that go with what was given: who names a score or positions has the other as the model has it."""
    own = {**sized, **given}
    odd = own.get("dim", 0) // own.get("heads", 1) % 2  # pairs of dims are turned
    free = not odd and not given.keys() & {"self_score", "decoder_score", "positions"}
    return {key: value for key, value in sized.items() if free or key not in ROTARY}


ROTARY = {"self_score": "rotary", "positions": "none"}


def size_defaults(pairs: int) -> Tables:
    """Defaults for a corpus of so many pairs: a small model, much regularised, for few; a larger one for many.

    Transformers have rotary self-attention: with Multi30k it has 1.3 to 1.6 BLEU more in validation than the dot
    product with sinusoids has.
    """
    rnn = {"dim": 256, "hidden_dim": 512, "dropout": 0.3}
    if pairs < 100_000:
        tiny = pairs < 10_000
        return {
            "subwords": {"vocab_size": 4000 if tiny else 10000, "dropout": 0.1},
            "transformer": {
                "dim": 256,
                "ffn_dim": 512,
                "heads": 4,
                "encoder_layers": 4,
                "decoder_layers": 4,
                "dropout": 0.3,
                **ROTARY,
            },
            "rnn": rnn,
            "training": {
                "updates": 4000 if tiny else 8000,
                "tokens": 4000 if tiny else 18000,
                "lr": 3e-3,
                "warmup": 1000 if tiny else 2000,
                "rdrop": 5.0 if tiny else 2.5,
            },
        }
    large = pairs >= 1_000_000
    size = {"dim": 512, "ffn_dim": 2048, "heads": 8} if large else {"dim": 384, "ffn_dim": 1536, "heads": 6}
    return {
        "subwords": {"vocab_size": 32000 if large else 16000, "dropout": 0.0 if large else 0.1},
        "transformer": {**size, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.1 if large else 0.15, **ROTARY},
        "rnn": {**rnn, "dim": 512, "hidden_dim": 1024, "dropout": 0.2},
        "training": {
            "updates": 100_000 if large else 30_000,
            "tokens": 50_000 if large else 32_000,
            "lr": 1e-3 if large else 1.5e-3,
            "warmup": 4000,
        },
    }


def check_same(kept: Mapping[str, Any], now: Mapping[str, Any], folder: object) -> None:
    """Refuse to resume a run with other settings than it was started with."""
    differ = []
    for section in ("subwords", "model", "training"):
        old, new = kept.get(section, {}), now[section]
        free = {"training": {*LoopSettings.FREE}, "model": OF_SUBWORDS}.get(section, set())
        for key in sorted({*old, *new} - free):
            a, b = _plain(old.get(key)), _plain(new.get(key))
            if a != b:
                differ.append(f"{section}.{key} was {_shown(a)}, is {_shown(b)}")
    for key in LIMITS:
        a, b = kept.get("data", {}).get(key), now["data"].get(key)
        if a != b:
            differ.append(f"data.{key} was {_shown(a)}, is {_shown(b)}")
    for key, name in (("pairs", "the number of training pairs"), ("fingerprint", "the text of the data")):
        if kept.get("data", {}).get(key) != now["data"][key]:
            differ.append(f"{name} was {kept.get('data', {}).get(key)}, is {now['data'][key]}")
    if differ:
        raise Mismatch(
            f"{folder} has a run that was started with other settings: {'; '.join(differ)}. "
            "Use the same settings to resume it, or another folder for a new run"
        )


def survey(readers: Sequence[Reader], bad: str) -> tuple[int, str]:
    """The number of pairs, and a fingerprint of them all and of their weights."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for reader in readers:
        digest.update(f"weight {reader.weight}\n".encode())
        for source, target in read(reader, bad=bad):  # type: ignore[arg-type]
            digest.update(f"{source}\t{target}\n".encode())
            count += 1
    return count, digest.hexdigest()


def _readers(
    prefix: str, source: str | None, target: str | None, more: Sequence[Mapping[str, Any]]
) -> list[Reader]:  # fmt: skip
    readers: list[Reader] = []
    if isinstance(more, str) or not all(isinstance(table, Mapping) for table in more):
        name = "valid" if prefix else "corpora"
        raise ValueError(f'[data]: {name} must be a list of tables such as {{tsv = "more.tsv"}}, got {more!r}')
    if source is None and target is not None:
        raise ValueError(f"{prefix}target is given without {prefix}source")
    if source is not None:
        readers.append(_both_sides(source, prefix) if target is None else Files(source, target))
    return readers + [_reader(table) for table in more]


def _both_sides(path: str, prefix: str) -> Reader:
    """A file that has both texts of a pair in each line, by its name."""
    kinds: dict[str, type[Tsv] | type[JsonLines]] = {".tsv": Tsv, ".jsonl": JsonLines}
    kind = kinds.get(Path(path.removesuffix(".gz")).suffix)
    if kind is None:
        raise ValueError(
            f"{prefix}source is given without {prefix}target; a file with both, such as {path} would be, "
            f"has a name that ends in {' or '.join(kinds)}"
        )
    return kind(path)


def _reader(table: Mapping[str, Any]) -> Reader:
    kinds: dict[str, Any] = {"source": Files, "tsv": Tsv, "jsonl": JsonLines}
    kind = next((key for key in kinds if key in table), None)
    if kind is None:
        raise ValueError(f"a corpus needs source and target, tsv or jsonl, got {dict(table)!r}")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise ValueError(f"a corpus of kind {kind}: weight must be a number, got {weight!r}")
    names = {"tsv": "path", "jsonl": "path"}
    values = {names.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    try:
        reader: Reader = kinds[kind](**values)
        return reader
    except TypeError as error:
        raise ValueError(f"a corpus of kind {kind}: {error}, got {dict(table)!r}") from error


def _plain(value: Any) -> Any:
    return [_plain(x) for x in value] if isinstance(value, (list, tuple)) else value


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)

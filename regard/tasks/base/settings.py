"""Settings of text-to-text training: tables as in a TOML file, and defaults that fit the size of the corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar, get_args

from regard.align.symmetrization import Method
from regard.data import Reader
from regard.data.heldout import Split, hold_out
from regard.files.kinds import hints_of
from regard.models.folder import KINDS
from regard.tasks.base.corpora import readers_of
from regard.tasks.base.defaults import Tables, few_updates, matching_defaults, short_schedule, size_defaults
from regard.train import Settings as LoopSettings
from regard.train import Table
from regard.train.settings import Values

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


def check_held_out(count: object) -> None:
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
    corpora: Sequence[Values] = ()
    valid_source: str | None = None
    valid_target: str | None = None
    valid: Sequence[Values] = ()

    def training(self) -> list[Reader]:
        readers = readers_of("", self.source, self.target, self.corpora)
        if not readers:
            raise ValueError("no training data: give source and target, or corpora")
        return readers

    def validation(self) -> list[Reader]:
        return readers_of("valid_", self.valid_source, self.valid_target, self.valid)


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
    guided_links: Method = "grow-diag-final-and"
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
    own tables, its ``kinds`` of model, the settings ``by_size`` by the number of pairs, and those of the ``laptop``
    preset.
    """

    data_table: ClassVar[type[Table]] = Data
    subwords_table: ClassVar[type[Table]] = SubwordSettings
    training_table: ClassVar[type[LoopSettings]] = Training
    kinds: ClassVar[tuple[str, ...]] = ("transformer", "rnn")

    data: Any  # of data_table
    subwords: Values = field(default_factory=dict)
    model: Values = field(default_factory=dict)
    training: Values = field(default_factory=dict)
    preset: str | None = None

    def __post_init__(self) -> None:
        if self.preset not in (None, *PRESETS):
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        self.subwords_table.from_table(self.subwords, "subwords")
        self.training_table.from_table(self.training, "training")
        complete(self.model, self.kinds)

    @classmethod
    def from_tables(cls: type[S], tables: Values) -> S:
        """Of a TOML file."""
        known = [f.name for f in fields(cls)]
        if unknown := [key for key in tables if key not in known]:
            raise ValueError(f"unknown tables {', '.join(map(repr, unknown))}; expected {', '.join(known)}")
        rest = {name: tables[name] for name in known if name != "data" and name in tables}
        return cls(data=cls.data_table.from_table(tables.get("data", {}), "data"), **rest)

    @classmethod
    def hints(cls) -> dict[str, dict[str, object]]:
        """What each table takes, by name: the types of its fields."""
        tables: dict[str, type] = {
            "data": cls.data_table,
            "subwords": cls.subwords_table,
            "training": cls.training_table,
        }
        model: dict[str, object] = {"kind": Literal[cls.kinds]} if len(cls.kinds) > 1 else {}
        for kind in reversed(cls.kinds):  # where two have a field, its type is that of the first
            config: type = KINDS[kind][0]
            model |= hints_of(config)
        return {**{name: hints_of(table) for name, table in tables.items()}, "model": model}

    @staticmethod
    def by_size(pairs: int) -> Tables:
        """Defaults for so many pairs: tables "subwords" and "training", and one by the name of each kind of model."""
        return size_defaults(pairs)

    @staticmethod
    def laptop(pairs: int) -> Tables:
        """What differs from :meth:`by_size` in the preset "laptop": some 24 trillion operations of training."""
        updates = few_updates(pairs, 2400)
        small = {"dim": 128, "heads": 4, "dropout": 0.1}
        return {
            "subwords": {"vocab_size": 4000, "dropout": 0.0},
            "transformer": {**small, "ffn_dim": 512, "encoder_layers": 3, "decoder_layers": 2},
            "rnn": {"dim": 128, "hidden_dim": 256, "dropout": 0.2},
            "training": {**short_schedule(updates), "lr": 3e-3, "tokens": 2000, "rdrop": 0.0, "bleu_sentences": 200},
        }

    def defaults(self, pairs: int) -> Tables:
        """``by_size``, with what the preset has instead."""
        fit, own = self.by_size(pairs), self.laptop(pairs) if self.preset == "laptop" else {}
        return {name: {**fit.get(name, {}), **own.get(name, {})} for name in {**fit, **own}}

    def short_run(self, pairs: int) -> Values:
        """How long the preset trains, if there is one: that holds for an encoder that was trained before too."""
        table = {} if self.preset is None else self.defaults(pairs)["training"]
        return {key: table[key] for key in ("updates", "warmup", "tokens") if key in table}


@dataclass(frozen=True)
class Fitted:
    """All settings, fitted to a corpus."""

    data: Any  # these three are of the classes that the task's settings name
    cutting: Any
    model: Values
    training: Any
    preset: str | None = None

    @classmethod
    def of(cls, given: Settings, pairs: int, on_gpu: bool, kept: Values | None = None) -> Fitted:
        """``kept``: the settings of the resumed run, if there is one."""
        fit = given.defaults(pairs)
        kind = given.model.get("kind", given.kinds[0])
        model = complete(
            {"kind": kind, **matching_defaults(fit.get(kind, {}), given.model), **given.model}, given.kinds
        )
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


def complete(model: Values, kinds: Sequence[str] = ("transformer", "rnn")) -> Values:
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


def check_sizes(value: object, name: str = "") -> None:
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


def check_vocabulary(size: object) -> None:
    """What is no number is told with the other fields."""
    if isinstance(size, int) and size > MOST_SUBWORDS:
        raise ValueError(f"vocab_size must be at most {MOST_SUBWORDS:,}, got {size:,}")

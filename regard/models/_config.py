"""The base of all model configurations: checked plain values, to and from a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from regard.files.kinds import check_fields

T = TypeVar("T", bound="ModelConfig")

TIED = ("all", "decoder", "none")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Vocabulary, special symbols and weight tying.

    ``tied``: "all" shares one matrix between source embedding, target embedding and softmax, "decoder" the last two,
    "none" nothing.
    """

    vocab_size: int
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    tied: str = "all"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from None
        self.positive("vocab_size")
        self.one_of("tied", TIED)
        self.share("dropout")
        for name in ("pad_id", "bos_id", "eos_id"):
            self.whole(name, 0, self.vocab_size - 1)
        if self.eos_id in (self.pad_id, self.bos_id):
            raise ValueError(f"{type(self).__name__}: eos_id must differ from pad_id and bos_id, got {self.eos_id}")

    def to_table(self) -> dict[str, Any]:
        """Plain values for TOML or JSON, without None: TOML has no null."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_table(cls: type[T], table: Mapping[str, Any]) -> T:
        """The inverse of ``to_table``; unknown names raise ValueError."""
        known = [field.name for field in fields(cls)]
        unknown = [key for key in table if key not in known]
        if unknown:
            raise ValueError(f"{cls.__name__} knows no {', '.join(map(repr, unknown))}; it has {', '.join(known)}")
        if "vocab_size" not in table:
            raise ValueError(f"{cls.__name__} needs vocab_size")
        return cls(**table)

    def whole(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            expected = f"at least {low}" if high is None else f"in {low}…{high}"
            raise ValueError(f"{type(self).__name__}: {name} must be a whole number {expected}, got {value!r}")

    def positive(self, *names: str) -> None:
        for name in names:
            self.whole(name, 1)

    def one_of(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ValueError(f"{type(self).__name__}: {name} must be one of {', '.join(choices)}, got {value!r}")

    def share(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
                raise ValueError(f"{type(self).__name__}: {name} must be at least 0 and below 1, got {value!r}")

"""The options of a search with their defaults, and running it: beam search or sampling.

Commands show the defaults in their help, so PyTorch is not imported before something is searched for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from regard.files.kinds import check_fields

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self, Unpack

    from regard.decode._common import Hypothesis, Limits, Model, S
    from regard.decode._words import KnownWords
    from regard.models import Memory

MOST = 1024  # hypotheses of a sentence
TOGETHER = 2**14  # hypotheses of all sentences of a batch
LONGEST = 2**16  # the most subwords that an output may have
STEEPEST = 7  # length penalty: LONGEST to the power of it is a float32 still


class SearchOptions(TypedDict, total=False):
    """The fields of :class:`Search` as keyword arguments, for editors and type checkers."""

    beam: int
    nbest: int
    length_penalty: float
    min_length: int
    max_length: int | None
    no_repeat: int
    sample: bool
    temperature: float
    top_k: int | None
    top_p: float
    seed: int | None
    known_words: bool


class SearchInput(TypedDict, total=False):
    """What a search is given for a batch, see :func:`regard.decode.greedy`."""

    prefix: Tensor | None
    ban: Sequence[int]
    words: KnownWords | None


@dataclass(frozen=True, kw_only=True)
class Search:
    """Search options. ``Search.beam`` is the default of ``beam``, and so on.

    ``beam`` hypotheses are kept open and ranked by Σ log p / lengthᵅ, α being ``length_penalty``; the ``nbest`` best
    are returned. With ``sample`` they are sampled from the model instead: sharpened by ``temperature``, cut to the
    ``top_k`` most likely tokens and to the fewest with total probability ``top_p``; the same ``seed`` and lines give
    the same samples. ``min_length`` and ``max_length`` count subwords. No sequence of ``no_repeat`` subwords occurs
    twice (0: off). If the translator has a lexicon and ``known_words`` is set, translations with words that are neither
    in it nor in the source are searched again, with known words only.
    """

    beam: int = 5
    nbest: int = 1
    length_penalty: float = 1.0
    min_length: int = 0
    max_length: int | None = None
    no_repeat: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    known_words: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.beam < 1 or self.nbest < 1:
            raise ValueError(f"expected beam and nbest of at least 1, got beam={self.beam} and nbest={self.nbest}")
        if max(self.beam, self.nbest) > MOST:
            raise ValueError(
                f"expected beam and nbest of at most {MOST:,}, got beam={self.beam} and nbest={self.nbest}"
            )
        if not self.sample and self.nbest > self.beam:
            raise ValueError(f"the {self.nbest} best of {self.beam} hypotheses: make beam at least nbest")
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, None, 1.0):
            raise ValueError("temperature, top_k and top_p are for sampling: add sample=True")
        if self.no_repeat < 0:
            raise ValueError(f"no_repeat: expected 0 or a number of subwords, got {self.no_repeat}")
        if max(self.min_length, self.max_length or 0) > LONGEST:
            raise ValueError(
                f"expected min_length and max_length of at most {LONGEST:,} subwords, "
                f"got {self.min_length} and {self.max_length}"
            )
        if not 0 <= self.length_penalty <= STEEPEST:
            raise ValueError(f"length_penalty: expected a number from 0 to {STEEPEST}, got {self.length_penalty}")
        _ = self.limits  # making them checks them

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """A search from options by name; unknown ones are refused."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in options if name not in known]:
            raise TypeError(f"unknown option {', '.join(unknown)}; there are {', '.join(known)}")
        return cls(**options)

    @property
    def limits(self) -> Limits:
        """``min_length`` and ``max_length``; without the latter twice the source, and a few more."""
        from regard.decode._common import Limits

        ratio = 2.0 if self.max_length is None else None
        return Limits(minimum=self.min_length, maximum=self.max_length, ratio=ratio)

    @property
    def sentences(self) -> int:
        """How many sentences there is room for at once."""
        return max(1, TOGETHER // max(self.beam, self.nbest))

    @property
    def rows(self) -> int:
        """The hypotheses of a sentence that are open at once."""
        return self.nbest if self.sample else self.beam

    def run(
        self, model: Model[S], memory: Memory, number: int, **options: Unpack[SearchInput]
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence; ``number`` tells batches apart."""
        from regard.decode._beam import beam
        from regard.decode._repeat import NoRepeat
        from regard.decode._walk import sample

        limits = self.limits
        searched: Any = NoRepeat(model, self.no_repeat) if self.no_repeat else model
        if self.sample:
            seed = None if self.seed is None else (self.seed * 1_000_003 + number) % 2**63
            return sample(
                searched,
                memory,
                samples=self.nbest,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                seed=seed,
                limits=limits,
                **options,
            )
        return beam(
            searched, memory, beams=self.beam, best=self.nbest, alpha=self.length_penalty, limits=limits, **options
        )

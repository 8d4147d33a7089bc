"""A model that summarizes, and its subwords, as one thing: a document in, a summary out, with what it was made of.

Documents are sorted by length and decoded in batches; what comes back is in the order in which it came in.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.align.attention import by_word
from regard.common.processors import threads
from regard.decode import Hypothesis, named
from regard.decode.search import Search, SearchOptions
from regard.files.bundled import find
from regard.models.pointer import PointerMemory, PointerTransformer
from regard.nn.int8 import weights
from regard.tasks.base.use import batches_of, open_model, what_is_odd
from regard.tasks.summarization.search import SummarySearch
from regard.text.recasing import Spelling, join_words
from regard.text.recasing import Word as Spelled
from regard.text.subwords import Encoded
from regard.text.wordpiece import Cutter, WordPiece

if TYPE_CHECKING:
    from typing_extensions import Unpack

LIMIT = 32_768  # subwords of a document that is read at all
TEMPERATURE = 0.7  # of the samples to compare
BATCH_TOKENS = 4096  # source tokens decoded at once, padding included

Progress = Callable[[int], None]


class SummarizerOptions(TypedDict, total=False):
    """The options of :func:`load`."""

    device: str | torch.device | None
    int8: bool


class SummarizeOptions(SearchOptions, total=False):
    """The options of :meth:`Summarizer.summarize`."""

    length: int | None
    consensus: int
    batch_tokens: int
    progress: Progress | None


class DocumentWord(NamedTuple):
    """A word of a document, and the characters [start, end) that it is."""

    text: str
    start: int
    end: int


class Copied(NamedTuple):
    """The probability that a word was copied, not generated, and its most likely origin in the source.

    ``position`` is None if none of its subwords occurs in the source.
    """

    probability: float
    position: int | None


@dataclass(frozen=True)
class Summary:
    """A summary, and the origin of its words.

    ``words`` are those of the text; ``source`` those of the document. ``attention`` [words, source words] is each
    word's attention to each source word at the step that predicted it; attention to line ends is left out, so a row
    may sum to less than 1. ``copied`` has an entry per word. ``score`` is the ranking score, ``log_prob`` Σ log p.
    """

    text: str
    words: tuple[str, ...]
    tokens: tuple[str, ...]
    source: tuple[DocumentWord, ...]
    attention: Tensor
    copied: tuple[Copied, ...]
    score: float
    log_prob: float

    def __str__(self) -> str:
        return self.text


@dataclass
class SummaryOutput:
    """The output for one document: summaries, best first, or a problem; and optionally a note."""

    summaries: list[Summary] = field(default_factory=list)
    problem: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The best summary; "" for a document that could not be summarized."""
        return self.summaries[0].text if self.summaries else ""


class Summarizer:
    """Summarizes with a model. Make one with :func:`load`.

    ``trained`` is the length in subwords of the longest training document. Longer documents are read completely, with a
    note. A document of more than ``limit`` subwords is refused; nothing is ever truncated.
    """

    def __init__(
        self,
        model: PointerTransformer,
        subwords: Cutter,
        *,
        name: str = "model",
        trained: int | None = None,
        limit: int = LIMIT,
    ) -> None:
        self.model, self.subwords, self.name, self.trained = model.eval(), subwords, name, trained
        known = None if model.config.windows else model.max_length
        self.limit = limit if known is None else min(limit, known - 1)
        self._ban = [token for token in subwords.silent if token != subwords.eos_id]

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.model.parameters())
        return f"<Summarizer {self.name}: {size:,} parameters, {len(self.subwords):,} subwords>"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @overload  # a str is a sequence of str, too
    def summarize(self, text: str, **options: Unpack[SummarizeOptions]) -> Summary: ...  # type: ignore[overload-overlap]
    @overload
    def summarize(self, text: Sequence[str], **options: Unpack[SummarizeOptions]) -> list[Summary]: ...
    def summarize(
        self, text: str | Sequence[str], **options: Unpack[SummarizeOptions]
    ) -> Summary | list[Summary]:  # fmt: skip
        """The summary of a document, or of each of several. Options are those of :meth:`outputs`."""
        documents = [text] if isinstance(text, str) else list(text)
        outputs = self.outputs(documents, **options)
        for number, output in enumerate(outputs, 1):
            if output.problem:
                raise ValueError(f"document {number}: {output.problem}")
        found = [output.summaries[0] for output in outputs]
        return found[0] if isinstance(text, str) else found

    @named
    def outputs(
        self,
        documents: Sequence[str],
        *,
        length: int | None = None,
        consensus: int = 0,
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[SummaryOutput]:
        """The output of each document. One that cannot be summarized has a problem; the others are still summarized.

        Args:
            documents: texts, of one line or many.
            length: approximate number of words. A model with ``told_length`` receives it as an input; for any other
                model, the search keeps the length within a quarter of it.
            consensus: sample this many more, and take the one most similar to all (minimum Bayes risk, Kumar and
                Byrne 2004, https://aclanthology.org/N04-1022); 0 takes the search's best.
            batch_tokens: source tokens decoded at once, padding included.
            progress: called after each batch with the number of documents in it.
            options: those of :class:`regard.tasks.summarization.search.SummarySearch`.
        """
        from regard.data.documents import flat  # here, since importing regard is to be quick

        if length is not None and length < 1:
            raise ValueError(f"length: expected at least 1 word, got {length}")
        base = SummarySearch.of(options)
        most = math.inf if base.max_length is None else base.max_length
        outputs = [self._check(text) for text in documents]
        good = [i for i, output in enumerate(outputs) if not output.problem]
        encoded = dict(zip(good, self.subwords.encode_batch([flat(documents[i]) for i in good]), strict=True))
        for i, row in encoded.items():
            outputs[i].problem, outputs[i].note = self._check_size(len(row.ids))
        good = [i for i in good if not outputs[i].problem]
        for number, batch in enumerate(batches_of([len(encoded[i].ids) for i in good], batch_tokens, base.sentences)):
            some = [good[k] for k in batch]
            found = self._decode([encoded[i] for i in some], base, number, length, consensus)
            for i, rows in zip(some, found, strict=True):
                outputs[i].summaries = [summary_of(documents[i], encoded[i], *one, self.subwords) for one in rows]
                if length is None and rows and len(rows[0][0].tokens) > most:  # with the end symbol
                    cut = f"the summary was ended at {most:,} subwords, the maximum"
                    outputs[i].note = "; ".join(filter(None, (outputs[i].note, cut)))
            if progress:
                progress(len(batch))
        return outputs

    def _check(self, text: str) -> SummaryOutput:
        problem = what_is_odd(text)
        if not problem and "\0" in text:
            problem = f"binary data, not text: a NUL character at {text.index(chr(0)):,}"
        if not problem and not text.strip():
            problem = "the document is empty"
        return SummaryOutput(problem=problem)

    def _check_size(self, size: int) -> tuple[str, str]:
        """A problem, a note, or neither."""
        if not size:
            return "the document has no text that the model knows", ""
        if size > self.limit:
            return f"{size:,} subwords; the maximum is {self.limit:,}; cut it into parts and summarize each", ""
        notes = []
        if (windows := self.model.windows(size + 1)) > 1:
            notes.append(f"read in {windows} windows of {self.model.max_length}")
        if self.trained is not None and size > self.trained:
            notes.append(f"longer than any training document ({self.trained:,}): expect more mistakes")
        return "", f"{size:,} subwords, {', '.join(notes)}" if notes else ""

    @torch.no_grad()
    def _decode(
        self, sources: list[Encoded], search: Search, number: int, length: int | None, consensus: int
    ) -> list[list[tuple[Hypothesis, Read]]]:
        """Summaries of each, best first, with what they were made of."""
        ended = [torch.tensor([*row.ids, self.model.eos_id]) for row in sources]
        memory = self.model.encode(pad_sequence(ended, True, self.model.pad_id).to(self.device))
        if length is not None:
            memory, search = self._set_length(memory, sources, search, length)
        with threads(weights(self.model) * memory.size * search.rows):
            found = search.run(self.model, memory, number, ban=self._ban)
        if consensus:
            drawn = replace(search, sample=True, nbest=consensus, temperature=TEMPERATURE, seed=search.seed or 0)
            with threads(weights(self.model) * memory.size * drawn.rows):
                more = drawn.run(self.model, memory, number, ban=self._ban)
            found = [
                rank_by_similarity([*ours, *theirs])[: search.nbest] for ours, theirs in zip(found, more, strict=True)
            ]
        items = torch.tensor([i for i, row in enumerate(found) for _ in row], device=self.device)
        again = iter(read(self.model, memory.select(items), [h.tokens for row in found for h in row]))
        return [[(hypothesis, next(again)) for hypothesis in row] for row in found]

    def _set_length(
        self, memory: PointerMemory, sources: list[Encoded], search: Search, length: int
    ) -> tuple[PointerMemory, Search]:
        """A length in words: an input of the model, in subwords, or a limit of the search."""
        words = sum(row.words[-1] + 1 for row in sources)
        wanted = max(1, round(length * sum(len(row.ids) for row in sources) / max(1, words)))
        if self.model.config.told_length:
            return memory.with_lengths(torch.full((memory.size,), wanted + 1, device=self.device)), search
        low, high = round(0.75 * wanted), max(1, round(1.25 * wanted))
        return memory, replace(search, min_length=low, max_length=high)


def rank_by_similarity(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """By how much each is like all others on average, best first: F₁ of single tokens and of pairs of neighbours."""
    grams = []
    for hypothesis in hypotheses:
        tokens = hypothesis.tokens.tolist()
        grams.append((Counter(tokens), Counter(pairwise(tokens))))

    def alike(i: int, j: int) -> float:
        return sum(2 * (a & b).total() / max(1, a.total() + b.total()) for a, b in zip(grams[i], grams[j], strict=True))

    places = range(len(hypotheses))
    means = [sum(alike(i, j) for j in places if j != i) for i in places]
    return [hypotheses[i] for i in sorted(places, key=lambda i: -means[i])]


class Read(NamedTuple):
    """For T tokens of a summary and S of its source: weights a [T, S], and those of each token's copies, [T, S].

    The latter sum to the probability that the token was copied, given that it came.
    """

    weights: Tensor
    copies: Tensor


def read(model: PointerTransformer, memory: PointerMemory, outputs: Sequence[Tensor]) -> list[Read]:
    """What each token of given outputs was made of: P(copied from j | y) = (1 − g) a_j [x_j = y] / P(y)."""
    if not outputs:
        return []
    targets = pad_sequence(list(outputs), True, model.pad_id).to(memory.lengths.device)  # type: ignore[union-attr]
    start = torch.full_like(targets[:, :1], model.bos_id)
    pointed = model.point(torch.cat((start, targets[:, :-1]), 1), memory)
    assert memory.source is not None and memory.lengths is not None
    log_p = model.log_probs(pointed, memory).gather(-1, targets[..., None])
    share = (torch.nn.functional.logsigmoid(-pointed.gate.float())[..., None] - log_p).exp()
    same = memory.source[:, None, :] == targets[..., None]
    copies = (share * pointed.weights * same).clamp(max=1.0) if model.config.copy else torch.zeros_like(pointed.weights)
    sizes = zip([len(row) for row in outputs], memory.lengths.tolist(), strict=True)
    return [
        Read(pointed.weights[i, :t, :s].float().cpu(), copies[i, :t, :s].float().cpu())
        for i, (t, s) in enumerate(sizes)
    ]


def summary_of(document: str, source: Encoded, found: Hypothesis, made: Read, subwords: Cutter) -> Summary:
    """Tokens as words, on both sides."""
    silent = {*subwords.silent}
    kept = [i for i, token in enumerate(found.tokens.tolist()) if token not in silent]
    tokens, made = found.tokens[kept].tolist(), Read(made.weights[kept], made.copies[kept])
    words, place = _source_words(document)
    if isinstance(subwords, WordPiece):
        text, own, groups = _wordpiece_words(document, source, tokens, made.copies, subwords)
    else:
        text, own, groups = _subword_words(tokens, subwords)
    whose = [-1 if word < 0 or (number := place[word]) is None else number for word in source.words]
    looked, taken = (by_word(rows, whose, len(words)) for rows in made)  # [tokens, words of the document]
    attention, copied = torch.zeros(len(own), len(words)), []
    for w, rows in enumerate(groups):
        attention[w] = looked[rows].mean(0)
        copies = taken[rows].mean(0)
        best = int(copies.argmax()) if len(copies) and copies.max() > 0 else None
        copied.append(Copied(min(1.0, float(made.copies[rows].sum(-1).mean())), best))
    shown = tuple(subwords.token(t) for t in tokens)
    return Summary(text, own, shown, words, attention, tuple(copied), found.score, float(found.log_probs.sum()))


def _source_words(document: str) -> tuple[tuple[DocumentWord, ...], list[int | None]]:
    """The words of a document, and for each word of its flat form which of them it is; None for a line end."""
    from regard.data.documents import flat, places

    line, at = flat(document), places(document)
    words: list[DocumentWord] = []
    number: list[int | None] = []
    start = 0
    for text in line.split():
        start = line.index(text, start)
        first, last = at[start], at[start + len(text) - 1]
        start += len(text)
        if document[first].isspace():
            number.append(None)
        else:
            number.append(len(words))
            words.append(DocumentWord(document[first : last + 1], first, last + 1))
    return tuple(words), number


Target = tuple[str, tuple[str, ...], list[list[int]]]
"""The text of an output, its words as ``split()`` has them but for line ends, and the tokens that each is made of."""


def _subword_words(tokens: Sequence[int], subwords: Cutter) -> Target:
    """Of subwords that have their spaces and letters."""
    from regard.data.documents import MARK

    groups: list[list[int]] = []
    for i, token in enumerate(tokens):
        if not groups or subwords.token(token)[:1].isspace():
            groups.append([])
        groups[-1].append(i)
    words = [subwords.decode([tokens[i] for i in group]).replace(MARK, "").strip() for group in groups]
    kept = [k for k, word in enumerate(words) if word]
    text = re.sub(rf"(?<=\S){MARK}(?=\S)", "", subwords.decode(tokens))  # within a word it is no line end
    text = re.sub(rf"\s*{MARK}\s*", "\n", text).strip()
    return text, tuple(words[k] for k in kept), [groups[k] for k in kept]


def _wordpiece_words(
    document: str, source: Encoded, tokens: Sequence[int], copies: Tensor, subwords: WordPiece
) -> Target:  # fmt: skip
    """Of BERT's subwords: spelled as the document does."""
    from regard.data.documents import MARK, flat

    line, number = flat(document), {}
    theirs: list[Spelled] = []
    for j, piece in enumerate(source.pieces):
        a, b = source.offsets[j]
        if piece in number:
            theirs[-1] = theirs[-1]._replace(text=line[theirs[-1].start : b], end=b)
        else:
            number[piece] = len(theirs)
            theirs.append(Spelled("", line[a:b], a, b))
    known = Spelling([word._replace(key=subwords.key(word.text)) for word in theirs])
    places = [number[piece] for piece in source.pieces]
    own = subwords.words(tokens)
    likely = [copies[rows].sum(0)[: len(places)] for _, rows in own]
    at = [places[int(row.argmax())] if len(row) and row.max() > 0 else None for row in likely]
    written = known.write([word for word, _ in own], at, cased=not subwords.lowercase)
    words: list[str] = []
    groups: list[list[int]] = []
    for word, (_, rows) in zip(written, own, strict=True):
        if word.glued and words:
            words[-1], groups[-1] = words[-1] + word.text, groups[-1] + rows
        else:
            words.append(word.text)
            groups.append(rows)
    kept = [k for k, word in enumerate(words) if word != MARK]
    return join_words(written), tuple(words[k] for k in kept), [groups[k] for k in kept]


def load(
    name: str | os.PathLike[str], *, device: str | torch.device | None = None, int8: bool = False
) -> Summarizer:  # fmt: skip
    """A summarizer from a model folder. ``device`` and ``int8`` are those of a translator's ``load``."""
    path: Path = find(name)
    loaded = open_model(path, "summarization", device, int8=int8)
    assert isinstance(loaded.model, PointerTransformer)
    data = loaded.settings.get("data", {})
    trained = data.get("longest_document", data.get("max_tokens"))  # folders of before know the limit alone
    return Summarizer(loaded.model, loaded.subwords, name=path.name, trained=trained)

"""A trained model and its subwords as one thing: text in, text out, with scores and word alignments.

Lines are sorted by length and decoded in batches; what comes back is in the order in which it came in.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, overload

import torch
from torch import Tensor

from regard.align.attention import links, word_weights
from regard.align.link import Links
from regard.decode import KnownWords, named
from regard.decode.engine import Engine, EngineHypothesis, Seq2Seq, TorchEngine
from regard.decode.search import Search, SearchOptions
from regard.files.bundled import DEFAULT, find
from regard.tasks.base.use import batches_of, open_model, refuse_other_tasks, what_is_odd
from regard.tasks.translation.output import (
    Attended,
    Translation,
    TranslationOutput,
    in_blocks,
    join_segments,
    single_spaces,
    spread,
    widen_weights,
    with_copies,
)
from regard.tasks.translation.protect.masking import Protected, copy_links, protect_line
from regard.tasks.translation.protect.spans import Protect, Protection, patterns
from regard.tasks.translation.protect.translate import How, translate_lines
from regard.text.lexicon import FILE as LEXICON
from regard.text.lexicon import Lexicon, plain, runs
from regard.text.segments import Interval, Joint, Segment, segments, sentences
from regard.text.subwords import EOS, UNK, Encoded, Subwords

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from regard.models.folder import Align
    from regard.train.settings import Values

LIMIT = 256  # subwords of a line, where neither the model nor its settings know a limit
BATCH_TOKENS = 1024  # source tokens decoded at once, padding included
ENGINES = ("torch", "ctranslate2")

Progress = Callable[[int], None]
"""Called with the number of lines that have been finished since it was called last."""


class _Job(NamedTuple):
    """A sentence to be decoded: which line it is of, its text and its subwords, and how it follows the one before."""

    line: int
    text: str
    source: Encoded
    prefix: list[int]
    joint: Joint


class _Unknown(NamedTuple):
    """A sentence with translations that have unknown words: the words of its source, and the other translations."""

    own: set[str]
    good: list[Translation]


class _EncodedPair(NamedTuple):
    """A sentence and a translation of it, to be read."""

    line: int
    source: Encoded
    target: Encoded
    texts: tuple[str, str]


Head = int | str | None
"""A head by its number, "mean" for the mean of all, or None for the model's own choice."""


class TranslatorOptions(TypedDict, total=False):
    """The options of :func:`load`."""

    device: str | torch.device | None
    int8: bool
    engine: Literal["torch", "ctranslate2"]


class TranslateOptions(SearchOptions, total=False):
    """The options of :meth:`Translator.translate`."""

    prefix: str | Sequence[str]
    protect: Protect | None
    batch_tokens: int
    progress: Progress | None


class ForcedOptions(TypedDict, total=False):
    """How pairs are read."""

    batch_tokens: int
    progress: Progress | None


class Look(NamedTuple):
    """Where word alignments are read: a decoder layer and a head (None: their mean), and the row of a word."""

    layer: int
    head: int | None
    shift: bool


class Translator:
    """Translates with a model, or with another engine that runs one. Make one with :func:`load`.

    ``limit`` is how many subwords a sentence may have. A line of more than ``split`` (by default the same) is cut after
    sentence ends; a sentence over the limit is cut at commas, or anywhere. ``align`` has the ``layer``, ``head`` and
    ``shift`` that suit the model best; ``search`` has the default options of :class:`Search`. With a ``lexicon``, a
    sentence whose translation has a word that is neither in it nor in the source is translated again, with known words
    only. ``protect`` says what is not translated, see :meth:`outputs`.
    """

    def __init__(
        self,
        model: Seq2Seq | None,
        subwords: Subwords,
        *,
        engine: Engine | None = None,
        name: str = "model",
        limit: int = LIMIT,
        split: int | None = None,
        align: Align | None = None,
        search: Values | None = None,
        lexicon: Lexicon | None = None,
        protect: Protect = True,
    ) -> None:
        if engine is None:
            assert model is not None
            engine = TorchEngine(model)
        self.engine: Engine = engine
        self.model, self.subwords, self.name = model, subwords, name
        self._align: Align = align or {}
        self.lexicon, self._protection = lexicon, Protection(subwords, protect)
        self._search = dict(search or {})
        self.search = Search.of(self._search)  # checks them
        known = self.engine.max_length
        self.limit = limit if known is None else min(limit, known - 1)
        self.split = self.limit if split is None else min(split, self.limit)
        # A line stays a line, and only text comes out.
        self._ban = [UNK, *subwords.extra.values(), *subwords.breaks]

    def __repr__(self) -> str:
        what = self.engine.name
        if self.model is not None:
            what = f"{type(self.model).__name__}, {sum(p.numel() for p in self.model.parameters()):,} parameters"
        return f"<Translator {self.name}: {what}, {len(self.subwords):,} subwords>"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.engine.device

    # --- what people call ---

    @overload  # a str is a sequence of str, too
    def translate(self, text: str, **options: Unpack[TranslateOptions]) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def translate(self, text: Sequence[str], **options: Unpack[TranslateOptions]) -> list[str]: ...
    def translate(self, text: str | Sequence[str], **options: Unpack[TranslateOptions]) -> str | list[str]:
        """The translation of a line, or of each of several.

        Options are those of :class:`Search` (by default the model's own: ``[translate]`` in its config.toml), and
        ``prefix``, ``protect``, ``batch_tokens`` and ``progress`` of :meth:`outputs`, which also returns scores, n-best
        lists and attention.
        """
        lines = [text] if isinstance(text, str) else list(text)
        outputs = _whole(self.outputs(lines, **options), "line")
        for number, output in enumerate(outputs, 1):
            if output.note:
                warnings.warn(f"line {number}: {output.note}", stacklevel=2)
        found = [output.text for output in outputs]
        return found[0] if isinstance(text, str) else found

    @named
    def outputs(
        self,
        lines: Sequence[str],
        *,
        prefix: str | Sequence[str] = "",
        attention: bool = False,
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
        protect: Protect | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[TranslationOutput]:
        """The output of each line. A line that cannot be translated has a problem; the others are still translated.

        Args:
            lines: each a sentence.
            prefix: what the translation starts with, one for all lines or one each.
            attention: also return cross-attention weights.
            batch_tokens: source tokens decoded at once, padding included.
            progress: called after each batch with the number of sentences in it.
            protect: what is copied unchanged instead of translated: True for the usual kinds (addresses, placeholders,
                tags, code, emoji, characters the model cannot read), False for nothing, or additional regular
                expressions; None is the model's default.
            options: those of :class:`Search`; None is the model's default.
        """
        search = Search.of(self._search | {name: value for name, value in options.items() if value is not None})
        prefixes = [prefix] * len(lines) if isinstance(prefix, str) else list(prefix)
        if len(prefixes) != len(lines):
            raise ValueError(f"expected one prefix, or one for each of {len(lines)} lines; got {len(prefixes)}")
        find = self._protection if protect is None else Protection(self.subwords, protect)

        def run(
            lines: Sequence[str],
            prefixes: Sequence[str],
            *,
            keep: Mapping[int, Sequence[Interval]],
            attended: Collection[int],
            first: bool,
        ) -> list[TranslationOutput]:
            watch = progress if first else None
            return self._outputs(lines, prefixes, search, batch_tokens, watch, keep=keep, attended=attended)

        items = [
            Protected(line, prefix=start) if what_is_odd(line) else protect_line(line, find, start)
            for line, start in zip(lines, prefixes, strict=True)
        ]
        return translate_lines(items, How(run, self._token_weights, attention, search.nbest, not search.sample))

    def _outputs(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str],
        search: Search,
        batch_tokens: int,
        progress: Progress | None,
        *,
        keep: Mapping[int, Sequence[Interval]],
        attended: Collection[int],
    ) -> list[TranslationOutput]:
        """The output of each line, as the model reads it."""
        outputs, jobs = self._plan(lines, prefixes, keep)
        done = self._decode(jobs, search, frozenset(attended), batch_tokens, progress)
        for line, numbers in _by_line(jobs).items():
            joints, parts = [jobs[i].joint for i in numbers], [done[i] for i in numbers]
            outputs[line].translations = [join_segments(each, joints) for each in zip(*parts, strict=False)]
        return outputs

    def score(self, pairs: Sequence[tuple[str, str]], **options: Unpack[ForcedOptions]) -> list[float]:
        """log p(target | source) of each pair, end symbol included, in nats; options are those of :meth:`forced`."""
        return [found.translations[0].log_prob for found in _whole(self.forced(pairs, **options), "pair")]

    @named
    def forced(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        attention: bool = False,
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
    ) -> list[TranslationOutput]:
        """Given pairs, read by the model as if it had written the targets itself; the score is Σ log p."""
        outputs, good = (
            [TranslationOutput(problem=what_is_odd(source) or what_is_odd(target)) for source, target in pairs],
            [],
        )
        fine = [("", "") if outputs[i].problem else pair for i, pair in enumerate(pairs)]
        sources, targets = (self._encode([pair[side] for pair in fine]) for side in (0, 1))
        for i, sides in enumerate(zip(sources, targets, strict=True)):
            if outputs[i].problem:
                continue
            if (longest := max(len(side.ids) for side in sides)) > self.limit:
                outputs[i].problem = f"{longest:,} subwords; the maximum is {self.limit:,}"
            elif not all(text.strip() for text in pairs[i]):
                outputs[i].problem = f"the {'target' if pairs[i][0].strip() else 'source'} is empty"
            else:
                good.append(_EncodedPair(i, *sides, pairs[i]))
        for pair, found in zip(good, self._read(good, attention, batch_tokens, progress), strict=True):
            copies = copy_links(*pair.texts, self._protection) if attention else ()
            outputs[pair.line].translations = [found._replace(copies=copies)]
        return outputs

    def align(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        layer: int | str | None = None,
        head: Head = None,
        shift: bool | None = None,
        threshold: float | None = None,
        mutual: bool = False,
        **options: Unpack[ForcedOptions],
    ) -> list[Links]:
        """Word links (source, target) of each pair, from 0, by the attention of forced decoding.

        Options are those of :meth:`word_weights`, of :func:`regard.align.links` and of :meth:`forced`.
        """
        found = _whole(self.forced(pairs, attention=True, **options), "pair")
        return [
            links(
                self.word_weights(output.translations[0], layer=layer, head=head, shift=shift),
                threshold=threshold,
                mutual=mutual,
            )
            for output in found
        ]

    def word_weights(
        self, translation: Translation, *, layer: int | str | None = None, head: Head = None, shift: bool | None = None
    ) -> Tensor:
        """How much each target word attends to each source word, [J, I]; words are what ``split()`` gives.

        Defaults are the model's own choice (``[align]`` in its config.toml); else ``layer`` is the middle one, ``head``
        the mean of all ("mean", which ``layer`` may be too), and ``shift`` (see :func:`regard.align.word_weights`) is
        for models that read a word before they attend.
        """
        if not translation.attention:
            return torch.zeros(0, 0)
        if self.engine.shown is None:
            one = None if layer is None else _number(layer, "layer")
            head = "mean" if layer == "mean" and head is None else head  # the model's own is one of another layer
            look = self.look(translation.attention[0].weights.shape[0], layer=one, head=head, shift=shift)
        else:
            self._check_shown(layer, head, self.engine.shown)
            look = self.look(1, shift=shift)._replace(layer=0, head=None)
        layer_read = None if layer == "mean" else look.layer
        parts = [_part_weights(part, layer_read, look.head, look.shift) for part in translation.attention]
        weights = in_blocks(parts, [part.spaced for part in translation.attention])
        return with_copies(weights, translation.copies) if translation.copies else weights

    def _token_weights(self, part: Attended) -> Tensor:
        """The attention of each target token to each source token, [T, S], at the model's default layer and head."""
        look = self.look(1)._replace(layer=0, head=None) if self.engine.shown else self.look(part.weights.shape[0])
        tokens = range(len(part.source.ids)), range(len(part.target.ids))
        return word_weights(part.weights, *tokens, **look._asdict())

    def look(self, layers: int, *, layer: int | None = None, head: Head = None, shift: bool | None = None) -> Look:
        """The layer, head and shift for word alignment: those given, or the defaults for this number of layers."""
        return Look(
            self._align.get("layer", (layers - 1) // 2) if layer is None else layer,
            self._align.get("head") if head is None else _number(head),
            self._align.get("shift", self.engine.shift) if shift is None else shift,
        )

    def _check_shown(self, layer: int | str | None, head: Head, shown: tuple[int, int | None]) -> None:
        if layer not in (None, shown[0]) or (head is not None and _number(head) != shown[1]):
            which = "the mean over its heads" if shown[1] is None else f"head {shown[1]}"
            raise ValueError(
                f"the {self.engine.name} engine shows decoder layer {shown[0]}, {which}, and no other; "
                f"for {f'layer {layer}' if head is None else f'head {head}'} use the torch engine"
            )

    # --- from lines to sentences and back ---

    def _plan(
        self, lines: Sequence[str], prefixes: Sequence[str], keep: Mapping[int, Sequence[Interval]]
    ) -> tuple[list[TranslationOutput], list[_Job]]:
        """The sentences to be decoded; a line that is too long is cut, but not in what it is to keep."""
        outputs, jobs = [TranslationOutput(problem=what_is_odd(line)) for line in lines], []
        starts = [row.ids for row in self._encode([prefix.rstrip() for prefix in prefixes])]
        encoded = self._sources(["" if output.problem else line for line, output in zip(lines, outputs, strict=True)])
        for i, (line, whole) in enumerate(zip(lines, encoded, strict=True)):
            if outputs[i].problem:
                continue
            if not line.strip():
                outputs[i].translations = [Translation(line.strip(), 0.0, 0.0)]
                continue
            cut = [Segment(0, len(line), whole)]
            if len(whole.ids) > self.split:
                cut = segments(line, self._sources, self.limit, keep=keep.get(i, ()))
            longest = max(len(segment.encoded.ids) for segment in cut)
            if longest > self.limit:
                outputs[i].problem = f"a character of {longest} subwords; the maximum is {self.limit}"
                continue
            if len(whole.ids) > self.limit:
                outputs[i].note = _note(line, len(whole.ids), len(cut))
            for k, (start, end, source, joint) in enumerate(cut):
                jobs.append(_Job(i, line[start:end], source, [] if k else starts[i], joint))
        return outputs, jobs

    def _decode(
        self, jobs: list[_Job], search: Search, attended: frozenset[int], batch_tokens: int, progress: Progress | None
    ) -> list[list[Translation]]:
        """The translations of each sentence, best first.

        Sentences to translate again with known words are collected first: a batch of a few costs nearly as much as a
        full one.
        """
        found: dict[int, list[Translation]] = {}
        unknown: dict[int, _Unknown] = {}
        lengths = [len(job.source.ids) for job in jobs]
        for number, batch in enumerate(batches_of(lengths, batch_tokens, search.sentences)):
            new = self._search_batch([jobs[i] for i in batch], search, number)
            found |= zip(batch, new, strict=True)
            if self.lexicon is not None and search.known_words:
                unknown |= self._find_unknown({i: jobs[i] for i in batch}, found, self.lexicon)
            if progress and (finished := len(batch) - len(unknown.keys() & set(batch))):
                progress(finished)
        again = list(unknown)
        for number, some in enumerate(batches_of([lengths[i] for i in again], batch_tokens, search.sentences)):
            batch = [again[k] for k in some]
            new = self._search_batch([jobs[i] for i in batch], search, number, [unknown[i].own for i in batch])
            for i, row in zip(batch, new, strict=True):
                found[i] = _replace_unknown(found[i], unknown[i].good, row, ranked=not search.sample)
            if progress:
                progress(len(batch))
        done = [found[i] for i in range(len(jobs))]
        return self._add_attention(jobs, done, attended, batch_tokens) if attended else done

    def _search_batch(
        self, jobs: list[_Job], search: Search, number: int, own: list[set[str]] | None = None
    ) -> list[list[Translation]]:
        """One batch; with ``words``, only known words, given for each sentence."""
        sources, prefixes = [job.source.ids for job in jobs], [job.prefix for job in jobs]
        words = None
        if own is not None and self.lexicon is not None:
            words = KnownWords(self.lexicon, self.subwords.spelled, own, EOS)
        rows = self.engine.search(sources, prefixes, search, number=number, ban=self._ban, words=words)
        return [[self._translation(one) for one in row] for row in rows]

    def _find_unknown(
        self, jobs: Mapping[int, _Job], found: Mapping[int, list[Translation]], lexicon: Lexicon
    ) -> dict[int, _Unknown]:
        """The sentences whose translations have unknown words."""
        read, unknown = self.subwords.decode, {}
        for i, job in jobs.items():
            own = {*runs(read(job.source.ids)), *runs(read(job.prefix))}
            known = {plain(word) for word in own}
            good = [one for one in found[i] if not lexicon.beyond(one.text, known)]
            if len(good) < len(found[i]):
                unknown[i] = _Unknown(own, good)
        return unknown

    def _add_attention(
        self, jobs: list[_Job], done: list[list[Translation]], lines: frozenset[int], tokens: int
    ) -> list[list[Translation]]:
        """The same, those of some lines with attention, by reading what was written as the text that it is."""
        texts = [(i, found.text) for i, row in enumerate(done) if jobs[i].line in lines for found in row]
        targets = self._encode([text for _, text in texts])
        pairs = [
            _EncodedPair(i, jobs[i].source, target, (jobs[i].text, text))
            for (i, text), target in zip(texts, targets, strict=True)
        ]
        again = iter(self._read(pairs, True, tokens, None))
        return [
            [found._replace(attention=next(again).attention) for found in row] if job.line in lines else row
            for job, row in zip(jobs, done, strict=True)
        ]

    def _read(
        self, pairs: list[_EncodedPair], attention: bool, batch_tokens: int, progress: Progress | None
    ) -> list[Translation]:
        """Forced decoding."""
        read: dict[int, Translation] = {}
        for batch in batches_of([len(pair.source.ids) + len(pair.target.ids) for pair in pairs], batch_tokens):
            sources, targets = [pairs[i].source.ids for i in batch], [pairs[i].target.ids for i in batch]
            for i, found in zip(batch, self.engine.read(sources, targets, attention=attention), strict=True):
                _, source, target, texts = pairs[i]
                shown = () if found.attention is None else (Attended(found.attention, source, target, *texts),)
                read[i] = Translation(texts[1], found.score, found.log_prob, shown)
            if progress:
                progress(len(batch))
        return [read[i] for i in range(len(pairs))]

    def _translation(self, found: EngineHypothesis) -> Translation:
        return Translation(self.subwords.decode(found.tokens).strip(), found.score, found.log_prob)

    def _sources(self, lines: Sequence[str]) -> list[Encoded]:
        """Lines in subwords, white space read as single spaces, as models know it; offsets are those of the line."""
        return [spread(one, line) for one, line in zip(self._encode(map(single_spaces, lines)), lines, strict=True)]

    def _encode(self, lines: Iterable[str]) -> list[Encoded]:
        return self.subwords.encode_batch(list(lines))


def load(
    name: str | os.PathLike[str] = DEFAULT,
    *,
    device: str | torch.device | None = None,
    int8: bool = False,
    engine: str = "torch",
) -> Translator:
    """A translator from a model folder, or from a model that comes with the package.

    ``device`` is by default the GPU if there is one, else the CPU. ``int8`` computes in 8 bits, on a CPU: faster, and
    rarely another word (see :func:`regard.nn.to_int8`). ``engine`` is "torch" or "ctranslate2"; for the latter the
    folder may also be one that ``regard export`` wrote.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    path = find(name)
    if engine == "ctranslate2":
        return _load_ctranslate2(path, device, int8)
    loaded = open_model(path, "translation", device, int8=int8)
    return _from_folder(path, loaded.settings, loaded.model, loaded.subwords)


def _load_ctranslate2(path: Path, device: str | torch.device | None, int8: bool) -> Translator:
    refuse_other_tasks(path, "translation")
    from regard.interop.ctranslate2 import CTranslate2Engine
    from regard.models.folder import read_config

    settings = read_config(path)
    engine = CTranslate2Engine(path, device=None if device is None else str(device), int8=int8)
    return _from_folder(path, settings, None, engine.subwords, engine)


def _from_folder(
    path: Path, settings: Values, model: Seq2Seq | None, subwords: Subwords, engine: Engine | None = None
) -> Translator:
    """A translator with the settings of config.toml."""
    search = dict(settings.get("translate", {}))
    split, protect = search.pop("split", None), search.pop("protect", True)
    try:
        Search.of(search)
        patterns(protect)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path / 'config.toml'}: [translate]: {error}") from error
    return Translator(
        model,
        subwords,
        engine=engine,
        name=path.name,
        limit=settings.get("data", {}).get("max_tokens", LIMIT),
        split=split,
        align=settings.get("align"),
        search=search,
        lexicon=Lexicon.load(path / LEXICON) if (path / LEXICON).is_file() else None,
        protect=protect,
    )


def _number(given: int | str, what: str = "head") -> int | None:
    """The number of a head or a layer; None for the mean of all."""
    if isinstance(given, str) and given != "mean":
        raise ValueError(f"{what}: expected a number from 0, or mean, got {given!r}")
    return None if isinstance(given, str) else given


def _part_weights(part: Attended, layer: int | None, head: int | None, shift: bool) -> Tensor:
    """The attention of each word of a translated part to each source word; 0 where no model read the text."""
    if not part.source.ids or not part.target.ids:
        return widen_weights(torch.zeros(0, 0), part)
    words = part.source.words, part.target.words
    return widen_weights(word_weights(part.weights, *words, layer=layer, head=head, shift=shift), part)


def _whole(outputs: list[TranslationOutput], kind: str) -> list[TranslationOutput]:
    """All of them, if there is no problem."""
    for number, output in enumerate(outputs, 1):
        if output.problem:
            raise ValueError(f"{kind} {number}: {output.problem}")
    return outputs


def _replace_unknown(
    row: list[Translation], good: list[Translation], new: list[Translation], *, ranked: bool
) -> list[Translation]:
    """The same number of translations: the ones without unknown words, and new ones in place of the rest.

    Ranked translations are sorted again, best first; samples have no rank and keep their places.
    """
    if ranked:
        texts = {one.text for one in good}
        more = sorted(new, key=lambda one: one.text in texts)[: len(row) - len(good)]  # others first
        return sorted([*good, *more], key=lambda one: -one.score)
    kept, others = {id(one) for one in good}, iter(new)
    return [one if id(one) in kept else next(others) for one in row]


def _note(line: str, subwords: int, parts: int) -> str:
    """A note on how a line over the limit was split."""
    what = "sentences" if parts == len(sentences(line)) else "parts, some of them cut out of a sentence"
    return f"{subwords:,} subwords: translated as {parts} {what}"


def _by_line(jobs: list[_Job]) -> dict[int, list[int]]:
    """The numbers of each line's jobs."""
    grouped: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        grouped.setdefault(job.line, []).append(number)
    return grouped

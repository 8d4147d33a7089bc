"""``regard align``: which word of a pair belongs to which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from regard.cli._console import Job, draw_alignment, say
from regard.cli._flags import (
    DEFAULT_MODEL,
    BatchTokens,
    Device,
    EngineName,
    Head,
    Int8,
    Layer,
    Model,
    OutFile,
    Strict,
    load_translator,
    parse_number,
)
from regard.cli._lines import LinePair, Writer, pairs_of
from regard.cli._parser import Flag, Options
from regard.common.start import quick_start

if TYPE_CHECKING:
    from regard.align.link import Links
    from regard.tasks.translation.translator import Translator


class _Place(TypedDict):
    """Where word weights are read, see :meth:`Translator.word_weights`."""

    layer: int | str | None
    head: int | str | None
    shift: bool | None


class _LinkRule(TypedDict):
    """Which word weights are links, see :func:`regard.align.links`."""

    mutual: bool
    threshold: float | None


METHODS = ("grow-diag-final-and", "intersection", "union")
Shift = Annotated[bool | None, Flag("Read a word's attention at the step that receives it as input.", off="--no-shift")]


def align(
    options: Options,
    source: Annotated[Path, Flag("Source lines; or pairs, with a tab or ||| between; - is stdin.")],
    target: Annotated[Path | None, Flag("Target lines.")] = None,
    *,
    model: Model = DEFAULT_MODEL,
    reverse: Annotated[str | None, Flag("A model from target to source; the directions are combined.")] = None,
    statistical: Annotated[bool, Flag("Align by counting in these pairs, without a model.")] = False,
    symmetrize: Annotated[str, Flag(f"How: {', '.join(METHODS)}.")] = METHODS[0],
    layer: Layer = None,
    head: Head = None,
    shift: Shift = None,
    mutual: Annotated[bool, Flag("Only links that are the strongest of both their words.")] = False,
    threshold: Annotated[
        float | None,
        Flag("Minimum weight of a link; with --mutual, its share of both words.", least=0, most=1),
    ] = None,
    gold: Annotated[Path | None, Flag("Gold links in Pharaoh format; prints AER on stderr.")] = None,
    gold_base: Annotated[int, Flag("Number of the first word in --gold: 0 or 1.", least=0, most=1)] = 0,
    output: OutFile = None,
    show: Annotated[bool, Flag("Draw each alignment in the terminal.")] = False,
    batch_tokens: BatchTokens = 1024,
    engine: EngineName = "torch",
    device: Device = None,
    int8: Int8 = False,
    strict: Strict = False,
) -> None:
    """Word alignments of given pairs, in Pharaoh format (source-target, from 0), by a model's attention.

        regard align --model en-fr/ test.en test.fr > test.align
        regard align --model en-fr/ --reverse fr-en/ test.en test.fr > test.align
        regard align --model en-fr/ pairs.txt --gold gold.txt --gold-base 1
        regard align --mutual --threshold 0.5 test.en test.fr > sure.align
        regard align --statistical corpus.en corpus.fr > corpus.align
        echo "the cat ||| le chat" | regard align --model en-fr/ --show -

    Without --model, the bundled English-French model aligns. Words are separated by white space. Layer, head and shift
    are by default those of the model folder; otherwise the heads of the middle layer are averaged, and a word's
    attention is read at the step that receives it as input (--shift), which is far better than the step that predicts
    it. A target word is linked to the source word it attends to most, or with --threshold to all with at least that
    weight. --mutual keeps links that are also the strongest of their source word: one to one, fewer, with far fewer
    errors. --statistical counts which words occur together instead, in both directions, and needs thousands of pairs.
    """
    of_models = (
        "model",
        "reverse",
        "layer",
        "head",
        "shift",
        "mutual",
        "threshold",
        "show",
        "batch_tokens",
        "engine",
        "int8",
    )
    if statistical and (idle := options.among(*of_models)):
        raise ValueError(f"--statistical needs no model: leave out {idle}")
    if symmetrize not in METHODS:
        raise ValueError(f"--symmetrize: expected one of {', '.join(METHODS)}, got {symmetrize!r}")
    if not statistical and reverse is None and (idle := options.among("symmetrize")):
        raise ValueError(f"{idle}: makes one of two directions; give --reverse, a model from target to source")
    if gold is None and (idle := options.among("gold_base")):
        raise ValueError(f"{idle}: says how --gold counts; give that too")
    pairs = pairs_of(source, target)
    with quick_start():
        import regard.align as words
    right = None if gold is None else words.read_pharaoh(gold, base=gold_base)
    if right is not None and len(right) != len(pairs):
        raise ValueError(f"{gold} has {len(right):,} lines, the pairs {len(pairs):,}: expected the same number")
    look: _Place = {"layer": parse_number(layer), "head": parse_number(head), "shift": shift}
    which: _LinkRule = {"mutual": mutual, "threshold": threshold}
    with Writer(output) as writer, Job(strict) as job:
        if statistical:
            counted = _align_by_counting(pairs, symmetrize, device, job)
            writer.write(words.pharaoh(linked) for linked in counted)
            if right is not None:
                say(str(words.quality(counted, right)))
            return
        translator = load_translator(model, device, int8, engine)
        from regard.tasks.translation.output import TranslationOutput

        other = None if reverse is None else load_translator(reverse, device, int8, engine)
        back = None if other is None else _backward(other, pairs, look, which, batch_tokens)
        every = []
        outputs = job.run(pairs, translator.forced, TranslationOutput, attention=True, batch_tokens=batch_tokens)
        for i, (pair, found) in enumerate(zip(pairs, outputs, strict=True)):
            weights = [translator.word_weights(t, **look) for t in found.translations]
            linked = words.links(weights[0], **which) if weights else frozenset()
            if back is not None:
                linked = words.symmetrize(linked, back[i], symmetrize)  # type: ignore[arg-type]
            every.append(linked)
            writer.write([words.pharaoh(linked)])
            if show and weights:
                writer.write(draw_alignment(pair.source, found, weights, linked))
        if right is not None:
            say(str(words.quality(every, right)))


def _align_by_counting(pairs: Sequence[LinePair], symmetrize: str, device: str | None, job: Job) -> list[Links]:
    """Links by the statistical aligner; none for a pair with a problem, which is reported."""
    from regard.align.statistical import align_words
    from regard.tasks.base.use import device_of
    from regard.tasks.translation.output import TranslationOutput

    list(job.run(pairs, lambda good, progress: [TranslationOutput()] * len(good), TranslationOutput))
    texts = [([], []) if pair.problem else (pair.source.split(), pair.target.split()) for pair in pairs]
    return align_words(texts, method=symmetrize, device=device_of(device), say=say)  # type: ignore[arg-type]


def _backward(
    translator: Translator,
    pairs: Sequence[LinePair],
    look: _Place,
    which: _LinkRule,
    batch_tokens: int,
) -> list[Links]:
    """Links of the other direction, seen from this one; none for a pair with a problem, which the other one reports."""
    from regard.align.attention import links
    from regard.align.symmetrization import swap

    turned = [("", "") if pair.problem else (pair.target, pair.source) for pair in pairs]
    outputs = translator.forced(turned, attention=True, batch_tokens=batch_tokens)
    weights = [translator.word_weights(o.translations[0], **look) if o.translations else None for o in outputs]
    return [frozenset() if matrix is None else swap(links(matrix, **which)) for matrix in weights]

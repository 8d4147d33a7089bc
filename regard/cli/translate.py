"""``regard translate``: text in, text out, and what each word was made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from regard.cli._console import Job, draw_alignment, plot_alignment, translation_lines, write_page
from regard.cli._flags import (
    DEFAULT_MODEL,
    BatchTokens,
    Device,
    EngineName,
    Head,
    Int8,
    Kind,
    Layer,
    Model,
    OutFile,
    Strict,
    can_draw,
    load_translator,
    parse_number,
)
from regard.cli._input import input_lines
from regard.cli._lines import Writer, lines_of, pair_lines, windows
from regard.cli._parser import Fields, Flag, Options
from regard.decode.search import Search

KINDS = ("self", "decoder", "cross")  # of attention, in a model that reads and writes
SEARCH = Fields(
    "search, as the model's folder says unless given",
    Search,
    {
        "beam": Flag("Beam size, usually 5; 1 is greedy.", "-b", least=1, hidden=True),
        "length_penalty": Flag("α of Σ log p / lengthᵅ, the ranking score; usually 1.", hidden=True),
        "min_length": Flag("Subwords at least.", least=0),
        "max_length": Flag("Maximum subwords; default 2 × source + 10.", least=1),
        "sample": Flag("Sample from the model instead of searching."),
        "temperature": Flag("Below 1 sharpens, above 1 flattens; with --sample."),
        "top_k": Flag("Sample among the k most likely; with --sample.", least=1),
        "top_p": Flag("… among the fewest with total probability p; with --sample."),
        "seed": Flag("The same seed gives the same samples; with --sample."),
    },
)
DRAWING = {"temperature", "top_k", "top_p", "seed"}


def translate(
    options: Options,
    text: Annotated[list[str] | None, Flag("Sentences; else --input, else stdin.", metavar="TEXT")] = None,
    *,
    model: Model = DEFAULT_MODEL,
    input: Annotated[list[Path] | None, Flag("A file of lines; - is stdin.", "-i")] = None,
    output: OutFile = None,
    nbest: Annotated[int, Flag("Print this many per line: number ||| text ||| score.", least=1)] = Search.nbest,
    any_word: Annotated[bool, Flag("Allow words that are not in the model's lexicon.")] = False,
    protect: Annotated[
        list[str] | None,
        Flag("Protect what matches, like URLs, tags, emoji, …; repeatable.", metavar="REGEX"),
    ] = None,
    no_protect: Annotated[bool, Flag("Translate these too.")] = False,
    prefix: Annotated[str, Flag("Every translation starts with this text.")] = "",
    score: Annotated[Path | None, Flag("Do not translate: print log p of this file's lines.")] = None,
    alignment: Annotated[bool, Flag("Add ||| and word links: 0-0 1-2 …")] = False,
    show: Annotated[bool, Flag("Draw the word alignment in the terminal.")] = False,
    plot: Annotated[Path | None, Flag("Draw the first line's alignment as .svg, .png or .pdf.")] = None,
    html: Annotated[Path | None, Flag("Write the first line's attention as an HTML page.")] = None,
    kind: Kind = None,
    layer: Layer = None,
    head: Head = None,
    batch_tokens: BatchTokens = 1024,
    engine: EngineName = "torch",
    window: Annotated[int, Flag("Lines read at a time; 1 answers each immediately.", least=1)] = 10_000,
    device: Device = None,
    int8: Int8 = False,
    strict: Strict = False,
    **search: Annotated[Any, SEARCH],
) -> None:
    """Translate sentences, files or the standard input, line by line, in order.

        regard translate "The cat sat on the mat."
        regard translate --model model/ --input test.en --output test.fr
        cat test.en | regard translate -m model/ --beam 8 --alignment > test.fr
        regard translate -m model/ --nbest 3 "A dog runs."
        regard translate -m model/ --sample --top-p 0.9 --seed 1 "A dog runs."
        regard translate -m model/ --prefix "Un chien" "A dog runs."
        regard translate "Hello {name}, see https://example.com/a?b=c 😀"
        regard translate --protect "ISO \\d+" "The standard ISO 9001 is new."
        regard translate -m model/ --show "A dog runs."
        regard translate -m model/ --plot dog.svg "A dog runs."
        regard translate -m model/ --html dog.html "A dog runs."
        regard translate -m model/ --html dog.html --kind self --layer 3 --head 2 "A dog runs."
        regard translate -m model/ --input test.en --score test.fr

    Without --model, the bundled English-French model translates. --beam and --length-penalty are by default those of
    the model folder. A line that is not UTF-8, or far too long, is reported with its number on stderr and gives an
    empty line; a line over the model's limit is split after sentence ends, at commas, or anywhere.

    Addresses, placeholders, tags, code, emoji and characters that the model cannot read are copied unchanged.
    """
    sample, drawing = "sample" in search, search.keys() & DRAWING
    if drawing and not sample:
        raise ValueError("--temperature, --top-k, --top-p and --seed are for sampling: add --sample")
    search |= {
        "nbest": nbest,
        "known_words": False if any_word else None,
        "protect": False if no_protect else protect or None,
        "prefix": prefix,
    }
    looked = alignment or show or plot is not None or html is not None
    if score is not None and (looked or sample or nbest > 1 or prefix):
        raise ValueError(
            "--score translates nothing: leave out --nbest, --sample, --prefix, --alignment, --show, --plot and --html"
        )
    if score is not None and (
        idle := options.among(
            "beam", "length_penalty", "min_length", "max_length", "any_word", "protect", "no_protect", "window"
        )
    ):
        raise ValueError(f"--score translates nothing: leave out {idle}")
    if sample and (idle := options.among("beam", "length_penalty")):
        raise ValueError(f"--sample samples instead of searching: leave out {idle}")
    if not looked and (layer is not None or head is not None):
        raise ValueError("--layer and --head choose the attention shown: add --alignment, --show, --plot or --html")
    if kind not in (None, *KINDS):
        raise ValueError(f"--kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if kind is not None and html is None:
        raise ValueError("--kind chooses what --html shows first: add --html")
    of_words = kind in (None, "cross")
    if not of_words and (layer or head) and (idle := options.among("alignment", "show", "plot")):
        raise ValueError(f"--layer and --head are of --kind {kind}, and word links need cross: leave out {idle}")
    if html is not None and layer == "mean":
        raise ValueError("--html shows one layer at a time: leave --layer out, or give its number")
    if protect and no_protect:
        raise ValueError("--protect and --no-protect contradict each other: give one of them")
    if protect:
        from regard.tasks.translation.protect.spans import patterns

        patterns(protect)  # says which is none, before anything is read
    lines = input_lines(text, input)
    can_draw(plot)
    if html is not None and engine != "torch":
        raise ValueError(f"--html shows every head, which the {engine} engine does not: leave --engine out")
    with Writer(output) as writer, Job(strict) as job:
        pairs = None
        if score is not None:
            pairs = pair_lines(list(lines), list(lines_of(score)), ("the input", str(score)))
        translator = load_translator(model, device, int8, engine)
        from regard.tasks.translation.output import TranslationOutput

        if pairs is not None:
            for found in job.run(pairs, translator.forced, TranslationOutput, batch_tokens=batch_tokens):
                writer.write([f"{found.translations[0].log_prob:.4f}" if found.translations else ""])
            return
        number = 0
        place: dict[str, Any] = {"layer": parse_number(layer), "head": parse_number(head)}
        look = place if of_words else {}
        search |= {"attention": looked, "batch_tokens": batch_tokens}
        if nbest > 1:
            search["beam"] = max(search.get("beam", translator.search.beam), nbest)
        if not (text or input) and sys.stdin is not None and sys.stdin.isatty():
            window = 1  # somebody types, and waits for an answer
        for some in windows(lines, window):
            outputs = job.run(some, translator.outputs, TranslationOutput, **search)
            for line, found in zip(some, outputs, strict=True):
                weights = [translator.word_weights(t, **look) for t in found.translations] if looked else []
                writer.write(translation_lines(found, number if nbest > 1 else None, weights if alignment else None))
                if show:
                    writer.write(draw_alignment(line.text, found, weights))
                if plot is not None and number == 0:
                    plot_alignment(plot, line.text, found, weights)
                if html is not None and number == 0:
                    write_page(html, translator, line.text, found, {"kind": kind or "cross", **place})
                number += 1
            writer.flush()

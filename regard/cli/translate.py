"""``regard translate``: text in, text out, and what each word was made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli._console import Job, drawn, pictured, printed, written
from regard.cli._input import lines_given
from regard.cli._lines import Writer, lines_of, paired, windows
from regard.cli._options import (
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
    OwnBeam,
    Strict,
    can_draw,
    load_translator,
    numbered,
    said,
)

KINDS = ("self", "decoder", "cross")  # of attention, in a model that reads and writes


def translate(
    context: typer.Context,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Sentences; else --input, else stdin.")
    ] = None,
    *,
    model: Model = DEFAULT_MODEL,
    input: Annotated[list[Path] | None, typer.Option("--input", "-i", help="A file of lines; - is stdin.")] = None,
    output: OutFile = None,
    beam: OwnBeam = None,
    nbest: Annotated[int, typer.Option(min=1, help="Print so many per line: number ||| text ||| score.")] = 1,
    length_penalty: Annotated[
        float | None, typer.Option(help="α of Σ log p / lengthᵅ, by which they are ranked; mostly 1.")
    ] = None,
    min_length: Annotated[int, typer.Option(min=0, help="Subwords at least.")] = 0,
    max_length: Annotated[int | None, typer.Option(min=1, help="Subwords at most; default 2 × source + 10.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw from the model instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 sharpens, above 1 flattens; with --sample.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among the k likeliest; with --sample.")] = None,
    top_p: Annotated[float, typer.Option(help="… among the fewest that hold p of it; with --sample.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same; with --sample.")] = None,
    any_word: Annotated[
        bool, typer.Option("--any-word", help="Not only the words that the model's lexicon knows, if it has one.")
    ] = False,
    protect: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="What matches comes back as it is, as URLs, tags, emoji, … do; repeatable."),
    ] = None,
    no_protect: Annotated[bool, typer.Option("--no-protect", help="Translate these too.")] = False,
    prefix: Annotated[str, typer.Option(help="Every translation starts with this text.")] = "",
    score: Annotated[Path | None, typer.Option(help="Translate nothing: print log p of this file's lines.")] = None,
    alignment: Annotated[bool, typer.Option("--alignment", help="Add ||| and word links: 0-0 1-2 …")] = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the word alignment in the terminal.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw that of the first line as .svg, .png or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write that of the first line as a page of its own.")] = None,
    kind: Kind = None,
    layer: Layer = None,
    head: Head = None,
    batch_tokens: BatchTokens = 1024,
    engine: EngineName = "torch",
    window: Annotated[int, typer.Option(min=1, help="Lines read at a time; 1 answers each at once.")] = 10_000,
    device: Device = None,
    int8: Int8 = False,
    strict: Strict = False,
) -> None:
    """Translate sentences, files or the standard input, line by line, in order.

    \b
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

    Without --model, the bundled English-French one translates. --beam and --length-penalty are by default what the
    model's folder says. A line that is not UTF-8, or far too long, is reported with its number on stderr and gives an
    empty line; a line over the model's limit is cut after sentence ends, at commas, or wherever it can be.

    Addresses, placeholders, tags, code, emoji and characters that the model cannot read come back as they are.
    """
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    if not sample and drawing != {"temperature": 1.0, "top_k": None, "top_p": 1.0, "seed": None}:
        raise ValueError("--temperature, --top-k, --top-p and --seed are for drawing: add --sample")
    search: dict[str, Any] = {
        "beam": beam,
        "nbest": nbest,
        "length_penalty": length_penalty,
        "min_length": min_length,
        "max_length": max_length,
        "known_words": False if any_word else None,
        "protect": False if no_protect else protect or None,
        "prefix": prefix,
        **({"sample": True, **drawing} if sample else {}),
    }
    looked = alignment or show or plot is not None or html is not None
    if score is not None and (looked or sample or nbest > 1 or prefix):
        raise ValueError(
            "--score translates nothing: leave out --nbest, --sample, --prefix, --alignment, --show, --plot and --html"
        )
    if score is not None and (
        idle := said(
            context, "beam", "length_penalty", "min_length", "max_length", "any_word", "protect", "no_protect", "window"
        )
    ):
        raise ValueError(f"--score translates nothing: leave out {idle}")
    if sample and (idle := said(context, "beam", "length_penalty")):
        raise ValueError(f"--sample draws and does not search: leave out {idle}")
    if not looked and (layer is not None or head is not None):
        raise ValueError("--layer and --head say what is shown: add --alignment, --show, --plot or --html")
    if kind not in (None, *KINDS):
        raise ValueError(f"--kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if kind is not None and html is None:
        raise ValueError("--kind says what a page opens with: add --html")
    of_words = kind in (None, "cross")
    if not of_words and (layer or head) and (idle := said(context, "alignment", "show", "plot")):
        raise ValueError(f"--layer and --head are of --kind {kind}, and words are linked by cross: leave out {idle}")
    if html is not None and layer == "mean":
        raise ValueError("--html shows one layer at a time: leave --layer out, or give its number")
    if protect and no_protect:
        raise ValueError("--protect and --no-protect contradict each other: give one of them")
    if protect:
        from regard.tasks.translation.protect.spans import patterns

        patterns(protect)  # says which is none, before anything is read
    lines = lines_given(text, input)
    can_draw(plot)
    if html is not None and engine != "torch":
        raise ValueError(f"--html shows every head, which the {engine} engine does not: leave --engine out")
    with Writer(output) as writer, Job(strict) as job:
        if score is not None:
            pairs = paired(list(lines), list(lines_of(score)), ("the input", str(score)))
            for found in job.run(pairs, load_translator(model, device, int8, engine).forced, batch_tokens=batch_tokens):
                writer.write([f"{found.translations[0].log_prob:.4f}" if found.translations else ""])
            return
        translator, number = load_translator(model, device, int8, engine), 0
        place: dict[str, Any] = {"layer": numbered(layer), "head": numbered(head)}
        look = place if of_words else {}
        search |= {"attention": looked, "batch_tokens": batch_tokens}
        if nbest > 1:
            search["beam"] = max(beam or translator.search.beam, nbest)
        if not (text or input) and sys.stdin is not None and sys.stdin.isatty():
            window = 1  # somebody types, and waits for an answer
        for some in windows(lines, window):
            for line, found in zip(some, job.run(some, translator.outputs, **search), strict=True):
                weights = [translator.word_weights(t, **look) for t in found.translations] if looked else []
                writer.write(printed(found, number if nbest > 1 else None, weights if alignment else None))
                if show:
                    writer.write(drawn(line.text, found, weights))
                if plot is not None and number == 0:
                    pictured(plot, line.text, found, weights)
                if html is not None and number == 0:
                    written(html, translator, line.text, found, {"kind": kind or "cross", **place})
                number += 1
            writer.flush()

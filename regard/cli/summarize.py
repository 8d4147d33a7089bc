"""``regard summarize``: a document in, a summary out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli._console import Job, sources_drawn, summary_pictured
from regard.cli._input import documents_given
from regard.cli._lines import Writer, windows
from regard.cli._options import BatchTokens, Device, Int8, OutFile, Strict, can_draw
from regard.common.start import starting
from regard.tasks.summarization.search import SummarySearch

Beam = Annotated[int, typer.Option("--beam", "-b", min=1, help="Hypotheses kept open; 1 is greedy.")]


def summarize(
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Documents; else --input, else stdin.")
    ] = None,
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="A model folder of `regard train --task summarization`.")],
    input: Annotated[list[Path] | None, typer.Option("--input", "-i", help="A file, one document; - is stdin.")] = None,
    by_line: Annotated[bool, typer.Option("--lines", help="Each line of the input is a document.")] = False,
    key: Annotated[str | None, typer.Option(help="The input is JSON lines with documents under this key.")] = None,
    output: OutFile = None,
    beam: Beam = SummarySearch.beam,
    length: Annotated[int | None, typer.Option(min=1, help="Words that a summary should have, about.")] = None,
    min_length: Annotated[int, typer.Option(min=0, help="Subwords at least.")] = SummarySearch.min_length,
    max_length: Annotated[int | None, typer.Option(min=1, help="Subwords at most.")] = SummarySearch.max_length,
    length_penalty: Annotated[
        float, typer.Option(help="α of Σ log p / lengthᵅ: more is longer.")
    ] = SummarySearch.length_penalty,
    no_repeat: Annotated[
        int, typer.Option(min=0, help="No run of so many subwords comes twice; 0: it may.")
    ] = SummarySearch.no_repeat,
    consensus: Annotated[int, typer.Option(min=0, help="Draw so many more, and take what is most like all.")] = 0,
    show: Annotated[bool, typer.Option("--show", help="Draw what was looked at and copied.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw that of the first one as .svg, .png or .pdf.")] = None,
    batch_tokens: BatchTokens = 4096,
    device: Device = None,
    int8: Int8 = False,
    strict: Strict = False,
) -> None:
    """Summarize documents: arguments, files, or the standard input as a whole; a line of output each, in order.

    \b
    regard summarize -m model/ --input chat.txt
    cat chat.txt | regard summarize -m model/ --show
    regard summarize -m model/ --input test.jsonl --key dialogue --output test.summaries
    regard summarize -m model/ --length 10 "Ann: I baked cookies. Bob: Great!"
    regard summarize -m model/ --input chat.txt --plot chat.svg

    A document that is empty, binary or not UTF-8 is reported on stderr and gives an empty line. One that is longer than
    all that the model was trained on is read whole, with a note; nothing is cut off.
    """
    if max_length is not None and max_length < min_length:
        raise ValueError(f"--max-length {max_length} is less than --min-length {min_length}")
    can_draw(plot)
    documents = documents_given(text, input, by_line, key)
    search: dict[str, Any] = {"beam": beam, "length": length, "min_length": min_length, "max_length": max_length}
    search |= {"length_penalty": length_penalty, "no_repeat": no_repeat, "consensus": consensus}
    with Writer(output) as writer:
        with starting():
            from regard.tasks.summarization.summarizer import SummaryOutput, load

            summarizer = load(model, device=device, int8=int8)
        with Job(strict, "documents", failed=SummaryOutput) as job:
            for some in windows(documents, 1000):
                for found in job.run(some, summarizer.outputs, batch_tokens=batch_tokens, **search):
                    writer.write([found.text])
                    if show and found.summaries:
                        writer.write(sources_drawn(found.summaries[0]))
                    if plot is not None and found.summaries:
                        summary_pictured(plot, found.summaries[0])
                        plot = None  # the first one only
                writer.flush()
        if not job.count:
            raise ValueError("there are no documents: what was given is empty")
        if job.bad == job.count:
            raise typer.Exit(2)  # within the writer, so that a file of before stays

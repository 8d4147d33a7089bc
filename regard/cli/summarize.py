"""``regard summarize``: a document in, a summary out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from regard.cli._console import Job, draw_sources, plot_summary
from regard.cli._flags import BatchTokens, Device, Int8, OutFile, Strict, can_draw
from regard.cli._input import input_documents
from regard.cli._lines import Writer, windows
from regard.cli._parser import Fields, Flag
from regard.common.start import quick_start
from regard.tasks.summarization.search import SummarySearch

SEARCH = Fields(
    "search",
    SummarySearch,
    {
        "beam": Flag("Beam size; 1 is greedy.", "-b", least=1),
        "min_length": Flag("Subwords at least.", least=0),
        "max_length": Flag("Subwords at most.", least=1),
        "length_penalty": Flag("α of Σ log p / lengthᵅ; larger is longer."),
        "no_repeat": Flag("No sequence of this many subwords occurs twice; 0: off.", least=0),
    },
)


def summarize(
    text: Annotated[list[str] | None, Flag("Documents; else --input, else stdin.", metavar="TEXT")] = None,
    *,
    model: Annotated[str, Flag("A model folder of `regard train --task summarization`.", "-m")],
    input: Annotated[list[Path] | None, Flag("A file, one document; - is stdin.", "-i")] = None,
    by_line: Annotated[bool, Flag("Each line of the input is a document.", "--lines")] = False,
    key: Annotated[str | None, Flag("The input is JSON lines with documents under this key.")] = None,
    output: OutFile = None,
    length: Annotated[int | None, Flag("Approximate length of a summary, in words.", least=1)] = None,
    consensus: Annotated[int, Flag("Sample this many more; take the most similar to all.", least=0)] = 0,
    show: Annotated[bool, Flag("Draw the attention and the copied words.")] = False,
    plot: Annotated[Path | None, Flag("Draw the first summary's attention as .svg, .png or .pdf.")] = None,
    batch_tokens: BatchTokens = 4096,
    device: Device = None,
    int8: Int8 = False,
    strict: Strict = False,
    **search: Annotated[Any, SEARCH],
) -> None:
    """Summarize documents: arguments, files, or the standard input as a whole; a line of output each, in order.

        regard summarize -m model/ --input chat.txt
        cat chat.txt | regard summarize -m model/ --show
        regard summarize -m model/ --input test.jsonl --key dialogue --output test.summaries
        regard summarize -m model/ --length 10 "Ann: I baked cookies. Bob: Great!"
        regard summarize -m model/ --input chat.txt --plot chat.svg

    A document that is empty, binary or not UTF-8 is reported on stderr and gives an empty line. One that is longer than
    all that the model was trained on is read whole, with a note; nothing is cut off.
    """
    least, most = (search.get(name, getattr(SummarySearch, name)) for name in ("min_length", "max_length"))
    if most < least:
        raise ValueError(f"--max-length {most} is less than --min-length {least}")
    can_draw(plot)
    documents = input_documents(text, input, by_line, key)
    search |= {"length": length, "consensus": consensus}
    with Writer(output) as writer:
        with quick_start():
            from regard.tasks.summarization.summarizer import SummaryOutput, load

            summarizer = load(model, device=device, int8=int8)
        with Job(strict, "documents") as job:
            for some in windows(documents, 1000):
                for found in job.run(some, summarizer.outputs, SummaryOutput, batch_tokens=batch_tokens, **search):
                    writer.write([found.text])
                    if show and found.summaries:
                        writer.write(draw_sources(found.summaries[0]))
                    if plot is not None and found.summaries:
                        plot_summary(plot, found.summaries[0])
                        plot = None  # the first one only
                writer.flush()
        if not job.count:
            raise ValueError("there are no documents: the input is empty")
        if job.bad == job.count:
            raise SystemExit(2)  # within the writer, so that a file of before stays

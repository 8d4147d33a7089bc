"""The command line: the only place that wires everything. A command is a function; its docstring is its help.

What a user can mend (a missing file, a wrong option, a damaged model) is told in a line, with exit code 2; set
REGARD_DEBUG to see where it came from. Imports that take time stand inside the commands.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard._start import starting
from regard.console import (
    Job,
    as_object,
    drawn,
    message,
    pictured,
    printed,
    read_aloud,
    say,
    sources_drawn,
    table,
    told,
    written,
)
from regard.lines import (
    Line,
    Pair,
    Writer,
    document_of,
    keyed,
    lines_of,
    paired,
    pairs_of,
    text_of,
    whole_text,
    windows,
)

if TYPE_CHECKING:
    from regard.align import Links
    from regard.translator import Translator

app = typer.Typer(
    name="regard",
    help="Attention you can use, train and see: train, translate, summarize, answer, evaluate, align and explore.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code is 0, or 2 for something that the user can mend."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="regard")
        return 0
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except (ValueError, TypeError, OSError, ImportError) as error:
        if os.environ.get("REGARD_DEBUG"):
            raise
        say(f"error: {message(error)}")
        return 2


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {sys.modules['regard'].__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
]


@app.callback()
def _top(version: Version = False) -> None:
    pass


# --- options that commands share ---

Model = Annotated[str, typer.Option("--model", "-m", help="A model folder, or the name of a bundled model.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default the GPU if there is one.")]
Int8 = Annotated[bool, typer.Option("--int8", help="Compute in 8 bits, on a CPU: faster, rarely another word.")]
EngineName = Annotated[str, typer.Option("--engine", help="What runs the model: torch or ctranslate2.")]
Beam = Annotated[int, typer.Option("--beam", "-b", min=1, help="Hypotheses kept open; 1 is greedy.")]
OwnBeam = Annotated[
    int | None,
    typer.Option("--beam", "-b", min=1, help="Hypotheses kept open, mostly 5; 1 is greedy.", show_default=False),
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Source subwords read at once, padding included.")]
OutFile = Annotated[Path | None, typer.Option("--output", "-o", help="Write here, all of it or nothing.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first line that cannot be used.")]
Layer = Annotated[int | None, typer.Option(help="Decoder layer whose attention is read, from 0.")]
Head = Annotated[str | None, typer.Option(help="One head of it, from 0, or mean: the average of all.")]
Shift = Annotated[
    bool | None, typer.Option("--shift/--no-shift", help="Read a word's row where it is the decoder's input.")
]
Models = Annotated[list[str] | None, typer.Option("--model", "-m", help="A model folder of any task; may be repeated.")]
Traces = Annotated[
    list[Path] | None, typer.Option("--trace", help="A file of trace.save; may be repeated. Then no model is needed.")
]
Host = Annotated[str, typer.Option(help="Address to listen on; 127.0.0.1 is for this machine alone.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="By default 8000, or the next that is free.")]
AllowHost = Annotated[list[str] | None, typer.Option(help="Another name that the server answers to; may be repeated.")]
METHODS = ("grow-diag-final-and", "intersection", "union")


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(context: typer.Context) -> None:
    """Train a model of a task, translation by default; `regard train --task TASK --help` tells how."""
    from regard.tasks import main

    raise typer.Exit(main(context.args))


@app.command()
def translate(
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Sentences; else --input, else stdin.")
    ] = None,
    *,
    model: Model = "en-fr-small",
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
    prefix: Annotated[str, typer.Option(help="Every translation starts with this text.")] = "",
    score: Annotated[Path | None, typer.Option(help="Translate nothing: print log p of this file's lines.")] = None,
    alignment: Annotated[bool, typer.Option("--alignment", help="Add ||| and word links: 0-0 1-2 …")] = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the word alignment in the terminal.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw that of the first line as .svg, .png or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write that of the first line as a page of its own.")] = None,
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
    regard translate -m model/ --show "A dog runs."
    regard translate -m model/ --plot dog.svg "A dog runs."
    regard translate -m model/ --html dog.html "A dog runs."
    regard translate -m model/ --input test.en --score test.fr

    Without --model, the bundled English-French one translates. --beam and --length-penalty are by default what the
    model's folder says. A line that is not UTF-8, or far too long, is reported with its number on stderr and gives an
    empty line; a line over the model's limit is cut after sentence ends.
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
        "prefix": prefix,
        **({"sample": True, **drawing} if sample else {}),
    }
    looked = alignment or show or plot is not None or html is not None
    if score is not None and (looked or sample or nbest > 1 or prefix):
        raise ValueError(
            "--score translates nothing: leave out --nbest, --sample, --prefix, --alignment, --show, --plot and --html"
        )
    if not looked and (layer is not None or head is not None):
        raise ValueError("--layer and --head say what is shown: add --alignment, --show, --plot or --html")
    lines = _given(text, input)
    if plot is not None:
        from regard.plot._canvas import need, suffix_of

        need()  # now, and not when all is translated
        suffix_of(plot)
    if html is not None and engine != "torch":
        raise ValueError(f"--html shows every head, which the {engine} engine does not: leave --engine out")
    with Writer(output) as writer, Job(strict) as job:
        if score is not None:
            pairs = paired(list(lines), list(lines_of(score)), ("the input", str(score)))
            for found in job.run(pairs, _load(model, device, int8, engine).forced, batch_tokens=batch_tokens):
                writer.write([f"{found.translations[0].log_prob:.4f}" if found.translations else ""])
            return
        translator, number = _load(model, device, int8, engine), 0
        look: dict[str, Any] = {"layer": layer, "head": _head(head)}
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
                    written(html, translator, line.text, found, look)
                number += 1
            writer.flush()


@app.command()
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
    beam: Beam = 5,
    length: Annotated[int | None, typer.Option(min=1, help="Words that a summary should have, about.")] = None,
    min_length: Annotated[int, typer.Option(min=0, help="Subwords at least.")] = 0,
    max_length: Annotated[int, typer.Option(min=1, help="Subwords at most.")] = 200,
    length_penalty: Annotated[float, typer.Option(help="α of Σ log p / lengthᵅ: more is longer.")] = 2.0,
    no_repeat: Annotated[int, typer.Option(min=0, help="No run of so many subwords comes twice; 0: it may.")] = 3,
    consensus: Annotated[int, typer.Option(min=0, help="Draw so many more, and take what is most like all.")] = 0,
    show: Annotated[bool, typer.Option("--show", help="Draw what was looked at and copied.")] = False,
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

    A document that is empty, binary or not UTF-8 is reported on stderr and gives an empty line. One that is longer than
    all that the model was trained on is read whole, with a note; nothing is cut off.
    """
    if max_length < min_length:
        raise ValueError(f"--max-length {max_length} is less than --min-length {min_length}")
    documents = _documents(text, input, by_line, key)
    search: dict[str, Any] = {"beam": beam, "length": length, "min_length": min_length, "max_length": max_length}
    search |= {"length_penalty": length_penalty, "no_repeat": no_repeat, "consensus": consensus}
    with Writer(output) as writer, Job(strict, "documents") as job:
        with starting():
            from regard.summarizer import load

            summarizer = load(model, device=device, int8=int8)
        for some in windows(documents, 1000):
            for found in job.run(some, summarizer.outputs, batch_tokens=batch_tokens, **search):
                writer.write([found.text])
                if show and found.summaries:
                    writer.write(sources_drawn(found.summaries[0]))
            writer.flush()
    if job.bad and job.bad == job.count:
        raise typer.Exit(2)


@app.command()
def answer(
    question: Annotated[
        list[str] | None, typer.Argument(metavar="[QUESTION]...", help="Questions; else --input, else stdin.")
    ] = None,
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="A folder that `regard train --task qa` left.")],
    context: Annotated[Path, typer.Option("--context", "-c", help="The text to find answers in; - is stdin.")],
    input: Annotated[Path | None, typer.Option("--input", "-i", help="A file of questions, one per line.")] = None,
    output: OutFile = None,
    n_best: Annotated[int, typer.Option(min=1, help="Print so many: number ||| text ||| place ||| score.")] = 1,
    max_answer: Annotated[int | None, typer.Option(min=1, help="Subwords of an answer at most.")] = None,
    always: Annotated[
        bool | None, typer.Option("--always/--or-none", help="May the answer be none? By default as it was taught.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object per question, with places.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the words around it, and what was looked at.")] = False,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Subwords read at once, padding included.")] = 8192,
    device: Device = None,
    strict: Strict = False,
) -> None:
    """Answer questions with a passage of a text.

    \b
    regard answer --model model/ --context file.txt "Who wrote it?"
    regard answer -m model/ -c file.txt "Who wrote it?" "When?" --n-best 3
    regard answer -m model/ -c file.txt --input questions.txt --json > answers.jsonl
    cat file.txt | regard answer -m model/ -c - "Who wrote it?" --show

    A text longer than the model reads at once is read in windows that overlap, all of it. Places are characters of the
    text. A question that cannot be asked is reported on stderr and gives an empty line.
    """
    if str(context) == "-" and not (question or input):
        raise ValueError("the context and the questions cannot both be read from the standard input")
    text, lines = whole_text(context), list(_given(question, None if input is None else [input]))
    with starting():
        from regard.answerer import Answer, load

        answerer = load(model, device=device)
    options: dict[str, Any] = {"n_best": n_best, "longest": max_answer, "attention": show, "batch_tokens": batch_tokens}
    options["abstain"] = None if always is None else not always
    with Writer(output) as writer:
        good = {i: line.text for i, line in enumerate(lines) if not line.problem}
        found = dict(zip(good, answerer.answers([(text, asked) for asked in good.values()], **options), strict=True))
        for i, line in enumerate(lines):
            one = found[i] if i in found else Answer(problem=line.problem)
            if one.problem and strict:
                raise ValueError(f"{line.where}: {one.problem}")
            if hint := one.problem or one.note or ("" if one.text else "the text does not tell"):
                say(f"{line.where}: {hint}")
            row = [json.dumps(as_object(line.text, one), ensure_ascii=False)] if as_json else None
            writer.write(row or told(one, i if n_best > 1 else None))
            if show:
                writer.write(read_aloud(text, one))


@app.command()
def evaluate(
    context: typer.Context,
    outputs: Annotated[list[Path] | None, typer.Argument(metavar="[OUTPUT]...", help="Files of translations.")] = None,
    *,
    reference: Annotated[Path, typer.Option("--reference", "-r", help="What they should have been.")],
    source: Annotated[Path | None, typer.Option("--source", "-s", help="What --model is to translate.")] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Translate --source with this, not the bundled model.")
    ] = None,
    tokenize: Annotated[str, typer.Option(help="sacrebleu's tokenizer; none for tokenized text.")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Case does not count.")] = False,
    smooth: Annotated[str, typer.Option(help="BLEU's smoothing: exp, floor, add-k or none.")] = "exp",
    bootstrap: Annotated[int, typer.Option(min=0, help="Compare with the first by so many paired draws.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same.")] = 12345,
    beam: OwnBeam = None,
    batch_tokens: BatchTokens = 1024,
    engine: EngineName = "torch",
    device: Device = None,
    int8: Int8 = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """BLEU and chrF of translations, with sacrebleu's signatures.

    \b
    regard evaluate output.fr --reference test.fr
    regard evaluate --source test.en --reference test.fr
    regard evaluate --model model/ --source test.en --reference test.fr
    regard evaluate old.fr new.fr --reference test.fr --bootstrap 1000
    regard evaluate output.tok.fr --reference test.tok.fr --tokenize none --smooth none

    With --bootstrap, p is how likely chance alone makes a difference as large as that to the first output.
    """
    from regard.evaluate import compare, evaluate

    if source is None and (model or not outputs):
        raise ValueError("give files of translations, or --source to make them of, with --model or the bundled model")
    model = [] if source is None else model or ["en-fr-small"]
    if not model and (idle := _said(context, "beam", "batch_tokens", "engine", "device", "int8")):
        raise ValueError(f"{idle}: for a --model that translates; files of translations are taken as they are")
    if not bootstrap and (idle := _said(context, "seed")):
        raise ValueError(f"{idle}: for --bootstrap, which draws; nothing else does")
    if bootstrap and len(outputs or []) + len(model) < 2:
        raise ValueError("--bootstrap compares with the first output: give two or more files or models")
    wanted = text_of(reference)
    named = {str(path): text_of(path) for path in outputs or []}
    for name in model:
        lines = [Line(f"{source}:{i}", line) for i, line in enumerate(text_of(source or "-"), 1)]
        with Job(strict=True) as job:
            done = job.run(lines, _load(name, device, int8, engine).outputs, beam=beam, batch_tokens=batch_tokens)
            named[name] = [found.text for found in done]
    for name, found in named.items():
        if len(found) != len(wanted):
            raise ValueError(f"{name} has {len(found):,} lines, {reference} {len(wanted):,}: expected as many")
    how: dict[str, Any] = {"tokenize": tokenize, "lowercase": lowercase, "smooth": smooth}
    report: list[dict[str, Any]] = []
    for name, found in named.items():
        entry: dict[str, Any] = {"name": name, "scores": [m._asdict() for m in evaluate(found, wanted, **how)]}
        if bootstrap and report:
            first = named[report[0]["name"]]
            compared = compare(first, found, wanted, samples=bootstrap, seed=seed, **how)
            entry["against"] = {"name": report[0]["name"], "differences": [c._asdict() for c in compared]}
        report.append(entry)
    typer.echo(json.dumps(report, indent=1) if as_json else table(report))


@app.command()
def align(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="Source lines; or pairs, with a tab or ||| between; - is stdin.")],
    target: Annotated[Path | None, typer.Argument(help="Target lines.")] = None,
    *,
    model: Model = "en-fr-small",
    reverse: Annotated[str | None, typer.Option(help="A model from target to source: both ways are made one.")] = None,
    statistical: Annotated[bool, typer.Option("--statistical", help="By counting in these pairs, no model.")] = False,
    symmetrize: Annotated[str, typer.Option(help=f"How: {', '.join(METHODS)}.")] = METHODS[0],
    layer: Layer = None,
    head: Head = None,
    shift: Shift = None,
    gold: Annotated[Path | None, typer.Option(help="Pharaoh lines to compare with: prints AER on stderr.")] = None,
    gold_base: Annotated[int, typer.Option(min=0, max=1, help="What words are counted from in --gold.")] = 0,
    output: OutFile = None,
    show: Annotated[bool, typer.Option("--show", help="Draw each alignment in the terminal.")] = False,
    batch_tokens: BatchTokens = 1024,
    engine: EngineName = "torch",
    device: Device = None,
    int8: Int8 = False,
    strict: Strict = False,
) -> None:
    """Word alignments of given pairs, in Pharaoh format (source-target, from 0), by a model's attention.

    \b
    regard align --model en-fr/ test.en test.fr > test.align
    regard align --model en-fr/ --reverse fr-en/ test.en test.fr > test.align
    regard align --model en-fr/ pairs.txt --gold gold.txt --gold-base 1
    regard align --statistical corpus.en corpus.fr > corpus.align
    echo "the cat ||| le chat" | regard align --model en-fr/ --show -

    Without --model, the bundled English-French one aligns. Words are what white space separates. Layer, head and shift
    are by default what the model's folder says; else heads are averaged in the middle layer, and a word's row is the
    one where the decoder has just read it (--shift), which is far better than the one where it is predicted.
    --statistical counts which words come together instead, in both directions, and wants thousands of pairs.
    """
    of_models = ("model", "reverse", "layer", "head", "shift", "show", "batch_tokens", "engine", "int8")
    if statistical and (idle := _said(context, *of_models)):
        raise ValueError(f"--statistical needs no model: leave out {idle}")
    if symmetrize not in METHODS:
        raise ValueError(f"--symmetrize: expected one of {', '.join(METHODS)}, got {symmetrize!r}")
    if not statistical and reverse is None and (idle := _said(context, "symmetrize")):
        raise ValueError(f"{idle}: makes one of two directions; give --reverse, a model from target to source")
    if gold is None and (idle := _said(context, "gold_base")):
        raise ValueError(f"{idle}: says how --gold counts; give that too")
    pairs = pairs_of(source, target)
    with starting():
        import regard.align as words
    right = None if gold is None else words.read_pharaoh(gold, base=gold_base)
    if right is not None and len(right) != len(pairs):
        raise ValueError(f"{gold} has {len(right):,} lines, the pairs {len(pairs):,}: expected as many")
    look: dict[str, Any] = {"layer": layer, "head": _head(head), "shift": shift}
    how: dict[str, Any] = {"attention": True, "batch_tokens": batch_tokens}
    with Writer(output) as writer, Job(strict) as job:
        if statistical:
            counted = _counted(pairs, symmetrize, device, job)
            writer.write(words.pharaoh(linked) for linked in counted)
            if right is not None:
                say(str(words.quality(counted, right)))
            return
        translator = _load(model, device, int8, engine)
        back = None if reverse is None else _backward(_load(reverse, device, int8, engine), pairs, look, how)
        every = []
        for i, (pair, found) in enumerate(zip(pairs, job.run(pairs, translator.forced, **how), strict=True)):
            weights = [translator.word_weights(t, **look) for t in found.translations]
            linked = words.links(weights[0]) if weights else frozenset()
            if back is not None:
                linked = words.symmetrize(linked, back[i], symmetrize)  # type: ignore[arg-type]
            every.append(linked)
            writer.write([words.pharaoh(linked)])
            if show and weights:
                writer.write(drawn(pair.source, found, weights, linked))
        if right is not None:
            say(str(words.quality(every, right)))


@app.command()
def export(
    *,
    model: Model = "en-fr-small",
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder; it appears when it is whole.")],
    format: Annotated[str, typer.Option("--format", "-f", help="For whom: ctranslate2.")] = "ctranslate2",
    positions: Annotated[
        int | None, typer.Option(min=1, help="Subwords a sentence may have, for sinusoidal positions.")
    ] = None,
) -> None:
    """Write a model for another program, with the same weights.

    \b
    regard export --format ctranslate2 --model model/ --out model.ct2/
    regard translate --engine ctranslate2 --model model.ct2/ "A dog runs."

    CTranslate2 runs Transformers with dot-product scores. What is exported has the model's subwords beside it, and
    shows the attention of one layer: that of the align table in the model's config.toml, or the middle one.
    """
    if format != "ctranslate2":
        raise ValueError(f"--format: expected ctranslate2, got {format!r}")
    with starting():
        from regard.interop import ctranslate2
        from regard.translator import find
    ctranslate2.export(find(model), out, positions=positions)


@app.command()
def serve(
    *,
    model: Models = None,
    trace: Traces = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    allow_host: AllowHost = None,
    device: Device = None,
) -> None:
    """Answer over HTTP: translations, summaries, answers to questions, and what a model looked at.

    \b
    regard serve --model model/
    curl -H "Content-Type: application/json" -d '{"text": "A dog runs."}' http://127.0.0.1:8000/api/translate

    GET /api/openapi.json describes everything there is. Ctrl-C or SIGTERM stop it after what runs has been answered.
    """
    with starting():
        from regard.explorer import start

    start(
        _served(model, trace),
        traces=trace or [],
        with_page=False,
        host=host,
        port=port,
        allow_hosts=allow_host or [],
        device=device,
        say=say,
    )


@app.command()
def explore(
    *,
    model: Models = None,
    trace: Traces = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    allow_host: AllowHost = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    device: Device = None,
) -> None:
    """Open the explorer: type a text, and see what each word looks at and how every number was made.

    \b
    regard explore
    regard explore --model transformer/ --model rnn/ --port 9000 --no-browser
    regard explore --model translator/ --model summarizer/ --model reader/
    regard explore --trace book.safetensors

    It is `regard serve` with a page. Everything stays on this machine.
    """
    with starting():
        from regard.explorer import start

    start(
        _served(model, trace),
        traces=trace or [],
        browser=browser,
        host=host,
        port=port,
        allow_hosts=allow_host or [],
        device=device,
        say=say,
    )


def _head(text: str | None) -> int | str | None:
    """A head's number where it is one; a word is the translator's to judge."""
    return int(text) if text is not None and text.isdecimal() else text


def _served(models: list[str] | None, traces: list[Path] | None) -> list[str]:
    """The models that are asked for; the bundled one where nothing is."""
    return models or ([] if traces else ["en-fr-small"])


def _counted(pairs: Sequence[Pair], symmetrize: str, device: str | None, job: Job) -> list[Links]:
    """Links by the statistical aligner; none where there is a problem, which is told."""
    from regard.aligner import align_words
    from regard.output import Output
    from regard.translator import device_of

    list(job.run(pairs, lambda good, progress: [Output()] * len(good)))
    texts = [([], []) if pair.problem else (pair.source.split(), pair.target.split()) for pair in pairs]
    return align_words(texts, method=symmetrize, device=device_of(device), say=say)  # type: ignore[arg-type]


def _backward(translator: Translator, pairs: Sequence[Pair], look: dict[str, Any], how: dict[str, Any]) -> list[Links]:
    """Links of the other direction, seen from this one; none where there is a problem, which the other one tells."""
    from regard.align import links, swap

    turned = [("", "") if pair.problem else (pair.target, pair.source) for pair in pairs]
    outputs = translator.forced(turned, **how)
    return [
        swap(links(translator.word_weights(found.translations[0], **look))) if found.translations else frozenset()
        for found in outputs
    ]


def _said(context: typer.Context, *options: str) -> str:
    """Which of these options were given, as they are written: "" for none."""
    given = [name for name in options if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"]
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def _given(text: list[str] | None, input: list[Path] | None) -> Iterable[Line]:
    """Lines from arguments, files or the standard input."""
    if text and input:
        raise ValueError("give sentences or --input, not both")
    if text:
        for name in text:
            if os.path.isfile(name):
                say(f"{name} is taken as text; for what is in the file of that name, write --input {name}")
        return [Line(f"argument {i}", line) for i, line in enumerate("\n".join(text).split("\n"), 1)]
    for path in input or []:
        if str(path) != "-":
            open(path, "rb").close()  # tell what is missing before anything is done
    return chain.from_iterable(lines_of(path) for path in input or [Path("-")])


def _documents(text: list[str] | None, input: list[Path] | None, by_line: bool, key: str | None) -> Iterable[Line]:
    """Documents from arguments, files or the standard input."""
    if text and input:
        raise ValueError("give documents or --input, not both")
    if by_line and key:
        raise ValueError("--lines and --key are two ways to read a file: give one of them")
    if text:
        for name in text:
            if os.path.isfile(name):
                say(f"{name} is summarized as text; to summarize the file of that name, write --input {name}")
        return [Line(f"argument {i}", document) for i, document in enumerate(text, 1)]
    paths = input or [Path("-")]
    for path in paths:
        if str(path) != "-":
            open(path, "rb").close()  # tell what is missing before anything is done
    if by_line or key:
        lines = chain.from_iterable(lines_of(path) for path in paths)
        return (keyed(line, key) for line in lines) if key else lines
    return (document_of(path) for path in paths)


def _load(name: str, device: str | None, int8: bool, engine: str) -> Translator:
    with starting():
        from regard.translator import load

        return load(name, device=device, int8=int8, engine=engine)

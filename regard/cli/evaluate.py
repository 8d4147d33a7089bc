"""``regard evaluate``: how good translations are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli._options import DEFAULT_MODEL, BatchTokens, Device, EngineName, Int8, OwnBeam, load_translator, said
from regard.console import Job, table
from regard.lines import Line, text_of


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
    model = [] if source is None else model or [DEFAULT_MODEL]
    if not model and (idle := said(context, "beam", "batch_tokens", "engine", "device", "int8")):
        raise ValueError(f"{idle}: for a --model that translates; files of translations are taken as they are")
    if not bootstrap and (idle := said(context, "seed")):
        raise ValueError(f"{idle}: for --bootstrap, which draws; nothing else does")
    if bootstrap and len(outputs or []) + len(model) < 2:
        raise ValueError("--bootstrap compares with the first output: give two or more files or models")
    names = [*map(str, outputs or []), *model]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)}: given twice; each output is evaluated once")
    wanted = text_of(reference)
    named = {str(path): text_of(path) for path in outputs or []}
    for name in model:
        lines = [Line(f"{source}:{i}", line) for i, line in enumerate(text_of(source or "-"), 1)]
        with Job(strict=True) as job:
            done = job.run(
                lines, load_translator(name, device, int8, engine).outputs, beam=beam, batch_tokens=batch_tokens
            )
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

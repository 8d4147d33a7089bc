"""``regard evaluate``: how good translations, summaries or answers are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from regard.cli._console import Job, Report, table
from regard.cli._flags import DEFAULT_MODEL, BatchTokens, Device, EngineName, Int8, OwnBeam, load_translator
from regard.cli._lines import Line, LinePair, text_of
from regard.cli._parser import Flag, Options

STRIDE = 200  # questions between two steps of the bar


def evaluate(
    options: Options,
    outputs: Annotated[list[Path] | None, Flag("Files of translations.", metavar="OUTPUT")] = None,
    *,
    reference: Annotated[Path | None, Flag("Reference translations.", "-r")] = None,
    source: Annotated[Path | None, Flag("Source text for --model.", "-s")] = None,
    model: Annotated[list[str] | None, Flag("Translate --source with this, not the bundled model.", "-m")] = None,
    documents: Annotated[
        Path | None, Flag("Summarize these with --model: JSON lines with documents and summaries.")
    ] = None,
    keys: Annotated[tuple[str, str], Flag("The keys of --documents.")] = ("document", "summary"),
    questions: Annotated[Path | None, Flag("Answer these with --model: SQuAD's JSON, JSON lines or TSV.")] = None,
    tokenize: Annotated[str, Flag("sacrebleu's tokenizer; none for tokenized text.")] = "13a",
    lowercase: Annotated[bool, Flag("Ignore case.")] = False,
    smooth: Annotated[str, Flag("BLEU's smoothing: exp, floor, add-k or none.")] = "exp",
    bootstrap: Annotated[int, Flag("Compare with the first, with this many paired samples.", least=0)] = 0,
    seed: Annotated[int, Flag("The same seed gives the same samples.")] = 12345,
    beam: OwnBeam = None,
    batch_tokens: BatchTokens = 1024,
    engine: EngineName = "torch",
    device: Device = None,
    int8: Int8 = False,
    as_json: Annotated[bool, Flag("Print JSON.", "--json")] = False,
) -> None:
    """BLEU and chrF of translations, with sacrebleu's signatures; ROUGE of summaries; EM and F1 of answers.

        regard evaluate output.fr --reference test.fr
        regard evaluate --source test.en --reference test.fr
        regard evaluate --model model/ --source test.en --reference test.fr
        regard evaluate old.fr new.fr --reference test.fr --bootstrap 1000
        regard evaluate output.tok.fr --reference test.tok.fr --tokenize none --smooth none
        regard evaluate --model summarizer/ --documents test.jsonl --keys dialogue summary
        regard evaluate --model reader/ --questions dev.json

    With --bootstrap, p is the probability that chance alone gives a difference to the first output as large as this.
    """
    if documents is not None or questions is not None:
        of_text = ("reference", "source", "tokenize", "lowercase", "smooth", "bootstrap", "seed")
        of_translators = ("beam", "batch_tokens", "engine", "int8")
        if outputs or (idle := options.among(*of_text, *of_translators)):
            raise ValueError(f"{outputs[0] if outputs else idle}: for translations, not for summaries or answers")
        scored = _other_tasks(model or [], documents, keys, questions, device)
        _show(scored, as_json)
        return
    if idle := options.among("keys"):
        raise ValueError(f"{idle}: for --documents, which were not given")
    if reference is None:
        raise ValueError("give --reference, the reference translations")
    from regard.evaluate.bleu import compare, evaluate

    if source is None and (model or not outputs):
        raise ValueError("give files of translations, or --source to translate, with --model or the bundled model")
    model = [] if source is None else model or [DEFAULT_MODEL]
    if not model and (idle := options.among("beam", "batch_tokens", "engine", "device", "int8")):
        raise ValueError(f"{idle}: for a --model that translates; files of translations are taken as they are")
    if not bootstrap and (idle := options.among("seed")):
        raise ValueError(f"{idle}: only --bootstrap uses it")
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
            translator = load_translator(name, device, int8, engine)
            from regard.tasks.translation.output import TranslationOutput

            done = job.run(lines, translator.outputs, TranslationOutput, beam=beam, batch_tokens=batch_tokens)
            named[name] = [found.text for found in done]
    for name, found in named.items():
        if len(found) != len(wanted):
            raise ValueError(f"{name} has {len(found):,} lines, {reference} {len(wanted):,}: expected the same number")
    score = partial(evaluate, tokenize=tokenize, lowercase=lowercase, smooth=smooth)
    versus = partial(compare, samples=bootstrap, seed=seed, tokenize=tokenize, lowercase=lowercase, smooth=smooth)
    report: Report = []
    for name, found in named.items():
        entry: dict[str, Any] = {"name": name, "scores": [m._asdict() for m in score(found, wanted)]}
        if bootstrap and report:
            first = named[report[0]["name"]]
            compared = versus(first, found, wanted)
            entry["against"] = {"name": report[0]["name"], "differences": [c._asdict() for c in compared]}
        report.append(entry)
    _show(report, as_json)


def _show(report: Report, as_json: bool) -> None:
    print(json.dumps(report, indent=1) if as_json else table(report))  # noqa: T201


def _other_tasks(
    models: Sequence[str], documents: Path | None, keys: tuple[str, str], questions: Path | None, device: str | None
) -> Report:
    """The report on summarizers or readers."""
    if not models:
        raise ValueError("give the --model to evaluate")
    if documents is None and questions is not None:
        return [{"name": name, "scores": _answers(questions, name, device)} for name in models]
    if documents is None or questions is not None:
        raise ValueError("--documents are for summarizers and --questions for readers: give one of them")
    return [{"name": name, "scores": _summaries(documents, keys, name, device)} for name in models]


def _summaries(documents: Path, keys: tuple[str, str], name: str, device: str | None) -> Report:
    """ROUGE of a summarizer, with its own search."""
    from regard.data.documents import with_references
    from regard.evaluate.rouge import rouge
    from regard.tasks.summarization.summarizer import SummaryOutput, load

    pairs = with_references(documents, keys)
    lines = [Line(f"{documents}:{i}", text) for i, (text, _) in enumerate(pairs, 1)]
    with Job(strict=False, noun="documents") as job:
        texts = [found.text for found in job.run(lines, load(name, device=device).outputs, SummaryOutput)]
    found = rouge(texts, [wanted for _, wanted in pairs])
    signature = f"rouge-score {version('rouge-score')}, stemmed, F1, {len(pairs):,} documents"
    return [{"name": kind.replace("rouge", "ROUGE-"), "score": x, "signature": signature} for kind, x in found.items()]


def _answers(questions: Path, name: str, device: str | None) -> Report:
    """Exact match and F1 of a reader; an unusable question is reported and counts as not answered."""
    from regard.data.questions import read_questions
    from regard.evaluate.squad import quality
    from regard.tasks.qa.answerer import Answer, load

    asked = list(read_questions(questions))
    if not asked:
        raise ValueError(f"{questions}: there are no questions in it")
    answerer = load(name, device=device)
    pairs = [LinePair(f"{questions}, question {i}", q.context, q.question) for i, q in enumerate(asked, 1)]

    def answers(some: list[tuple[str, str]], progress: Callable[[int], None]) -> list[Answer]:
        found: list[Answer] = []
        for at in range(0, len(some), STRIDE):
            found += answerer.answers(some[at : at + STRIDE])
            progress(min(STRIDE, len(some) - at))
        return found

    with Job(strict=False, noun="questions") as job:
        found = list(job.run(pairs, answers, Answer))
    marks = quality([answer.text for answer in found], [q.answers for q in asked])
    signature = f"as SQuAD counts, {marks.questions:,} questions"
    return [{"name": kind, "score": x, "signature": signature} for kind, x in (("EM", marks.exact), ("F1", marks.f1))]

"""``regard answer``: a text and questions in, passages of it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.cli._console import answer_lines, as_object, draw_answer, plot_answer, say
from regard.cli._flags import Device, OutFile, Strict, can_draw
from regard.cli._input import input_lines
from regard.cli._lines import Writer, whole_text
from regard.cli._parser import Flag
from regard.common.start import quick_start

if TYPE_CHECKING:
    from regard.tasks.qa.answerer import AnswerOptions


def answer(
    question: Annotated[list[str] | None, Flag("Questions; else --input, else stdin.", metavar="QUESTION")] = None,
    *,
    model: Annotated[str, Flag("A model folder of `regard train --task qa`.", "-m")],
    context: Annotated[Path, Flag("The text to find answers in; - is stdin.", "-c")],
    input: Annotated[Path | None, Flag("A file of questions, one per line.", "-i")] = None,
    output: OutFile = None,
    n_best: Annotated[int, Flag("Print this many: number ||| text ||| position ||| score.", least=1)] = 1,
    max_answer: Annotated[int | None, Flag("Maximum subwords of an answer.", least=1)] = None,
    always: Annotated[bool | None, Flag('Allow "no answer"; by default as in training.', off="--or-none")] = None,
    as_json: Annotated[bool, Flag("Print a JSON object per question, with positions.", "--json")] = False,
    show: Annotated[bool, Flag("Draw the words around the answer, and the attention.")] = False,
    plot: Annotated[Path | None, Flag("Draw the first one's attention as .svg, .png or .pdf.")] = None,
    batch_tokens: Annotated[int, Flag("Subwords per batch, padding included.", least=1)] = 8192,
    device: Device = None,
    strict: Strict = False,
) -> None:
    """Answer questions with a passage of a text.

        regard answer --model model/ --context file.txt "Who wrote it?"
        regard answer -m model/ -c file.txt "Who wrote it?" "When?" --n-best 3
        regard answer -m model/ -c file.txt --input questions.txt --json > answers.jsonl
        cat file.txt | regard answer -m model/ -c - "Who wrote it?" --show
        regard answer -m model/ -c file.txt "Who wrote it?" --plot who.svg

    A text longer than the model's input is read completely, in overlapping windows. Positions are characters of the
    text. An unusable question is reported on stderr and gives an empty line.
    """
    if str(context) == "-" and not (question or input):
        raise ValueError("the context and the questions cannot both be read from the standard input")
    if as_json and show:
        raise ValueError("--json is for programs and --show for people: give one of them")
    can_draw(plot)
    text, lines = whole_text(context), list(input_lines(question, None if input is None else [input]))
    if not lines:
        raise ValueError("there are no questions: give them as arguments, with --input, or on the standard input")
    with quick_start():
        from regard.tasks.qa.answerer import Answer, load

        answerer = load(model, device=device)
    options: AnswerOptions = {"n_best": n_best, "longest": max_answer, "batch_tokens": batch_tokens}
    options["attention"] = show or plot is not None
    options["abstain"] = None if always is None else not always
    bad = 0
    with Writer(output) as writer:
        good = {i: line.text for i, line in enumerate(lines) if not line.problem}
        found = dict(zip(good, answerer.answers([(text, asked) for asked in good.values()], **options), strict=True))
        for i, line in enumerate(lines):
            one = found[i] if i in found else Answer(problem=line.problem)
            if one.problem and strict:
                raise ValueError(f"{line.where}: {one.problem}")
            if hint := one.problem or one.note or ("" if one.text else "no answer in the text"):
                say(f"{line.where}: {hint}")
            row = [json.dumps(as_object(line.text, one), ensure_ascii=False)] if as_json else None
            writer.write(row or answer_lines(one, i if n_best > 1 else None))
            if show:
                writer.write(draw_answer(text, one))
            if plot is not None and not one.problem:
                plot_answer(plot, text, line.text, one)
                plot = None  # the first one only
            bad += bool(one.problem)
        if bad == len(lines):
            raise SystemExit(2)  # within the writer, so that a file of before stays

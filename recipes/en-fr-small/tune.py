"""Which beam and length penalty suit a model, and where paragraphs are best cut: BLEU on the validation file.

    python recipes/en-fr-small/tune.py --model out/en-fr-small/student --engine ctranslate2
    python recipes/en-fr-small/tune.py --model … --engine ctranslate2 --joined 3 --splits 0,20,40,80,128

The first tries beams and penalties. A beam of 1 has one hypothesis to choose from, so its penalty does not matter. With
--joined so many pairs stand in a line, as sentences of a paragraph, and lines of more subwords than each of --splits
are cut after sentence ends (0: all that have several sentences). What is best goes into the model's `[translate]` by
`install.py`; the test sets have no say in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from prepare import rows

Pairs = Sequence[tuple[str, str]]


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def joined(pairs: Pairs, count: int) -> list[tuple[str, str]]:
    """Pairs that end as sentences do, so many in a row made one.

    >>> joined([("Hi.", "Salut."), ("No end", "Pas de fin"), ("Bye.", "Ciao.")], 2)
    [('Hi. Bye.', 'Salut. Ciao.')]
    """
    whole = [pair for pair in pairs if all(side[-1:] in (".", "!", "?") for side in pair)]
    groups = [whole[i : i + count] for i in range(0, len(whole) - count + 1, count)]
    return [(" ".join(en for en, _ in group), " ".join(fr for _, fr in group)) for group in groups]


def measured(translator: Any, pairs: Pairs, **options: Any) -> str:
    """BLEU, chrF, words written per word of the reference, and seconds, as cells of a table."""
    from regard.evaluate import evaluate

    start = time.perf_counter()
    texts = [output.text for output in translator.outputs([en for en, _ in pairs], **options)]
    seconds = time.perf_counter() - start
    references = [fr for _, fr in pairs]
    length = sum(len(text.split()) for text in texts) / sum(len(text.split()) for text in references)
    scores = {m.name: m.score for m in evaluate(texts, references)}
    return f"{scores['BLEU']:.2f} | {scores['chrF']:.2f} | {length:.3f} | {seconds:.0f}"


def searches(translator: Any, pairs: Pairs, beams: Sequence[float], penalties: Sequence[float]) -> Iterator[str]:
    """Rows of a table: each beam with each penalty."""
    yield "| beam | penalty | BLEU | chrF | length | seconds |\n|---|---|---|---|---|---|"
    for beam in map(int, beams):
        for penalty in penalties if beam > 1 else penalties[:1]:
            cells = measured(translator, pairs, beam=beam, length_penalty=penalty)
            yield f"| {beam} | {f'{penalty:g}' if beam > 1 else 'any'} | {cells} |"


def cuts(translator: Any, pairs: Pairs, splits: Sequence[float]) -> Iterator[str]:
    """Rows of a table: paragraphs cut from so many subwords on."""
    yield "| cut over | BLEU | chrF | length | seconds |\n|---|---|---|---|---|"
    for split in map(int, splits):
        translator.split = min(split, translator.limit)
        yield f"| {split} | {measured(translator, pairs)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--valid", type=Path, default=Path("out/en-fr-small/data/valid.tsv.gz"))
    parser.add_argument("--pairs", type=int, help="so many of them, spread over the file")
    parser.add_argument("--beams", default="1,4,5,8", help="hypotheses to try")
    parser.add_argument("--penalties", default="0.6,0.8,1.0,1.2,1.4", help="length penalties to try")
    parser.add_argument("--joined", type=int, help="sentences of a paragraph; tries --splits instead")
    parser.add_argument("--splits", default="0,20,40,80,128")
    parser.add_argument("--engine", default="torch", choices=("torch", "ctranslate2"))
    parser.add_argument("--device")
    options = parser.parse_args()
    from regard.tasks.translation.translator import load

    pairs = [(row[0], row[1]) for row in rows(options.valid)]
    if options.joined:
        pairs = joined(pairs, options.joined)
    if options.pairs:
        pairs = pairs[:: max(1, len(pairs) // options.pairs)][: options.pairs]
    translator = load(options.model, device=options.device, engine=options.engine)
    print(f"{len(pairs):,} lines of {options.valid.name}\n")
    if options.joined:
        table = cuts(translator, pairs, numbers(options.splits))
    else:
        table = searches(translator, pairs, numbers(options.beams), numbers(options.penalties))
    for row in table:
        print(row, flush=True)


if __name__ == "__main__":
    main()

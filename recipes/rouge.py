"""ROUGE of a model that summarizes, beside summaries that are lines of the document.

    python recipes/rouge.py MODEL out/samsum/test.jsonl.gz
    python recipes/rouge.py - out/samsum/test.jsonl.gz           # the baselines alone

ROUGE-1, ROUGE-2 and summary-level ROUGE-L (F₁, stemmed, sentences on lines of their own) by rouge-score; of several
references the best by each. The longest three lines of SAMSum's test dialogues so score 32.3 / 10.3 / 30.3, against
32.46 / 10.27 / 29.92 in its paper: what is measured here can be compared with that. ``--json`` adds to a file, and
``--summaries`` keeps what was written.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.data.documents import with_references
from regard.evaluate.rouge import rouge
from regard.tasks.summarization.search import SummarySearch


def read(path: Path, keys: tuple[str, str]) -> list[tuple[list[str], list[str]]]:
    """The lines of each document, and its references."""
    found = with_references(path, keys)
    return [([line for line in text.splitlines() if line.strip()], wanted) for text, wanted in found]


def lead(count: int) -> Callable[[list[str]], str]:
    """The first lines."""
    return lambda lines: "\n".join(lines[:count])


def longest(count: int) -> Callable[[list[str]], str]:
    """The longest lines, in their order."""
    return lambda lines: "\n".join(
        lines[i] for i in sorted(sorted(range(len(lines)), key=lambda i: -len(lines[i]))[:count])
    )


BASELINES = {f"{name.__name__}-{count}": name(count) for name in (lead, longest) for count in (1, 3)}


def summarized(options: argparse.Namespace, documents: list[str]) -> tuple[list[str], float]:
    """What the model writes, and the seconds it took."""
    import regard

    search: dict[str, Any] = {
        "beam": options.beam,
        "length_penalty": options.length_penalty,
        "no_repeat": options.no_repeat,
        "min_length": options.min_length,
    }
    if options.consensus:
        search |= {"consensus": options.consensus}
    begun, done = time.monotonic(), 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        print(f"{done:,} of {len(documents):,}", end="\r", flush=True)

    model = regard.load(options.model, device=options.device)
    outputs = model.outputs(documents, batch_tokens=options.batch_tokens, progress=progress, **search)
    return [output.text for output in outputs], time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder; - for the baselines alone")
    parser.add_argument("documents", type=Path, help="JSON lines with documents and references")
    parser.add_argument("--keys", nargs=2, default=("document", "summary"))
    parser.add_argument("--beam", type=int, default=SummarySearch.beam)
    parser.add_argument("--length-penalty", type=float, default=SummarySearch.length_penalty)
    parser.add_argument("--no-repeat", type=int, default=SummarySearch.no_repeat)
    parser.add_argument("--min-length", type=int, default=SummarySearch.min_length)
    parser.add_argument("--consensus", type=int, default=0)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--first", type=int, help="of the documents alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="add the scores to this file")
    parser.add_argument("--summaries", type=Path, help="write them here, a line each")
    options = parser.parse_args()
    rows = read(options.documents, tuple(options.keys))[: options.first]
    references = [wanted for _, wanted in rows]
    report: dict[str, Any] = {}
    for name, choose in BASELINES.items():
        report[name] = rouge([choose(lines) for lines, _ in rows], references)
    if options.model != "-":
        texts, seconds = summarized(options, ["\n".join(lines) for lines, _ in rows])
        how = {k: getattr(options, k) for k in ("beam", "length_penalty", "no_repeat", "min_length", "consensus")}
        words = sum(len(text.split()) for text in texts) / len(texts)
        report[Path(options.model).name] = {**rouge(texts, references), "words": words, "seconds": seconds, **how}
        if options.summaries:
            options.summaries.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")
    print(f"{'':24}  ROUGE-1  ROUGE-2  ROUGE-L")
    for name, found in report.items():
        print(f"{name:24}  {found['rouge1']:7.2f}  {found['rouge2']:7.2f}  {found['rougeL']:7.2f}")
    if options.json:
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(before | {str(options.documents): report}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A teacher's translations of the English side of the training data, for the student to learn from.

    python recipes/en-fr-small/distill.py --model out/en-fr-small/teacher --minutes 8
    python recipes/en-fr-small/distill.py --merge --words /usr/share/dict/french

Of the translations that the beam found, the one is taken that is most like a translation that people made, where there
are some (sequence-level interpolation, Kim and Rush 2016, https://aclanthology.org/D16-1139); else the best.

Sentences are sorted by length and translated in shards, each a file that is written whole: what is there is not made
again, so the command can be stopped at any moment and given again, on another machine too. It ends by itself when the
next shard would take longer than what is left of --minutes. --merge makes a file for each set of what there
is, distilled-NAME.tsv.gz, without translations that look wrong, or that have a word which is neither in the French of
the training data nor in the English sentence, nor in a list of --words (Debian's package wfrench is one): a student
would learn to invent words.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from prepare import rows, write
from texts import alike, fault, french, lexicon, looped, unheard

GOLD = ("tatoeba", "laws", "docs", "help")  # whose French is read for its words
SETS = ("tatoeba", "mono", "novels", "docs", "laws")


def sources(data: Path, name: str) -> list[str]:
    """The English sentences of a set, each once, the shortest first."""
    path = data / ("mono.en.gz" if name == "mono" else f"{name}.tsv.gz")
    return sorted({row[0] for row in rows(path)}, key=lambda text: (len(text), text))


def shards(data: Path, out: Path, names: tuple[str, ...], lines: int) -> Iterator[tuple[Path, list[str]]]:
    """Where each shard goes, and its sentences."""
    for name in names:
        texts = sources(data, name)
        for k, start in enumerate(range(0, len(texts), lines)):
            yield out / f"{name}-{k:04d}.gz", texts[start : start + lines]


def people_s(data: Path, name: str) -> dict[str, list[str]]:
    """The translations that people made of the sentences of a set."""
    found: dict[str, list[str]] = {}
    for row in [] if name == "mono" else rows(data / f"{name}.tsv.gz"):
        found.setdefault(row[0], []).append(row[1])
    return found


def chosen(candidates: Sequence[str], given: Sequence[str]) -> str:
    """The first of the candidates that are most like one that was given.

    >>> chosen(["Il a un manteau de peinture.", "Il a une couche de peinture."], ["Il faut une couche de peinture."])
    'Il a une couche de peinture.'
    """
    if candidates[0] in given or not given:
        return candidates[0]
    return max(candidates, key=lambda text: max(alike(text, one) for one in given))


def distill(options: argparse.Namespace) -> None:
    import torch

    from regard.tasks.translation.translator import load

    torch.set_float32_matmul_precision("high")  # a teacher need not be exact
    deadline = time.monotonic() + 60 * options.minutes
    translator = load(options.model, device=options.device)
    todo = [(p, t) for p, t in shards(options.data, options.out, options.sets, options.lines) if not p.exists()]
    print(f"{sum(len(t) for _, t in todo):,} sentences to translate, in {len(todo)} shards", flush=True)
    known = {name: people_s(options.data, name) for name in options.sets}
    pace = 0.0  # seconds per character
    for path, texts in todo:
        size = sum(map(len, texts))
        if time.monotonic() + 1.3 * pace * size > deadline:
            print("no time for another shard: the same command goes on with it", flush=True)
            return
        start = time.monotonic()
        how = {"beam": options.beam, "nbest": options.beam, "batch_tokens": options.batch_tokens}
        given = known[path.name.rsplit("-", 1)[0]]
        found = [
            chosen([one.text for one in output.translations] or [""], given.get(en, []))
            for en, output in zip(texts, translator.outputs(texts, **how), strict=True)
        ]
        write(path, (" ".join(text.split()) for text in found))
        seconds = time.monotonic() - start
        pace = seconds / size
        print(f"{path.name}: {len(texts):,} sentences, {len(texts) / seconds:,.0f} per second", flush=True)
    print("all is translated", flush=True)


def french_words(data: Path, listed: Path | None) -> set[str]:
    """All that is not invented: the words of the French that people wrote, and those of a list."""
    gold = [data / f"{name}.tsv.gz" for name in GOLD]
    heard = lexicon(row[1] for path in gold if path.exists() for row in rows(path))
    return heard | (lexicon(row[0] for row in rows(listed)) if listed else set())


def merge(options: argparse.Namespace) -> dict[str, Counter[str]]:
    """A file of pairs for each set; returns what became of them."""
    pairs: dict[str, list[tuple[str, str]]] = {name: [] for name in options.sets}
    why = {name: Counter[str]() for name in options.sets}
    heard = french_words(options.data, options.words)
    for path, texts in shards(options.data, options.out, options.sets, options.lines):
        name = path.name.rsplit("-", 1)[0]
        if not path.exists():
            why[name]["not translated yet"] += len(texts)
            continue
        found = gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]
        if len(found) != len(texts):
            raise ValueError(
                f"{path} has {len(found)} lines for {len(texts)} sentences: of other data, or other --lines"
            )
        for en, fr in zip(texts, found, strict=True):
            reason = fault(en, fr) or ("looped" if looped(fr) and not looped(en) else None)
            reason = reason or ("an invented word" if unheard(fr, heard, en) else None)
            why[name][reason or "kept"] += 1
            if reason is None:
                pairs[name].append((en, french(fr)))
    for name in options.sets:
        path = options.data / f"distilled-{name}.tsv.gz"
        write(path, ("\t".join(pair) for pair in pairs[name]))
        print(f"{path}: {dict(why[name].most_common())}")
    return why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="out/en-fr-small/teacher")
    parser.add_argument("--data", type=Path, default=Path("out/en-fr-small/data"))
    parser.add_argument("--out", type=Path, default=Path("out/en-fr-small/shards"))
    parser.add_argument("--sets", default="tatoeba,mono,docs", help="which ones, in that order; laws and novels too")
    parser.add_argument("--minutes", type=float, default=8.0, help="stop before so many have passed")
    parser.add_argument("--lines", type=int, default=8192, help="sentences of a shard; the same for --merge")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=48_000)
    parser.add_argument("--device")
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--words", type=Path, help="French words, a line each, that --merge need not take for invented")
    options = parser.parse_args()
    options.sets = tuple(options.sets.split(","))
    if unknown := set(options.sets) - set(SETS):
        parser.error(f"--sets knows {', '.join(SETS)}, not {', '.join(sorted(unknown))}")
    merge(options) if options.merge else distill(options)


if __name__ == "__main__":
    main()

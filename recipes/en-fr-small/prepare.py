"""Training, validation and test data of en-fr-small, from the corpora whose licences allow a model to be passed on.

    python recipes/en-fr-small/prepare.py CORPORA --out out/en-fr-small/data

CORPORA is a folder with tatoeba_eng_fra, canada_laws_en_fr, python_docs_en_fr, transread_novels_en_fr and qamr; and
with what is only tested on: wmt_news_eng_fra, multi30k, hansards_word_alignment. Of these nothing is written: they are
read to keep their sentences, either side, out of what is.

Written, as gzipped "English TAB French" lines: tatoeba, and variants, quotations and longer sentences made of it; laws,
docs and novels for training; valid for validation, test.tatoeba and test.laws; mono (English alone, for a teacher to
translate); counts.json and ATTRIBUTION.md. With --packages also help and names, see packages.py.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import packages
from texts import Guard, clean, fault, french, joined, key, spoken, template, without_markup
from variants import longer_ones, quotations, variants

Pair = tuple[str, str]

ATTRIBUTION = {
    "tatoeba": "Tatoeba sentence pairs, as prepared by www.manythings.org/anki from tatoeba.org. CC BY 2.0.",
    "variants": "Variants of these sentences, in capitals, in small letters, with invented names.",
    "quotations": "Sentences of Tatoeba in quotation marks, or with other numbers.",
    "longer": "Two sentences of Tatoeba as one, or one that is reported or dated.",
    "laws": "Consolidated Acts and regulations of Canada, Department of Justice"
    " (github.com/justicecanada/laws-lois-xml)."
    " Contains information licensed under the Open Government Licence - Canada.",
    "docs": "French translation of the Python documentation (github.com/python/python-docs-fr), contributed under CC0;"
    " English original: Python documentation, Python Software Foundation License.",
    "help": "Help pages of LibreOffice, The Document Foundation and contributors. Mozilla Public License 2.0.",
    "names": "Names of the Unicode Common Locale Data Repository, Unicode, Inc. Unicode License (Unicode-DFS-2016).",
    "novels": "TransRead: eleven novels, mostly of Project Gutenberg, sentence alignment under CC BY-SA 4.0"
    " (github.com/fyvo/TransReadAlignments).",
    "mono": "English alone: sentences of QAMR (github.com/uwnlp/qamr, MIT; from Wikipedia and Wikinews).",
}
MADE = {"variants": variants, "quotations": quotations, "longer": longer_ones}  # of Tatoeba's pairs
REPEATS = 2  # pairs of one mould in the laws


# --- reading ---


def rows(path: Path) -> Iterator[list[str]]:
    """The columns of a file, gzipped or not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


def tatoeba(folder: Path) -> list[Pair]:
    return [(clean(en), french(fr)) for en, fr, *_ in rows(folder / "tatoeba_eng_fra" / "fra.txt.gz")]


def laws(folder: Path, part: str, kinds: Iterable[str]) -> list[Pair]:
    """Provisions and headings: marginal notes are free summaries, and French definitions leave out their verb."""
    found = []
    for _, kind, en, fr in rows(folder / "canada_laws_en_fr" / f"{part}.tsv.gz"):
        if kind in kinds:
            found.append((_provision(clean(en)), _provision(french(fr))))
    return found


def _provision(text: str) -> str:
    """Without the list that it is an item of."""
    return (
        re.sub(r"[\s;,]+(?:(?:and|or|et|ou)\s*)?$", "", text) if re.search(r"[;,]\s*(and|or|et|ou)?$", text) else text
    )


def docs(folder: Path) -> list[Pair]:
    """Without markup; what has some left, or substitutions, is left out, and so is who contributed what."""
    found = []
    for _, *sides in rows(folder / "python_docs_en_fr" / "python_docs.tsv.gz"):
        en, fr = map(without_markup, sides)
        if not re.search(r"\|\w+\||[`{\\]|::|Contributed by", en + " " + fr):
            found.append((clean(en), french(fr)))
    return found


def novels(folder: Path) -> list[Pair]:
    found = []
    for _, en, fr in rows(folder / "transread_novels_en_fr" / "novels.tsv.gz"):
        if not en.startswith("CHAPTER"):
            found.append((spoken(joined(en, "en")), french(spoken(joined(fr, "fr")))))
    return found


def english(folder: Path) -> Iterator[str]:
    for _, text in rows(folder / "qamr" / "wiki-sentences.tsv.gz"):
        yield joined(text, "en")


def tested_on(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Name, English and French of the sets that others made and that we test on."""
    for stem in sorted(p.name.removesuffix(".en.gz") for p in (folder / "wmt_news_eng_fra").glob("*.en.gz")):
        yield stem, *(_lines(folder / "wmt_news_eng_fra" / f"{stem}.{side}.gz") for side in ("en", "fr"))
    for stem in ("val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"):
        yield f"multi30k {stem}", *(_lines(folder / "multi30k" / f"{stem}.{side}.gz") for side in ("en", "fr"))
    pairs = [line.split("|||") for line in _lines(folder / "hansards_word_alignment" / "enfr.src-tgt")]
    yield "hansards", [joined(en, "en") for en, _ in pairs], [joined(fr, "fr") for _, fr in pairs]


def _lines(path: Path) -> list[str]:
    return ["\t".join(cells) for cells in rows(path)]


# --- splitting and filtering ---


def split(pairs: Iterable[Pair], sizes: tuple[int, ...], seed: int = 0) -> list[list[Pair]]:
    """Parts of so many English sentences each, and the rest last.

    Pairs whose English differs in case and punctuation alone stay together. Which part they are in depends on the
    sentence and the seed, not on the order of the file.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(key(pair[0]), []).append(pair)
    order = sorted(groups, key=lambda k: hashlib.blake2b(f"{seed} {k}".encode(), digest_size=8).digest())
    parts, start = [], 0
    for size in sizes:
        parts.append([pair for k in order[start : start + size] for pair in groups[k]])
        start += size
    return [*parts, [pair for k in order[start:] for pair in groups[k]]]


def kept(pairs: Iterable[Pair], guards: tuple[Guard, Guard], why: Counter[str], *, repeats: int = 0) -> list[Pair]:
    """Pairs without fault, each once, that neither guard knows; at most ``repeats`` of one mould, if given."""
    found, seen, moulds = [], set(), Counter[str]()
    for en, fr in pairs:
        reason = fault(en, fr)
        if reason is None and (en, fr) in seen:
            reason = "repeated"
        if reason is None and repeats:
            mould = template(en)
            moulds[mould] += 1
            reason = "of one mould" if moulds[mould] > repeats else None
        if reason is None:
            reason = next((f"tested on: {r}" for g, t in zip(guards, (en, fr), strict=True) if (r := g.why(t))), None)
        why[reason or "kept"] += 1
        if reason is None:
            seen.add((en, fr))
            found.append((en, fr))
    return found


# --- writing ---


def write(path: Path, lines: Iterable[str]) -> int:
    """Gzipped, the same bytes for the same lines, all of it or nothing; returns their number."""
    lines = list(lines)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write("".join(line + "\n" for line in lines).encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(packed.getvalue())
    os.replace(part, path)
    return len(lines)


def prepare(
    folder: Path,
    out: Path,
    *,
    kinds: tuple[str, ...],
    held_out: tuple[int, int],
    french_may_repeat: bool,
    free_software: Path | None = None,
    say: Callable,
) -> dict[str, dict[str, int]]:
    """All of it; returns, for each set, how many pairs were kept and why others were not."""
    counts: dict[str, Counter[str]] = {}
    guards = Guard(), Guard()
    for _, en, fr in tested_on(folder):
        guards[0].add(en)
        guards[1].add(fr)
    say(f"{len(guards[0]):,} English and {len(guards[1]):,} French sentences are tested on elsewhere")

    counts["tatoeba"] = Counter()
    valid, test, rest = split(kept(tatoeba(folder), (Guard(), Guard()), counts["tatoeba"]), held_out)
    counts["tatoeba"]["held out"] = counts["tatoeba"].pop("kept", 0) - len(rest)
    law_valid, law_test = (kept(laws(folder, part, kinds), guards, Counter()) for part in ("valid", "test"))
    for part in (valid, test):
        guards[0].add(en for en, _ in part)
        if not french_may_repeat:
            guards[1].add(fr for _, fr in part)
    for part in (law_valid, law_test):  # whole sentences alone: laws quote each other
        guards[0].add((en for en, _ in part), runs=False)
        guards[1].add((fr for _, fr in part), runs=False)

    sources: dict[str, Iterable[Pair]] = {
        "tatoeba": rest,
        "laws": laws(folder, "train", kinds),
        "docs": docs(folder),
        "novels": novels(folder),
    }
    if free_software:
        sources |= {"help": packages.help_pages(free_software), "names": packages.names(free_software)}
    seen: set[str] = set()
    for name, pairs in sources.items():
        counts.setdefault(name, Counter())
        good = kept(pairs, guards, counts[name], repeats=REPEATS if name == "laws" else 0)
        write(out / f"{name}.tsv.gz", ("\t".join(pair) for pair in good))
        seen.update(key(en) for en, _ in good)
        say(f"{name}: {dict(counts[name].most_common())}")
        if name == "tatoeba":
            for made, make in MADE.items():
                counts[made] = Counter(kept=write(out / f"{made}.tsv.gz", ("\t".join(pair) for pair in make(good))))
                say(f"{made}: {dict(counts[made])}")
    counts["mono"] = Counter()
    alone = []
    for text in english(folder):
        reason = _alone(text, guards[0], seen)
        counts["mono"][reason or "kept"] += 1
        if reason is None:
            seen.add(key(text))
            alone.append(text)
    write(out / "mono.en.gz", alone)
    say(f"mono: {dict(counts['mono'].most_common())}")

    one_each = list({key(en): (en, fr) for en, fr in reversed(valid)}.values())
    counts["held out"] = Counter(
        {
            "valid": write(out / "valid.tsv.gz", ("\t".join(p) for p in [*one_each, *law_valid[: len(one_each) // 4]])),
            "test.tatoeba": write(out / "test.tatoeba.tsv.gz", ("\t".join(p) for p in test)),
            "test.tatoeba, English sentences": len({key(en) for en, _ in test}),
            "test.laws": write(out / "test.laws.tsv.gz", ("\t".join(p) for p in law_test)),
        }
    )
    plain = {name: dict(count.most_common()) for name, count in counts.items()}
    (out / "counts.json").write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "ATTRIBUTION.md").write_text(attribution(plain), encoding="utf-8")
    return plain


def _alone(text: str, guard: Guard, seen: set[str]) -> str | None:
    odd = re.search(r"[\\$_{}]|https?:|www\.", text) or text.count('"') % 2
    if odd or not 4 <= len(text.split()) <= 60 or not re.search(r"^[\"(]?[A-Z0-9].*[.!?][\")]?$", text):
        return "hardly a sentence"
    if key(text) in seen:
        return "repeated"
    reason = guard.why(text)
    return f"tested on: {reason}" if reason else None


def attribution(counts: dict[str, dict[str, int]], names: Iterable[str] = tuple(ATTRIBUTION)) -> str:
    """Whom to name for these sets."""
    used = [name for name in ATTRIBUTION if name in names and name in counts]
    lines = [f"- {ATTRIBUTION[name]} {counts[name].get('kept', 0):,} lines." for name in used]
    return "# Data of en-fr-small\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/en-fr-small/data"))
    parser.add_argument("--kinds", default="text,head", help="of the laws: text, head, note, def")
    parser.add_argument("--held-out", type=int, nargs=2, default=(1000, 2000), metavar=("VALID", "TEST"))
    parser.add_argument(
        "--french-may-repeat", action="store_true", help="split Tatoeba by English alone, as others do: a little easier"
    )
    parser.add_argument("--packages", type=Path, help="a folder with LibreOffice's help and Unicode's names in it")
    options = parser.parse_args()
    prepare(
        options.corpora,
        options.out,
        kinds=tuple(options.kinds.split(",")),
        held_out=tuple(options.held_out),
        french_may_repeat=options.french_may_repeat,
        free_software=options.packages,
        say=lambda message: print(message, flush=True),
    )
    files = sorted(options.out.glob("*.gz"))
    for path in files:
        print(f"{path.stat().st_size / 2**20:6.2f} MiB  {path}")
    print(f"{sum(path.stat().st_size for path in files) / 2**20:6.2f} MiB in all")


if __name__ == "__main__":
    main()

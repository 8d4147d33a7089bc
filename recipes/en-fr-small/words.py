"""The words that en-fr-small may write: those of a French dictionary, and those of the French that it was trained on.

    apt-get download hunspell-fr-comprehensive && dpkg -x hunspell-fr-comprehensive*.deb PACKAGES
    python recipes/en-fr-small/words.py --packages PACKAGES --to regard/bundled/en-fr-small

The dictionary is that of the Dicollecte project (Mozilla Public License 2.0), by which LibreOffice and Firefox check
spelling: stems with flags, and for each flag the endings that stems may take. A word of the training data has to be
there twice, or in the dictionary: once may be a slip. Words that a translation has from its source need not be here
(`regard.text.lexicon`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from distill import GOLD
from prepare import rows

from regard.text.lexicon import FILE, Lexicon, words_of

DICTIONARY = "usr/share/hunspell/fr"
NEEDS_ENDING, FORBIDDEN = "()", "{}"
SETS = (*GOLD, "names")  # of the data, all that people wrote


class Ending(NamedTuple):
    """What a flag makes of a stem that fits: the end that goes, and what comes; flags of the result."""

    gone: str
    come: str
    flags: tuple[str, ...]
    fits: re.Pattern[str]


def flags_of(text: str) -> tuple[str, ...]:
    """
    >>> flags_of("S.()")
    ('S.', '()')
    """
    return tuple(text[k : k + 2] for k in range(0, len(text), 2))


def endings(lines: Iterable[str]) -> dict[str, list[Ending]]:
    """By flag; prefixes are left out, for those of French end in an apostrophe and are words of their own.

    >>> [ending] = endings(["SFX a0 Y 1", "SFX a0 er ons/n' [^cg]er po:ind"])["a0"]
    >>> ending.gone, ending.come, ending.flags, bool(ending.fits.search("manger")), bool(ending.fits.search("aimer"))
    ('er', 'ons', ("n'",), False, True)
    """
    found: dict[str, list[Ending]] = {}
    for line in lines:
        kind, *cells = line.split() or [""]
        if kind == "SFX" and len(cells) >= 4:
            flag, gone, come, fits = cells[:4]
            come, _, more = come.partition("/")
            ending = Ending(gone.replace("0", ""), come.replace("0", ""), flags_of(more), re.compile(f"{fits}$"))
            found.setdefault(flag, []).append(ending)
    return found


def forms(word: str, flags: Iterable[str], known: dict[str, list[Ending]]) -> Iterator[str]:
    """A word of the dictionary in all its forms.

    >>> known = endings(["SFX S. Y 2", "SFX S. 0 s [^s]", "SFX S. 0 0 ."])
    >>> sorted(forms("chat", ("S.", "()"), known))
    ['chat', 'chats']
    """
    flags = tuple(flags)
    if FORBIDDEN in flags:
        return
    if NEEDS_ENDING not in flags:
        yield word
    for flag in flags:
        for ending in known.get(flag, ()):
            if ending.fits.search(word) and word.endswith(ending.gone):
                yield from forms(word[: len(word) - len(ending.gone)] + ending.come, ending.flags, known)


def dictionary(stem: Path) -> Iterator[str]:
    """All words of STEM.dic, by the endings of STEM.aff."""
    known = endings(stem.with_suffix(".aff").read_text(encoding="utf-8").splitlines())
    for line in stem.with_suffix(".dic").read_text(encoding="utf-8").splitlines()[1:]:
        word, _, flags = re.split(r"\s", line, maxsplit=1)[0].partition("/")
        yield from forms(word, flags_of(flags), known)


def trained_on(data: Path, times: int = 2) -> set[str]:
    """The words that stand in the French of the training data, in so many places at least."""
    counts: Counter[str] = Counter()
    for name in SETS:
        path = data / f"{name}.tsv.gz"
        if not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file; prepare.py makes it")
        for row in rows(path):
            counts.update(words_of(row[1]))
    return {word for word, count in counts.items() if count >= times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="where the package is unpacked")
    parser.add_argument("--data", type=Path, default=Path("out/en-fr-small/data"))
    parser.add_argument("--to", type=Path, required=True, help="a model folder")
    options = parser.parse_args()
    listed, heard = Lexicon.of(dictionary(options.packages / DICTIONARY)), trained_on(options.data)
    lexicon = Lexicon.of([*listed, *heard])
    lexicon.save(options.to / FILE)
    size = (options.to / FILE).stat().st_size / 2**20
    print(f"{len(listed):,} words of the dictionary, {len(lexicon) - len(listed):,} others that were trained on")
    print(f"{size:.2f} MiB in {options.to / FILE}")


if __name__ == "__main__":
    main()

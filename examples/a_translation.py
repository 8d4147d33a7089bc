"""English to French with the model that comes with the package, and which word made which.

Run it: python examples/a_translation.py ["Your own sentence." ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from show import heading, pyplot

import regard
from regard.align import links, picture
from regard.explorer.export import translation

SENTENCES = (
    "Good morning! How are you?",
    "Where is the nearest train station?",
    "My sister has lived in Paris for three years.",
    "I would like a cup of coffee, please.",
    "It is raining, and I forgot my umbrella.",
    "The train leaves at 8:30 tomorrow morning.",
)
LOOKED_AT = "The animal did not cross the street because it was too tired."
FOLDER = Path("out")


def show(sentences: Sequence[str] = SENTENCES, looked_at: str = LOOKED_AT) -> None:
    """Translates, and draws the word alignment of a sentence: here, as a picture and as a page."""
    start = time.perf_counter()
    translator = regard.load("en-fr-small", device="cpu")
    loaded, start = time.perf_counter() - start, time.perf_counter()
    written = translator.translate(sentences)
    heading('Translate: regard.load("en-fr-small").translate(...)')
    for source, target in zip(sentences, written, strict=True):
        print(f"  {source}\n    {target}")
    spent = time.perf_counter() - start
    size = sum(p.numel() for p in translator.model.parameters()) / 1e6
    print(f"\n{size:.0f} million parameters, read in {loaded:.1f} s; {len(sentences)} texts in {spent:.1f} s.")
    show_alignment(translator, looked_at)


def show_alignment(translator: regard.Translator, text: str) -> None:
    (found,) = translator.outputs([text], attention=True)
    weights = translator.word_weights(found.translations[0])
    words = text.split(), found.text.split()
    heading("Which word made which: regard translate --show")
    print(f"  {text}\n  {found.text}\n")
    print(picture(weights, *words, marked=links(weights)))
    FOLDER.mkdir(exist_ok=True)
    page = FOLDER / "translation.html"
    translation(page, translator, text, found)
    if pyplot() is not None:
        from regard.plot import alignment, save

        drawn = FOLDER / "translation.png"
        save(alignment(weights, *words, heading="cross-attention of en-fr-small"), drawn)
        print(f"\nThe same as a picture: {drawn.resolve()}")
    print(f"and as a page, with every head behind it: {page.resolve()}")


if __name__ == "__main__":
    given = sys.argv[1:]
    show(given or SENTENCES, given[-1] if given else LOOKED_AT)

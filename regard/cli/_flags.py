"""The flags that several commands have, and what they make of their values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.cli._parser import Flag
from regard.common.start import quick_start

if TYPE_CHECKING:
    from regard.tasks.translation.translator import Translator

DEFAULT_MODEL = "en-fr-small"  # the model that is used where none is named

Model = Annotated[str, Flag("A model folder, or the name of a bundled model.", "-m")]
Device = Annotated[str | None, Flag("cpu or cuda; by default the GPU if there is one.")]
Int8 = Annotated[bool, Flag("Compute in 8 bits, on a CPU: faster, rarely changes a word.")]
EngineName = Annotated[str, Flag("Engine that runs the model: torch or ctranslate2.")]
OwnBeam = Annotated[
    int | None,
    Flag("Beam size, usually 5; 1 is greedy.", "-b", least=1, hidden=True),
]
BatchTokens = Annotated[int, Flag("Source subwords per batch, padding included.", least=1)]
OutFile = Annotated[Path | None, Flag("Output file, written whole or not at all.", "-o")]
Strict = Annotated[bool, Flag("Stop at the first line that cannot be used.")]
Layer = Annotated[str | None, Flag("Decoder layer whose attention is read, from 0, or mean: the average of all.")]
Kind = Annotated[
    str | None,
    Flag("Attention that --html shows first: cross (source and target), self (source) or decoder."),
]
Head = Annotated[str | None, Flag("Head of that layer, from 0, or mean: the average of all.")]


def load_translator(name: str, device: str | None, int8: bool, engine: str) -> Translator:
    """The translator of --model, --device, --int8 and --engine."""
    with quick_start():
        from regard.tasks.translation.translator import load

        return load(name, device=device, int8=int8, engine=engine)


def parse_number(text: str | None) -> int | str | None:
    """The number of a layer or a head where it is one; a word is the translator's to judge."""
    return int(text) if text is not None and text.isdecimal() else text


def can_draw(path: Path | None) -> None:
    """Said now, and not when the work is done: matplotlib is missing, or nothing can be written by that name."""
    if path is None:
        return
    from regard.plot._canvas import need_matplotlib, suffix_of

    need_matplotlib()
    suffix_of(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent} to write the figure to")

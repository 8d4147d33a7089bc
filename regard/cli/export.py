"""``regard export``: a model for another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from regard.cli._flags import DEFAULT_MODEL, Model
from regard.cli._parser import Flag
from regard.common.start import quick_start


def export(
    *,
    model: Model = DEFAULT_MODEL,
    out: Annotated[Path, Flag("A new folder, written whole or not at all.", "-o")],
    format: Annotated[str, Flag("For whom: ctranslate2.", "-f")] = "ctranslate2",
    positions: Annotated[int | None, Flag("Maximum subwords of a sentence, for sinusoidal positions.", least=1)] = None,
) -> None:
    """Write a model for another program, with the same weights.

        regard export --format ctranslate2 --model model/ --out model.ct2/
        regard translate --engine ctranslate2 --model model.ct2/ "A dog runs."

    CTranslate2 runs Transformers with dot-product scores. The exported folder includes the
    model's subwords, and shows the attention of one layer: that of the align table in config.toml, or the middle one.
    """
    if format != "ctranslate2":
        raise ValueError(f"--format: expected ctranslate2, got {format!r}")
    with quick_start():
        from regard.files.bundled import find
        from regard.interop import ctranslate2
    ctranslate2.export(find(model), out, positions=positions)

"""The options of a search for a summary. PyTorch is not imported: commands show the defaults in their help."""

from __future__ import annotations

from dataclasses import dataclass

from regard.decode.search import Search


@dataclass(frozen=True, kw_only=True)
class SummarySearch(Search):
    """Search options for summaries; by the sum of log p alone, summaries are too short.

    The defaults were the best on the validation data of SAMSum and SciTLDR.
    """

    length_penalty: float = 2.0
    max_length: int | None = 200
    no_repeat: int = 3

"""From files of text pairs to padded batches of subwords.

Readers (two files, TSV, JSON lines) → ``Corpus`` (compact arrays) → ``batches`` (one epoch; the order depends on seed
and epoch alone).
"""

from regard.data.batches import Batch, Batches, batches, pad, prefetch
from regard.data.corpus import Corpus, Limits
from regard.data.readers import Files, JsonLines, Pairs, Reader, Report, Tsv, read, texts

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "Files",
    "JsonLines",
    "Limits",
    "Pairs",
    "Reader",
    "Report",
    "Tsv",
    "batches",
    "pad",
    "prefetch",
    "read",
    "texts",
]

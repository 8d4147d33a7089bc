"""How much the service takes on: sizes, times and numbers at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Every limit has one place. Times are in seconds."""

    characters: int = 2_000  # of a text
    words: int = 300  # of a text; word weights are as many times those of the translation
    document: int = 20_000  # characters of a document or a context
    document_words: int = 3_000  # of such a text; word weights are as many times those of the summary or the question
    question: int = 500  # characters of a question
    length: int = 500  # requested words of a summary
    candidates: int = 20  # most likely answers returned
    bytes: int = 65_536  # of a request's body; a character takes up to twelve in JSON
    document_bytes: int = 262_144  # of one with a document in it
    beam: int = 8
    side: int = 512  # rows and columns of a tile
    samples: int = 1_000_000  # rows of each cell of a tile that are computed

    queue: int = 128  # requests that wait for the model; one more is answered with 429
    batch: int = 32  # requests translated together
    batch_characters: int = 4_000  # characters translated together
    gather: float = 0.008  # how long the first of a batch waits for others
    views: int = 256  # requests for rows, tiles and steps that wait

    answer: float = 30.0  # until a request has its answer
    header: float = 10.0  # until a request's headers are there
    body: float = 10.0  # until its body is there
    idle: float = 15.0  # how long a connection without a request is kept
    stop: float = 15.0  # how long requests may still run when the service is stopped
    stuck: float = 60.0  # until a thread that works on one batch counts as stuck: its requests have timed out
    connections: int = 900

    traces: int = 64  # sentences kept for rows, tiles and steps
    trace_bytes: int = 512 * 2**20  # memory that they may take together
    tiles: int = 4096  # tiles kept
    tile_bytes: int = 64 * 2**20  # memory that they may take together

"""Modules: multi-head attention with any score, a decoding cache, and the layers around them."""

from regard.nn.attention import Cache, KeyValues, MultiHeadAttention
from regard.nn.layers import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    LearnedPositions,
    SinusoidalPositions,
)

__all__ = [
    "Cache",
    "DecoderLayer",
    "Embedding",
    "EncoderLayer",
    "FeedForward",
    "KeyValues",
    "LearnedPositions",
    "MultiHeadAttention",
    "SinusoidalPositions",
]

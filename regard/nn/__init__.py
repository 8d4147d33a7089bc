"""Modules: multi-head attention with any score, a decoding cache, and the layers around them."""

from regard.nn.attention import Cache, KeyValues, MultiHeadAttention
from regard.nn.int8 import Int8Linear, to_int8
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
    "Int8Linear",
    "KeyValues",
    "LearnedPositions",
    "MultiHeadAttention",
    "SinusoidalPositions",
    "to_int8",
]

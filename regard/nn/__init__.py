"""Modules: multi-head attention with any score, a cache for decoding, layers, and a language model."""

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
from regard.nn.lm import CausalLM

__all__ = [
    "Cache",
    "CausalLM",
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

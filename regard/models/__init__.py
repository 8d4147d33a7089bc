"""Sequence-to-sequence models with any score in their attentions."""

from regard.models._memory import Memory
from regard.models.pointer import PointerConfig, PointerTransformer
from regard.models.rnn import RNNConfig, RNNSeq2Seq
from regard.models.transformer import Transformer, TransformerConfig

__all__ = [
    "Memory",
    "PointerConfig",
    "PointerTransformer",
    "RNNConfig",
    "RNNSeq2Seq",
    "Transformer",
    "TransformerConfig",
]

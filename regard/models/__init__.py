"""Models whose attentions take any score: sequence-to-sequence models, and a reader that marks an answer."""

from regard.models._memory import Memory
from regard.models.pointer import PointerConfig, PointerTransformer
from regard.models.reader import Reader, ReaderConfig
from regard.models.rnn import RNNConfig, RNNSeq2Seq
from regard.models.transformer import Transformer, TransformerConfig

__all__ = [
    "Memory",
    "PointerConfig",
    "PointerTransformer",
    "RNNConfig",
    "RNNSeq2Seq",
    "Reader",
    "ReaderConfig",
    "Transformer",
    "TransformerConfig",
]

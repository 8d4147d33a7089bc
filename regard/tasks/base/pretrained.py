"""Encoders that were trained before: where they are found, and how a model takes one over."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from regard.models import Reader, Transformer, TransformerConfig
from regard.models.folder import open as open_folder
from regard.tasks.base.settings import OF_SUBWORDS
from regard.text.wordpiece import Cutter
from regard.train.settings import Values

# What is no encoder's business: what its subwords decide, and what writes.
NOT_ITS = OF_SUBWORDS | {"cross_score", "decoder_score", "decoder_layers", "decoder_norm", "output_bias"}


def load_encoder(name: str) -> tuple[Transformer, Cutter]:
    """Encoder and subwords: of a model folder of ours, or of a BERT (see :func:`regard.interop.bert.find`)."""
    if (Path(name) / "config.toml").exists():
        loaded = open_folder(name)
        model = loaded.model.encoder if isinstance(loaded.model, Reader) else loaded.model
        if not isinstance(model, Transformer) or not model.encoder:
            raise ValueError(f"{name}: expected a model with a Transformer's encoder, got a {type(model).__name__}")
        return alone(model), loaded.subwords
    from regard.interop import bert

    return bert.load(name)


def encoder_table(encoder: Transformer) -> Values:
    """What of an encoder's configuration a model that takes it over has, too."""
    known = {field.name for field in fields(TransformerConfig)} - NOT_ITS
    return {key: value for key, value in encoder.config.to_table().items() if key in known}


def alone(model: Transformer) -> Transformer:
    """A model's encoder as a model."""
    if not model.decoder:
        return model
    ids = {name: getattr(model.config, name) for name in ("vocab_size", "pad_id", "bos_id", "eos_id")}
    encoder = Transformer(TransformerConfig(**encoder_table(model), **ids, decoder_layers=0))
    state = model.state_dict()
    encoder.load_state_dict({name: state.get(f"source_{name}", state[name]) for name in encoder.state_dict()})
    return encoder.eval()


def take_over(model: Transformer, encoder: Transformer) -> None:
    """Puts the encoder's weights into a model that also writes; learned positions are those of both its sides."""
    state = encoder.state_dict()
    if model.source_positions is not None:
        state["source_positions.weight"] = state["positions.weight"]
    own = model.state_dict()
    if odd := [name for name, t in state.items() if name not in own or own[name].shape != t.shape]:
        raise ValueError(f"the encoder does not fit into the model, {', '.join(odd[:3])} first: its sizes are its own")
    model.load_state_dict(own | state)

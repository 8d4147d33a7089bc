"""A tiny BERT with random weights and WordPiece that knows the words of ``chats``, as an encoder of before."""

import chats
import torch

from regard.models import Transformer, TransformerConfig
from regard.models.folder import save
from regard.text.wordpiece import WordPiece

WORDS = ["hi", "what", "do", "you", "have", "some", "say", "to", "brings", *chats.THINGS]
MARKS = [*"!?:.,'"]
NAMES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *MARKS, *WORDS]
NAMES += [*chats.SYLLABLES, *(f"##{s}" for s in chats.SYLLABLES)]
SIZE = {"dim": 48, "ffn_dim": 96, "heads": 2, "encoder_layers": 1, "dropout": 0.1}


def words():
    return WordPiece.of_vocabulary(NAMES)


def encoder(positions=64, seed=0, **changes):
    torch.manual_seed(seed)
    known = words()
    shape = {"norm": "post", "activation": "gelu", "positions": "learned", "max_length": positions, "segments": 2}
    ids = {name: getattr(known, name) for name in ("pad_id", "bos_id", "eos_id")}
    config = TransformerConfig(
        vocab_size=len(known), **ids, **SIZE, **shape, **changes, embedding_norm=True, decoder_layers=0
    )
    made = Transformer(config)
    with torch.no_grad():
        made.embedding.weight.mul_(config.dim**-0.5)  # as short as those that come from BERT
    return made.eval()


def folder(path, **options):
    """A model folder of it."""
    save(path, encoder(**options), words(), settings={"task": "encoder"})
    return path


def settings(path, bert, **training):
    """Of a model that learns chats in seconds from the BERT in a folder."""
    import dataclasses

    given = chats.settings(path)
    model = {"pretrained": str(bert), "decoder_layers": 1, "copy_dim": 24}
    own = {**given.training, "lr": 1e-2, "pretrained_lr": 4e-3, **training}
    return dataclasses.replace(given, subwords={}, model=model, training=own)


def train(path, bert, *, out="model", report=None, **training):
    """Leaves a model in ``path / out``; returns what came of it."""
    from regard.tasks.summarization.train import train
    from regard.train import Silent

    chats.write(path / "train.jsonl", chats.chats(3000, 0))
    chats.write(path / "valid.jsonl", chats.chats(60, 1))
    return train(settings(path, bert, **training), path / out, report=report or Silent())

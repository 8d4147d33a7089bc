"""A toy language pair with gold word links, and a small model of it in a folder, trained in seconds."""

import random
from itertools import chain

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from regard.models import Transformer, TransformerConfig, folder
from regard.text import BOS, EOS, PAD, Subwords

WORDS = {
    "the": "le",
    "a": "un",
    "big": "grand",
    "small": "petit",
    "red": "rouge",
    "dog": "chien",
    "cat": "chat",
    "bird": "oiseau",
    "sees": "voit",
    "eats": "mange",
    "finds": "trouve",
}


def pair(draw):
    """A source, its translation (an adjective goes behind its noun), and Pharaoh links."""
    source, order = [], []

    def add(*words, places=None):
        at = len(source)
        source.extend(words)
        order.extend(at + i for i in (places or range(len(words))))

    def phrase():
        determiner, noun = draw.choice(["the", "a"]), draw.choice(["dog", "cat", "bird"])
        if draw.random() < 0.5:
            add(determiner, draw.choice(["big", "small", "red"]), noun, places=(0, 2, 1))
        else:
            add(determiner, noun)

    phrase()
    add(draw.choice(["sees", "eats", "finds"]))
    phrase()
    add(".")
    target = [WORDS.get(source[i], source[i]) for i in order]
    return " ".join(source), " ".join(target), " ".join(sorted(f"{s}-{t}" for t, s in enumerate(order)))


def pairs(count, seed):
    draw = random.Random(seed)
    return [pair(draw) for _ in range(count)]


def train(path, *, reverse=False, updates=150, max_length=None):
    """Leaves a model folder that knows the toy language, or its reverse."""
    data = [(t, s) if reverse else (s, t) for s, t, _ in pairs(2000, seed=0)]
    subwords = Subwords.learn([chain.from_iterable(data)], vocab_size=330)
    rows = [tuple(encoded.ids for encoded in subwords.encode_batch(two)) for two in data]
    torch.manual_seed(1)
    positions = {"positions": "learned", "max_length": max_length} if max_length else {}
    config = TransformerConfig(
        vocab_size=len(subwords),
        dim=64,
        ffn_dim=128,
        heads=8,
        encoder_layers=1,
        decoder_layers=2,
        dropout=0.1,
        **positions,
    )
    model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    draw = random.Random(0)
    for update in range(1, updates + 1):
        batch = draw.sample(rows, 64)
        source, target_in, target_out = (
            pad_sequence([torch.tensor(row) for row in side], True, PAD)
            for side in (
                [[*s, EOS] for s, _ in batch],
                [[BOS, *t] for _, t in batch],
                [[*t, EOS] for _, t in batch],
            )
        )
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, update / 40, 2 * (1 - (update - 1) / updates))
        loss = F.cross_entropy(model(source, target_in).flatten(0, 1), target_out.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder.save(path, model, subwords, settings={"align": {"layer": 1, "shift": False}})

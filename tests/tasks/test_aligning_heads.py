"""Where alignments are read: found when training ends, whatever the lines are like; then nothing may go wrong."""

import random

import pytest
import torch
from largest import Largest

from regard.data import Corpus, Limits, Pairs
from regard.models import RNNConfig, RNNSeq2Seq, Transformer, TransformerConfig
from regard.tasks.translation.heads import best_head
from regard.text import Subwords

WORDS = {"the": "le", "a": "un", "cat": "chat", "dog": "chien", "sees": "voit", "big": "grand"}


def corpus(more=(), ends=""):
    """Sentences of one to eight words, and ``more``."""
    random.seed(0)
    lines = [random.choices(list(WORDS), k=random.randint(1, 8)) for _ in range(1200)]
    pairs = [(" ".join(line) + ends, " ".join(WORDS[word] for word in line) + ends) for line in lines] + list(more)
    return Corpus.build([Pairs(pairs)], Subwords.learn([[text for pair in pairs for text in pair]], 330))


def transformer(subwords, **options):
    torch.manual_seed(0)
    sizes = {"dim": 16, "heads": 2, "ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 2}
    return Transformer(TransformerConfig(vocab_size=len(subwords), **sizes, **options)).eval()


def test_a_word_may_have_no_subword_of_its_own():
    """Words end at U+001C, subwords do not."""
    found = corpus(ends=" !\x1c?")
    encoded = found.subwords.encode("the !\x1c?")
    assert max(encoded.words) + 1 < 3  # "the", "!" and "?"
    assert best_head(transformer(found.subwords), found).table.keys() >= {"layer", "shift"}


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_lines_that_the_model_cannot_read_are_not_looked_at(positions):
    found = corpus([("the cat sees a dog " * 15, "le chat voit un chien " * 15)] * 300)
    limit = {"max_length": 40} if positions == "learned" else {}
    assert best_head(transformer(found.subwords, positions=positions, **limit), found).agreement > 0


@pytest.mark.slow
def test_lines_of_any_length_may_be_in_the_corpus():
    found = corpus()
    pairs = [found.text(row) for row in range(len(found))] + [("the " * 33_000, "le " * 33_000)]
    long = Corpus.build([Pairs(pairs)], found.subwords, limits=Limits(max_tokens=None))
    model = transformer(found.subwords)
    with Largest() as largest:
        assert best_head(model, long) == best_head(model, found)
    assert largest.elements < 1_000_000


def test_recurrent_models_have_one_layer():
    found = corpus()
    model = RNNSeq2Seq(RNNConfig(vocab_size=len(found.subwords), dim=16, hidden_dim=16)).eval()
    assert best_head(model, found).table["layer"] == 0


def test_of_few_pairs_nothing_is_told():
    found = corpus()
    few = Corpus.build([Pairs([found.text(row) for row in range(999)])], found.subwords)
    assert best_head(transformer(found.subwords), few) is None

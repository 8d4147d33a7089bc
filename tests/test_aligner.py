"""The statistical aligner against a plain EM in float64, on hand-made texts, and on the grammar's gold links."""

import math
import random

import numpy as np
import pytest
import torch

import regard.align as words
from regard import aligner
from regard.aligner import align, align_words, best, learn, links_of, words_of
from regard.bpe import Ragged
from regard.data import Corpus, Pairs
from regard.grammar import pairs
from regard.text import Subwords


def rows(*lines):
    return Ragged.of(lines, np.int64)


def drawn(count, seed, vocabulary=7, longest=6):
    draw = random.Random(seed)
    return [
        tuple([draw.randrange(1, vocabulary) for _ in range(draw.randint(1, longest))] for _ in range(2))
        for _ in range(count)
    ]


def plain_em(lines, iterations, tension):
    """The formulas of the module's docstring, word by word; λ stays as it is."""
    t, none, alpha = {}, 0.08, 0.01

    def joint(e, f, j):
        n, m = len(e), len(f)
        near = [math.exp(-tension * abs(i / n - (j + 1) / m)) for i in range(1, n + 1)]
        prior = [none, *((1 - none) * x / sum(near) for x in near)]
        return [p * t.get((a, f[j]), 1.0) for p, a in zip(prior, [0, *e], strict=True)]

    for _ in range(iterations):
        counts = {}
        for e, f in lines:
            for j in range(len(f)):
                p = joint(e, f, j)
                for a, x in zip([0, *e], p, strict=True):
                    counts[a, f[j]] = counts.get((a, f[j]), 0.0) + x / sum(p)
        totals = {}
        for (a, _), c in counts.items():
            totals[a] = totals.get(a, 0.0) + c + alpha

        def psi(x):
            return torch.tensor(x, dtype=torch.float64).digamma().item()

        t = {(a, b): math.exp(psi(c + alpha) - psi(totals[a])) for (a, b), c in counts.items()}
    return t, [joint(e, f, j) for e, f in lines for j in range(len(f))]


@pytest.mark.parametrize("seed", range(3))
def test_it_is_plain_em(seed, monkeypatch):
    monkeypatch.setattr(aligner, "TENSIONS", (3.0, 3.0))
    monkeypatch.setattr(aligner, "TENSION", 3.0)
    monkeypatch.setitem(aligner.BLOCK, "cpu", 40)  # so that there are many blocks
    lines = drawn(40, seed)
    source, target = rows(*(e for e, _ in lines)), rows(*(f for _, f in lines))
    model = learn(source, target, 7, iterations=4)
    t, joint = plain_em(lines, 4, 3.0)
    assert model.keys.tolist() == sorted(a * 7 + b for a, b in t)
    wanted = torch.tensor([t[key // 7, key % 7] for key in model.keys.tolist()])
    torch.testing.assert_close(model.t, wanted, rtol=1e-4, atol=1e-7)
    found = best(model, source, target).tolist()  # words at the same distance may be equally good
    assert [p[i + 1] for p, i in zip(joint, found, strict=True)] == pytest.approx([max(p) for p in joint], rel=1e-4)


def test_the_tension_is_where_the_likelihood_is_largest():
    """Σ_j (−λ d_j − log Z_j) of words at given distances, over a grid of λ."""
    sample = [(torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64), 5), (torch.tensor([0.5, 1.0]).double(), 3)]
    apart = 0.17
    found = aligner._tension(sample, apart, 4.0)

    def likelihood(tension):
        z = sum(float((-tension * aligner._apart(at, n)).exp().sum(-1).log().sum()) for at, n in sample)
        return -tension * apart * 5 - z

    grid = [0.1 + 0.001 * k for k in range(5900)]
    assert found == pytest.approx(max(grid, key=likelihood), abs=2e-3)


def test_words_that_always_come_together_are_linked():
    texts = [("the cat", "le chat"), ("the dog", "le chien"), ("a cat", "un chat"), ("a dog sees", "un chien voit")]
    found = align_words((a.split(), b.split()) for a, b in texts * 3)
    assert found[:4] == [{(0, 0), (1, 1)}] * 3 + [{(0, 0), (1, 1), (2, 2)}]


def test_order_and_length_may_differ():
    nouns = {"cat": "chat", "dog": "chien", "bird": "oiseau"}
    kinds = {"red": "rouge", "black": "noir", "happy": "heureux"}
    texts = [(f"the {a} {b} is there", f"le {nouns[b]} {kinds[a]} est là") for a in kinds for b in nouns]
    texts += [(f"the {b} sings", f"le {nouns[b]} chante") for b in nouns]
    found = align_words((a.split(), b.split()) for a, b in texts)
    assert found == [{(0, 0), (1, 2), (2, 1), (3, 3), (4, 4)}] * 9 + [{(0, 0), (1, 1), (2, 2)}] * 3


def test_a_word_of_nothing_has_no_link():
    """« euh » comes with everything, in one language alone, and is of no word."""
    draw, texts = random.Random(0), []
    for _ in range(300):
        some = draw.sample("abcdefghij", 4)
        texts.append((some, [x * 2 for x in some] + ["euh"] * (draw.random() < 0.5)))
    found = align_words(texts, method="intersection")
    assert all(link == {(i, i) for i in range(4)} for link in found)


def test_it_aligns_the_grammar():
    """But for "do" and "does": they come with "ne" as often as "not" does, and no count can tell them apart."""
    some = [p for p in pairs(900, seed=3) if not {"do", "does"} & {*p.english.split()}]
    found = align_words([(p.english.split(), p.french.split()) for p in some])
    assert words.quality(found, [p.links for p in some]).aer < 0.03
    every = pairs(500, seed=4)
    found = align_words([(p.english.split(), p.french.split()) for p in every])
    assert words.quality(found, [p.links for p in every]).aer < 0.08


def test_it_is_the_same_each_time_and_for_any_size_of_block(monkeypatch):
    lines = drawn(60, 1, vocabulary=30)
    source, target = rows(*(e for e, _ in lines)), rows(*(f for _, f in lines))
    first = learn(source, target, 30)
    assert torch.equal(first.t, learn(source, target, 30).t)
    monkeypatch.setitem(aligner.BLOCK, "cpu", 50)
    torch.testing.assert_close(learn(source, target, 30).t, first.t, rtol=1e-4, atol=1e-7)


def test_too_many_pairs_are_sampled_and_all_are_aligned():
    some = [(p.english.split(), p.french.split()) for p in pairs(800, seed=2)]
    numbers = {w: i for i, w in enumerate(sorted({w for p in some for side in p for w in side}), 1)}
    source, target = (rows(*([numbers[w] for w in p[k]] for p in some)) for k in (0, 1))
    said = []
    model = learn(source, target, len(numbers) + 1, cells=10_000, say=said.append)
    assert len(said) == 5 and "bits a word" in said[-1]
    assert len(model.keys) < len(learn(source, target, len(numbers) + 1).keys)
    found = best(model, source, target)
    assert len(found) == len(target.values) and (found >= 0).mean() > 0.8
    assert len(links_of(align(source, target, len(numbers) + 1, cells=10_000))) == 800


def test_empty_lines_have_no_links():
    assert align_words([([], ["a"]), (["b"], []), (["b"], ["a"])]) == [frozenset(), frozenset(), {(0, 0)}]
    assert align_words([]) == []
    with pytest.raises(ValueError, match="as many sources as targets, got 2 and 1"):
        align(rows([1], [1]), rows([1]), 2)


def test_a_corpus_is_aligned_by_its_chunks():
    """Capitals, and the space before a word, make no other word of it."""
    subwords = Subwords.learn([["The cat the Cat (cat) le chat Le"] * 3], 300)
    corpus = Corpus.build([Pairs([("The cat", "le chat"), ("(cat) the", "Le CHAT")])], subwords)
    source, target, vocabulary = words_of(corpus)
    assert source.lists()[0] == [source.lists()[1][3], source.lists()[1][1]]
    assert target.lists()[0] == target.lists()[1]
    assert max(source.values.max(), target.values.max()) == vocabulary - 1

"""The statistical aligner against a plain EM in float64, on hand-made texts, and on the grammar's gold links."""

import math
import random

import numpy as np
import pytest
import torch

import regard.align as words
from regard.align import statistical
from regard.align.statistical import align, align_words, best, learn, links_of, words_of
from regard.common.ragged import Ragged
from regard.data import Corpus, Pairs
from regard.testing.grammar import pairs
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
    """The formulas of the module's docstring, cell by cell; λ stays as it is.

    t of (given, made), with 0 for none, in both directions, and the last posteriors of every word.
    """
    none, alpha, t = 0.08, 0.01, ({}, {})

    def psi(x):
        return torch.tensor(x, dtype=torch.float64).digamma().item()

    def posteriors(given, made, table):
        """Of each made word: [of none, of the first given word, …]."""
        rows, n, m = [], len(given), len(made)
        for j, word in enumerate(made, 1):
            near = [math.exp(-tension * abs(i / n - j / m)) for i in range(1, n + 1)]
            prior = [none, *((1 - none) * x / sum(near) for x in near)]
            row = [p * table.get((a, word), 1.0) for p, a in zip(prior, [0, *given], strict=True)]
            rows.append([x / sum(row) for x in row])
        return rows

    for turn in range(iterations):
        counts = ({}, {})
        for e, f in lines:
            x, y = posteriors(e, f, t[0]), posteriors(f, e, t[1])
            if turn:
                both = [[x[j][i + 1] * y[i][j + 1] for i in range(len(e))] for j in range(len(f))]
                x = [[1 - sum(row), *row] for row in both]
                y = [[1 - sum(column), *column] for column in zip(*both, strict=True)]
            for count, given, made, p in ((counts[0], e, f, x), (counts[1], f, e, y)):
                for j, word in enumerate(made):
                    for a, share in zip([0, *given], p[j], strict=True):
                        count[a, word] = count.get((a, word), 0.0) + share
        for table, count in zip(t, counts, strict=True):
            totals = {}
            for (a, _), c in count.items():
                totals[a] = totals.get(a, 0.0) + c + alpha
            table.update({(a, b): math.exp(psi(c + alpha) - psi(totals[a])) for (a, b), c in count.items()})
    last = [[row for e, f in lines for row in posteriors(*((e, f) if k == 0 else (f, e)), t[k])] for k in (0, 1)]
    return t, last


@pytest.mark.parametrize("seed", range(3))
def test_it_is_plain_em(seed, monkeypatch):
    monkeypatch.setattr(statistical, "TENSIONS", (3.0, 3.0))
    monkeypatch.setattr(statistical, "TENSION", 3.0)
    monkeypatch.setitem(statistical.BLOCK, "cpu", 40)  # so that there are many blocks
    lines = drawn(40, seed)
    source, target = rows(*(e for e, _ in lines)), rows(*(f for _, f in lines))
    model = learn(source, target, 7, iterations=4)
    t, last = plain_em(lines, 4, 3.0)
    assert model.keys.tolist() == sorted(a * 7 + b for a, b in t[0] if a)
    pairs_of = [(key // 7, key % 7) for key in model.keys.tolist()]
    wanted = [t[0][e, f] for e, f in pairs_of], [t[1][f, e] for e, f in pairs_of]
    for ours, theirs, none, table in zip(model.t, wanted, model.none, t, strict=True):
        torch.testing.assert_close(ours, torch.tensor(theirs), rtol=1e-4, atol=1e-7)
        alone = [table.get((0, word)) for word in range(7)]
        assert none[1:].tolist() == pytest.approx(alone[1:], rel=1e-4)
    for found, p in zip(best(model, source, target), last, strict=True):  # several may be equally good
        chosen = [row[i + 1] for row, i in zip(p, found.tolist(), strict=True)]
        assert chosen == pytest.approx([max(row) for row in p], rel=1e-3)


def test_the_tension_is_where_the_likelihood_is_largest():
    """Σ_j (−λ d_j − log Z_j) of words at given distances, over a grid of λ."""
    source, target = rows([1] * 5, [1] * 3, []), rows([1] * 4, [1] * 2, [1])
    distances = statistical._distances(source, target, np.arange(3))
    near = [[abs(i / n - j / m) for i in range(1, n + 1)] for n, m in ((5, 4), (3, 2)) for j in range(1, m + 1)]
    assert [[x for x in row if x < 9] for row in distances.tolist()] == [pytest.approx(row) for row in near]
    apart = 0.17
    found = statistical._tension(distances, apart, 4.0)

    def likelihood(tension):
        return -sum(tension * apart + math.log(sum(math.exp(-tension * x) for x in row)) for row in near)

    grid = [0.1 + 0.001 * k for k in range(5900)]
    assert 0.2 < found < 5.9 and found == pytest.approx(max(grid, key=likelihood), abs=2e-3)


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
    """« euh » comes with everything, in one language alone, and is of no word: at most one word is taken in."""
    draw, texts, gold = random.Random(0), [], []
    for _ in range(300):
        some = draw.sample("abcdefghij", 4)
        said = [x * 2 for x in some]
        if draw.random() < 0.5:
            said.insert(draw.randint(0, 4), "euh")
        texts.append((some, said))
        gold.append({(i, said.index(x * 2)) for i, x in enumerate(some)})
    found = align_words(texts, method="intersection")
    assert words.quality(found, gold).aer < 0.01
    linked = [(some[i], said[j]) for (some, said), links in zip(texts, found, strict=True) for i, j in links]
    assert len({word for word, to in linked if to == "euh"}) <= 1


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
    assert all(torch.equal(a, b) for a, b in zip(first.t, learn(source, target, 30).t, strict=True))
    monkeypatch.setitem(statistical.BLOCK, "cpu", 50)
    torch.testing.assert_close(learn(source, target, 30).t, first.t, rtol=1e-4, atol=1e-7)


def test_too_many_pairs_are_sampled_and_all_are_aligned():
    some = [(p.english.split(), p.french.split()) for p in pairs(800, seed=2)]
    numbers = {w: i for i, w in enumerate(sorted({w for p in some for side in p for w in side}), 1)}
    source, target = (rows(*([numbers[w] for w in p[k]] for p in some)) for k in (0, 1))
    said = []
    model = learn(source, target, len(numbers) + 1, cells=10_000, say=said.append)
    assert len(said) == 5 and "bits each" in said[-1]
    assert len(model.keys) < len(learn(source, target, len(numbers) + 1).keys)
    for found, side in zip(best(model, source, target), (target, source), strict=True):
        assert len(found) == len(side.values) and (found >= 0).mean() > 0.8
    assert len(links_of(align(source, target, len(numbers) + 1, cells=10_000))) == 800


def test_short_pairs_are_kept_before_long_ones():
    lengths = [2, 30] * 100
    source = target = rows(*([1] * n for n in lengths))
    for cells in (300, 5_000, 50_000):
        kept = [lengths[row] for row in statistical._sample(source, target, cells)]
        assert 0.9 * cells - 900 <= sum(n * n for n in kept) <= cells + 900
        assert kept.count(2) == 100 or kept.count(30) <= 1
    assert len(statistical._sample(source, target, 100 * 904)) == 200


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

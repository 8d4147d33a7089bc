"""The toy grammar, against rules of French that are written down here once more."""

from itertools import pairwise, product

import pytest

from regard.align import pharaoh, quality
from regard.evaluate import evaluate
from regard.testing.grammar import pairs

PAIRS = pairs(6000, seed=1)

MASCULINE = ["garçon", "enfant", "chat", "chien", "oiseau", "cheval", "arbre", "jardin"]
MASCULINE_PLURAL = ["garçons", "enfants", "chats", "chiens", "oiseaux", "chevaux", "arbres", "jardins"]
FEMININE = ["fille", "maison", "école", "voiture"]
FEMININE_PLURAL = [noun + "s" for noun in FEMININE]
NOUNS = {
    **dict.fromkeys(MASCULINE, "ms"),
    **dict.fromkeys(MASCULINE_PLURAL, "mp"),
    **dict.fromkeys(FEMININE, "fs"),
    **dict.fromkeys(FEMININE_PLURAL, "fp"),
}
ADJECTIVES = {
    "ms": "petit grand vieux vieil noir rouge heureux",
    "fs": "petite grande vieille noire rouge heureuse",
    "mp": "petits grands vieux noirs rouges heureux",
    "fp": "petites grandes vieilles noires rouges heureuses",
}
DETERMINERS = {
    "ms": "le l' un ce cet mon du au de d'",
    "fs": "la l' une cette ma mon de d'",
    "mp": "les des ces mes deux aux de d'",
    "fp": "les des ces mes deux aux de d'",
}
BEFORE = {w for a in ("petit grand", "petite grande", "petits grands", "petites grandes") for w in a.split()}
BEFORE |= {"vieux", "vieil", "vieille", "vieilles"}
ALL_ADJECTIVES = {w for forms in ADJECTIVES.values() for w in forms.split()}
VERBS_SINGULAR = ["voit", "aime", "regarde", "trouve", "chante", "dort", "parle", "est", "vois", "dors"]
VERBS_PLURAL = ["voient", "aiment", "regardent", "trouvent", "chantent", "dorment", "parlent", "sont"]


def vowel(word):
    return word[0] in "aeéiou"


@pytest.mark.slow
def test_known_sentences():
    everything = {p.english: p.french for p in pairs(100_000, seed=0)}
    for english, french in {
        "the child talks to the boy .": "l' enfant parle au garçon .",
        "she talks to the girls .": "elle parle aux filles .",
        "i do not like him .": "je ne l' aime pas .",
        "i like her .": "je l' aime .",
        "i like them .": "je les aime .",
        "this tree is old .": "cet arbre est vieux .",
        "this school is not big .": "cette école n' est pas grande .",
        "my school is red .": "mon école est rouge .",
        "i do not see a dog .": "je ne vois pas de chien .",
        "she does not see a bird .": "elle ne voit pas d' oiseau .",
        "they sleep near the garden .": "ils dorment près du jardin .",
        "they sleep near the cars .": "ils dorment près des voitures .",
    }.items():
        assert everything[english] == french
    for english, french in {
        "see an old bird .": "un vieil oiseau .",
        "see some old birds .": "de vieux oiseaux .",
    }.items():
        matches = {e: f for e, f in everything.items() if e.endswith(english) and "not" not in e}
        assert matches and all(f.endswith(french) for f in matches.values())


def test_pairs_are_many_different_and_the_same_for_a_seed():
    assert len({p.english for p in PAIRS}) == len(PAIRS) == 6000
    assert pairs(100, seed=1) == PAIRS[:100] and pairs(100, seed=2) != PAIRS[:100]
    assert pairs(0) == []
    for n in (-1, 100_001):
        with pytest.raises(ValueError, match="expected 0 to 100,000"):
            pairs(n)


def test_english_decides_french():
    seen = {}
    for seed in range(3):
        for english, *rest in pairs(6000, seed):
            assert seen.setdefault(english, rest) == rest


def test_the_vocabulary_is_small():
    assert len({w for p in PAIRS for w in p.english.split()}) <= 75
    assert len({w for p in PAIRS for w in p.french.split()}) <= 100


def test_every_word_has_a_link_but_do():
    for english, french, links in PAIRS:
        english, french = english.split(), french.split()
        assert {j for _, j in links} == set(range(len(french)))
        free = {english[i] for i in set(range(len(english))) - {i for i, _ in links}}
        assert free <= {"do", "does"}
        assert max(i for i, _ in links) == len(english) - 1


def test_elision_and_contraction():
    for pair in PAIRS:
        for one, two in pairwise(pair.french.split()):
            if vowel(two):
                assert one not in ("le", "la", "je", "ne", "de", "ce", "ma"), pair
                assert one != "vieux" or NOUNS.get(two) != "ms", pair
            else:
                assert one not in ("l'", "j'", "n'", "d'", "cet", "vieil"), pair
            assert (one, two) not in [("de", "le"), ("de", "les"), ("à", "le"), ("à", "les"), ("de", "des")], pair
        for one, two in pairwise(pair.english.split()):
            assert (one == "an") == (two == "old" and one in ("a", "an")), pair


def test_agreement_within_noun_phrases():
    for pair in PAIRS:
        words = pair.french.split()
        for j, word in enumerate(words):
            if word not in NOUNS:
                continue
            form, first, last = NOUNS[word], j, j
            while words[first - 1] in ALL_ADJECTIVES:
                first -= 1
            while words[last + 1] in ALL_ADJECTIVES:
                last += 1
            assert words[first - 1] in DETERMINERS[form].split(), pair
            assert all(w in ADJECTIVES[form].split() for w in words[first:j] + words[j + 1 : last + 1]), pair
            assert all(w in BEFORE for w in words[first:j]), pair
            assert not any(w in BEFORE for w in words[j + 1 : last + 1]), pair
            # "mon" is feminine before a vowel only
            assert not (words[first - 1] == "mon" and form == "fs" and not vowel(words[first])), pair


def test_agreement_of_the_verb_and_what_is_said_of_the_subject():
    for pair in PAIRS:
        words = pair.french.split()
        verb = next(j for j, w in enumerate(words) if w in VERBS_SINGULAR + VERBS_PLURAL)
        subject = next((w for w in words[:verb] if w in NOUNS), words[0])
        form = NOUNS.get(subject) or {"il": "ms", "elle": "fs", "ils": "mp"}.get(subject, "je")
        assert (words[verb] in VERBS_PLURAL) == (form in ("mp", "fp")), pair
        if subject in ("je", "j'"):
            assert words[verb] not in ("voit", "dort", "est"), pair
        else:
            assert words[verb] not in ("vois", "dors"), pair
        if words[verb] in ("est", "sont"):
            said = words[verb + 1] if words[verb + 1] != "pas" else words[verb + 2]
            assert said in (*ADJECTIVES[form].split(), "dans", "derrière", "près"), pair
            assert said != "vieil", pair


def test_negation_is_around_the_verb():
    for pair in PAIRS:
        english, french = pair.english.split(), pair.french.split()
        ne = [j for j, w in enumerate(french) if w in ("ne", "n'")]
        pas = [j for j, w in enumerate(french) if w == "pas"]
        assert len(ne) == len(pas) == english.count("not")
        if ne:
            between = french[ne[0] + 1 : pas[0]]
            assert between[-1] in VERBS_SINGULAR + VERBS_PLURAL and all(
                w in ("le", "la", "l'", "les") for w in between[:-1]
            )
            no = english.index("not")
            assert {j for i, j in pair.links if i == no} == {ne[0], pas[0]}


def test_links_join_words_that_mean_the_same():
    meaning = {"cat": "chat", "horses": "chevaux", "red": "rouge rouges", "my": "mon ma mes", "to": "à au aux"}
    meaning |= {
        "of": "de d' du des",
        "near": "près de d' du des",
        "the": "le la l' les du des au aux",
        "a": "un une de d'",
    }
    for pair in PAIRS:
        english, french = pair.english.split(), pair.french.split()
        for i, j in pair.links:
            if english[i] in meaning:
                assert french[j] in meaning[english[i]].split(), (pair, pharaoh(pair.links))


def test_adjectives_change_places():
    crossing = sum(any(i < k and j > m for i, j in p.links for k, m in p.links) for p in PAIRS)
    assert crossing > len(PAIRS) / 3


SMALL = """
--encoder-layers 2 --decoder-layers 2 --dim 128 --ffn-dim 256 --dropout 0.1 --rdrop 0 --set subwords.dropout=0
--tokens 2000 --lr 3e-3 --updates 300 --set training.valid_every=100 --device cpu
"""


@pytest.mark.slow
def test_a_small_model_learns_it_and_its_attention_aligns_it(tmp_path):
    """In about a minute on a CPU: BLEU over 95 and AER under 5, by attention alone, on sentences it has not seen."""
    import regard
    from regard.cli import main

    every, files = pairs(6200, seed=1), []
    for name, some in (("train", every[:6000]), ("valid", every[6000:6100])):
        for side in ("english", "french"):
            files.append(tmp_path / f"{name}.{side}")
            files[-1].write_text("".join(f"{getattr(pair, side)}\n" for pair in some), encoding="utf-8")
    given = zip(("--source", "--target", "--valid-source", "--valid-target"), map(str, files), strict=True)
    options = [part for pair in given for part in pair]
    assert main(["train", *options, "--out", str(tmp_path / "model"), *SMALL.split()]) == 0
    translator, known = regard.load(tmp_path / "model", device="cpu"), {pair.english for pair in every[:6000]}
    unseen = [pair for pair in pairs(400, seed=7) if pair.english not in known]
    found = translator.translate([pair.english for pair in unseen], beam=1)
    bleu = evaluate(found, [pair.french for pair in unseen])[0]
    assert bleu.score > 95
    linked = translator.align([pair[:2] for pair in unseen], layer="mean", shift=False)
    assert quality(linked, [pair.links for pair in unseen]).aer < 0.05
    heads = product(range(2), range(translator.model.config.heads), (True, False))
    every = [dict(zip(("layer", "head", "shift"), one, strict=True)) for one in heads]
    own, *others = (
        quality(translator.align([pair[:2] for pair in unseen], **look), [pair.links for pair in unseen]).aer
        for look in ({}, *every)
    )  # how well single heads align differs from processor to processor; training is to find one of the best
    assert own < min(others) + 0.02 and own < 0.2

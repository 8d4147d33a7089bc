"""The evidence is counted right: a head that always looks at the right place scores 1, one that looks anywhere ½."""

from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PATHS = [str(ROOT / "benchmarks"), str(ROOT / "recipes" / "babi")]


@pytest.fixture(autouse=True)
def paths(monkeypatch):
    for path in PATHS:
        monkeypatch.syspath_prepend(path)


@pytest.fixture
def evidence():
    import _evidence

    return _evidence


@pytest.fixture
def schemas():
    import _schemas

    return _schemas


# --- counting ---

PAIRS = [k // 2 for k in range(40)]


def test_who_is_preferred(evidence):
    found = evidence.preferred(np.array([[0.9, 0.1, 0.5]]), np.array([[0.1, 0.9, 0.5]]))
    assert found.tolist() == [[1.0, 0.0, 0.5]]


def test_an_interval_is_that_of_a_coin_where_cases_stand_alone(evidence):
    points = np.array([1.0] * 30 + [0.0] * 10)
    found = evidence.rate(points, range(40))
    half = 1.96 * (0.75 * 0.25 / 40) ** 0.5
    assert found["rate"] == 0.75 and found["cases"] == 40
    assert found["low"] == pytest.approx(0.75 - half, abs=1e-4) and found["high"] == pytest.approx(
        0.75 + half, abs=1e-4
    )


def test_an_interval_goes_by_group(evidence):
    habit = np.array([1.0, 0.0] * 20)  # right once in every pair: nothing is uncertain about it
    assert evidence.rate(habit, PAIRS) == {"rate": 0.5, "low": 0.5, "high": 0.5, "cases": 40}
    twice = evidence.rate(np.array(([1.0] * 2 + [0.0] * 2) * 10), PAIRS)  # the same case told twice is one case
    once = evidence.rate(np.array([1.0, 0.0] * 10), range(20))
    assert twice["high"] == pytest.approx(once["high"])


def test_luck_is_corrected_for_having_looked_at_many_heads(evidence):
    rng = np.random.default_rng(1)
    points = rng.integers(0, 2, (40, 200)).astype(float)
    best = points.mean(0).argmax()
    alone = evidence.corrected(points[:, [best]], range(40))[0]
    p = evidence.corrected(points, range(40))
    assert alone < 0.02 and p[best] > 0.2  # the best of 200 coins looks good until one remembers the other 199
    points[:, 7] = 1.0
    p = evidence.corrected(points, range(40))
    assert p[7] < 1e-3 and np.delete(p, 7).min() > 0.05
    habit = np.array([[1.0], [0.0]] * 20)
    assert evidence.corrected(habit, PAIRS)[0] == 1.0  # exchanging changes nothing


def test_false_alarms_are_as_rare_as_they_say(evidence):
    rng = np.random.default_rng(2)
    alarms = [
        evidence.corrected(rng.integers(0, 2, (30, 20)).astype(float), range(30), permutations=400, seed=k).min() < 0.05
        for k in range(200)
    ]
    assert np.mean(alarms) < 0.09  # 5 % and what 200 trials may add to it


def test_what_is_chosen_on_one_half_is_tested_on_the_other(evidence):
    rng = np.random.default_rng(3)
    points = rng.integers(0, 2, (200, 72)).astype(float)
    found = evidence.held_out(points, range(200), splits=200)
    assert found["chosen_on"] > 0.58 and abs(found["tested_on"] - 0.5) < 0.03
    points[:, 11] = 1.0
    found = evidence.held_out(points, range(200), splits=20)
    assert (found["tested_on"], found["head"], found["how_often"]) == (1.0, 11, 1.0)


def test_pairs(evidence):
    points = np.array([1, 1, 1, 0, 0, 0, 0.5, 1, 1])
    found = evidence.consistency(points, [0, 0, 1, 1, 2, 2, 3, 3, None])
    assert found == {"pairs": 4, "both": 0.25, "neither": 0.25, "one": 0.5}
    assert evidence.consistency(points, [None] * 9)["pairs"] == 0
    with pytest.raises(ValueError, match="a pair is two cases, got"):
        evidence.consistency(points, [0] * 9)


def test_correlation(evidence):
    x = np.arange(20.0)
    found = evidence.correlation(x, 3 - 2 * x)
    assert found["r"] == pytest.approx(-1) and found["p"] < 1e-3
    assert evidence.correlation(x, x % 2)["p"] > 0.2


# --- Winograd ---

SCHEMA = """<schema><text><txt1>{}</txt1><pron> {} </pron><txt2>{}</txt2></text>
<answers><answer>{}</answer><answer>{} </answer></answers><correctAnswer> {}. </correctAnswer></schema>"""
TROPHY = (
    "The trophy does not fit into the brown suitcase because",
    "it",
    "is too {}.",
    "The trophy",
    "the brown suitcase",
)


@pytest.fixture
def collection(tmp_path):
    large, small = (
        SCHEMA.format(*(x.format(word) for x in TROPHY), right) for word, right in (("large", "A"), ("small", "B"))
    )
    alone = SCHEMA.format("Pete saw Ann. Then Ann said that", "she", ", not he, was late.", "Pete", "Ann", "B")
    file = tmp_path / "WSCollection.xml"
    file.write_text(f'<?xml version="1.0" encoding="ISO-8859-1"?><collection>{large}{small}{alone}</collection>')
    return file


def test_schemas_are_read(schemas, collection):
    first, second, alone = schemas.winograd(collection)
    shown = [[case.text[a:b] for a, b in (case.pronoun, *case.candidates)] for case in (first, second, alone)]
    assert shown == [["it", "trophy", "brown suitcase"]] * 2 + [["she", "Pete", "Ann"]]
    assert [c.right for c in (first, second, alone)] == [0, 1, 1]
    assert (
        first.pair == second.pair == first.group == second.group and alone.pair is None and alone.group != first.group
    )
    assert alone.candidates[1][0] == alone.text.rindex("Ann") and "she, not" in alone.text  # the nearer mention
    assert (first.first, first.nearer) == (0, 1)
    assert second.replaced(1).endswith("because brown suitcase is too small.")
    with pytest.raises(ValueError, match="expected 'cat' in"):
        schemas.mention("a dog", "the cat", 0)


def test_winogender_is_read(schemas, tmp_path):
    (tmp_path / "occupations-stats.tsv").write_text("occupation\tbls_pct_female\nnurse\t90.5\n")
    text = "Someone asked the nurse whether {} would help."
    rows = [
        f"nurse.someone.{right}.{g}.txt\t{text.format(p)}"
        for right in (0, 1)
        for g, p in (("male", "he"), ("neutral", "they"))
    ]
    (tmp_path / "all_sentences.tsv").write_text("\n".join(["sentid\tsentence", *rows]) + "\n")
    he, they, *_ = cases = schemas.winogender(tmp_path)
    assert [he.text[a:b] for a, b in (he.pronoun, *he.candidates)] == ["he", "nurse", "Someone"]
    assert they.text[slice(*they.pronoun)] == "they" and he.first == 1 and he.about["women"] == 90.5
    assert [c.right for c in cases] == [0, 0, 1, 1] and he.pair == cases[2].pair != they.pair and he.group == they.group


def rigged(rights, others, pronoun, size=12, heads=2):
    """Weights of a head 0 that looks from the pronoun at the right one, and of a head 1 that looks at all alike."""
    weights = torch.full((heads, size, size), 1 / size)
    weights[0, pronoun] = 0.0
    weights[0, pronoun, rights] = 0.8
    weights[0, pronoun, others] = 0.2
    return weights


def test_measures_of_a_head_that_knows_and_of_one_that_does_not(evidence):
    import evidence_winograd

    weights = rigged(rights=3, others=6, pronoun=8)
    found = evidence_winograd.measures(weights, 2 * weights, [8], [[3], [6]], 12)
    assert set(found) == set(evidence_winograd.MEASURES)
    close = torch.testing.assert_close
    close(found["weights"], torch.tensor([[0.8, 1 / 12], [0.2, 1 / 12]]))
    close(found["norms"], 2 * found["weights"])
    close(found["back"], torch.full((2, 2), 1 / 12))
    close(found["others"], torch.full((2, 2), 1 / 12))
    close(found["extra"][:, 1], torch.zeros(2))
    weights[1, 6, 8] = 0.5  # the wrong one looks at the pronoun
    back = evidence_winograd.measures(weights, weights, [8], [[3], [6]], 12)["back"]
    assert evidence.preferred(*back.numpy()).tolist() == [0.5, 0.0]
    wide = evidence_winograd.measures(weights, weights, [8], [[3, 4], [6]], 12)["weights"]
    close(wide[:, 1], torch.tensor([2 / 12, 1 / 12]))  # words of several subwords: their sum


def test_a_head_that_knows_is_found_and_a_uniform_one_is_chance(schemas, collection):
    import evidence_winograd

    cases = schemas.winograd(collection) * 1
    cases = [
        c._replace(group=(k, c.group), pair=None if c.pair is None else (k, c.pair)) for k in range(20) for c in cases
    ]
    seen = np.zeros((len(cases), 2, 2, 3))
    seen[:, 0, 1, 2] = 0.7  # head 1.2 knows
    seen[:, :, 0] = 0.1
    found = evidence_winograd.counted(seen, cases)
    assert found["heads"] == [[0.5, 0.5, 0.5], [0.5, 0.5, 1.0]]
    assert found["best"]["head"] == found["held_out"]["head"] == "1.2" and found["held_out"]["tested_on"] == 1.0
    assert found["best"]["both"] == 1.0 and found["best"]["p"] < 1e-3 and found["below_5_percent"] == 1
    assert found["layers"][0]["rate"] == 0.5 and found["mean"]["rate"] == 1.0
    first = np.array([float(c.first == c.right) for c in cases])
    assert evidence_winograd.one(first, cases)["both"] == 0.0  # a habit


def test_gender_is_told_apart_from_what_is_right(schemas):
    import evidence_winograd

    cases, seen = [], []
    for n, name in enumerate("abcdefgh"):  # the more women, the more a "she" looks at the occupation; right or not
        for right in (0, 1):
            for gender in ("male", "female", "neutral"):
                cases.append(
                    schemas.Case("", (0, 1), ((0, 1), (1, 2)), right, name, None, {"gender": gender, "women": 10.0 * n})
                )
                occupation = {"male": 0.3, "female": 0.6 + 0.01 * n, "neutral": 0.5}[gender]
                pair = [occupation, 1 - occupation]
                seen.append(pair if right == 0 else pair[::-1])
    found = evidence_winograd.by_gender(np.array(seen), cases)
    assert found["female"]["occupation"]["rate"] == 1.0 and found["male"]["occupation"]["rate"] == 0.0
    assert found["female"]["right"]["rate"] == found["male"]["right"]["rate"] == 0.5
    assert found["male"]["right_if_participant"]["rate"] == 1.0 and found["male"]["right_if_occupation"]["rate"] == 0.0
    assert found["with_women"]["r"] == pytest.approx(1.0) and found["she_minus_he"] == pytest.approx(0.335)

"""The evidence is counted right: a head that always looks at the right place scores 1, one that looks anywhere ½."""

import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PATHS = [str(ROOT / "benchmarks"), str(ROOT / "studies"), str(ROOT / "studies" / "babi")]


@pytest.fixture(autouse=True)
def paths(monkeypatch):
    for path in PATHS:
        monkeypatch.syspath_prepend(path)
    known = sys.modules.pop("prepare", None)  # every recipe has one
    yield
    sys.modules.pop("prepare", None)
    if known is not None:
        sys.modules["prepare"] = known


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


class Rigged:
    """Stands in for an encoder, a subword for each word: head 0 looks at what is meant, head 1 at the first candidate,
    head 2 at all words alike."""

    def __init__(self, cases):
        self.cases = {case.text: case for case in cases}

    def read(self, texts):
        words = [[0, *np.cumsum([len(w) + 1 for w in text.split()])] for text in texts]
        size = max(map(len, words)) + 1

        def token(item, character):
            return int(np.searchsorted(words[item], character, side="right"))

        weights = torch.full((len(texts), 3, size, size), 0.01)
        for item, case in enumerate(self.cases[text] for text in texts):
            pronoun = token(item, case.pronoun[0])
            for head, which in ((0, case.right), (1, case.first)):
                weights[item, head, pronoun, token(item, case.candidates[which][0])] = 0.9
        mask = torch.tensor([[1] * (len(w) + 1) + [0] * (size - len(w) - 1) for w in words])
        encoding = SimpleNamespace(char_to_token=token, attention_mask=mask)
        of = {name: lambda layer, item: weights[item] for name in ("weights", "norms")}
        return SimpleNamespace(kinds={"self": 1}, **of), torch.ones(2, len(texts), size, 4), encoding


def test_rigged_attention_from_sentences_to_counts(schemas, collection):
    import evidence_winograd

    cases = schemas.winograd(collection)
    seen = evidence_winograd.look(Rigged(cases), cases)
    found = evidence_winograd.counted(seen["weights"], cases)
    assert found["heads"][0] == pytest.approx([1.0, 1 / 3, 0.5])  # the first is meant in one of the three
    assert found["best"]["head"] == "0.0" and found["best"]["both"] == 1.0
    assert evidence_winograd.counted(seen["others"], cases)["heads"] == [[0.5, 0.5, 0.5]]


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


# --- bAbI ---

STORY = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Mary took the milk.
5 Mary went to the garden.
6 Where is the milk? \tgarden\t4 5
1 John is in the park.
2 Bill left the park.
3 Who left?\tBill\t2
"""


@pytest.fixture
def corpora(tmp_path):
    import gzip

    folder = tmp_path / "babi_en_10k"
    folder.mkdir()
    for part, text in (("train", STORY * 20), ("test", STORY)):
        (folder / f"qa1_single-fact_{part}.txt.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "qa3_three-facts_test.txt").write_text(STORY)
    return tmp_path


@pytest.fixture
def questions(corpora):
    import stories

    return stories.read(corpora / "babi_en_10k", 1, "test")


def test_stories_are_read(questions, corpora):
    import stories

    assert [q.answer for q in questions] == ["bathroom", "garden", "bill"] and [q.story for q in questions] == [1, 1, 2]
    milk = questions[1]
    assert milk.support == (2, 3) and len(milk.facts) == 4 and milk.facts[2] == "mary took the milk."
    assert [milk.text[a:b] for a, b in milk.spans] == [*milk.facts, "where is the milk?"]
    left = milk.without({0, 2})
    assert left.facts == (milk.facts[1], milk.facts[3]) and left.support == (1,)
    with pytest.raises(FileNotFoundError, match=r"expected qa3_…_train\.txt"):
        stories.read(corpora / "babi_en_10k", 3, "train")


def test_no_story_is_in_training_and_in_validation(corpora, tmp_path, capsys):
    import importlib.util

    import stories

    spec = importlib.util.spec_from_file_location("babi_prepare", ROOT / "studies" / "babi" / "prepare.py")
    prepare = importlib.util.module_from_spec(spec)  # other recipes have a prepare.py too
    spec.loader.exec_module(prepare)
    out = tmp_path / "out"
    prepare.main([str(corpora), "--out", str(out), "--tasks", "1", "3"])
    assert "task 3: no training file" in capsys.readouterr().out
    import gzip

    train, valid = (
        gzip.decompress((out / f"{n}.tsv.gz").read_bytes()).decode().splitlines() for n in ("train", "valid")
    )
    assert len(train) == 54 and len(valid) == 6  # of 40 stories 4 are held out
    assert train[0] == "mary moved to the bathroom. john went to the hallway. where is mary?\tbathroom"
    kept, held = prepare.split(stories.read(corpora / "babi_en_10k", 1, "train"))
    assert not {q.story for q in kept} & {q.story for q in held}


def reader(uniform):
    """A tiny untrained model; a uniform one has queries of nothing."""
    import _babi

    from regard.models import Transformer, TransformerConfig
    from regard.text import Subwords

    subwords = Subwords.learn([[STORY.lower()]], 300)
    torch.manual_seed(0)
    size = {"dim": 16, "ffn_dim": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 1}
    model = Transformer(TransformerConfig(vocab_size=len(subwords), **size))
    if uniform:
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                torch.nn.init.zeros_(parameter)
    return _babi.Reader(model, subwords)


def test_uniform_attention_is_chance(questions):
    import _babi
    import evidence_babi

    found = [seen for _, part in _babi.watch(reader(uniform=True), questions) for seen in part]
    assert [len(s.size) for s in found] == [2, 4, 2]
    expected = evidence_babi.chance(found)
    for look in _babi.LOOKS:
        shown = evidence_babi.landed(found, look, "weights")
        assert shown["mean_share"]["rate"] == pytest.approx(expected["share"], abs=1e-6)
        assert np.array(shown["share"]) == pytest.approx(expected["share"], abs=1e-6)
        for s in found:
            torch.testing.assert_close(s.total[look, "weights"], torch.ones_like(s.total[look, "weights"]))
    other = [seen for _, part in _babi.watch(reader(uniform=False), questions) for seen in part]
    assert evidence_babi.landed(other, "answer", "weights")["mean_share"]["rate"] != pytest.approx(
        expected["share"], abs=1e-4
    )


def test_attention_on_the_right_facts_is_all_of_it(questions):
    import _babi
    import evidence_babi

    found = [seen for _, part in _babi.watch(reader(uniform=True), questions) for seen in part]
    for s in found:
        facts = s.facts["answer", "weights"]
        facts.zero_()
        facts[..., list(s.question.support)] = 0.2
    shown = evidence_babi.landed(found, "answer", "weights")
    assert shown["share"] == [[1.0, 1.0]] and shown["mean_top"]["rate"] == 1.0 and shown["best"]["tested_on"] == 1.0


def test_shares_by_hand():
    import _babi

    row = torch.tensor([0.1, 0.2, 0.3, 0.0, 0.4])
    facts = _babi.by_fact(row, [[0, 1], [2], [3]])
    torch.testing.assert_close(facts, torch.tensor([0.3, 0.3, 0.0]))
    assert float(_babi.gold_share(facts, (1,))) == pytest.approx(0.5) and float(_babi.on_top(facts, (1,))) == 0.5
    assert float(_babi.on_top(facts, (2,))) == 0.0 and bool(_babi.gold_share(facts * 0, (1,)).isnan())


def test_rows_are_those_of_the_answer_and_of_the_question(questions):
    import _babi

    made = reader(uniform=False)
    batch = made.batch(questions)
    ((trace, found),) = _babi.watch(made, questions)
    for item, s in enumerate(found):
        *facts, question = batch.places[item]
        by_hand = trace.weights(1, 0, item=item)[question].mean(0)
        expected = torch.stack([by_hand[fact].sum() for fact in facts])
        torch.testing.assert_close(s.facts["question", "weights"][1, 0], expected)
        norms = trace.norms(0, 1, 0, item=item, kind="cross")
        expected = torch.stack([norms[fact].sum() for fact in facts])
        torch.testing.assert_close(s.facts["answer", "norms"][0, 1], expected)
        assert float(s.facts["answer", "gradient"].min()) >= 0


def test_sentences_have_their_subwords(questions):
    made = reader(uniform=False)
    batch = made.batch(questions)
    for q, row, places in zip(questions, batch.source, batch.places, strict=True):
        texts = [made.subwords.decode(row[place].tolist()).strip() for place in places]
        assert texts == [*q.facts, q.question] and sorted(chain(*places)) == list(range(int((row != 0).sum())))


def test_an_answer_is_the_models_own_if_greedy_decoding_writes_it(questions):
    import _babi

    from regard.decode import greedy
    from regard.text import BOS, PAD

    made = reader(uniform=False)
    batch = made.batch(questions)
    own = greedy(made.model, made.model.encode(batch.source, lengths=batch.lengths))
    tokens = torch.stack([h.tokens[:4] for h in own])
    batch = batch._replace(target_in=torch.cat((torch.full((3, 1), BOS), tokens[:, :-1]), 1))
    with torch.no_grad():
        log_p = made.read(batch).index_fill(-1, torch.tensor([PAD, BOS]), -30.0)  # never written
    assert _babi.judged(log_p, tokens).same.all()
    tokens[1, 2] += 1
    found = _babi.judged(log_p, tokens)
    assert found.same.tolist() == [True, False, True]
    assert float(found.log_prob[0]) == pytest.approx(sum(float(log_p[0, t, tokens[0, t]]) for t in range(4)), abs=1e-5)
    tokens[0, 3] = PAD
    assert float(_babi.judged(log_p, tokens).log_prob[0]) > float(found.log_prob[0])  # padding does not count


def test_hidden_facts_are_not_seen_and_left_out_facts_are_not_told(questions):
    import _babi

    import regard

    made = reader(uniform=False)
    batch = made.batch(questions)
    mask = _babi.seen(batch, [{0}, {1, 3}, {2}])
    with torch.no_grad(), regard.record(made.model) as trace:
        made.read(batch, cross_mask=mask)
    for item, hidden in enumerate([{0}, {1, 3}, {2}]):
        facts = _babi.by_fact(trace.weights(0, rows=0, item=item, kind="cross"), batch.places[item])
        assert all((float(facts[:, i].max()) == 0) == (i in hidden) for i in range(facts.shape[1]))
    whole, none = made.judge(questions), made.judge(questions, [set(), set(), set()])
    torch.testing.assert_close(whole.log_prob, none.log_prob)
    order = made.judge(questions[::-1]).log_prob.flip(0)
    torch.testing.assert_close(whole.log_prob, order)  # batches go by length, results do not


def test_the_whole_report_in_small(corpora, tmp_path, monkeypatch):
    import json

    import _babi
    import evidence_babi

    monkeypatch.setattr(_babi.Reader, "load", classmethod(lambda cls, folder: reader(uniform=False)))
    monkeypatch.setattr(evidence_babi, "read", lambda *args: [q._replace(answer="a") for q in _babi_read(*args)])
    from stories import read as _babi_read

    evidence_babi.main([str(corpora), "--model", "x", "--tasks", "1", "3", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["tasks"]["1"]["trained_on"] and not found["tasks"]["3"]["trained_on"]
    assert found["tasks"]["1"]["name"] == "single fact" and found["tasks"]["1"]["looked_at"] == 3


def test_rank_correlation():
    import evidence_babi

    assert evidence_babi.spearman(np.array([1, 2, 30]), np.array([5, 6, 7])) == pytest.approx(1)
    assert np.isnan(evidence_babi.spearman(np.array([1, 1, 1]), np.array([5, 6, 7])))
    q = evidence_babi.Question(1, 1, ("mary left.", "john is in the park.", "mary sat."), "where is mary?", "x", (2,))
    assert evidence_babi.most_alike(q) == 2 and evidence_babi.as_many_others(q, np.random.default_rng(0)) < {0, 1}
    assert evidence_babi.as_many_others(q._replace(support=(0, 2)), np.random.default_rng(0)) is None


def test_what_one_knows_who_reads_no_story():
    import evidence_babi

    def asked(question, *answers):
        return [evidence_babi.Question(1, 1, ("x.",), question, answer, (0,)) for answer in answers]

    taught = asked("big?", "yes", "yes", "no") + asked("small?", "no", "no") + asked("red?", "no")
    test = asked("big?", "yes", "no") + asked("small?", "no") + asked("new?", "no")
    assert evidence_babi.unread(taught, test) == {"always": 0.75, "question_alone": 0.75}
    assert evidence_babi.unread(taught, asked("big?", "yes")) == {"always": 0.0, "question_alone": 1.0}


# --- the page ---


@pytest.fixture
def page():
    import evidence_page

    return evidence_page


RESULTS = {"winograd": {"winograd": {"measures": {"weights": 0.25}}, "winogender": {"measures": {}}}, "babi": {"x": 3}}


def test_the_page_is_filled_and_its_claims_are_checked(page):
    text = "So {{ percent(W('weights')) }}.\n\n<!-- check: babi['x'] == 3 -->\n\nAnd {{ babi['x'] + 1 }}.\n"
    assert page.filled(text, RESULTS) == "So 25 %.\n\nAnd 4.\n"
    with pytest.raises(SystemExit, match=r"the page says babi\['x'\] == 4, and that is not so"):
        page.filled(text.replace("== 3", "== 4"), RESULTS)


def test_the_page_quotes_the_results(page):
    """No measured number is typed by hand; `python studies/evidence_page.py` writes them anew."""
    results = page.load(page.RESULTS)
    template = page.TEMPLATE.read_text(encoding="utf-8")
    assert page.filled(template, results) == (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")


def test_the_pages_pictures_are_there_and_small():
    import re

    names = re.findall(r"\]\(img/(\S+?)\)", (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8"))
    assert len(names) >= 2
    for name in names:
        assert (ROOT / "docs" / "img" / name).stat().st_size < 150_000


def test_figures_are_drawn_from_the_results(page, tmp_path):
    pytest.importorskip("matplotlib")
    page.main(["--docs", str(tmp_path)])
    drawn = {file.name for file in (tmp_path / "img").iterdir()}
    assert drawn == {f"{name}.svg" for name in page.figures.FIGURES}

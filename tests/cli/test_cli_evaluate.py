"""regard evaluate: BLEU, chrF and the paired bootstrap are sacrebleu's own."""

import json
import re

import pytest
import sacrebleu
from commands import TARGETS

from regard.evaluate import compare, evaluate


def worse(lines):
    return [line.replace("chat", "chien") for line in lines]


def test_scores_are_sacrebleu_s(run, files):
    (files / "out").write_text("\n".join(worse(TARGETS)))
    done = run("evaluate", files / "out", "-r", files / "test.fr", "--json")
    (entry,) = json.loads(done.out)
    bleu = sacrebleu.corpus_bleu(worse(TARGETS), [TARGETS])
    chrf = sacrebleu.corpus_chrf(worse(TARGETS), [TARGETS])
    assert [s["score"] for s in entry["scores"]] == [bleu.score, chrf.score]
    assert 20 < bleu.score < 99
    assert re.fullmatch(
        r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:.*", entry["scores"][0]["signature"]
    )
    plain = run("evaluate", files / "out", "-r", files / "test.fr").out.decode()
    assert f"{bleu.score:6.2f}   nrefs:1" in plain


def test_tokenizer_case_and_smoothing_reach_sacrebleu(run, files):
    (files / "out").write_text("\n".join(worse(TARGETS)).upper())
    done = run(
        "evaluate",
        files / "out",
        "-r",
        files / "test.fr",
        "--tokenize",
        "none",
        "--smooth",
        "none",
        "--lowercase",
        "--json",
    )
    (entry,) = json.loads(done.out)
    bleu = sacrebleu.corpus_bleu(
        worse(TARGETS), [TARGETS], tokenize="none", smooth_method="none", lowercase=True, force=True
    )
    assert entry["scores"][0]["score"] == bleu.score
    assert "case:lc" in entry["scores"][0]["signature"] and "tok:none" in entry["scores"][0]["signature"]


def test_a_model_is_evaluated(run, model, files):
    done = run("evaluate", "-m", model, "-s", files / "test.en", "-r", files / "test.fr", "--json")
    (entry,) = json.loads(done.out)
    assert entry["name"] == str(model) and entry["scores"][0]["score"] == pytest.approx(100)


def test_the_paired_bootstrap_is_sacrebleu_s(monkeypatch):
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    monkeypatch.setenv("SACREBLEU_SEED", "7")
    first, second = worse(TARGETS), [t.replace("grand", "gros") for t in TARGETS]
    _, found = PairedTest(
        [("a", first), ("b", second)], {"BLEU": BLEU(), "chrF": CHRF()}, [TARGETS], "bs", n_samples=100
    )()
    ours = {c.name: c for c in compare(first, second, TARGETS, samples=100, seed=7)}
    for name, theirs in (("BLEU", found["BLEU"]), ("chrF", found["chrF2"])):
        assert ours[name].p == pytest.approx(theirs[1].p_value)
        assert ours[name].difference == pytest.approx(theirs[1].score - theirs[0].score)
        assert ours[name].low <= ours[name].difference <= ours[name].high


def test_the_bootstrap_is_repeated_by_its_seed(run, files):
    (files / "a").write_text("\n".join(worse(TARGETS)))
    (files / "b").write_text("\n".join(t.replace("grand", "gros") for t in TARGETS))
    command = ["evaluate", files / "a", files / "b", "-r", files / "test.fr", "--bootstrap", 50, "--json", "--seed"]
    one, two, other = (json.loads(run(*command, seed).out) for seed in (1, 1, 2))
    assert one == two != other
    assert "against" not in one[0] and one[1]["against"]["name"] == str(files / "a")
    assert "p = " in run(*command[:-2]).out.decode()


def test_equal_outputs_do_not_differ():
    for found in compare(TARGETS, TARGETS, TARGETS, samples=20):
        assert (found.difference, found.low, found.high) == (0, 0, 0) and found.p > 0.04


def test_evaluate_refuses():
    with pytest.raises(ValueError, match="got 2 and 1"):
        evaluate(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="samples: expected at least 1"):
        compare(["a"], ["a"], ["a"], samples=0)


def test_an_output_given_twice_is_refused(run, files):
    done = run("evaluate", files / "test.fr", files / "test.fr", "--reference", files / "test.fr", "--bootstrap", 9)
    assert done.code == 2 and "test.fr: given twice" in done.err


def test_a_bootstrap_of_one_output_compares_nothing_and_is_refused(run, files):
    done = run("evaluate", files / "test.fr", "-r", files / "test.fr", "--bootstrap", 10)
    assert done.code == 2 and "give two or more files or models" in done.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--beam", 2], "--beam: for a --model that translates"),
        (["--batch-tokens", 9, "--engine", "torch", "--int8"], "--batch-tokens, --engine, --int8: for a --model"),
        (["--seed", 1], "--seed: only --bootstrap uses it"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(run, files, options, told):
    done = run("evaluate", files / "test.fr", "-r", files / "test.fr", *options)
    assert done.code == 2 and told in done.err and not done.out

"""The Translator that regard.load gives: the library behind the commands."""

import math
import shutil
import warnings

import pytest
import torch
import toy
from commands import GOLD, PAIRS, SOURCES, TARGETS

import regard
from regard import align
from regard.files.toml import read_toml, write_toml
from regard.tasks.translation.translator import Translator

# --- the library ---


def test_a_translator(translator):
    assert translator.translate(SOURCES[0]) == TARGETS[0]
    assert translator.translate(SOURCES[:4], beam=1, batch_tokens=1) == TARGETS[:4]
    assert translator.translate([]) == [] and translator.translate("  ") == ""
    assert "Transformer" in repr(translator)


def test_one_prefix_each(translator):
    found = translator.translate(SOURCES[:2], prefix=["le chien", "un chat"])
    assert found[0].startswith("le chien") and found[1].startswith("un chat")
    with pytest.raises(ValueError, match="one for each of 2 lines; got 1"):
        translator.translate(SOURCES[:2], prefix=["le"])


def test_scores_are_the_model_s_own(translator):
    """Σ log p by hand, one pair at a time."""
    model, subwords = translator.model, translator.subwords
    for (source, target), found in zip(PAIRS[:3], translator.score(PAIRS[:3]), strict=True):
        ids = [*subwords.encode(target).ids, model.eos_id]
        logits = model(
            torch.tensor([[*subwords.encode(source).ids, model.eos_id]]), torch.tensor([[model.bos_id, *ids[:-1]]])
        )
        by_hand = sum(logits.log_softmax(-1)[0, t, i].item() for t, i in enumerate(ids))
        assert found == pytest.approx(by_hand, abs=1e-4) and found < 0
    assert translator.score([("the dog", "chat chat")])[0] < translator.score([("the dog", "le chien")])[0]


def test_a_search_s_score_is_the_forced_one(translator):
    (found,) = translator.outputs(SOURCES[:1], length_penalty=0.5)
    best = found.translations[0]
    assert best.log_prob == pytest.approx(translator.score([(SOURCES[0], best.text)])[0], abs=1e-4)
    length = len(translator.subwords.encode(best.text).ids) + 1
    assert best.score == pytest.approx(best.log_prob / math.sqrt(length), abs=1e-4)


def test_word_alignments(translator):
    found = translator.align(PAIRS)
    assert align.quality(found, [align.parse(line) for line in GOLD]).aer < 0.15
    output = translator.outputs(SOURCES[:1], attention=True)[0].translations[0]
    weights = translator.word_weights(output)
    assert weights.shape == (len(TARGETS[0].split()), len(SOURCES[0].split()))
    assert align.links(weights) == found[0]


def test_weights_of_words_are_those_of_a_layer_or_the_mean_of_all(translator):
    (found,) = translator.forced(PAIRS[:1], attention=True)
    (read,) = found.translations
    every = [translator.word_weights(read, layer=k, head="mean") for k in range(2)]
    assert torch.allclose(translator.word_weights(read, layer="mean"), (every[0] + every[1]) / 2)
    assert not torch.allclose(every[0], every[1])


def test_a_paragraph_is_cut_with_a_warning(translator):
    with pytest.warns(UserWarning, match="translated as 40 sentences"):
        assert translator.translate(" ".join(SOURCES[:40])) == " ".join(TARGETS[:40])


def test_a_sentence_over_the_limit_is_cut_and_never_refused(translator):
    words = "the black dog"
    for line, limit in ((f"{words}, " * 120 + words, 40), (f"{words} " * 400, 40), ("a" * 3_000, 300)):
        translator.limit, kept = limit, translator.limit
        try:
            (output,) = translator.outputs([line], attention=True)
        finally:
            translator.limit = kept
        (found,) = output.translations
        assert not output.problem and "parts, some of them cut out of a sentence" in output.note
        assert translator.word_weights(found).shape == (len(output.text.split()), len(line.split()))
        assert "".join(part.read for part in found.attention).replace(" ", "") == line.replace(" ", "")
        for text, side in ((part.read, part.source) for part in found.attention):
            assert side.offsets[-1][1] == len(text) and len(side.ids) <= limit
    with pytest.warns(UserWarning, match=r"subwords: translated as \d+ parts, some of them cut out of a sentence"):
        assert translator.translate("word " * 300)


def test_a_model_says_how_it_is_used(translator, model, tmp_path):
    """[translate] and [align] of its config.toml, where a call says nothing else."""
    own = tmp_path / "own"
    shutil.copytree(model, own)
    config = read_toml(own / "config.toml")
    tables = {"split": 9, "beam": 2, "length_penalty": 0.5}, {"layer": 1, "head": 3, "shift": False}
    write_toml(own / "config.toml", {**config, "translate": tables[0], "align": tables[1]})
    found = regard.load(own)
    assert (found.search.beam, found.search.length_penalty, found.split) == (2, 0.5, 9)
    assert (translator.search.beam, translator.search.length_penalty, translator.split) == (5, 1.0, translator.limit)
    for options in ({}, {"beam": None}, {"beam": 1}, {"length_penalty": 2.0, "beam": 3}):
        wanted = {"beam": options.get("beam") or 2, "length_penalty": options.get("length_penalty", 0.5)}
        (one,), (other,) = found.outputs(SOURCES[:1], **options), translator.outputs(SOURCES[:1], **wanted)
        assert one.translations == other.translations
    assert tuple(found.look(2)) == (1, 3, False)
    assert tuple(found.look(2, layer=0, head="mean", shift=True)) == (0, None, True)
    with pytest.raises(ValueError, match="head: expected a number from 0, or mean, got 'all'"):
        found.look(2, head="all")
    with warnings.catch_warnings():  # it is as the model wants it, and nothing to warn of
        warnings.simplefilter("error")
        assert found.translate(" ".join(SOURCES[:3])) == " ".join(TARGETS[:3])
    write_toml(own / "config.toml", {**config, "translate": {"beams": 2}})
    with pytest.raises(ValueError, match=r"config.toml: \[translate\]: unknown option beams; there are beam, nbest"):
        regard.load(own)


def test_white_space_does_not_matter(translator):
    """Models have seen words with one space between them; and offsets are those of the line as it is."""
    text = SOURCES[0].split()
    line = f"  {text[0]} \t{'   '.join(text[1:])}\u00a0"
    (plain,), (odd,) = (translator.outputs([one], attention=True) for one in (SOURCES[0], line))
    assert odd.text == plain.text == TARGETS[0] == translator.translate(f"{line} ")
    for one, source in ((plain, SOURCES[0]), (odd, line)):
        encoded = one.translations[0].attention[0].source
        assert [source[a:b] for a, b in encoded.offsets] == [SOURCES[0][a:b] for a, b in _offsets(plain)]
    assert torch.equal(*(translator.word_weights(one.translations[0]) for one in (plain, odd)))


def _offsets(output):
    return output.translations[0].attention[0].source.offsets


def test_a_model_s_own_limit(tmp_path):
    toy.train(tmp_path / "m", updates=1, max_length=12)
    translator = regard.load(tmp_path / "m")
    assert translator.limit == 11
    assert isinstance(translator.translate("dog " * 5), str)
    with pytest.warns(UserWarning, match="cut out of a sentence"):
        assert isinstance(translator.translate("dog " * 50), str)
    translator.limit = translator.split = 1
    with pytest.raises(ValueError, match="line 1: a character of 3 subwords; the maximum is 1"):
        translator.translate("дом", protect=False)


def test_nothing_but_lines_comes_out(translator):
    """Subwords with a line end in them, special and extra ones are never written."""
    banned = [translator.subwords.token(i) for i in translator._ban]
    assert "\n" in banned and "<unk>" in banned
    assert not any("\n" in translator.translate(SOURCES[0], sample=True, temperature=50.0, seed=s) for s in range(20))


def test_an_ended_line_stays_one(tmp_path):
    from regard.cli._lines import Writer

    with Writer(tmp_path / "x") as writer:
        writer.write(["a\nb\rc", "d"])
    assert (tmp_path / "x").read_text() == "a b c\nd\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"beam": 0}, "beam=0"),
        ({"nbest": 6}, "make beam at least nbest"),
        ({"top_k": 3}, "add sample=True"),
        ({"min_length": -1}, "minimum"),
        ({"batch_tokens": 0}, "at least 1"),
    ],
)
def test_a_translator_refuses(translator, options, says):
    with pytest.raises(ValueError, match=says):
        translator.translate("x", **options)


def test_a_translator_knows_its_options(translator):
    with pytest.raises(TypeError, match="unknown option beams; there are beam, nbest"):
        translator.translate("x", beams=3)
    with pytest.raises(TypeError, match="expected lines of text, got int"):
        translator.translate([3])


def test_sentence_ends():
    from regard.text.segments import sentences

    assert sentences("One. Two! “Three?” Four… 3.14 is pi") == ["One.", "Two!", "“Three?”", "Four…", "3.14 is pi"]
    assert sentences("一。二！三") == ["一。", "二！", "三"]
    assert sentences("") == []
    text = "Mr. Smith (cf. Dr. J. R. Brown) lives in the U.S. with us. No. He left."
    assert sentences("Come at 7 p.m. if you can. I will!") == ["Come at 7 p.m. if you can.", "I will!"]
    assert sentences(text) == ["Mr. Smith (cf. Dr. J. R. Brown) lives in the U.S. with us.", "No.", "He left."]


def test_batches_hold_similar_lengths_within_their_room():
    from regard.tasks.base import batches_of

    lengths = [3, 50, 4, 5, 3, 49, 200]
    batches = batches_of(lengths, 102)
    assert batches == [[6], [1, 5], [3, 2, 0, 4]]
    assert sorted(i for batch in batches for i in batch) == list(range(7))


# --- what starting costs ---


def test_a_translator_is_public():
    assert regard.load and Translator.__doc__

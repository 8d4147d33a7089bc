"""The recipe of the bundled model: what is tested on is not trained on, and what is cut is made whole again."""

import argparse
import json
import random
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from recipe import RECIPE, got, put, script

from regard.files.toml import read_toml
from regard.text.lexicon import Lexicon

prepare, texts, distill, parts, evaluate = map(script, ("prepare", "texts", "distill", "parts", "evaluate"))
ablate, aligner, install, tune, variants = map(script, ("ablate", "aligner", "install", "tune", "variants"))
run, word_list = script("run"), script("words")


NEWS = "The committee will meet again on Thursday to discuss the new budget for the region."
CAPTION = "A man in an orange hat starring at something."


@pytest.fixture
def corpora(tmp_path):
    """Every set in small, with leaks of every kind planted in what is trained on."""
    folder = tmp_path / "corpora"
    cats = [
        f"The {colour} cat number {n} sleeps.\tLe chat {n} {colour} dort." for colour in "abcdefgh" for n in range(5)
    ]
    put(
        folder / "tatoeba_eng_fra" / "fra.txt.gz",
        *cats,
        *(line.replace("The", "A").replace("sleeps", "is asleep") for line in cats),  # other English, the same French
        "I don't know.\tJe ne sais pas.",
        "I don't know!\tJe l'ignore.",
        f"{CAPTION.upper()}\tUn homme regarde.",
        "Someone looks at a thing over there.\tUn homme avec un chapeau orange regardant quelque chose",
    )
    law = "A\ttext\tThe Minister may issue it under section {}.\tLe ministre peut le délivrer par l’article {};"
    put(
        folder / "canada_laws_en_fr" / "train.tsv.gz",
        *(law.format(n, n) for n in range(1, 9)),
        "A\tnote\tPermits\tPermis",
        "A\tdef\tAct means the law.\tLoi La loi.",
        f"A\ttext\tIt is said that {NEWS.lower()}\tIl est dit que le comité se réunira encore.",
        "A\ttext\tEvery ship shall fly the flag.\tTout navire bat le pavillon.",
        "A\ttext\tThe fee is 20 dollars.\tLe droit est de 35 dollars.",
    )
    put(
        folder / "canada_laws_en_fr" / "valid.tsv.gz",
        "B\ttext\tEvery ship shall fly the flag\tTout navire bat pavillon.",
    )
    put(folder / "canada_laws_en_fr" / "test.tsv.gz", "C\ttext\tNo person shall sell the eggs.\tNul ne vend les œufs.")
    put(
        folder / "python_docs_en_fr" / "python_docs.tsv.gz",
        "x\tReturn the :class:`~a.Thing` object::\tRenvoie l'objet :class:`~a.Thing` ::",
    )
    put(
        folder / "transread_novels_en_fr" / "novels.tsv.gz",
        "Candide\tCHAPTER I .\tI",
        "Candide\t' I 've seen it , she said .\tJe l' ai vu , dit-elle .",
    )
    put(
        folder / "qamr" / "wiki-sentences.tsv.gz",
        f"1\t{NEWS}",
        "2\tThe river flows to the sea .",
        *(f"3\t{line.split(chr(9))[0]}" for line in cats),
    )
    put(folder / "wmt_news_eng_fra" / "newstest2014.en.gz", NEWS)
    put(folder / "wmt_news_eng_fra" / "newstest2014.fr.gz", "Le comité se réunira de nouveau jeudi pour discuter.")
    for stem in ("val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"):
        put(folder / "multi30k" / f"{stem}.en.gz", CAPTION)
        put(folder / "multi30k" / f"{stem}.fr.gz", "Un homme avec un chapeau orange regardant quelque chose.")
    put(folder / "hansards_word_alignment" / "enfr.src-tgt", "oh , oh !   ||| oh , oh !  ")
    return folder


@pytest.fixture
def prepared(corpora, tmp_path):
    out = tmp_path / "data"
    counts = prepare.prepare(
        corpora, out, kinds=("text", "head"), held_out=(4, 8), french_may_repeat=False, say=lambda _: None
    )
    return out, counts


TRAINING = ("tatoeba", "variants", "quotations", "laws", "docs", "novels")


def test_variants_are_what_users_write(prepared):
    tom = [("Tom isn't in Bern.", "Tom n'est pas à Berne."), ("I don't like Tom.", "Je n'aime pas Tom.")] * 200
    some = variants.variants([*tom, ("Will you go?", "Tu iras ?")])
    assert some == variants.variants([*tom, ("Will you go?", "Tu iras ?")]) != variants.variants(tom, seed=1)
    shouted = [(en, fr) for en, fr in some if en.isupper()]
    careless = [(en, fr) for en, fr in some if en.islower() and "@" not in en and "example" not in en]
    named = [(en, fr) for en, fr in some if not en.isupper() and not en.islower()]
    assert ("TOM ISN'T IN BERN.", "TOM N'EST PAS À BERNE.") in shouted
    assert {("i dont like tom", "Je n'aime pas Tom"), ("i don't like tom.", "Je n'aime pas Tom.")} <= {*careless}
    assert len(named) > 150 and not any("Tom" in en + fr for en, fr in named)
    for en, fr in named:
        new = en.removeprefix("I don't like ").removesuffix(".").removesuffix(" isn't in Bern")
        assert fr in (f"{new} n'est pas à Berne.", f"Je n'aime pas {new}.") and new[0] not in "AEIOUHaeiouh"
    assert variants.names(tom) == {"Tom"}  # Bern is Berne in French
    assert prepared[1]["variants"]["kept"] == len(got(prepared[0] / "variants.tsv.gz")) > 0


def test_quotations_are_quoted_on_both_sides(prepared):
    tom = [("Tom isn't in Bern.", "Tom n'est pas à Berne."), ("Are you 30?", "As-tu 30 ans ?")] * 400
    some = variants.quotations(tom)
    assert some == variants.quotations(tom) != variants.quotations(tom, seed=1)
    counts = [pair for pair in some if "«" not in pair[1]]
    for en, fr in {*some} - {*counts}:
        assert re.search('"[^"]+"|“[^”]+”', en) and re.search("« [^«»]+ »", fr) and (en[-1] in '.!?"”')
        assert ("?" in en) == ("?" in fr) and not re.search(r"\.[”\"] (he|she|said|added)|\. »,", en + fr)
    assert {*some} >= {('"Are you 30?" he asked.', "« As-tu 30 ans ? », a-t-il demandé.")}
    numbers = [[re.search(r"\d[\d ,.]*", text.replace(" ans", "")).group().strip() for text in p] for p in counts]
    assert len(numbers) == 400 * variants.COUNTED
    for en, fr in numbers:
        assert en.translate(str.maketrans(",.", " ,")) == fr
    assert any("." in en for en, _ in numbers) and any("," in en for en, _ in numbers)
    assert variants.quoted(('He said "no".', "Il dit « non »."), set(), random.Random(0)) is None
    assert variants.counted(("Meet me at 3 p.m.", "Retrouve-moi à 3 h."), random.Random(0)) is None
    assert prepared[1]["quotations"]["kept"] == len(got(prepared[0] / "quotations.tsv.gz"))


def test_longer_sentences_are_of_two_or_reported(prepared):
    pairs = [("It rains.", "Il pleut."), ("I know Tom.", "J'ai connu Tom."), ("Who?", "Qui ?"), ("Go!", "Va !")] * 300
    some = variants.longer_ones(pairs)
    assert some == variants.longer_ones(pairs) != variants.longer_ones(pairs, seed=1)
    assert len(some) > 0.05 * len(pairs)
    for en, fr in some:
        assert en[0].isupper() and fr[0].isupper() and en[-1] == fr[-1] == "." and en.count(".") == fr.count(".") == 1
        assert not re.search(r"\bque? [aeiouéè]|\bIl pleut.*\bIl\b|, J'|\? |! ", fr), fr
        assert sum(word in en for word in ("rains", "know")) == sum(word in fr for word in ("pleut", "connu"))
    pairs = [("It rains.", "Il pleut."), ("I know Tom.", "J'ai connu Tom.")]
    many = {variants.longer(*pairs, {"Tom"}, random.Random(k)) for k in range(200)}
    assert many >= {
        ("It rains because I know Tom.", "Il pleut parce que j'ai connu Tom."),
        ("It rains, while I know Tom.", "Il pleut, tandis que j'ai connu Tom."),
    }
    assert any(re.fullmatch(r"According to .+, it rains\.\|Selon .+, il pleut\.", "|".join(one)) for one in many)
    assert any(re.fullmatch(r".+ said it rains\.\|.+ a déclaré qu'il pleut\.", "|".join(one)) for one in many)
    dollars = ("It cost $30 to mend.", "Ça a coûté 30 $ à réparer.")
    sums = {variants.counted(dollars, random.Random(k)) for k in range(40)}
    assert any(re.fullmatch(r"It cost \$[\d.]+ billion to mend\.", en) for en, _ in sums)
    assert any(re.fullmatch(r"Ça a coûté [\d,]+ milliards de dollars à réparer\.", fr) for _, fr in sums)
    assert prepared[1]["longer"]["kept"] == len(got(prepared[0] / "longer.tsv.gz"))


def test_invented_words_are_counted():
    pairs = [("Tom's helicopter flies.", "L'hélicoptère de Tom vole."), ("It rains.", "Il pleut.")]
    heard = texts.lexicon(["L'hélicoptère de Marie vole.", "Il pleut."])
    outputs = ["Le hlicopter de Tom vole.", "Il pleut."]
    assert evaluate.invented(pairs, outputs, heard) == {
        "invented words in a thousand": 285.7,
        "such as": ["le", "hlicopter"],
    }
    assert evaluate.invented(pairs * 2, outputs * 2, heard | {"le"})["invented words in a thousand"] == 142.9


def test_the_lexicon_is_of_a_dictionary_and_of_what_people_wrote(prepared, tmp_path, monkeypatch, capsys):
    out, stem = prepared[0], tmp_path / word_list.DICTIONARY
    stem.parent.mkdir(parents=True)
    stem.with_suffix(".aff").write_text(
        """SET UTF-8
FLAG long
NEEDAFFIX ()
FORBIDDENWORD {}
PFX n' Y 1
PFX n' 0 n' [aeé]
SFX S. Y 2
SFX S. 0 0 . is:sg
SFX S. 0 s [^sx] is:pl
SFX a0 Y 3
SFX a0 er er/n' er po:inf
SFX a0 er ons/n' [^g]er po:1pl
SFX a0 er eons [g]er po:1pl
"""
    )
    dictionary = ["6", "chat/S.() po:nom", "manger/a0() po:v", "aimer/a0()\tpo:v", "x", "enfin/{}", "L'Haÿ-les-Roses"]
    stem.with_suffix(".dic").write_text("\n".join(dictionary) + "\n", encoding="utf-8")
    for name in word_list.SETS:
        put(out / f"{name}.tsv.gz", "Tom\tTom dort.", "Tom\tTom dormm.", "He\tIl dort.")
    monkeypatch.setattr(
        "sys.argv", ["words.py", "--packages", str(tmp_path), "--data", str(out), "--to", str(tmp_path)]
    )
    word_list.main()
    dictionary = {"chat", "chats", "manger", "mangeons", "aimer", "aimons", "x", "l", "haÿ", "les", "roses"}
    found = set(Lexicon.load(tmp_path / "lexicon.npz"))
    # what stands in several sets stands in several places: here every word of theirs but one that one set has once
    assert found == dictionary | {"tom", "dort", "dormm", "il"}
    assert "11 words of the dictionary, 4 others" in capsys.readouterr().out
    put(out / f"{word_list.SETS[0]}.tsv.gz", "Tom\tTom dormait.")
    assert "dormait" not in word_list.trained_on(out) and "dormm" in word_list.trained_on(out)
    (out / f"{word_list.SETS[-1]}.tsv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"prepare\.py makes it"):
        word_list.trained_on(out)


def test_what_a_set_contributes(prepared, corpora, tmp_path, capsys, monkeypatch):
    from regard.tasks.base.settings import Settings

    out, tested = prepared[0], tmp_path / "tested"
    pairs = [line.split("\t") for line in got(out / "test.tatoeba.tsv.gz")]
    place = tested / "without-laws" / "tatoeba.fr"
    place.parent.mkdir(parents=True)
    place.write_text("".join(f"{dict(pairs)[en]}\n" for en in dict.fromkeys(en for en, _ in pairs)), encoding="utf-8")
    asked = ["report", "--corpora", str(corpora), "--data", str(out), "--tested", str(tested), "--more", "news.tsv.gz"]
    monkeypatch.setattr("sys.argv", ["ablate.py", *asked])
    ablate.main()
    said = capsys.readouterr().out
    assert "| all | – | – | – | – |" in said and "| with news |" in said and "| without the teacher |" in said
    assert json.loads((tested / "bleu.json").read_text())["without laws"]["tatoeba"] > 50
    options = argparse.Namespace(tokenizer=Path("t.json"), updates=80)
    tables = ablate.settings([{"tsv": "a.tsv"}], options)
    assert tables["data"]["corpora"] == [{"tsv": "a.tsv"}] and tables["training"]["guided"] == 0
    assert Settings.from_tables(tables).subwords == {"path": "t.json", "dropout": 0.0}


def test_a_sentence_with_several_references_counts_once():
    pairs = [
        ("Go.", "Va-t'en d'ici tout de suite."),
        ("Go.", "Pars d'ici maintenant, vite."),
        ("No.", "Non, pas du tout."),
    ]
    outputs = [pairs[1][1], pairs[1][1], pairs[2][1]]
    first, every = evaluate.sentence_by_sentence(pairs, outputs).values()
    assert first["pairs"] == every["pairs"] == 2 and every["BLEU"] == 100.0 > first["BLEU"]
    assert evaluate.sentence_by_sentence(pairs[1:], outputs[1:]) == {}


def test_french_that_was_read_is_told_apart(tmp_path):
    pairs = [("Go away.", "Va-t'en d'ici tout de suite."), ("He slept.", "Il a dormi longtemps.")]
    outputs = ["Va-t'en d'ici tout de suite.", "Il dort."]
    assert evaluate.seen_and_not(pairs, outputs, tmp_path) == {}  # the training data are not here
    put(tmp_path / "tatoeba.tsv.gz", "Leave.\tVa-t'en d'ici tout de suite !", "Stop.\tArrête.")
    found = evaluate.seen_and_not(pairs, outputs, tmp_path)
    assert found[evaluate.SEEN]["pairs"] == found[evaluate.UNSEEN]["pairs"] == 1
    assert found[evaluate.SEEN]["BLEU"] == 100.0 > found[evaluate.UNSEEN]["BLEU"]


def test_kept_translations_are_of_the_same_model(tmp_path):
    model, out = tmp_path / "model", tmp_path / "tested"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    for _ in range(2):
        evaluate.of_this_model(out, model)
    (model / "lexicon.npz").write_bytes(b"words")
    with pytest.raises(SystemExit, match="translations of another model"):
        evaluate.of_this_model(out, model)


def test_nothing_of_a_test_is_trained_on(prepared, corpora):
    out, counts = prepared
    tested = [got(out / f"{name}.tsv.gz") for name in ("test.tatoeba", "test.laws", "valid")]
    tested = [tuple(line.split("\t")) for lines in tested for line in lines]
    tested += [pair for _, en, fr in prepare.tested_on(corpora) for pair in zip(en, fr, strict=True)]
    english, french = ({texts.key(pair[side]) for pair in tested} for side in (0, 1))
    for name in TRAINING:
        for en, fr in (line.split("\t") for line in got(out / f"{name}.tsv.gz")):
            assert texts.key(en) not in english and texts.key(fr) not in french
            assert "meet again on thursday" not in en
    assert not english & {texts.key(line) for line in got(out / "mono.en.gz")}
    assert counts["laws"]["tested on: shared run"] == 1 and counts["laws"]["tested on: same sentence"] == 1
    assert counts["tatoeba"]["tested on: same sentence"] > 2  # two by each side of captions, others by held-out French
    assert counts["mono"]["tested on: same sentence"] > 1 and counts["mono"]["repeated"] > 20


def test_sentences_that_differ_in_punctuation_stay_together():
    pairs = [(f"Number {n}{end}", f"Numéro {n}, {end}") for n in range(50) for end in (".", "!", "?")]
    sets = prepare.split(pairs, (5, 10))
    keys = [{texts.key(en) for en, _ in some} for some in sets]
    assert [len(k) for k in keys] == [5, 10, 35]
    assert not keys[0] & keys[1] and not (keys[0] | keys[1]) & keys[2]
    assert sum(map(len, sets)) == 150
    assert [sorted(some) for some in prepare.split(pairs[::-1], (5, 10))] == [sorted(some) for some in sets]


def test_what_is_kept_is_worth_it(prepared):
    out, counts = prepared
    lawful = got(out / "laws.tsv.gz")
    assert counts["laws"]["of one mould"] == 6 and counts["laws"]["other numbers"] == 1
    assert lawful[0].endswith("par l'article 1") and len(lawful) == 2  # apostrophe, list sign, notes
    assert got(out / "docs.tsv.gz") == ["Return the Thing object:\tRenvoie l'objet Thing :"]
    assert got(out / "novels.tsv.gz") == ["I've seen it, she said.\tJe l'ai vu, dit-elle."]
    for name, lines in (("tatoeba", counts["tatoeba"]["kept"]), ("laws", 2)):
        assert len(got(out / f"{name}.tsv.gz")) == lines
    assert "Open Government Licence" in (out / "ATTRIBUTION.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("en", "fr", "reason"),
    [
        ("Yes.", "Oui.", None),
        ("...", "Oui.", "no words"),
        ("word " * 81, "mot " * 81, "too long"),
        ("A short one.", "Une phrase qui est vraiment beaucoup plus longue que l'autre.", "lengths differ"),
        ("12 + 34 = 46 ; a", "12 + 34 = 46 ; a", "hardly text"),
        ("In 1990 it rained.", "En 1890 il pleuvait.", "other numbers"),
        ("Within 60 days of it.", "Dans les soixante jours.", None),
        ("Python Software Foundation Licence Text", "Python Software Foundation Licence Text", "not translated"),
        (
            "Le chat et la souris sont dans la maison.",
            "Le chat et la souris sont dans la maison, oui.",
            "another language",
        ),
    ],
)
def test_a_fault_is_named(en, fr, reason):
    assert texts.fault(en, fr) == reason


def test_guard_looks_inside():
    guard = texts.Guard([NEWS], runs=True)
    inside = "Reportedly " + " ".join(NEWS.split()[2:13])
    assert guard.why(inside) == "shared run"
    assert guard.why(" ".join(NEWS.split()[:9])) is None  # nine words of it
    assert texts.Guard([NEWS], runs=False).why(inside) is None


class Parrot:
    """Translates by turning letters round, and one sentence in loops."""

    calls = 0

    def outputs(self, lines, **options):
        Parrot.calls += 1
        loop = "va et vient " * 5
        found = [loop if "sea" in line else f"le {line}" for line in lines]
        return [argparse.Namespace(translations=[argparse.Namespace(text=text)]) for text in found]


def test_distillation_goes_on_where_it_stopped(prepared, tmp_path, monkeypatch):
    out, _ = prepared
    monkeypatch.setattr("regard.tasks.translation.translator.load", lambda *_, **__: Parrot())
    options = argparse.Namespace(
        model="m", data=out, out=tmp_path / "shards", sets=("tatoeba", "mono"), minutes=1.0, lines=10, beam=1,
        batch_tokens=100, device=None, words=None,
    )  # fmt: skip
    distill.distill(options)
    made = sorted(p.name for p in options.out.iterdir())
    assert made[0] == "mono-0000.gz" and len(made) == 1 + -(-len(distill.sources(out, "tatoeba")) // 10)
    (options.out / made[1]).unlink()
    before = Parrot.calls
    distill.distill(options)
    assert Parrot.calls == before + 1
    why = distill.merge(options)
    assert why["mono"]["looped"] + why["mono"]["lengths differ"] == 1 and "not translated yet" not in why["tatoeba"]
    assert not any("an invented word" in reasons for reasons in why.values())
    lines = got(out / "distilled-tatoeba.tsv.gz")
    assert len(lines) == why["tatoeba"]["kept"] and all(
        fr == texts.french(f"le {en}") for en, fr in (l.split("\t") for l in lines)
    )
    options.minutes = 0.0
    (options.out / made[1]).unlink()
    distill.distill(options)  # the first shard has no pace yet, so no time at all is what stops it
    assert distill.merge(options)["tatoeba"]["not translated yet"] == 10
    options.lines = 9
    with pytest.raises(ValueError, match="or other --lines"):
        distill.merge(options)


def stage(name, code, done=lambda: False):
    return run.Stage(name, lambda _: [sys.executable, "-c", code], done)


@pytest.mark.slow
def test_stages_follow_each_other_within_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "GRACE", 2.5)
    said, first, second = [], tmp_path / "first", tmp_path / "second"
    write = stage("first", f"open({str(first)!r}, 'w')", first.exists)
    late = f"""
import time
try: time.sleep(60)
except KeyboardInterrupt: open({str(second)!r}, 'w')
"""
    todo = [write, stage("second", late), stage("third", "raise SystemExit(0)")]
    start = time.monotonic()
    assert run.run(todo, start + 5.0, said.append) == "second"
    assert first.exists() and second.exists(), "it was not stopped in good order"
    assert time.monotonic() - start < 30 and "goes on" in said[-1]
    assert run.run([write], time.monotonic() - 1, said.append) is None, "what is done needs no time"
    assert run.run([stage("third", "")], time.monotonic() - 1, said.append) == "third"
    with pytest.raises(SystemExit, match="third ended with exit code 3"):
        run.run([stage("third", "raise SystemExit(3)")], time.monotonic() + 60, said.append)


@pytest.mark.parametrize("student", ["student", "again"])
def test_a_student_that_goes_on_has_its_own_subwords(tmp_path, student):
    given = argparse.Namespace(sets="tatoeba", words=None, subwords="cuts.json", student=student, rest=["--seed=3"])
    commands = {stage.name: stage.command(60.0) for stage in run.stages(tmp_path, given)}
    for name, settings in (("teacher", "teacher"), ("student", student)):
        command = commands[name]
        assert command[command.index("--config") + 1].endswith(f"{settings}.toml") and command[-1] == "--seed=3"
        assert command[command.index("--out") + 1] == str(tmp_path / name)
        assert ("subwords.path=cuts.json" in command) == (settings != "again")


def test_an_unfinished_student_is_kept_even_if_it_fails(tmp_path, monkeypatch):
    from regard.train.checkpoint import Checkpoints, Standing

    folder = tmp_path / "work"
    files = Checkpoints(folder / "student" / "checkpoints", keep=2, average=1, say=print)
    files.save(Standing(update=20), {"model.w": torch.ones(4)})
    monkeypatch.setattr(run, "stages", lambda *_: [stage("student", "raise SystemExit(3)")])
    with pytest.raises(SystemExit, match="exit code 3"):
        run.main(["--folder", str(folder), "--copies", str(tmp_path / "copies")])
    kept = parts.join([*(tmp_path / "copies").iterdir()], tmp_path / "joined")
    assert Checkpoints(kept / "checkpoints", keep=2, average=1, say=print).latest()[0].update == 20


@pytest.mark.slow
def test_teacher_and_student_in_one_command(prepared, tmp_path, monkeypatch, capfd):
    """Real processes, with settings of the recipe that are small enough for a CPU."""
    recipe, folder = tmp_path / "recipe", tmp_path / "work"
    recipe.mkdir()
    for path in RECIPE.glob("*.py"):
        shutil.copy(path, recipe)
    shutil.copytree(prepared[0], folder / "data")
    for name, sets in (("teacher", ["tatoeba"]), ("student", ["tatoeba", "distilled-tatoeba", "distilled-mono"])):
        corpora = ", ".join(f'{{ tsv = "{folder}/data/{one}.tsv.gz" }}' for one in sets)
        (recipe / f"{name}.toml").write_text(
            f"""
data = {{ corpora = [{corpora}], valid = [{{ tsv = "{folder}/data/valid.tsv.gz" }}] }}
subwords = {{ vocab_size = 300 }}
model = {{ dim = 16, ffn_dim = 16, heads = 2, encoder_layers = 1, decoder_layers = 1 }}
training = {{ updates = 2, tokens = 600, bleu = false }}
"""
        )
    monkeypatch.setattr(run, "RECIPE", recipe)
    monkeypatch.setenv("PYTHONPATH", str(RECIPE.parents[1]))
    command = ["--seconds", "300", "--folder", str(folder), "--copies", str(tmp_path / "copies"), "--sets"]
    run.main([*command, "tatoeba,mono", "--", "--set", "training.seed=3"])
    assert "done: " in capfd.readouterr().out
    kept = sorted(path.name for path in (tmp_path / "copies").iterdir())
    assert kept == ["distilled-mono.tsv.gz", "distilled-tatoeba.tsv.gz", "student.part-1-of-1"]
    student = parts.join([tmp_path / "copies" / kept[-1]], tmp_path / "joined")
    assert read_toml(student / "config.toml")["training"]["seed"] == 3
    run.main([*command, "tatoeba,mono"])  # nothing is left to do
    assert "student:" not in capfd.readouterr().out


def test_a_teacher_is_kept_until_there_is_a_student(tmp_path):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "model.safetensors").write_bytes(b"weights")
    run.keep(tmp_path, tmp_path / "copies", lambda message: None)
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["teacher.part-1-of-1"]


def test_pairs_that_come_with_free_software(corpora, tmp_path):
    """Two pages with the same ids, locale data in two languages: read, judged and written as the other sets are."""
    pages = {
        "en-US": ("Click the cell. Type a number.", "Open it."),
        "fr": ("Cliquez sur la cellule. Tapez un nombre.",),
    }
    for language, texts_ in pages.items():
        page = tmp_path / f"packages/usr/share/libreoffice/help/{language}/text/a.html"
        page.parent.mkdir(parents=True)
        page.write_text("".join(f'<p id="par_id{k}">{text}</p>' for k, text in enumerate(texts_)), encoding="utf-8")
    here = {"en": ("Germany", "crocodile", "Bua"), "fr": ("Allemagne", "crocodile", "province de Bua")}
    named = "<localeDisplayNames><{0}s><{0} type='x'>{{}}</{0}></{0}s></localeDisplayNames>"
    land, region = named.format("territory").replace("territorys", "territories"), named.format("subdivision")
    drawn = "<annotations><annotation cp='🐊' type='tts'>{}</annotation></annotations>"
    kinds = {"main": (land, 0), "annotations": (drawn, 1), "annotationsDerived": ("", 1), "subdivisions": (region, 2)}
    for language, names in here.items():
        for part, (form, which) in kinds.items():
            path = tmp_path / f"packages/usr/share/unicode/cldr/common/{part}/{language}.xml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"<ldml>{form.format(names[which])}</ldml>", encoding="utf-8")
    options = {"kinds": ("text",), "held_out": (2, 2), "french_may_repeat": True, "say": lambda message: None}
    counts = prepare.prepare(corpora, tmp_path / "out", free_software=tmp_path / "packages", **options)
    found = {name: sorted(map(tuple, prepare.rows(tmp_path / "out" / f"{name}.tsv.gz"))) for name in ("help", "names")}
    assert found["help"] == [("Click the cell.", "Cliquez sur la cellule."), ("Type a number.", "Tapez un nombre.")]
    assert ("Germany", "Allemagne") in found["names"] and "Bua" not in str(found)  # a province is not its name
    assert counts["help"] == {"kept": 2} and "LibreOffice" in (tmp_path / "out/ATTRIBUTION.md").read_text("utf-8")


def test_counters_name_everything():
    why = Counter()
    prepare.kept([("Hello.", "Bonjour."), ("Hello.", "Bonjour.")], (texts.Guard(), texts.Guard()), why)
    assert why == {"kept": 1, "repeated": 1}


def test_the_card_names_what_was_trained_on(prepared, tmp_path):
    out, _ = prepared
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(3 << 20))
    (model / "config.toml").write_text(
        '[data]\ncorpora = [{ tsv = "x/tatoeba.tsv.gz" }, { tsv = "x/distilled-mono.tsv.gz" }]\n'
        "[model]\nencoder_layers = 7\ndecoder_layers = 3\n"
    )
    report = {
        "parameters": 1234567,
        "search": {"beam": 4, "length_penalty": 0.8},
        "sets": {"tatoeba": {"pairs": 9, "BLEU": 12.3, "chrF": 45.6}},
        "alignment": {
            "forward": {"develop": 1.0, "rest": 9.87, "all": 9.5},
            "forward, --mutual": {"threshold": 0.5, "develop": 0.5, "rest": 7.1, "all": 6.9},
        },
    }
    evaluate.card(report, model, out, tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    for part in (
        "1,234,567 parameters, 3.0 MiB",
        "Beam 4, length penalty 0.8,",
        "7 encoder and 3 decoder layers",
        "on larger models' translations",
        "| tatoeba | 9 | 12.3 | 45.6 |",
        "| forward | 9.87 | 9.5 |",
        "| forward, --mutual --threshold 0.5 | 7.1 | 6.9 |",
        "tatoeba.org",
        "QAMR",
    ):
        assert part in text
    assert "TransRead" not in text and "Open Government" not in text and "{" not in text


@pytest.mark.slow
def test_every_head_and_their_mean_are_looked_at(translator, monkeypatch):
    """Also of a model that has a head of its own to align by."""
    pairs = [("the dog sees a cat .", "le chien voit un chat .")]
    plain = evaluate.every_alignment(translator, pairs)
    monkeypatch.setattr(translator, "_align", {"layer": 0, "head": 1, "shift": True})
    assert evaluate.every_alignment(translator, pairs) == plain
    assert len({tuple(sorted(links)) for (links,) in plain.values()}) > 2


def test_the_threshold_of_mutual_links_is_chosen_on_some_pairs(translator):
    from regard.align import Alignment

    pairs = [("the dog sees a cat .", "le chien voit un chat ."), ("a bird eats .", "un oiseau mange .")]
    sure = translator.align(pairs, layer=0, head=1, shift=True, mutual=True, threshold=0.6)
    gold = [Alignment(links, links) for links in sure]
    found = evaluate.mutual(translator, pairs, gold, (0, 1, True), develop=1)
    assert found["develop"] == 0 and found["rest"] == 0
    more = translator.align(pairs, layer=0, head=1, shift=True, mutual=True)
    found = evaluate.mutual(translator, pairs, [Alignment(links, links) for links in more], (0, 1, True), develop=1)
    assert found == {"threshold": 0.0, "develop": 0.0, "rest": 0.0, "all": 0.0}


def test_alignment_is_chosen_on_some_pairs_and_told_on_others(tmp_path, monkeypatch):
    from regard.align import parse

    gold = [parse(line) for line in ("0-0", "0-0 1-1", "0-0")]
    right, wrong = [g.sure for g in gold], [frozenset({(3, 3)}) for _ in gold]
    looks = {(0, None, True): [right[0], *wrong[1:]], (1, None, False): [wrong[0], *right[1:]]}
    monkeypatch.setattr(evaluate, "hansards", lambda _: ([("a", "b")] * 3, gold))
    monkeypatch.setattr(evaluate, "every_alignment", lambda *_: looks)
    monkeypatch.setattr(evaluate, "mutual", lambda *_: {})
    found = evaluate.alignment(None, None, tmp_path, develop=1)
    assert found["forward"] == {"layer": 0, "head": None, "shift": True, "develop": 0.0, "rest": 100.0, "all": 71.43}
    assert [entry["AER"] for entry in found["every"]] == [71.43, 25.0]


def test_the_aligner_learns_from_the_recipe_s_text(prepared, corpora, monkeypatch, capsys):
    put(corpora / "hansards_word_alignment" / "enfr.gold", "1-1 2-2 3-3 4-4")
    assert aligner.words("L'objet, c'est moi.") == ["L'", "objet", ",", "c'", "est", "moi", "."]
    whole = aligner.texts(prepared[0], None)
    assert len(aligner.texts(prepared[0], 4)) <= 4 < len(whole)
    monkeypatch.setattr(sys, "argv", ["aligner.py", "--corpora", str(corpora), "--data", str(prepared[0])])
    aligner.main()
    said = capsys.readouterr().out
    assert f"{len(whole) + 1} pairs" in said and "AER" in said

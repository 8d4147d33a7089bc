"""The model that comes with the package: it is there, small, described, and right about everyday English.

What is checked holds of any good model of the recipe, not of one training run: words that a translation must have in
one of their forms, what must be kept, and what must not be there.
"""

import re
import sys
from fnmatch import fnmatch
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from commands import ROOT, process

import regard
from regard.align import links, parse, pharaoh, quality
from regard.files.bundled import BUNDLED, DEFAULT
from regard.files.tensors import read_tensors
from regard.files.toml import read_toml
from regard.text.lexicon import words_of

FOLDER = BUNDLED / DEFAULT
MIB = 2**20

# English, and for each of several things what shows that it was said.
EVERYDAY = {
    "The cat sat on the mat.": ("chat", "tapis|paillasson|natte"),
    "Where is the nearest train station?": ("où", "gare", "proche"),
    "My brother lives in Paris.": ("mon frère", "vit|habite|demeure", "Paris"),
    "I don't know where she is.": ("ne sais|sais pas|ignore", "où", "elle"),
    "Can you help me?": ("aider",),
    "It is raining.": ("pleut",),
    "How much does this book cost?": ("combien|quel est le prix", "livre"),
    "I would like a cup of coffee, please.": ("voudrais|aimerais", "café", "s'il (vous|te) plaît"),
    "She bought a new car last week.": ("achet", "nouvelle voiture|voiture neuve", "semaine dernière"),
    "What time is it?": ("quelle heure",),
    "Thank you very much.": ("merci",),
    "We are hungry.": ("faim",),
    "He drinks two glasses of milk every day.": ("boit", "deux verres", "lait", "jour"),
    "The house is big and the garden is small.": ("maison", "grande", "jardin", "petit"),
}
KEPT = {
    "Tom was born in Boston in 1987.": ("Tom", "Boston", "1987"),
    "Mary has 3 cats and 12 fish.": ("Mary|Marie", "3|trois", "12|douze"),
    "Call Sarah at 555-0123.": ("Sarah", "555-0123"),
}

UNHEARD = (  # some of it is news to it
    "Motorists complained that the mileage tax had been planned by technocrats.",
    "The helicopter hovered above the skyscraper while snipers evacuated the hostages.",
    "She was diagnosed with an autoimmune disorder and discharged from the infirmary.",
    "Biologists sequenced the genome of the axolotl, an amphibian that regenerates its limbs.",
    "The unsophisticated cyberattack encrypted the archives of the municipality of Zbylitow.",
    "Dockworkers picketed the shipyard after the restructuring was announced.",
)


@pytest.fixture(scope="module")
def translator():
    return regard.load(DEFAULT, device="cpu")


@pytest.fixture(scope="module")
def everyday(translator):
    return dict(zip(EVERYDAY, translator.translate(list(EVERYDAY)), strict=True))


# --- the folder ---


def test_five_files_of_at_most_16_mib():
    assert sorted(path.name for path in FOLDER.iterdir()) == [
        "README.md",
        "config.toml",
        "lexicon.npz",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert 8 * MIB < sum(path.stat().st_size for path in FOLDER.iterdir()) <= 16 * MIB
    assert read_tensors(FOLDER / "model.safetensors")[1]["store"] == "int8"


def test_it_is_in_what_is_built():
    """Every file is one that pyproject.toml takes into a wheel."""
    patterns = read_toml(ROOT / "pyproject.toml")["tool"]["setuptools"]["package-data"]["regard"]
    for path in FOLDER.iterdir():
        name = path.relative_to(BUNDLED.parent).as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns), f"{name} would not be in a wheel"


def test_its_settings_name_no_place():
    text = (FOLDER / "config.toml").read_text(encoding="utf-8")
    assert "/" not in text and "\\" not in text and "cache" not in text
    table = read_toml(FOLDER / "config.toml")
    assert {"split", "beam", "length_penalty"} <= table["translate"].keys() and {"layer", "shift"} <= table[
        "align"
    ].keys()


def test_its_card_tells_what_one_must_know():
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", card, re.MULTILINE) == ["Data", "Licence", "Scores", "Limits"]
    assert not re.search(r"[{}]|TODO|\?\?", card)
    sets = {
        Path(table["tsv"]).name.split(".")[0].removeprefix("distilled-")
        for table in read_toml(FOLDER / "config.toml")["data"]["corpora"]
    }
    named = {
        "tatoeba": "tatoeba.org. CC BY 2.0",
        "variants": "Variants of these",
        "quotations": "in quotation marks",
        "longer": "Two sentences of Tatoeba",
        "laws": "Open Government Licence",
        "docs": "CC0",
        "help": "Mozilla Public License",
        "names": "Unicode License",
        "mono": "QAMR",
    }
    assert sets <= named.keys()  # nothing that may not be shipped
    data = card.split("## Licence")[0]
    for name, words in named.items():
        assert (words in data) == (name in sets), name
    assert "`lexicon.npz`" in card and "Mozilla Public License 2.0" in card.split("## Licence")[1].split("##")[0]
    assert "CC BY 2.0" in card.split("## Licence")[1].split("##")[0]
    rows = dict(re.findall(r"^\| (.+?) \| [\d,]+ \| ([\d.]+) \| [\d.]+ \|$", card, re.MULTILINE))
    ways = ("its first reference", "all its references")
    once = {f"{name}, each sentence once, {which}" for name in ("tatoeba", "laws") for which in ways}
    once |= {"tatoeba, French that was read under another sentence", "tatoeba, French that was not"}
    assert rows.keys() == {"tatoeba", "newstest2014", "multi30k test2016", "laws"} | once
    assert float(rows["tatoeba"]) > 50 and float(rows["newstest2014"]) > 23
    assert 0 < float(re.search(r"^\| forward \| ([\d.]+) \|", card, re.MULTILINE)[1]) < 30
    size = (FOLDER / "model.safetensors").stat().st_size / MIB
    assert f"{size:.1f} MiB" in card


def test_what_was_tested_is_whole():
    """The scores of the card are of all pairs, and not of a quick look."""
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.+?) \| ([\d,]+) \| [\d.]+ \|", card, re.MULTILINE))
    for name in ("tatoeba", "newstest2014", "multi30k test2016", "laws"):
        assert int(rows[name].replace(",", "")) >= 1000


# --- what it says ---


@pytest.mark.parametrize("text", EVERYDAY)
def test_everyday_sentences(everyday, text):
    found = everyday[text]
    for wanted in EVERYDAY[text]:
        assert re.search(wanted, found, re.IGNORECASE), f"{text} → {found}: no {wanted}"


def test_nothing_is_invented(everyday):
    """Every word has only letters that French has, ends as it should, and is none of the English ones."""
    english = {
        "the",
        "is",
        "and",
        "where",
        "my",
        "she",
        "you",
        "how",
        "much",
        "this",
        "what",
        "we",
        "are",
        "he",
        "every",
    }
    for text, found in everyday.items():
        assert "<" not in found and "�" not in found and "  " not in found
        assert found[-1] == text[-1], found
        words = re.findall(r"[^\W\d_]+", found.lower())
        assert all(re.fullmatch("[a-zàâäçéèêëîïôöœùûüÿæ]+", word) for word in words), found
        assert not english & set(words), found
        assert len(found.split()) <= 2 * len(text.split()) + 2
        assert not any(words[i : i + 2] == words[i + 2 : i + 4] for i in range(len(words) - 3)), (
            f"{found} repeats itself"
        )


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 4])
def test_what_it_has_not_read_is_said_in_words_that_there_are(translator, beam):
    assert len(translator.lexicon) > 400_000 and not {"hlicopter", "plannaires"} & set(translator.lexicon)
    for text, output in zip(UNHEARD, translator.outputs(UNHEARD, beam=beam), strict=True):
        assert output.text and translator.lexicon.beyond(output.text, words_of(text)) == [], output.text


@pytest.mark.parametrize("text", KEPT)
def test_names_and_numbers_are_kept(translator, text):
    found = translator.translate(text)
    for wanted in KEPT[text]:
        assert re.search(rf"\b({wanted})\b", found), f"{text} → {found}: no {wanted}"


@pytest.mark.slow
def test_a_paragraph_is_translated_sentence_by_sentence(translator, everyday, recwarn):
    some = list(EVERYDAY)[:6]
    assert translator.translate(" ".join(some)) == " ".join(everyday[text] for text in some)
    long = " ".join(list(EVERYDAY) * 20)  # many times what it was trained on at once
    (output,) = translator.outputs([long], attention=True)
    assert not output.problem and output.text.count("chat") == 20
    weights = translator.word_weights(output.translations[0])
    assert weights.shape == (len(output.text.split()), len(long.split()))


@pytest.mark.slow
def test_an_odd_line_is_translated_too(translator, everyday):
    cat = "The cat sat on the mat."
    assert translator.translate(f"\t {cat.replace(' ', '   ')}  ") == everyday[cat]
    for text in ("", "   ", "?!", "🐈", "a" * 100, "猫が座った。", "x = [1, 2]"):
        assert isinstance(translator.translate(text), str)
    assert translator.translate("") == ""


def test_every_way_to_run_it_says_the_same(translator, everyday):
    pytest.importorskip("ctranslate2")
    other = regard.load(DEFAULT, engine="ctranslate2", device="cpu")
    assert other.translate(list(EVERYDAY)) == list(everyday.values())
    pairs = list(everyday.items())
    for one, two in zip(translator.align(pairs), other.align(pairs), strict=True):
        assert len(one ^ two) <= 1  # where two words have nearly the same weight


def test_eight_bits_say_nearly_the_same(translator, everyday):
    found = regard.load(DEFAULT, int8=True, device="cpu").translate(list(EVERYDAY))
    assert sum(a == b for a, b in zip(found, everyday.values(), strict=True)) >= 0.7 * len(EVERYDAY)


def test_it_knows_what_is_likely(translator):
    right, wrong = ("The dog is sleeping.", "Le chien dort."), ("The dog is sleeping.", "La table est verte.")
    good, bad = translator.score([right, wrong])
    assert good > bad + 5


# --- which word made which ---

ALIGNED = {  # links that leave no doubt; articles and auxiliaries may go either way
    ("The black cat sleeps .", "Le chat noir dort ."): "2-1 1-2 3-3",
    ("I like red apples .", "J'aime les pommes rouges ."): "3-2 2-3",
    ("My brother lives in Paris .", "Mon frère vit à Paris ."): "0-0 1-1 2-2 4-4",
    ("She drinks milk because she is thirsty .", "Elle boit du lait parce qu'elle a soif ."): "0-0 1-1 2-3 3-4",
    ("The small house has a green door .", "La petite maison a une porte verte ."): "1-1 2-2 6-5 5-6",
}


def test_words_are_aligned(translator):
    found = translator.align(list(ALIGNED))
    wanted = [parse(line).sure for line in ALIGNED.values()]
    missed = [(pair, pharaoh(w - f)) for pair, f, w in zip(ALIGNED, found, wanted, strict=True) if w - f]
    assert sum(len(w - f) for f, w in zip(found, wanted, strict=True)) <= 1, missed
    table = read_toml(FOLDER / "config.toml")["align"]
    assert tuple(translator.look(2)) == (table["layer"], table.get("head"), table["shift"])
    other = [frozenset() for _ in found]
    for layer in range(
        translator.model.config.decoder_layers
    ):  # what the folder says is no worse than what it does not
        for pair, output in enumerate(translator.forced(list(ALIGNED), attention=True)):
            other[pair] = links(translator.word_weights(output.translations[0], layer=layer, head="mean"))
        gold = [parse(line) for line in ALIGNED.values()]
        assert quality(found, gold).recall >= quality(other, gold).recall


# --- the commands ---


def test_commands_without_a_model(run, tmp_path):
    done = run("translate", "The cat sat on the mat.")
    assert done.code == 0 and "chat" in done.out.decode() and done.err == ""
    done = run("align", "-", stdin=b"My brother lives in Paris . ||| Mon fr\xc3\xa8re vit \xc3\xa0 Paris .\n")
    assert {"1-1", "4-4"} <= set(done.out.decode().split())
    (tmp_path / "en").write_text("Thank you very much.\nWhat time is it?\n")
    (tmp_path / "fr").write_text("Merci beaucoup.\nQuelle heure est-il ?\n")
    done = run("evaluate", "--source", tmp_path / "en", "--reference", tmp_path / "fr")
    assert done.code == 0 and float(re.search(r"chrF +([\d.]+)", done.out.decode())[1]) > 50
    assert done.out.decode().startswith("en-fr-small\n")


@pytest.mark.slow
def test_from_another_folder(tmp_path):
    done = process("translate", "Where is the dog?", cwd=tmp_path)
    assert done.code == 0 and "chien" in done.out.decode() and done.err == ""


@pytest.mark.slow
def test_the_transcripts_of_the_documentation():
    """What README.md and docs/ say that it answers; shades apart, which another processor may round otherwise."""
    spec = spec_from_file_location("transcripts", ROOT / "examples" / "transcripts.py")
    transcripts = sys.modules["transcripts"] = module_from_spec(spec)
    spec.loader.exec_module(transcripts)
    found = transcripts.pages()
    assert [path.name for path in found] == ["README.md", "cli.md", "index.md"]
    for path in found:
        page = path.read_text(encoding="utf-8")
        blocks, answered = (transcripts.BLOCK.findall(text) for text in (page, transcripts.again(page)))
        assert [_plain(block) for block in blocks] == [_plain(block) for block in answered], "run it with --write"


def _plain(block):
    return [re.sub("[░▒▓█]", " ", line).rstrip() for line in block.split("\n")]

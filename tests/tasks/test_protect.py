"""Spans that are not translated come back once each, byte for byte, whatever the model makes of what is around them."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from serving import save_models, serving

import regard
from regard.align import links
from regard.files.bundled import BUNDLED, DEFAULT
from regard.tasks.translation.protect.spans import Protection
from regard.text import Subwords
from regard.text.segments import sentences

EXAMPLES = {
    "I love it 😀": "J'(adore|aime) .* 😀",
    "my name is 王小明": r"[Mm]on nom est 王小明|[Jj]e m'appelle 王小明",
    "The {name} placeholder %s and {{var}} must stay.": r"L\w+ .*\{name\} .*%s et \{\{var\}\} .*\.",
    "See https://example.com/a?b=c for more.": r"\w+ https://example\.com/a\?b=c pour .*\.",
    "Write to a.b@example.org if you have any questions.": r"[ÉEé]\w+ à a\.b@example\.org si .*question.*",
    "<i>my friend</i> is here.": "<i>[Mm]on amie?</i> est (ici|là).",
    "I like <b>red apples</b> and <i>green pears</i>.": "J'aime .*<b>.*pommes rouges</b> et .*<i>.*poires vertes</i>.",
    "The **small** house has a *green* door.": r"La \*\*petite\*\* maison a une porte \*verte\*\.",
    "Read the [book](a/b.md) today.": r"L\w+ .*\[.*livre\]\(a/b\.md\) aujourd'hui\.",
    "# The history of Paris": "# L'histoire de Paris",
    "Run `make test` before you start.": r"\w+ `make test` avant .*\.",
    "Tom\x1b[1m is very\x1b[0m tired.": "Tom\x1b\\[1m est très\x1b\\[0m fatigué.",
    "She said in\u00adfor\u00admation.": "Elle a dit .*information.*",
    "There are %d files in the folder ${x}.": r"Il y a %d fichiers dans le dossier \$\{x\}\.",
    "I saw him.<br>He was tired.": "Je l'ai vu.<br>Il était fatigué.",
    "See example.com/a?b=c for more.": r"\w+ example\.com/a\?b=c pour .*\.",
    "Copy D:\\My_Files\\a.doc to the new folder.": r"\w+ D:\\My_Files\\a\.doc .* dossier\.",
    'Press "OK".\\n': r'\w+ .*"OK".*\\n',
    "{count, plural, one {# file} other {# files}} in the folder.": r"\{count, .* \{# files\}\} .*\.",
    "<code>int x = 0;</code> is a declaration.": "<code>int x = 0;</code> est une déclaration.",
    'See ![the cat](a/b.png "A cat").': r'\w+ .*!\[.*chat\]\(a/b\.png "A cat"\)\.',
    "The file was changed by renderMainWindow().": r"L\w+ .* par renderMainWindow\(\)\.",
    "First name\tLast name": "\\w+.*\t.*\\w+",
    "<li>One dog</li><li>Two cats</li>": "<li>Un chien</li><li>[dD]eux chats</li>",
}
SENTENCES = (  # with places for words (w), which stand apart from letters, and for marks (m), which stand anywhere
    "I met {w[0]} in Paris.",
    "{w[0]} is my friend, and {w[1]} is not.",
    "The {m[0]}cat{m[1]} sat on {w[0]}. The {m[2]}dog is here{m[3]}!",
    "Where is {m[0]}{w[0]}{m[1]}?{m[2]}",
    "{w[0]}",
    "{m[0]}{w[0]}: {w[1]}",
    "{w[0]} {w[1]} Are{m[0]}you ({w[2]}) there?",
    "You {m[0]}have {w[0]}{m[1]} new {m[2]} messages from {w[1]} in {w[2]} {m[3]}",
)
WORDS = (
    *("{name}", "{{ user.name }}", "%s", "%(n)d", "%d%%", "${x}", "$HOME/bin", "%1$s", "{0}", "{n}", "<file>", "&amp;"),
    *(
        "{{{a}}}",
        "{n, plural, one {# file} other {# files}}",
        "@@A@@",
        "##a_b##",
        "[[a|b]]",
        "<%= a %>",
        "<code>a = 0;</code>",
    ),
    *(
        "example.com/a?b=c",
        "a.example.org",
        "tel:+33123",
        "C:\\a\\b.txt",
        "\\alpha",
        "std::list",
        "f.g()",
        "someNewName",
    ),
    *("fe80::1ff:fe23:4567:890a", "a3d2e0d", "550e8400-e29b-41d4-a716-446655440000"),
    *("https://example.com/a?b=c&d", "www.a.org", "a.b+c@d.org", "`x = [1, 2]`", "``a`b``", "user_{id}"),
    *("王小明", "Привет мир", "שלום", "α", "Håkon", "→", "⌘"),
)
MARKS = (
    *("<b>", "</b>", "<br/>", '<a href="x y">', "</a>", "<!-- no -->", "&nbsp;", "\x01", "\x1b[1m", "\\n", ":smile:"),
    *("😀", "👨‍👩‍👧", "🇫🇷", "1️⃣", "❤️", "…"),
)


@pytest.fixture(scope="module")
def translator():
    return regard.load(DEFAULT, device="cpu")


@pytest.fixture(scope="module")
def ignorant(tmp_path_factory):
    """A model with weights as they were drawn: it copies nothing."""
    return regard.load(save_models(tmp_path_factory.mktemp("ignorant"))[0], device="cpu")


def texts_of(protection, line):
    return [line[span.start : span.end] for span in protection.parts(line) if span.kind != "nothing"]


# --- what is found ---


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("50% of 100%d 5 * 3 * 2 snake_case a < b > c, $5 or US$6; #1, e.g. :-)", []),
        ("(see http://x.org/A_(b)).", ["http://x.org/A_(b)"]),
        ("{a}/{b} user_{id}.txt, {c}.", ["{a}/{b}", "user_{id}.txt", "{c}"]),
        ("%s, %5.1f%%, %(n)d, %1, %2$s, 100%sure %d", ["%s", "%5.1f%%", "%(n)d", "%1", "%2$s", "%d"]),
        (
            "$A ${B} #{c} {% d %} %{e}",
            ["$A ${B} #{c} {% d %} %{e}"[k : k + n] for k, n in ((0, 2), (3, 4), (8, 4), (13, 7), (21, 4))],
        ),
        ("*a* **b** _c_ __D_E__ *f", ["*", "*", "**", "**", "_", "_", "__D_E__"]),
        ("王 小明 and Čapek's «x»", ["王 小明", "Čapek"]),
        ("😀 👨‍👩‍👧, naïve café", ["😀 👨‍👩‍👧"]),
        ("See example.org, a.co.uk/b?c. Home.But e.g. and/or St.Paul", ["example.org", "a.co.uk/b?c"]),
        ("C:\\a b\\c \\n \\nu \\frac{1}{2}. it's", ["C:\\a", "b\\c", "\\n", "\\nu", "\\frac{1}{2}"]),
        ("{n, select, a {b {c}}} {{{d}}} {e: {f}} {g {h", ["{n, select, a {b {c}}}", "{{{d}}}", "{e: {f}}"]),
        ("<code>a < b</code><pre>c <code>d", ["<code>a < b</code>", "<pre>", "<code>"]),
        ('[a](b "c d") [[e|f]] [g]', ["[", '](b "c d")', "[[e|f]]"]),
        ("at 10:30:00, 00:1B:44:11:3A:B7; 20000km covid19 feb8bd6", ["00:1B:44:11:3A:B7", "feb8bd6"]),
        ("a::b c() iPhone McDonald someName :cat: 1:30", ["a::b", "c()", "someName", ":cat:"]),
        ("```python", ["```python"]),
        ("|---|---|", ["|---|---|"]),
        ("a\tb\t", ["\t"]),
    ],
)
def test_spans(translator, line, found):
    spans = Protection(translator.subwords)(line)
    assert [line[span.start : span.end] for span in spans] == found


def test_what_is_not_read_is_what_the_vocabulary_lacks(translator):
    own = Subwords.learn([["кошка сидит на коврике " * 9, "le chat 😀 chat"] * 9], 400)
    assert texts_of(Protection(own), "кошка, 王, γάτα, сад, цвет") == ["王", "γάτα", "цвет"]
    assert texts_of(Protection(translator.subwords), "кошка, 王 cat ½") == ["кошка", "王", "½"]
    many = Subwords.learn([[" ".join(map(chr, range(0x4E00, 0x4E00 + 600)))] * 3], 3000)
    assert texts_of(Protection(many), "龘 cat") == []  # of 600 signs it has read more than it spells


def test_a_long_line_is_read_in_linear_time(translator):
    """About a second of this thread; where each place is compared with every other, these lines take minutes."""
    find, began = Protection(translator.subwords), time.thread_time()
    for line in (
        "<b> " * 9000 + "</i> " * 9000,
        "*a* " * 9000,
        "{" * 20_000,
        "a" * 30_000 + "@",
        "é" * 30_000 + " {x}",
        "{a{b}" * 5000,
        "{" + "{a}" * 6000,
        "\\" * 20_000,
        "<code>" * 5000,
        "a." * 9000 + "a" * 9000,
        "a:" * 9000 + "::" * 9000,
    ):
        assert len(find(line)) <= 18_000
    assert time.thread_time() - began < 30


# --- what comes back ---


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples(translator, line):
    found = translator.translate(line)
    assert re.fullmatch(EXAMPLES[line], found), found


def test_nothing_but_spans_is_not_translated(translator, monkeypatch):
    monkeypatch.setattr(translator.engine, "search", None)
    for line in (
        "https://example.com/a?b=c",
        "{a}: {b}",
        "😀",
        "猫が座った。",
        " <b>{x}</b>\t",
        "---",
        "|--|:-:|",
        "?!",
    ):
        assert translator.outputs([line], nbest=2, beam=2, attention=True)[0].text == line.strip()


FOUR = {"min_size": 4, "max_size": 4}
LINES = st.lists(
    st.builds(
        lambda sentence, words, marks: sentence.format(w=words, m=marks),
        st.sampled_from(SENTENCES),
        st.lists(st.sampled_from(WORDS), **FOUR),
        st.lists(st.sampled_from(["", *MARKS]), **FOUR),
    ),
    min_size=1,
    max_size=6,
)


def check_all_spans_come_back(translator, lines, **options):
    outputs = translator.outputs(lines, attention=True, **options)
    find = Protection(translator.subwords)
    for line, output in zip(lines, outputs, strict=True):
        assert not output.problem and (len(output.translations) == options.get("nbest", 1) or not line.strip())
        for translation in output.translations:
            for text in {*texts_of(find, line)}:
                assert translation.text.count(text) == line.count(text), (line, translation.text, text)
            weights = translator.word_weights(translation)
            assert weights.shape == (len(translation.text.split()), len(line.split()))
            for source, target in translation.copies:
                assert weights[target, source] > 0
            assert "".join("".join(part.read.split()) for part in translation.attention) == "".join(line.split())
            assert "".join(part.written for part in translation.attention).split() or not translation.text


@pytest.mark.slow
@settings(max_examples=6)
@given(LINES, st.integers(1, 3))
@example(["{name} is my friend, and <file> is not.", "{}{} Are you (…) there?"], 3)
@example(["Where is &nbsp;https://example.com/a?b=c&d?&nbsp;"], 1)
def test_every_span_comes_back_once(translator, lines, nbest):
    check_all_spans_come_back(translator, lines, nbest=nbest, beam=max(2, nbest))


@settings(max_examples=6)
@given(LINES, st.booleans())
def test_even_of_a_model_that_copies_nothing(ignorant, lines, sample):
    check_all_spans_come_back(ignorant, lines, nbest=2, max_length=8, **({"sample": True} if sample else {"beam": 2}))


def test_text_without_spans_is_as_before_and_costs_nothing(translator, monkeypatch):
    lines = ["The cat sat on the mat. It's 5 o'clock!", "Is Tom (my friend) here?", "", "naïve « café » 10 %"]
    calls = []
    for name in ("search", "read"):
        do = getattr(translator.engine, name)
        monkeypatch.setattr(
            translator.engine, name, lambda *a, name=name, do=do, **k: calls.append((name, a[:2])) or do(*a, **k)
        )
    found = [translator.outputs(lines, nbest=2, protect=protect) for protect in (True, False)]
    assert found[0] == found[1]
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :] and {name for name, _ in calls} == {"search"}


def test_a_line_does_not_depend_on_the_others(translator):
    lines = [*EXAMPLES, "The cat sat on the mat.", "Hello {name}! Is <b>Tom</b> here, or %s? 😀"]
    together = translator.outputs(lines, nbest=2)
    for line, output in list(zip(lines, together, strict=True))[::4]:
        alone = translator.outputs([line], nbest=2)[0]
        assert [one.text for one in alone.translations] == [one.text for one in output.translations]


def test_what_the_model_copies_is_left_to_it(translator):
    """A letter that no subword spells may still be copied byte by byte: then the translation is the model's own."""
    lines = ["I was born in Łódź.", "The price is 5 €."]
    assert translator.translate(lines) == translator.translate(lines, protect=False)
    assert "Håkon" not in translator.translate("Did you see Håkon?", protect=False)
    assert "Håkon" in translator.translate("Did you see Håkon?")


@pytest.mark.parametrize("prefix", ["Voici", "Salut {name}", "<b>Un", "{name}"])
def test_a_prefix_is_kept_and_its_spans_are_not_written_twice(translator, ignorant, prefix):
    for model in (translator, ignorant):
        for line in ("<b>Hello</b> {name}, it is %s!", "{name}", "😀"):
            (output,) = model.outputs([line], prefix=prefix, max_length=20, attention=True)
            found = output.text
            assert found.startswith(prefix)
            assert model.word_weights(output.translations[0]).shape == (len(found.split()), len(line.split()))
            for text in texts_of(Protection(model.subwords), line):
                assert found.count(text) == 1, found


def test_a_long_address_is_no_long_sentence(translator):
    address = "https://example.com/" + "a/b?c=d&" * 300 + "e"
    (output,) = translator.outputs([f"See {address} for more. My friend is here."])
    assert output.text.count(address) == 1 and output.text.endswith(" ami est ici.") and not output.note
    assert len(sentences(output.text)) == 2


def test_with_another_engine(translator):
    pytest.importorskip("ctranslate2")
    other = regard.load(DEFAULT, engine="ctranslate2", device="cpu")
    lines = ["Hello <b>{name}</b>, see https://example.com/a?b=c!", "The <b>black cat</b> sat on the mat. 😀"]
    assert other.translate(lines) == translator.translate(lines)
    for output in other.outputs(lines, attention=True):
        assert other.word_weights(output.translations[0]).shape[0] == len(output.text.split())


# --- one's own ---


def test_expressions_of_ones_own(translator):
    line = "My friend has read ISO 9001 and {name}."
    for protect in (r"ISO \d+", [r"friend", r"ISO \d+"]):
        found = translator.translate(line, protect=protect)
        assert "ISO 9001" in found and "{name}" in found and ("friend" in found) == (len(protect) == 2)
    assert translator.translate(line, protect=[r"\w*"]).count("friend") == 1
    assert "friend" not in translator.translate(line) and "{name}" not in translator.translate(line, protect=False)


def test_a_model_folder_has_its_own(tmp_path):
    (path, _) = save_models(tmp_path / "off", translate={"protect": False})
    assert regard.load(path, device="cpu").translate("{name}") != "{name}"
    (path, _) = save_models(tmp_path / "own", translate={"protect": ["dogs?"]})
    assert regard.load(path, device="cpu").translate("dogs {name}") == "dogs {name}"
    for bad, told in (("(", "'\\(' is not a regular expression"), (3, "expected true, false or regular expressions")):
        (path, _) = save_models(tmp_path / str(bad), translate={"protect": bad})
        with pytest.raises(ValueError, match=rf"config.toml: \[translate\]: protect: {told}"):
            regard.load(path, device="cpu")


def test_on_the_command_line(run):
    line = "My friend has read ISO 9001 and {name}."
    assert "{name}" in run("translate", line).out.decode()
    own = run("translate", "--protect", r"ISO \d+", "--protect", "friend", line).out.decode()
    assert "ISO 9001" in own and "friend" in own and "{name}" in own
    assert "{name}" not in run("translate", "--no-protect", line).out.decode()
    done = run("translate", "--protect", "(", line)
    assert done.code == 2 and done.out == b"" and done.err.count("\n") == 1
    assert done.err.startswith("regard: error: protect: '(' is not a regular expression: missing )")
    done = run("translate", "-m", "nowhere", "--protect", "(", line)
    assert done.code == 2 and "is not a regular expression" in done.err  # before anything is opened
    done = run("translate", "--protect", "a", "--no-protect", line)
    assert done.code == 2 and "give one of them" in done.err
    done = run("translate", "--no-protect", "--score", __file__, line)
    assert done.code == 2 and "leave out --no-protect" in done.err


# --- who looks at what ---


@pytest.mark.slow
def test_an_expression_that_never_ends_is_refused(translator):
    """Python's own matcher would take years for it, and a model folder may come from anyone."""
    with pytest.raises(ValueError, match=r"protect: '\(a\|aa\)\+\$' takes more than 1 s on a line of 48"):
        translator.translate("a" * 47 + "!", protect="(a|aa)+$")


def test_copies_are_linked_to_what_they_are_copies_of(translator, run):
    line = "Tom and {name} have read `a b` and https://example.com/a?b=c yesterday 😀"
    (output,) = translator.outputs([line], attention=True)
    words, found = line.split(), output.text.split()
    linked = {(words[i], found[j]) for i, j in links(translator.word_weights(output.translations[0]))}
    assert {("{name}", "{name}"), ("`a", "`a"), ("b`", "b`"), ("😀", "😀"), ("yesterday", "hier")} <= linked
    assert not {(a, b) for a, b in linked if (a in found or b in words) and a != b}
    assert run("translate", "--alignment", line).out.decode().strip() == (
        f"{output.text} ||| "
        + " ".join(f"{i}-{j}" for i, j in sorted(links(translator.word_weights(output.translations[0]))))
    )
    drawn = run("translate", "--show", line).out.decode().split("\n")
    assert any(row.strip().startswith("😀") and row.rstrip().endswith("[█]") for row in drawn)


def test_copies_in_a_given_pair_are_linked(translator):
    pair = "I gave {a} to {b} and {a} to Tom 😀", "J'ai donné à {b} {a} et {a} à Tom 😀"
    (found,) = translator.align([pair])
    assert {(i, j) for i, j in found if j in (3, 4, 6, 9)} == {(4, 3), (2, 4), (6, 6), (9, 9)}
    (other,) = translator.align([(pair[0], pair[1].replace("{b}", "{c}"))])
    assert {i for i, j in other if j in (4, 6)} == {2, 6}


def test_a_service_protects_and_shows_it():
    line = "Hello <b>{name}</b>, see https://example.com/a?b=c. Is it 王小明? 😀"
    with serving([str(BUNDLED / DEFAULT)]) as client:
        for path in ("/api/translate", "/api/trace"):
            answer = client.post(path, {"text": line}).json
            for text in texts_of(Protection(regard.load(DEFAULT, device="cpu").subwords), line):
                assert answer["translation"].count(text) == 1
            sides = [[word["text"] for word in answer[side]["words"]] for side in ("source", "target")]
            assert sides == [line.split(), answer["translation"].split()]
            for side in (answer["source"], answer["target"]):
                for each in [*side["tokens"], *side["words"]]:
                    assert each["text"] in ("<s>", "</s>", side["text"][each["start"] : each["end"]])
            linked = {(sides[0][i], sides[1][j]) for i, j in answer["alignment"]["links"]}
            assert {(word, word) for word in ("😀", "<b>{name}</b>,", "https://example.com/a?b=c.")} <= linked
            rows = answer["alignment"]["weights"]
            assert rows[-1] == [0.0] * (len(sides[0]) - 1) + [1.0]  # the emoji looks at nothing else

"""Summarizer and `regard summarize`: what was copied from where, lengths, long and bad documents."""

import dataclasses
import json

import chats
import pytest
import torch
from largest import Largest

import regard
from regard.cli._console import draw_sources, plot_summary
from regard.cli._parser import Parser
from regard.cli.summarize import SEARCH, summarize
from regard.data.documents import flat
from regard.decode import Hypothesis
from regard.tasks.summarization.search import SummarySearch
from regard.tasks.summarization.summarizer import Read, Summary, _subword_words, rank_by_similarity, summary_of
from regard.text import Subwords
from regard.text.graphemes import width


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats")
    chats.train(path)
    return path / "model"


@pytest.fixture(scope="module")
def summarizer(folder):
    return regard.load(folder, device="cpu")


CHAT, WANTED = chats.chats(1, 5)[0]


@pytest.mark.slow
def test_a_summary_tells_what_was_copied_from_where(summarizer):
    found = summarizer.summarize(CHAT)
    assert isinstance(found, regard.tasks.summarization.summarizer.Summary) and str(found) == found.text == WANTED
    assert list(found.words) == found.text.split() and "".join(found.tokens).strip() == found.text
    assert all(CHAT[word.start : word.end] == word.text for word in found.source)
    assert [word.text for word in found.source] == CHAT.split()
    assert found.attention.shape == (len(found.words), len(found.source))
    assert (found.attention >= 0).all() and (found.attention.sum(1) <= 1 + 1e-5).all()
    giver, brings, taker, thing = found.copied
    for copied, word in ((giver, found.words[0]), (taker, found.words[2]), (thing, found.words[3])):
        assert copied.probability > 0.5 and word.strip(".") in found.source[copied.position].text
    assert brings.probability < 0.1 and brings.position is None
    assert found.log_prob <= 0 and summarizer.device.type == "cpu" and "Summarizer" in repr(summarizer)


def test_a_space_that_is_a_subword_by_itself_stays():
    subwords = Subwords.learn([["the cat sat"]], vocab_size=265)  # so few that every word begins with a space alone
    source, written = subwords.encode("a zebra"), [*subwords.encode("the zebra").ids, 2]
    assert subwords.token(written[0]) == " "
    weights = torch.zeros(len(written), len(source.ids) + 1)
    weights[[written.index(subwords.encode("z").ids[1])]] = torch.eye(len(source.ids) + 1)[3]  # z looks at z
    tokens = torch.tensor(written)
    found = summary_of(
        "a zebra", source, Hypothesis(tokens, 0.0, torch.zeros(len(written))), Read(weights, weights), subwords
    )
    assert found.text == "the zebra" and found.words == ("the", "zebra")
    assert found.attention[0].sum() == 0 and found.attention[1, 1] > 0 and found.copied[1].position == 1


def test_what_comes_out_is_in_the_order_of_what_came_in(summarizer):
    some = chats.chats(20, 6)
    documents = [f"{document}\n{'well ' * (i % 4)}" for i, (document, _) in enumerate(some)]
    seen = []
    together = summarizer.summarize(documents, beam=2, batch_tokens=200, progress=seen.append)
    assert sum(seen) == 20 and len(seen) > 2
    for document, found in zip(documents, together, strict=True):
        alone = summarizer.summarize(document, beam=2)
        assert found.text == alone.text
        torch.testing.assert_close(found.attention, alone.attention, rtol=1e-3, atol=1e-4)


def test_lengths_are_kept(summarizer):
    subwords = len(summarizer.summarize(CHAT).tokens)
    assert len(summarizer.summarize(CHAT, max_length=2).tokens) == 2
    assert len(summarizer.summarize(CHAT, min_length=subwords + 3).tokens) >= subwords + 3
    for length in (2, 12):
        assert abs(len(summarizer.summarize(CHAT, length=length).words) - length) <= 0.5 * length + 1
    with pytest.raises(ValueError, match="length: expected at least 1 word, got 0"):
        summarizer.summarize(CHAT, length=0)
    with pytest.raises(TypeError, match="unknown option size"):
        summarizer.summarize(CHAT, size=3)


def test_a_model_that_is_told_the_length_keeps_to_it():
    from regard.data import Corpus, Pairs, batches
    from regard.models import PointerConfig, PointerTransformer
    from regard.tasks.summarization.summarizer import Summarizer
    from regard.tasks.summarization.train import SummaryObjective
    from regard.text import Subwords

    words = ["one", "two", "three", "four", "five", "six", "seven"]
    pairs = [(" ".join(words), " ".join(words[:n])) for n in range(1, 8)] * 4
    subwords = Subwords.learn([[text for pair in pairs for text in pair]], 300)
    torch.manual_seed(0)
    size = {"dim": 32, "ffn_dim": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = PointerTransformer(PointerConfig(vocab_size=len(subwords), **size, told_length=True))
    batch = batches(Corpus.build([Pairs(pairs)], subwords), tokens=4000, shuffle=False)[0]
    objective = SummaryObjective(model, smoothing=0.0, rdrop=0.0, told=1.0).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(120):
        loss = objective(batch.source, batch.source_lengths, batch.target_in, batch.target_out)[0] / batch.tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    told = Summarizer(model, subwords)
    assert [len(told.summarize(pairs[0][0], length=n, beam=1).words) for n in (1, 3, 5, 7)] == [1, 3, 5, 7]


def test_a_consensus_is_what_is_most_like_all(summarizer):
    def of(*tokens):
        return Hypothesis(torch.tensor(tokens), 0.0, torch.zeros(len(tokens)))

    some = [of(9, 9, 9), of(4, 5, 6, 7), of(4, 5, 6), of(4, 5, 8)]
    assert rank_by_similarity(some)[0] is some[2] and rank_by_similarity(some)[-1] is some[0]
    first, second = (summarizer.summarize(CHAT, consensus=4, seed=3).text for _ in range(2))
    assert first == second == WANTED


def test_bad_documents_stop_nothing(summarizer):
    outputs = summarizer.outputs([CHAT, "", " \n ", "a\0b", "\ud800"])
    assert [bool(output.problem) for output in outputs] == [False, True, True, True, True]
    assert outputs[0].text == WANTED and outputs[1].text == ""
    assert [o.problem for o in outputs[1:4]] == [
        "the document is empty",
        "the document is empty",
        "binary data, not text: a NUL character at 1",
    ]
    with pytest.raises(ValueError, match="document 2: the document is empty"):
        summarizer.summarize([CHAT, ""])
    with pytest.raises(TypeError, match="expected lines of text, got bytes"):
        summarizer.summarize([b"x"])


def test_long_documents_are_read_whole_or_refused(folder, summarizer):
    document = "\n".join(["Bako: some tea."] * 400)  # more than it was trained on
    with Largest() as largest:
        (output,) = summarizer.outputs([document], beam=1, max_length=8)
    assert largest.elements < 1_000_000  # no matrix of its words by its tokens, some millions
    assert (
        output.summaries
        and f"longer than any training document ({summarizer.trained:,})" in output.note
        and not output.problem
    )
    assert output.summaries[0].attention.shape[1] == len(document.split())
    told = [json.loads(line)["dialogue"] for line in (folder.parent / "train.jsonl").read_text().splitlines()]
    sizes = [len(row.ids) for row in summarizer.subwords.encode_batch([flat(text) for text in told])]
    assert summarizer.trained == max(sizes)  # the longest that there was, not the longest that might have been
    short, long = told[sizes.index(max(sizes))], told[sizes.index(max(sizes))] + " hi"
    assert [bool(output.note) for output in summarizer.outputs([short, long], beam=1)] == [False, True]
    summarizer.limit = 50
    try:
        (output,) = summarizer.outputs([document])
        assert "the maximum is 50; cut it into parts" in output.problem and not output.summaries
    finally:
        summarizer.limit = regard.tasks.summarization.summarizer.LIMIT


def test_a_narrow_terminal_gets_narrow_lines(monkeypatch, summarizer):
    (output,) = summarizer.outputs([CHAT])
    for terminal, most in ((40, 40), (300, 100)):
        monkeypatch.setenv("COLUMNS", str(terminal))
        drawn = draw_sources(output.summaries[0])
        assert most - 20 < max(map(len, drawn)) <= most


def test_a_drawn_document_fits_the_terminal_in_any_script(monkeypatch, summarizer):
    (output,) = summarizer.outputs([CHAT])
    summary = output.summaries[0]
    chinese = tuple(word._replace(text="東京都" * 30) for word in summary.source)
    monkeypatch.setenv("COLUMNS", "31")
    drawn = draw_sources(dataclasses.replace(summary, source=chinese))
    assert max(map(width, drawn[:-2])) <= 31  # but the legend
    assert sum(line.count("東") for line in drawn) == 30 * len(chinese)


def test_a_folder_of_another_task_is_told(folder, model):
    with pytest.raises(ValueError, match="a model for summarization, and one for translation is needed"):
        regard.tasks.translation.translator.load(folder)
    with pytest.raises(ValueError, match="a model for translation, and one for summarization is needed"):
        regard.tasks.summarization.summarizer.load(model)
    assert regard.tasks.summarization.summarizer.load(folder, int8=True).summarize(CHAT).text == WANTED


# --- the command ---


def test_the_command_searches_as_the_library_does():
    """Its options are fields of the search; what is not given the search decides."""
    assert SEARCH.settings is SummarySearch
    assert {*SEARCH.flags} == {"beam", "length_penalty", "min_length", "max_length", "no_repeat"}
    given = Parser("regard summarize", "").parameters(summarize).values(["-m", "x", "--beam", "2", "text"])
    assert given == {"model": "x", "beam": 2, "text": ["text"]}


def test_arguments_files_lines_json_and_stdin(run, folder, tmp_path):
    (tmp_path / "chat.txt").write_text(CHAT)
    other, other_wanted = chats.chats(2, 6)[1]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"d": d}) + "\n" for d in (CHAT, other)))
    (tmp_path / "lines").write_text(CHAT.replace("\r\n", " ") + "\n" + other.replace("\r\n", " ") + "\n")
    for arguments, stdin in (
        (["-i", tmp_path / "chat.txt"], b""),
        ([CHAT], b""),
        ([], CHAT.encode()),
        (["-i", "-"], CHAT.encode()),
    ):
        done = run("summarize", "-m", folder, *arguments, stdin=stdin)
        assert (done.code, done.lines, done.err) == (0, [WANTED], "")
    done = run("summarize", "-m", folder, "-i", tmp_path / "d.jsonl", "--key", "d", "-o", tmp_path / "out")
    assert done.code == 0 and done.out == b""
    assert (tmp_path / "out").read_text().splitlines() == [WANTED, other_wanted]
    assert len(run("summarize", "-m", folder, "--lines", "-i", tmp_path / "lines").lines) == 2
    done = run("summarize", "-m", folder, "-i", tmp_path / "chat.txt", "-i", tmp_path / "chat.txt", "--int8")
    assert done.lines == [WANTED, WANTED]


def test_show_draws_what_was_copied(run, folder):
    done = run("summarize", "-m", folder, "--show", CHAT)
    giver, _, taker, _ = WANTED.split()
    drawn = done.out.decode()
    assert done.lines[0] == WANTED and f"[{giver}] brings [{taker}]" in drawn and f"[{giver}:]" in drawn
    assert "█" in drawn and "[copied]" in drawn


def test_a_figure_of_the_first_summary(run, folder, tmp_path):
    pytest.importorskip("matplotlib")
    done = run("summarize", "-m", folder, "", CHAT, "--plot", tmp_path / "s.svg")
    giver, _, taker, _ = WANTED.split()
    drawn = (tmp_path / "s.svg").read_text()
    assert done.code == 0 and done.lines == ["", WANTED]
    assert all(f">{word}</text>" in drawn for word in (f"[{giver}]", "brings", f"[{taker}]", f"[{giver}:]"))
    done = run("summarize", "-m", folder, CHAT, "--plot", tmp_path / "s.doc")
    assert done.code == 2 and "expected a name that ends in .svg" in done.err


def test_of_a_summary_without_words_there_is_no_figure(tmp_path, capsys):
    plot_summary(tmp_path / "s.svg", Summary("", (), (), (), torch.zeros(0, 3), (), 0.0, 0.0))
    assert "s.svg: not drawn, the first summary has no words" in capsys.readouterr().err
    assert not (tmp_path / "s.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        ([], b"", "standard input: the document is empty"),
        ([], b"\x00\x01", "binary data"),
        ([], b"abc\xff", "not UTF-8 (byte 0xff at 3)"),
        (["--key", "d"], b"{", "standard input:1: not JSON"),
        (["--key", "d"], b'{"x": "y"}', "expected a string or a list of strings under 'd'"),
        (["--key", "d", "--lines"], b"", "give one of them"),
        (["--min-length", "9", "--max-length", "3", "x"], b"", "--max-length 3 is less than --min-length 9"),
        (["-i", "nowhere.txt"], b"", "nowhere.txt: No such file"),
        (["-i", "nowhere.txt", "x"], b"", "not both"),
        (["-i", "."], b"", "expected a file, got a folder"),
        (["--show"], b"abc\xff", "not UTF-8 (byte 0xff at 3)"),
        (["--lines"], b"", "there are no documents"),
        (["--key", "d"], b"", "there are no documents"),
        (["--plot", "nowhere/s.svg", "x"], b"", "there is no folder nowhere"),
    ],
)
def test_mistakes_are_told_in_a_line(run, folder, arguments, stdin, says):
    done = run("summarize", "-m", folder, *arguments, stdin=stdin)
    assert done.code == 2 and says in done.err and "Traceback" not in done.err


def test_one_bad_document_of_two(run, folder, tmp_path):
    (tmp_path / "kept").write_text("before")
    done = run("summarize", "-m", folder, " ", "--output", tmp_path / "kept")
    assert done.code == 2 and "1 of 1 documents could not be used" in done.err
    assert (tmp_path / "kept").read_text() == "before"
    done = run("summarize", "-m", folder, "--lines", stdin=CHAT.replace("\r\n", " ").encode() + b"\n\xff\n")
    assert done.code == 0 and done.lines[1] == "" and "1 of 2 documents could not be used" in done.err
    done = run("summarize", "-m", folder, "--lines", "--strict", stdin=b"\xff\n")
    assert done.code == 2 and "not UTF-8" in done.err
    done = run("summarize", "-m", "en-fr-nowhere", "x")
    assert done.code == 2 and "there is no such model folder" in done.err


def test_bad_documents_among_others_are_drawn_over(run, folder, tmp_path):
    """What could not be read has no summaries: neither a drawing nor a figure asks for them."""
    lines = b'{"x": 1}\n' + json.dumps({"d": CHAT}).encode() + b"\n\xff\n"
    done = run("summarize", "-m", folder, "--key", "d", "--show", "--plot", tmp_path / "s.svg", stdin=lines)
    assert done.code == 0 and "2 of 3 documents could not be used" in done.err and "█" in done.out.decode()
    assert (tmp_path / "s.svg").exists()
    (tmp_path / "kept").write_text("before")
    done = run("summarize", "-m", folder, "--lines", "--output", tmp_path / "kept", stdin=b"")
    assert done.code == 2 and (tmp_path / "kept").read_text() == "before"


def test_a_summary_that_was_ended_is_told(run, folder, summarizer):
    done = run("summarize", "-m", folder, "--max-length", "2", CHAT)
    assert done.code == 0 and "argument 1: the summary was ended at 2 subwords, the maximum" in done.err
    (whole,) = summarizer.outputs([CHAT])
    assert not whole.note


def test_marks_of_line_ends_are_in_no_summary():
    subwords = Subwords.learn([["Ann ¶ Bob¶ Cy¶Dee ¶"] * 20], 300)
    for text, lines in (("Ann ¶ Bob", "Ann\nBob"), ("Ann¶ Bob ¶", "Ann\nBob"), ("Ann¶Bob Cy", "AnnBob Cy")):
        found, words, groups = _subword_words(subwords.encode(text).ids, subwords)
        assert found == lines and list(words) == lines.split() and len(groups) == len(words)


def test_rouge_from_the_command_line(run, folder, tmp_path):
    rows = [{"d": [CHAT, " "], "s": WANTED}, {"d": CHAT, "s": [WANTED, "Nobody knows."]}]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("evaluate", "--model", folder, "--documents", path, "--keys", "d", "s", "--json")
    (found,) = json.loads(done.out)
    assert done.code == 0 and [score["name"] for score in found["scores"]] == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]
    assert found["scores"][0]["score"] == pytest.approx(100) and "2 documents" in found["scores"][0]["signature"]
    done = run("evaluate", "--model", folder, "--documents", path, "--keys", "d", "s")
    assert "ROUGE-2 100.00   rouge-score" in done.out.decode()
    for arguments, says in (
        (["--documents", path, "--questions", path], "give one of them"),
        (["--documents", path, "--reference", path], "--reference: for translations"),
        (["out.fr", "--documents", path], "out.fr: for translations"),
        (["--documents", path], "no such key, but 'd', 's'"),
        (["--source", path, "--reference", path], "`regard summarize` uses this one"),
        ([], "give --reference"),
    ):
        done = run("evaluate", "--model", folder, *arguments)
        assert done.code == 2 and says in done.err, (arguments, done.err)

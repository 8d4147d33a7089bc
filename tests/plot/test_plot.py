"""The figures: what is drawn are the numbers, labels the tokens in any script; files are whole and repeatable."""

import builtins
import itertools
import math
import subprocess
import sys
import threading
import warnings
from collections import Counter
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import regard
from regard import plot
from regard.align import Alignment
from regard.mask import Causal
from regard.models import Transformer, TransformerConfig
from regard.plot import _text

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import PathPatch, Rectangle  # noqa: E402
from matplotlib.text import Text  # noqa: E402

ENGLISH = ["the", "black", "dogs", "do", "not", "run", "."]
FRENCH = ["les", "chiens", "noirs", "ne", "courent", "pas", "."]
HEBREW = ["הכלב", "הגדול", "רודף", "אחרי", "החתול", "(3)", "."]
ARABIC = ["الكلب", "الكبير", "يطارد", "القطة", "في", "الحديقة", "."]
CHINESE = ["那", "只", "大", "狗", "追", "猫", "。"]
ODD = ["$x_1^2$", "a\\b", "_", "^", "\n", " ", "100%"]


def weights(*shape, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.softmax(3 * torch.randn(*shape, generator=random), -1)


def one_query(count=7, dims=5, query=4):
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, count, dims, generator=random)
    steps = regard.steps(q, k, v, mask=Causal())
    parts = {name: getattr(steps, name)[0, query] for name in ("similarity", "scaled", "masked", "weights", "context")}
    return SimpleNamespace(**parts, weighted=parts["weights"][:, None] * v[0], score="Dot()", counterfactual=False)


@pytest.fixture(scope="module")
def trace():
    """An encoder-decoder on two pairs of sentences: five words of English, seven of French."""
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=30, dim=16, ffn_dim=16, heads=2, encoder_layers=2, decoder_layers=1)
    model = Transformer(config).eval()
    with torch.no_grad(), regard.record(model) as trace:
        model(torch.randint(4, 30, (2, 5)), torch.randint(4, 30, (2, 7)))
    trace.label(ENGLISH[:5], kind="self")
    trace.label(FRENCH, ENGLISH[:5], kind="cross")
    return trace


def image_of(figure, axes=0):
    return figure.axes[axes].images[0]


def texts(figure):
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def row_labels(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def column_labels(figure):
    return [label.get_text() for label in figure.axes[0].get_xticklabels()]


def arcs_of(figure):
    """(query, key) → width in points."""
    return {
        tuple(map(int, patch.get_label().split("-"))): patch.get_linewidth()
        for patch in figure.axes[0].patches
        if isinstance(patch, PathPatch)
    }


# --- heatmaps ---


@pytest.mark.parametrize("kind", [lambda w: w, lambda w: w.numpy(), lambda w: w.tolist(), lambda w: w.bfloat16()])
def test_a_heatmap_has_the_numbers_it_was_given(kind):
    given = kind(weights(7, 6))
    figure = plot.heatmap(given, ENGLISH, FRENCH[:6])
    assert isinstance(figure, Figure)
    assert np.array_equal(image_of(figure).get_array(), torch.as_tensor(given).double().numpy())
    assert row_labels(figure) == ENGLISH and column_labels(figure) == FRENCH[:6]


def test_gradients_are_no_obstacle():
    plot.heatmap(weights(3, 3).requires_grad_())


def test_small_matrices_have_their_numbers_written():
    given = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    cells = list(plot.heatmap(given).axes[0].texts)
    assert [t.get_text() for t in cells] == ["0.25", "0.75", "1.00", "0.00"]
    assert [t.get_position() for t in cells] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert cells[2].get_color() == "white" and cells[3].get_color() != "white"
    assert not plot.heatmap(weights(11, 3)).axes[0].texts
    assert len(plot.heatmap(weights(11, 3), values=True).axes[0].texts) == 33


def test_zero_is_white_and_more_is_darker():
    image = image_of(plot.heatmap(weights(4, 4)))
    assert image.norm.vmin == 0 and image.norm.vmax == weights(4, 4).double().max()
    assert to_hex(image.cmap(0.0)) == "#ffffff"
    shades = np.array([image.cmap(x)[:3] for x in np.linspace(0, 1, 50)])
    linear = np.where(shades <= 0.04045, shades / 12.92, ((shades + 0.055) / 1.055) ** 2.4)
    assert (np.diff(linear @ [0.2126, 0.7152, 0.0722]) < 0).all()


def test_numbers_below_zero_have_white_in_the_middle():
    image = image_of(plot.heatmap([[-2.0, 1.0], [0.0, 0.5]]))
    assert (image.norm.vmin, image.norm.vmax) == (-2, 2)
    assert min(image.cmap(image.norm(0.0))[:3]) > 0.98
    assert to_hex(image.cmap(image.norm(-2.0))) != to_hex(image.cmap(image.norm(2.0)))


def test_what_is_masked_is_grey_and_not_on_the_scale():
    figure = plot.heatmap([[1.0, -math.inf], [3.0, 2.0]], measure="score")
    image = image_of(figure)
    assert np.ma.getmaskarray(np.ma.masked_invalid(image.get_array())).tolist() == [[False, True], [False, False]]
    assert (image.norm.vmin, image.norm.vmax) == (0, 3) and to_hex(image.cmap(np.nan)) == "#d4d4d8"
    assert "–" in texts(figure)


def test_the_colour_bar_says_what_is_measured():
    assert plot.heatmap(weights(3, 3)).axes[1].get_ylabel() == "attention weight"
    assert plot.heatmap(weights(3, 3), measure="$ entropy $").axes[1].get_ylabel() == "$ entropy $"


def test_the_scale_can_be_shared():
    assert image_of(plot.heatmap(weights(3, 3), largest=0.5)).norm.vmax == 0.5
    assert image_of(plot.heatmap(weights(3, 3), cmap="viridis")).cmap.name == "viridis"


def test_labels_of_a_long_matrix_do_not_overlap():
    words = [f"w{i}" for i in range(300)]
    figure = plot.heatmap(weights(300, 300), words, words)
    figure.draw_without_rendering()
    shown = row_labels(figure)
    assert shown[:2] == ["w0", shown[1]] and 20 < len(shown) < 150
    assert all(label == words[round(place)] for label, place in zip(shown, figure.axes[0].get_yticks(), strict=True))
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(above.y0 >= below.y1 - 1 for above, below in itertools.pairwise(boxes))


@pytest.mark.parametrize("shape", [(3, 3), (40, 7), (7, 40), (1, 1), (120, 120), (5, 300)])
def test_nothing_is_cut_off(shape):
    figure = plot.heatmap(weights(*shape), ["extraordinarily"] * shape[0], ["unbelievably"] * shape[1], heading="title")
    figure.draw_without_rendering()
    inside = figure.bbox.padded(1)
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert inside.x0 <= box.x0 and box.x1 <= inside.x1, text
            assert inside.y0 <= box.y0 and box.y1 <= inside.y1, text


def test_the_largest_of_a_block_is_seen_in_a_very_long_matrix():
    big = torch.zeros(3000, 10)
    big[1234, 3] = 0.75
    image = image_of(plot.heatmap(big, values=False))
    assert image.get_array().shape == (1000, 10) and image.get_array().max() == 0.75
    assert image.get_extent() == [-0.5, 9.5, 2999.5, -0.5]


def test_axes_of_the_user_are_drawn_on():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot.heatmap(weights(3, 3), ax=right) is figure
    assert right.images and not left.images
    part = figure.subfigures(1, 1).subplots()
    assert plot.arcs(weights(3, 3), ["a", "b", "c"], query=0, ax=part) is figure


# --- arcs ---


def test_arcs_are_as_wide_as_their_weights():
    given = weights(7, 7)
    drawn = arcs_of(plot.arcs(given, ENGLISH, query=2, top=4))
    values, keys = given[2].double().topk(4)
    assert drawn == pytest.approx({(2, k): 14 * w for w, k in zip(values.tolist(), keys.tolist(), strict=True)})


def test_one_row_is_enough():
    row = weights(7)
    assert arcs_of(plot.arcs(row, ENGLISH, query=3)) == arcs_of(plot.arcs(row.expand(7, 7), ENGLISH, query=3))
    assert set(arcs_of(plot.arcs(row, ENGLISH, query=-1, top=1))) == {(6, int(row.argmax()))}


def test_the_rest_is_stated():
    row = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    said = texts(plot.arcs(row, ENGLISH[:5], query=0, top=2))
    assert "width: attention weight; the 2 largest, 25.0 % is on the other 3 words" in said
    assert {"50 %", "25 %"} <= set(said) and "12 %" not in said
    assert "width: attention weight" in texts(plot.arcs(row, ENGLISH[:5], query=0, top=9))


def test_what_does_not_sum_to_one_is_no_percentage():
    figure = plot.arcs([4.0, 8.0, 2.0], ["a", "b", "c"], query=0, top=2, measure="norm")
    assert arcs_of(figure) == {(0, 1): 14.0, (0, 0): 7.0}
    assert {"4", "8", "width: norm; the 2 largest, 2 is on the other 1 word"} <= set(texts(figure))
    small = plot.arcs([0.2, 0.4, 0.1], ["a", "b", "c"], query=0, top=2, measure="norm")
    assert {"0.2", "0.4", "width: norm; the 2 largest, 0.1 is on the other 1 word"} <= set(texts(small))
    assert arcs_of(small) == pytest.approx({(0, 1): 14.0, (0, 0): 7.0})


def test_a_word_that_looks_at_nothing_has_no_arcs():
    figure = plot.arcs(torch.zeros(3, 3), ["a", "b", "c"], query=1)
    assert not arcs_of(figure) and {"a", "b", "c"} <= set(texts(figure))
    assert not arcs_of(plot.arcs(torch.zeros(3, 3), ["a", "b", "c"], np.array(["d", "e", "f"])))


def test_arcs_between_two_lines():
    given = weights(7, 5)
    figure = plot.arcs(given, ENGLISH[:5], FRENCH, top=2)
    assert Counter(query for query, _ in arcs_of(figure)) == dict.fromkeys(range(7), 2)
    place = {(t.get_text(), round(t.get_position()[1])) for t in figure.axes[0].texts}
    assert {(word, 0) for word in ENGLISH[:5]} | {(word, -96) for word in FRENCH} <= place
    assert set(arcs_of(plot.arcs(given, ENGLISH[:5], FRENCH, query=4, top=1))) == {(4, int(given[4].argmax()))}


def test_arcs_start_and_end_at_their_words():
    figure = plot.arcs(weights(7, 7), ENGLISH, query=2, top=7)
    middle = {t.get_text(): t.get_position()[0] for t in figure.axes[0].texts}
    for patch in figure.axes[0].patches:
        query, key = map(int, patch.get_label().split("-"))
        start, *_, end = patch.get_path().vertices
        assert abs(start[0] - middle[ENGLISH[query]]) <= 7
        assert query == key or end[0] == pytest.approx(middle[ENGLISH[key]])


def test_a_sentence_read_from_the_right_runs_from_the_right():
    def places(words):
        figure = plot.arcs(weights(7, 7), words, query=0)
        found = {t.get_text(): t.get_position()[0] for t in figure.axes[0].texts}
        return [found[_text.visual_order(word)] for word in words]

    assert places(ENGLISH) == sorted(places(ENGLISH))
    assert places(HEBREW) == sorted(places(HEBREW), reverse=True)


def test_a_long_sentence_names_what_matters():
    words = [f"token{i}" for i in range(400)]
    row = torch.full((400,), 0.4 / 398)
    row[17], row[300] = 0.35, 0.25
    said = texts(plot.arcs(row, words, query=200, top=2))
    assert {"token17", "token200", "token300"} <= set(said) and "token18" not in said


# --- all heads ---


def test_a_grid_has_every_head_in_the_same_colours():
    given = weights(2, 3, 6, 6)
    given[1, 2, 0] = torch.eye(6)[0]
    figure = plot.head_grid(given)
    thumbnails = figure.axes[:6]
    assert [ax.get_title() for ax in thumbnails] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    for ax, matrix in zip(thumbnails, given.flatten(0, 1), strict=True):
        assert np.array_equal(ax.images[0].get_array(), matrix.double().numpy())
        assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (0, 1)
    assert figure.axes[6].get_ylabel() == "attention weight"


def test_a_thumbnail_keeps_the_largest_numbers():
    big = torch.zeros(1, 1, 500, 500)
    big[0, 0, 333, 77] = 1
    array = plot.head_grid(big).axes[0].images[0].get_array()
    assert max(array.shape) <= 64 and array.max() == 1 and array.sum() == 1


# --- alignments ---


def test_an_alignment_has_squares_and_frames():
    given = weights(7, 7)
    gold = Alignment(frozenset({(0, 0), (2, 1), (1, 2)}), frozenset({(0, 0), (2, 1), (1, 2), (4, 5)}))
    found = {(0, 0), (2, 1), (4, 5), (6, 6)}
    figure = plot.alignment(given, ENGLISH, FRENCH, links=found, gold=gold)
    ax = figure.axes[0]
    assert np.array_equal(image_of(figure).get_array(), given.double().numpy())
    assert row_labels(figure) == FRENCH and column_labels(figure) == ENGLISH
    (squares,) = [line for line in ax.get_lines() if line.get_label() == "link"]
    assert set(zip(*map(np.ndarray.tolist, map(np.asarray, squares.get_data())), strict=True)) == found
    frames = {}
    for patch in (p for p in ax.patches if isinstance(p, Rectangle)):
        middle = round(patch.get_x() + patch.get_width() / 2), round(patch.get_y() + patch.get_height() / 2)
        frames.setdefault(patch.get_label(), set()).add(middle)
    assert frames == {"sure": gold.sure, "possible": {(4, 5)}}
    assert ax.get_title(loc="left") == "AER 28.6 %"  # 1 − (2 + 3) / (4 + 3)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["found", "gold, sure", "gold, possible"]


def test_without_gold_links_there_is_no_error_rate():
    given = weights(7, 7)
    figure = plot.alignment(given, ENGLISH, FRENCH)
    (squares,) = [
        line for line in figure.axes[0].get_lines() if isinstance(line, Line2D) and line.get_label() == "link"
    ]
    assert dict(zip(squares.get_ydata(), squares.get_xdata(), strict=True)) == dict(
        enumerate(given.argmax(-1).tolist())
    )
    assert figure.axes[0].get_title(loc="left") == ""
    plain = plot.alignment(given, ENGLISH, FRENCH, gold={(0, 0)}, links={(0, 0)}, heading="a")
    assert plain.axes[0].get_title(loc="left") == "a · AER 0.0 %"


# --- steps ---


def test_steps_show_every_number():
    given = one_query()
    figure = plot.steps(given, ENGLISH, query="not")
    bars = [[patch.get_width() for patch in ax.patches] for ax in figure.axes[:4]]
    assert bars[0] == pytest.approx(given.similarity.tolist()) and bars[1] == pytest.approx(given.scaled.tolist())
    assert bars[2] == pytest.approx([*given.scaled[:5].tolist(), 0, 0])
    assert bars[3] == pytest.approx(given.weights.tolist())
    numbers = [[text.get_text() for text in ax.texts] for ax in figure.axes[:4]]
    assert numbers[0] == [f"{x:.2f}".replace("-", "−") for x in given.similarity.tolist()]
    assert numbers[2][5:] == ["−∞", "−∞"] and numbers[3] == [f"{x:.3f}" for x in given.weights.tolist()]
    assert row_labels(figure) == ENGLISH
    images = [ax.images[0].get_array() for ax in figure.axes if ax.images]
    assert np.array_equal(images[0], given.weighted.double().numpy())
    assert np.array_equal(images[1], given.context.double().numpy()[None])
    assert {"“not” attends by Dot()", "2 of 7 hidden", "eˣ / Σ eˣ\nsum 1.000"} <= set(texts(figure))


def test_steps_of_many_keys_show_those_with_weight():
    given = one_query(count=60, query=59)
    figure = plot.steps(given, most=5)
    kept = sorted(given.weights.topk(5).indices.tolist())
    assert row_labels(figure) == [*map(str, kept), "55 more"]
    rest = [i for i in range(60) if i not in kept]
    assert figure.axes[3].patches[-1].get_width() == pytest.approx(float(given.weights[rest].sum()), rel=1e-5)
    strips = next(ax.images[0].get_array() for ax in figure.axes if ax.images)
    assert np.asarray(strips.sum(0)) == pytest.approx(given.context.numpy(), abs=1e-5)


def test_a_counterfactual_says_so():
    given = one_query()
    given.counterfactual = True
    assert any("counterfactual" in text for text in texts(plot.steps(given, query="not")))


# --- a trace instead of numbers ---


def test_a_heatmap_of_a_trace(trace):
    figure = plot.heatmap(trace, layer=1, head=0)
    assert np.array_equal(image_of(figure).get_array(), trace.weights(1, 0).double().numpy())
    assert row_labels(figure) == column_labels(figure) == ENGLISH[:5]
    assert "self-attention, layer 1, head 0" in texts(figure)
    other = plot.heatmap(trace, layer=1, measure="norms", item=1)
    assert np.array_equal(image_of(other).get_array(), trace.norms(1, item=1).double().mean(0).numpy())
    assert row_labels(other) == list("01234") and "self-attention, layer 1, mean of the heads" in texts(other)
    masked = image_of(plot.heatmap(trace, layer=0, head=1, kind="decoder", measure="scores")).get_array()
    assert np.isnan(np.ma.filled(masked, np.nan)).sum() == 21


def test_other_figures_of_a_trace(trace):
    grid = plot.head_grid(trace)
    assert [ax.get_title() for ax in grid.axes[:4]] == ["0.0", "0.1", "1.0", "1.1"]
    assert np.array_equal(grid.axes[2].images[0].get_array(), trace.weights(1, 0).double().numpy())
    one = trace.topk(0, 1, 2, k=1)
    assert arcs_of(plot.arcs(trace, layer=0, head=1, query=2, top=1)) == {(2, int(one.keys)): 14 * one.values.item()}
    crossed = plot.arcs(trace, layer=0, head=1, kind="cross", top=1)
    assert len(arcs_of(crossed)) == 7 and set(ENGLISH[:5] + FRENCH) <= set(texts(crossed))
    aligned = plot.alignment(trace, layer=0, head=1)
    assert column_labels(aligned) == ENGLISH[:5] and row_labels(aligned) == FRENCH
    taken = trace.steps(0, 1, 3, kind="cross")
    bars = plot.steps(taken, ENGLISH[:5], query=FRENCH[3]).axes[3].patches
    assert [bar.get_width() for bar in bars] == pytest.approx(taken.weights.tolist())


def test_a_call_of_generation_has_its_own_labels():
    layer = regard.nn.MultiHeadAttention(8, 2)
    with regard.record(layer) as trace:
        for rows in (4, 1, 1):
            layer(torch.ones(1, rows, 8), torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))
    (kind,) = trace.kinds
    trace.label(list("abcdef"), list("wxyz"), kind=kind)
    assert row_labels(plot.heatmap(trace, layer=0, head=0, kind=kind)) == ["f"]
    assert row_labels(plot.heatmap(trace, layer=0, head=0, kind=kind, call=0)) == list("abcd")
    assert row_labels(plot.heatmap(trace, layer=0, head=0, kind=kind, call=None)) == list("abcdef")


# --- labels ---

SHAPED = [HEBREW, ARABIC] if _text.shapes_text() else []  # before matplotlib 3.11 the letters' order is made by us


@pytest.mark.parametrize("words", [*SHAPED, ODD], ids=lambda words: words[0])
def test_labels_are_the_tokens(words):
    shown = {"\n": "⏎", " ": "␣"}
    expected = [shown.get(word, word) for word in words]
    figure = plot.heatmap(weights(7, 7), words, words)
    assert row_labels(figure) == column_labels(figure) == expected
    figure.draw_without_rendering()
    tokens = [text for text in figure.findobj(Text) if text.get_text() in expected]
    assert len(tokens) >= 14 and not any(text.get_parse_math() for text in tokens)


def test_formulas_in_tokens_reach_the_file_as_text(tmp_path):
    plot.save(plot.heatmap(weights(7, 7), ODD, ODD, heading="$a_b$"), tmp_path / "a.svg")
    found = [node.text for node in ElementTree.parse(tmp_path / "a.svg").iter() if node.tag.endswith("}text")]
    assert {"$x_1^2$", "a\\b", "_", "^", "⏎", "␣", "100%", "$a_b$"} <= set(found)


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("\u202eabc", "‹U+202E›abc"),
        ("\u200b", "‹U+200B›"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u200d", "‹U+200D›"),
        ("\ud83d", "‹U+D83D›"),
        ("\u0301", "◌\u0301"),
        ("a\rb", "a␍b"),
        ("x" * 40, "x" * 12 + "…" + "x" * 12),
        ("Ġthe", "Ġthe"),
    ],
)
def test_nothing_invisible_is_drawn(token, label):
    assert _text.label_of(token) == label


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("שלום", "םולש"),
        ("abc", "abc"),
        ("שלום 123", "123 םולש"),
        ("(שלום)", "(םולש)"),
        ("v2-שלום", "v2-םולש"),
        ("שִׁ", "שִׁ"),
    ],
)
def test_the_order_made_for_an_old_matplotlib(text, seen):
    assert _text.visual(text) == seen


@pytest.fixture
def told():
    """Warnings that are given once per process are given again."""
    _text._warn_once.cache_clear()
    yield
    _text._warn_once.cache_clear()


def test_an_old_matplotlib_gets_letters_in_order_and_no_text_in_svg(monkeypatch, tmp_path, told):
    for module in (_text, plot._canvas):
        monkeypatch.setattr(module, "shapes_text", lambda: False)
    figure = plot.heatmap(weights(7, 7), HEBREW, ENGLISH)
    assert row_labels(figure)[0] == HEBREW[0][::-1]
    plot.save(figure, tmp_path / "a.svg")
    assert b"<text" not in (tmp_path / "a.svg").read_bytes()
    with pytest.warns(UserWarning, match="unjoined by this matplotlib: 3.11"):
        plot.heatmap(weights(7, 7), ARABIC)


def test_a_missing_font_is_told_once_and_svg_has_the_text(monkeypatch, tmp_path, told):
    had = _text._glyphs_of
    monkeypatch.setattr(_text, "_glyphs_of", lambda name, chars: had(name, [c for c in chars if c not in "狗猫"]))
    monkeypatch.setattr(_text, "_other_fonts", list)
    words = ["狗", "猫"]
    with pytest.warns(UserWarning, match="no installed font has 狗 猫 .*CJK.*Noto") as caught:
        figure = plot.heatmap(weights(2, 2), words, words)
    assert len(caught) == 1 and caught[0].filename == __file__
    plot.heatmap(weights(2, 2), words, words)  # a second warning would fail this test
    for name in ("a.svg", "a.png", "a.pdf"):
        plot.save(figure, tmp_path / name)  # matplotlib's own warnings would fail this test
    assert "狗" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_a_font_that_has_the_characters_is_chosen(monkeypatch):
    sets = {"DejaVu Sans": "é", "One": "狗", "Two": "狗猫", "Three": "ก"}
    monkeypatch.setattr(_text, "_glyphs_of", lambda name, chars: {c for c in chars if c in sets[name]})
    monkeypatch.setattr(_text, "_other_fonts", lambda: ["One", "Two", "Three"])
    assert _text.families(["é"]) == ["DejaVu Sans", "sans-serif"]
    assert _text.families(["a狗", "猫"]) == ["DejaVu Sans", "One", "Two", "sans-serif"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _text.families(["ก", "Ⴀ"]) == ["DejaVu Sans", "Three", "sans-serif"]


# --- files ---

FIGURES = {
    "heatmap": lambda: plot.heatmap(weights(7, 7), ENGLISH, HEBREW),
    "arcs": lambda: plot.arcs(weights(7, 7), ENGLISH, query=1),
    "two lines": lambda: plot.arcs(weights(7, 7), HEBREW, FRENCH),
    "grid": lambda: plot.head_grid(weights(2, 2, 5, 5)),
    "alignment": lambda: plot.alignment(weights(7, 7), ENGLISH, FRENCH, gold={(0, 0)}),
    "steps": lambda: plot.steps(one_query(), ENGLISH),
}


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_every_figure_in_every_format(make, tmp_path):
    figure, before = make(), dict(matplotlib.rcParams)
    for name in ("a.svg", "b.PNG", "c.pdf"):
        plot.save(figure, tmp_path / name)
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert (tmp_path / "b.PNG").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF-")
    assert dict(matplotlib.rcParams) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.PNG", "c.pdf"]


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_same_figure_is_the_same_file(suffix, tmp_path):
    for name in "ab":
        plot.save(FIGURES["alignment"](), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_text_in_svg_is_text_or_paths(tmp_path):
    figure = FIGURES["arcs"]()
    plot.save(figure, tmp_path / "text.svg")
    plot.save(figure, tmp_path / "paths.svg", paths=True)
    assert b">black</text>" in (tmp_path / "text.svg").read_bytes()
    assert b"<text" not in (tmp_path / "paths.svg").read_bytes()


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.svg.gz"])
def test_other_suffixes_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"a.*: expected a name that ends in .svg, .png or .pdf, got"):
        plot.save(FIGURES["arcs"](), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_file_and_the_settings(tmp_path, monkeypatch):
    path, before = tmp_path / "a.svg", dict(matplotlib.rcParams)
    path.write_text("old")
    figure = FIGURES["arcs"]()
    monkeypatch.setattr("regard.files.whole.os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(OSError, match="no space left"):
        plot.save(figure, path)
    monkeypatch.undo()
    monkeypatch.setattr(figure, "savefig", lambda file, **_: file.write(b"<svg") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        plot.save(figure, path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_many_threads_make_the_same_files(tmp_path):
    before = dict(matplotlib.rcParams)

    def work(i):
        for name, make in FIGURES.items():
            plot.save(make(), tmp_path / f"{name}{i}.svg")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in FIGURES:
        assert len({(tmp_path / f"{name}{i}.svg").read_bytes() for i in range(3)}) == 1
    assert dict(matplotlib.rcParams) == before


DARK = {
    "axes.edgecolor": "white",
    "axes.facecolor": "black",
    "axes.grid": True,
    "axes.labelcolor": "white",
    "figure.facecolor": "black",
    "font.size": 30,
    "image.cmap": "gray",
    "lines.linewidth": 5,
    "savefig.facecolor": "black",
    "text.color": "white",
    "xtick.color": "white",
    "ytick.color": "white",
}


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_a_users_style_does_not_spoil_a_figure(make, tmp_path):
    plot.save(make(), tmp_path / "plain.svg")
    with matplotlib.rc_context(DARK):
        plot.save(make(), tmp_path / "styled.svg")
    assert (tmp_path / "plain.svg").read_text() == (tmp_path / "styled.svg").read_text()


@pytest.mark.slow
def test_pyplot_is_not_loaded():
    code = "import sys, regard.plot as p; p.heatmap([[1.0]]); print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- errors ---


def test_without_matplotlib(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r'figures need matplotlib: pip install "regard\[plot\]"'):
        plot.heatmap([[1.0]])


ERRORS = [
    (lambda: plot.heatmap(weights(3)), r"expected numbers \[queries, keys\], got shape \(3,\)"),
    (lambda: plot.heatmap(torch.zeros(0, 3)), r"at least one of each, got shape \(0, 3\)"),
    (lambda: plot.heatmap(weights(3, 3), ["a", "b"]), "rows: expected 3 labels, one for each number, got 2"),
    (lambda: plot.head_grid(weights(3, 3)), r"expected numbers \[layers, heads, queries, keys\], got shape \(3, 3\)"),
    (lambda: plot.arcs(weights(3, 3), ["a", "b", "c"]), "query: expected the number of the word"),
    (lambda: plot.arcs(weights(3, 3), query=3), "query: expected one of 3 words, counted from 0, got 3"),
    (lambda: plot.arcs(torch.tensor([1.0, -0.5]), query=0), "finite and at least 0"),
    (lambda: plot.arcs(weights(2, 2, 2), query=0), r"expected weights \[keys\] or \[queries, keys\]"),
    (lambda: plot.arcs(weights(2, 2), query=0, top=0), "top: expected at least 1, got 0"),
    (lambda: plot.arcs(weights(2, 2), None, ["a"]), "queries: expected 2 labels"),
    (lambda: plot.alignment(weights(2, 3), ["a", "b"], ["c", "d"]), "source: expected 3 labels"),
    (lambda: plot.alignment(weights(2, 3), links={(1, 2)}), "link 1-2: expected .source word, target word. counted"),
    (lambda: plot.alignment(weights(2, 3), gold={(3, 0)}), "of 3 source and 2 target words"),
    (lambda: plot.steps(SimpleNamespace(**vars(one_query()) | {"weights": weights(2, 7)})), "take one row of one head"),
    (lambda: plot.steps(one_query(), most=0), "most: expected at least 1, got 0"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors_say_what_was_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_of_traces(trace):
    with pytest.raises(ValueError, match="layer: expected a number, the layer of the trace to draw"):
        plot.heatmap(trace)
    with pytest.raises(ValueError, match=r"measure: expected one of weights, .* got 'mass'"):
        plot.heatmap(trace, layer=0, measure="mass")
    with pytest.raises(ValueError, match="kind: expected one of self, decoder, cross, got 'causal'"):
        plot.head_grid(trace, kind="causal")


def test_one_text_is_no_list_of_words():
    with pytest.raises(TypeError, match="rows: expected a list of 3 words, got one text; split it first"):
        plot.heatmap(weights(3, 3), "the")
    with pytest.raises(TypeError, match="layer, head, item, kind and call say which part of a trace to draw"):
        plot.heatmap(weights(3, 3), layer=1)

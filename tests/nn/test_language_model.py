"""A decoder-only language model: the numbers of Hugging Face's, with a cache and without, and what it generates."""

import pytest
import torch

from regard import decode
from regard.mask import Causal, Documents, Window
from regard.nn import CausalLM
from regard.score import ALiBi, Dot, QKNorm, Rotary

VOCAB, LAYERS = 61, 2
SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 6, "num_key_value_heads": 2}
NAMES = {f"attention.{a}_proj": f"self_attn.{b}_proj" for a, b in zip(("q", "k", "v", "out"), "qkvo", strict=True)}
NAMES |= {f"feed_forward.{a}": f"mlp.{b}_proj" for a, b in (("up", "gate"), ("gate", "up"), ("down", "down"))}
NAMES |= {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
QK = {"attention.score.query_gain": "self_attn.q_norm", "attention.score.key_gain": "self_attn.k_norm"}
PEERS = {
    "Qwen3": ({}, lambda: QKNorm(Rotary(Dot(), base=5e5), kind="rms", dim=10, eps=1e-5), QK, None),
    "Llama": ({}, lambda: Rotary(Dot(), base=5e5), {}, None),
    "Mistral": ({"sliding_window": 4}, lambda: Rotary(Dot(), base=5e5), {}, Window(3, 0)),
}


def pair(name, tied=False):
    """A Hugging Face model with random weights, gains of norms included, and ours with the same weights."""
    transformers = pytest.importorskip("transformers")
    options, score, gains, _ = PEERS[name]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB, num_hidden_layers=LAYERS, head_dim=10, rms_norm_eps=1e-5, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5}, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **options, **SIZES,
    )  # fmt: skip
    theirs = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.2)
    ours = CausalLM(
        VOCAB, 24, LAYERS, 6, kv_heads=2, head_dim=10, hidden=40, score=score, tied=tied, norm_eps=1e-5
    )  # fmt: skip
    state = dict(theirs.state_dict())
    names = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    names |= {} if tied else {"output.weight": "lm_head.weight"}
    for i in range(LAYERS):
        names |= {f"layers.{i}.{a}.weight": f"model.layers.{i}.{b}.weight" for a, b in NAMES.items()}
        names |= {f"layers.{i}.{a}": f"model.layers.{i}.{b}.weight" for a, b in gains.items()}
    ours.load_state_dict({mine: state.pop(other) for mine, other in names.items()})
    assert [*state] == (["lm_head.weight"] if tied else [])  # nothing of theirs is left out
    return theirs, ours.eval()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", PEERS)
def test_logits_are_hugging_faces(name, tied):
    theirs, ours = pair(name, tied)
    tokens = torch.randint(VOCAB, (3, 11))
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours(tokens, mask=PEERS[name][3]), expected, rtol=0, atol=1e-5)


def test_generating_with_a_cache_is_hugging_faces():
    theirs, ours = pair("Qwen3")
    prompt = torch.randint(VOCAB, (3, 5))
    expected = theirs.generate(prompt, max_new_tokens=17, do_sample=False, use_cache=True)
    assert torch.equal(decode.generate(ours, prompt, 17, temperature=0), expected)


SCORES = {
    "rotary": Rotary,
    "qk_norm": lambda: QKNorm(Rotary(Dot()), kind="rms", dim=8),
    "alibi": lambda: Dot() + ALiBi(heads=4),
}


def small(score=Rotary, **options):
    model = CausalLM(VOCAB, 32, LAYERS, 4, kv_heads=2, head_dim=8, hidden=48, score=score, **options)
    for parameter in model.parameters():  # of a size at which everything matters
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_pieces_with_a_cache_equal_the_whole(name, fixed):
    model, tokens = small(SCORES[name]), torch.randint(VOCAB, (2, 13))
    caches = model.new_caches(2, 16) if fixed else model.new_caches()
    with torch.no_grad():
        expected = model(tokens, mask=Window(5, 0))
        pieces = [model(part, mask=Window(5, 0), caches=caches) for part in tokens.split((6, 1, 4, 1, 1), 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected)


def test_the_future_is_hidden_and_packed_documents_are_apart():
    model, tokens = small(), torch.randint(VOCAB, (1, 9))
    expected = torch.cat([model(part) for part in tokens.split((4, 5), 1)], 1)
    torch.testing.assert_close(model(tokens, mask=Documents.packed([0, 4, 9])), expected)
    ids, restarted = torch.tensor([0] * 4 + [1] * 5), torch.tensor([*range(4), *range(5)])
    torch.testing.assert_close(model(tokens, mask=Documents(ids), positions=restarted), expected)
    order = torch.randperm(9)
    torch.testing.assert_close(model(tokens[:, order], positions=order), model(tokens)[:, order])
    torch.testing.assert_close(model(tokens[:, :4]), model(tokens)[:, :4])
    torch.testing.assert_close(model(tokens, mask=Causal()), model(tokens))


def test_a_new_model_knows_nothing_and_its_residual_grows_slowly():
    model = CausalLM(VOCAB, 64, 8, 4)
    assert not [name for name, _ in model.named_parameters() if "bias" in name]
    loss = torch.nn.functional.cross_entropy(
        model(torch.randint(VOCAB, (4, 20))).flatten(0, 1), torch.randint(VOCAB, (80,))
    )
    assert loss.item() == pytest.approx(torch.tensor(VOCAB).log().item(), rel=0.05)
    into = model.layers[0].feed_forward.down.weight.std().item()
    assert into == pytest.approx(0.02 / 4, rel=0.1)


def test_what_is_drawn_follows_the_distribution():
    """Many first tokens drawn at once, against the model's probabilities after truncation."""
    model, prompt = small(), torch.randint(VOCAB, (1, 4)).expand(4000, -1)
    with torch.no_grad():
        logits = model(prompt[:1])[0, -1]
    p = (logits / 2).softmax(-1)
    drawn = decode.generate(model, prompt, 1, temperature=2.0, seed=1)[:, -1]
    counted = torch.bincount(drawn, minlength=VOCAB) / len(drawn)
    assert (counted - p).abs().max() < 5 * (p.max() / len(drawn)).sqrt()
    assert torch.equal(drawn, decode.generate(model, prompt, 1, temperature=2.0, seed=1)[:, -1])
    best = logits.topk(3).indices
    few = decode.generate(model, prompt[:500], 1, top_k=3, temperature=9.0, seed=1)[:, -1]
    assert {*few.tolist()} == {*best.tolist()}
    held = (logits.softmax(-1)[best[0]] * 0.9).item()
    assert {*decode.generate(model, prompt[:50], 1, top_p=held)[:, -1].tolist()} == {best[0].item()}


def test_generation_ends_with_the_end_symbol():
    model, prompt = small(), torch.randint(VOCAB, (4, 3))
    free = decode.generate(model, prompt, 30, seed=3)
    end = free[0, 8].item()
    out = decode.generate(model, prompt, 30, seed=3, eos_id=end)
    for row, whole in zip(out[:, 3:], free[:, 3:], strict=True):
        at = (whole == end).nonzero()
        length = len(row) if not len(at) else int(at[0]) + 1
        assert torch.equal(row[:length], whole[:length]) and (row[length:] == end).all()
    alone = decode.generate(model, prompt[:1], 30, temperature=0)
    first = int(alone[0, 3])
    assert decode.generate(model, prompt[:1], 30, temperature=0, eos_id=first).shape == (1, 4)


def test_generate_leaves_the_model_as_it_was_and_takes_any_number_of_tokens():
    model = small(dropout=0.5).train()
    prompt = torch.randint(VOCAB, (2, 3), dtype=torch.int32)
    first = decode.generate(model, prompt, 5, temperature=0)
    assert model.training and first.dtype == torch.int32
    assert torch.equal(first, decode.generate(model, prompt, 5, temperature=0))
    assert torch.equal(decode.generate(model, prompt, 0), prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": torch.zeros(3, dtype=torch.int64)}, r"prompt must be token numbers \[N, P\].*\[3\]"),
        ({"prompt": torch.zeros(1, 0, dtype=torch.int64)}, "P ≥ 1"),
        ({"prompt": torch.zeros(1, 2)}, "float32"),
        ({"temperature": -1.0}, "temperature ≥ 0.*temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_k": 0}, "top_k=0"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
    ],
)
def test_generate_refuses_what_makes_no_sense(options, message):
    prompt = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        decode.generate(small(), **{"prompt": prompt, "max_new_tokens": 2} | options)


def test_a_broken_model_and_wrong_arguments_are_told():
    model, prompt = small(), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="caches: expected one per layer, 2, got 1"):
        model(prompt, caches=model.new_caches()[:1])
    with pytest.raises(TypeError, match="function that makes the score of one layer"):
        CausalLM(VOCAB, 32, 1, 4, score=Dot())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}])
def test_a_model_without_probabilities_is_told(value, options):
    """Of logits that are all −∞, or one of which is +∞, none can be drawn either."""
    model, prompt = small(), torch.zeros(1, 2, dtype=torch.int64)
    model.logits = lambda features: torch.full((*features.shape[:-1], VOCAB), value)
    with pytest.raises(decode.NoProbabilities):
        decode.generate(model, prompt, 2, **options)

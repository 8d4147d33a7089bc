"""Modules: parity with torch.nn.MultiheadAttention, the decoding cache, layers, replacement inside models."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.interop.torch import replace
from regard.mask import Causal, Dense, Lengths, Window
from regard.nn import (
    Cache,
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    Int8Linear,
    LearnedPositions,
    MultiHeadAttention,
    SinusoidalPositions,
    to_int8,
)
from regard.score import (
    Additive,
    ALiBi,
    Bilinear,
    Cosine,
    Dot,
    General,
    Key,
    Location,
    PerHead,
    Relative,
    Rotary,
    Score,
    T5Bias,
)

DIM, HEADS, KV, HEAD = 32, 4, 2, 8
SCORES = {
    "dot": lambda: Dot(),
    "additive": lambda: Additive(HEAD, HEAD, 6, heads=HEADS, kv_heads=KV),
    "general": lambda: General(HEAD, HEAD, heads=HEADS),
    "bilinear": lambda: Bilinear(HEAD, HEAD, 5),
    "location": lambda: Location(HEAD, 3),
    "relative": lambda: Relative(HEAD, 3, values=True),
    "rotary": lambda: Rotary(Dot()),
    "alibi": lambda: Dot() + ALiBi(HEADS),
    "t5": lambda: Dot() + T5Bias(HEADS, 8, 20),
    "cosine and key": lambda: Cosine(heads=HEADS) + Key(HEAD),
    "per head": lambda: PerHead((2, Additive(HEAD, HEAD, 4)), (2, Rotary(Dot(), interleaved=True))),
}


def module(name: str, **kwargs: object) -> MultiHeadAttention:
    return MultiHeadAttention(DIM, HEADS, kv_heads=KV, score=SCORES[name](), **kwargs).double().eval()  # type: ignore[arg-type]


def inputs(length: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


@pytest.mark.parametrize("dims", [{}, {"kdim": 24, "vdim": 40}])
@pytest.mark.parametrize("bias", [True, False])
def test_torch_state_dict_gives_the_same_numbers(dims: dict[str, int], bias: bool) -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True, **dims).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = MultiHeadAttention(DIM, HEADS, bias=bias, key_dim=dims.get("kdim"), value_dim=dims.get("vdim")).double()
    ours.load_state_dict(theirs.state_dict())
    q = torch.randn(2, 5, DIM, dtype=torch.float64)
    k = torch.randn(2, 7, dims.get("kdim", DIM), dtype=torch.float64)
    v = torch.randn(2, 7, dims.get("vdim", DIM), dtype=torch.float64)
    hidden = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    expected, weights = theirs(q, k, v, key_padding_mask=hidden, average_attn_weights=False)
    out, our_weights = ours(q, k, v, mask=Lengths(torch.tensor([7, 4])), need_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(our_weights, weights)


def test_torch_state_dict_inside_a_model_and_refusal() -> None:
    ours, theirs = nn.Sequential(MultiHeadAttention(DIM, HEADS)), nn.Sequential(nn.MultiheadAttention(DIM, HEADS))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, DIM)
    expected = theirs[0](*[x.transpose(0, 1)] * 3)[0].transpose(0, 1)
    torch.testing.assert_close(ours(x), expected)
    with pytest.raises(ValueError, match="add_bias_kv"):
        ours[0].load_state_dict(nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True).state_dict())


@pytest.mark.parametrize("name", SCORES)
def test_weights_of_asked_rows_beside_the_fused_path(name: str) -> None:
    attention, x = module(name), inputs(9)
    rows = torch.tensor([7, 0, 3])
    out, weights = attention(x, mask=Causal(), need_weights=rows)
    every_out, every = attention(x, mask=Causal(), need_weights=True)
    torch.testing.assert_close(out, every_out)
    torch.testing.assert_close(weights, every[:, :, rows])
    torch.testing.assert_close(every.sum(-1), torch.ones_like(every[..., 0]))


@pytest.mark.parametrize("max_length", [None, 12])
@pytest.mark.parametrize("name", SCORES)
def test_decoding_with_a_cache_equals_the_whole(name: str, max_length: int | None) -> None:
    attention, x = module(name), inputs(11)
    expected = attention(x, mask=Causal() & Window(5, None))
    cache = Cache() if max_length is None else attention.new_cache(3, max_length)
    with torch.no_grad():
        pieces = [attention(x[:, :4], mask=Causal() & Window(5, None), cache=cache)]
        pieces += [attention(x[:, i : i + 1], mask=Causal() & Window(5, None), cache=cache) for i in range(4, 11)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected)
    assert int(cache.length) == 11


def test_cache_reorders_for_beams_and_grows_and_resets() -> None:
    attention, x, y = module("additive"), inputs(100), inputs(1)
    beams = torch.tensor([2, 2, 0])
    cache = Cache()
    with torch.no_grad():
        for i in range(0, 100, 30):
            attention(x[:, i : i + 30], mask=Causal(), cache=cache)
        cache.reorder(beams)
        out = attention(y, mask=Causal(), cache=cache)
    expected = attention(torch.cat((x[beams], y), 1), mask=Causal())[:, -1:]
    torch.testing.assert_close(out, expected)
    cache.reset()
    with torch.no_grad():
        torch.testing.assert_close(attention(x[:, :3], mask=Causal(), cache=cache), attention(x[:, :3], mask=Causal()))


def test_cache_refuses_gradients_overflow_and_cross_attention() -> None:
    attention, x = module("dot"), inputs(5)
    with pytest.raises(ValueError, match="no_grad"):
        attention(x, cache=Cache())
    with torch.no_grad(), pytest.raises(ValueError, match="Cache is full: max_length=4, 0 used, 5 more asked for"):
        attention(x, cache=attention.new_cache(3, 4))
    with torch.no_grad(), pytest.raises(ValueError, match="cross-attention"):
        attention(x, inputs(3), cache=Cache())
    with pytest.raises(ValueError, match="max_length"):
        Cache(0)


@pytest.mark.parametrize("max_length", [None, 12])
def test_cache_refuses_another_batch_instead_of_broadcasting_it(max_length: int | None) -> None:
    attention, x, cache = module("dot"), inputs(5), Cache(max_length)
    with torch.no_grad():
        attention(x, mask=Causal(), cache=cache)
        with pytest.raises(ValueError, match=r"holds \[3, .*, length, .*\], got \[1, .*reorder\(items\)"):
            attention(x[:1, :1], mask=Causal(), cache=cache)


@torch.no_grad()
def test_each_layer_needs_a_cache_of_its_own() -> None:
    attention, other, x, cache = module("dot"), module("dot"), inputs(5), Cache()
    first = attention(x, mask=Causal(), cache=cache)
    with pytest.raises(ValueError, match="another layer's keys; each layer needs a Cache of its own"):
        other(first, mask=Causal(), cache=cache)
    copies = copy.deepcopy((attention, cache))
    torch.testing.assert_close(
        copies[0](x[:, :1], mask=Causal(), cache=copies[1]), attention(x[:, :1], mask=Causal(), cache=cache)
    )
    cache.reset()
    torch.testing.assert_close(other(x, mask=Causal(), cache=cache), other(x, mask=Causal()))


def test_a_score_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match=r"regard.score.Score, such as Additive\(16, 16, 8\), got str"):
        MultiHeadAttention(8, 2, score="additive")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got the class Additive; write Additive"):
        MultiHeadAttention(8, 2, score=Additive)  # type: ignore[arg-type]


def test_weights_of_pytorch_with_other_heads_are_refused() -> None:
    ours = MultiHeadAttention(32, 4, kv_heads=2)
    with pytest.raises(ValueError, match=r"in_proj_weight has 96 rows, .* 32 \+ 16 \+ 16 .*key/value heads"):
        ours.load_state_dict(torch.nn.MultiheadAttention(32, 4).state_dict())


def test_what_pytorch_refuses_of_masks_is_refused_after_replacing_too() -> None:
    layer, x = torch.nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 5, 32)
    replace(layer)
    with pytest.raises(ValueError, match=r"is_causal=True is only a hint that attn_mask .*got no attn_mask"):
        layer(x, x, x, is_causal=True)
    added, padding = torch.zeros(5, 5), torch.zeros(2, 5, dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"key_padding_mask must be bool \(True = ignore\) .*got torch.uint8"):
        layer(x, x, x, attn_mask=added, key_padding_mask=padding)


def test_cross_attention_keys_are_computed_once() -> None:
    attention, x, memory = module("additive"), inputs(4), inputs(7)
    known = attention.keys_values(memory)
    torch.testing.assert_close(attention(x, known), attention(x, memory))


@pytest.mark.slow
def test_static_decoding_step_compiles_once() -> None:
    attention, x = module("additive"), inputs(8)
    expected = attention(x, mask=Causal())
    cache = attention.new_cache(3, 16)
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda t: attention(t, mask=Causal(), cache=cache), backend=counter, fullgraph=True)
    with torch.no_grad():
        out = torch.cat([step(x[:, i : i + 1]) for i in range(8)], 1)
    torch.testing.assert_close(out, expected)
    assert counter.frame_count == 1


def test_masked_nan_reaches_nothing() -> None:
    attention, x = module("additive"), inputs(6)
    x[1, 4:] = torch.nan
    out = attention(x, mask=Lengths(torch.tensor([6, 4, 6])))
    assert out[[0, 2]].isfinite().all() and out[1, :4].isfinite().all()
    out[1, :4].sum().backward()
    assert all(p.grad.isfinite().all() for p in attention.score.parameters() if p.grad is not None)


def test_sink_takes_its_share() -> None:
    attention, x = MultiHeadAttention(DIM, HEADS, sink=True), torch.randn(2, 5, DIM)
    _, weights = attention(x, need_weights=True)
    assert (weights.sum(-1) < 1).all()
    attention(x).sum().backward()
    assert attention.sink is not None and attention.sink.grad is not None and attention.sink.grad.abs().sum() > 0


def test_dropout_only_in_training_and_by_seed() -> None:
    attention, x = MultiHeadAttention(DIM, HEADS, dropout=0.5), torch.randn(2, 5, DIM)
    assert torch.equal(attention(x, seed=1), attention(x, seed=1))
    assert not torch.allclose(attention(x, seed=1), attention(x, seed=2))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dim": 30, "heads": 4}, "dim=30 does not divide into 4 heads"),
        ({"dim": 32, "heads": 4, "kv_heads": 3}, "multiple of kv_heads"),
        ({"dim": 32, "heads": 4, "dropout": 1.0}, "dropout"),
        ({"dim": 32, "heads": 4, "score": Additive(32, 32, 8)}, "Additive was made for query_dim=32"),
        ({"dim": 32, "heads": 4, "score": ALiBi(8)}, "ALiBi was made for heads=8"),
    ],
)
def test_bad_arguments(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**kwargs)  # type: ignore[arg-type]


# --- layers ---


def test_sinusoidal_positions_are_the_papers() -> None:
    out = SinusoidalPositions(6)(torch.zeros(1, 4, 6, dtype=torch.float64), offset=2)
    angle = 3 / 10000 ** (2 / 6)
    wanted = torch.tensor([math.sin(angle), math.cos(angle)], dtype=torch.float64)
    torch.testing.assert_close(out[0, 1, 2:4], wanted, atol=1e-14, rtol=0)
    shifted = SinusoidalPositions(6)(torch.zeros(2, 4, 6), offset=torch.tensor([0, 2]))
    torch.testing.assert_close(shifted[1, :2], shifted[0, 2:])


def test_learned_positions_and_their_end() -> None:
    positions, x = LearnedPositions(5, 4), torch.zeros(2, 3, 4)
    torch.testing.assert_close(positions(x, offset=2)[0], positions.weight[2:])
    torch.testing.assert_close(positions(x, offset=torch.tensor([0, 2]))[1], positions.weight[2:])
    with pytest.raises(ValueError, match="LearnedPositions has 5 positions, asked for 3…5"):
        positions(x, offset=3)


def test_embedding_is_scaled() -> None:
    embedding = Embedding(50, 64, padding_idx=0)
    torch.testing.assert_close(embedding(torch.tensor([3]))[0], embedding.weight[3] * 8)
    assert (embedding(torch.tensor([0])) == 0).all()
    assert embedding.weight[1:].std().item() == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer_is_pytorchs(norm_first: bool) -> None:
    theirs = nn.TransformerEncoderLayer(DIM, HEADS, 64, batch_first=True, norm_first=norm_first).double().eval()
    ours = EncoderLayer(DIM, HEADS, hidden=64, norm_first=norm_first).double().eval()
    ours.attention.load_state_dict(theirs.self_attn.state_dict())
    for mine, other in (("feed_forward.up", "linear1"), ("feed_forward.down", "linear2")):
        ours.get_submodule(mine).load_state_dict(theirs.get_submodule(other).state_dict())
    x = inputs(6)
    torch.testing.assert_close(ours(x), theirs(x))


def test_encoder_layer_is_llamas() -> None:
    """RMSNorm, no biases, a head width of its own, grouped queries, rotary, a gate: a layer of a decoder-only model."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    sizes = {"hidden_size": DIM, "intermediate_size": 48, "num_attention_heads": HEADS, "num_key_value_heads": KV}
    theirs = llama.LlamaModel(LlamaConfig(vocab_size=50, num_hidden_layers=1, head_dim=16, **sizes)).eval()
    ours = EncoderLayer(
        DIM, HEADS, hidden=48, score=Rotary(Dot()), kv_heads=KV, head_dim=16, bias=False,
        activation=nn.functional.silu, gated=True, norm=nn.RMSNorm, norm_eps=theirs.config.rms_norm_eps,
    ).eval()  # fmt: skip
    names = {f"attention.{a}_proj": f"self_attn.{b}_proj" for a, b in zip(("q", "k", "v", "out"), "qkvo", strict=True)}
    names |= {f"feed_forward.{a}": f"mlp.{b}_proj" for a, b in (("up", "gate"), ("gate", "up"), ("down", "down"))}
    names |= {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
    state = theirs.layers[0].state_dict()
    ours.load_state_dict({f"{mine}.weight": state.pop(f"{other}.weight") for mine, other in names.items()})
    assert not state  # no bias on either side
    tokens = torch.randint(50, (2, 9))
    x = theirs.embed_tokens(tokens)
    expected = theirs(tokens).last_hidden_state
    torch.testing.assert_close(theirs.norm(ours(x, mask=Causal())), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        cache = Cache()
        pieces = [ours(part, mask=Causal(), cache=cache) for part in x.split((5, 1, 3), 1)]
    torch.testing.assert_close(theirs.norm(torch.cat(pieces, 1)), expected, rtol=1e-4, atol=1e-5)


def test_decoder_layer_without_biases() -> None:
    layer = DecoderLayer(DIM, HEADS, head_dim=6, bias=False, norm=nn.RMSNorm)
    assert not [name for name, _ in layer.named_parameters() if "bias" in name]
    assert layer.cross_attention.q_proj.out_features == HEADS * 6 and isinstance(layer.cross_norm, nn.RMSNorm)


def test_gated_feed_forward() -> None:
    layer, x = FeedForward(4, 8, activation=nn.functional.silu, gated=True), torch.randn(3, 4)
    assert layer.gate is not None
    torch.testing.assert_close(layer(x), layer.down(nn.functional.silu(layer.up(x)) * layer.gate(x)))


@pytest.mark.parametrize("score", [None, Rotary(Dot()), Additive(HEAD, HEAD, 6)])
def test_decoder_layer_steps_equal_the_whole(score: Score | None) -> None:
    layer = DecoderLayer(DIM, HEADS, score=score, cross_score=Additive(HEAD, HEAD, 6)).double().eval()
    x, memory, seen = inputs(7), inputs(5), Lengths(torch.tensor([5, 3, 1]))
    expected = layer(x, memory, memory_mask=seen)
    with torch.no_grad():
        cache, known = Cache(), layer.cross_attention.keys_values(memory)
        pieces = [layer(x[:, i : i + 1], known, memory_mask=seen, cache=cache) for i in range(7)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected)
    changed = x.clone()
    changed[:, 4:] = 0
    torch.testing.assert_close(layer(changed, memory, memory_mask=seen)[:, :4], expected[:, :4])


# --- 8 bits ---


@pytest.mark.parametrize("bias", [True, False])
def test_int8_linear_errs_as_its_steps_say(bias: bool) -> None:
    """|error| ≤ Σ_k (|w| · Δx + |x| · Δw/2 + Δx Δw / 2): steps of W and x, whose zero is rounded to a step too."""
    linear, x = nn.Linear(96, 40, bias=bias), torch.randn(3, 7, 96)
    step_w = linear.weight.detach().abs().amax(1) / 127
    step_x = (x.max() - x.min()) / 127
    bound = linear.weight.detach().abs().sum(1) * step_x + x.abs().sum(-1)[..., None] * step_w / 2
    bound = bound + 96 * step_x * step_w / 2
    error = (Int8Linear(linear.weight, linear.bias)(x) - linear(x)).abs()
    assert (error < bound).all() and 0 < error.max() < 0.05


def test_int8_copies_leave_the_model_alone() -> None:
    layer, x = DecoderLayer(DIM, HEADS), torch.randn(2, 5, DIM)
    memory, before = torch.randn(2, 4, DIM), copy.deepcopy(layer.state_dict())
    small = to_int8(layer, at_least=0)
    assert to_int8(layer).attention.q_proj.weight.shape == (DIM, DIM)  # too small to be worth it
    assert not any(type(m) is nn.Linear for m in small.modules())
    assert all(torch.equal(layer.state_dict()[key], before[key]) for key in before) and layer.training
    with torch.no_grad():
        expected = layer.eval()(x, memory)
        assert (small(x, memory) - expected).norm() < 0.05 * expected.norm()
    with pytest.raises(ValueError, match="runs on a CPU, got a weight on meta"):
        Int8Linear(torch.empty(3, 4, device="meta"))


@pytest.mark.parametrize("kv_heads", [HEADS, HEADS // 2])
def test_int8_self_attention_joins_its_projections(kv_heads: int) -> None:
    """At once and step by step, also with fewer key/value heads than query heads."""
    layer, x = EncoderLayer(DIM, HEADS, kv_heads=kv_heads).eval(), torch.randn(2, 5, DIM)
    small, cache = to_int8(layer, at_least=0), Cache()
    assert isinstance(small.attention.qkv, Int8Linear) and layer.attention.qkv is None
    with torch.no_grad():
        expected = layer(x, mask=Causal())
        stepped = torch.cat([small(x[:, t : t + 1], mask=Causal(), cache=cache) for t in range(5)], 1)
        for found in (small(x, mask=Causal()), stepped):
            assert (found - expected).norm() < 0.05 * expected.norm()


# --- replacement inside existing models ---


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_replaced_transformer_gives_the_same_numbers(batch_first: bool, training: bool) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor is True")
        model = nn.Transformer(DIM, HEADS, 2, 2, 64, dropout=0.0, batch_first=batch_first).double().train(training)
    source, target = inputs(6, 2), inputs(5, 2)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)

    def run() -> Tensor:
        s, t = (source, target) if batch_first else (source.transpose(0, 1), target.transpose(0, 1))
        with torch.set_grad_enabled(training):
            return model(s, t, tgt_mask=causal, src_key_padding_mask=padding.double() * -1e9 if training else padding,
                         memory_key_padding_mask=padding.double() * -1e9 if training else padding)  # fmt: skip

    expected, keys = run(), list(model.state_dict())
    assert replace(model) == 6
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(run(), expected)


@pytest.mark.parametrize("fast_path", [True, False])
def test_replacement_really_runs_regard(fast_path: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, HEADS, 64, batch_first=True), 2).eval()
    x = torch.randn(2, 5, DIM)
    with torch.set_grad_enabled(not fast_path):
        expected = encoder(x)
        replace(encoder)
        calls = []
        import regard.interop.torch as interop

        monkeypatch.setattr(interop, "attend", lambda *a, **k: calls.append(1) or regard.attend(*a, **k))
        torch.testing.assert_close(encoder(x), expected)
    assert len(calls) == 2


@pytest.mark.parametrize("mask_kind", ["none", "bool", "float", "per head", "padding", "causal"])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_replaced_module_takes_every_argument(mask_kind: str, average: bool, batched: bool) -> None:
    module = nn.MultiheadAttention(DIM, HEADS, kdim=24, vdim=40).double()
    q, k, v = (torch.randn(6, 2, d, dtype=torch.float64) for d in (DIM, 24, 40))
    hidden = torch.rand(6, 6) > 0.7
    hidden.fill_diagonal_(False)
    kwargs: dict[str, object] = {
        "none": {},
        "bool": {"attn_mask": hidden},
        "float": {"attn_mask": torch.randn(6, 6, dtype=torch.float64)},
        "per head": {"attn_mask": hidden.expand(8 if batched else 4, 6, 6)},
        "padding": {"key_padding_mask": (torch.arange(6) > 3).expand(2, 6) if batched else torch.arange(6) > 3},
        "causal": {"attn_mask": ~Causal().dense(6), "is_causal": True, "need_weights": False},
    }[mask_kind]
    args = (q, k, v) if batched else (q[:, 0], k[:, 0], v[:, 0])
    call = {"average_attn_weights": average, **kwargs}
    expected = module(*args, **call)
    assert replace(module) == 1
    got = module(*args, **call)
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(mine, theirs)


def test_replacement_with_another_score_trains_it() -> None:
    model = nn.TransformerEncoderLayer(DIM, HEADS, 64, batch_first=True)
    replace(model, score=lambda m: Relative(m.head_dim, 4))
    model(torch.randn(2, 5, DIM)).sum().backward()
    assert model.self_attn.score.r.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_replacement_refuses_what_it_cannot_run_and_changes_nothing() -> None:
    model = nn.Sequential(nn.MultiheadAttention(DIM, HEADS), nn.MultiheadAttention(DIM, HEADS, add_zero_attn=True))
    with pytest.raises(ValueError, match="nothing was replaced"):
        replace(model)
    assert all(type(m) is nn.MultiheadAttention for m in model)


def test_dense_mask_per_head() -> None:
    attention, x = module("per head"), inputs(5)
    mask = torch.rand(3, HEADS, 5, 5) > 0.4
    _, weights = attention(x, mask=Dense(mask), need_weights=True)
    assert (weights[~mask] == 0).all()

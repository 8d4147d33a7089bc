"""Transformer and RNNSeq2Seq: the formula step by step, causality, padding, PyTorch's layers, gradients, learning."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn

from regard import decode
from regard.mask import Causal, Dense, Documents, Lengths
from regard.models import Memory, RNNConfig, RNNSeq2Seq, Transformer, TransformerConfig
from regard.models._bidirectional import CELLS, Bidirectional
from regard.models._memory import step_padding
from regard.nn import Cache, DecoderLayer, Int8Linear, to_int8
from regard.score import Additive, Dot, Relative, Rotary

V = 20
MIX = [[2, "dot"], [2, {"kind": "additive", "hidden_dim": 5}]]
POSITIONED_MIX = [[2, "rotary"], [2, {"kind": "relative", "max_distance": 2, "values": True}]]
SCORES = [
    "dot",
    "additive",
    "general",
    "trilinear",
    "bilinear",
    "location",
    "relative",
    "rotary",
    "alibi",
    "t5",
    "cosine",
]
SPECS = [*SCORES, MIX, POSITIONED_MIX]
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [8, 9, 2, 0, 0], [3, 2, 0, 0, 0]])
TARGET = torch.tensor([[1, 4, 5, 6, 7, 9], [1, 11, 3, 19, 3, 3], [1, 5, 12, 5, 5, 8]])

Model = Transformer | RNNSeq2Seq


def name(spec: object) -> str:
    return (
        spec if isinstance(spec, str) else "+".join(str(g[1] if isinstance(g[1], str) else g[1]["kind"]) for g in spec)
    )  # type: ignore[attr-defined]


def transformer(**options: object) -> Transformer:
    sizes = {"dim": 16, "ffn_dim": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(TransformerConfig(vocab_size=V, **{**sizes, **options})).double().eval()  # type: ignore[arg-type]


def rnn(**options: object) -> RNNSeq2Seq:
    sizes = {"dim": 8, "hidden_dim": 16, "heads": 4, "decoder_layers": 2}
    return RNNSeq2Seq(RNNConfig(vocab_size=V, **{**sizes, **options})).double().eval()  # type: ignore[arg-type]


MODELS = {
    "pre": lambda: transformer(),
    "post": lambda: transformer(norm="post", activation="gelu"),
    "mixed": lambda: transformer(self_score=POSITIONED_MIX, cross_score=MIX, kv_heads=2, activation="swiglu"),
    "learned": lambda: transformer(positions="learned", max_length=12, tied="none"),
    "unpositioned": lambda: transformer(positions="none", self_score="rotary", cross_score="relative", tied="decoder"),
    "gru": lambda: rnn(),
    "lstm": lambda: rnn(cell="lstm", encoder_layers=2, score="general", tied="none"),
    "plain": lambda: rnn(input_feeding=False, score="dot", tied="decoder"),
    "located": lambda: rnn(location_features=3, location_width=3),
    "located dot": lambda: rnn(location_features=3, location_width=5, score="dot", cell="lstm"),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


# --- shapes and configurations ---


@every_model
def test_shapes(make) -> None:
    model = make()
    logits, weights = model(SOURCE, TARGET, attention=True)
    layers = 2 if isinstance(model, Transformer) else 1
    assert logits.shape == (3, 6, V) and weights.shape == (3, layers, 4, 6, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert (weights[1, ..., 3:] == 0).all() and (weights[2, ..., 2:] == 0).all()
    features = model.features(SOURCE, TARGET)
    torch.testing.assert_close(features @ model.output_weight.T, logits)


def test_attention_of_some_rows() -> None:
    model, rows = transformer(), torch.tensor([4, 1])
    _, weights = model(SOURCE, TARGET, attention=True)
    torch.testing.assert_close(model(SOURCE, TARGET, attention=rows)[1], weights[..., rows, :])


@pytest.mark.parametrize("config", [TransformerConfig, RNNConfig])
def test_configurations_survive_a_table(config) -> None:
    score = "self_score" if config is TransformerConfig else "score"
    made = config(vocab_size=30, tied="none", heads=4, **{score: [[2, "dot"], [2, {"kind": "additive"}]]})
    table = made.to_table()
    assert None not in table.values()
    assert config.from_table(table) == made
    with pytest.raises(ValueError, match="knows no 'hedas'; it has vocab_size"):
        config.from_table({**table, "hedas": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tied": "some"}, "tied must be one of all, decoder, none, got 'some'"),
        ({"norm": "mid"}, "norm must be one of pre, post"),
        ({"encoder_layers": 0, "decoder_layers": 0}, "cannot both be 0"),
        ({"positions": "learned"}, "needs max_length"),
        ({"dim": 18}, "multiple of heads"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"eos_id": V}, r"eos_id must be a whole number in 0…19, got 20"),
        ({"cross_score": "dto"}, "score kind must be one of dot, additive"),
        ({"cross_score": {"hidden_dim": 3}}, "needs a kind"),
        (
            {"cross_score": {"kind": "additive", "rank": 3}},
            "'additive' takes hidden_dim, per_head, init, form, got 'rank'",
        ),
        ({"cross_score": [[3, "dot"]]}, "add up to 4, got 3"),
        ({"cross_score": ["dot", "dot"]}, r"\[number, score\]"),
        ({"cross_score": [[4, [[4, "dot"]]]]}, "not groups of its own"),
        ({"cross_score": [[1, "dot"], [3, "dot"]], "kv_heads": 2}, "whole key/value groups of 2"),
    ],
)
def test_bad_transformer_configurations(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transformer(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "rnn"}, "cell must be one of gru, lstm"),
        ({"hidden_dim": 17, "heads": 1}, "even"),
        ({"location_width": 4}, "odd"),
        ({"score": MIX, "location_features": 2}, "one score for all heads"),
    ],
)
def test_bad_rnn_configurations(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rnn(**options)


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="target_in is missing"):
        transformer()(SOURCE)
    with pytest.raises(ValueError, match="source is missing"):
        transformer()(None, TARGET)
    with pytest.raises(ValueError, match="no target"):
        transformer(decoder_layers=0)(SOURCE, TARGET)
    with pytest.raises(ValueError, match="no source"):
        transformer(encoder_layers=0)(SOURCE, TARGET)
    with pytest.raises(ValueError, match="has none"):
        transformer(encoder_layers=0)(None, TARGET, attention=True)
    with pytest.raises(ValueError, match="cross_mask="):
        transformer()(SOURCE, TARGET, source_mask=Causal())
    model = transformer(decoder_layers=0)
    with pytest.raises(ValueError, match="does not decode"):
        model.start(model.encode(SOURCE))


# --- causality, padding, packing ---


@every_model
def test_later_targets_change_nothing_before(make) -> None:
    model, changed = make(), TARGET.clone()
    changed[:, 4:] = 10
    before, after = model(SOURCE, TARGET), model(SOURCE, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=1e-13)
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@every_model
def test_padding_changes_nothing(make) -> None:
    model = make()
    whole = model(SOURCE, TARGET)
    lengths = torch.tensor([5, 3, 2])
    torch.testing.assert_close(model(SOURCE, TARGET, source_lengths=lengths), whole)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(model(SOURCE[i : i + 1, :n], TARGET[i : i + 1])[0], whole[i], rtol=0, atol=1e-13)


@every_model
def test_every_source_word_counts(make) -> None:
    model, changed = make(), SOURCE.clone()
    changed[0, 4] = 11
    assert not torch.allclose(model(SOURCE, TARGET)[0], model(changed, TARGET)[0])


def test_packed_sentences_are_as_alone() -> None:
    model = transformer(self_score="relative", kv_heads=2)
    lengths, targets = [5, 3, 2], [6, 4, 5]
    source = torch.cat([SOURCE[i, :n] for i, n in enumerate(lengths)])[None]
    target = torch.cat([TARGET[i, :n] for i, n in enumerate(targets)])[None]
    s_ids, t_ids = (torch.arange(3).repeat_interleave(torch.tensor(n)) for n in (lengths, targets))
    packed = model(
        source,
        target,
        source_mask=Documents(s_ids),
        target_mask=Documents(t_ids),
        cross_mask=Documents(t_ids, s_ids),
        source_positions=torch.cat([torch.arange(n) for n in lengths])[None],
        target_positions=torch.cat([torch.arange(n) for n in targets])[None],
    )
    sizes = enumerate(zip(lengths, targets, strict=True))
    alone = [model(SOURCE[i : i + 1, :n], TARGET[i : i + 1, :t])[0] for i, (n, t) in sizes]
    torch.testing.assert_close(packed[0], torch.cat(alone), rtol=0, atol=1e-13)


# --- step by step ---


def check_steps(model: Model, beams: int) -> None:
    """Every step's logits and weights are those of the whole, with any number of hypotheses per sentence."""
    whole, weights = model(SOURCE, TARGET, attention=True)
    state, target = model.start(model.encode(SOURCE), beams), TARGET.repeat_interleave(beams, 0)
    logits, shown = [], []
    for t in range(TARGET.shape[1]):
        step, state, row = model.step(target[:, t], state, attention=True)
        logits.append(step)
        shown.append(row)
    torch.testing.assert_close(torch.stack(logits, 1), whole.repeat_interleave(beams, 0), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.stack(shown, 3), weights.repeat_interleave(beams, 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_transformer_steps_are_the_whole(spec, norm: str, beams: int) -> None:
    check_steps(transformer(self_score=spec, cross_score=spec, norm=norm, kv_heads=2), beams)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_rnn_steps_are_the_whole(spec, cell: str, beams: int) -> None:
    for feeding, located in itertools.product((True, False), (0, 2)):
        if not located or isinstance(spec, str):
            check_steps(rnn(score=spec, cell=cell, input_feeding=feeding, location_features=located), beams)


@every_model
def test_steps_without_weights_are_the_same(make) -> None:
    model = make()
    shown, plain = (model.start(model.encode(SOURCE)) for _ in range(2))
    for t in range(3):
        torch.testing.assert_close(
            model.step(TARGET[:, t], shown, attention=True)[0], model.step(TARGET[:, t], plain)[0], rtol=0, atol=1e-12
        )


@every_model
def test_reordered_hypotheses_go_on_as_if_they_had_been_so_always(make) -> None:
    model, beams = make(), 2
    first = torch.tensor([[1, 4], [1, 7], [1, 9], [1, 9], [1, 3], [1, 8]])  # two hypotheses of each of 3 sentences
    state = model.start(model.encode(SOURCE), beams)
    for t in range(2):
        model.step(first[:, t], state)
    state.reorder(torch.tensor([1, 1, 3, 2, 5, 4]))
    one, _ = model.step(torch.full((6,), 6), state)
    state.reorder(torch.tensor([1, 0, 5, 5]), torch.tensor([0, 2]))  # the second sentence is done
    two, _ = model.step(torch.full((4,), 5), state)
    rows = first[[1, 1, 3, 2, 5, 4]]
    expected = model(SOURCE.repeat_interleave(2, 0), torch.cat((rows, torch.full((6, 1), 6)), 1))[:, -1]
    torch.testing.assert_close(one, expected, rtol=0, atol=1e-12)
    rows = torch.cat((rows[[1, 0, 5, 5]], torch.tensor([[6, 5]]).expand(4, 2)), 1)
    expected = model(SOURCE[[0, 2]].repeat_interleave(2, 0), rows)[:, -1]
    torch.testing.assert_close(two, expected, rtol=0, atol=1e-12)


def test_the_memory_is_not_copied_per_beam() -> None:
    model = transformer(cross_score="additive")
    state = model.start(model.encode(SOURCE), 5)
    assert all(len(known.values) == 3 for known in state.known)
    before = [known.values.data_ptr() for known in state.known]
    model.step(torch.ones(15, dtype=torch.int64), state)
    state.reorder(torch.arange(15).flip(0))
    assert [known.values.data_ptr() for known in state.known] == before
    recurrent = rnn()
    assert len(recurrent.start(recurrent.encode(SOURCE), 5).values) == 3


def test_hypotheses_side_by_side_need_a_score_without_positions() -> None:
    layer = DecoderLayer(16, 4).double().eval()
    known = layer.cross_attention.keys_values(torch.randn(2, 5, 16, dtype=torch.float64))
    x = torch.randn(6, 1, 16, dtype=torch.float64)
    with torch.no_grad():
        assert layer(x, known, cache=Cache()).shape == x.shape
    with pytest.raises(ValueError, match="5 hypotheses need a memory of as many items"):
        layer(x[:5], known)
    model = transformer(cross_score="rotary")
    known = model.decoder[0].cross_attention.keys_values(torch.randn(2, 5, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="does not know positions; got 2 and Rotary"):
        model.decoder[0](x, known)


def test_padding_of_steps_is_of_the_kind_that_the_kernels_know() -> None:
    """Elsewhere than on a CPU: booleans for PyTorch's attention, lengths for kernels of ours."""
    lengths = torch.tensor([3, 1], device="meta")
    for score, kind in (
        (Dot(), Dense),
        (Rotary(Dot()), Dense),
        (Additive(4, 4, 4), Lengths),
        (Relative(4, 2), Lengths),
    ):
        assert isinstance(step_padding(lengths, 3, score), kind)
    here = torch.tensor([3, 1])
    assert isinstance(step_padding(here, 3, Additive(4, 4, 4)), Dense)
    assert step_padding(torch.tensor([3, 3]), 3, Dot()) is None


# --- one side only ---


@pytest.mark.parametrize("spec", ["dot", "t5", MIX], ids=name)
def test_decoder_only(spec) -> None:
    model = transformer(encoder_layers=0, self_score=spec)
    assert not any("cross" in key or "source" in key or "encoder" in key for key in model.state_dict())
    whole = model(None, TARGET)
    changed = TARGET.clone()
    changed[:, 3:] = 4
    torch.testing.assert_close(model(None, changed)[:, :3], whole[:, :3], rtol=0, atol=1e-13)
    state = model.start(Memory.nothing(3))
    pieces = [model.step(TARGET[:, t], state)[0] for t in range(6)]
    torch.testing.assert_close(torch.stack(pieces, 1), whole, rtol=0, atol=1e-12)


def test_encoder_only() -> None:
    model = transformer(decoder_layers=0)
    assert not any("decoder" in key for key in model.state_dict())
    assert model(SOURCE).shape == (3, 5, V)
    torch.testing.assert_close(model(SOURCE[1:2, :3])[0], model(SOURCE)[1, :3], rtol=0, atol=1e-13)
    torch.testing.assert_close(model.features(SOURCE), model.encode(SOURCE).states)


# --- PyTorch's layers with the same weights ---


def copied(ours: nn.Module, theirs: nn.Module) -> None:
    """Give one of our layers PyTorch's weights."""
    names = {"attention": "self_attn", "cross_attention": "multihead_attn", "feed_forward.up": "linear1"}
    names |= {"feed_forward.down": "linear2", "attention_norm": "norm1"}
    if hasattr(theirs, "multihead_attn"):
        names |= {"cross_norm": "norm2", "feed_forward_norm": "norm3"}
    else:
        names |= {"feed_forward_norm": "norm2"}
        del names["cross_attention"]
    for mine, other in names.items():
        ours.get_submodule(mine).load_state_dict(theirs.get_submodule(other).state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_pytorchs_transformer(norm: str, activation: str) -> None:
    ours = transformer(norm=norm, activation=activation)
    options = {"dim_feedforward": 24, "activation": activation, "batch_first": True, "norm_first": norm == "pre"}
    last = (lambda: nn.LayerNorm(16)) if norm == "pre" else (lambda: None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor is True")
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, **options), 2, last()).double()
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, **options), 2, last()).double()
    for side in (encoder, decoder):
        for parameter in side.parameters():
            nn.init.normal_(parameter, std=0.3)
    encoder.eval(), decoder.eval()
    for mine, other in zip((*ours.encoder, *ours.decoder), (*encoder.layers, *decoder.layers), strict=True):
        copied(mine, other)
    if norm == "pre":
        ours.encoder_norm.load_state_dict(encoder.norm.state_dict())
        ours.decoder_norm.load_state_dict(decoder.norm.state_dict())
    hidden = SOURCE == 0
    x, y = (ours.positions(ours.embedding(tokens)) for tokens in (SOURCE, TARGET))
    memory = encoder(x, src_key_padding_mask=hidden)
    causal = ~Causal().dense(6)
    expected = decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=hidden)
    torch.testing.assert_close(ours.features(SOURCE, TARGET), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours(SOURCE, TARGET), expected @ ours.embedding.weight.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 3])
def test_pytorchs_bidirectional_networks(cell: str, layers: int) -> None:
    """Without packing: every sequence is read as if it were alone, both ways, and padding is 0 and gets no gradient."""
    ours = Bidirectional(cell, 6, 5, layers).double()
    theirs = CELLS[cell][0](6, 5, layers, batch_first=True, bidirectional=True).double()
    for layer, sides in enumerate(zip(ours.right, ours.left, strict=True)):
        for side, network in zip(("", "_reverse"), sides, strict=True):
            for own, parameter in network.named_parameters():
                getattr(theirs, own.replace("l0", f"l{layer}") + side).data.copy_(parameter.data)
    lengths = torch.tensor([4, 7, 0, 1])
    x = torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True)
    out = ours(x, lengths)
    chosen = torch.randn_like(out)
    (grad,) = torch.autograd.grad((out * chosen).sum(), x)
    for i, n in enumerate(lengths.tolist()):
        assert not out[i, n:].any() and not grad[i, n:].any()
        if n:
            alone = theirs(x[i : i + 1, :n])[0][0]
            torch.testing.assert_close(out[i, :n], alone)
            torch.testing.assert_close(grad[i, :n], torch.autograd.grad((alone * chosen[i, :n]).sum(), x)[0][i, :n])


# --- the recurrence, written out ---


@pytest.mark.parametrize("located", [0, 2])
def test_the_recurrent_formula(located: int) -> None:
    model = rnn(heads=1, decoder_layers=1, location_features=located, location_width=3)
    source, target = SOURCE[:1], TARGET[:1]
    x = model.embedding(source)
    h = model.encoder(x, torch.tensor([5]))[0]  # [S, D]
    s = torch.tanh(model.bridge(h.mean(0)))
    o, alpha = torch.zeros(8, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    score, expected, rows = model.score, [], []
    for token in target[0]:
        y = model.embedding(token)
        inside = score.W[0] @ s + h @ score.U[0].T
        if located:
            wide = nn.functional.pad(alpha, (1, 1))
            f = torch.stack([model.location.weight[:, 0] @ wide[i : i + 3] for i in range(5)])
            inside = inside + f @ model.location_proj.weight.T
        alpha = torch.softmax(torch.tanh(inside) @ score.v[0], 0)
        c = alpha @ h
        s = model.cells[0](torch.cat((y, c, o))[None], s[None])[0]
        o = torch.tanh(model.readout(torch.cat((s, c, y))))
        expected.append(o)
        rows.append(alpha)
    features, weights = model.features(source, target, attention=True)
    torch.testing.assert_close(features[0], torch.stack(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(weights[0, 0, 0], torch.stack(rows), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.features(source, target), features, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["location", "relative", "rotary", "alibi", "t5"])
def test_a_recurrent_decoder_stands_at_its_step(kind: str) -> None:
    model = rnn(heads=2, decoder_layers=1, score=kind)
    _, weights = model(SOURCE[:1], TARGET[:1], attention=True)
    memory = model.encode(SOURCE[:1])
    k = memory.states.view(1, 5, 2, 8).transpose(1, 2)
    state = model.start(memory)
    for t in range(6):
        q = state.hidden[-1][0].view(1, 2, 1, 8)
        torch.testing.assert_close(weights[0, 0, :, t], model.score(q, k, offset=t).softmax(-1)[0, :, 0])
        model.step(TARGET[:1, t], state)


# --- training ---


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_gradients_reach_every_parameter(spec) -> None:
    models: list[Model] = [
        transformer(self_score=spec, cross_score=spec, tied="none", norm=norm, activation="swiglu")
        for norm in ("pre", "post")
    ]
    models += [rnn(score=spec, cell=cell, tied="none") for cell in ("gru", "lstm")]
    models += [rnn(score=spec, location_features=2)] if isinstance(spec, str) else []
    for model in models:
        model.train()
        model(SOURCE, TARGET).logsumexp(-1).sum().backward()
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                assert parameter.grad.isfinite().all(), key
            if not without_effect(key, spec):
                assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


def without_effect(key: str, spec: object) -> bool:
    """A key's bias moves a row's scores alike, which no softmax notices; Location looks at no keys at all."""
    return key.endswith("k_proj.bias") or (spec == "location" and "k_proj" in key)


def test_tying_shares_the_parameters() -> None:
    counts = {tied: sum(p.numel() for p in transformer(tied=tied).parameters()) for tied in ("all", "decoder", "none")}
    assert counts["decoder"] - counts["all"] == counts["none"] - counts["decoder"] == V * 16
    assert len({p.data_ptr() for p in transformer().state_dict().values()}) == len(transformer().state_dict())


@pytest.mark.parametrize("make", [transformer, rnn])
def test_a_seed_makes_the_model(make) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(make().state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["embedding.weight"], states[2]["embedding.weight"])


def test_the_first_logits_are_of_order_one() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=1000, dim=128, ffn_dim=256, heads=4))
    logits = model(torch.randint(3, 1000, (4, 12)), torch.randint(3, 1000, (4, 9)))
    assert 0.5 < logits.std().item() < 2


def reversed_pairs(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of 3 to 6 symbols, and the same backwards, with end symbol and padding."""
    source, target = torch.zeros(2, count, 7, dtype=torch.int64).unbind()
    for i in range(count):
        n = int(torch.randint(3, 7, (), generator=generator))
        word = torch.randint(3, V, (n,), generator=generator)
        source[i, : n + 1] = torch.cat((word, torch.tensor([2])))
        target[i, : n + 1] = torch.cat((word.flip(0), torch.tensor([2])))
    return source, target


LEARNERS = {
    "transformer": lambda: transformer(dim=32, ffn_dim=64, encoder_layers=1, decoder_layers=1, dropout=0.0),
    "additive": lambda: transformer(
        dim=32, ffn_dim=64, encoder_layers=1, decoder_layers=1, dropout=0.0, norm="post", cross_score="additive"
    ),
    "gru": lambda: rnn(dim=32, hidden_dim=64, heads=1, decoder_layers=1, dropout=0.0),
    "lstm": lambda: rnn(dim=32, hidden_dim=64, heads=1, decoder_layers=1, dropout=0.0, cell="lstm", score="general"),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", LEARNERS.values(), ids=LEARNERS)
def test_learns_to_turn_words_around(make) -> None:
    torch.manual_seed(0)
    model = make().float().train()
    source, target = reversed_pairs(32, torch.Generator().manual_seed(0))
    target_in = torch.cat((torch.ones(32, 1, dtype=torch.int64), target[:, :-1]), 1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(150):
        loss = nn.functional.cross_entropy(model(source, target_in).flatten(0, 1), target.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    expected = [row[row != 0].tolist() for row in target]
    model.eval()
    memory = model.encode(source)
    assert [h.tokens.tolist() for h in decode.greedy(model, memory)] == expected
    assert [h[0].tokens.tolist() for h in decode.beam(model, memory, beams=4)] == expected
    small = to_int8(model, at_least=0)
    assert isinstance(small.head, Int8Linear) and model.head is None
    assert [h[0].tokens.tolist() for h in decode.beam(small, small.encode(source), beams=4)] == expected

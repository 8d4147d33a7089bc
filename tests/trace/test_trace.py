"""record() and Trace on our own modules: what is recomputed is what the model had, and nothing else changed."""

import threading

import pytest
import torch

import regard
from regard.mask import Causal, Documents, Lengths, Prefix, Window
from regard.models import RNNConfig, RNNSeq2Seq, Transformer, TransformerConfig
from regard.score import (
    Additive,
    ALiBi,
    Bias,
    Bilinear,
    Cosine,
    Dot,
    General,
    Key,
    Location,
    PerHead,
    Relative,
    Rotary,
    Softcap,
    T5Bias,
)

SCORES = {
    "dot": lambda: Dot(),
    "additive": lambda: Additive(8, 8, 6, heads=4),
    "general": lambda: General(8, 8),
    "bilinear": lambda: Bilinear(8, 8, 5, heads=4),
    "location": lambda: Location(8, 3),
    "relative": lambda: Relative(8, 2, values=True),
    "rotary": lambda: Rotary(Dot()),
    "alibi": lambda: Dot() + ALiBi(heads=4),
    "t5": lambda: Dot() + T5Bias(heads=4),
    "cosine": lambda: Cosine(heads=4),
    "key": lambda: General(8, 8) + Key(8),
    "softcap": lambda: Softcap(Dot(), 2.0),
    "bias": lambda: Dot() + Bias(torch.randn(1, 4, 7, 7, dtype=torch.float64)),
    "per head": lambda: PerHead((2, Dot()), (1, Additive(8, 8, 5)), (1, Rotary(Dot()))),
}
MASKS = {
    "none": lambda: None,
    "causal, padded": lambda: Causal() & Lengths(torch.tensor([7, 4])),
    "window or prefix": lambda: Window(1, 2) | Prefix(1),
    "documents": lambda: Documents(torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]])),
    "nothing to see": lambda: Lengths(torch.tensor([7, 0])),
    "dense": lambda: torch.arange(28 * 7).reshape(1, 4, 7, 7) % 3 > 0,
}


def attention(score, dtype=torch.float64, **options):
    torch.manual_seed(1)
    return regard.nn.MultiHeadAttention(32, 4, score=score, **options).to(dtype).eval()


def layers(count=3):
    torch.manual_seed(2)
    return torch.nn.Sequential(*[regard.nn.EncoderLayer(16, 2, dropout=0.0) for _ in range(count)]).double().eval()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_weights_are_the_models_own(score, mask):
    module, seen = attention(SCORES[score]()), MASKS[mask]()
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        out, weights = module(x, mask=seen, need_weights=True)
    assert torch.equal(out, module(x, mask=seen))
    assert trace.kinds == {"self": 1} and trace.shape(0) == (2, 4, 7, 7) and trace.calls(0) == 1
    for item in range(2):
        torch.testing.assert_close(trace.weights(0, item=item), weights[item], atol=1e-12, rtol=0)
        for head in range(4):
            tile = trace.tile(0, head, (1, 6), (2, 7), item=item)
            torch.testing.assert_close(tile, weights[item, head, 1:6, 2:7], atol=1e-12, rtol=0)
            shown = trace.steps(0, head, 3, item=item)
            assert shown.difference < 1e-12
            torch.testing.assert_close(shown.weights, weights[item, head, 3], atol=1e-12, rtol=0)


def test_scores_logsumexp_and_softmax_agree():
    module, x = attention(Additive(8, 8, 6)), torch.randn(1, 9, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x, mask=Causal())
    scores, lse = trace.scores(0), trace.logsumexp(0)
    torch.testing.assert_close(scores.logsumexp(-1), lse)
    torch.testing.assert_close((scores - lse[..., None]).exp(), trace.weights(0))
    assert (scores == -torch.inf).sum() == 4 * 9 * 8 // 2


def test_steps_add_up():
    module, x = attention(Softcap(Dot(), 3.0) + ALiBi(heads=4)), torch.randn(2, 7, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        out = module(x, mask=Causal())
    shown = trace.steps(0, 2, 5, item=1)
    torch.testing.assert_close(shown.products, shown.q * shown.k)
    torch.testing.assert_close(shown.products.sum(-1), shown.similarity)
    torch.testing.assert_close(3.0 * (shown.similarity / 8**0.5 / 3.0).tanh() + shown.added, shown.scaled)
    torch.testing.assert_close(shown.masked[:6].softmax(-1), shown.weights[:6])
    torch.testing.assert_close(shown.weighted.sum(0), shown.context)
    assert torch.equal(shown.query_input, x[1, 5]) and torch.equal(shown.key_inputs, x[1])
    q = x[1, 5] @ module.q_proj.weight.T + module.q_proj.bias
    torch.testing.assert_close(shown.q, q[16:24])
    whole = sum(trace.steps(0, head, 5, item=1).output for head in range(4)) + module.out_proj.bias
    torch.testing.assert_close(whole, out[1, 5])
    assert shown.score == "Softcap(Dot()) + ALiBi()" and not shown.counterfactual
    lines = repr(shown).splitlines()  # for a prompt: a line per step, not all of its numbers
    assert len(lines) == 19 and max(map(len, lines)) < 80
    assert lines[1].split()[:4] == ["query_input", "[32]", f"{x[1, 5].min():.4g}", "…"]


def test_another_score_on_the_same_queries_and_keys():
    module, x = attention(Dot()), torch.randn(1, 6, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x, mask=Causal())
    other = Additive(8, 8, 5).double()
    shown = trace.steps(0, 1, 4, score=other)
    q, k, v = (p(x).view(1, 6, 4, 8).transpose(1, 2)[:, 1:2] for p in (module.q_proj, module.k_proj, module.v_proj))
    expected = regard.steps(q, k, v, score=other, mask=Causal())
    torch.testing.assert_close(shown.weights, expected.weights[0, 0, 4])
    torch.testing.assert_close(shown.context, expected.context[0, 0, 4])
    assert shown.counterfactual and shown.recorded is None and shown.difference is None


def test_measures():
    module, x = attention(Relative(8, 2, values=True)), torch.randn(1, 6, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x)
    w = trace.weights(0, 1)
    torch.testing.assert_close(trace.entropy(0, 1), -(w * w.log()).sum(-1))
    at = torch.arange(6)
    torch.testing.assert_close(trace.distance(0, 1), (w * (at - at[:, None]).abs()).sum(-1))
    torch.testing.assert_close(trace.sink(0, 1, first=2), w[:, :2].sum(-1))
    top = trace.topk(0, 1, 3, 2)
    assert top.values.tolist() == sorted(w[3].tolist(), reverse=True)[:2]
    assert top.rest == pytest.approx(float(1 - top.values.sum()))
    # ‖α f(x)‖ with the value table, pair by pair
    shown, wide = trace.steps(0, 1, 3), module.out_proj.weight[:, 8:16]
    table = trace.recorded[0].problems[0].terms.values[0, 0]
    pairs = shown.v + table[(at - 3).clamp(-2, 2) + 2]
    torch.testing.assert_close(trace.norms(0, 1, 3), w[3] * (pairs @ wide.T).norm(dim=-1))


def test_gradients_of_the_weights():
    score, x = Relative(8, 2, values=True), torch.randn(1, 6, 32, dtype=torch.float64)
    module = attention(score)
    with regard.record(module, gradients=True) as trace:
        out = module(x)
    goal = torch.randn_like(out)
    (out * goal).sum().backward()
    # the same by hand, through weights that are a leaf
    shown = [trace.steps(0, head, 0) for head in range(4)]
    weights = trace.weights(0).requires_grad_()
    table = trace.recorded[0].problems[0].terms.values[0, 0]
    at = torch.arange(6)
    moved = table[(at - at[:, None]).clamp(-2, 2) + 2]
    contexts = [weights[h] @ shown[h].v + torch.einsum("ij,ijd->id", weights[h], moved) for h in range(4)]
    (torch.cat(contexts, -1) @ module.out_proj.weight.T * goal[0]).sum().backward()
    torch.testing.assert_close(trace.gradient(0), (weights * weights.grad).detach())


def test_gradient_says_what_is_missing():
    module = attention(Dot())
    with regard.record(module) as trace:
        module(torch.randn(1, 3, 32, dtype=torch.float64))
    with pytest.raises(ValueError, match="gradients=True"):
        trace.gradient(0, 0)


def test_rollout_is_the_product_of_the_layers():
    model, x = layers(), torch.randn(2, 6, 16, dtype=torch.float64)
    with regard.record(model) as trace:
        model(x)
    assert trace.names() == ("0.attention", "1.attention", "2.attention")
    whole = torch.eye(6, dtype=torch.float64)
    for layer in range(3):
        whole = (0.5 * trace.weights(layer, item=1).mean(0) + 0.5 * torch.eye(6)) @ whole
        for row in range(6):
            torch.testing.assert_close(trace.rollout(row, layer=layer, item=1), whole[row])


@pytest.mark.parametrize("pool", ["max", "sum"])
def test_tiles_pool_cells(pool):
    module, x = attention(Additive(8, 8, 6)), torch.randn(1, 23, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x, mask=Causal())
    w = trace.weights(0, 1)
    small = trace.tile(0, 1, (2, 23), (1, 20), (5, 4), pool)  # 21 rows in cells of 5, 19 columns in cells of 5
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for i in range(21):
        for j in range(19):
            cell, v = (i // 5, j // 5), w[2 + i, 1 + j]
            expected[cell] = max(expected[cell], v) if pool == "max" else expected[cell] + v
    torch.testing.assert_close(small, expected)


def test_sampled_tiles():
    module, x = attention(Dot()), torch.randn(1, 23, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x)
    w = trace.weights(0, 1)
    few = trace.tile(0, 1, size=(5, 23), samples=2)  # cells of 5 rows: the second and the fourth of each
    expected = torch.stack([w[[5 * i + 1, min(5 * i + 3, 22)]].amax(0) for i in range(5)])
    torch.testing.assert_close(few, expected)
    assert torch.equal(trace.tile(0, 1, size=(5, 4), samples=5), trace.tile(0, 1, size=(5, 4)))
    guess = trace.tile(0, 1, size=(5, 1), pool="sum", samples=1)
    torch.testing.assert_close(guess[:, 0], torch.tensor([5.0, 5, 5, 5, 3]).double())  # rows add up to 1 each
    with pytest.raises(ValueError, match="samples: expected at least 1"):
        trace.tile(0, 1, samples=0)


def test_a_trace_of_given_queries_and_keys():
    q, k, v = torch.randn(3, 2, 4, 30, 8, dtype=torch.float64)
    trace = regard.Trace.of(q, k, v, score=Relative(8, 3).double(), mask=Causal())
    with regard.record() as ran:
        regard.attend(q, k, v, score=Relative(8, 3).double(), mask=Causal())
    assert trace.shape(0) == ran.shape(0) and trace.score(0) == "Relative()"
    assert trace.steps(0, 1, 2).difference is None
    torch.testing.assert_close(trace.weights(0, 1).sum(-1), torch.ones(30).double())


def test_tiles_in_blocks_equal_tiles_at_once(monkeypatch):
    module, x = attention(Dot()), torch.randn(1, 40, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x)
    whole, row = trace.tile(0, 0, size=(7, 9)), trace.weights(0, 0)
    monkeypatch.setattr("regard.trace._tiles.BLOCK", 64)
    monkeypatch.setattr("regard.trace._call.BLOCK", 64)
    torch.testing.assert_close(trace.tile(0, 0, size=(7, 9)), whole)
    torch.testing.assert_close(trace.weights(0, 0), row)


def test_an_encoder_decoder_has_three_kinds():
    model = Transformer(
        TransformerConfig(vocab_size=30, dim=16, ffn_dim=32, heads=2, encoder_layers=2, decoder_layers=3, dropout=0.0)
    )
    model = model.double().eval()
    source, target = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
    with regard.record(model) as trace:
        logits, weights = model(source, target, attention=True)
    assert torch.equal(logits, model(source, target))
    assert trace.kinds == {"self": 2, "decoder": 3, "cross": 3}
    assert trace.names("cross")[0] == "decoder.0.cross_attention"
    for layer in range(3):
        for item in range(2):
            torch.testing.assert_close(trace.weights(layer, item=item, kind="cross"), weights[item, layer])
    assert trace.weights(0, 0, item=1)[:, 2:].sum() == 0  # padding
    assert trace.weights(1, kind="decoder").triu(1).sum() == 0
    assert trace.steps(2, 1, 2, kind="cross").key_inputs.shape == (4, 16)
    cut = trace.ablate({("cross", 1): [0], ("self", 0): [1]})[0]
    with torch.no_grad():
        model.decoder[1].cross_attention.out_proj.weight[:, :8] = 0
        model.encoder[0].attention.out_proj.weight[:, 8:] = 0
        torch.testing.assert_close(cut, model(source, target))


def test_generation_makes_many_calls():
    model = Transformer(TransformerConfig(vocab_size=30, dim=16, ffn_dim=32, heads=2, encoder_layers=1, dropout=0.0))
    model = model.double().eval()
    source = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
    memory = model.encode(source)
    with torch.no_grad(), regard.record(model) as trace:
        found = regard.decode.beam(model, memory, beams=3, limits=regard.decode.Limits(minimum=4, maximum=5))
    steps = trace.calls(0, kind="decoder")
    assert steps == trace.calls(0, kind="cross") >= 4 and found
    assert trace.shape(0, kind="cross") == (2, 2, 3, 4)  # beams are queries of one sentence
    first, later = trace.shape(0, kind="decoder", call=0), trace.shape(0, kind="decoder", call=3)
    assert (first[3], later[3]) == (1, 4)
    torch.testing.assert_close(trace.weights(0, kind="decoder", call=3).sum(-1), torch.ones(2, 1).double())


def test_calls_joined_equal_one_pass():
    """A cache's steps, one after the other, are the rows of the whole."""
    model = Transformer(TransformerConfig(vocab_size=30, dim=16, ffn_dim=32, heads=2, encoder_layers=0, dropout=0.0))
    model = model.double().eval()
    tokens = torch.tensor([[1, 5, 6, 7]])
    with torch.no_grad(), regard.record(model) as whole:
        model(None, tokens)
    with torch.no_grad(), regard.record(model) as stepwise:
        state = model.start(regard.models.Memory.nothing(1))
        for token in tokens.unbind(1):
            model.step(token, state)
    assert stepwise.shape(1, call=None) == (1, 2, 4, 4)
    torch.testing.assert_close(stepwise.weights(1, call=None), whole.weights(1))
    torch.testing.assert_close(stepwise.weights(1, 0, 2, call=None), whole.weights(1, 0, 2))
    torch.testing.assert_close(stepwise.entropy(1, call=None), whole.entropy(1))
    assert (stepwise.scores(1, 0, 1, call=None)[2:] == -torch.inf).all()


@pytest.mark.parametrize("location", [0, 3])
@pytest.mark.parametrize("score", ["additive", "general"])
def test_a_recurrent_decoder(score, location):
    torch.manual_seed(3)
    config = RNNConfig(vocab_size=30, dim=8, hidden_dim=16, heads=2, score=score, location_features=location)
    model = RNNSeq2Seq(config).double().eval()
    source, target = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
    with regard.record(model) as trace:
        logits = model(source, target)
    again, weights = model(source, target, attention=True)
    torch.testing.assert_close(logits, again)
    assert trace.kinds == {"cross": 1} and trace.calls(0, kind="cross") == 3
    for item in range(2):
        torch.testing.assert_close(trace.weights(0, item=item, kind="cross", call=None), weights[item, 0])
    assert trace.steps(0, 1, 2, kind="cross", call=None).difference < 1e-12
    with torch.no_grad(), regard.record(model) as steps:
        regard.decode.greedy(model, model.encode(source), limits=regard.decode.Limits(maximum=4))
    assert steps.kinds == {"cross": 1}


def test_a_call_without_a_model():
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64)
    with regard.record() as trace:
        out = regard.attend(q, k, v)
        regard.attend(q, k, v, score=Dot(scale=1.0))
    assert trace.calls(0) == 2
    w = trace.weights(0, 1, item=1, call=0)
    torch.testing.assert_close(w @ v[1, 1], out[1, 1])


def test_another_models_calls_are_not_taken():
    ours, other = attention(Dot()), attention(Dot())
    with regard.record(ours) as trace:
        other(torch.randn(1, 3, 32, dtype=torch.float64))
    assert trace.kinds == {}
    with pytest.raises(ValueError, match="was the model called inside the with block"):
        trace.weights(0, 0)


def test_two_records_at_once_both_see():
    model, x = layers(1), torch.randn(1, 4, 16, dtype=torch.float64)
    with regard.record(model) as outer, regard.record(model) as inner:
        model(x)
    assert outer.calls(0) == inner.calls(0) == 1
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("whose", ["ours", "torch"])
def test_threads_do_not_mix(whose):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = layers(1) if whose == "ours" else layer.double().eval()
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    with regard.record(model) as trace:
        worker = threading.Thread(target=model, args=(x,))
        worker.start()
        worker.join()
        model(x)
    assert trace.calls(0) == 1


def test_an_error_leaves_nothing_behind():
    model = layers(2)
    with pytest.raises(RuntimeError), regard.record(model):
        model(torch.randn(1, 4, 15, dtype=torch.float64))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with regard.record(model) as trace:
        with pytest.raises(RuntimeError):
            model(torch.randn(1, 4, 15, dtype=torch.float64))
        model(torch.randn(1, 4, 16, dtype=torch.float64))
    assert trace.names() == ("0.attention", "1.attention")


def test_what_was_recorded_does_not_change_afterwards():
    module, x = attention(Dot()), torch.randn(1, 5, 32, dtype=torch.float64)
    with torch.no_grad(), regard.record(module) as trace:
        module(x)
    before = trace.weights(0), trace.steps(0, 0, 1).query_input.clone()
    x.zero_()
    assert torch.equal(trace.weights(0), before[0]) and torch.equal(trace.steps(0, 0, 1).query_input, before[1])


def test_dropout_is_not_part_of_the_weights():
    module = attention(Dot(), dropout=0.5).train()
    with regard.record(module) as trace:
        module(torch.randn(1, 5, 32, dtype=torch.float64))
    torch.testing.assert_close(trace.weights(0).sum(-1), torch.ones(4, 5).double())
    assert trace.steps(0, 0, 1).difference is None


def test_memory_grows_with_the_length():
    module = attention(Dot(), torch.float32)
    with torch.no_grad(), regard.record(module, inputs=False) as trace:
        module(torch.randn(1, 4000, 32), mask=Causal())
    assert trace.nbytes == 4 * 4000 * 32 * 4  # q, k, v and the context, each once
    assert trace.tile(0, 0, size=(20, 20)).shape == (20, 20)


@pytest.mark.parametrize("mask", ["none", "causal, padded"])
@pytest.mark.parametrize("score", ["dot", "additive", "relative", "per head"])
def test_without_values(score, mask, tmp_path):
    """Weights and what is made of them are the same; what is made of values says that there are none."""
    module, x = attention(SCORES[score]()), torch.randn(2, 7, 32, dtype=torch.float64)
    with regard.record(module) as whole, regard.record(module, values=False) as trace:
        module(x, mask=MASKS[mask]())
    trace.save(tmp_path / "t.safetensors")
    for found in (trace, regard.trace.load(tmp_path / "t.safetensors")):
        for ask in (
            lambda t: t.weights(0, item=1),
            lambda t: t.scores(0, item=1),
            lambda t: t.logsumexp(0, 2),
            lambda t: t.entropy(0, 1),
            lambda t: t.tile(0, 1, size=(3, 3), pool="sum"),
            lambda t: t.rollout(3),
        ):
            torch.testing.assert_close(ask(found), ask(whole), rtol=1e-12, atol=1e-12)
        for ask in (lambda t: t.steps(0, 1, 2), lambda t: t.norms(0, 1)):
            with pytest.raises(
                ValueError, match=r"values, which were not kept .*; weights, scores and tiles do not need them"
            ):
                ask(found)
        found.to_html(tmp_path / "t.html")
        assert (tmp_path / "t.html").stat().st_size > 1000
    assert whole.nbytes - trace.nbytes >= 2 * x.nbytes
    with pytest.raises(ValueError, match="leave out values=False"), regard.record(module, values=False, gradients=True):
        pass


def test_without_values_of_torchs_own_module():
    module, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    with regard.record(module, values=False, inputs=False) as trace:
        _, weights = module(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(trace.weights(0, item=1), weights[1])
    with pytest.raises(ValueError, match="steps and norms need the values, which were not kept"):
        trace.steps(0, 0, 0)


def test_a_compiled_model_runs_uncompiled():
    module, x = attention(Dot(), torch.float32), torch.randn(1, 5, 32)
    compiled = torch.compile(module, backend="eager")
    expected = compiled(x)
    with regard.record(compiled) as trace:
        out = compiled(x)
    torch.testing.assert_close(out, expected)
    assert trace.calls(0) == 1 and trace.names() == ("",)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["relative", "per head", "bias", "alibi"])
def test_saved_and_loaded(score, mask, tmp_path):
    module, x = attention(SCORES[score]()), torch.randn(2, 7, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x, mask=MASKS[mask]())
    trace.label(list("abcdefg"), item=1)
    trace.logsumexp(0, 1)
    trace.save(tmp_path / "t.safetensors", inputs=True)
    again = regard.trace.load(tmp_path / "t.safetensors")
    for item in range(2):
        assert torch.equal(trace.weights(0, item=item), again.weights(0, item=item))
    assert again.labels(item=1) == (list("abcdefg"), list("abcdefg")) and again.labels()[0][:2] == ["0", "1"]
    assert again.steps(0, 1, 2).difference < 1e-12 and again.score(0, 3) == trace.score(0, 3)
    assert torch.equal(again.steps(0, 1, 2).query_input, x[0, 2])
    with pytest.raises(ValueError, match="no model to run again"):
        again.ablate({("self", 0): [0]})


def test_damaged_files_are_refused(tmp_path):
    module = attention(Dot())
    with regard.record(module) as trace:
        module(torch.randn(1, 3, 32, dtype=torch.float64))
    path = tmp_path / "t.safetensors"
    trace.save(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="cut short"):
        regard.trace.load(path)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda t: t.weights(1, 0), "layer: there are 1 of kind 'self', from 0; got 1"),
        (lambda t: t.weights(0, 4), "head: there are 4, from 0; got 4"),
        (lambda t: t.weights(0, 0, item=2), "item: the batch has 1, from 0; got 2"),
        (lambda t: t.weights(0, 0, kind="cross"), r"kind: expected one of those recorded \(self\), got 'cross'"),
        (lambda t: t.weights(0, 0, 9), "rows: there are 5 queries, from 0; got 9…9"),
        (lambda t: t.weights(0, 0, call=1), "was called 1 times, got 1"),
        (lambda t: t.tile(0, 0, (0, 6)), r"rows: expected \(first, end\) within 0…5, got \(0, 6\)"),
        (lambda t: t.tile(0, 0, pool="mean"), "pool: expected 'max' or 'sum', got 'mean'"),
        (lambda t: t.tile(0, 0, size=(0, 3)), "size: expected"),
        (lambda t: t.ablate({("self", 0): [7]}), "head: there are 4"),
    ],
)
def test_wrong_addresses(ask, text):
    module = attention(Dot())
    with regard.record(module) as trace:
        module(torch.randn(1, 5, 32, dtype=torch.float64))
    with pytest.raises(ValueError, match=text):
        ask(trace)


@pytest.mark.parametrize("heads", [{2: [3]}, {("self", 0): None}, {("self",): [0]}])
def test_heads_to_leave_out_are_asked_for_by_kind_and_layer(heads):
    module = attention(Dot()).eval()
    with regard.record(module) as trace:
        module(torch.randn(1, 3, 32, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"\{\(kind, layer\): heads\}, as in \{\(\"self\", 2\): \[3\]\}, got"):
        trace.ablate(heads)


def test_what_is_no_module_cannot_be_recorded():
    with pytest.raises(TypeError, match=r"record takes a torch.nn.Module.*got int"), regard.record(3):
        pass


def test_without_names_the_modules_that_did_not_run():
    model = layers(1)
    with (
        pytest.raises(ValueError, match="no attention of 'nowhere' ran"),
        regard.trace.without(model, {"nowhere": [0]}),
    ):
        model(torch.randn(1, 3, 16, dtype=torch.float64))


# --- labels ---


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([*"abc"],), "queries: expected 4 names, one for each row of 'self', got 3"),
        (([*"abcde"],), "queries: expected 4 names"),
        (([*"abcd"], [*"xyz"]), "keys: expected 6 names, one for each column of 'self', got 3"),
        (([*"abcd"],), "got 4; where rows and columns differ, give both"),
    ],
)
def test_labels_of_a_wrong_count_are_refused(arguments, told):
    trace = regard.Trace.of(torch.randn(1, 2, 4, 8), *torch.randn(2, 1, 2, 6, 8))
    with pytest.raises(ValueError, match=told):
        trace.label(*arguments)
    trace.label([*"abcd"], [*"uvwxyz"])
    assert trace.labels() == ([*"abcd"], [*"uvwxyz"])
    with pytest.raises(ValueError, match="item: expected one of 1, counted from 0, got 1"):
        trace.label([*"abcd"], [*"uvwxyz"], item=1)


def test_labels_may_be_of_each_of_several_calls():
    module, x = attention(SCORES["alibi"]()), torch.randn(1, 3, 32, dtype=torch.float64)
    with regard.record(module) as trace:
        module(x)
        module(x)
    trace.label([*"abc"])
    trace.label([*"abcabc"], [*"abc"])
    with pytest.raises(ValueError, match="expected 6 names"):
        trace.label([*"abcd"], [*"abc"])

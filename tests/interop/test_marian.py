"""Hugging Face's MarianMTModel in and out: random weights, the same logits and the same greedy output."""

import math

import pytest
import torch

from regard import decode
from regard.interop.marian import from_marian, to_marian
from regard.models import Transformer, TransformerConfig
from regard.nn import to_int8
from regard.tasks.translation.train import TranslationObjective

transformers = pytest.importorskip("transformers")

V, PAD, EOS = 37, 36, 0
VARIANTS = {
    "as published": {},
    "swish": {"activation_function": "swish"},
    "relu": {"activation_function": "relu"},
    "unscaled": {"scale_embedding": False},
    "two embeddings": {"share_encoder_decoder_embeddings": False},
    "softmax of its own": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "deep encoder": {"encoder_layers": 3, "decoder_layers": 1},
}


def marian(dtype=torch.float32, **changes):
    """A small model with weights that matter everywhere: biases and norms too."""
    config = {
        "vocab_size": V,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "activation_function": "gelu",
        "scale_embedding": True,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
    }
    torch.manual_seed(3)
    model = transformers.MarianMTModel(transformers.MarianConfig(**(config | changes))).to(dtype).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" not in name:
                p.add_(torch.randn_like(p) * 0.15)
        model.final_logits_bias.copy_(torch.randn(1, V))
        for side in (model.model.encoder, model.model.decoder):
            side.embed_positions.weight.copy_(table(64, 32))  # Marian rounds its own to float32
    return model


def table(length, dim):
    """Marian's positions, written out: p / 10000^(2i/d), sines first."""
    angle = torch.tensor(
        [[p / 10000 ** (2 * i / dim) for i in range(dim // 2)] for p in range(length)], dtype=torch.float64
    )
    return torch.cat((angle.sin(), angle.cos()), 1)


def batch(seed=0):
    draw = torch.Generator().manual_seed(seed)
    source = torch.randint(1, V - 1, (3, 9), generator=draw)
    source[:, -1] = EOS
    source[1, 5:], source[1, 4] = PAD, EOS
    target_in = torch.cat((torch.full((3, 1), PAD), torch.randint(1, V - 1, (3, 7), generator=draw)), 1)
    return source, target_in


@torch.no_grad()
def both(theirs, ours):
    source, target_in = batch()
    expected = theirs(input_ids=source, attention_mask=source != PAD, decoder_input_ids=target_in).logits
    return ours(source, target_in), expected


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["float32", "float64"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_logits_are_marians(changes, dtype, most):
    theirs = marian(dtype, **changes)
    got, expected = both(theirs, from_marian(theirs))
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, atol=most, rtol=most)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_greedy_output_is_marians(changes):
    theirs = marian(**changes)
    ours, (source, _) = from_marian(theirs), batch(1)
    with torch.no_grad():
        memory = ours.encode(source)
    found = decode.greedy(ours, memory, limits=decode.Limits(maximum=20))
    generated = theirs.generate(
        input_ids=source,
        attention_mask=source != PAD,
        num_beams=1,
        do_sample=False,
        max_new_tokens=21,
        suppress_tokens=[PAD],
    )
    for hypothesis, row in zip(found, generated[:, 1:].tolist(), strict=True):
        tokens = hypothesis.tokens.tolist()
        assert row[: len(tokens)] == tokens and set(row[len(tokens) :]) <= {PAD}


def test_the_cross_attention_is_marians():
    theirs = marian(torch.float64)
    theirs.set_attn_implementation("eager")
    source, target_in = batch()
    with torch.no_grad():
        out = theirs(
            input_ids=source, attention_mask=source != PAD, decoder_input_ids=target_in, output_attentions=True
        )
        _, weights = from_marian(theirs)(source, target_in, attention=True)
    torch.testing.assert_close(weights, torch.stack(out.cross_attentions, 1), atol=1e-10, rtol=0)


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_ours_as_marian_and_back(tied, activation):
    config = TransformerConfig(
        vocab_size=V, dim=32, ffn_dim=48, heads=4, encoder_layers=1, decoder_layers=2, norm="post", tied=tied,
        activation=activation, pad_id=PAD, bos_id=PAD, eos_id=EOS, output_bias=tied == "none",
    )  # fmt: skip
    ours = Transformer(config).double().eval()
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    theirs = to_marian(ours, max_positions=64)
    with torch.no_grad():
        for side in (theirs.model.encoder, theirs.model.decoder):
            side.embed_positions.weight.copy_(table(64, 32))
    got, expected = both(theirs, ours)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    again = from_marian(theirs)
    assert again.config == config
    for name, weight in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def test_what_was_written_is_read_from_its_folder(tmp_path):
    theirs = marian()
    theirs.save_pretrained(tmp_path)
    got, expected = both(theirs, from_marian(tmp_path))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_embeddings_that_are_not_scaled_are_untied():
    ours = from_marian(marian(scale_embedding=False))
    assert ours.config.tied == "none"
    torch.testing.assert_close(ours.embedding.weight, ours.output.weight / math.sqrt(32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_ffn_dim": 64}, "encoder_ffn_dim = 48 and decoder_ffn_dim = 64"),
        ({"decoder_attention_heads": 2}, "encoder_attention_heads = 4 and decoder_attention_heads = 2"),
        ({"activation_function": "gelu_new"}, "activation_function must be one of .*, got 'gelu_new'"),
    ],
)
def test_what_cannot_come_in_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        from_marian(marian(**changes))


def test_other_positions_are_refused():
    theirs = marian()
    with torch.no_grad():
        theirs.model.decoder.embed_positions.weight.mul_(1.1)
    with pytest.raises(ValueError, match="the decoder's positions are not Marian's"):
        from_marian(theirs)
    with pytest.raises(TypeError, match=r"expected a transformers\.MarianMTModel or the folder of one, got int"):
        from_marian(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "pre"}, "norm = 'pre': expected 'post'"),
        ({"positions": "none"}, "positions = 'none': expected 'sinusoidal'"),
        ({"activation": "swiglu"}, "activation = 'swiglu': expected one of relu, gelu, silu"),
        ({"cross_score": "additive"}, "cross_score = 'additive': expected the scaled dot product"),
        ({"self_score": {"kind": "dot", "scale": 1.0}}, "self_score = "),
        ({"kv_heads": 2}, "kv_heads = 2 of 4"),
        ({"encoder_layers": 0}, "lacks one of them"),
    ],
)
def test_what_cannot_go_out_is_named(changes, message):
    config = {"vocab_size": V, "dim": 32, "ffn_dim": 48, "heads": 4, "norm": "post", "encoder_layers": 1}
    with pytest.raises(ValueError, match=message):
        to_marian(Transformer(TransformerConfig(**(config | {"decoder_layers": 1} | changes))))


# --- what the model has for Marian's sake ---


def test_the_softmax_bias_is_kept_in_8_bits_and_refused_in_training():
    config = TransformerConfig(
        vocab_size=V, dim=32, ffn_dim=48, heads=4, encoder_layers=1, decoder_layers=1, output_bias=True
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        model.output_bias.copy_(torch.linspace(-9, 9, V))
    features = torch.zeros(2, 32)
    torch.testing.assert_close(model.logits(features)[1], model.output_bias)
    torch.testing.assert_close(to_int8(model, at_least=0).logits(features)[1], model.output_bias)
    with pytest.raises(ValueError, match="output_bias is for models that come from elsewhere"):
        TranslationObjective(model, smoothing=0.1, rdrop=0.0)

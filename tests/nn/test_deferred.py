"""Modules created on the meta device: once memory is allocated, resetting or loading defines every tensor."""

import importlib
import inspect
import pkgutil
from functools import partial

import pytest
import torch
from cases import SCORES, Sizes, tensors
from torch import nn

import regard
from regard.common.module import Module
from regard.interop.torch import replace
from regard.models import (
    PointerConfig,
    PointerTransformer,
    Reader,
    ReaderConfig,
    RNNConfig,
    RNNSeq2Seq,
    Transformer,
    TransformerConfig,
)
from regard.models._bidirectional import Bidirectional
from regard.nn import (
    CausalLM,
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
from regard.score import Additive, ALiBi, Bias, Cosine, Dot, Function, PerHead, QKNorm, Rotary, Scale, Score, T5Bias
from regard.score.scale import _Around
from regard.tasks.qa import train as qa
from regard.tasks.summarization import train as summarization
from regard.tasks.translation import train as translation

SIZES = Sizes()
SMALL = {"vocab_size": 11, "dim": 8, "heads": 2, "dropout": 0.0}
LAYERS = {"ffn_dim": 12, "encoder_layers": 1, "decoder_layers": 1}
TOKENS = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
LENGTHS = torch.tensor([4, 2])


def states(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def mixture():
    """A score whose parts all have parameters."""
    return PerHead((1, Scale(T5Bias(1, 8, 9), heads=1) + QKNorm(Dot(), "rms", dim=4)), (1, Cosine(3.0, heads=1)))


def converted_model():
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    replace(module, lambda m: mixture())
    return module


def objective(kind, model, **options):
    return lambda: kind(model(), **options)


def transformer(**options):
    spec = [[1, "t5"], [1, {"kind": "relative", "max_distance": 2, "values": True}]]
    config = {"positions": "learned", "max_length": 9, "tied": "none"}
    return Transformer(TransformerConfig(**SMALL, **LAYERS, **config, self_score=spec, cross_score="cosine", **options))


def pointer():
    return PointerTransformer(PointerConfig(**SMALL, **LAYERS, coverage=True, told_length=True, self_score="t5"))


def reader(**options):
    sizes = {"ffn_dim": 12, "encoder_layers": 1, "model_layers": 1}
    return Reader(ReaderConfig(**SMALL, **sizes, self_score="t5", cross_score="trilinear", **options))


def rnn(**options):
    return RNNSeq2Seq(RNNConfig(**SMALL, hidden_dim=8, **options))


def attend_with(score):
    q, k, v = tensors(SIZES, torch.float32)
    return regard.attend(q, k, v, score=score, backend="reference")


def translate_with(model):
    return model(*TOKENS)


def with_itself(module):
    return module(states(2, 3, 8))


def with_memory(module):
    return module(states(2, 3, 8), states(2, 5, 8))


# How to create and run each.
MODULES = {
    **{name: (partial(make, SIZES), attend_with) for name, make in SCORES.items()},
    "rotary_own": (lambda: Rotary(Dot(), inv_freq=[0.9, 0.03]), attend_with),
    "function": (lambda: Function(lambda s, b, h, i, j: s - 0.5 * (j - i).abs(), Cosine(heads=4)), attend_with),
    "attention": (lambda: MultiHeadAttention(8, 2, score=mixture(), sink=True), with_itself),
    "replaced": (converted_model, lambda m: m(*[states(2, 3, 8)] * 3)[0]),
    "embedding": (lambda: Embedding(11, 8, padding_idx=0), lambda m: m(TOKENS[0])),
    "learned": (lambda: LearnedPositions(9, 8), with_itself),
    "sinusoidal": (lambda: SinusoidalPositions(8), with_itself),
    "feed_forward": (lambda: FeedForward(8, 12, gated=True), with_itself),
    "encoder_layer": (lambda: EncoderLayer(8, 2, score=mixture(), dropout=0.0), with_itself),
    "decoder_layer": (lambda: DecoderLayer(8, 2, score=mixture(), cross_score=Cosine(), dropout=0.0), with_memory),
    "bidirectional": (lambda: Bidirectional("lstm", 8, 4, 2), lambda m: m(states(2, 4, 8), LENGTHS)),
    "transformer": (lambda: transformer(output_bias=True), translate_with),
    "pointer": (pointer, translate_with),
    "reader": (reader, translate_with),
    "joint_reader": (lambda: reader(joint=True, segments=2), translate_with),
    "gru": (lambda: rnn(location_features=2, score="general"), translate_with),
    "lstm": (lambda: rnn(cell="lstm", tied="none", score="cosine"), translate_with),
    "causal": (lambda: CausalLM(11, 8, 2, 2, score=mixture, tied=False, bias=True), lambda m: m(TOKENS[0])),
    "translating": (
        objective(translation.TranslationObjective, transformer, smoothing=0.1, rdrop=0.0),
        lambda m: m.model(*TOKENS),
    ),
    "summarizing": (
        objective(summarization.SummaryObjective, pointer, smoothing=0.1, rdrop=0.0),
        lambda m: m.model(*TOKENS),
    ),
    "reading": (objective(qa.QAObjective, reader), lambda m: m.model(*TOKENS)),
}
ABSTRACT = {Module, Score, _Around}
FINISHED = {Int8Linear}  # made from weights that are there
# Some of their parts are made in another order than they are kept in, so that one seed gives them other draws.
REORDERED = {"replaced", "pointer", "summarizing", "reader", "reading", "gru"}


def modules_of_the_package():
    """Every module that the package defines."""
    found = set()
    for each in pkgutil.walk_packages(regard.__path__, "regard."):
        if not each.name.endswith("__main__"):
            module = importlib.import_module(each.name)
            found |= {x for x in vars(module).values() if inspect.isclass(x) and x.__module__ == each.name}
    return {x for x in found if issubclass(x, nn.Module)}


def test_every_module_is_here():
    met = {type(part) for make, _ in MODULES.values() for part in make().modules()}
    assert modules_of_the_package() - met == ABSTRACT | FINISHED


@pytest.fixture
def each_draw_alone(monkeypatch):
    """The same seed before every draw, so that an initial value depends on its distribution alone."""
    for name in ("uniform_", "normal_"):
        draw = getattr(torch.Tensor, name)

        def drawn(x, *args, draw=draw, **options):
            torch.manual_seed(5)
            return draw(x, *args, **options)

        monkeypatch.setattr(torch.Tensor, name, drawn)


def fresh(make):
    torch.manual_seed(4)
    return make().eval()


def caller_tensors(module):
    """The caller's tensors by module and name: buffers that are not saved."""
    scores = [(name, part) for name, part in module.named_modules() if isinstance(part, Score)]
    return {
        (name, key): part._buffers[key] for name, part in scores for key in part._caller_tensors if key in part._buffers
    }


def without_memory(make, source):
    """Created on the meta device, then given uninitialised memory."""
    with torch.device("meta"):
        module = make().eval()
    for (name, key), x in caller_tensors(source).items():
        setattr(module.get_submodule(name), key, x)
    assert all(x.is_meta for x in module.parameters())
    module.to_empty(device="cpu")
    spared = {id(x) for x in caller_tensors(module).values()}
    with torch.no_grad():
        for x in (*module.parameters(), *module.buffers()):
            if id(x) not in spared:
                x.fill_(float("nan") if x.is_floating_point() else -7_000_000)
    return module


def inside_out(module):
    """Children first, as ``apply`` does."""
    for part in reversed(list(module.modules())):
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()


def outside_in(module):
    """Parents first, as libraries without a recursive reset do."""
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()


@pytest.mark.parametrize("name", [name for name in MODULES if name not in REORDERED])
def test_started_as_a_fresh_one_under_the_same_seed(name):
    started_as_a_fresh_one(name)


@pytest.mark.parametrize("name", sorted(REORDERED))
def test_started_as_a_fresh_one(name, each_draw_alone):
    started_as_a_fresh_one(name)


def started_as_a_fresh_one(name):
    make, run = MODULES[name]
    source = fresh(make)
    module = without_memory(make, source)
    torch.manual_seed(4)
    module.reset_parameters()
    with torch.no_grad():
        for part in source.modules():
            if isinstance(part, Bias):
                part.reset_parameters()  # its numbers were the caller's
    assert module.state_dict().keys() == source.state_dict().keys()
    for key, x in module.state_dict().items():
        assert torch.equal(x, source.state_dict()[key]), key
    assert torch.equal(same(run, module), same(run, source))


def same(run, module):
    """The output of a module, on the same inputs each time."""
    torch.manual_seed(6)
    with torch.no_grad():
        return run(module)


@pytest.mark.parametrize("each", [inside_out, outside_in])
@pytest.mark.parametrize("name", MODULES)
def test_started_in_any_order_nothing_is_undefined(name, each):
    make, run = MODULES[name]
    module = without_memory(make, fresh(make))
    each(module)
    assert not same(run, module).isnan().any()


@pytest.mark.parametrize("name", MODULES)
def test_loaded_it_is_the_one_that_was_saved(name):
    make, run = MODULES[name]
    source = fresh(make)
    module = without_memory(make, source)
    module.load_state_dict(source.state_dict())
    assert torch.equal(same(run, module), same(run, source))


@pytest.mark.parametrize("name", MODULES)
def test_parameters_put_in_the_place_of_none(name):
    """``load_state_dict(assign=True)`` on the meta device, without memory of its own."""
    make, run = MODULES[name]
    source = fresh(make)
    with torch.device("meta"):
        module = make().eval()
    for (path, key), x in caller_tensors(source).items():
        setattr(module.get_submodule(path), key, x)
    module.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(same(run, module), same(run, source))


def test_what_was_given_stays_or_is_asked_for_again():
    numbers, places = torch.randn(5, 7), torch.tensor([[0, 1, 1, 3, 3, 3, 4]])
    q, k, v = tensors(SIZES, torch.float32)
    with torch.device("meta"):
        kept = Bias(numbers) + Rotary(Dot(), sections=[2], axes=places)
        lost = Bias(torch.zeros(5, 7)) + Dot()
        turned = Rotary(Dot(), sections=[2], axes=torch.zeros(1, 7, dtype=torch.int64))
    kept.to_empty(device="cpu").double()
    assert torch.equal(kept.parts[0].bias, numbers.double()) and torch.equal(kept.parts[1].axes, places)
    with pytest.raises(ValueError, match="Bias is on meta"):
        regard.attend(q, k, v, score=lost.to_empty(device="cpu"))
    with pytest.raises(ValueError, match="axes were made on the meta device"):
        regard.attend(q, k, v, score=turned.to_empty(device="cpu"))


def test_eight_bits_need_weights_and_keep_them():
    x = states(3, 8)
    model = to_int8(nn.Sequential(nn.Linear(8, 4)), at_least=0)
    expected = model(x)
    assert torch.equal(model.to_empty(device="cpu")(x), expected)
    with pytest.raises(ValueError, match="runs on a CPU, got a weight on meta"):
        to_int8(nn.Sequential(nn.Linear(8, 4, device="meta")), at_least=0)


# --- what a state dict has of a score ---

LEARNED = {
    "bias": (lambda: Bias(nn.Parameter(torch.randn(5, 7))), {"bias"}),
    "sum": (lambda: sum([Dot(), Bias(nn.Parameter(torch.randn(4, 1, 7))), ALiBi(4)]), {"parts.1.bias"}),
    "factor": (lambda: 2 * Scale(Dot(), 0.5, heads=4), {"inner.weight"}),
    "gains": (lambda: QKNorm(Rotary(Dot(), scaling=regard.score.YaRNScaling(4, 8)), "rms", dim=4),
              {"query_gain", "key_gain"}),
    "scaled sum": (lambda: -Scale(Additive(4, 4, 3) + T5Bias(4, 8, 9), heads=1) + 3 * Dot(),
                   {"parts.0.inner.weight", *(f"parts.0.inner.inner.parts.0.{n}" for n in "WUv"),
                    "parts.0.inner.inner.parts.1.weight"}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNED)
def test_a_state_dict_has_what_is_learned(name):
    make, keys = LEARNED[name]
    one, other = make(), make()
    with torch.no_grad():
        for x in one.parameters():
            x.normal_()
    assert set(one.state_dict()) == keys
    other.load_state_dict(one.state_dict())
    assert torch.equal(same(attend_with, other), same(attend_with, one))
    assert all(x.dtype == torch.float64 for x in one.double().state_dict().values())
    assert all(x.is_meta for x in one.to("meta").state_dict().values())

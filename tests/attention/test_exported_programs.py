"""torch.export: a program trains, serves any length and runs under autocast as the module it was made of."""

import io

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from regard.mask import Causal
from regard.nn import MultiHeadAttention
from regard.score import Additive, ALiBi, Dot, PerHead, Relative, Rotary, Softcap

SCORES = {
    "dot": Dot,
    "additive": lambda: Additive(4, 4, 6),
    "softcap": lambda: Softcap(Dot(), 5.0),
    "relative": lambda: Relative(4, 3),
    "relative_values": lambda: Relative(4, 3, values=True),
    "alibi": lambda: Dot() + ALiBi(heads=4),
    "per_head": lambda: PerHead((2, Additive(4, 4, 6)), (2, Rotary(Dot()))),
}


class Model(nn.Module):
    def __init__(self, score):
        super().__init__()
        self.attention = MultiHeadAttention(16, 4, score=score)

    def forward(self, x):
        return self.attention(x, mask=Causal())


def make_model(name):
    torch.manual_seed(0)
    return Model(SCORES[name]()).double()


def inputs(length=6):
    return torch.randn(2, length, 16, dtype=torch.float64, requires_grad=True)


def export(model, x, dynamic=False, **options):
    shapes = {"x": {1: torch.export.Dim("length", min=1, max=64)}} if dynamic else None
    return torch.export.export(model, (x,), dynamic_shapes=shapes, **options)


def gradients(model, x, names):
    out = model(x).sin()
    parameters = dict(model.named_parameters())
    return out, torch.autograd.grad(out.sum(), [x, *(parameters[name] for name in names)])


def trains_alike(program, model, x):
    names = [name for name, _ in model.named_parameters()]
    out, found = gradients(program, x, names)
    expected_out, expected = gradients(model, x, names)
    torch.testing.assert_close(out, expected_out, rtol=1e-12, atol=1e-12)
    for name, ours, theirs in zip(["x", *names], found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", SCORES)
def test_outputs_and_all_gradients_are_the_modules(name):
    model, x = make_model(name), inputs()
    trains_alike(export(model, x).module(), model, x)


@pytest.mark.parametrize("name", SCORES)
def test_a_dynamic_length_may_be_any(name):
    """Shorter than the example, longer, and one: no length is treated apart."""
    model = make_model(name)
    program = export(model, inputs(6), dynamic=True).module()
    for length in (1, 4, 6, 9, 30):
        trains_alike(program, model, inputs(length))


@pytest.mark.parametrize("name", ["additive", "relative_values"])
def test_a_program_can_be_saved_and_loaded(name):
    model, x, file = make_model(name), inputs(), io.BytesIO()
    torch.export.save(export(model, x, dynamic=True), file)
    file.seek(0)
    trains_alike(torch.export.load(file).module(), model, x)


@pytest.mark.parametrize("name", ["additive", "softcap", "relative_values"])
def test_without_gradients(name):
    model, x = make_model(name), inputs()
    program = export(model, x).module()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            out = program(x)
            assert not out.requires_grad
            torch.testing.assert_close(out, model(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["additive", "softcap", "relative_values"])
def test_under_autocast(name):
    model, x = make_model(name).float(), inputs().float().detach().requires_grad_()
    program = export(model, x).module()
    exact, given = model(x), program(x)
    torch.testing.assert_close(given, exact)
    with torch.autocast("cpu", torch.bfloat16):
        out = program(x)
    torch.testing.assert_close(out.float(), exact, rtol=0.05, atol=0.05)
    (ours,), (theirs,) = (torch.autograd.grad(y.float().sum(), x) for y in (out, exact))
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", ["additive", "relative_values"])
def test_per_sample_gradients_of_a_program(name):
    model, x = make_model(name), inputs().detach()
    program = export(model, x[:1]).module()
    parameters = {key: p.detach() for key, p in model.named_parameters()}

    def loss(called, parameters, x):
        return functional_call(called, parameters, (x[None],)).sin().sum()

    ours = vmap(grad(lambda p, x: loss(program, p, x)), (None, 0))(parameters, x)
    theirs = vmap(grad(lambda p, x: loss(model, p, x)), (None, 0))(parameters, x)
    for key in parameters:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-10, atol=1e-10)


def test_second_derivatives_are_refused_with_a_hint():
    model, x = make_model("additive"), inputs()
    program = export(model, x).module()
    (first,) = torch.autograd.grad(program(x).sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative; use backend='reference'"):
        torch.autograd.grad(first.sum(), x)

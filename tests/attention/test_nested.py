"""Nested tensors: one call is the sequences one by one, and nothing is padded or copied."""

import itertools

import pytest
import torch
from cases import PAIRED, Sizes, score
from torch.nested import narrow, nested_tensor, nested_tensor_from_jagged

import regard
from regard.attention.nested import pack
from regard.mask import Causal, Lengths, Window
from regard.nn import Cache, MultiHeadAttention
from regard.score import Additive, Dot, Function, Rotary, Score

QUERIES, KEYS = [0, 3, 3, 4, 9], [0, 4, 6, 8, 13]
SIZES = Sizes(batch=())
MASKS = [None, Causal(), Window(2, 1) & ~Window(0, 0)]


def inputs(keys=QUERIES):
    """Nested queries, keys and values, and the packed leaves they are made of."""
    heads = (SIZES.heads, SIZES.dim), (SIZES.kv_heads, SIZES.dim), (SIZES.kv_heads, SIZES.value_dim)
    offsets = [torch.tensor(QUERIES), torch.tensor(keys)]
    leaves = [torch.randn((keys if i else QUERIES)[-1], *x, dtype=torch.float64) for i, x in enumerate(heads)]
    q, k, v = (x.requires_grad_() for x in leaves)
    made = [nested_tensor_from_jagged(x, offsets[i > 0]).transpose(1, 2) for i, x in enumerate((q, k, v))]
    return made, [q, k, v]


def one_by_one(q, k, v, keys, **options):
    outs = []
    for (i, i_end), (j, j_end) in zip(itertools.pairwise(QUERIES), itertools.pairwise(keys), strict=True):
        parts = (x[at].transpose(0, 1) for x, at in ((q, slice(i, i_end)), (k, slice(j, j_end)), (v, slice(j, j_end))))
        shift = (j_end - j) - (i_end - i)
        outs.append(regard.attend(*parts, offset=shift, return_logsumexp=True, backend="reference", **options))
    return (torch.cat(x, 1) for x in zip(*outs, strict=True))


@pytest.mark.parametrize("name", PAIRED)
def test_a_nested_call_is_its_sequences_one_by_one(name):
    made = score(name, SIZES)
    for keys, mask in itertools.product((QUERIES, KEYS), MASKS):
        nested, leaves = inputs(keys)
        out, lse = regard.attend(*nested, score=made, mask=mask, return_logsumexp=True)
        expected, expected_lse = one_by_one(*leaves, keys, score=made, mask=mask)
        assert (out + out).shape[:2] == nested[0].shape[:2] and out.offsets() is nested[0].offsets()
        torch.testing.assert_close(out.values(), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(lse.values(), expected_lse, rtol=0, atol=1e-12)
        leaves += made.parameters()
        ours, theirs = (
            torch.autograd.grad(x.sin().sum(), leaves, allow_unused=True, materialize_grads=True)
            for x in (out.values(), expected)
        )
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_no_value_is_copied_and_the_plan_is_that_of_the_pack():
    nested, leaves = inputs()
    packed = pack(*nested, None, "[batch, heads, *, dim]")
    assert [x.data_ptr() for x in packed.values] == [x.data_ptr() for x in leaves]
    assert "batch 1 · heads 4 (2 for keys) · queries 9 · keys 9" in str(regard.plan(*nested, mask=Causal()))


class Near(Score):
    def forward(self, q, k, offset=0):
        return q @ k.mT - (torch.arange(q.shape[-2])[:, None] + offset - torch.arange(k.shape[-2])).abs()


OWN = [Near(), Function(lambda s, b, h, i, j: s * (1 + i) - j)]


@pytest.mark.parametrize("made", [Dot(), Rotary(Dot()), Additive(4, 4, 3), *OWN], ids=lambda x: type(x).__name__)
def test_a_layer_takes_them_for_itself_and_for_another(made):
    layer = MultiHeadAttention(16, 4, score=made).double()
    x = nested_tensor([torch.randn(n, 16, dtype=torch.float64) for n in (3, 1, 5)], layout=torch.jagged)
    memory = nested_tensor([torch.randn(n, 16, dtype=torch.float64) for n in (2, 4, 7)], layout=torch.jagged)
    for key, mask in ((None, None), (None, Causal()), (memory, None), (memory, Window(3))):
        out = layer(x, key, mask=mask)
        for i, one in enumerate(out.unbind()):
            alone = x[i][None] if key is None else key[i][None]
            expected = layer(x[i][None], alone, mask=mask, offset=alone.shape[1] - x[i].shape[0])
            torch.testing.assert_close(one, expected[0])
    assert (out + x).shape == x.shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_they_compile_whole():
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: regard.attend(q, k, v, score=Rotary(Dot()), mask=Causal()), fullgraph=True, backend="aot_eager"
    )
    nested, leaves = inputs()
    out, expected = compiled(*nested), regard.attend(*nested, score=Rotary(Dot()), mask=Causal())
    torch.testing.assert_close(out.values(), expected.values())
    for a, b in zip(*(torch.autograd.grad(x.values().sum(), leaves) for x in (out, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_said():
    (q, k, v), _ = inputs()
    (_, other, _), _ = inputs(KEYS)
    dense = torch.randn(4, 4, 3, 4, dtype=torch.float64)
    gaps = narrow(dense, 1, torch.zeros(4).long(), torch.tensor([1, 2, 3, 1]), layout=torch.jagged).transpose(1, 2)
    strided = nested_tensor([torch.randn(4, 3, 4), torch.randn(4, 2, 4)])
    fewer = nested_tensor([torch.randn(3, 4, 4)], layout=torch.jagged, dtype=torch.float64).transpose(1, 2)
    for tensors, options, error, message in [
        ((q, k, dense), {}, TypeError, "all be nested, of layout torch.jagged, got one of layout torch.strided as v"),
        ((strided,) * 3, {}, TypeError, "layout torch.strided as query"),
        ((q.transpose(1, 2), k, v), {}, ValueError, r"must be \[batch, heads, \*, dim\], .* at dim 1"),
        ((gaps,) * 3, {}, ValueError, r"gaps between its sequences.*call .contiguous\(\)"),
        ((q, other, v), {}, ValueError, "must have the same lengths"),
        ((q, fewer, fewer), {}, ValueError, "same number of sequences, got 4 and 1"),
        ((q, k, v), {"mask": Lengths(3)}, ValueError, r"have their own lengths.*got Lengths\(3\)"),
        ((q, k, v), {"offset": 2}, ValueError, "sets the positions of queries, and so does offset=2"),
    ]:
        with pytest.raises(error, match=message):
            regard.attend(*tensors, **options)
    with pytest.raises(TypeError, match="q must be a dense tensor, got a nested one"):
        regard.steps(q, k, v)
    layer, x = MultiHeadAttention(16, 4), nested_tensor([torch.randn(3, 16)], layout=torch.jagged)
    for options in ({"cache": Cache()}, {"need_weights": True}, {"need_log_weights": 0}):
        with pytest.raises(ValueError, match="take no cache and give no weights"):
            layer(x, **options)

"""torch.compile, torch.func, autocast, forward mode and double backward."""

import os
import warnings
from itertools import product

import pytest
import torch
from cases import MASKS, SCORES, Sizes, score, tensors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import regard
from regard.kernels import operator
from regard.mask import Causal, Documents, Lengths, Window
from regard.nn import MultiHeadAttention
from regard.score import Dot, PerHead, Rotary
from regard.score.terms import DotTerm, Problem, Terms

SIZES = Sizes(batch=(2,), heads=4, kv_heads=2, queries=6, keys=6, dim=4, value_dim=3)
# PyTorch warns that its own attention has no rule for vmap and is looped over.
sdpa_has_no_vmap = pytest.mark.filterwarnings(r"ignore:There is a performance drop.*scaled_dot_product:UserWarning")
# PyTorch's own inductor and forward mode use deprecated functions.
uses_jit = pytest.mark.filterwarnings(r"ignore:`torch\.jit:DeprecationWarning")
NAMES = ["dot", "additive", "relative_values", "everything", "per_head"]
BACKENDS = ["reference", "blockwise"]


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# --- torch.compile ---


COMPILED = {
    "dot": ("dot", lambda n: Causal(), "sdpa"),
    "dot_mask": ("rotary", lambda n: Lengths(n) & Window(2, 2), "sdpa"),
    "additive": ("additive", lambda n: Causal(), "blockwise"),
    "everything": ("everything", lambda n: Lengths(n) | Causal(), "auto"),
    "relative": ("relative_values", lambda n: Documents(torch.tensor([0, 0, 1, 1, 1, 2])), "blockwise"),
    "per_head": ("per_head", lambda n: Lengths(n), "auto"),
    "reference": ("relative_t5", lambda n: None, "reference"),
}


def compiles(name, compiler, **options):
    torch.compiler.reset()
    kind, mask, backend = COMPILED[name]
    made, inputs, n = score(kind, SIZES), tensors(SIZES, grad=True), torch.tensor([4, 6])
    leaves = [*inputs, *made.parameters()]

    def f(q, k, v, n):
        return regard.attend(q, k, v, score=made, mask=mask(n), backend=backend, **options)

    compiled = torch.compile(f, fullgraph=True, backend=compiler)
    results = []
    for call in (f, compiled):
        out = call(*inputs, n)
        results.append((out, *torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True)))
    for ours, theirs in zip(*results, strict=True):
        if ours is None or theirs is None:
            assert not any(x is not None and x.any() for x in (ours, theirs))
        else:
            same(ours, theirs)


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_without_graph_breaks(name):
    compiles(name, "aot_eager")


@pytest.mark.slow
@uses_jit
@pytest.mark.parametrize("name", ["dot_mask", "additive", "everything"])
def test_compiles_with_inductor(name):
    compiles(name, "inductor")


def table():
    """Score, mask, backend and mode: every score, with the rest in turn; all there are with REGARD_WHOLE_TABLE=1."""
    if os.environ.get("REGARD_WHOLE_TABLE"):
        rest = product(MASKS, ["auto", "blockwise", "reference"], ["static", "dynamic"])
        return [(name, *more) for name, more in product(SCORES, rest)]
    masks, modes = list(MASKS), ["dynamic", "static"]
    backends = ["auto", "blockwise", "auto", "blockwise", "reference"]  # the last takes long to trace
    return [
        (name, masks[7 * i % len(masks)], backends[i % len(backends)], modes[i % len(modes)])
        for i, name in enumerate(SCORES)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mask", "backend", "mode"), [pytest.param(*case, id="-".join(case)) for case in table()]
)
def test_every_score_compiles_with_every_mask_and_backend(name, mask, backend, mode):
    """One graph, forward and backward, for offsets and lengths that change if it is dynamic."""
    torch.compiler.reset()
    made, seen = score(name, SIZES), MASKS[mask](SIZES)[0]

    def f(q, k, v, offset):
        return regard.attend(q, k, v, score=made, mask=seen, offset=offset, backend=backend)

    compiled = torch.compile(f, fullgraph=True, dynamic=mode == "dynamic", backend="aot_eager")
    for offset in (0, 2) if mode == "dynamic" else (1,):
        inputs = tensors(SIZES, grad=True)
        leaves = [*inputs, *made.parameters()]
        ours, theirs = compiled(*inputs, offset), f(*inputs, offset)
        same(ours, theirs)
        if theirs.requires_grad:
            one, two = (
                torch.autograd.grad(x.sin().sum(), leaves, materialize_grads=True, allow_unused=True)
                for x in (ours, theirs)
            )
            same(one, two)


@pytest.mark.slow
def test_a_layer_prefills_in_chunks_by_one_program():
    """Chunks of several lengths at growing offsets; the static program of one length comes first, as by default."""
    torch.compiler.reset()
    layer = MultiHeadAttention(16, 4, kv_heads=2, score=Rotary(Dot())).double().requires_grad_(False)
    step = torch.compile(
        lambda x, before, at: layer(x, before, mask=Causal(), offset=at), fullgraph=True, backend="aot_eager"
    )
    x = torch.randn(2, 14, 16, dtype=torch.float64)
    whole = layer(x, mask=Causal())
    for start, end in ((0, 4), (4, 6), (6, 11), (11, 14)):
        same(step(x[:, start:end], x[:, :end], start), whole[:, start:end])


@pytest.mark.parametrize("kind", ["rotary", "additive", "softcap", "relative", "alibi", "per_head"])
def test_a_layer_is_traced_for_any_length(kind):
    made = score(kind, Sizes(value_dim=4))
    layer = MultiHeadAttention(16, 4, kv_heads=2, score=made).double().requires_grad_(False)
    x, other = (torch.randn(2, length, 16, dtype=torch.float64) for length in (7, 9))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and a trace keeps the branches it took
        traced = torch.jit.trace(lambda x: layer(x, mask=Causal()), x)
    same(traced(other), layer(other, mask=Causal()))


def test_compiles_with_dropout_and_sink():
    compiles("additive", "aot_eager", dropout=0.3, seed=5, sink=0.5)


@pytest.mark.slow
def test_compiled_code_serves_other_lengths_and_offsets():
    """Decoding: one graph for growing keys."""
    torch.compiler.reset()
    made = score("additive", SIZES)
    step = torch.compile(
        lambda q, k, v, at: regard.attend(q, k, v, score=made, mask=Causal(), offset=at),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    q, k, v = tensors(Sizes(queries=9, keys=9))
    whole = regard.attend(q, k, v, score=made, mask=Causal())
    for i in range(3, 9):
        out = step(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], i)
        same(out, whole[:, :, i : i + 1])


@pytest.mark.parametrize("backend", ["sdpa", "blockwise"])
def test_masked_nan_stays_out_when_compiled(backend):
    torch.compiler.reset()
    q, k, v = tensors(SIZES)
    clean = regard.attend(q, k, v, mask=Lengths(4), backend=backend)
    k[:, :, 4:], v[:, :, 5:] = torch.nan, torch.inf
    f = torch.compile(
        lambda *x: regard.attend(*x, mask=Lengths(4), backend=backend), fullgraph=True, backend="aot_eager"
    )
    same(f(q, k, v), clean)


@pytest.mark.slow
@uses_jit
@pytest.mark.parametrize("parts", [("dot", "rotary"), ("additive", "dot")], ids="+".join)
def test_heads_of_their_own_scores_train_compiled_at_changing_lengths(parts):
    """PyTorch 2.13 takes the strides of slices of what was cleaned for constants: lower.py goes around that."""
    torch.compiler.reset()
    half = Sizes(batch=(2,), heads=2, kv_heads=2, dim=4, value_dim=4)
    made = PerHead(*((2, score(name, half)) for name in parts))
    project = torch.nn.Linear(8, 48, dtype=torch.float64)

    def f(x):
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in project(x).chunk(3, -1))
        return regard.attend(q, k, v, score=made, mask=Causal())

    compiled = torch.compile(f, fullgraph=True)
    for length in (7, 9, 12):
        x = torch.randn(2, length, 8, dtype=torch.float64, requires_grad=True)
        (ours,), (theirs,) = (torch.autograd.grad(g(x).square().sum(), x) for g in (compiled, f))
        same(ours, theirs)


# --- torch.func ---


def attend(made, parameters, q, k, v, **options):
    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.score = made

        def forward(self, q, k, v):
            return regard.attend(q, k, v, score=self.score, **options)

    return functional_call(Attend(), {f"score.{name}": p for name, p in parameters.items()}, (q, k, v))


def loss(made, parameters, *inputs, **options):
    return attend(made, parameters, *inputs, **options).sin().sum()


def plain_gradients(made, inputs, **options):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = regard.attend(*leaves, score=made, **options).sin().sum()
    names = [name for name, _ in made.named_parameters()]
    grads = torch.autograd.grad(out, [*leaves, *made.parameters()], allow_unused=True, materialize_grads=True)
    return grads[:3], dict(zip(names, grads[3:], strict=True))


def parameters_of(made):
    return {name: p.detach() for name, p in made.named_parameters()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_grad(name, backend):
    made, inputs = score(name, SIZES), tensors(SIZES)
    options = {"mask": Causal(), "backend": backend}
    ours = grad(lambda p, x: loss(made, p, *x, **options), argnums=(0, 1))(parameters_of(made), tuple(inputs))
    theirs = plain_gradients(made, inputs, **options)
    for a, b in zip(ours[1], theirs[0], strict=True):
        same(a, b)
    for key, b in theirs[1].items():
        same(ours[0][key], b)


@sdpa_has_no_vmap
@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_vmap(name, backend):
    """Also with a batch inside the vmapped dim, and some inputs not vmapped."""
    made, (q, k, v) = score(name, SIZES), tensors(Sizes(batch=(3, 2), queries=6, keys=6))

    def f(q, k, v):
        return regard.attend(q, k, v, score=made, mask=Causal(), offset=-1, backend=backend)

    same(vmap(f)(q, k, v), torch.stack([f(*x) for x in zip(q, k, v, strict=True)]))
    same(vmap(f, (0, None, None))(q, k[0], v[0]), torch.stack([f(x, k[0], v[0]) for x in q]))
    same(vmap(f, (None, None, 1), 2)(q[0], k[0], v.transpose(0, 1)), torch.stack([f(q[0], k[0], x) for x in v], 2))
    same(vmap(vmap(f))(q, k, v), f(q, k, v))


@sdpa_has_no_vmap
@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inner", [(), (2,)], ids=str)
def test_per_sample_gradients(inner, name, backend):
    """vmap(grad) of q, k, v and of every parameter of the score; a sample may be a batch itself."""
    made, (q, k, v) = score(name, Sizes(batch=inner)), tensors(Sizes(batch=(3, *inner)))
    options = {"mask": Causal(), "backend": backend}
    per_sample = vmap(grad(lambda p, *x: loss(made, p, *x, **options), argnums=(0, 1, 2, 3)), (None, 0, 0, 0))
    ours, *inputs = per_sample(parameters_of(made), q, k, v)
    for i in range(3):
        theirs, parameters = plain_gradients(made, (q[i], k[i], v[i]), **options)
        for a, b in zip(inputs, theirs, strict=True):
            same(a[i], b)
        for key, b in parameters.items():
            same(ours[key][i], b)


@sdpa_has_no_vmap
@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
def test_vmapped_masks_and_offsets(backend):
    made, (q, k, v) = score("everything", Sizes(batch=())), tensors(Sizes(batch=(3,)))
    n, offset, ids = torch.tensor([2, 7, 4]), torch.tensor([0, -2, 5]), torch.randint(0, 2, (3, 5))
    key_ids, dense = torch.randint(0, 2, (3, 7)), torch.rand(3, 4, 5, 7) < 0.5
    for make, items in [
        (lambda x: Lengths(x), n),
        (lambda x: Lengths(x) | Causal(), n),
        (lambda x: x, dense),
        (lambda x: ~Documents(*x), (ids, key_ids)),
    ]:

        def f(q, k, v, at, items, make=make):
            return regard.attend(q, k, v, score=made, mask=make(items), offset=at, backend=backend)

        ours = vmap(f)(q, k, v, offset, items)
        picked = [tuple(t[i] for t in items) if isinstance(items, tuple) else items[i] for i in range(3)]
        same(ours, torch.stack([f(q[i], k[i], v[i], offset[i], picked[i]) for i in range(3)]))


@pytest.mark.parametrize("name", ["additive", "relative_values"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_jacrev(name, backend):
    sizes = Sizes(batch=(1,), heads=2, kv_heads=1, queries=2, keys=3)
    made, (q, k, v) = score(name, sizes), tensors(sizes)

    def f(q, k, v, backend=backend):
        return regard.attend(q, k, v, score=made, backend=backend)

    ours = jacrev(f, (0, 1, 2))(q, k, v)
    theirs = torch.autograd.functional.jacobian(lambda *x: f(*x, backend="reference"), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        same(a, b)


def test_hessian_of_the_reference():
    sizes = Sizes(batch=(1,), heads=1, kv_heads=1, queries=2, keys=2, dim=2)
    made, (q, k, v) = score("additive", sizes), tensors(sizes)
    f = jacrev(jacrev(lambda q: regard.attend(q, k, v, score=made, backend="reference").sin().sum()))
    found = f(q).reshape(4, 4)
    assert found.any()
    same(found, found.T)


# --- forward mode ---


@sdpa_has_no_vmap
@uses_jit
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_forward_mode_runs_on_the_reference(name, mask):
    """jvp, jacfwd, hessian and dual numbers, with the default backend."""
    sizes = Sizes(batch=(1,), heads=4, kv_heads=2, queries=2, keys=3, dim=4, value_dim=2)
    made, (q, k, v), tangent = score(name, sizes), tensors(sizes), torch.randn(1, 4, 2, 4, dtype=torch.float64)

    def f(q, backend="auto"):
        return regard.attend(q, k, v, score=made, mask=mask, backend=backend).sin()

    expected = torch.autograd.functional.jacobian(lambda q: f(q, "reference"), q)
    along = (expected * tangent).flatten(4).sum(-1)
    same(jvp(f, (q,), (tangent,))[1], along)
    same(jacfwd(f)(q), expected)
    with forward_ad.dual_level():
        same(forward_ad.unpack_dual(f(forward_ad.make_dual(q, tangent))).tangent, along)
    twice = torch.autograd.functional.hessian(lambda q: f(q, "reference").sum(), q)
    same(hessian(lambda q: f(q).sum())(q), twice)


@uses_jit
@pytest.mark.parametrize("backend", ["blockwise", "sdpa"])
def test_forward_mode_of_a_fused_kernel_is_refused_with_a_hint(backend):
    q, k, v = tensors(SIZES)
    hint = f"backend='{backend}' cannot run this: .* forward-mode .*; backend='auto' would take 'reference'"
    with pytest.raises(ValueError, match=hint):
        jvp(lambda q: regard.attend(q, k, v, backend=backend), (q,), (q,))


# --- double backward ---


def test_double_backward_is_refused_by_fused_kernels_with_a_hint():
    q, k, v = tensors(SIZES, grad=True)
    out = regard.attend(q, k, v, score=score("additive", SIZES), backend="blockwise")
    (first,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative; use backend='reference'"):
        torch.autograd.grad(first.sum(), q)


@pytest.mark.parametrize("sizes", [SIZES, Sizes(kv_heads=4, value_dim=4)], ids=["planned", "plain"])
@pytest.mark.parametrize("masked", ["none", "causal", "dense"])
def test_double_backward_is_refused_by_pytorch_s_kernel_in_the_same_words(masked, sizes):
    q, k, v = tensors(sizes, grad=True)
    mask = {"none": None, "causal": Causal(), "dense": torch.rand(sizes.queries, sizes.keys) < 0.7}[masked]

    def loss(q):
        return regard.attend(q, k, v, mask=mask).sin().sum()

    assert regard.plan(q, k, v, mask=mask).kernel == "sdpa"
    (first,) = torch.autograd.grad(loss(q), q, create_graph=True)  # is no mistake by itself
    with pytest.raises(RuntimeError, match="no second derivative; use backend='reference'"):
        torch.autograd.grad(first.sum(), q)
    with pytest.raises(RuntimeError, match="no second derivative; use backend='reference'"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(q)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # this one has a second derivative
        (first,) = torch.autograd.grad(loss(q), q, create_graph=True)
        assert torch.autograd.grad(first.sum(), k)[0].any()


def test_double_backward_of_the_reference():
    q, k, v = tensors(SIZES, grad=True)
    out = regard.attend(q, k, v, score=score("everything", SIZES), mask=Causal(), backend="reference")
    (first,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), k)
    assert second.any() and second.isfinite().all()


# --- autocast ---


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("name", [*NAMES, "rotary_partial", "cosine_heads", "t5", "general"])
def test_autocast(name, backend):
    made = score(name, SIZES, torch.float32)
    q, k, v = tensors(SIZES, torch.float32, grad=True)
    exact = regard.attend(q, k, v, score=made, mask=Causal(), backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        out = regard.attend(q, k, v, score=made, mask=Causal(), backend=backend)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.05, atol=0.05)
    leaves = [q, k, v, *made.parameters()]
    grads = [
        torch.autograd.grad(x.float().sum(), leaves, allow_unused=True, materialize_grads=True) for x in (out, exact)
    ]
    for ours, theirs in zip(*grads, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.05 * max(1.0, theirs.abs().max().item()))


def test_autocast_leaves_float64_alone():
    q, k, v = tensors(SIZES)
    expected = regard.attend(q, k, v, score=score("general_shared", SIZES), mask=Causal(), backend="reference")
    torch.manual_seed(0)
    q, k, v = tensors(SIZES)
    with torch.autocast("cpu", torch.bfloat16):
        out = regard.attend(q, k, v, score=score("general_shared", SIZES), mask=Causal())
    assert out.dtype == torch.float64
    same(out, expected)


def test_modules_in_half_precision():
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = tensors(SIZES, dtype)
        assert regard.attend(q, k, v, score=score("everything", SIZES, dtype)).dtype == dtype
        assert regard.attend(q, k, v, score=score("everything", SIZES, torch.float32)).dtype == dtype


def test_no_grad_and_inference_mode():
    made, (q, k, v) = score("everything", SIZES), tensors(SIZES)
    expected = regard.attend(q, k, v, score=made, mask=Causal())
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            same(regard.attend(q, k, v, score=made, mask=Causal()), expected.detach())


# --- the operator, and doing without it ---


RELATIVE = score("relative_t5", SIZES)


def attend_fused(q, k, v, backend="blockwise"):
    return regard.attend(q, k, v, score=RELATIVE, backend=backend)


def test_tracers_see_one_operator():
    q, k, v = tensors(SIZES)
    graph = make_fx(lambda *x: attend_fused(*x))(q, k, v)
    assert "torch.ops.regard.attention" in graph.code
    same(graph(q + 1, k, v), attend_fused(q + 1, k, v, "reference"))


def test_fake_tensors_and_meta_tensors_have_shapes():
    with FakeTensorMode() as mode:
        q, k, v = (torch.empty(x.shape, dtype=x.dtype) for x in tensors(SIZES))
        out, lse = torch.ops.regard.attention(*_arguments(q, k, v))
        assert mode is not None and out.shape == (2, 4, 6, 3) and lse.shape == (2, 4, 6)
    out, lse = operator.run("blockwise", _problem(*(x.to("meta") for x in tensors(SIZES))))
    assert out.device.type == "meta" and out.shape == (2, 4, 6, 3)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors_are_attended_to(name, backend):
    q, k, v = (x.to("meta").requires_grad_() for x in tensors(SIZES))
    made = score(name, SIZES).to("meta")
    for mask in (None, Causal(), Lengths(4)):
        out = regard.attend(q, k, v, score=made, mask=mask, backend=backend)
        assert out.device.type == "meta" and out.shape == (2, 4, 6, 3)
        assert regard.steps(q, k, v, score=made, mask=mask).weights.shape == (2, 4, 6, 6)


def _problem(q, k, v):
    return Problem(Terms((DotTerm(q, 0.5, k),)), v, SIZES.heads, SIZES.queries)


def _arguments(q, k, v):
    packed = operator._Packed()
    packed.put_problem(_problem(q, k, v))
    return "blockwise", " ".join(packed.code), packed.tensors, packed.ints, packed.floats


def test_checkpointing_and_saved_tensor_hooks():
    inputs = tensors(SIZES, grad=True)
    packs = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packs.append(x) or x, lambda x: x):
        out = attend_fused(*inputs)
    assert packs, "the inputs must be saved where hooks can see them"
    expected = torch.autograd.grad(attend_fused(*inputs, "reference").sum(), inputs)
    for ours, theirs in zip(torch.autograd.grad(out.sum(), inputs), expected, strict=True):
        same(ours, theirs)
    out = checkpoint(attend_fused, *inputs, use_reentrant=False)
    for ours, theirs in zip(torch.autograd.grad(out.sum(), inputs), expected, strict=True):
        same(ours, theirs)

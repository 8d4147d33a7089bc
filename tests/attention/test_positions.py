"""positions=: queries and keys at any position, against a long sequence with the same vectors at these positions."""

import pytest
import torch
from cases import PAIRED, Sizes, refusal, score, tensors

import regard
from regard.kernels import blockwise
from regard.mask import Causal, Dense, Documents, Lengths, Mask, Window
from regard.score import ALiBi, Dot, Function, Rotary
from regard.trace import Trace, load

LONG = 24
S = Sizes(batch=(3,), queries=5, keys=7)
INNER = {"all": None, "causal": Causal(), "window": Window(3, 2), "prefix": Causal() | Window(9, 4)}


def places(length, per_item):
    """Different positions within LONG, in any order."""
    rows = [torch.randperm(LONG)[:length] for _ in range(3 if per_item else 1)]
    return torch.stack(rows) if per_item else rows[0]


def spread(x, at):
    """x [B, H, n, D] in a sequence of LONG, zeros elsewhere."""
    index = at.expand(x.shape[0], -1)[:, None, :, None].expand(x.shape)
    return x.new_zeros(*x.shape[:2], LONG, x.shape[3]).scatter(2, index, x)


def attend_densely(q, k, v, at_q, at_k, made, inner, backend="reference"):
    """Attention over the whole of LONG, where only what is given may be seen; the rows that are given."""
    there = torch.zeros(at_k.expand(3, -1).shape[0], 1, 1, LONG, dtype=torch.bool)
    there.scatter_(3, at_k.expand(3, -1)[:, None, None], value=True)
    mask = Dense(there) if inner is None else Dense(there) & inner
    out = regard.attend(spread(q, at_q), spread(k, at_k), spread(v, at_k), score=made, mask=mask, backend=backend)
    return out.gather(2, at_q.expand(3, -1)[:, None, :, None].expand(-1, 4, -1, out.shape[-1]))


def gradients(out, *leaves):
    found = torch.autograd.grad(out.square().sum(), leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


@pytest.mark.parametrize("name", PAIRED)
def test_vectors_anywhere(name):
    for per_item, (inner, mask) in zip((False, True, False, True), INNER.items(), strict=True):
        torch.manual_seed(len(inner))
        made, (q, k, v) = score(name, S), tensors(S, grad=True)
        at = places(5, per_item), places(7, inner in ("all", "window"))
        leaves = [q, k, v, *made.parameters()]
        want = attend_densely(q, k, v, *at, made, mask)
        for backend in ("reference", "blockwise", "auto"):
            out = regard.attend(q, k, v, score=made, mask=mask, positions=at, backend=backend)
            torch.testing.assert_close(out, want, rtol=0, atol=1e-11)
            for got, wanted in zip(gradients(out, *leaves), gradients(want, *leaves), strict=True):
                torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["sdpa", "cpu_additive"])
def test_every_kernel_that_accepts_positions_agrees(backend):
    taken = 0
    for name in PAIRED:
        for sides in ("queries", "keys"):
            made, (q, k, v) = score(name, S).requires_grad_(False), tensors(S)
            at_q, at_k = places(5, True), places(7, True)
            at_q, at_k = (at_q, torch.arange(7)) if sides == "queries" else (torch.arange(5) + 3, at_k)
            given = (at_q, None) if sides == "queries" else (at_q, at_k)
            options = {"score": made, "mask": Causal(), "positions": given, "backend": backend}
            if refusal(q, k, v, **options):
                continue
            taken += 1
            want = attend_densely(q, k, v, at_q, at_k, made, Causal())
            torch.testing.assert_close(regard.attend(q, k, v, **options), want, rtol=0, atol=1e-11)
    assert taken >= 2


def test_one_tensor_is_for_queries_and_keys():
    made = score("relative_t5", S)
    q, k, v = tensors(Sizes(batch=(3,), queries=5, keys=5))
    at = places(5, True) - 9  # positions may be negative
    both = regard.attend(q, k, v, score=made, mask=Causal(), positions=at)
    assert torch.equal(both, regard.attend(q, k, v, score=made, mask=Causal(), positions=(at, at)))
    moved = regard.attend(q, k, v, score=made, mask=Causal(), positions=at + 1000)
    torch.testing.assert_close(both, moved, rtol=0, atol=1e-12)


def test_positions_one_after_the_other_are_an_offset():
    made, (q, k, v) = score("per_head", S), tensors(S)
    want = regard.attend(q, k, v, score=made, mask=Causal(), offset=2)
    for at in (
        (torch.arange(5) + 2, None),
        (torch.arange(5), torch.arange(7) - 2),
        (torch.arange(5) + 2, torch.arange(7)),
    ):
        got = regard.attend(q, k, v, score=made, mask=Causal(), positions=at)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_documents_by_ids_with_positions_are_a_pack():
    made, (q, k, v) = score("relative_values", S), tensors(S)
    packed = Documents.packed([0, 2, 5], [0, 4, 7])
    by_hand = Documents([0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1])
    at = torch.tensor([2, 3, 0, 1, 2]), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    got = regard.attend(q, k, v, score=made, mask=by_hand & Causal(), positions=at)
    torch.testing.assert_close(got, regard.attend(q, k, v, score=made, mask=packed & Causal()), rtol=0, atol=1e-12)


def test_steps_log_weights_and_traces(tmp_path):
    made, (q, k, v) = score("relative_values", S).requires_grad_(False), tensors(S)
    at = places(5, True), places(7, True)
    options = {"score": made, "mask": Causal(), "positions": at}
    want = attend_densely(q, k, v, *at, made, Causal())
    shown = regard.steps(q, k, v, **options)
    torch.testing.assert_close(shown.context, want, rtol=0, atol=1e-11)
    rows = torch.tensor([3, 0])
    some = regard.steps(q, k, v, **options, rows=rows)
    torch.testing.assert_close(some.weights, shown.weights[:, :, rows], rtol=0, atol=1e-12)
    trace = Trace.of(q, k, v, **options)
    trace.save(tmp_path / "trace.safetensors")
    for one in (trace, load(tmp_path / "trace.safetensors")):
        weights = one.weights(0, 2, item=1)
        torch.testing.assert_close(weights, shown.weights[1, 2], rtol=0, atol=1e-12)
        torch.testing.assert_close(one.tile(0, 2, item=1, cols=(2, 6)), weights[:, 2:6], rtol=0, atol=1e-12)
        far = (weights * (at[1][1] - at[0][1][:, None]).abs()).sum(-1)
        torch.testing.assert_close(one.distance(0, 2, item=1), far, rtol=0, atol=1e-11)
        torch.testing.assert_close(one.steps(0, 2, 4, item=1).context, want[1, 2, 4], rtol=0, atol=1e-11)
        turned = regard.steps(q, k, v, score=Rotary(Dot()), mask=Causal(), positions=at).weights[1, 2, 4]
        other = one.steps(0, 2, 4, item=1, score=Rotary(Dot())).weights
        torch.testing.assert_close(other, turned, rtol=0, atol=1e-11)


def test_multi_head_attention_takes_them():
    torch.manual_seed(0)
    layer = regard.nn.MultiHeadAttention(16, 4, score=Rotary(Dot()) + ALiBi(4), kv_heads=2, trusted=True).double()
    x, memory = torch.randn(2, 6, 16).double(), torch.randn(2, 4, 16).double()
    order = torch.randperm(6)
    whole = layer(x, mask=Causal())
    torch.testing.assert_close(layer(x[:, order], mask=Causal(), positions=order), whole[:, order])
    _, weights = layer(x[:, order], mask=Causal(), positions=order, need_weights=True)
    torch.testing.assert_close(weights, layer(x, mask=Causal(), need_weights=True)[1][:, :, order][..., order])
    at = torch.tensor([[5, 1, 0, 2], [0, 1, 2, 3]])
    cached = layer.keys_values(memory, start=at - torch.arange(4))
    want = layer(x, memory, positions=(None, at))
    torch.testing.assert_close(layer(x, cached, positions=(None, at)), want)
    with pytest.raises(ValueError, match="a cache counts positions itself"), torch.no_grad():
        layer(x, cache=regard.nn.Cache(), positions=order)


def test_custom_scores_and_masks():
    class Length(regard.score.Score):
        positional = False

        def forward(self, q, k, offset=0):
            return q.norm(dim=-1)[..., None] - k.norm(dim=-1).repeat_interleave(2, -2)[..., None, :]

    class Far(Length):
        positional = True

    near = regard.mask.Function(lambda b, h, i, j: (i - j).abs() < 9)
    (q, k, v), at = tensors(S), (places(5, True), places(7, True))
    made = Length() + Rotary(Dot())
    want = attend_densely(q, k, v, *at, Rotary(Dot()) + 1.0 * Length(), Window(8, 8))
    for mask, backend in ((near, "auto"), (near, "blockwise"), (Window(8, 8), "blockwise")):
        out = regard.attend(q, k, v, score=made, mask=mask, positions=at, backend=backend)
        torch.testing.assert_close(out, want, rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match="Far only has a dense formula, which assumes key j at position j"):
        regard.attend(q, k, v, score=2 * Far(), positions=at)
    with pytest.raises(ValueError, match="Function only has a dense formula, which assumes key j at position j"):
        regard.attend(q, k, v, score=Function(near.f, Rotary(Dot())), positions=at)


class Apart(regard.score.Score):
    def forward(self, q, k, offset=0):
        offset = offset[:, None, None, None] if isinstance(offset, torch.Tensor) else offset
        i = torch.arange(q.shape[-2])[:, None] + offset
        return q @ k.repeat_interleave(2, -3).mT - 0.1 * (i - torch.arange(k.shape[-2])).abs() - 0.1 * i


@pytest.mark.parametrize("backend", ["reference", "blockwise", "auto"])
def test_a_formula_is_told_where_queries_stand(backend, monkeypatch):
    """As a number or one per item; a Function gets the positions of keys too."""
    monkeypatch.setattr(blockwise, "FORMULA", 3 * 4 * 7 * 2)  # two rows at a time
    for at in (places(5, False), places(5, True), torch.tensor([4, 5, 6, 1, 2])):
        q, k, v = leaves = tensors(S, grad=True)
        made = 2 * Apart() + Rotary(Dot())
        out = regard.attend(q, k, v, score=made, mask=Causal(), positions=(at, None), backend=backend)
        want = attend_densely(q, k, v, at, torch.arange(7), made, Causal())
        torch.testing.assert_close(out, want, rtol=0, atol=1e-11)
        for got, wanted in zip(gradients(out, *leaves), gradients(want, *leaves), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
        made = Function(lambda s, b, h, i, j: s * (1 + i) / 9 - 0.1 * j * b)
        both = at, places(7, True)
        out = regard.attend(q, k, v, score=3 * made, mask=Causal(), positions=both, backend=backend)
        torch.testing.assert_close(out, attend_densely(q, k, v, *both, 3 * made, Causal()), rtol=0, atol=1e-11)


class Stride(Mask):
    def visible(self, rows, positions, cols):
        return ((positions[..., None] - cols) % 2 == 0)[:, None]


class Even(Mask):
    reads_positions = False

    def visible(self, rows, positions, cols):
        return cols % 2 == 0


def test_a_custom_mask_that_reads_positions_takes_none_of_keys():
    """It would take indices for positions. A mask that declares that it reads none, or binds to them, is accepted."""
    (q, k, v), at = tensors(S), (places(5, True), places(7, True))
    with pytest.raises(ValueError, match=r"Stride only has `visible`, which assumes key j at position j: it takes"):
        regard.attend(q, k, v, mask=Causal() & ~Stride(), positions=at)
    near = regard.attend(q, k, v, mask=Stride(), positions=(at[0], None))
    seen = ((at[0][..., None] - torch.arange(7)) % 2 == 0)[:, None]
    torch.testing.assert_close(near, regard.attend(q, k, v, mask=seen), rtol=0, atol=1e-12)
    even = regard.attend(q, k, v, score=Rotary(Dot()), mask=Even(), positions=at)
    seen = (torch.arange(7) % 2 == 0).expand(5, 7)
    want = regard.attend(q, k, v, score=Rotary(Dot()), mask=seen, positions=at)
    torch.testing.assert_close(even, want, rtol=0, atol=1e-12)


def test_positions_that_nothing_reads_stop_no_kernel():
    q, k, v = tensors(S, dtype=torch.float32)
    at = places(5, True), places(7, True)
    made = regard.score.Additive(4, 4, 3)
    assert regard.plan(q, k, v, score=made, mask=Lengths(3), positions=at).kernel == "cpu_additive"
    assert (
        "keys have positions of their own"
        in regard.plan(q, k, v, score=made, mask=Causal(), positions=at).refusals["cpu_additive"]
    )


ERRORS = {
    "offset": ({"positions": torch.arange(5), "offset": 1}, ValueError, "positions= sets the positions of queries"),
    "one": ({"positions": torch.arange(5)}, ValueError, "one tensor of positions applies to queries and keys"),
    "length": ({"positions": (torch.arange(4), None)}, ValueError, "positions of queries must have one number per"),
    "keys": ({"positions": (None, torch.zeros(2, 7).long())}, ValueError, "positions of keys must have one number"),
    "float": ({"positions": (torch.rand(5), None)}, TypeError, "positions of queries must be whole numbers, got"),
    "list": ({"positions": ([1, 2], None)}, TypeError, "positions of queries must be a tensor of whole .*, got list"),
    "three": ({"positions": (None, None, None)}, ValueError, "a pair \\(of queries, of keys\\), got 3 parts"),
    "number": ({"positions": 3}, TypeError, "must be a tensor or a pair .*, got int"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", ERRORS)
def test_what_positions_cannot_be(wrong):
    options, error, says = ERRORS[wrong]
    with pytest.raises(error, match=says):
        regard.attend(*tensors(S), **options)

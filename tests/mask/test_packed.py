"""Packed documents: one call is the documents one by one, forward and gradients, for every score and kernel."""

import itertools

import pytest
import torch
from cases import PAIRED, Sizes, in_float64, refusal, score, tensors

import regard
from regard.attention.positions import places_of
from regard.mask import Causal, Documents, Lengths, Prefix, Window
from regard.mask.shape import Shape
from regard.score import ALiBi, Bias, Dot, Function, Key, NTKScaling, PerHead, Relative, Rotary
from regard.trace import Trace

# Documents of equal lengths, longer ones of keys, of queries; without queries, without keys, without either.
PACKS = {
    "aligned": ([0, 3, 4, 9], None),
    "empty": ([0, 0, 3, 3, 5, 7], [0, 2, 7, 7, 10, 10]),
    "more_keys": ([0, 1, 3, 6], [0, 4, 9, 14]),
    "more_queries": ([0, 4, 9], [0, 3, 5]),
}
INNER = {"all": None, "window": Window(2, 1), "causal": Causal(), "both": Causal() & Window(left=2)}


def sizes_of(pack):
    queries, keys = PACKS[pack]
    return Sizes(batch=(2,), queries=queries[-1], keys=(keys or queries)[-1])


def inputs(pack, seed=0, **options):
    torch.manual_seed(seed)
    return tensors(sizes_of(pack), grad=True, **options)


def mask_of(pack, inner=None):
    documents = Documents.packed(*PACKS[pack])
    return documents if inner is None else documents & inner


def one_by_one(pack, q, k, v, made, inner, **options):
    """Every document by itself; its last query is at its last key."""
    queries, keys = PACKS[pack]
    out = []
    spans = zip(itertools.pairwise(queries), itertools.pairwise(keys or queries), strict=True)
    for (i, i_end), (j, j_end) in spans:
        parts = q[..., i:i_end, :], k[..., j:j_end, :], v[..., j:j_end, :]
        shift = (j_end - j) - (i_end - i)
        out.append(regard.attend(*parts, score=made, mask=inner, offset=shift, backend="reference", **options))
    return torch.cat(out, -2)


def gradients(out, *leaves):
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out)
    found = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def check_same(pack, made, inner, backend, seed=0):
    q, k, v = inputs(pack, seed)
    leaves = [q, k, v, *made.parameters()]
    expected = one_by_one(pack, q, k, v, made, inner)
    out = regard.attend(q, k, v, score=made, mask=mask_of(pack, inner), backend=backend)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    for got, wanted in zip(gradients(out, *leaves), gradients(expected, *leaves), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", PAIRED)
def test_a_packed_call_is_its_documents_one_by_one(name):
    for pack, inner in zip(PACKS, INNER, strict=True):
        made = score(name, sizes_of(pack))
        for backend in ("blockwise", "auto"):
            check_same(pack, made, INNER[inner], backend)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("pack", PACKS)
def test_with_every_mask_inside(pack, inner):
    for backend in ("reference", "blockwise", "auto"):
        check_same(pack, score("relative_t5", sizes_of(pack)), INNER[inner], backend)


@pytest.mark.parametrize("backend", ["sdpa", "cpu_additive"])
def test_every_kernel_that_accepts_a_pack_agrees(backend):
    taken = 0
    for name, pack, inner in itertools.product(PAIRED, PACKS, INNER):
        made = score(name, sizes_of(pack))
        q, k, v = (x.detach() for x in inputs(pack))
        with torch.no_grad():
            options = {"score": made, "mask": mask_of(pack, INNER[inner]), "backend": backend}
            if refusal(q, k, v, **options):
                continue
            taken += 1
            expected = one_by_one(pack, q, k, v, made, INNER[inner])
            torch.testing.assert_close(regard.attend(q, k, v, **options), expected, rtol=0, atol=1e-11)
    assert taken > 20


def test_a_bias_is_of_the_whole_pack():
    q, k, v = inputs("more_keys")
    numbers = torch.randn(4, 6, 14, dtype=torch.float64)
    out = regard.attend(q, k, v, score=Dot() + Bias(numbers), mask=mask_of("more_keys"))
    (i, i_end), (j, j_end) = (1, 3), (4, 9)
    parts = q[..., i:i_end, :], k[..., j:j_end, :], v[..., j:j_end, :]
    alone = regard.attend(*parts, score=Dot() + Bias(numbers[:, i:i_end, j:j_end]))
    torch.testing.assert_close(out[..., i:i_end, :], alone, rtol=0, atol=1e-12)


class Near(regard.score.Score):
    """A custom score with only a formula, which reads positions: that of docs/your-own.md."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, q, k, offset=0):
        i = torch.arange(q.shape[-2])[:, None] + offset
        j = torch.arange(k.shape[-2])
        return q @ k.repeat_interleave(2, -3).mT - self.weight * (i - j).abs() + 0.1 * j


class Centred(regard.score.Score):
    """It reads all keys, and no positions."""

    positional = False

    def forward(self, q, k, offset=0):
        k = (k - k.mean(-2, keepdim=True)) * k.square().mean((-2, -1), keepdim=True)
        return q @ k.repeat_interleave(2, -3).mT


class Even(regard.mask.Mask):
    """A custom mask by distance."""

    def visible(self, rows, positions, cols):
        return ((positions[..., None] - cols) % 2 == 0)[:, None]


def by_position(s, b, h, i, j):
    return s * (1 + i) / 4 + 0.2 * j * h - b


OWN = {
    "near": lambda: Rotary(Dot()) + 2 * Near(),
    "all keys": lambda: Centred() + ALiBi(4),
    "function": lambda: 2 * Function(by_position),
    "function of positions": lambda: Function(by_position, Rotary(Dot()) + in_float64(Relative(4, 2))),
    "function of a formula": lambda: Function(by_position, 2 * Near() + Dot()) + Key(4).double(),
    "function of a function": lambda: Function(lambda s, b, h, i, j: s / (1 + j), Function(by_position) + Dot()),
    "function of a length": lambda: Function(by_position, Rotary(Dot(), scaling=NTKScaling(4.0, 5))),
    "groups": lambda: PerHead((2, Function(by_position)), (2, Near() + Centred())),
}
SEEN = {
    "own": Even() & Causal(),
    "distance": regard.mask.Function(lambda b, h, i, j: (i - j) % 3 < h),
    "places": Causal() & regard.mask.Function(lambda b, h, i, j: (j < 1) | (i - j < h) | (i == 2)),
}


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("name", OWN)
def test_custom_scores_and_masks(name, pack, monkeypatch):
    from regard.kernels import blockwise

    monkeypatch.setattr(blockwise, "FORMULA", 500)  # a few rows at a time
    made = OWN[name]()
    for (_, inner), backend in zip(SEEN.items(), ("auto", "blockwise", "reference"), strict=True):
        check_same(pack, made, inner, backend)
    check_same(pack, in_float64(Relative(4, 2, values=True, value_dim=3)), SEEN["places"], "auto")


def test_the_picture_of_such_a_mask():
    seen = (Documents.packed([0, 2, 4], [0, 4, 7]) & SEEN["places"]).dense(4, 7).int().tolist()
    assert seen == [[1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*jit.script.*:DeprecationWarning")
def test_formulas_of_packs_compile_where_the_documents_are_known():
    torch.compiler.reset()
    q, k, v = (x.detach() for x in inputs("more_keys"))
    offsets, known = [torch.tensor(x) for x in PACKS["more_keys"]], mask_of("more_keys", SEEN["places"])
    near, edited = Near().requires_grad_(False), Function(by_position, Rotary(Dot()))
    for call in (
        lambda q, k, v: regard.attend(q, k, v, score=near, mask=known),
        lambda q, k, v: regard.attend(q, k, v, score=edited, mask=Documents.packed(*offsets) & SEEN["places"]),
    ):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(q, k, v), call(q, k, v), rtol=0, atol=1e-12)
    late = torch.compile(
        lambda q, k, v: regard.attend(q, k, v, score=near, mask=Documents.packed(*offsets)),
        backend="eager",
        fullgraph=True,
    )
    with pytest.raises(Exception, match="Near only has a formula, which is called for consecutive queries"):
        late(q, k, v)


@pytest.mark.parametrize("around", [lambda s: s, lambda s: 2 * s + ALiBi(4), lambda s: PerHead((2, Dot()), (2, s))])
def test_frequencies_that_go_by_the_length_have_one_length(around):
    """Documents of one length, or no longer than in training, keep the frequencies they have alone."""
    check_same("more_keys", around(Rotary(Dot(), scaling=NTKScaling(4.0, 5))), Causal(), "auto")  # 4, 5 and 5 keys
    long = around(Rotary(Dot(), scaling=NTKScaling(4.0, 4)))
    q, k, v = inputs("more_keys")
    for mask in (mask_of("more_keys"), Documents.from_valid(torch.tensor([0, 1, 3, 6]), torch.tensor([0, 4, 9, 14]))):
        with pytest.raises(ValueError, match="NTKScaling depends on the sequence length, and packed"):
            regard.attend(q, k, v, score=long, mask=mask)
    parts = [x[..., 2:, :] for x in (q, k, v)]
    packed = Documents.packed([0, 1, 4], [0, 6, 12]) & Causal()
    first = [x[..., :n, :] for x, n in zip(parts, (1, 6, 6), strict=True)]
    alone = regard.attend(*first, score=long, mask=Causal(), offset=5)
    torch.testing.assert_close(regard.attend(*parts, score=long, mask=packed)[..., :1, :], alone, rtol=0, atol=1e-12)


def test_long_packs_in_many_tiles():
    torch.manual_seed(0)
    sizes = torch.randint(0, 90, (2, 12))
    PACKS["long"] = tuple([0, *row.cumsum(0).tolist()] for row in sizes)
    try:
        for name, inner in (("relative_t5", "both"), ("rotary", "window"), ("alibi", "causal")):
            check_same("long", score(name, sizes_of("long")), INNER[inner], "blockwise")
    finally:
        del PACKS["long"]


def test_tiles_between_documents_are_skipped(monkeypatch):
    from regard.kernels import blockwise

    looked = []
    scores = blockwise._TileRun.scores
    monkeypatch.setattr(blockwise, "_block_sizes", lambda p: blockwise.Blocks(1, 16, 16))
    monkeypatch.setattr(
        blockwise._TileRun, "scores", lambda run, tile, **o: looked.append(tile) or scores(run, tile, **o)
    )
    q, k, v = tensors(Sizes(batch=(1,), queries=32, keys=96))
    mask = Documents.packed([0, 16, 32], [0, 32, 96]) & Causal()  # the last 16 of 32, and the last 16 of 64
    regard.attend(q, k, v, mask=mask, backend="blockwise")
    assert len(looked) == 2 + 4 and sum(tile.full for tile in looked) == 1 + 3


def test_padding_behind_the_documents():
    """Unused key/value rows at the end, hidden by Lengths: as in a buffer of fixed size."""
    q, k, v = inputs("more_keys")
    dirty = [torch.cat((x, torch.full_like(x[..., :2, :], torch.nan)), -2) for x in (k, v)]
    offsets = [0, 1, 3, 6, 6], [0, 4, 9, 14, 16]
    made = Rotary(Dot()) + ALiBi(4)
    out = regard.attend(q, *dirty, score=made, mask=Documents.packed(*offsets) & Lengths(14) & Causal())
    torch.testing.assert_close(out, one_by_one("more_keys", q, k, v, made, Causal()), rtol=0, atol=1e-12)


def test_rotary_turns_by_positions_that_restart():
    """At a position in the millions an angle in float32 is off by a tenth, so positions of a long pack must restart."""
    far, made = 2**22, Rotary(Dot(), base=100.0)
    q, k = torch.randn(2, 1, 1, 6, 4)
    packed_q, packed_k = (torch.cat((torch.zeros(1, 1, far, 4), x), -2) for x in (q, k))
    packing = Documents.packed([0, far, far + 6]).packing()
    places = places_of(0, None, packing, Shape((1,), 1, far + 6, far + 6, q.device), lowered=False)
    turned = made.queries(packed_q, places.query_start).terms[0].q, made.keys(packed_k, places.key_start).tensors[0]
    for got, want in zip(turned, (made.queries(q).terms[0].q, made.keys(k).tensors[0]), strict=True):
        assert torch.equal(got[..., far:, :], want)


def test_lowered_keys_stand_at_their_index_in_the_pack():
    made = in_float64(Rotary(Dot()) + Relative(4, 2))
    q, k, v = inputs("more_keys")
    mask = mask_of("more_keys", Causal())
    whole = regard.attend(q, k, v, score=made, mask=mask)
    torch.testing.assert_close(regard.attend(q, made.keys(k), v, score=made, mask=mask), whole, rtol=0, atol=1e-12)


def test_dropout_counts_queries_and_keys_of_the_pack():
    q, k, v = inputs("more_keys")
    options = {"mask": mask_of("more_keys", Causal()), "dropout": 0.4, "seed": 7}
    out = regard.attend(q, k, v, backend="blockwise", **options)
    torch.testing.assert_close(out, regard.attend(q, k, v, backend="reference", **options), rtol=0, atol=1e-12)
    values = torch.eye(14, dtype=torch.float64).expand(2, 2, 14, 14)
    kept = regard.attend(q, k, values, **options) != 0
    ids = Documents([0, 1, 1, 2, 2, 2], [0] * 4 + [1] * 5 + [2] * 5)
    same = regard.attend(q, k, values, mask=ids, dropout=0.4, seed=7) != 0
    assert torch.equal(kept, same & (regard.steps(q, k, values, mask=mask_of("more_keys", Causal())).weights > 0))


@pytest.mark.parametrize("pack", PACKS)
def test_steps_and_traces_of_packs(pack):
    made = in_float64(Rotary(Dot()) + Relative(4, 2, values=True, value_dim=3) + ALiBi(4))
    q, k, v = (x.detach() for x in inputs(pack))
    mask = mask_of(pack, Causal())
    shown = regard.steps(q, k, v, score=made, mask=mask)
    torch.testing.assert_close(shown.context, one_by_one(pack, q, k, v, made, Causal()), rtol=0, atol=1e-12)
    rows = torch.tensor([4, 1, 2])
    some = regard.steps(q, k, v, score=made, mask=mask, rows=rows)
    torch.testing.assert_close(some.weights, shown.weights[:, :, rows], rtol=0, atol=1e-12)
    trace = Trace.of(q, k, v, score=made, mask=mask)
    for item, head in ((0, 0), (1, 3)):
        want = shown.weights[item, head]
        torch.testing.assert_close(trace.weights(0, head, item=item), want, rtol=0, atol=1e-12)
        torch.testing.assert_close(trace.tile(0, head, item=item, cols=(1, 4)), want[:, 1:4], rtol=0, atol=1e-12)
        steps = trace.steps(0, head, 2, item=item)
        torch.testing.assert_close(steps.context, shown.context[item, head, 2], rtol=0, atol=1e-12)
    turned = regard.steps(q, k, v, score=Rotary(Dot()), mask=mask).weights[0, 0, 2]
    torch.testing.assert_close(trace.steps(0, 0, 2, score=Rotary(Dot())).weights, turned, rtol=0, atol=1e-12)


def test_offsets_of_any_integer_type_and_device_form():
    q, k, v = inputs("more_keys")
    want = regard.attend(q, k, v, mask=mask_of("more_keys", Causal()))
    given = [torch.tensor(x, dtype=torch.int32) for x in PACKS["more_keys"]]
    torch.testing.assert_close(regard.attend(q, k, v, mask=Documents.packed(*given) & Causal()), want)


ERRORS = {
    "documents": (lambda: Documents.packed([0, 2, 5], [0, 5]), "as many documents, got 2 and 1"),
    "start": (lambda: Documents.packed([1, 2]), "start at 0 and do not fall"),
    "fall": (lambda: Documents.packed([0, 3, 2]), "start at 0 and do not fall"),
    "float": (lambda: Documents.packed(torch.tensor([0.0, 2.0])), "whole numbers as in"),
    "short": (
        lambda: attend_with(Documents.packed([0, 2, 4], [0, 4, 8])),
        "query offsets end at 4, where q, k and v have 5",
    ),
    "long": (
        lambda: attend_with(Documents.packed([0, 2, 5], [0, 4, 9])),
        "key offsets end at 9, where q, k and v have 8",
    ),
    "or": (lambda: attend_with(PACKED | Prefix(1)), "combines with & only"),
    "not": (lambda: attend_with(~PACKED & Causal()), "combines with & only"),
    "two": (lambda: attend_with(PACKED & Causal() & PACKED), "takes one Documents.packed"),
    "offset": (
        lambda: attend_with(PACKED, offset=3),
        "Documents.packed sets the positions of queries, and so does offset=3",
    ),
    "positions": (
        lambda: attend_with(PACKED, positions=(torch.arange(5), None)),
        "use Documents\\(ids\\) with positions",
    ),
}
PACKED = Documents.packed([0, 2, 5], [0, 4, 8])


def attend_with(mask, **options):
    return regard.attend(torch.randn(1, 1, 5, 4), *torch.randn(2, 1, 1, 8, 4), mask=mask, **options)


@pytest.mark.parametrize("wrong", ERRORS)
def test_what_a_pack_cannot_be(wrong):
    call, says = ERRORS[wrong]
    with pytest.raises(ValueError, match=says):
        call()

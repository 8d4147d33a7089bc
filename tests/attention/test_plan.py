"""The kernel chosen for each problem, and the reasons in plans."""

# ruff: noqa: E501  (one case, one line)

import re

import pytest
import torch
from cases import SCORES, Sizes, refusal, score, tensors

import regard
from regard.attention.plan import BACKENDS, GPU_ONLY, KERNELS, is_plain
from regard.mask import Causal, Documents, Lengths, Window
from regard.score import Additive, ALiBi, Bias, Cosine, Dot, General, Key, PerHead, Relative, Rotary, Softcap

Q, K, V = torch.zeros(2, 4, 16, 8), torch.zeros(2, 2, 24, 8), torch.zeros(2, 2, 24, 8)


def plan(**options):
    options = {"q": Q, "k": K, "v": V, **options}
    return regard.plan(options.pop("q"), options.pop("k"), options.pop("v"), **options)


def long(n, **options):
    q = torch.zeros(1, 1, 1, 8).expand(1, 4, n, 8)
    return plan(q=q, k=q, v=q, **options)


# --- the short way: a plain dot product goes past the planner, and must not show ---

PLAIN = {  # shapes of q, k and v, and whether they are plain
    "square": ((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), True),
    "cross": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), True),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), True),
    "grouped": ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), False),
    "value dims": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3), False),
    "no batch": ((4, 5, 8), (4, 7, 8), (4, 7, 8), False),
    "broadcast": ((2, 4, 5, 8), (1, 4, 7, 8), (1, 4, 7, 8), False),
    "no queries": ((2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 8), False),
    "no keys": ((2, 4, 5, 8), (2, 4, 0, 8), (2, 4, 0, 8), False),
    "no dims": ((2, 4, 5, 0), (2, 4, 7, 0), (2, 4, 7, 0), False),
}


@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
@pytest.mark.parametrize("score", [Dot(), Dot(scale=0.3)], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_the_short_way_is_the_planned_one(name, score, mask):
    *shapes, plain = PLAIN[name]
    q, k, v = (torch.randn(s) for s in shapes)
    assert is_plain(q, k, v) == plain
    (chosen,) = regard.plan(q, k, v, score=score, mask=mask).choices
    assert chosen.kernel == "sdpa" or not plain
    out = regard.attend(q, k, v, score=score, mask=mask)
    assert torch.equal(out, chosen.run()[0].view_as(out))
    torch.testing.assert_close(out, regard.attend(q, k, v, score=score, mask=mask, backend="reference"))


def test_autocast_and_mixed_dtypes_are_not_plain():
    q = torch.randn(1, 1, 2, 8)
    assert is_plain(q, q, q) and not is_plain(q, q, q.double()) and not is_plain(*[q.long()] * 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_plain(q, q, q)
        assert regard.attend(q, q, q).dtype == torch.bfloat16


# the plan, the kernel that must be chosen, and a word of the reason PyTorch's kernel is not (None: it is)
CHOSEN = {
    "dot": (lambda: plan(), None),
    "dot with a mask": (lambda: plan(mask=Causal()), None),
    "dot with lengths": (lambda: plan(mask=Lengths(torch.tensor([3, 4]))), None),
    "general": (lambda: plan(score=General(8, 8)), None),
    "rotary": (lambda: plan(score=Rotary(Dot()), offset=3), None),
    "cosine": (lambda: plan(score=Cosine()), None),
    "a sum of dots": (lambda: plan(score=Dot() + General(8, 8)), None),
    "fixed biases": (lambda: plan(score=Dot() + Bias(torch.zeros(16, 24))), None),
    "alibi": (lambda: plan(score=Dot() + ALiBi(4)), None),
    "long causal": (lambda: long(100_000, mask=Causal()), None),
    "additive": (lambda: plan(score=Additive(8, 8, 4)), "tanh"),
    "softcap": (lambda: plan(score=Softcap(Dot(), 5.0)), "softcap"),
    "values by distance": (lambda: plan(score=Relative(8, 2, values=True)), "values"),
    "no dot": (lambda: plan(score=Key(8)), "no dot term"),
    "dropout": (lambda: plan(dropout=0.1), "dropout"),
    "logsumexp": (lambda: plan(return_logsumexp=True), "logsumexp"),
    "sink": (lambda: plan(sink=0.0), "sink"),
    "empty": (lambda: plan(q=Q[:, :, :0]), "empty"),
    "learned biases": (lambda: plan(score=Dot() + Bias(torch.nn.Parameter(torch.zeros(16, 24)))), "gradient"),
    "biases in half precision": (lambda: plan(q=Q.half(), k=K.half(), v=V.half(), score=Dot() + ALiBi(4)), "float16"),
    "a long window": (lambda: long(100_000, mask=Window(64, 0)), "MiB"),
    "long alibi": (lambda: long(50_000, score=Dot() + ALiBi(4)), "MiB"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_chosen_kernel(name):
    made, reason = CHOSEN[name]
    made = made()
    if reason is None:
        assert made.kernel == "sdpa" and made.refusals == {}
    else:
        assert made.kernel != "sdpa"
        assert made.kernel != "reference", "the dense kernel is never needed"
        assert reason in made.refusals["sdpa"]
    kernels = [kernel for kernel in KERNELS if kernel not in GPU_ONLY]
    assert list(made.refusals) == kernels[: kernels.index(made.kernel)]
    assert made.memory_bytes >= 0 and made.error_bound == 0


@pytest.mark.parametrize("name", SCORES)
def test_a_plan_is_what_attend_does(name, monkeypatch):
    sizes = Sizes()
    made, (q, k, v) = score(name, sizes), tensors(sizes)
    ran = []
    for key, kernel in KERNELS.items():
        monkeypatch.setattr(kernel, "run", lambda problem, key=key, run=kernel.run: (ran.append(key), run(problem))[1])
    regard.attend(q, k, v, score=made, mask=Causal())
    assert regard.plan(q, k, v, score=made, mask=Causal()).kernel == " + ".join(dict.fromkeys(ran))


def test_planning_runs_nothing(monkeypatch):
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "run", lambda problem: pytest.fail("a plan ran a kernel"))
    assert str(plan(score=Additive(8, 8, 4), mask=Causal()))


# what a printed plan must contain
PRINTED = {
    "shape": (lambda: plan(), ["batch 2", "heads 4 (2 for keys)", "queries 16", "keys 24", "value dim 8", "float32 on cpu"]),
    "dot": (lambda: plan(), ["terms    dot(8 dims)", "mask     none", "kernel   sdpa", "error    exact up to rounding"]),
    "additive": (lambda: plan(score=Additive(8, 8, 4), mask=Causal()), ["tanh(4 hidden)", "mask     Causal()", "refused  sdpa: it has no tanh term"]),
    "series on a CPU": (lambda: plan(score=Additive(8, 8, 4, form="series")), ["form     exact: cpu_additive has no series for float32 on cpu", "error    exact up to rounding"]),
    "memory": (lambda: long(8192, score=Additive(8, 8, 4)), ["memory   ", "MiB beyond the inputs (dense: ", "GiB)"]),
    "folded": (lambda: plan(score=Dot() + General(8, 8)), ["folded   2 dot terms folded into one", "dot(16 dims)"]),
    "mask that hides nothing": (lambda: plan(mask=Window(99, 99)), ["Window(99, 99) hides nothing here", "mask     none"]),
    "offset": (lambda: plan(score=Dot() + ALiBi(4)), ["dot(8 dims) + offset(1 entry per head, then a slope)"]),
    "softcap": (lambda: plan(score=Softcap(Dot(), 30.0)), ["softcap(dot(8 dims), 30)", "it has no softcap"]),
    "relative": (lambda: plan(score=Relative(8, 2, values=True)), ["offset(5 entries per query)", "values by distance (5 entries)"]),
    "bias and key": (lambda: plan(score=Dot() + Bias(torch.zeros(16, 24)) + Key(8)), ["bias([1, 1, 16, 24])", "+ key"]),
    "heads": (lambda: plan(score=PerHead((2, Dot()), (2, Additive(8, 8, 3)))), ["heads 0–1", "heads 2–3", "tanh(3 hidden)", "dot(8 dims)"]),
    "documents": (lambda: plan(mask=Documents(torch.zeros(16).long(), torch.zeros(24).long()) & Causal()), ["(Documents() & Causal())"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_printed_plans(name):
    made, phrases = PRINTED[name]
    text = str(made())
    for phrase in phrases:
        assert phrase in text, text


def test_a_plan_of_several_groups_names_every_kernel():
    made = plan(score=PerHead((2, Dot()), (2, Additive(8, 8, 3))))
    assert made.kernel.startswith("sdpa + ") and "tanh" in made.refusals["sdpa"]
    assert made.memory_bytes > plan(q=Q[:, :2], k=K[:, :1], v=V[:, :1]).memory_bytes


@pytest.mark.parametrize("backend", [kernel for kernel in KERNELS if kernel not in GPU_ONLY])
def test_a_forced_backend_is_taken(backend):
    fitting = [s for s in (Dot(), Additive(8, 8, 4)) if refusal(Q, K, V, score=s, backend=backend) is None]
    assert fitting and all(plan(score=s, backend=backend).kernel == backend for s in fitting)


@pytest.mark.parametrize("name", [name for name, (_, reason) in CHOSEN.items() if reason])
def test_a_forced_backend_that_cannot_says_why_and_what_could(name, monkeypatch):
    make, reason = CHOSEN[name]
    original = regard.plan
    monkeypatch.setattr(regard, "plan", lambda *args, **options: original(*args, **options, backend="sdpa"))
    with pytest.raises(ValueError, match=rf"backend='sdpa' cannot run this: .*{reason}.*; backend='auto' would take '"):
        make()


def test_memory_of_blockwise_grows_linearly():
    for made in (Additive(8, 8, 4), Dot(), Relative(8, 4, values=True)):
        small, large = (long(n, score=made, backend="blockwise").memory_bytes for n in (32_768, 131_072))
        assert 2 < large / small < 4.2
        dense = [long(n, score=made, backend="reference").memory_bytes for n in (32_768, 131_072)]
        assert dense[1] == 16 * dense[0] and large < dense[1] / 1000


def test_memory_of_sdpa_counts_its_dense_mask():
    with_mask, without = (long(4096, mask=mask, backend="sdpa").memory_bytes for mask in (Window(8, 8), None))
    assert with_mask - without == 4096 * 4096


def test_the_docstring_of_attend_has_every_backend():
    text = re.search(r"backend: (.*?)\n\n", regard.attend.__doc__, re.DOTALL)[1]
    assert sorted(re.findall(r'"(\w+)"', text)) == sorted(BACKENDS)


def test_key_terms_are_dims_of_a_dot_product_where_gradients_are_wanted():
    """BiDAF's trilinear score then runs, and learns, on PyTorch's fused attention."""
    q, k, v = (torch.randn(2, 4, n, 6, dtype=torch.float64) for n in (5, 7, 7))
    score = (General(6, 6, heads=4, diagonal=True) + Key(6, heads=4)).double()
    mask = Lengths(torch.tensor([7, 3]))
    plan = regard.plan(q, k, v, score=score, mask=mask)
    assert plan.kernel == "sdpa" and "key terms folded into the dot term" in str(plan) and "dot(8 dims)" in str(plan)
    got, expected = (regard.attend(q, k, v, score=score, mask=mask, backend=b) for b in ("auto", "reference"))
    assert (got - expected).abs().max() < 1e-12
    up = torch.randn_like(got)
    for a, b in zip(*(torch.autograd.grad(x, list(score.parameters()), up) for x in (got, expected)), strict=True):
        assert (a - b).abs().max() < 1e-12 and a.abs().max() > 1e-6
    with torch.no_grad():
        assert "folded" not in str(regard.plan(q, k, v, score=score, mask=mask))
    for other in (Softcap(General(6, 6, diagonal=True), 5.0) + Key(6), Dot() + ALiBi(heads=4) + Key(6)):
        assert "key terms folded" not in str(regard.plan(q, k, v, score=other.double(), mask=mask))

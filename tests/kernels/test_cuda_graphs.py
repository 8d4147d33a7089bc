"""On the way to a GPU kernel nothing is copied from the host and nothing is waited for: an update is one CUDA graph.

Without a GPU the kernels run in Triton's interpreter, and the operators that PyTorch is asked for are looked at.
"""

import traceback

import pytest
import torch
from interpreting import CUDA, DEVICE

import regard
from regard.kernels.gpu import additive as triton_additive
from regard.kernels.gpu import offset as triton_offset
from regard.mask import Causal, Documents, Lengths, Prefix
from regard.models.folder import make_model
from regard.score import Additive, ALiBi, Dot, Location, Relative, T5Bias
from regard.tasks.translation.train import TranslationObjective
from regard.train import Ranks
from regard.train.settings import Settings
from regard.train.updater import GraphEngine

SCORES = {
    "additive": (triton_additive.NAME, lambda: Additive(8, 8, 16)),
    "relative": (triton_offset.NAME, lambda: Relative(8, 3)),
    "relative with values": (triton_offset.NAME, lambda: Relative(8, 3, values=True, value_dim=8)),
    "location": (triton_offset.NAME, lambda: Location(8, 3)),
    "t5": (triton_offset.NAME, lambda: Dot() + T5Bias(2, buckets=8, max_distance=6)),
    "alibi": (triton_offset.NAME, lambda: Dot() + ALiBi(2)),
}
MASKS = {
    "none": lambda: None,
    "lengths": lambda: Lengths(torch.tensor([7, 4], device=DEVICE)),
    "padded and causal": lambda: Causal() & Lengths(torch.tensor([7, 4], device=DEVICE)),
    "prefix": lambda: Prefix(torch.tensor([2, 0], device=DEVICE)),
    "documents": lambda: Documents(torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2, device=DEVICE)),
}


def recording(made, real):
    """The function, recording calls that create a tensor from other data."""

    def function(x, *rest, **options):
        if not isinstance(x, torch.Tensor):
            made.append(traceback.format_stack())
        return real(x, *rest, **options)

    return function


@pytest.mark.slow
@pytest.mark.skipif(CUDA, reason="there graphs are captured")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_attention_copies_nothing_from_the_host(score, mask, monkeypatch):
    """Python numbers become tensors on the device (torch.full), not on the host first (torch.tensor)."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backend, own = SCORES[score][0], SCORES[score][1]()
    q, k, v = (torch.randn(2, 2, 7, 8, requires_grad=True) for _ in range(3))
    options = {"score": own, "mask": MASKS[mask](), "backend": backend, "dropout": 0.2, "seed": 5}
    made = []
    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, recording(made, getattr(torch, name)))
    regard.attend(q, k, v, **options, sink=None if "additive" in score else 0.5).sum().backward()
    ours = [stack for stack in made if not any("triton/runtime" in line or "_series" in line for line in stack)]
    assert not ours, "".join(ours[0][-5:])


# --- on a GPU ---

MODELS = {
    "transformer": {"kind": "transformer", "dim": 32, "ffn_dim": 64, "encoder_layers": 1, "decoder_layers": 1},
    "rnn": {"kind": "rnn", "dim": 32, "hidden_dim": 64},
}
KINDS = ("dot", "additive", "general", "bilinear", "location", "relative", "rotary", "mix")
MIX = [[1, "dot"], [1, "additive"], [1, "general"], [1, "relative"]]


def tables(kind, score):
    common = {**MODELS[kind], "heads": 4, "dropout": 0.0, "vocab_size": 60}
    score = MIX if score == "mix" else score
    if kind == "rnn":
        return {**common, "score": score}
    return {**common, "self_score": "dot" if score == "location" else score, "cross_score": score}


def batch(n, s, t):
    source, target = torch.randint(4, 60, (n, s)), torch.randint(4, 60, (n, t))
    lengths = torch.randint(1, s + 1, (n,))
    source[torch.arange(s) >= lengths[:, None]] = 0
    return [source, lengths, target, target.roll(-1, 1)]


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("score", KINDS)
def test_an_update_is_a_graph_with_every_score(kind, score):
    """And what is replayed is what is computed eagerly: the sums of the same batches, and the weights they lead to."""
    ranks, said = Ranks(0, 1, torch.device("cuda", 0)), []
    settings = Settings(updates=20, lr=1e-3, warmup=1)
    torch.manual_seed(0)
    some = [batch(6, 9, 7) for _ in range(3)]
    found = []
    for captured in (True, False):
        torch.manual_seed(1)
        model = make_model(tables(kind, score)).cuda()
        objective = TranslationObjective(model, smoothing=0.1, rdrop=0.0, dtype=torch.bfloat16)
        engine = GraphEngine(objective, settings, ranks, 2, said.append)
        engine.works = captured
        for update in range(1, 9):
            tensors = some[update % 3]
            engine.update([(tensors, 42)], update)
        assert bool(engine.graphs) == captured, said
        found.append((engine.read(), [p.detach().clone() for p in model.parameters()]))
    (sums, weights), (eager, theirs) = found
    assert sums == pytest.approx(eager, rel=1e-2)
    for a, b in zip(weights, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=5e-3)

"""Keras' attention layers, on its torch backend, against the same scores in regard: outputs, weights and gradients.

An implementation by other hands of scores few libraries have. Keras' layers have one head and no projections:
`AdditiveAttention` is vᵀ tanh(q + k), regard's Additive with W = U = I; `Attention(score_mode="concat")` is
c Σ_d tanh(s (q_d + k_d)), Additive with W = U = s·I and v = c·1. With Keras' own `Dense` layers in front, W and U are
whatever those hold. Keras asks that a row see at least one key, so rows that see none are not compared here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.kernels import blockwise
from regard.mask import Causal, Dense, Lengths, Mask
from regard.score import Additive, Dot, General, Score

BATCH, QUERIES, KEYS, DIM, HIDDEN, VALUE_DIM = 3, 5, 7, 6, 9, 4
LENGTHS = torch.tensor([7, 3, 1])
PADDING = torch.arange(KEYS) < LENGTHS[:, None]
HOLES = torch.tensor([[1, 0, 1, 1, 0, 0, 1], [0, 0, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1]]).bool()
REAL = torch.arange(QUERIES) < torch.tensor([5, 2, 4])[:, None]  # the queries that are no padding
ROWS = Dense(REAL[:, None, :, None])  # a row that may see nothing is 0, as under Keras' query mask

# what Keras is called with, and the same as a regard mask
MASKS: dict[str, tuple[dict[str, Any], Mask | None]] = {
    "all": ({}, None),
    "padding": ({"mask": [None, PADDING]}, Lengths(LENGTHS)),
    "holes": ({"mask": [None, HOLES]}, Dense(HOLES[:, None, None, :])),
    "queries": ({"mask": [REAL, None]}, ROWS),
    "both": ({"mask": [REAL, PADDING]}, ROWS & Lengths(LENGTHS)),
    "causal": ({"use_causal_mask": True}, Causal()),
    "causal-both": ({"mask": [REAL, PADDING], "use_causal_mask": True}, Causal() & ROWS & Lengths(LENGTHS)),
}


@dataclass(frozen=True)
class Setting:
    """One call, in both languages. q, k and v are [batch, length, dim], as Keras has them."""

    layers: Any
    qkv: tuple[Tensor, Tensor, Tensor]
    arguments: dict[str, Any]
    mask: Mask | None
    backend: str


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`keras.layers`, imported only where these tests run: it takes seconds, and writes its settings to a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "torch")
        patch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
        keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip(f"keras was imported before, with the {keras.backend.backend()} backend")
    with keras.device("cpu"):
        yield keras.layers


@pytest.fixture(params=["auto", "reference", "blockwise", "small-tiles"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel; "small-tiles" is blockwise with many tiles, which it would not use for so little."""
    if request.param != "small-tiles":
        return request.param
    monkeypatch.setattr(blockwise, "_block_sizes", lambda problem: blockwise.Blocks(1, 2, 3))
    return "blockwise"


@pytest.fixture(params=MASKS)
def setting(request: pytest.FixtureRequest, layers: Any, backend: str) -> Setting:
    torch.manual_seed(0)
    shapes = (BATCH, QUERIES, DIM), (BATCH, KEYS, DIM), (BATCH, KEYS, VALUE_DIM)
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return Setting(layers, (q, k, v), *MASKS[request.param], backend)


def _set_keras(layer: Any, *dims: int, **weights: Tensor | float) -> Any:
    """A layer for inputs of these dims (query, value, key) with its weights set: all of them, and in this order."""
    layer.build((BATCH, 1, *dims) if len(dims) == 1 else [(BATCH, 1, dim) for dim in dims or (DIM, VALUE_DIM, DIM)])
    assert [w.name for w in layer.weights] == list(weights)
    for weight, value in zip(layer.weights, weights.values(), strict=True):
        weight.assign(value)
    return layer


def _set(score: Score, **weights: Tensor) -> Score:
    score.load_state_dict(weights)
    return score


def _agree(
    setting: Setting,
    layer: Any,
    score: Score,
    gradients: Callable[..., list[Tensor]] = lambda **_: [],
    project: tuple[Any, ...] = (),
) -> None:
    """The same output and weights, the same gradients of inputs and parameters, in float32 (all Keras has here).

    `gradients` takes those of the score's parameters by name and gives those of Keras' weights, in order; `project`
    are Keras layers for the query and the key.
    """
    q, k, v = setting.qkv
    queries, keys = (project[0](q), project[1](k)) if project else (q, k)
    theirs, their_weights = layer([queries, v, keys], return_attention_scores=True, **setting.arguments)
    heads = q[:, None], k[:, None], v[:, None]
    ours = regard.attend(*heads, score=score, mask=setting.mask, backend=setting.backend)[:, 0]
    torch.testing.assert_close(ours, theirs)

    if setting.arguments.get("mask", [None])[0] is not None:  # Keras hides padding queries in the output alone
        their_weights = their_weights * REAL[..., None]
    our_weights = regard.steps(*heads, score=score, mask=setting.mask).weights[:, 0]
    torch.testing.assert_close(our_weights, their_weights)

    upstream = torch.randn_like(ours)
    variables = {f"{part.name}/{w.name}": w.value for part in (layer, *project) for w in part.trainable_weights}
    parameters = dict(score.named_parameters())
    expected = torch.autograd.grad(theirs, [q, k, v, *variables.values()], upstream)
    got = torch.autograd.grad(ours, [q, k, v, *parameters.values()], upstream)
    got = (*got[:3], *gradients(**dict(zip(parameters, got[3:], strict=True))))
    for name, a, b in zip(("q", "k", "v", *variables), got, expected, strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"gradient of {name}: {m}")


@pytest.mark.parametrize("use_scale", [True, False])
def test_keras_additive(setting: Setting, use_scale: bool) -> None:
    eye, v = torch.eye(DIM), torch.randn(DIM) if use_scale else torch.ones(DIM)
    layer = _set_keras(setting.layers.AdditiveAttention(use_scale=use_scale), **({"scale": v} if use_scale else {}))
    score = _set(Additive(DIM, DIM, DIM), W=eye, U=eye, v=v)
    _agree(setting, layer, score, lambda W, U, v: [v] if use_scale else [])


def test_keras_additive_projected(setting: Setting) -> None:
    """Bahdanau's attention as one builds it in Keras: a `Dense` without bias for the query and one for the key."""
    W, U, v = torch.randn(HIDDEN, DIM), torch.randn(HIDDEN, DIM), torch.randn(HIDDEN)
    project = [_set_keras(setting.layers.Dense(HIDDEN, use_bias=False), DIM, kernel=weight.T) for weight in (W, U)]
    layer = _set_keras(setting.layers.AdditiveAttention(), HIDDEN, VALUE_DIM, HIDDEN, scale=v)
    score = _set(Additive(DIM, DIM, HIDDEN), W=W, U=U, v=v)
    _agree(setting, layer, score, lambda W, U, v: [v, W.T, U.T], tuple(project))


def test_keras_dot(setting: Setting) -> None:
    """Keras does not scale by 1/√d of its own accord."""
    _agree(setting, _set_keras(setting.layers.Attention()), Dot(scale=1.0))


def test_keras_dot_scaled(setting: Setting) -> None:
    """A learned scale s is General with W = s·I, and the gradient of s that of W along I."""
    layer = _set_keras(setting.layers.Attention(use_scale=True), scale=0.3)
    score = _set(General(DIM, DIM), W=0.3 * torch.eye(DIM))
    _agree(setting, layer, score, lambda W: [W.trace()])
    layer.scale.trainable = False
    _agree(setting, layer, Dot(scale=0.3))


@pytest.mark.parametrize("use_scale", [True, False])
def test_keras_concat(setting: Setting, use_scale: bool) -> None:
    s, c = 0.7 if use_scale else 1.0, -1.3
    layer = setting.layers.Attention(score_mode="concat", use_scale=use_scale)
    layer = _set_keras(layer, **({"scale": s} if use_scale else {}), concat_score_weight=c)
    eye = s * torch.eye(DIM)
    score = _set(Additive(DIM, DIM, DIM), W=eye, U=eye, v=torch.full((DIM,), c))
    _agree(setting, layer, score, lambda W, U, v: [*([W.trace() + U.trace()] if use_scale else []), v.sum()])

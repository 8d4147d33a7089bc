"""ONNX's own conformance cases for `Attention` and `RotaryEmbedding`, run through regard.

Somebody else wrote these numbers: they pin down caches, per-item (also negative) offsets, softcap before bias, masks
shorter than the keys, windows, rows that see nothing and the intermediate matrices. The adapter below only renames:
each ONNX attribute or input becomes the regard score, mask or offset a user would write for it.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.kernels import blockwise
from regard.mask import Causal, Dense, Lengths, Mask, Window
from regard.score import Bias, Dot, Score, Softcap
from regard.score.rotary import rotate

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
node_cases = pytest.importorskip("onnx.backend.test.case.node")

SKIPPED: dict[str, str] = {}  # case name → why it cannot apply
WIDE_SOFTMAX = {onnx.TensorProto.DOUBLE: torch.float64}  # regard's softmax has float32 or more anyway


def _collect() -> dict[str, dict[str, Any]]:
    """The cases by operator and name, without the `_expanded` twins (same numbers, other graph).

    A module registers its cases once, when first imported, and only those of the operator `collect_testcases` was
    called with at that moment: a second call for another operator finds nothing. Importing just the two modules we
    need registers both operators, and in a tenth of the time of a call, which imports every module there is.
    """
    for module in ("attention", "rotaryembedding"):
        importlib.import_module(f"{node_cases.__name__}.{module}")
    found: dict[str, dict[str, Any]] = {"Attention": {}, "RotaryEmbedding": {}}
    for case in node_cases._NodeTestCases:
        op = case.model.graph.node[0].op_type
        if op in found and "_expanded" not in case.name:
            found[op][case.name] = case
    return found


CASES = _collect()


def _params(op: str) -> list[Any]:
    return [
        pytest.param(case, id=name, marks=[pytest.mark.skip(reason=SKIPPED[name])] if name in SKIPPED else [])
        for name, case in CASES[op].items()
    ]


def _read(case: Any, data: Any = None) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Tensor]]:
    """Inputs by the operator's own names, attributes, and expected outputs; `data` in place of the stored numbers."""
    (node,), ((inputs, outputs),) = case.model.graph.node, case.data_sets if data is None else [data]
    schema = onnx.defs.get_schema(node.op_type)

    def by_name(formal: Any, actual: Any, arrays: Any) -> dict[str, Tensor]:
        present = [name.name for name, given in zip(formal, actual, strict=False) if given]
        return dict(zip(present, map(_tensor, arrays), strict=True))

    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return by_name(schema.inputs, node.input, inputs), attributes, by_name(schema.outputs, node.output, outputs)


def _tensor(array: Any) -> Tensor:
    if array.dtype.name == "bfloat16":  # an ml_dtypes type, which torch cannot take; float32 holds it exactly
        return torch.from_numpy(array.astype("float32")).bfloat16()
    return torch.from_numpy(array.copy())


def _check(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Every output the case lists, to a few roundings of its dtype; numbers are of size 1. A cache is exact.

    Half types get fewer: there the case's own rounding of each step is all that separates us, ours is in float32.
    """
    assert "Y" in expected
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        roundings = 0 if name.startswith("present") else 16 if value.dtype == torch.float32 else 2
        bound = roundings * torch.finfo(value.dtype).eps
        torch.testing.assert_close(got[name], value, rtol=bound, atol=bound, msg=lambda m, name=name: f"{name}: {m}")


def _split_heads(x: Tensor, heads: int | None) -> Tensor:
    """[B, L, heads·D] → [B, heads, L, D]; four dims stay."""
    return x if heads is None else x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _attention(
    backend: str,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    scale: float | None = None,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    qk_matmul_output_mode: int = 0,
    left_window_size: int | None = None,
    right_window_size: int | None = None,
) -> dict[str, Tensor]:
    """ONNX `Attention`, opset 23 to 25, in regard's words. An attribute it does not know is a TypeError."""
    q, k, v = _split_heads(Q, q_num_heads), _split_heads(K, kv_num_heads), _split_heads(V, kv_num_heads)
    offset: int | Tensor = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[-2]
        k, v = torch.cat((past_key, k), -2), torch.cat((past_value, v), -2)
    elif nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen - q.shape[-2]
    present = {"present_key": k, "present_value": v}

    masks: list[Mask] = []
    if is_causal:
        masks.append(Causal())
    if left_window_size is not None or right_window_size is not None:
        masks.append(Window(*(None if n in (None, -1) else n for n in (left_window_size, right_window_size))))
    if nonpad_kv_seqlen is not None:
        masks.append(Lengths(nonpad_kv_seqlen))
    if attn_mask is not None and attn_mask.shape[-1] < k.shape[-2]:  # what it does not reach is hidden
        masks.append(Lengths(attn_mask.shape[-1]))
        attn_mask = F.pad(attn_mask, (0, k.shape[-2] - attn_mask.shape[-1]))
    pairs: Score = Dot(scale)
    pairs = Softcap(pairs, softcap) if softcap else pairs
    score = pairs
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        masks.append(Dense(attn_mask))
    elif attn_mask is not None:
        score = pairs + Bias(attn_mask)
    mask = None
    for part in masks:
        mask = part if mask is None else mask & part

    wide = WIDE_SOFTMAX.get(softmax_precision, q.dtype)
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    y = regard.attend(q, k, v, score=score, mask=mask, offset=offset, backend=backend).to(Q.dtype)
    steps = regard.steps(q, k, v, score=score, mask=mask, offset=offset)
    matrices = {
        0: lambda: steps.similarity * (q.shape[-1] ** -0.5 if scale is None else scale),
        1: lambda: regard.steps(q, k, v, score=pairs).scaled,
        2: lambda: steps.masked,
        3: lambda: steps.weights,
    }
    y = y.transpose(1, 2).flatten(2) if Q.ndim == 3 else y
    return {"Y": y, **present, "qk_matmul_output": matrices[qk_matmul_output_mode]().to(Q.dtype)}


def _rotary_embedding(
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> dict[str, Tensor]:
    """ONNX `RotaryEmbedding`: the caches are tables of cosines and sines by position, or one row per token."""
    x = _split_heads(X, num_heads)
    cos, sin = (c if position_ids is None else c[position_ids] for c in (cos_cache, sin_cache))
    assert 2 * cos.shape[-1] == (rotary_embedding_dim or x.shape[-1])
    y = rotate(x, cos[:, None], sin[:, None], interleaved=bool(interleaved))
    return {"Y": y.transpose(1, 2).flatten(2) if X.ndim == 3 else y}


@pytest.fixture(params=["auto", "reference", "blockwise", "small-tiles"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel; "small-tiles" is blockwise with many tiles, which it would not use for so little."""
    if request.param != "small-tiles":
        return request.param
    monkeypatch.setattr(blockwise, "_block_sizes", lambda problem: blockwise.Blocks(1, 2, 3))
    return "blockwise"


@pytest.mark.parametrize("case", _params("Attention"))
def test_onnx_attention(case: Any, backend: str) -> None:
    inputs, attributes, expected = _read(case)
    _check(_attention(backend, **inputs, **attributes), expected)


@pytest.mark.parametrize(
    "case", [p for p in _params("Attention") if "attn_mask" in p.values[0].model.graph.node[0].input]
)
def test_onnx_attention_short_mask(case: Any, backend: str) -> None:
    """Keys beyond the end of the mask are hidden. In the stored cases `nonpad_kv_seqlen` hides them anyway, so this
    cuts two columns off the mask and takes ONNX's reference implementation as the judge."""
    node, (arrays, _) = case.model.graph.node[0], case.data_sets[0]
    given = dict(zip(filter(None, node.input), arrays, strict=True))
    given["attn_mask"] = given["attn_mask"][..., :-2]
    outputs = reference.ReferenceEvaluator(case.model).run(None, given)
    inputs, attributes, expected = _read(case, (list(given.values()), outputs))
    _check(_attention(backend, **inputs, **attributes), expected)


@pytest.mark.parametrize("case", _params("RotaryEmbedding"))
def test_onnx_rotary_embedding(case: Any) -> None:
    inputs, attributes, expected = _read(case)
    _check(_rotary_embedding(**inputs, **attributes), expected)


def test_onnx_cases_are_all_there() -> None:
    """A release that moves or renames the cases must not turn the tests above into nothing."""
    assert len(CASES["Attention"]) >= 93
    assert len(CASES["RotaryEmbedding"]) >= 8
    assert SKIPPED.keys() <= CASES["Attention"].keys() | CASES["RotaryEmbedding"].keys(), "SKIPPED names no such case"
    read = [_read(case) for case in CASES["Attention"].values()]
    modes = {given.get("qk_matmul_output_mode", 0) for _, given, outputs in read if "qk_matmul_output" in outputs}
    assert modes == {0, 1, 2, 3}
    assert {q["Q"].dtype for q, _, _ in read} >= {torch.float16, torch.bfloat16, torch.float32}

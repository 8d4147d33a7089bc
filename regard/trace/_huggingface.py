"""Models of Hugging Face's transformers, read through its attention interface.

Each of a model's configs is switched to an implementation of our own that hands the call to the one that was there,
with the same mask function, and shows what went in and came out. Numbers do not change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.call import Observation, observation_of
from regard.mask import Causal, Mask
from regard.score import Bias, Dot, Score, Softcap
from regard.trace._masks import additive, compact

Watch = Callable[[nn.Module, Observation, Tensor], Tensor]
"""Told of a call, with its context [B, H, L, Dv]; returns the context to go on with."""

WATCH: ContextVar[Watch | None] = ContextVar("regard_huggingface", default=None)
PREFIX = "regard_record_"


class _Configured(NamedTuple):
    config: Any
    implementation: str


@contextmanager
def watch_transformers(model: nn.Module, watch: Watch) -> Iterator[None]:
    """Inside, ``watch`` receives every attention call of the transformers models in ``model``."""
    found = _configs(model) if "transformers" in sys.modules else []
    if not found:
        yield
        return
    for _, implementation in found:
        _register(implementation)
    token = WATCH.set(watch)
    try:
        for config, implementation in found:
            config._attn_implementation = PREFIX + implementation
        yield
    finally:
        WATCH.reset(token)
        for config, implementation in found:
            config._attn_implementation = implementation


def _configs(model: nn.Module) -> list[_Configured]:
    """The configs of a model's parts, each with what computes its attention now."""
    from transformers import PretrainedConfig

    found: dict[int, _Configured] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig):
            for each in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
                if isinstance(each, PretrainedConfig) and id(each) not in found:
                    now = each._attn_implementation or "eager"
                    if not now.startswith(PREFIX):
                        found[id(each)] = _Configured(each, now)
    return list(found.values())


def _register(implementation: str) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = PREFIX + implementation
    if name in ALL_ATTENTION_FUNCTIONS:
        return
    if implementation not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise ValueError(
            f"this model's attention is {implementation!r}, whose masks transformers does not make itself; load it "
            'with attn_implementation="sdpa" or "eager" to record it'
        )

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, object]:
        if implementation == "eager":
            own = sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[attr-defined]
        else:
            own = ALL_ATTENTION_FUNCTIONS[implementation]
        out, weights = own(module, query, key, value, attention_mask, *args, **kwargs)
        watch = WATCH.get()
        if watch is None or torch.compiler.is_compiling():
            return out, weights
        with torch.no_grad():
            seen = _observation(module, query, key, value, attention_mask, kwargs)
        return watch(module, seen, out.transpose(1, 2)).transpose(1, 2), weights

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])


def _observation(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: object, kwargs: Mapping[str, Any]
) -> Observation:
    """The call as ours: its score, mask and sink."""
    score: Score = Dot(scale=kwargs.get("scaling"))
    if kwargs.get("softcap") is not None:
        score = Softcap(score, float(kwargs["softcap"]))
    if kwargs.get("position_bias") is not None:
        score = score + Bias(kwargs["position_bias"].to(q.dtype)[..., : k.shape[2]])
    shown: Mask | None = None
    offset = 0
    if mask is None:
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        shown = Causal() if causal and q.shape[2] > 1 else None
    elif not isinstance(mask, Tensor) or mask.ndim != 4:
        raise ValueError(
            f'cannot read a mask of type {type(mask).__name__}: load the model with attn_implementation="sdpa"'
        )
    else:
        mask = mask[..., : k.shape[2]]
        if mask.dtype == torch.bool:
            shown, offset = compact(mask)
        else:
            score, shown, offset = additive(score, mask.to(q.dtype))
    return observation_of(q, k, v, score=score, mask=shown, offset=offset, sink=kwargs.get("s_aux"))

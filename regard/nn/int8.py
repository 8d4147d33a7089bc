"""Large linear layers in 8 bits, for inference on a CPU, where reading weights takes most of the time."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.nn.attention import MultiHeadAttention
from regard.nn.layers import EncoderLayer

M = TypeVar("M", bound=nn.Module)


class Int8Linear(nn.Module):
    """y = W x + b, each row of W as integers −127…127 times a scale, and x quantised to 7 bits per call.

    7 bits because CPUs without VNNI add two products in 16 bits. All of x shares one scale, so a result depends, within
    its error of about 1 %, on the rest of the batch. PyTorch's oneDNN operator computes the product.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        if weight.device.type != "cpu":
            raise ValueError(f"Int8Linear runs on a CPU, got a weight on {weight.device}; move the model there first")
        self.out_features, self.in_features = weight.shape
        w = weight.detach().float()
        self.scale = (w.abs().amax(1) / 127).clamp(min=1e-12)
        self.zero = torch.zeros(len(w), dtype=torch.int64)
        self.bias = None if bias is None else bias.detach().float()
        self.packed = torch.ops.onednn.qlinear_prepack((w / self.scale[:, None]).round().to(torch.int8), None)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        low, high = (bound.item() for bound in torch.aminmax(flat)) if len(flat) else (0.0, 0.0)
        low, high = min(low, 0.0), max(high, 0.0)
        step = max(high - low, 1e-12) / 127
        zero = round(-low / step)
        numbers = flat.mul(1 / step).add_(zero).round_().to(torch.uint8)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            numbers, step, zero, self.packed, self.scale, self.zero, self.bias, 1.0, 0, torch.float32, "none", [], ""
        )
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def to_int8(model: M, *, at_least: int = 2**18) -> M:
    """A copy of a model with linear layers of ``at_least`` that many weights, and the softmax matrix, in 8 bits.

    Smaller layers would not be faster. The copy is for inference: the replaced layers have no gradients, and no weights
    in the state dict.

    >>> model = nn.Sequential(nn.Linear(64, 8))
    >>> x = torch.randn(3, 64)
    >>> (to_int8(model, at_least=0)(x) - model(x)).abs().max() < 0.05
    tensor(True)
    """
    copied = copy.deepcopy(model).eval()
    for layer in copied.modules():
        if isinstance(layer, EncoderLayer):
            _join(layer.attention, at_least)
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.numel() >= at_least:
                setattr(parent, name, Int8Linear(child.weight, child.bias))
    weight = getattr(model, "output_weight", None)
    if isinstance(weight, Tensor) and weight.numel() >= at_least and hasattr(copied, "head"):
        copied.head = Int8Linear(weight, getattr(model, "output_bias", None))
    return copied


def weights(model: nn.Module) -> int:
    """The number of weights of a model, 8-bit ones included: about the multiply-adds of a step per token.

    >>> weights(nn.Linear(64, 8)), weights(to_int8(nn.Sequential(nn.Linear(64, 8)), at_least=0))
    (520, 512)
    """
    eight = sum(part.in_features * part.out_features for part in model.modules() if isinstance(part, Int8Linear))
    return eight + sum(parameter.numel() for parameter in model.parameters())


def _join(attention: MultiHeadAttention, at_least: int) -> None:
    """Join the three projections of self-attention: x is quantised once, so it pays off at smaller sizes."""
    three = [attention.q_proj, attention.k_proj, attention.v_proj]
    weight = torch.cat([linear.weight for linear in three])
    if 2 * weight.numel() < at_least:
        return
    bias = torch.cat([linear.bias for linear in three]) if three[0].bias is not None else None
    attention.qkv = Int8Linear(weight, bias)

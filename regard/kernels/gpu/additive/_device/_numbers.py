"""Elementary functions, and parts of a range."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import INTERPRETED, LOG2E

LOG2E_REST = tl.constexpr(1.925963033500e-08)  # log2(e) minus its float32


@triton.jit
def _inverse(x):
    if INTERPRETED:
        r = 1.0 / x
    else:
        r = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return r


@triton.jit
def _sin_cos(x):
    """Sine and cosine, to 1e-5: the argument is reduced to one period, where the hardware's approximations are good."""
    if INTERPRETED:
        s, c = tl.sin(x), tl.cos(x)
    else:
        turns = x * 0.15915494309189535
        x = (turns - tl.floor(turns + 0.5)) * 6.283185307179586
        s = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
        c = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return s, c


@triton.jit
def _exp(x):
    """e^x to the last bits: the rounding error of the argument is compensated."""
    n = tl.floor(x * LOG2E + 0.5)
    f = tl.fma(x, LOG2E, -n) + x * LOG2E_REST
    return tl.exp2(f) * tl.exp2(n)


@triton.jit
def _part(lo, hi, share, shares, BLOCK: tl.constexpr):
    """One of several parts of a range, in whole blocks."""
    lo = lo // BLOCK * BLOCK
    size = tl.cdiv(tl.cdiv(tl.maximum(hi - lo, 0), BLOCK), shares) * BLOCK
    return lo + share * size, tl.minimum(hi, lo + share * size + size)

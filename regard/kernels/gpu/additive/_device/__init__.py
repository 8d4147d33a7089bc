"""The kernels of triton_additive. Imported only when they run.

Two forms of s_ij = Σ_d w_d tanh(a_id + b_jd), both without a transcendental function per pair (see gpu/additive):

    fractions   Σ_d w_d − 2 Σ_d w_d / (1 + A_d B_d),  A = e^{2a}, B = e^{2b};  several fractions share one reciprocal
    series      Σ_f Q_if K_jf over the features  c_m w_d sin(ω_m a), c_m w_d cos(ω_m a)  and  cos(ω_m b), sin(ω_m b)

``setting``, on the device, says which one runs: the kernels of the other return at once.

The forward pass is online softmax over key blocks (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Dao et
al. 2022, https://arxiv.org/abs/2205.14135). The backward pass writes the scores' gradient dS of some heads and keys to
a workspace of bounded size; from there two more kernels sum the gradients, one over keys and one over queries. One
program sums each number in a fixed order: no atomics, and bitwise reproducible results.

Names: b batch item, h head, i query, j key, d hidden dim, m term of the series; LP, SP, DP are L, S, D padded; C is the
number of keys in the workspace, first … first + C. An argument that is None, a pointer or a bound of the mask, is
removed at compile time; pointers in upper case are those of gpu/masks.py and gpu/dropout.py. Grids have one dimension.
"""

from regard.kernels.gpu._pieces import combine
from regard.kernels.gpu.additive._device._backward import (
    add_shares,
    clear,
    feature_gradients,
    pair_gradients,
    rows,
    score_gradients,
    table_gradients,
)
from regard.kernels.gpu.additive._device._forward import few, forward
from regard.kernels.gpu.additive._device._prepare import prepare, ranges, setup

__all__ = [
    "add_shares",
    "clear",
    "combine",
    "feature_gradients",
    "few",
    "forward",
    "pair_gradients",
    "prepare",
    "ranges",
    "rows",
    "score_gradients",
    "setup",
    "table_gradients",
]

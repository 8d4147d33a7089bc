"""The device code of triton_offset. Imported only when it runs: importing needs triton.

Exponentials are to base 2: with c = scale·log₂e and the table times log₂e, a weight is 2^(c·q·k + offset − lse₂).

A block of BM queries iterates over the keys in tiles of BN. Relative to a block, keys lie in five zones,

    lo ‥ a   cut by the mask's left edge            general
    a ‥ b    all at most −reach away, all visible   far: table[i, 0] for the whole tile
    b ‥ c    around the diagonal                    general
    c ‥ d    all at least reach away, all visible   far: table[i, R − 1] for the whole tile
    d ‥ hi   cut by the mask's right edge           general

and there are two loops, one over far tiles and one over general tiles. In a far tile the offset is one number per
query, which goes into the maximum that is subtracted anyway: such a tile costs as much as a plain dot product. A slope
adds one fused multiply-add by a vector that is the same for every tile. Only general tiles look up the table and
evaluate the mask. (Document ids and prefixes are compared in far tiles too.)

The backward pass has no atomics: one kernel per block of keys (dk, dv), one per block of queries (dq, dtable). A table
entry between the ends belongs to a single key, so its gradient is stored, not summed; the two ends are row sums.

Shaw's value term adds Σ_c W[i, c]·r'[c] to the context, where W are the weights by distance. Between the ends these are
stored too (in a second loop over general tiles, once the logsumexp is known), and the ends are row sums. Its gradient
adds (grad·r')[i, clip(j − i)] to the gradient of the weights, a table like the first.

A score without a dot product uses a dot product of zeros, 16 dims wide, for the tensor cores' layout of the scores.

PRECISION of float32 products is "ieee" or "tf32x3", see tl.dot.

Shapes: BM queries × BN keys in a tile, [BN, BM] in the kernel that goes by keys. Pointers are upper case.
"""

from regard.kernels.gpu._pieces import combine
from regard.kernels.gpu.offset._device._backward import backward_keys, backward_queries, statistics
from regard.kernels.gpu.offset._device._forward import forward, spoil

__all__ = ["backward_keys", "backward_queries", "combine", "forward", "spoil", "statistics"]

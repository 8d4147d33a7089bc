"""The formulas of the papers in float64 NumPy, written apart from the library: plain loops, one pair at a time.

Of a score only its parameters and options are read. Shapes: q [B, H, L, Dq], k [B, K, S, Dk], v [B, K, S, Dv].
"""

import math
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Head:
    """What one query head of one batch item sees."""

    b: int
    h: int  # among the heads the score is for
    group: int  # query heads per key/value head
    q: np.ndarray  # [L, Dq]
    k: np.ndarray  # [S, Dk]
    positions: list[int]  # of the queries
    shape: tuple[int, int, int, int]  # [B, H, L, S]

    @property
    def g(self):
        """Its key/value head."""
        return self.h // self.group

    def table(self, f):
        """f(i, j) for every pair."""
        return np.array([[f(i, j) for j in range(len(self.k))] for i in range(len(self.q))]).reshape(self.shape[2:])


def positions(offset, batch, queries):
    """Query i of item b is at offset_b + i."""
    starts = np.broadcast_to(np.asarray(offset, dtype=np.int64).reshape(-1), (batch,))
    return [[int(start) + i for i in range(queries)] for start in starts]


def scores(score, q, k, offset=0):
    """E, [B, H, L, S]."""
    (batch, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    where, e = positions(offset, batch, queries), np.zeros((batch, heads, queries, keys))
    for b in range(batch):
        for h in range(heads):
            group = heads // kv_heads
            e[b, h] = one_head(score, Head(b, h, group, q[b, h], k[b, h // group], where[b], e.shape))
    return e


def one_head(score, x):
    return FORMULAS[type(score).__name__](score, x)


def array(parameter):
    return parameter.detach().double().numpy()


def own(parameter, head, dims):
    """A head's own parameters, or the ones all heads share."""
    values = array(parameter)
    return values[head] if values.ndim > dims else values


def clip(n, m):
    return max(-m, min(m, n))


def dot(score, x):
    scale = 1 / math.sqrt(x.q.shape[-1]) if score.scale is None else score.scale
    return x.table(lambda i, j: scale * sum(x.q[i] * x.k[j]))


def additive(score, x):
    W, U, v = own(score.W, x.h, 2), own(score.U, x.g, 2), own(score.v, x.h, 1)
    return x.table(lambda i, j: sum(v * np.tanh(W @ x.q[i] + U @ x.k[j])))


def general(score, x):
    W = own(score.W, x.h, 2)
    if score.diagonal:
        W = np.diag(W[0])
    return x.table(lambda i, j: score.scale * (x.q[i] @ W @ x.k[j]))


def bilinear(score, x):
    Wk = own(score.Wk, x.g, 2)
    Wq = Wk if score.Wq is None else own(score.Wq, x.h, 2)
    return x.table(lambda i, j: score.scale * sum((Wq @ x.q[i]) * (Wk @ x.k[j])))


def location(score, x):
    r, m = own(score.r, x.h, 2), score.max_distance
    return x.table(lambda i, j: score.scale * sum(x.q[i] * r[m + clip(j - x.positions[i], m)]))


def relative(score, x):
    r, m = own(score.r, x.h, 2), score.max_distance
    return x.table(lambda i, j: sum(x.q[i] * (x.k[j] + r[m + clip(j - x.positions[i], m)])) / math.sqrt(x.q.shape[-1]))


def rotary(score, x):
    turned = replace(
        x,
        q=turn(score, x.q, x.positions),
        k=turn(score, x.k, range(len(x.k))),
    )
    return one_head(score.inner, turned)


def turn(score, x, where):
    """Pairs of dims as complex numbers, multiplied by e^{i·position·θ_d} with θ_d = base^{−2d/dims}."""
    dims = score.dims or x.shape[-1]
    out = x.copy()
    for row, position in enumerate(where):
        for d in range(dims // 2):
            one, two = (2 * d, 2 * d + 1) if score.interleaved else (d, d + dims // 2)
            z = complex(x[row, one], x[row, two]) * np.exp(1j * position * score.base ** (-2 * d / dims))
            out[row, one], out[row, two] = z.real, z.imag
    return out


def alibi(score, x):
    slope = alibi_slopes(x.shape[1])[x.h]
    return x.table(lambda i, j: -slope * abs(j - x.positions[i]))


def alibi_slopes(heads):
    """As in the paper's own code: a geometric sequence that starts at its ratio."""
    if heads & (heads - 1) == 0:
        ratio = 2.0 ** (-8.0 / heads)
        return [ratio ** (h + 1) for h in range(heads)]
    lower = 2 ** (heads.bit_length() - 1)
    return alibi_slopes(lower) + alibi_slopes(2 * lower)[0::2][: heads - lower]


def t5(score, x):
    weight = array(score.weight)
    options = weight.shape[0], score.max_distance, t5_bidirectional(score)
    return x.table(lambda i, j: weight[t5_bucket(j - x.positions[i], *options), x.h])


def t5_bidirectional(score):
    """Told by the table: a key just after the query has a bucket of its own or not."""
    return int(score.buckets[score.max_distance + 1]) != int(score.buckets[score.max_distance])


def t5_bucket(delta, buckets, max_distance, bidirectional):
    """In whole numbers: the logarithmic bucket t is the largest with (max/e)^t ≤ (n/e)^(buckets − e)."""
    first, n = 0, max(-delta, 0)
    if bidirectional:
        buckets //= 2
        first, n = (buckets if delta > 0 else 0), abs(delta)
    exact = buckets // 2
    if n < exact:
        return first + n
    t = 0
    while t < buckets - exact - 1 and max_distance ** (t + 1) * exact ** (buckets - exact) <= n ** (
        buckets - exact
    ) * exact ** (t + 1):
        t += 1
    return first + exact + t


def cosine(score, x):
    log_scale = array(score.log_scale)
    tau = min(math.exp(log_scale[x.h if len(log_scale) > 1 else 0]), score.max_scale)
    unit_q, unit_k = ([row / max(math.sqrt(sum(row * row)), score.eps) for row in rows] for rows in (x.q, x.k))
    return x.table(lambda i, j: tau * sum(unit_q[i] * unit_k[j]))


def bias(score, x):
    return np.broadcast_to(array(score.bias), x.shape)[x.b, x.h]


def key(score, x):
    w = own(score.w, x.g, 2)[0]
    return x.table(lambda i, j: sum(w * x.k[j]))


def softcap(score, x):
    return score.cap * np.tanh(one_head(score.inner, x) / score.cap)


def total(score, x):
    return sum(one_head(part, x) for part in score.parts)


def per_head(score, x):
    first = 0
    for count, part in zip(score.counts, score.scores, strict=True):
        if x.h < first + count:
            return one_head(part, replace(x, h=x.h - first, shape=(x.shape[0], count, *x.shape[2:])))
        first += count
    raise AssertionError("more heads than the groups have")


def scale(score, x):
    factors = [score.factor] if score.weight is None else array(score.weight)
    return factors[x.h if len(factors) > 1 else 0] * one_head(score.inner, x)


def qk_norm(score, x):
    def norm(rows, gain):
        if score.kind == "l2":
            return np.array([row / max(math.sqrt(sum(row * row)), score.eps) for row in rows])
        unit = np.array([row / math.sqrt(sum(row * row) / len(row) + score.eps) for row in rows])
        return unit if gain is None else unit * array(gain)

    return one_head(score.inner, replace(x, q=norm(x.q, score.query_gain), k=norm(x.k, score.key_gain)))


FORMULAS = {
    "Dot": dot,
    "Additive": additive,
    "General": general,
    "Bilinear": bilinear,
    "Location": location,
    "Relative": relative,
    "Rotary": rotary,
    "ALiBi": alibi,
    "T5Bias": t5,
    "Cosine": cosine,
    "Bias": bias,
    "Key": key,
    "Softcap": softcap,
    "Sum": total,
    "PerHead": per_head,
    "Scale": scale,
    "QKNorm": qk_norm,
}


def attention(e, seen, v, offset=0, sink=None, values=None):
    """Context [B, H, L, Dv], weights [B, H, L, S] and logsumexp [B, H, L].

    ``sink`` is one logit per head; ``values`` a table r' [R, Dv] or None per head. A row that sees nothing is 0.
    """
    batch, heads, queries, keys = e.shape
    where, group = positions(offset, batch, queries), heads // v.shape[1]
    context, weights = np.zeros((*e.shape[:3], v.shape[-1])), np.zeros(e.shape)
    logsumexp = np.full(e.shape[:3], -np.inf)
    for b, h, i in np.ndindex(*e.shape[:3]):
        logits = {j: e[b, h, i, j] for j in range(keys) if seen[b, h, i, j] and e[b, h, i, j] > -np.inf}
        extra = [] if sink is None else [sink[h]]
        if not logits and not extra:
            continue
        top = max([*logits.values(), *extra])
        total = sum(math.exp(n - top) for n in [*logits.values(), *extra])
        logsumexp[b, h, i] = top + math.log(total)
        for j, n in logits.items():
            weights[b, h, i, j] = math.exp(n - top) / total
            value = v[b, h // group, j]
            if values is not None and values[h] is not None:
                m = len(values[h]) // 2
                value = value + values[h][m + clip(j - where[b][i], m)]
            context[b, h, i] += weights[b, h, i, j] * value
    return context, weights, logsumexp

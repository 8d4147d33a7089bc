"""Every score and mask by name, for any sizes: what the other tests go through."""

import copy
import math
from dataclasses import dataclass

import torch

import regard
from regard.mask import Causal, Dense, Documents, Lengths, Prefix, Window
from regard.score import (
    Additive,
    ALiBi,
    Bias,
    Bilinear,
    Cosine,
    Dot,
    General,
    Key,
    Location,
    PerHead,
    QKNorm,
    Relative,
    Rotary,
    Scale,
    Softcap,
    T5Bias,
)


@dataclass(frozen=True)
class Sizes:
    batch: tuple[int, ...] = (2,)
    heads: int = 4
    kv_heads: int = 2
    queries: int = 5
    keys: int = 7
    dim: int = 4
    value_dim: int = 3

    @property
    def sets(self):
        """Parameters of their own for every head."""
        return {"heads": self.heads, "kv_heads": self.kv_heads}


def _bias(s, *shape):
    return Bias(torch.randn(shape or (s.heads, s.queries, s.keys), dtype=torch.float64))


def _per_head(s):
    """Four groups where the heads allow, each of another kind."""
    size = s.heads // s.kv_heads
    kinds = [
        lambda n: Dot() + ALiBi(heads=n * size),
        lambda n: Additive(s.dim, s.dim, 3, heads=n * size, kv_heads=n) + Key(s.dim),
        lambda n: Rotary(Dot()),
        lambda n: Relative(s.dim, 2, values=True, value_dim=s.value_dim, heads=n * size),
    ]
    kinds = kinds[: s.kv_heads]
    counts = [1] * (len(kinds) - 1) + [s.kv_heads - len(kinds) + 1]
    return PerHead(*[(n * size, kind(n)) for n, kind in zip(counts, kinds, strict=True)])


SCORES = {
    "dot": lambda s: Dot(),
    "dot_scale": lambda s: Dot(scale=0.7),
    "additive": lambda s: Additive(s.dim, s.dim, 5, **s.sets),
    "additive_shared": lambda s: Additive(s.dim, s.dim, 3),
    "general": lambda s: General(s.dim, s.dim, **s.sets),
    "general_shared": lambda s: General(s.dim, s.dim, scale=0.3),
    "general_diagonal": lambda s: General(s.dim, s.dim, **s.sets, scale=0.4, diagonal=True),
    "trilinear": lambda s: General(s.dim, s.dim, diagonal=True) + Key(s.dim),
    "bilinear": lambda s: Bilinear(s.dim, s.dim, 3, **s.sets),
    "bilinear_one": lambda s: Bilinear(s.dim, s.dim, 2, scale=0.5),
    "bilinear_shared": lambda s: Bilinear(s.dim, s.dim, 3, shared=True, **s.sets),
    "bilinear_shared_one": lambda s: Bilinear(s.dim, s.dim, 3, shared=True),
    "location": lambda s: Location(s.dim, 3, **s.sets),
    "location_shared": lambda s: Location(s.dim, 0, scale=0.5),
    "relative": lambda s: Relative(s.dim, 2, **s.sets),
    "relative_values": lambda s: Relative(s.dim, 3, values=True, value_dim=s.value_dim),
    "relative_values_heads": lambda s: Relative(s.dim, 1, values=True, value_dim=s.value_dim, heads=s.heads),
    "rotary": lambda s: Rotary(Dot()),
    "rotary_interleaved": lambda s: Rotary(Dot(scale=0.9), base=100.0, interleaved=True),
    "rotary_partial": lambda s: Rotary(Bilinear(s.dim, s.dim, 3, **s.sets), dims=2),
    "rotary_sum": lambda s: Rotary(Dot() + Cosine(heads=s.heads)),
    "alibi": lambda s: ALiBi(s.heads),
    "t5": lambda s: T5Bias(s.heads, buckets=8, max_distance=6),
    "t5_causal": lambda s: T5Bias(s.heads, buckets=6, max_distance=9, bidirectional=False),
    "cosine": lambda s: Cosine(),
    "cosine_heads": lambda s: Cosine(scale=5.0, heads=s.heads, max_scale=6.0),
    "bias": lambda s: _bias(s),
    "bias_full": lambda s: _bias(s, *s.batch, s.heads, s.queries, s.keys),
    "bias_row": lambda s: _bias(s, 1, s.keys),
    "bias_learned": lambda s: Bias(torch.nn.Parameter(torch.randn(1, s.queries, 1))),
    "key": lambda s: Key(s.dim, **s.sets),
    "key_shared": lambda s: Key(s.dim),
    "softcap": lambda s: Softcap(Dot(scale=2.0), 1.5),
    "softcap_additive": lambda s: Softcap(Additive(s.dim, s.dim, 3, heads=s.heads, kv_heads=s.kv_heads), 0.8),
    "dots": lambda s: Dot() + General(s.dim, s.dim, **s.sets) + Cosine(heads=s.heads),
    "additives": lambda s: Additive(s.dim, s.dim, 3) + Additive(s.dim, s.dim, 2, **s.sets) + Dot(),
    "everything": lambda s: (
        Softcap(Dot() + Additive(s.dim, s.dim, 2), 3.0)
        + ALiBi(s.heads)
        + Location(s.dim, 2)
        + T5Bias(s.heads, buckets=4, max_distance=5)
        + Key(s.dim)
        + _bias(s, s.queries, 1)
    ),
    "scaled": lambda s: 2 * Dot() - Location(s.dim, 2) / 3,
    "scaled_heads": lambda s: (
        Scale(Dot() + Additive(s.dim, s.dim, 3) + T5Bias(s.heads, 4, 4) + Key(s.dim, **s.sets), heads=s.heads)
        + Scale(_bias(s) + ALiBi(s.heads), 0.5, heads=1)
    ),
    "scaled_cap": lambda s: -1.5 * (Softcap(2 * Dot(), 1.5) + ALiBi(s.heads)) + 3 * Key(s.dim),
    "qk_norm": lambda s: QKNorm(Rotary(5 * Dot())) + QKNorm(Additive(s.dim, s.dim, 3), "rms", dim=s.dim),
    "relative_t5": lambda s: Relative(s.dim, 2, values=True, value_dim=s.value_dim) + T5Bias(s.heads, 4, 4),
    "per_head": _per_head,
}


# Those that go by vectors and positions alone: a Bias goes by where a pair stands in the call.
PAIRED = [name for name in SCORES if not any(isinstance(part, Bias) for part in SCORES[name](Sizes()).modules())]


def score(name, sizes, dtype=torch.float64):
    """A score whose parameters are all of them somewhere, none at zero or equal."""
    made = SCORES[name](sizes)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if key.endswith("log_scale"):
                parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()))
            else:
                parameter.normal_(std=0.6)
    return made.to(dtype)


def in_float64(score):
    return copy.deepcopy(score).double()


# Masks with what they mean: may item b's query i of head h, at position p, see key j? Sequences are per item.
MASKS = {
    "causal": lambda s: (Causal(), lambda b, h, i, p, j: j <= p),
    "window": lambda s: (Window(2, 1), lambda b, h, i, p, j: p - 2 <= j <= p + 1),
    "window_left": lambda s: (Window(left=3), lambda b, h, i, p, j: j >= p - 3),
    "window_right": lambda s: (Window(right=0), lambda b, h, i, p, j: j <= p),
    "window_none": lambda s: (Window(), lambda b, h, i, p, j: True),
    "lengths": lambda s: _lengths(s),
    "lengths_one": lambda s: (Lengths(max(s.keys - 2, 1)), lambda b, h, i, p, j: j < max(s.keys - 2, 1)),
    "prefix": lambda s: (Prefix(2), lambda b, h, i, p, j: j < 2),
    "prefix_items": lambda s: _lengths(s, Prefix),
    "documents": lambda s: _documents(s),
    "documents_unsorted": lambda s: _documents(s, ordered=False),
    "dense": lambda s: _dense(s, *s.batch, s.heads, s.queries, s.keys),
    "dense_pairs": lambda s: _dense(s, s.queries, s.keys),
    "dense_heads": lambda s: _dense(s, s.heads, s.queries, 1),
    "dense_keys": lambda s: _dense(s, *s.batch, 1, 1, s.keys),
    "and": lambda s: _both(MASKS["causal"](s), MASKS["lengths"](s), lambda a, b: a & b),
    "or": lambda s: _both(MASKS["causal"](s), MASKS["prefix"](s), lambda a, b: a | b),
    "not": lambda s: _not(MASKS["window"](s)),
    "nested": lambda s: _both(
        _not(_both(MASKS["documents"](s), MASKS["window_left"](s), lambda a, b: a & b)),
        MASKS["dense"](s),
        lambda a, b: a | b,
    ),
}


def _lengths(s, kind=Lengths):
    n = torch.randint(0, s.keys + 2, s.batch)
    flat = n.reshape(-1).tolist()
    return kind(n), lambda b, h, i, p, j: j < flat[b]


def _documents(s, ordered=True):
    q, k = (torch.randint(0, 3, (*s.batch, n)) for n in (s.queries, s.keys))
    q, k = (x.sort(-1).values if ordered else x for x in (q, k))
    flat_q, flat_k = q.reshape(-1, s.queries).tolist(), k.reshape(-1, s.keys).tolist()
    return Documents(q, k), lambda b, h, i, p, j: flat_q[b][i] == flat_k[b][j]


def _dense(s, *shape):
    mask = torch.rand(shape) < 0.6
    full = mask.expand(*s.batch, s.heads, s.queries, s.keys).reshape(-1, s.heads, s.queries, s.keys).tolist()
    return Dense(mask), lambda b, h, i, p, j: full[b][h][i][j]


def _both(one, two, combine):
    return combine(one[0], two[0]), lambda *at: combine(one[1](*at), two[1](*at))


def _not(one):
    return ~one[0], lambda *at: not one[1](*at)


def tensors(s, dtype=torch.float64, grad=False):
    """q, k and v."""
    shapes = (s.heads, s.queries, s.dim), (s.kv_heads, s.keys, s.dim), (s.kv_heads, s.keys, s.value_dim)
    return [torch.randn(*s.batch, *shape, dtype=torch.float64).to(dtype).requires_grad_(grad) for shape in shapes]


def items(s):
    return math.prod(s.batch)


def refusal(*args, backend, **options):
    """Why a kernel cannot run this, or None."""
    try:
        regard.plan(*args, backend=backend, **options)
    except ValueError as error:
        if "cannot run this" not in str(error):
            raise
        return str(error)
    return None

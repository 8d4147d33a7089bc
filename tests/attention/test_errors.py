"""Bad input gets an error that says what was expected, what came and what to do, before any work is done."""

# ruff: noqa: E501  (one case, one line)

import math
import re

import pytest
import torch

import regard
from regard.attention.plan import KERNELS
from regard.mask import Causal, Dense, Documents, Lengths, Prefix, Window
from regard.score import (
    Additive,
    ALiBi,
    Bias,
    Bilinear,
    Cosine,
    Dot,
    Function,
    General,
    Key,
    Location,
    PerHead,
    Relative,
    Rotary,
    Softcap,
    Sum,
    T5Bias,
)
from regard.score.terms import Keys

Q, K, V = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 7, 6)
GOOD = {"q": Q, "k": K, "v": V}


def attend(**changed):
    return lambda: regard.attend(**{**GOOD, **changed})


def with_score(score, **changed):
    """The score is constructed first, and must be valid by itself."""
    return attend(score=score, **changed)


META = torch.zeros(2, 2, 7, 8, device="meta")
TYPE, VALUE = TypeError, ValueError

# what is wrong: the call, the exception, and what its message says
BAD = {
    # tensors
    "q of two dims": (attend(q=Q[0, 0]), VALUE, r"q must be \[\.\.\., heads, length, dim\].*got shape \[5, 8\].*q\[None\]"),
    "k of two dims": (attend(k=K[0, 0]), VALUE, r"k must be .* at least 3 dims, got shape \[7, 8\]"),
    "v of one dim": (attend(v=V[0, 0, 0]), VALUE, r"v must be .* at least 3 dims, got shape \[6\]"),
    "q not a tensor": (attend(q=[[1.0]]), TYPE, r"q must be a tensor, got list"),
    "k none": (attend(k=None), TYPE, r"k must be a tensor.*got NoneType"),
    "q of ints": (attend(q=Q.long()), TYPE, r"q must be floating point .*got torch.int64"),
    "v of bools": (attend(v=V.bool()), TYPE, r"v must be floating point .*got torch.bool"),
    "k complex": (attend(k=K.cfloat()), TYPE, r"k must be floating point .*got torch.complex64"),
    "q of eight bits": (attend(q=Q.to(torch.float8_e4m3fn)), TYPE, r"q must be floating point .*got torch.float8_e4m3fn"),
    "all of eight bits": (attend(**dict.fromkeys("qkv", Q.to(torch.float8_e5m2))), TYPE, r"q must be floating point .*got torch.float8_e5m2"),
    "k sparse": (attend(k=K.to_sparse()), TYPE, r"k must be a dense tensor, got torch.sparse_coo; .*Lengths\(n\)"),
    "all sparse": (attend(**dict.fromkeys("qkv", Q.to_sparse())), TYPE, r"q must be a dense tensor, got torch.sparse_coo"),
    "mixed dtypes": (attend(k=K.double()), TYPE, r"one dtype.*got torch.float32 .*torch.float64"),
    "v of another dtype": (attend(v=V.half()), TYPE, r"one dtype.*torch.float32 .*torch.float16"),
    "k on another device": (attend(k=META), VALUE, r"one device, got q on cpu and k on meta"),
    "v on another device": (attend(v=META), VALUE, r"one device, got q on cpu and v on meta"),
    # shapes
    "keys and values of different lengths": (attend(v=V[:, :, :5]), VALUE, r"same length, got 7 keys and 5 values"),
    "keys and values of different heads": (attend(v=V[:, :1]), VALUE, r"same number of heads, got 2 and 1"),
    "heads not divisible": (attend(q=Q[:, :3]), VALUE, r"query heads must be a multiple.*got 3 and 2"),
    "more key heads than query heads": (attend(q=Q[:, :1]), VALUE, r"multiple of key/value heads, got 1 and 2"),
    "no key heads": (attend(k=K[:, :0], v=V[:, :0]), VALUE, r"multiple of key/value heads, got 4 and 0"),
    "batches that do not broadcast": (attend(q=Q.expand(3, 2, 4, 5, 8)[:, 0]), VALUE, r"batch dims must broadcast.*\[3\].*\[2\]"),
    # dims that do not fit the score
    "dot of different dims": (attend(k=K[..., :6]), VALUE, r"same dims, got 8 and 6; General, Bilinear and Additive"),
    "relative of other dims": (with_score(Relative(6, 2)), VALUE, r"Relative.*=6.*8"),
    "cosine of different dims": (with_score(Cosine(), k=K[..., :6]), VALUE, r"Cosine needs .* same dims, got 8 and 6"),
    "additive query dim": (with_score(Additive(6, 8, 3)), VALUE, r"Additive was made for query_dim=6, got .*8"),
    "additive key dim": (with_score(Additive(8, 6, 3)), VALUE, r"Additive was made for key_dim=6, got .*8"),
    "additive heads": (with_score(Additive(8, 8, 3, heads=3)), VALUE, r"Additive has 3 query heads, got 4"),
    "additive kv heads": (with_score(Additive(8, 8, 3, heads=4)), VALUE, r"Additive has 4 key heads, got 2.*kv_heads="),
    "general query dim": (with_score(General(6, 8)), VALUE, r"General was made for query_dim=6, got .*8"),
    "general key dim": (with_score(General(8, 6)), VALUE, r"General was made for key_dim=6, got .*8"),
    "general heads": (with_score(General(8, 8, heads=2)), VALUE, r"General has 2 query heads, got 4"),
    "bilinear query dim": (with_score(Bilinear(6, 8, 2)), VALUE, r"Bilinear was made for query_dim=6, got .*8"),
    "bilinear key dim": (with_score(Bilinear(8, 6, 2)), VALUE, r"Bilinear was made for key_dim=6, got .*8"),
    "location query dim": (with_score(Location(6, 3)), VALUE, r"Location was made for query_dim=6, got .*8"),
    "location heads": (with_score(Location(8, 3, heads=2)), VALUE, r"Location has 2 query heads, got 4"),
    "key dim": (with_score(Dot() + Key(6)), VALUE, r"Key was made for key_dim=6, got .*8"),
    "alibi heads": (with_score(Dot() + ALiBi(3)), VALUE, r"ALiBi was made for heads=3, got 4"),
    "t5 heads": (with_score(Dot() + T5Bias(3)), VALUE, r"T5Bias was made for heads=3, got 4"),
    "cosine heads": (with_score(Cosine(heads=3)), VALUE, r"Cosine was made for heads=3, got 4"),
    "rotary of odd dims": (with_score(Rotary(), q=Q[..., :7], k=K[..., :7]), VALUE, r"even number, got 7.*set dims="),
    "rotary of too many dims": (with_score(Rotary(dims=10)), VALUE, r"dims=10 is more than the 8 dims"),
    "rotary of an inner score that does not fit": (with_score(Rotary(General(6, 8), dims=4)), VALUE, r"query_dim=6"),
    "value table of other dims": (with_score(Relative(8, 2, values=True)), VALUE, r"value_dim=8, got values with 6 dims"),
    "bias of the wrong shape": (with_score(Dot() + Bias(torch.zeros(5, 6))), VALUE, r"Bias must broadcast to .*\[2, 4, 5, 7\], got \[5, 6\]"),
    "bias of too many dims": (with_score(Dot() + Bias(torch.zeros(1, 1, 1, 5, 7))), VALUE, r"Bias must broadcast"),
    "bias on another device": (with_score(Dot() + Bias(torch.zeros(5, 7, device="meta"))), VALUE, r"Bias is on meta.*cpu"),
    "per head counts": (with_score(PerHead((2, Dot()), (1, Cosine()))), VALUE, r"2 \+ 1 = 3 heads, got 4"),
    "per head splits a group": (with_score(PerHead((1, Dot()), (3, Cosine()))), VALUE, r"whole key/value groups of 2 .*group of 1"),
    "per head inner score": (with_score(PerHead((2, Dot()), (2, ALiBi(4)))), VALUE, r"ALiBi was made for heads=4, got 2"),
    "per head bias": (with_score(PerHead((2, Bias(torch.zeros(4, 5, 7))), (2, Dot()))), VALUE, r"Bias must broadcast"),
    "score not a score": (attend(score="dot"), TYPE, r"score must be a regard.score.Score, such as Dot\(\), got str"),
    "score a class": (attend(score=Dot), TYPE, r"got the class Dot; write Dot\(\)"),
    "score a class with arguments": (attend(score=Additive), TYPE, r"class Additive; write Additive\(query_dim, key_dim, hidden_dim\)"),
    "score of a layer a class": (lambda: regard.nn.MultiHeadAttention(8, 2, score=Dot), TYPE, r"the class Dot; write Dot\(\)"),
    "scores around a class": (lambda: Rotary(Dot), VALUE, r"got the class Dot; write Dot\(\)"),
    "a function around a class": (lambda: Function(lambda s, b, h, i, j: s, Dot), TYPE, r"the class Dot; write Dot\(\)"),
    "a sum of a class": (lambda: Sum(Dot(), Dot), TYPE, r"Sum adds scores, .*got the class Dot; write Dot\(\)"),
    "a sum of a number": (lambda: Sum(Dot(), 1.0), TYPE, r"Sum adds scores, .*got float"),
    # masks
    "float mask": (attend(mask=torch.zeros(5, 7)), TYPE, r"bool tensor \(True = may attend\), got torch.float32.*score.Bias"),
    "int mask": (attend(mask=torch.ones(5, 7, dtype=torch.int64)), TYPE, r"bool tensor .*got torch.int64; write \.bool\(\)"),
    "mask not a mask": (attend(mask="causal"), TYPE, r"bool tensor .*got str; or one of regard.mask: Causal\(\)"),
    "mask a class": (attend(mask=Causal), TYPE, r"got the class Causal; write Causal\(\)"),
    "masks with Python's and": (lambda: Causal() and Lengths(3), TYPE, r"masks combine with &, \| and ~"),
    "a mask with Python's not": (lambda: not Causal(), TYPE, r"masks combine with &, \| and ~"),
    "a float tensor before a mask": (lambda: torch.zeros(5, 7) & Causal(), TYPE, r"score.Bias"),
    "mask of the wrong shape": (attend(mask=torch.ones(5, 6, dtype=torch.bool)), VALUE, r"mask must broadcast to \[batch, heads, queries, keys\] = \[2, 4, 5, 7\], got \[5, 6\]"),
    "mask of kv heads": (attend(mask=torch.ones(2, 2, 5, 7, dtype=torch.bool)), VALUE, r"mask must broadcast .*\[2, 2, 5, 7\]"),
    "mask of too many dims": (attend(mask=torch.ones(1, 1, 1, 5, 7, dtype=torch.bool)), VALUE, r"mask must broadcast"),
    "mask on another device": (attend(mask=torch.ones(5, 7, dtype=torch.bool, device="meta")), VALUE, r"mask is on meta.*cpu"),
    "combined float mask": (lambda: Causal() & torch.zeros(5, 7), TYPE, r"score.Bias"),
    "combined with a wrong shape": (attend(mask=Causal() & Dense(torch.ones(3, 3, dtype=torch.bool))), VALUE, r"mask must broadcast"),
    "lengths of the wrong shape": (attend(mask=Lengths(torch.tensor([1, 2, 3]))), VALUE, r"Lengths takes one number per batch item, \[2\], got shape \[3\]"),
    "prefix of the wrong shape": (attend(mask=Prefix([1, 2, 3])), VALUE, r"Prefix takes one number per batch item"),
    "lengths of floats": (lambda: Lengths(torch.tensor([1.0])), TYPE, r"Lengths takes whole numbers, got torch.float32"),
    "lengths of bools": (lambda: Lengths(torch.ones(2, 7, dtype=torch.bool)), TYPE, r"Lengths takes whole numbers, got torch.bool"),
    "documents of the wrong length": (attend(mask=Documents([0, 0, 1])), VALUE, r"query_ids must have one id per position, \[5\] or \[2, 5\], got shape \[3\]"),
    "documents without key ids": (attend(mask=Documents([0, 0, 1, 1, 1])), VALUE, r"key_ids must have one id per position, \[7\].*got shape \[5\]"),
    "documents of the wrong batch": (attend(mask=Documents(torch.zeros(3, 5).long(), [0] * 7)), VALUE, r"query_ids .*got shape \[3, 5\]"),
    "documents of floats": (lambda: Documents([0.0, 1.0]), TYPE, r"Documents takes whole numbers as ids, got torch.float32"),
    "packed offsets not from zero": (lambda: Documents.packed([1, 5]), VALUE, r"start at 0 .*\[0, 5, 8\], got \[1, 5\]"),
    "packed offsets that fall": (lambda: Documents.packed([0, 5, 3]), VALUE, r"do not fall.*got \[0, 5, 3\]"),
    "window negative": (lambda: Window(-1, 2), VALUE, r"Window: left must be an integer ≥ 0 or None.*got -1"),
    "window of floats": (lambda: Window(1, 0.5), VALUE, r"Window: right must be .*got 0.5"),
    # options
    "unknown backend": (attend(backend="flash"), VALUE, r"backend must be one of auto, .*blockwise.*got 'flash'"),
    "backend that refuses": (with_score(Additive(8, 8, 3), backend="sdpa"), VALUE, r"backend='sdpa' cannot run this: .*tanh.*'auto' would take"),
    "offset of floats": (attend(offset=1.5), TYPE, r"offset must be an int or a tensor .*got float"),
    "offset a bool": (attend(offset=True), TYPE, r"offset must be an int .*got bool"),
    "offset a list": (attend(offset=[1, 2]), TYPE, r"offset must be an int or a tensor .*got list"),
    "offset a float tensor": (attend(offset=torch.ones(2)), TYPE, r"offset must hold whole numbers, got torch.float32"),
    "offset of the wrong shape": (attend(offset=torch.ones(3).long()), VALUE, r"offset must be one number or one per batch item, \[2\], got shape \[3\]"),
    "dropout of one": (attend(dropout=1.0), VALUE, r"dropout must be at least 0 and below 1, got 1.0"),
    "dropout negative": (attend(dropout=-0.1), VALUE, r"dropout must be at least 0 and below 1, got -0.1"),
    "dropout NaN": (attend(dropout=math.nan), VALUE, r"dropout must be .*got nan"),
    "dropout a string": (attend(dropout="0.1"), VALUE, r"dropout must be .*got '0.1'"),
    # seeds: PyTorch's own errors would not say that it is the seed
    "seed of several": (attend(dropout=0.1, seed=torch.tensor([1, 2])), VALUE, r"seed"),
    "seed a float": (attend(dropout=0.1, seed=1.5), TYPE, r"seed"),
    "seed a string": (attend(dropout=0.1, seed="x"), TYPE, r"seed"),
    "seed too large": (attend(dropout=0.1, seed=2**70), VALUE, r"seed"),
    # sinks
    "sink of the wrong shape": (attend(sink=torch.zeros(3)), VALUE, r"sink must be a number or one per head, \[4\], got shape \[3\]"),
    "sink of two dims": (attend(sink=torch.zeros(1, 4)), VALUE, r"sink must be a number or one per head"),
    "sink NaN": (attend(sink=math.nan), VALUE, r"sink must be a finite number, got nan"),
    "sink infinite": (attend(sink=math.inf), VALUE, r"sink must be a finite number, got inf"),
    "sink of ints": (attend(sink=torch.zeros(4).long()), TYPE, r"sink must .*torch.int64"),
    "sink on another device": (attend(sink=torch.zeros(4, device="meta")), VALUE, r"sink is on meta"),
    # lowered keys: of other dims they must not reach a kernel, of other heads not be broadcast in silence
    "lowered keys of another score": (attend(k=(Dot() + Key(8)).keys(K)), VALUE, r"lowered keys hold 2 tensors, Dot makes 1; .*another score"),
    "lowered keys of other dims": (attend(k=Bilinear(8, 8, 3).keys(K)), VALUE, r"lowered keys .*another score"),
    "lowered keys of another hidden size": (with_score(Additive(8, 8, 3), k=Additive(8, 8, 5).keys(K)), VALUE, r"lowered keys .*another score"),
    "lowered keys of other heads": (attend(k=Dot().keys(K[:, :1])), VALUE, r"same number of heads, got 1 and 2"),
    "lowered keys of other heads in a sum": (with_score(Dot() + Key(8), k=(Dot() + Key(8)).keys(K[:, :1])), VALUE, r"heads"),
    "lowered keys of another length": (attend(k=Dot().keys(K[:, :, :5])), VALUE, r"same length, got 5 keys and 7 values"),
    "lowered keys of another dtype": (attend(k=Dot().keys(K.double())), TYPE, r"one dtype"),
    "lowered keys of nothing": (attend(k=Keys(())), VALUE, r"lowered keys hold 0 tensors, Dot makes 1"),
    # invalid scores
    "negative max_distance": (lambda: Relative(8, -1), VALUE, r"Relative: max_distance must be an integer ≥ 0, got -1"),
    "negative max_distance of Location": (lambda: Location(8, -3), VALUE, r"Location: max_distance must be .*got -3"),
    "max_distance a float": (lambda: Location(8, 2.5), VALUE, r"max_distance must be an integer ≥ 0, got 2.5"),
    "max_distance too small for the buckets": (lambda: T5Bias(4, 32, 5), VALUE, r"T5Bias: max_distance must exceed .*got max_distance=5"),
    "NaN scale": (lambda: Dot(scale=math.nan), VALUE, r"Dot: scale must be a finite number, got nan"),
    "infinite scale": (lambda: General(8, 8, scale=math.inf), VALUE, r"General: scale must be a finite number, got inf"),
    "scale a string": (lambda: Bilinear(8, 8, 2, scale="1"), VALUE, r"Bilinear: scale must be a finite number, got '1'"),
    "NaN scale of Location": (lambda: Location(8, 2, math.nan), VALUE, r"Location: scale must be a finite number, got nan"),
    "cosine scale": (lambda: Cosine(scale=200.0), VALUE, r"Cosine: scale must be positive and at most max_scale=100.0, got 200.0"),
    "cosine scale zero": (lambda: Cosine(scale=0.0), VALUE, r"Cosine: scale must be positive"),
    "zero dims": (lambda: Additive(8, 8, 0), VALUE, r"Additive: hidden_dim must be a positive integer, got 0"),
    "dims a float": (lambda: General(8.0, 8), VALUE, r"General: query_dim must be a positive integer, got 8.0"),
    "unknown init": (lambda: Additive(8, 8, 4, init="zeros"), VALUE, r"init must be 'glorot' or 'paper', got 'zeros'"),
    "unknown form": (lambda: Additive(8, 8, 4, form="fast"), VALUE, r"Additive: form must be 'auto', 'exact' or 'series', got 'fast'"),
    "shared of different dims": (lambda: Bilinear(8, 6, 2, shared=True), VALUE, r"shared=True needs equal dims, got query_dim=8, key_dim=6"),
    "kv_heads without heads": (lambda: Additive(8, 8, 3, kv_heads=2), VALUE, r"Additive: kv_heads=2 needs heads too"),
    "kv_heads without heads in Key": (lambda: Key(8, kv_heads=2), VALUE, r"Key: kv_heads=2 needs heads too"),
    "kv_heads that do not divide": (lambda: General(8, 8, heads=4, kv_heads=3), VALUE, r"heads=4 is not a multiple of kv_heads=3"),
    "no heads": (lambda: ALiBi(0), VALUE, r"ALiBi: heads must be a positive integer, got 0"),
    "rotary around additive": (lambda: Rotary(Additive(8, 8, 3)), VALUE, r"Rotary wraps dot-shaped scores .*got Additive; .*Rotary\(Dot\(\)\) \+"),
    "rotary around relative": (lambda: Rotary(Relative(8, 2)), VALUE, r"Rotary wraps dot-shaped scores .*got Relative"),
    "rotary around a sum with ALiBi": (lambda: Rotary(Dot() + ALiBi(4)), VALUE, r"Rotary wraps dot-shaped scores .*got Sum"),
    "rotary around a softcap": (lambda: Rotary(Softcap(Dot(), 1.0)), VALUE, r"Rotary wraps dot-shaped scores .*got Softcap"),
    "rotary of odd dims asked for": (lambda: Rotary(dims=3), VALUE, r"Rotary: dims must be a positive even number, got 3"),
    "rotary of a negative base": (lambda: Rotary(base=-1.0), VALUE, r"Rotary: base must be positive, got -1.0"),
    "softcap around relative": (lambda: Softcap(Relative(8, 2), 1.0), VALUE, r"Softcap wraps pair-shaped scores .*got Relative; .*outside"),
    "softcap around ALiBi": (lambda: Softcap(ALiBi(4), 1.0), VALUE, r"Softcap wraps pair-shaped scores .*got ALiBi"),
    "softcap of a softcap": (lambda: Softcap(Softcap(Dot(), 1.0), 2.0), VALUE, r"Softcap wraps pair-shaped scores .*got Softcap"),
    "softcap of zero": (lambda: Softcap(Dot(), 0.0), VALUE, r"Softcap: cap must be positive, got 0.0"),
    "softcap NaN": (lambda: Softcap(Dot(), math.nan), VALUE, r"Softcap: cap must be a finite number, got nan"),
    "two softcaps": (lambda: Softcap(Dot(), 1.0) + Softcap(Dot(), 2.0), VALUE, r"one Softcap, with every pair term inside it"),
    "a pair term outside the softcap": (lambda: Softcap(Dot(), 1.0) + General(8, 8), VALUE, r"one Softcap, with every pair"),
    "a relative outside the softcap": (lambda: Softcap(Dot(), 1.0) + Relative(8, 2), VALUE, r"one Softcap, with every pair"),
    "two value tables": (lambda: Relative(8, 2, True) + Relative(8, 1, True), VALUE, r"at most one Relative\(values=True\)"),
    "a sum with a PerHead": (lambda: Dot() + PerHead((4, Dot())), VALUE, r"PerHead cannot be added to; add inside its groups"),
    "a sum with a number": (lambda: Dot() + 1.0, TYPE, r"unsupported operand"),
    "per head without groups": (lambda: PerHead(), VALUE, r"PerHead needs at least one group, as in"),
    "per head of no heads": (lambda: PerHead((0, Dot())), VALUE, r"PerHead: .*must be a positive integer, got 0"),
    "per head the wrong way round": (lambda: PerHead((Dot(), 4)), VALUE, r"a group is \(number of heads, score\)"),
    "per head in a per head": (lambda: PerHead((4, PerHead((4, Dot())))), VALUE, r"cannot be a PerHead itself"),
    "bias of bools": (lambda: Bias(torch.ones(5, 7, dtype=torch.bool)), TYPE, r"floating-point tensor, got torch.bool; a bool tensor is a mask"),
    "bias a list": (lambda: Bias([1.0]), TYPE, r"floating-point tensor, got list"),
    # steps and plans
    "steps of the wrong rank": (lambda: regard.steps(Q[0, 0], K, V), VALUE, r"q must be \[\.\.\., heads, length, dim\]"),
    # rows: PyTorch's own errors would not say that it is the rows
    "steps of rows out of range": (lambda: regard.steps(Q, K, V, rows=torch.tensor([5])), VALUE, r"rows"),
    "steps of rows that are floats": (lambda: regard.steps(Q, K, V, rows=torch.tensor([1.0])), TYPE, r"rows"),
    "plan of the wrong rank": (lambda: regard.plan(Q, K, V[0, 0]), VALUE, r"v must be \[\.\.\., heads, length, dim\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_a_clear_error_before_any_work(name, monkeypatch):
    call, kind, text = BAD[name]
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "run", lambda problem: pytest.fail("a kernel was run on bad input"))
    monkeypatch.setattr(KERNELS["reference"], "run_steps", lambda problem: pytest.fail("a kernel was run on bad input"))
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    message = str(caught.value)
    assert re.search(text, message), message
    assert len(message) < 300 and "\n" not in message


def test_the_good_call_of_the_table_is_good():
    assert regard.attend(**GOOD).shape == (2, 4, 5, 6)

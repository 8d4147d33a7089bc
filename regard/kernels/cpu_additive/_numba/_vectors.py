"""The innermost loops, as LLVM instructions on whole vector registers.

The compiler vectorises simple loops by itself. But it loads and stores a sum in an array at every step, does not
overlap a division with the use of the previous one, and computes a maximum one number at a time. Here sums stay in
registers: small matrix products (``inner_tile``, ``outer_tile``) are bound by multiplications alone, and the fractions
of additive attention (``fractions``) and their gradients (``gradients``) nearly so.

Each function processes whole vectors and leaves the rest, less than a vector of keys or columns, to its caller. Python
operators act on whole vectors: ``a * z + w`` below is a multiply-add of all lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic
from numba.np import arrayobj

ROWS = 4  # queries processed together
FLAGS = ("contract", "nsz", "reassoc")
settings: Any = config  # numba sets its attributes at import


def _registers() -> tuple[int, int]:
    """Bytes per vector register of the CPU that numba compiles for, and vectors of columns per tile."""
    if settings.CPU_NAME is None:
        features = {name for name, has in llvm.get_host_cpu_features().items() if has}
    else:  # NUMBA_CPU_NAME and NUMBA_CPU_FEATURES
        features = {name[1:] for name in (settings.CPU_FEATURES or "").split(",") if name.startswith("+")}
    if "avx512f" in features:
        return 64, 4  # with ROWS rows, 16 of 32 registers are sums
    if "avx" in features:
        return 32, 2  # 8 of 16
    return 16, 2


BYTES, VECTORS = _registers()


class _Vector:
    """A value of an LLVM vector type, with the arithmetic of its numbers."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, other: _Vector) -> _Vector:
        return _Vector(self.builder, self.builder.fadd(self.value, other.value, flags=FLAGS))

    def __sub__(self, other: _Vector) -> _Vector:
        return _Vector(self.builder, self.builder.fsub(self.value, other.value, flags=FLAGS))

    def __mul__(self, other: _Vector) -> _Vector:
        return _Vector(self.builder, self.builder.fmul(self.value, other.value, flags=FLAGS))

    def __truediv__(self, other: _Vector) -> _Vector:
        return _Vector(self.builder, self.builder.fdiv(self.value, other.value))

    def larger(self, other: _Vector) -> _Vector:
        """The larger number of each lane; this one if the other is NaN."""
        more = self.builder.fcmp_ordered(">", other.value, self.value)
        return _Vector(self.builder, self.builder.select(more, other.value, self.value))

    def sum(self) -> Any:
        kind = self.value.type
        name = f"llvm.vector.reduce.fadd.v{kind.count}f{32 if kind.element == ir.FloatType() else 64}"
        reduce = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(kind.element, (kind.element, kind)), name
        )
        return self.builder.call(reduce, (kind.element(0.0), self.value), fastmath=FLAGS)


class _Variable:
    """A vector variable of a loop; LLVM keeps it in a register."""

    def __init__(self, start: _Vector) -> None:
        self.builder = start.builder
        self.place = cgutils.alloca_once(self.builder, start.value.type)
        self.set(start)

    def get(self) -> _Vector:
        return _Vector(self.builder, self.builder.load(self.place))

    def set(self, vector: _Vector) -> None:
        self.builder.store(vector.value, self.place)


class _Array:
    """A matrix with contiguous rows, or one such row."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = arrayobj.make_array(kind)(context, builder, value)
        self.builder, self.data, self.real = builder, array.data, context.get_data_type(kind.dtype)
        self.step = cgutils.unpack_tuple(builder, array.strides)[0]
        self.size = context.get_abi_sizeof(self.real)
        self.kind = ir.VectorType(self.real, BYTES // self.size)

    def at(self, row: Any, column: Any) -> Any:
        """The address of a number."""
        b, wide = self.builder, self.step.type
        return cgutils.pointer_add(b, self.data, b.add(b.mul(row, self.step), b.mul(column, wide(self.size))))

    def load(self, row: Any, column: Any) -> _Vector:
        pointer = self.builder.bitcast(self.at(row, column), self.kind.as_pointer())
        return _Vector(self.builder, self.builder.load(pointer, align=self.size))

    def store(self, row: Any, column: Any, vector: _Vector) -> None:
        pointer = self.builder.bitcast(self.at(row, column), self.kind.as_pointer())
        self.builder.store(vector.value, pointer, align=self.size)

    def splat(self, row: Any, column: Any) -> _Vector:
        """One number in all lanes of a vector."""
        b, place = self.builder, ir.IntType(32)
        number = b.load(b.bitcast(self.at(row, column), self.real.as_pointer()))
        one = b.insert_element(ir.Constant(self.kind, ir.Undefined), number, place(0))
        index = ir.Constant(ir.VectorType(place, self.kind.count), None)
        return _Vector(b, b.shuffle_vector(one, one, index))

    def add_to(self, row: Any, column: Any, number: Any) -> None:
        b = self.builder
        pointer = b.bitcast(self.at(row, column), self.real.as_pointer())
        b.store(b.fadd(b.load(pointer), number), pointer)

    def constant(self, number: float) -> _Vector:
        return _Vector(self.builder, ir.Constant(self.kind, [self.real(number)] * self.kind.count))


class _Code:
    """The arguments of an intrinsic: arrays first, then integers."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> None:
        kinds = zip(signature.args, args, strict=True)
        self.arrays = [_Array(context, builder, kind, x) for kind, x in kinds if isinstance(kind, types.Array)]
        self.numbers = args[len(self.arrays) :]
        self.builder, self.lanes = builder, self.arrays[0].kind.count

    def number(self, n: int) -> Any:
        return ir.IntType(64)(n)

    def after(self, start: Any, steps: int) -> Any:
        return self.builder.add(start, self.number(steps))

    def turns(self, count: Any) -> Any:
        return cgutils.for_range(self.builder, count)

    def whole(self, count: Any, part: int) -> Any:
        return self.builder.sdiv(count, self.number(part))

    def times(self, index: Any, n: int) -> Any:
        return self.builder.mul(index, self.number(n))


def _code(write: Any, *more: Any) -> Any:
    """numba's code generator of an intrinsic without a result, from a function that writes its code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        write(_Code(context, builder, signature, args), *more)
        return context.get_dummy_value()

    return generate


def _inner(code: _Code, vectors: int) -> None:
    (acc, x, y), (start, first, column, count) = code.arrays, code.numbers
    columns = [code.after(start, v * code.lanes) for v in range(vectors)]
    sums = [[_Variable(acc.load(code.number(r), c)) for c in columns] for r in range(ROWS)]
    with code.turns(count) as loop:
        line = code.builder.add(first, loop.index)
        values = [y.load(line, code.after(column, v * code.lanes)) for v in range(vectors)]
        for r in range(ROWS):
            weight = x.splat(code.number(r), loop.index)
            for total, value in zip(sums[r], values, strict=True):
                total.set(total.get() + weight * value)
    for r in range(ROWS):
        for total, c in zip(sums[r], columns, strict=True):
            acc.store(code.number(r), c, total.get())


def _outer(code: _Code, vectors: int) -> None:
    (acc, x, y), (start, count) = code.arrays, code.numbers
    columns = [code.after(start, v * code.lanes) for v in range(vectors)]
    values = [[y.load(code.number(r), c) for c in columns] for r in range(ROWS)]
    with code.turns(count) as loop:
        weights = [x.splat(code.number(r), loop.index) for r in range(ROWS)]
        for v, c in enumerate(columns):
            total = acc.load(loop.index, c)
            for r in range(ROWS):
                total = total + weights[r] * values[r][v]
            acc.store(loop.index, c, total)


@_code
def _fractions(code: _Code) -> None:
    (s, a, inverse, bt), (j0, count, dims) = code.arrays, code.numbers
    with code.turns(code.whole(count, code.lanes)) as keys:
        at = code.times(keys.index, code.lanes)
        sums = [_Variable(s.constant(0.0)) for _ in range(ROWS)]
        with code.turns(code.whole(dims, 4)) as four:
            d = [code.after(code.times(four.index, 4), i) for i in range(4)]
            z = [bt.load(i, code.builder.add(j0, at)) for i in d]
            w = [inverse.splat(code.number(0), i) for i in d]
            for r, total in enumerate(sums):
                y = [a.splat(code.number(r), d[i]) * z[i] + w[i] for i in range(4)]
                p, q = y[0] * y[1], y[2] * y[3]
                total.set(total.get() + ((y[0] + y[1]) * q + (y[2] + y[3]) * p) / (p * q))
        for r, total in enumerate(sums):
            s.store(code.number(r), at, total.get())


@_code
def _gradients(code: _Code) -> None:
    (g, a, bt, ga, gbt, gw), (row, d0, j0, count) = code.arrays, code.numbers
    b, d = code.builder, [code.after(d0, i) for i in range(4)]
    of_query = [a.splat(row, i) for i in d]
    one = g.constant(1.0)

    def start_division(at: Any) -> list[_Vector]:
        """x of four dims, 1/(x₂x₃) and 1/(x₀x₁): x₃ times the first is r₂."""
        x = [of_query[i] * bt.load(d[i], b.add(j0, at)) + one for i in range(4)]
        p, q = x[0] * x[1], x[2] * x[3]
        inverse = one / (p * q)
        return [*x, p * inverse, q * inverse]

    turns = code.whole(count, code.lanes)
    last = b.sub(turns, code.number(1))
    with b.if_then(b.icmp_signed(">=", last, code.number(0))):
        carried = [_Variable(vector) for vector in start_division(code.number(0))]
        sums = [(_Variable(g.constant(0.0)), _Variable(g.constant(0.0))) for _ in d]
        with code.turns(turns) as loop:
            at, next_one = code.times(loop.index, code.lanes), code.after(loop.index, 1)
            x0, x1, x2, x3, p, q = (variable.get() for variable in carried)
            # start the division of the next keys before finishing with these
            more = b.select(b.icmp_signed("<", loop.index, last), next_one, last)
            for variable, vector in zip(carried, start_division(code.times(more, code.lanes)), strict=True):
                variable.set(vector)
            gradient = g.load(row, at)
            for i, r in enumerate((x1 * q, x0 * q, x3 * p, x2 * p)):
                v = r * gradient
                t = v - r * v
                of_w, of_a = sums[i]
                of_w.set(of_w.get() + v)
                of_a.set(of_a.get() + t)
                gbt.store(d[i], b.add(j0, at), gbt.load(d[i], b.add(j0, at)) + t)
        for i, (of_w, of_a) in enumerate(sums):
            gw.add_to(code.number(0), d[i], of_w.get().sum())
            ga.add_to(row, d[i], of_a.get().sum())


def _maximum(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code = _Code(context, builder, signature, args)
    (row,), (count,) = code.arrays, code.numbers
    top = _Variable(row.constant(float("-inf")))
    with code.turns(code.whole(count, code.lanes)) as loop:
        top.set(top.get().larger(row.load(code.number(0), code.times(loop.index, code.lanes))))
    vector, place = top.get().value, ir.IntType(32)
    found = builder.extract_element(vector, place(0))
    for lane in range(1, code.lanes):
        other = builder.extract_element(vector, place(lane))
        found = builder.select(builder.fcmp_ordered(">", other, found), other, found)
    return found


def _intrinsic(definition: Any) -> Any:
    """An intrinsic; callers omit its first argument, which numba passes."""
    return intrinsic(definition)


@_intrinsic
def inner_tile(typingctx: Any, acc: Any, x: Any, y: Any, start: Any, first: Any, column: Any, count: Any) -> Any:
    """acc[r, start + …] += Σ_{j < count} x[r, j] · y[first + j, column + …] for ROWS rows and a tile of columns."""
    return types.void(acc, x, y, *(types.int64,) * 4), _code(_inner, VECTORS)


@_intrinsic
def inner_vector(typingctx: Any, acc: Any, x: Any, y: Any, start: Any, first: Any, column: Any, count: Any) -> Any:
    """The same for one vector of columns."""
    return types.void(acc, x, y, *(types.int64,) * 4), _code(_inner, 1)


@_intrinsic
def outer_tile(typingctx: Any, acc: Any, x: Any, y: Any, start: Any, count: Any) -> Any:
    """acc[j, start + …] += Σ_r x[r, j] · y[r, start + …] for j < count, ROWS rows and a tile of columns."""
    return types.void(acc, x, y, types.int64, types.int64), _code(_outer, VECTORS)


@_intrinsic
def outer_vector(typingctx: Any, acc: Any, x: Any, y: Any, start: Any, count: Any) -> Any:
    """The same for one vector of columns."""
    return types.void(acc, x, y, types.int64, types.int64), _code(_outer, 1)


@_intrinsic
def fractions(typingctx: Any, s: Any, a: Any, inverse: Any, bt: Any, j0: Any, count: Any, dims: Any) -> Any:
    """s[r, j] = Σ_d 1/y_d, y_d = inverse_d + a[r, d] · bt[d, j0 + j], four per division, for ROWS queries."""
    return types.void(s, a, inverse, bt, *(types.int64,) * 3), _fractions


@_intrinsic
def gradients(
    typingctx: Any, g: Any, a: Any, bt: Any, ga: Any, gbt: Any, gw: Any, row: Any, d: Any, j0: Any, count: Any
) -> Any:
    """With r = 1/(1 + a[row, d] · bt[d, j0 + j]) and t = g[row, j]·r(1 − r), for four dims from d on:

    gw[d] += Σ_j g[row, j]·r,   ga[row, d] += Σ_j t,   gbt[d, j0 + j] += t.
    """
    return types.void(g, a, bt, ga, gbt, gw, *(types.int64,) * 4), _gradients


@_intrinsic
def largest_of(typingctx: Any, row: Any, count: Any) -> Any:
    """The largest of row[:count] within whole vectors, ignoring NaN."""
    return row.dtype(row, types.int64), _maximum

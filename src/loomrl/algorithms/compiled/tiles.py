"""The inner loop of every matrix product: a block of the result that stays in vector registers.

    C[row, lane] = start[lane] + sum over k of A[row, k] B[k, lane]     R rows, V vectors of LANES lanes

Written in LLVM's own vectors because its loop vectoriser cannot keep such a block in registers: this reaches the
processor's limit at 128 x 64 x 64 (117 GFLOP/s where OpenBLAS gave 106). A is addressed by two strides, so that one
kernel serves A and its transpose. The multiply-adds of one result are done in the order of k, whatever the number of
rows: a row's result is the same in any batch.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # a 512-bit register; LLVM splits it where registers are narrower
ROWS = 4
# Vectors in a block: as many as 32 registers hold, or one where there are 16 and each vector needs two.
VECTORS = 4 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 1

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INDEX = ir.IntType(32)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)


def product_tile(rows: int, vectors: int) -> Any:
    """A numba intrinsic that computes one block of a matrix product: C = start + A B, of `rows` rows and `vectors`
    vectors.

    It takes `start, start_at`; `a, a_at, a_row, a_k`; `b, b_at, b_k`; `c, c_at, c_row`; `depth` >= 1: four float32
    arrays, where the block begins in each of them and their steps, counted in elements. It checks nothing.
    """

    @intrinsic
    def tile(context, start, start_at, a, a_at, a_row, a_k, b, b_at, b_k, c, c_at, c_row, depth):  # type: ignore[no-untyped-def]  # noqa: ARG001 - an intrinsic's signature
        size = types.intp
        signature = types.void(start, size, a, size, size, size, b, size, size, c, size, size, size)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit(_Emitter(context, builder, signature, arguments), rows, vectors)
            return context.get_dummy_value()

        return signature, generate

    return tile


def dot_tile(rows: int) -> Any:
    """A numba intrinsic: C[row] = sum over lanes of A[row, lane] B[lane], for `rows` rows at once.

    It takes `a, a_at, a_row`; `b, b_at`; `c, c_at, c_row`; `depth`, a multiple of LANES. It checks nothing.
    """

    @intrinsic
    def tile(context, a, a_at, a_row, b, b_at, c, c_at, c_row, depth):  # type: ignore[no-untyped-def]  # noqa: ARG001 - an intrinsic's signature
        size = types.intp
        signature = types.void(a, size, size, b, size, c, size, size, size)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit_dots(_Emitter(context, builder, signature, arguments), rows)
            return context.get_dummy_value()

        return signature, generate

    return tile


def transpose_tile() -> Any:
    """A numba intrinsic: C (LANES, LANES) = A^T. It takes `a, a_at, a_row`; `c, c_at, c_row`, as `product_tile` does,
    and checks nothing."""

    @intrinsic
    def tile(context, a, a_at, a_row, c, c_at, c_row):  # type: ignore[no-untyped-def]  # noqa: ARG001 - an intrinsic's signature
        size = types.intp
        signature = types.void(a, size, size, c, size, size)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit_transpose(_Emitter(context, builder, signature, arguments))
            return context.get_dummy_value()

        return signature, generate

    return tile


class _Emitter:
    """The few instructions both tiles are made of."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder, self.arguments = builder, arguments
        self._context, self._signature = context, signature
        self._fma = self._declared("llvm.fma", _VECTOR, [_VECTOR] * 3)
        self._sum = self._declared("llvm.vector.reduce.fadd", _FLOAT, [_FLOAT, _VECTOR])
        self.index = arguments[1].type

    def _declared(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        declare: Any = cgutils.get_or_insert_function
        return declare(self.builder.module, kind, f"{name}.v{LANES}f32")

    def data(self, position: int) -> Any:
        """The pointer to the elements of an array argument."""
        kind = self._signature.args[position]
        return self._context.make_array(kind)(self._context, self.builder, self.arguments[position]).data

    def number(self, value: int) -> Any:
        return ir.Constant(self.index, value)

    def at(self, start: Any, step: Any, count: int) -> Any:
        """start + count * step"""
        return self.builder.add(start, self.builder.mul(step, self.number(count)))

    def _vector_pointer(self, data: Any, at: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [at]), _VECTOR.as_pointer())

    def load(self, data: Any, at: Any) -> Any:
        loaded = self.builder.load(self._vector_pointer(data, at))
        loaded.align = 4  # numpy promises no more
        return loaded

    def store(self, vector: Any, data: Any, at: Any) -> None:
        self.builder.store(vector, self._vector_pointer(data, at)).align = 4

    def load_scalar(self, data: Any, at: Any) -> Any:
        return self.builder.load(self.builder.gep(data, [at]))

    def store_scalar(self, scalar: Any, data: Any, at: Any) -> None:
        self.builder.store(scalar, self.builder.gep(data, [at]))

    def broadcast(self, scalar: Any) -> Any:
        first = self.builder.insert_element(_UNDEFINED, scalar, ir.Constant(_INDEX, 0))
        return self.choose(first, _UNDEFINED, [0] * LANES)

    def choose(self, one: Any, other: Any, lanes: list[int]) -> Any:
        """A vector of the lanes with these numbers: `one`'s from 0 on, `other`'s from LANES on."""
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_INDEX, LANES), lanes))

    def multiply_add(self, one: Any, other: Any, sum_: Any) -> Any:
        return self.builder.call(self._fma, [one, other, sum_])

    def total(self, vector: Any) -> Any:
        return self.builder.call(self._sum, [ir.Constant(_FLOAT, -0.0), vector], fastmath=["reassoc"])

    def accumulate(self, first: list[Any], depth: Any, step: int, advance: Any) -> list[Any]:
        """sums = first; for k in range(0, depth, step): sums = advance(k, sums). Runs once at least."""
        builder, before = self.builder, self.builder.block
        body, after = builder.append_basic_block("sum"), builder.append_basic_block("summed")
        builder.branch(body)
        builder.position_at_end(body)
        k = builder.phi(self.index)
        sums = [builder.phi(_VECTOR) for _ in first]
        advanced = advance(k, sums)
        following = builder.add(k, self.number(step))
        for phi, begin, again in zip([k, *sums], [self.number(0), *first], [following, *advanced], strict=True):
            phi.add_incoming(begin, before)
            phi.add_incoming(again, body)
        builder.cbranch(builder.icmp_signed("<", following, depth), body, after)
        builder.position_at_end(after)
        return list(advanced)


def _emit(emit: _Emitter, rows: int, vectors: int) -> None:
    start, a, b, c = (emit.data(position) for position in (0, 2, 6, 9))
    _, start_at, _, a_at, a_row, a_k, _, b_at, b_k, _, c_at, c_row, depth = emit.arguments
    lanes = [emit.number(LANES * vector) for vector in range(vectors)]
    add, multiply = emit.builder.add, emit.builder.mul
    a_rows = [emit.at(a_at, a_row, row) for row in range(rows)]

    def advance(k: Any, sums: list[Any]) -> list[Any]:
        b_here, a_step = add(b_at, multiply(k, b_k)), multiply(k, a_k)
        columns = [emit.load(b, add(b_here, lane)) for lane in lanes]
        factors = [emit.broadcast(emit.load_scalar(a, add(a_here, a_step))) for a_here in a_rows]
        pairs = [(factor, column) for factor in factors for column in columns]
        return [emit.multiply_add(*pair, sum_) for pair, sum_ in zip(pairs, sums, strict=True)]

    first = [emit.load(start, add(start_at, lane)) for lane in lanes] * rows
    places = [add(emit.at(c_at, c_row, row), lane) for row in range(rows) for lane in lanes]
    for vector, place in zip(emit.accumulate(first, depth, 1, advance), places, strict=True):
        emit.store(vector, c, place)


def _emit_dots(emit: _Emitter, rows: int) -> None:
    a, b, c = (emit.data(position) for position in (0, 3, 5))
    _, a_at, a_row, _, b_at, _, c_at, c_row, depth = emit.arguments
    add = emit.builder.add
    a_rows = [emit.at(a_at, a_row, row) for row in range(rows)]

    def advance(k: Any, sums: list[Any]) -> list[Any]:
        right = emit.load(b, add(b_at, k))
        return [
            emit.multiply_add(emit.load(a, add(a_here, k)), right, sum_)
            for a_here, sum_ in zip(a_rows, sums, strict=True)
        ]

    first = [ir.Constant(_VECTOR, [0.0] * LANES)] * rows
    for row, vector in enumerate(emit.accumulate(first, depth, LANES, advance)):
        emit.store_scalar(emit.total(vector), c, emit.at(c_at, c_row, row))


def _emit_transpose(emit: _Emitter) -> None:
    """Swap the off-diagonal halves of ever smaller blocks."""
    a, c = emit.data(0), emit.data(3)
    _, a_at, a_row, _, c_at, c_row = emit.arguments
    rows = [emit.load(a, emit.at(a_at, a_row, row)) for row in range(LANES)]
    half = LANES // 2
    while half:
        upper = [lane if not lane & half else LANES + lane - half for lane in range(LANES)]
        lower = [lane + half if not lane & half else LANES + lane for lane in range(LANES)]
        for row in range(LANES):
            if not row & half:
                pair = rows[row], rows[row + half]
                rows[row], rows[row + half] = emit.choose(*pair, upper), emit.choose(*pair, lower)
        half //= 2
    for row, vector in enumerate(rows):
        emit.store(vector, c, emit.at(c_at, c_row, row))

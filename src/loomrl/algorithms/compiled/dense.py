"""Dense layers and networks of them: forward and backward, all float32 and C-contiguous.

A *network* is a flat vector of parameters and a `Layout` that says what lies where. N rows, I inputs, O outputs; hidden
widths are padded to a multiple of LANES with units whose weights are zero: they put out f(0) = 0, get no gradient and
stay zero. Hidden layers keep their weights as (I, O), the last layer as (O, I): in both the wide side is contiguous.

Example:

    layout = Layout(num_inputs=4, hidden_sizes=(64, 64), num_outputs=2)
    forward(parameters, layout.table, TANH, x, hidden, out)           # x (N, 4) -> hidden, out (N, 2)
    backward(parameters, layout.table, TANH, x, hidden, d_out, gradient, scratch)

with `hidden` and `scratch` made by `layout.hidden(N)` and `layout.scratch(N)`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import activate, multiply_by_derivative
from loomrl.algorithms.compiled.jit import compiled
from loomrl.algorithms.compiled.tiles import LANES, ROWS, VECTORS, dot_tile, product_tile, transpose_tile

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]
Table = NDArray[np.int64]

INPUTS, OUTPUTS, WEIGHTS, BIAS = 0, 1, 2, 3  # columns of a layout's table: sizes, and where the parameters begin

_block, _column = product_tile(ROWS, VECTORS), product_tile(ROWS, 1)
_row_block, _row_column = product_tile(1, VECTORS), product_tile(1, 1)
_dots, _dot = dot_tile(ROWS), dot_tile(1)
_square = transpose_tile()
_WIDE = LANES * VECTORS


def padded(width: int) -> int:
    """A layer's width rounded up to a multiple of LANES."""
    return -(-width // LANES) * LANES


class Layout:
    """Where the parameters of a dense network lie in a vector. `sizes` are the widths of inputs, hidden layers and
    outputs, `widths` the same with hidden ones padded; `table` (L, 4) int64 is what kernels read: of each layer inputs,
    outputs, and where weights and biases begin. `end` is the place after the last parameter."""

    def __init__(self, num_inputs: int, hidden_sizes: Sequence[int], num_outputs: int, start: int = 0) -> None:
        """`start` is where the network's parameters begin, for several networks in one vector."""
        self.sizes = [num_inputs, *hidden_sizes, num_outputs]
        self.widths = [num_inputs, *(padded(size) for size in hidden_sizes), num_outputs]
        rows, at = [], start
        for inputs, outputs in zip(self.widths, self.widths[1:], strict=False):
            rows.append((inputs, outputs, at, at + inputs * outputs))
            at += inputs * outputs + outputs
        self.table: Table = np.array(rows, np.int64)
        self.end = at

    def hidden(self, num_rows: int) -> Vector:
        """A new array for the activations of all hidden layers on `num_rows` rows at most."""
        return np.zeros(num_rows * sum(self.widths[1:-1]), np.float32)

    def scratch(self, num_rows: int) -> Vector:
        """A new array for the intermediate results of `backward` on `num_rows` rows."""
        widest = max(self.widths[1:-1])
        return np.zeros(2 * num_rows * widest + widest * widest, np.float32)

    def matrices(self) -> list[tuple[int, int, int]]:
        """A triple for each layer: where its weights begin in the vector, their rows and their columns, padding
        included."""
        *hidden, last = self.table.tolist()
        return [(start, inputs, outputs) for inputs, outputs, start, _ in hidden] + [(last[2], last[1], last[0])]

    def views(self, vector: Vector, layer: int) -> tuple[Matrix, Vector]:
        """A layer's weights (O, I), as torch has them, and biases (O,), where they lie in a vector, without padding."""
        inputs, outputs, weights_at, bias_at = self.table[layer].tolist()
        weights = vector[weights_at:bias_at]
        last = layer == len(self.table) - 1
        weights = weights.reshape(outputs, inputs) if last else weights.reshape(inputs, outputs).T
        size_in, size_out = self.sizes[layer], self.sizes[layer + 1]
        return weights[:size_out, :size_in], vector[bias_at : bias_at + size_out]


# --- products ---------------------------------------------------------------------------------------------------


@compiled
def _product(start: Vector, a: Matrix, a_row: int, a_k: int, depth: int, b: Matrix, c: Matrix) -> None:
    """c (M, N) = start (N,) + A b (depth, N), where A[row, k] is a's element `row * a_row + k * a_k`."""
    num_rows, width = c.shape
    column = 0
    while column < width:
        wide = column + _WIDE <= width
        row = 0
        while row < num_rows:
            a_at, c_at = row * a_row, row * width + column
            if row + ROWS <= num_rows:
                if wide:
                    _block(start, column, a, a_at, a_row, a_k, b, column, width, c, c_at, width, depth)
                else:
                    _column(start, column, a, a_at, a_row, a_k, b, column, width, c, c_at, width, depth)
                row += ROWS
            else:
                if wide:
                    _row_block(start, column, a, a_at, a_row, a_k, b, column, width, c, c_at, width, depth)
                else:
                    _row_column(start, column, a, a_at, a_row, a_k, b, column, width, c, c_at, width, depth)
                row += 1
        column += _WIDE if wide else LANES


@compiled
def affine(x: Matrix, weights: Matrix, bias: Vector, out: Matrix) -> None:
    """out (N, O) = x (N, I) weights (I, O) + bias (O,); O a multiple of LANES."""
    _product(bias, x, x.shape[1], 1, x.shape[1], weights, out)


@compiled
def matmul(a: Matrix, b: Matrix, out: Matrix) -> None:
    """out (M, N) = a (M, K) b (K, N); N a multiple of LANES."""
    _product(np.zeros(b.shape[1], np.float32), a, a.shape[1], 1, a.shape[1], b, out)


@compiled
def matmul_transposed(a: Matrix, b: Matrix, out: Matrix) -> None:
    """out (M, N) = a^T b, of a (K, M) and b (K, N); N a multiple of LANES."""
    _product(np.zeros(b.shape[1], np.float32), a, 1, a.shape[1], a.shape[0], b, out)


@compiled
def project(x: Matrix, weights: Matrix, out: Matrix) -> None:
    """out (N, O) = x (N, I) weights^T, of weights (O, I) for few outputs; I a multiple of LANES."""
    num_rows, depth = x.shape
    num_outputs = weights.shape[0]
    row = 0
    while row + ROWS <= num_rows:
        for output in range(num_outputs):
            _dots(x, row * depth, depth, weights, output * depth, out, row * num_outputs + output, num_outputs, depth)
        row += ROWS
    while row < num_rows:
        for output in range(num_outputs):
            _dot(x, row * depth, depth, weights, output * depth, out, row * num_outputs + output, num_outputs, depth)
        row += 1


@compiled
def sum_rows(a: Matrix, out: Vector) -> None:
    """out (N,) = the sum of the rows of a (M, N)."""
    for column in range(a.shape[1]):
        out[column] = a[0, column]
    for row in range(1, a.shape[0]):
        for column in range(a.shape[1]):
            out[column] += a[row, column]


@compiled
def transpose(a: Matrix, out: Matrix) -> None:
    """out (N, M) = a^T, of a (M, N); both multiples of LANES."""
    num_rows, num_columns = a.shape
    for row in range(0, num_rows, LANES):
        for column in range(0, num_columns, LANES):
            _square(a, row * num_columns + column, num_columns, out, column * num_rows + row, num_rows)


# --- networks ---------------------------------------------------------------------------------------------------


@compiled
def forward(parameters: Vector, table: Table, activation: int, x: Matrix, hidden: Vector, out: Matrix) -> None:
    """x (N, I) -> the activations of all hidden layers, one after the other in `hidden`, and out (N, O)."""
    num_rows, last = x.shape[0], table.shape[0] - 1
    inputs, at = x, 0
    for layer in range(last):
        num_inputs, num_outputs, weights_at, bias_at = table[layer]
        weights = parameters[weights_at:bias_at].reshape((num_inputs, num_outputs))
        values = hidden[at : at + num_rows * num_outputs]
        outputs = values.reshape((num_rows, num_outputs))
        affine(inputs, weights, parameters[bias_at : bias_at + num_outputs], outputs)
        activate(values, activation)
        inputs, at = outputs, at + num_rows * num_outputs
    num_inputs, num_outputs, weights_at, bias_at = table[last]
    project(inputs, parameters[weights_at:bias_at].reshape((num_outputs, num_inputs)), out)
    for row in range(num_rows):
        for output in range(num_outputs):
            out[row, output] += parameters[bias_at + output]


@compiled
def backward(
    parameters: Vector, table: Table, activation: int, x: Matrix, hidden: Vector, d_out: Matrix, gradient: Vector,
    scratch: Vector,
) -> None:  # fmt: skip
    """Gradients of all parameters, written into `gradient` at their places, from `d_out` (N, O) after `forward`.

    `scratch` then begins with the gradient (N, O of the first layer) before the first activation.
    """
    num_rows, last = x.shape[0], table.shape[0] - 1
    num_inputs, num_outputs, weights_at, bias_at = table[last]
    at, half = -num_rows * num_inputs, 0  # where this layer's inputs begin; room for the widest layer
    for layer in range(last):
        at += num_rows * table[layer, OUTPUTS]
        half = max(half, num_rows * table[layer, OUTPUTS])
    inputs = hidden[at : at + num_rows * num_inputs].reshape((num_rows, num_inputs))
    matmul_transposed(d_out, inputs, gradient[weights_at:bias_at].reshape((num_outputs, num_inputs)))
    sum_rows(d_out, gradient[bias_at : bias_at + num_outputs])
    begin = 0 if last % 2 == 1 else half  # the two halves take turns so that the first layer's is at the start
    slope = scratch[begin : begin + num_rows * num_inputs]
    matmul(d_out, parameters[weights_at:bias_at].reshape((num_outputs, num_inputs)), slope.reshape(inputs.shape))
    for layer in range(last - 1, -1, -1):
        num_inputs, num_outputs, weights_at, bias_at = table[layer]
        multiply_by_derivative(slope, hidden[at : at + num_rows * num_outputs], activation)
        d_outputs = slope.reshape((num_rows, num_outputs))
        sum_rows(d_outputs, gradient[bias_at : bias_at + num_outputs])
        d_weights = gradient[weights_at:bias_at].reshape((num_inputs, num_outputs))
        if layer == 0:
            matmul_transposed(x, d_outputs, d_weights)
        else:
            at -= num_rows * num_inputs
            matmul_transposed(
                hidden[at : at + num_rows * num_inputs].reshape((num_rows, num_inputs)), d_outputs, d_weights
            )
            turned = scratch[2 * half : 2 * half + num_inputs * num_outputs].reshape((num_outputs, num_inputs))
            transpose(parameters[weights_at:bias_at].reshape((num_inputs, num_outputs)), turned)
            begin = half - begin
            slope = scratch[begin : begin + num_rows * num_inputs]
            matmul(d_outputs, turned, slope.reshape((num_rows, num_inputs)))

"""Bounds of a network on a box, as machine code: bound propagation backwards from what is asked (CROWN).

Zhang et al., arXiv 1811.00866; for graphs with branches, Xu et al., arXiv 2002.12920; optimised slopes, Xu et al.,
arXiv 2011.13824. Each activation is held between two lines on the interval its argument can take. A linear function of
activations is carried back through those lines, neuron by neuron, until it is one of the input, which the box bounds
exactly. Whatever has coefficient 0, as all that is switched off, costs nothing: that is why this is no matrix product.

Neurons are numbered through all layers. A column is an input (the first `num_inputs`) or a neuron's activation.
"""

from math import tanh
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.system.machine_code import njit

Vector = NDArray[np.float64]
RELU, LEAKY_RELU, CLIP, TANH, SIGMOID = range(5)
_FLAT = 1e-12  # a narrower interval has no chord worth the name
_BISECTIONS = 40
_STEPS, _RATE, _DECAY = 5, 0.4, 0.75  # of the slopes' ascent


class Packed(NamedTuple):
    """A network as arrays; N neurons, C = num_inputs + N columns, K layers, M outputs.

    `weights` (N, C) and `bias` (N,) are the affine function before each activation; `kind` (N,) is which activation it
    is, `least` and `most` (N,) are the ends of a clip, `leak` (N,) is the slope of a leaky ReLU. `layers` (K, 4) hold
    the first neuron, one past the last, the first column that is used, and one past the last. `output` is (M, C),
    `output_bias` (M,).
    """

    weights: NDArray[np.float64]  # (N, C): the affine function before each activation
    bias: Vector  # (N,)
    layers: NDArray[np.int64]  # (K, 4): first neuron, one past the last, first column used, one past the last
    kind: NDArray[np.int64]  # (N,)
    least: Vector  # (N,): of a clip
    most: Vector
    leak: Vector  # (N,): of a leaky ReLU
    output: NDArray[np.float64]  # (M, C)
    output_bias: Vector  # (M,)
    num_inputs: int


compiled = njit(nogil=True)


# --- activations ------------------------------------------------------------------------------------------------


@compiled
def activate(kind, value, least, most, leak):  # type: ignore[no-untyped-def]
    """An activation of a number, as a number.

    `kind` is RELU, LEAKY_RELU, CLIP, TANH or SIGMOID; `least` and `most` are the ends of a clip, `leak` is the slope of
    a leaky ReLU.
    """
    if kind == RELU:
        return max(value, 0.0)
    if kind == LEAKY_RELU:
        return value if value > 0.0 else leak * value
    if kind == CLIP:
        return min(max(value, least), most)
    if kind == TANH:
        return tanh(value)
    return 0.5 + 0.5 * tanh(0.5 * value)


@compiled
def relax(kind, low, high, least, most, leak):  # type: ignore[no-untyped-def]
    """Slope and offset of a line below the activation on [low, high], then of one above: four numbers. The other
    arguments are those of `activate`."""
    if kind == RELU:
        return _relax_relu(low, high)
    if kind == LEAKY_RELU:
        below, under, above, over = _relax_relu(low, high)
        rest = 1.0 - leak
        return leak + rest * below, rest * under, leak + rest * above, rest * over
    if kind == CLIP:
        return _relax_clip(low, high, least, most)
    if kind == TANH:
        return _relax_tanh(low, high)
    below, under, above, over = _relax_tanh(0.5 * low, 0.5 * high)
    return 0.25 * below, 0.5 + 0.5 * under, 0.25 * above, 0.5 + 0.5 * over


@compiled
def _relax_relu(low, high):  # type: ignore[no-untyped-def]
    """From above the chord; from below a line through the origin, the one that leaves the smaller area."""
    if low >= 0.0:
        return 1.0, 0.0, 1.0, 0.0
    if high <= 0.0:
        return 0.0, 0.0, 0.0, 0.0
    chord = high / (high - low)
    return (1.0 if high > -low else 0.0), 0.0, chord, -chord * low


@compiled
def _relax_clip(low, high, least, most):  # type: ignore[no-untyped-def]
    """Where it bends at its top, lines from above go through that corner; the same at the bottom, from below."""
    first, last = min(max(low, least), most), min(max(high, least), most)
    chord = (last - first) / (high - low) if high - low > _FLAT else 0.0
    below, under, above, over = chord, first - chord * low, chord, last - chord * high
    if high > most:
        above = (1.0 if most - low > high - most else 0.0) if low >= least else (most - least) / (most - low)
        over = most - above * most
    if low < least:
        below = (1.0 if high - least > least - low else 0.0) if high <= most else (most - least) / (high - least)
        under = least - below * least
    return below, under, above, over


@compiled
def _relax_tanh(low, high):  # type: ignore[no-untyped-def]
    """Tanh is odd: what lies above it on [-high, -low] lies below it, mirrored, on [low, high]."""
    above, over = _above_tanh(low, high)
    below, under = _above_tanh(-high, -low)
    return below, -under, above, over


@compiled
def _above_tanh(low, high):  # type: ignore[no-untyped-def]
    """Tanh is convex up to 0 and concave from there.

    The chord lies above it unless the curve leaves the upper end less steeply than the chord arrives: then a tangent
    does, at the middle where all is concave, else at the point whose tangent passes through the lower end.
    """
    at_low, at_high = tanh(low), tanh(high)
    if high - low <= _FLAT:
        return 0.0, at_high
    chord = (at_high - at_low) / (high - low)
    if high <= 0.0 or (low < 0.0 and 1.0 - at_high * at_high >= chord):
        return chord, max(at_high - chord * high, at_low - chord * low)
    touching = 0.5 * (low + high)
    if low < 0.0:
        left, touching = 0.0, high
        for _ in range(_BISECTIONS):
            middle = 0.5 * (left + touching)
            value = tanh(middle)
            if (1.0 - value * value) * (middle - low) > value - at_low:
                left = middle
            else:
                touching = middle
    value = tanh(touching)
    slope = 1.0 - value * value
    return slope, value - slope * touching


# --- bounds -----------------------------------------------------------------------------------------------------


@compiled
def _carry(net, columns, offset, first_layer, below, under, above, over):  # type: ignore[no-untyped-def]
    """Carry `columns @ (inputs, activations) + offset` back to the inputs, in place; returns the offset."""
    d = net.num_inputs
    for layer in range(first_layer, -1, -1):
        begin, end, first, last = net.layers[layer]
        for neuron in range(begin, end):
            weight = columns[d + neuron]
            if weight == 0.0:
                continue
            if weight > 0.0:
                offset += weight * under[neuron]
                weight *= below[neuron]
            else:
                offset += weight * over[neuron]
                weight *= above[neuron]
            if weight != 0.0:
                offset += weight * net.bias[neuron]
                row = net.weights[neuron]
                for column in range(first, last):
                    columns[column] += weight * row[column]
    return offset


@compiled
def _least(columns, offset, low, high):  # type: ignore[no-untyped-def]
    """The least value of a linear function on a box."""
    for index in range(low.size):
        slope = columns[index]
        offset += slope * (low[index] if slope > 0.0 else high[index])
    return offset


@compiled
def bound_box(net, low, high, rows, limits, floor, ceiling, least, slopes, score, scratch, reach):  # type: ignore[no-untyped-def]
    """Bounds from below of `rows @ outputs - limits` on a box, into `least` (R,) and `slopes` (R, d); returns nothing.

    `net` is a `Packed`; `low` and `high` (d,) are the box, `rows` (R, M) and `limits` (R,) what is asked. `slopes` are
    those of the linear function of the inputs whose least value on the box each bound is.

    `floor` and `ceiling`, (N,), hold the intervals of a larger box and get those of this one; an activation that is
    linear on the larger one keeps it. `score` (d,) gets each input's share in what the bounds give away, for the row
    that is nearest to being excluded. `scratch` is (5, C), `reach` (N, d): room to work in.
    """
    d = net.num_inputs
    below, under, above, over, columns = scratch
    for layer in range(len(net.layers)):
        begin, end, first, last = net.layers[layer]
        for neuron in range(begin, end):
            kind = net.kind[neuron]
            if not (kind <= LEAKY_RELU and (floor[neuron] >= 0.0 or ceiling[neuron] <= 0.0)):
                reach[neuron] = 0.0
                for sign in (1.0, -1.0):
                    columns[: d + begin] = 0.0
                    for column in range(first, last):
                        columns[column] = sign * net.weights[neuron, column]
                    offset = _carry(net, columns, sign * net.bias[neuron], layer - 1, below, under, above, over)
                    value = _least(columns, offset, low, high)
                    for index in range(d):
                        reach[neuron, index] += abs(columns[index]) * (high[index] - low[index])
                    if sign > 0.0:
                        floor[neuron] = max(floor[neuron], value)
                    else:
                        ceiling[neuron] = max(min(ceiling[neuron], -value), floor[neuron])
            below[neuron], under[neuron], above[neuron], over[neuron] = relax(
                kind, floor[neuron], ceiling[neuron], net.least[neuron], net.most[neuron], net.leak[neuron]
            )
    best = 0
    for row in range(rows.shape[0]):
        offset = _ask(net, rows[row], limits[row], columns, below, under, above, over)
        least[row] = _least(columns, offset, low, high)
        slopes[row] = columns[:d]
        if least[row] > least[best]:
            best = row
    if rows.shape[0] > 1:
        _ask(net, rows[best], limits[best], columns, below, under, above, over)
    if least[best] <= 0.0:
        _steepen(
            net, low, high, rows[best], limits[best], floor, ceiling, below, under, above, over, columns, best, least,
            slopes,
        )  # fmt: skip
    _share(net, columns, below, under, above, over, floor, ceiling, reach, score)


@compiled
def _argument(net, neuron, first, last, value):  # type: ignore[no-untyped-def]
    """What a neuron's activation is taken of, from the columns' values."""
    argument = net.bias[neuron]
    for column in range(first, last):
        argument += net.weights[neuron, column] * value[column]
    return argument


@compiled
def _combined(net, row, columns):  # type: ignore[no-untyped-def]
    """`row @ outputs` as a function of the columns, into `columns`; returns the constant."""
    columns[:] = 0.0
    constant = 0.0
    for output in range(row.size):
        if row[output] != 0.0:
            constant += row[output] * net.output_bias[output]
            for column in range(columns.size):
                columns[column] += row[output] * net.output[output, column]
    return constant


@compiled
def _ask(net, row, limit, columns, below, under, above, over):  # type: ignore[no-untyped-def]
    """Carry `row @ outputs - limit` back to the inputs, into `columns`; returns the offset."""
    offset = _combined(net, row, columns) - limit
    return _carry(net, columns, offset, len(net.layers) - 1, below, under, above, over)


@compiled
def _steepen(  # type: ignore[no-untyped-def]
    net, low, high, row, limit, floor, ceiling, below, under, above, over, columns, number, least, slopes
):  # fmt: skip
    """Projected gradient ascent of a row's bound in the free slopes `below` of ReLUs; keeps what is best.

    At the input where the bound is least, its derivative in a slope is the neuron's coefficient times its argument, as
    the lines say it is (the envelope theorem).
    """
    d = net.num_inputs
    value, gradient = np.empty(columns.size), np.zeros(net.bias.size)
    for step in range(_STEPS):
        for index in range(d):
            value[index] = low[index] if columns[index] > 0.0 else high[index]
        steepest = 0.0
        for layer in range(len(net.layers)):
            begin, end, first, last = net.layers[layer]
            for neuron in range(begin, end):
                argument = _argument(net, neuron, first, last, value)
                weight = columns[d + neuron]
                if weight > 0.0:
                    value[d + neuron] = below[neuron] * argument + under[neuron]
                else:
                    value[d + neuron] = above[neuron] * argument + over[neuron]
                is_free = net.kind[neuron] == RELU and floor[neuron] < 0.0 < ceiling[neuron] and weight > 0.0
                gradient[neuron] = weight * argument if is_free else 0.0
                steepest = max(steepest, abs(gradient[neuron]))
        if steepest == 0.0:
            return
        for neuron in range(net.bias.size):
            if gradient[neuron] != 0.0:
                move = _RATE * _DECAY**step * gradient[neuron] / (abs(gradient[neuron]) + 0.01 * steepest)
                below[neuron] = min(max(below[neuron] + move, 0.0), 1.0)
        offset = _ask(net, row, limit, columns, below, under, above, over)
        found = _least(columns, offset, low, high)
        if found > least[number]:
            least[number] = found
            slopes[number] = columns[:d]
        if found > 0.0:
            return


@compiled
def _share(net, columns, below, under, above, over, floor, ceiling, reach, score):  # type: ignore[no-untyped-def]
    """How much of what the lines give away is due to each input's width, into `score` (d,)."""
    d = net.num_inputs
    score[:] = 0.0
    for neuron in range(net.bias.size):
        weight = abs(columns[d + neuron])
        if weight == 0.0:
            continue
        wide = above[neuron] - below[neuron]
        apart = over[neuron] - under[neuron]
        gap = max(abs(wide * floor[neuron] + apart), abs(wide * ceiling[neuron] + apart))
        total = reach[neuron].sum()
        if gap > 0.0 and total > 0.0:
            for index in range(d):
                score[index] += weight * gap * reach[neuron, index] / total


@compiled
def bound_boxes(net, low, high, rows, limits, case, floor, ceiling, least, slopes, score):  # type: ignore[no-untyped-def]
    """`bound_box` of each of B boxes, whose arrays have B rows each; what it finds is written into the arrays.

    `case` (B,) is the number of each box's case: `rows` (cases, R, M) and `limits` (cases, R) are those of its case.
    """
    scratch = np.empty((5, net.num_inputs + net.bias.size))
    reach = np.zeros((net.bias.size, net.num_inputs))
    for box in range(low.shape[0]):
        bound_box(
            net, low[box], high[box], rows[case[box]], limits[case[box]], floor[box], ceiling[box], least[box],
            slopes[box], score[box], scratch, reach,
        )  # fmt: skip


# --- values -----------------------------------------------------------------------------------------------------


@compiled
def _differentiate(kind, value, least, most, leak):  # type: ignore[no-untyped-def]
    """The derivative of an activation."""
    if kind == RELU:
        return 1.0 if value > 0.0 else 0.0
    if kind == LEAKY_RELU:
        return 1.0 if value > 0.0 else leak
    if kind == CLIP:
        return 1.0 if least < value < most else 0.0
    if kind == TANH:
        return 1.0 - tanh(value) ** 2
    return 0.25 * (1.0 - tanh(0.5 * value) ** 2)


@compiled
def excess(net, inputs, rows, limits, case, worst, gradient):  # type: ignore[no-untyped-def]
    """By how much each input (B, d) misses the limit it misses most, into `worst` (B,), and the gradient of that, into
    `gradient` (B, d).

    `worst` is at most 0 where all limits are met. `case` (B,) is the number of each input's case, whose `rows`
    (cases, R, M) and `limits` (cases, R) count.
    """
    d = net.num_inputs
    num_columns = d + net.bias.size
    value, before, columns = np.empty(num_columns), np.empty(net.bias.size), np.empty(num_columns)
    outputs = np.empty(net.output_bias.size)
    for index in range(inputs.shape[0]):
        value[:d] = inputs[index]
        for layer in range(len(net.layers)):
            begin, end, first, last = net.layers[layer]
            for neuron in range(begin, end):
                before[neuron] = _argument(net, neuron, first, last, value)
                value[d + neuron] = activate(
                    net.kind[neuron], before[neuron], net.least[neuron], net.most[neuron], net.leak[neuron]
                )
        for output in range(outputs.size):
            total = net.output_bias[output]
            for column in range(num_columns):
                total += net.output[output, column] * value[column]
            outputs[output] = total
        worst[index] = -np.inf
        chosen = 0
        for row in range(limits.shape[1]):
            missed = -limits[case[index], row]
            for output in range(outputs.size):
                missed += rows[case[index], row, output] * outputs[output]
            if missed > worst[index]:
                worst[index], chosen = missed, row
        _combined(net, rows[case[index], chosen], columns)
        for layer in range(len(net.layers) - 1, -1, -1):
            begin, end, first, last = net.layers[layer]
            for neuron in range(begin, end):
                weight = columns[d + neuron]
                if weight != 0.0:
                    weight *= _differentiate(
                        net.kind[neuron], before[neuron], net.least[neuron], net.most[neuron], net.leak[neuron]
                    )
                    for column in range(first, last):
                        columns[column] += weight * net.weights[neuron, column]
        gradient[index] = columns[:d]


# --- slopes -----------------------------------------------------------------------------------------------------


@compiled
def _slopes(kind, low, high, least, most, leak):  # type: ignore[no-untyped-def]
    """The least and the largest slope of an activation on an interval."""
    if kind in (TANH, SIGMOID):
        first, second = _differentiate(kind, low, least, most, leak), _differentiate(kind, high, least, most, leak)
        steepest = _differentiate(kind, 0.0, least, most, leak) if low <= 0.0 <= high else max(first, second)
        return min(first, second), steepest
    if kind == CLIP:
        if low > least and high < most:
            return 1.0, 1.0
        return 0.0, (0.0 if high < least or low > most else 1.0)
    flat = leak if kind == LEAKY_RELU else 0.0
    if low > 0.0:
        return 1.0, 1.0
    return flat, (flat if high < 0.0 else 1.0)


@compiled
def bound_slope(net, floor, ceiling, row, component):  # type: ignore[no-untyped-def]
    """The least and the greatest derivative of row @ outputs by one input, where arguments of activations lie in
    [floor, ceiling], (N,) each; `component` is the input's index.

    With slopes s = a + e, |e| <= r: the derivative is that with slopes a, plus the sum over neurons of g e (m + d),
    with g the gradient behind the neuron and m the derivative before it, both with slopes a, and d what the slopes
    before it change m by. Only d is bounded coarsely, by intervals: it is of second order.
    """
    d = net.num_inputs
    num_columns = d + net.bias.size
    middle, spread = np.empty(net.bias.size), np.empty(net.bias.size)
    before, error = np.empty(net.bias.size), np.empty(net.bias.size)
    value, loose, columns = np.zeros(num_columns), np.zeros(num_columns), np.empty(num_columns)
    value[component] = 1.0
    for layer in range(len(net.layers)):
        begin, end, first, last = net.layers[layer]
        for neuron in range(begin, end):
            total, deviation = 0.0, 0.0
            for column in range(first, last):
                weight = net.weights[neuron, column]
                if weight != 0.0:
                    total += weight * value[column]
                    deviation += abs(weight) * loose[column]
            lowest, highest = _slopes(
                net.kind[neuron], floor[neuron], ceiling[neuron], net.least[neuron], net.most[neuron], net.leak[neuron]
            )
            middle[neuron], spread[neuron] = 0.5 * (lowest + highest), 0.5 * (highest - lowest)
            before[neuron], error[neuron] = total, deviation
            value[d + neuron] = middle[neuron] * total
            loose[d + neuron] = middle[neuron] * deviation + spread[neuron] * (abs(total) + deviation)
    _combined(net, row, columns)
    centre = 0.0
    for column in range(num_columns):
        centre += columns[column] * value[column]
    radius = 0.0
    for layer in range(len(net.layers) - 1, -1, -1):
        begin, end, first, last = net.layers[layer]
        for neuron in range(begin, end):
            behind = columns[d + neuron]
            if behind != 0.0:
                radius += abs(behind) * spread[neuron] * (abs(before[neuron]) + error[neuron])
                for column in range(first, last):
                    columns[column] += behind * middle[neuron] * net.weights[neuron, column]
    return centre - radius, centre + radius


@compiled
def bound_slopes(net, floor, ceiling, row, component, lowest, highest):  # type: ignore[no-untyped-def]
    """`bound_slope` of each of B boxes, into `lowest` and `highest` (B,); `floor` and `ceiling` are (B, N)."""
    for box in range(len(lowest)):
        lowest[box], highest[box] = bound_slope(net, floor[box], ceiling[box], row, component)

"""The actor's gradient in soft actor-critic: back through the lower critic of each row, and through the sample."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import ONE, ZERO, multiply_by_derivative
from loomrl.algorithms.compiled.dense import INPUTS, OUTPUTS, WEIGHTS, Vector, backward, matmul, project
from loomrl.algorithms.compiled.jit import compiled
from loomrl.algorithms.compiled.sac_memory import (
    ACTOR_LOSS,
    ENTROPY,
    IMAGINED,
    TWO,
    VALUE,
    Batches,
    SACNetworks,
    SACWorkspace,
    Settings,
    bounded_log_std,
    copy_into,
    half_of,
    hidden_widths,
)


@compiled
def actor_gradient(
    half: int, number: int, networks: SACNetworks, batches: Batches, work: SACWorkspace, settings: Settings
) -> None:
    """Write a half of the rows' share of the gradient of mean(alpha log pi - min Q) by the actor's parameters into
    `work.actor_gradients[half]`; adds loss and entropy to `work.sums`."""
    num_rows, num_features = batches.obs.shape[1], batches.obs.shape[2]
    begin, end = half_of(half, num_rows)
    for critic in range(2):
        rows = _judged(critic, begin, end, work.values[IMAGINED], work.chosen[half])
        if rows.size:
            _action_slopes(critic, rows, num_features, networks, work, settings, work.critic_scratch[half])
    temperature, share = np.exp(networks.log_temperature[VALUE]), np.float32(1.0 / num_rows)
    moments, noise, width = work.moments[0], batches.noise[number, 0], work.d_action.shape[1]
    loss, total = 0.0, 0.0
    for row in range(begin, end):
        for column in range(width):
            raw = moments[row, width + column]
            log_std = bounded_log_std(raw, settings)
            action = work.inputs[IMAGINED, row, num_features + column]
            # d tanh(u)/du = 1 - a^2, and d(-log(1 - tanh(u)^2))/du = 2a
            slope = share * (temperature * TWO * action - work.d_action[row, column] * (ONE - action * action))
            work.d_moments[row, column] = slope
            free = settings.log_std_low <= raw <= settings.log_std_high
            by_log_std = slope * np.exp(log_std) * noise[row, column] - share * temperature
            work.d_moments[row, width + column] = by_log_std if free else ZERO
        lower = min(work.values[IMAGINED, 0, row, 0], work.values[IMAGINED, 1, row, 0])
        loss += temperature * work.log_prob[0, row] - lower
        total += work.log_prob[0, row]
    work.sums[half, ACTOR_LOSS] += loss / num_rows
    work.sums[half, ENTROPY] -= total / num_rows
    backward(
        networks.actor, networks.actor_table, settings.activation, batches.obs[number][begin:end],
        work.actor_hidden[half], work.d_moments[begin:end], work.actor_gradients[half], work.actor_scratch[half],
    )  # fmt: skip


@compiled
def _judged(critic: int, begin: int, end: int, values: NDArray[Any], chosen: NDArray[Any]) -> NDArray[Any]:
    """The rows whose lower value is this critic's; equals are the first one's."""
    count = 0
    for row in range(begin, end):
        if (values[0, row, 0] <= values[1, row, 0]) == (critic == 0):
            chosen[count] = row
            count += 1
    return chosen[:count]


@compiled
def _action_slopes(
    critic: int, rows: NDArray[Any], num_features: int, networks: SACNetworks, work: SACWorkspace, settings: Settings,
    scratch: Vector,
) -> None:  # fmt: skip
    """d_action of some rows: the critic's value by the action. Only these rows go back through it, and no weights."""
    table, hidden = networks.critic_tables[critic], work.critic_hidden[critic]
    last, count, num_rows = table.shape[0] - 1, rows.size, work.d_action.shape[0]
    widest, total = hidden_widths(table)
    half = num_rows * widest
    width, weights_at = table[last, INPUTS], table[last, WEIGHTS]
    slope = scratch[: count * width]
    for position in range(count):
        copy_into(networks.critics[weights_at : weights_at + width], slope, position * width)
    begin, turned_at = 0, work.turned.shape[1]
    hidden_at = num_rows * total
    for layer in range(last - 1, -1, -1):
        num_inputs, num_outputs = table[layer, INPUTS], table[layer, OUTPUTS]
        hidden_at -= num_rows * num_outputs
        for position in range(count):
            at = hidden_at + rows[position] * num_outputs
            multiply_by_derivative(
                slope[position * num_outputs : (position + 1) * num_outputs], hidden[at : at + num_outputs],
                settings.activation,
            )  # fmt: skip
        if layer > 0:
            turned_at -= num_inputs * num_outputs
            turned = work.turned[critic][turned_at : turned_at + num_inputs * num_outputs]
            begin = half - begin
            before = scratch[begin : begin + count * num_inputs]
            matmul(
                slope.reshape((count, num_outputs)), turned.reshape((num_outputs, num_inputs)),
                before.reshape((count, num_inputs)),
            )  # fmt: skip
            slope = before
    _project_to_action(critic, rows, num_features, slope, networks, work, scratch[2 * half :])


@compiled
def _project_to_action(
    critic: int,
    rows: NDArray[Any],
    num_features: int,
    slope: Vector,
    networks: SACNetworks,
    work: SACWorkspace,
    room: Vector,
) -> None:
    table, width, count = networks.critic_tables[critic], work.d_action.shape[1], rows.size
    num_outputs = table[0, OUTPUTS]
    at = table[0, WEIGHTS] + num_features * num_outputs
    weights = networks.critics[at : at + width * num_outputs].reshape((width, num_outputs))
    slopes = room[: count * width].reshape((count, width))
    project(slope.reshape((count, num_outputs)), weights, slopes)
    for position in range(count):
        copy_into(slopes[position], work.d_action[rows[position]], 0)

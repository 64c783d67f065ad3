"""DQN's learning as kernels: greedy actions, and gradient steps on batches of transitions.
`loomrl.algorithms.dqn.learner` is the same in torch, and what these kernels are tested against.

B transitions, n actions, N quantiles each (1: expected returns). The network puts out n * N values; a duelling one
N values of the state first, then n * N advantages. Its two streams are one hidden layer: the first half of its units
feeds the state's value, the second half the advantages, and the weights between the other pairs stay zero.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import ONE, ZERO
from loomrl.algorithms.compiled.adam import adam_step, norm
from loomrl.algorithms.compiled.dense import INPUTS, OUTPUTS, WEIGHTS, Matrix, Table, Vector, backward, forward
from loomrl.algorithms.compiled.jit import compiled

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
HALF = np.float32(0.5)

# Columns of the metrics of a gradient step.
LOSS, TD_ERROR, Q_VALUE, GRAD_NORM = range(4)


class DQNNetworks(NamedTuple):
    """The online network, its target network, and what learning keeps beside them.

    `parameters`, `target`, `gradient`, and Adam's moments `first` and `second` are vectors (P,) of one layout, whose
    table is `table`. `hidden` and `scratch` are room for a batch, as `Layout` makes them.
    """

    parameters: Vector
    target: Vector  # parameters of the target network
    gradient: Vector
    first: Vector  # Adam's moments
    second: Vector
    table: Table  # of the layout of both networks
    hidden: Vector  # room for a batch, as `scratch`
    scratch: Vector


class Shape(NamedTuple):
    """How the network's outputs are read: the number of its activation in `ACTIVATIONS`, of actions, of quantiles for
    each action (1: expected returns), and whether the first outputs are the state's value and the others advantages."""

    activation: int
    num_actions: int
    num_quantiles: int
    dueling: bool


class TransitionBatch(NamedTuple):
    """B transitions, and room for what is computed of them.

    `obs` and `next_obs` are (B, I), `action` (B,) indices from 0; `reward`, `terminated`, `discount` and the importance
    `weight` are (B,). Kernels write to `out` and `choosing` (B, outputs of the network), `targets` (B, N) and the
    absolute `td_error` (B,).
    """

    obs: Matrix  # (B, I)
    action: NDArray[np.int64]  # (B,) indices
    reward: Vector  # (B,)
    next_obs: Matrix  # (B, I)
    terminated: NDArray[np.bool_]  # (B,)
    discount: Vector  # (B,)
    weight: Vector  # (B,)
    out: Matrix  # (B, outputs of the network)
    choosing: Matrix  # as `out`
    targets: Matrix  # (B, N)
    td_error: NDArray[np.float64]  # (B,) absolute, for priorities


@compiled
def quantiles(out: Matrix, row: int, action: int, shape: Shape, result: Vector) -> None:
    """Write the values (N,) of one action, from one row of the network's outputs, into `result`."""
    num_actions, num_quantiles = shape.num_actions, shape.num_quantiles
    if not shape.dueling:
        for part in range(num_quantiles):
            result[part] = out[row, action * num_quantiles + part]
        return
    share = ONE / np.float32(num_actions)
    for part in range(num_quantiles):
        mean = ZERO
        for other in range(num_actions):
            mean += out[row, (1 + other) * num_quantiles + part]
        result[part] = out[row, part] + out[row, (1 + action) * num_quantiles + part] - mean * share


@compiled
def best_action(out: Matrix, row: int, shape: Shape) -> int:
    """The index of the action of highest value in one row of the network's outputs; of equal ones the first. Duelling
    needs advantages only: the state's own value is the same for all."""
    skipped = shape.num_quantiles if shape.dueling else 0
    best, highest = 0, ZERO
    for action in range(shape.num_actions):
        total = ZERO
        for part in range(shape.num_quantiles):
            total += out[row, skipped + action * shape.num_quantiles + part]
        if action == 0 or total > highest:
            best, highest = action, total
    return best


@compiled
def num_hidden(table: Table) -> int:
    """The number of units in all hidden layers together."""
    total = 0
    for layer in range(table.shape[0] - 1):
        total += table[layer, OUTPUTS]
    return total


@compiled
def greedy(networks: DQNNetworks, shape: Shape, obs: Matrix, out: Matrix, action: NDArray[np.int64]) -> None:
    """Write the indices of the greedy actions for observations (B, I), any number of them, into `action` (B,). `out`
    (B, outputs) then holds the network's outputs."""
    num_rows = obs.shape[0]
    room = networks.hidden.size // num_hidden(networks.table)
    for first in range(0, num_rows, room):
        last = min(first + room, num_rows)
        forward(
            networks.parameters, networks.table, shape.activation, obs[first:last], networks.hidden, out[first:last]
        )
    for row in range(num_rows):
        action[row] = best_action(out, row, shape)


@compiled
def td_targets(networks: DQNNetworks, shape: Shape, batch: TransitionBatch, double: bool) -> None:
    """Write the bootstrapped targets (B, N) of a batch into `batch.targets`: reward plus the discounted values of the
    next state's best action, which the online network chooses where `double` is set, else the target network."""
    forward(networks.target, networks.table, shape.activation, batch.next_obs, networks.hidden, batch.out)
    choosing = batch.out
    if double:
        choosing = batch.choosing
        forward(networks.parameters, networks.table, shape.activation, batch.next_obs, networks.hidden, choosing)
    for row in range(batch.reward.size):
        successor = batch.targets[row]
        quantiles(batch.out, row, best_action(choosing, row, shape), shape, successor)
        factor = ZERO if batch.terminated[row] else batch.discount[row]
        for part in range(shape.num_quantiles):
            successor[part] = batch.reward[row] + factor * successor[part]


@compiled
def _huber(value: np.float32, target: np.float32) -> tuple[np.float32, np.float32]:
    """Huber's loss with threshold 1 and its derivative by the value."""
    error = value - target
    if abs(error) < ONE:
        return HALF * error * error, error
    return abs(error) - HALF, ONE if error > ZERO else -ONE


@compiled
def _quantile_huber(values: Vector, targets: Vector, slope: Vector) -> np.float32:
    """The loss of one transition's quantiles (N,) and its derivatives."""
    size = values.size
    share, loss = ONE / np.float32(size), ZERO
    for part in range(size):
        midpoint = (np.float32(part) + HALF) * share
        slope[part] = ZERO
        for other in range(size):
            term, derivative = _huber(values[part], targets[other])
            below = ONE if targets[other] < values[part] else ZERO
            weight = abs(midpoint - below)
            loss += weight * term * share
            slope[part] += weight * derivative * share
    return loss


@compiled
def td_losses(shape: Shape, batch: TransitionBatch, metrics: NDArray[np.float64]) -> None:
    """Replace `batch.out`, the values of `batch.obs`, by the loss's derivatives. Fills `batch.td_error`, and of
    `metrics` (4,) the loss, the mean TD error and the mean value."""
    num_rows, num_actions, num_quantiles = batch.reward.size, shape.num_actions, shape.num_quantiles
    values, slope = np.empty(num_quantiles, np.float32), np.empty(num_quantiles, np.float32)
    share, centre = ONE / np.float32(num_rows), ONE / np.float32(num_actions)
    loss, errors, total = 0.0, 0.0, 0.0
    for row in range(num_rows):
        action, targets = batch.action[row], batch.targets[row]
        quantiles(batch.out, row, action, shape, values)
        if num_quantiles == 1:
            term, slope[0] = _huber(values[0], targets[0])
        else:
            term = _quantile_huber(values, targets, slope)
        value, target = 0.0, 0.0
        for part in range(num_quantiles):
            value += values[part]
            target += targets[part]
        batch.td_error[row] = abs(target - value) / num_quantiles
        loss += batch.weight[row] * term
        errors += batch.td_error[row]
        total += value / num_quantiles
        for column in range(batch.out.shape[1]):
            batch.out[row, column] = ZERO
        for part in range(num_quantiles):
            step = slope[part] * batch.weight[row] * share
            if not shape.dueling:
                batch.out[row, action * num_quantiles + part] = step
                continue
            batch.out[row, part] = step
            for other in range(num_actions):
                chosen = ONE if other == action else ZERO
                batch.out[row, (1 + other) * num_quantiles + part] = step * (chosen - centre)
    metrics[LOSS], metrics[TD_ERROR], metrics[Q_VALUE] = loss / num_rows, errors / num_rows, total / num_rows


@compiled
def clear_crossings(gradient: Vector, table: Table, num_quantiles: int) -> None:
    """Set those entries of a duelling network's gradient to zero, in place, that would tie its two streams: value
    outputs see the first half of the last hidden units only, advantages the second."""
    last = table.shape[0] - 1
    num_inputs, num_outputs, at = table[last, INPUTS], table[last, OUTPUTS], table[last, WEIGHTS]
    half = num_inputs // 2
    for output in range(num_outputs):
        unseen = half if output < num_quantiles else 0
        for unit in range(unseen, unseen + half):
            gradient[at + output * num_inputs + unit] = ZERO


@compiled
def gradient_step(
    networks: DQNNetworks, shape: Shape, batch: TransitionBatch, double: bool, num_steps: int, learning_rate: float,
    max_grad_norm: float, tau: float, metrics: NDArray[np.float64],
) -> None:  # fmt: skip
    """Take one step of Adam, the `num_steps`-th, on the loss of a batch, in place; then the target network follows by
    `tau`, if that is above 0. Fills `metrics` (4,): loss, mean TD error, mean value, and the gradient's norm before
    clipping."""
    batch_gradient(networks, shape, batch, double, metrics)
    metrics[GRAD_NORM] = apply_gradient(networks, num_steps, learning_rate, max_grad_norm, tau)


@compiled
def batch_gradient(
    networks: DQNNetworks, shape: Shape, batch: TransitionBatch, double: bool, metrics: NDArray[np.float64]
) -> None:
    """The first half of `gradient_step`: fills `networks.gradient`, and `metrics` (4,) but for the gradient's norm."""
    td_targets(networks, shape, batch, double)
    forward(networks.parameters, networks.table, shape.activation, batch.obs, networks.hidden, batch.out)
    td_losses(shape, batch, metrics)
    backward(
        networks.parameters, networks.table, shape.activation, batch.obs, networks.hidden, batch.out,
        networks.gradient, networks.scratch,
    )  # fmt: skip
    if shape.dueling:
        clear_crossings(networks.gradient, networks.table, shape.num_quantiles)


@compiled
def apply_gradient(
    networks: DQNNetworks, num_steps: int, learning_rate: float, max_grad_norm: float, tau: float
) -> float:
    """The second half of `gradient_step`: clip the gradient, take an Adam step with it, and let the target follow by
    `tau`, if above 0. Returns the L2 norm the gradient had before clipping."""
    length = norm(networks.gradient)
    adam_step(
        networks.parameters, networks.gradient, networks.first, networks.second, num_steps, learning_rate,
        BETA1, BETA2, EPSILON, min(1.0, max_grad_norm / (length + 1e-6)),
    )  # fmt: skip
    if tau > 0.0:
        polyak_update(networks.target, networks.parameters, tau)
    return length


@compiled
def polyak_update(target: Vector, parameters: Vector, tau: float) -> None:
    """Polyak averaging in place: target += tau (parameters - target)."""
    factor = np.float32(tau)
    for index in range(target.size):
        target[index] += factor * (parameters[index] - target[index])

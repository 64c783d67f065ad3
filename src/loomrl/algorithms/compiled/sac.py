"""Gradient steps of soft actor-critic on continuous actions. `loomrl.algorithms.sac_torch` is the same with autograd,
and what these kernels are tested against.

A step is five phases of two tasks each: halves of the batch where the actor works, one critic each where the critics
do. One thread does both tasks, or two threads share them: the sums are the same, so the bits are.

G gradient steps, N rows in each, D features, A actions, P parameters. Actions lie in [-1, 1].
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import ONE, ZERO, multiply_by_derivative, tanh32
from loomrl.algorithms.compiled.adam import adam_step
from loomrl.algorithms.compiled.barrier import meet
from loomrl.algorithms.compiled.dense import (
    BIAS,
    INPUTS,
    OUTPUTS,
    WEIGHTS,
    Matrix,
    Table,
    Vector,
    backward,
    forward,
    matmul,
    project,
    transpose,
)
from loomrl.algorithms.compiled.jit import compiled

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
HALF, TWO = np.float32(0.5), np.float32(2.0)
LOG_TWO, HALF_LOG_TWO_PI = np.float32(math.log(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))
SEEN, NEXT, IMAGINED = 0, 1, 2  # whose inputs, and values, the critics' are
VALUE, FIRST, SECOND, SLOPE = 0, 1, 2, 3  # of the log temperature: itself, Adam's moments, its gradient
CRITIC_LOSS, Q_VALUE, ACTOR_LOSS, ENTROPY = range(4)  # columns of the sums


class Networks(NamedTuple):
    """What is learnt, and what Adam remembers of it."""

    actor: Vector  # (P,)
    actor_first: Vector
    actor_second: Vector
    actor_table: Table
    critics: Vector  # both, one after the other
    critics_first: Vector
    critics_second: Vector
    targets: Vector
    critic_tables: NDArray[np.int64]  # (2, L, 4)
    log_temperature: Vector  # (4,): see VALUE


class Batches(NamedTuple):
    """G batches."""

    obs: NDArray[np.float32]  # (G, N, D) features
    next_obs: NDArray[np.float32]  # (G, N, D)
    action: NDArray[np.float32]  # (G, N, A)
    reward: Matrix  # (G, N)
    keep: Matrix  # (G, N): discount, or 0 where the episode terminated
    noise: NDArray[np.float32]  # (G, 2, N, A): standard normal, for the actions in obs and in next_obs


class Work(NamedTuple):
    """Room for what is computed in a step."""

    inputs: NDArray[np.float32]  # (3, N, D + A) of the critics
    values: NDArray[np.float32]  # (3, 2, N, 1): of each input by each critic
    slopes: NDArray[np.float32]  # (2, N, 1): of the loss by the values
    moments: NDArray[np.float32]  # (2, N, 2A): the actor's outputs for obs and next_obs
    log_prob: Matrix  # (2, N)
    d_moments: Matrix  # (N, 2A)
    d_action: Matrix  # (N, A): of the lower critic's value by the action
    chosen: NDArray[np.int64]  # (2, N): rows of a half that one critic judges
    actor_hidden: Matrix  # (2, ...): a half's activations
    actor_scratch: Matrix
    actor_gradients: Matrix  # (2, P): a half's share
    critic_hidden: Matrix  # (2, ...): a critic's activations
    critic_scratch: Matrix
    critics_gradient: Vector
    turned: Matrix  # (2, ...): a critic's hidden weights, transposed
    sums: NDArray[np.float64]  # (2, 4): metrics, summed over the steps


class Settings(NamedTuple):
    """What does not change within a call."""

    activation: int
    log_std_low: np.float32
    log_std_high: np.float32
    tau: np.float32
    target_entropy: float
    learns_temperature: bool
    actor_learning_rate: float
    critic_learning_rate: float
    temperature_learning_rate: float
    first_step: int  # Adam's number of the first step


@compiled
def learn(
    thread: int, num_threads: int, counter: NDArray[Any], networks: Networks, batches: Batches, work: Work,
    settings: Settings,
) -> None:  # fmt: skip
    """Take G gradient steps: call it with thread 0, ..., num_threads - 1 at once and `counter` (1,) at zero."""
    meeting = 0
    for number in range(batches.obs.shape[0]):
        step = settings.first_step + number
        for task in range(thread, 2, num_threads):
            _imagine(task, number, networks, batches, work, settings)
        meet(counter, meeting + 1, num_threads)
        for task in range(thread, 2, num_threads):
            _evaluate(task, networks, work, settings)
        meet(counter, meeting + 2, num_threads)
        for task in range(thread, 2, num_threads):
            _improve_critic(task, number, step, networks, batches, work, settings)
        meet(counter, meeting + 3, num_threads)
        for task in range(thread, 2, num_threads):
            _actor_gradient(task, number, networks, batches, work, settings)
        meet(counter, meeting + 4, num_threads)
        for task in range(thread, 2, num_threads):
            _improve_actor(task, step, networks, work, settings)
        meet(counter, meeting + 5, num_threads)
        meeting += 5


@compiled
def sample(
    actor: Vector, table: Table, features: Matrix, noise: Matrix, hidden: Vector, moments: Matrix, action: Matrix,
    settings: Settings,
) -> None:  # fmt: skip
    """Features (N, D) and noise (N, A) -> actions (N, A) in [-1, 1]."""
    forward(actor, table, settings.activation, features, hidden, moments)
    for row in range(action.shape[0]):
        for column in range(action.shape[1]):
            log_std = _log_std(moments[row, action.shape[1] + column], settings)
            action[row, column] = tanh32(moments[row, column] + np.exp(log_std) * noise[row, column])


# --- phases -----------------------------------------------------------------------------------------------------


@compiled
def _imagine(half: int, number: int, networks: Networks, batches: Batches, work: Work, settings: Settings) -> None:
    """Inputs for the critics: what was done, and what the actor would do in next_obs and in obs.

    The activations in obs, which come last, stay for the actor's gradient.
    """
    begin, end = _half(half, batches.obs.shape[1])
    _critic_inputs(batches.obs[number], batches.action[number], begin, end, work.inputs[SEEN])
    for kind in (NEXT, IMAGINED):
        obs = batches.next_obs[number] if kind == NEXT else batches.obs[number]
        which = 1 if kind == NEXT else 0
        moments, noise = work.moments[which], batches.noise[number, which]
        forward(
            networks.actor, networks.actor_table, settings.activation, obs[begin:end], work.actor_hidden[half],
            moments[begin:end],
        )  # fmt: skip
        inputs = work.inputs[kind]
        num_features, width = obs.shape[1], noise.shape[1]
        for row in range(begin, end):
            _copy(obs[row], inputs[row], 0)
            work.log_prob[which, row] = _squash(moments[row], noise[row], inputs[row, num_features:], width, settings)


@compiled
def _squash(moments: Vector, noise: Vector, action: Vector, width: int, settings: Settings) -> np.float32:
    """Writes the action and returns its log-density; log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))."""
    total = ZERO
    for column in range(width):
        log_std = _log_std(moments[width + column], settings)
        before = moments[column] + np.exp(log_std) * noise[column]
        action[column] = tanh32(before)
        twice = -TWO * before
        softplus = max(twice, ZERO) + np.log1p(np.exp(-abs(twice)))
        log_normal = -HALF * noise[column] * noise[column] - log_std - HALF_LOG_TWO_PI
        total += log_normal - TWO * (LOG_TWO - before - softplus)
    return total


@compiled
def _evaluate(critic: int, networks: Networks, work: Work, settings: Settings) -> None:
    """The target network's values of what the actor would do next."""
    forward(
        networks.targets, networks.critic_tables[critic], settings.activation, work.inputs[NEXT],
        work.critic_hidden[critic], work.values[NEXT, critic],
    )  # fmt: skip


@compiled
def _improve_critic(
    critic: int, number: int, step: int, networks: Networks, batches: Batches, work: Work, settings: Settings
) -> None:
    """One critic's step and its target's, then its opinion of what the actor imagines."""
    table, hidden = networks.critic_tables[critic], work.critic_hidden[critic]
    values, slopes = work.values[SEEN, critic], work.slopes[critic]
    forward(networks.critics, table, settings.activation, work.inputs[SEEN], hidden, values)
    num_rows = values.shape[0]
    temperature, share = np.exp(networks.log_temperature[VALUE]), np.float32(1.0 / num_rows)
    loss, total = 0.0, 0.0
    for row in range(num_rows):
        lower = min(work.values[NEXT, 0, row, 0], work.values[NEXT, 1, row, 0])
        soft_value = lower - temperature * work.log_prob[1, row]
        error = values[row, 0] - (batches.reward[number, row] + batches.keep[number, row] * soft_value)
        slopes[row, 0] = share * error
        loss += error * error
        total += values[row, 0]
    work.sums[critic, CRITIC_LOSS] += 0.5 * loss / num_rows
    work.sums[critic, Q_VALUE] += 0.5 * total / num_rows
    backward(
        networks.critics, table, settings.activation, work.inputs[SEEN], hidden, slopes, work.critics_gradient,
        work.critic_scratch[critic],
    )  # fmt: skip
    begin, end = table[0, WEIGHTS], table[-1, BIAS] + table[-1, OUTPUTS]
    adam_step(
        networks.critics[begin:end], work.critics_gradient[begin:end], networks.critics_first[begin:end],
        networks.critics_second[begin:end], step, settings.critic_learning_rate, BETA1, BETA2, EPSILON, 1.0,
    )  # fmt: skip
    _follow(networks.targets[begin:end], networks.critics[begin:end], settings.tau)
    imagined = work.values[IMAGINED, critic]
    forward(networks.critics, table, settings.activation, work.inputs[IMAGINED], hidden, imagined)
    _turn(networks.critics, table, work.turned[critic])


@compiled
def _follow(targets: Vector, critics: Vector, tau: np.float32) -> None:
    for index in range(targets.size):
        targets[index] += tau * (critics[index] - targets[index])


@compiled
def _turn(parameters: Vector, table: Table, turned: Vector) -> None:
    """The weights between hidden layers, transposed, one after the other."""
    at = 0
    for layer in range(1, table.shape[0] - 1):
        num_inputs, num_outputs, weights_at, bias_at = table[layer]
        weights = parameters[weights_at:bias_at].reshape((num_inputs, num_outputs))
        transpose(weights, turned[at : at + num_inputs * num_outputs].reshape((num_outputs, num_inputs)))
        at += num_inputs * num_outputs


@compiled
def _actor_gradient(
    half: int, number: int, networks: Networks, batches: Batches, work: Work, settings: Settings
) -> None:
    """A half's share of the gradient of mean(alpha log pi - min Q) by the actor's parameters."""
    num_rows, num_features = batches.obs.shape[1], batches.obs.shape[2]
    begin, end = _half(half, num_rows)
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
            log_std = _log_std(raw, settings)
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
    critic: int, rows: NDArray[Any], num_features: int, networks: Networks, work: Work, settings: Settings,
    scratch: Vector,
) -> None:  # fmt: skip
    """d_action of some rows: the critic's value by the action. Only these rows go back through it, and no weights."""
    table, hidden = networks.critic_tables[critic], work.critic_hidden[critic]
    last, count, num_rows = table.shape[0] - 1, rows.size, work.d_action.shape[0]
    widest, total = _hidden_widths(table)
    half = num_rows * widest
    width, weights_at = table[last, INPUTS], table[last, WEIGHTS]
    slope = scratch[: count * width]
    for position in range(count):
        _copy(networks.critics[weights_at : weights_at + width], slope, position * width)
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
    critic: int, rows: NDArray[Any], num_features: int, slope: Vector, networks: Networks, work: Work, room: Vector
) -> None:
    table, width, count = networks.critic_tables[critic], work.d_action.shape[1], rows.size
    num_outputs = table[0, OUTPUTS]
    at = table[0, WEIGHTS] + num_features * num_outputs
    weights = networks.critics[at : at + width * num_outputs].reshape((width, num_outputs))
    slopes = room[: count * width].reshape((count, width))
    project(slope.reshape((count, num_outputs)), weights, slopes)
    for position in range(count):
        _copy(slopes[position], work.d_action[rows[position]], 0)


@compiled
def _improve_actor(task: int, step: int, networks: Networks, work: Work, settings: Settings) -> None:
    """Half of the actor's parameters; the second task also moves the temperature."""
    begin, end = _half(task, networks.actor.size)
    gradient = work.actor_gradients[0][begin:end]
    other = work.actor_gradients[1][begin:end]
    for index in range(gradient.size):
        gradient[index] += other[index]
    adam_step(
        networks.actor[begin:end], gradient, networks.actor_first[begin:end], networks.actor_second[begin:end],
        step, settings.actor_learning_rate, BETA1, BETA2, EPSILON, 1.0,
    )  # fmt: skip
    if task == 1 and settings.learns_temperature:
        state, total = networks.log_temperature, 0.0
        for row in range(work.log_prob.shape[1]):
            total -= work.log_prob[0, row]
        state[SLOPE] = total / work.log_prob.shape[1] - settings.target_entropy
        adam_step(
            state[VALUE:FIRST], state[SLOPE:], state[FIRST:SECOND], state[SECOND:SLOPE], step,
            settings.temperature_learning_rate, BETA1, BETA2, EPSILON, 1.0,
        )  # fmt: skip


# --- small things -----------------------------------------------------------------------------------------------


@compiled
def _half(which: int, size: int) -> tuple[int, int]:
    middle = size // 2
    return (0, middle) if which == 0 else (middle, size)


@compiled
def _log_std(raw: np.float32, settings: Settings) -> np.float32:
    return min(max(raw, settings.log_std_low), settings.log_std_high)


@compiled
def _critic_inputs(obs: Matrix, action: Matrix, begin: int, end: int, inputs: Matrix) -> None:
    for row in range(begin, end):
        _copy(obs[row], inputs[row], 0)
        _copy(action[row], inputs[row], obs.shape[1])


@compiled
def _copy(source: Vector, target: Vector, at: int) -> None:
    for index in range(source.size):
        target[at + index] = source[index]


@compiled
def _hidden_widths(table: Table) -> tuple[int, int]:
    """Of the hidden layers: the widest, and all together."""
    widest, total = 0, 0
    for layer in range(table.shape[0] - 1):
        widest = max(widest, table[layer, OUTPUTS])
        total += table[layer, OUTPUTS]
    return widest, total

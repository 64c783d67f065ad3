"""PPO's learning as kernels: values of a rollout, and its gradient steps. `loomrl.algorithms.ppo.learner` is the same
in torch, and what these kernels are tested against.

N transitions, I features, A columns of the actor's output: logits of a discrete action, or the means of a Gaussian whose
log standard deviations are the last A parameters. Actor and critic are two networks in one vector of parameters.
"""

import math

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import ONE, ZERO
from loomrl.algorithms.compiled.adam import adam_step, norm
from loomrl.algorithms.compiled.dense import Matrix, Table, Vector, backward, forward
from loomrl.algorithms.compiled.jit import compiled

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5
LOG_STD_LOW, LOG_STD_HIGH = -20.0, 2.0  # networks.LOG_STD_BOUNDS
CHUNK = 256  # rows evaluated at once: their activations stay in the cache

# What `gradient_steps` is told, in the order of its `settings`.
SETTINGS = (
    "learning_rate", "clip_epsilon", "value_clip_epsilon", "value_loss_coef", "entropy_coef", "max_grad_norm",
)  # fmt: skip
LEARNING_RATE, CLIP, VALUE_CLIP, VALUE_COEF, ENTROPY_COEF, MAX_NORM = range(len(SETTINGS))

# Columns of the metrics of a gradient step.
POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, GRAD_NORM = range(6)


@compiled
def evaluate(parameters: Vector, table: Table, activation: int, x: Matrix, hidden: Vector, out: Matrix) -> None:
    """One network's outputs (N, O) for any number of rows; `hidden` has room for CHUNK."""
    for first in range(0, x.shape[0], CHUNK):
        last = min(first + CHUNK, x.shape[0])
        forward(parameters, table, activation, x[first:last], hidden, out[first:last])


@compiled
def _log_softmax(logits: Vector) -> None:
    """In place, (A,)."""
    highest = logits[0]
    for column in range(1, logits.size):
        highest = max(highest, logits[column])
    total = ZERO
    for column in range(logits.size):
        total += np.exp(logits[column] - highest)
    shift = highest + np.log(total)
    for column in range(logits.size):
        logits[column] -= shift


@compiled
def log_std(parameters: Vector, num_actions: int) -> Vector:
    """The Gaussian's log standard deviations, bounded (A,): the last parameters."""
    bounded = np.empty(num_actions, np.float32)
    for column in range(num_actions):
        value = parameters[parameters.size - num_actions + column]
        bounded[column] = min(max(value, np.float32(LOG_STD_LOW)), np.float32(LOG_STD_HIGH))
    return bounded


@compiled
def log_probabilities(parameters: Vector, is_discrete: bool, out: Matrix, index: Indices, sample: Matrix, log_prob: Vector) -> None:  # fmt: skip
    """Log-probabilities (N,) of actions under the actor's outputs (N, A), which are overwritten."""
    num_actions = out.shape[1]
    if is_discrete:
        for row in range(out.shape[0]):
            _log_softmax(out[row])
            log_prob[row] = out[row, index[row]]
        return
    logs = log_std(parameters, num_actions)
    constant = np.float32(HALF_LOG_TAU * num_actions)
    for row in range(out.shape[0]):
        squares, sum_logs = ZERO, ZERO
        for column in range(num_actions):
            scaled = (sample[row, column] - out[row, column]) * np.exp(-logs[column])
            squares += scaled * scaled
            sum_logs += logs[column]
        log_prob[row] = np.float32(-0.5) * squares - sum_logs - constant


@compiled
def _surrogate(ratio: np.float32, advantage: np.float32, clip: np.float32) -> tuple[np.float32, np.float32]:
    """The clipped surrogate of one transition and its derivative by the ratio."""
    low, high = ONE - clip, ONE + clip
    clipped_ratio = min(max(ratio, low), high)
    plain, clipped = advantage * ratio, advantage * clipped_ratio
    if plain < clipped or (low <= ratio and ratio <= high):
        return plain, advantage
    return clipped, ZERO


@compiled
def _value_term(value: np.float32, target: np.float32, old: np.float32, clip: np.float32) -> tuple[np.float32, np.float32]:  # fmt: skip
    """The squared error of one value and its derivative; with `clip` > 0 the worse of it and that of a value kept near
    the old one."""
    error = value - target
    if clip > ZERO:
        move = value - old
        near_error = old + min(max(move, -clip), clip) - target
        if near_error * near_error > error * error:
            slope = np.float32(2.0) * near_error if abs(move) <= clip else ZERO
            return near_error * near_error, slope
    return error * error, np.float32(2.0) * error


@compiled
def _actor_loss(
    parameters: Vector, is_discrete: bool, out: Matrix, index: Indices, sample: Matrix, old_log_prob: Vector,
    advantage: Vector, settings: Array, d_log_std: Vector, metrics: Array,
) -> None:  # fmt: skip
    """Replaces the actor's outputs (n, A) by the loss's derivatives, and fills the actor's columns of the metrics."""
    num_rows, num_actions = out.shape
    clip, share = np.float32(settings[CLIP]), np.float32(1.0 / num_rows)
    entropy_share = np.float32(settings[ENTROPY_COEF] / num_rows)
    logs = np.zeros(0, np.float32) if is_discrete else log_std(parameters, num_actions)
    precision = np.exp(-logs)
    constant = np.float32(HALF_LOG_TAU * num_actions)
    policy_loss, entropies, divergence, num_clipped = 0.0, 0.0, 0.0, 0
    d_log_std[:] = ZERO
    for row in range(num_rows):
        action = index[row] if is_discrete else 0
        if is_discrete:
            _log_softmax(out[row])
            log_prob = out[row, action]
        else:
            squares, sum_logs = ZERO, ZERO
            for column in range(num_actions):
                out[row, column] = (sample[row, column] - out[row, column]) * precision[column]
                squares += out[row, column] * out[row, column]
                sum_logs += logs[column]
            log_prob = np.float32(-0.5) * squares - sum_logs - constant
        log_ratio = log_prob - old_log_prob[row]
        ratio = np.exp(log_ratio)
        gain, slope = _surrogate(ratio, advantage[row], clip)
        policy_loss -= gain
        divergence += ratio - ONE - log_ratio
        if abs(ratio - ONE) > clip:
            num_clipped += 1
        d_log_prob = -slope * ratio * share
        if is_discrete:
            entropy = ZERO
            for column in range(num_actions):
                entropy -= np.exp(out[row, column]) * out[row, column]
            entropies += entropy
            for column in range(num_actions):
                log_p = out[row, column]
                p = np.exp(log_p)
                chosen = ONE if column == action else ZERO
                out[row, column] = d_log_prob * (chosen - p) + entropy_share * p * (log_p + entropy)
        else:
            for column in range(num_actions):
                scaled = out[row, column]
                out[row, column] = d_log_prob * scaled * precision[column]
                d_log_std[column] += d_log_prob * (scaled * scaled - ONE)
    if not is_discrete:
        entropy = np.float32(constant + np.float32(0.5) * num_actions)
        for column in range(num_actions):
            entropy += logs[column]
            d_log_std[column] -= np.float32(settings[ENTROPY_COEF])
            raw = parameters[parameters.size - num_actions + column]
            if raw < LOG_STD_LOW or raw > LOG_STD_HIGH:
                d_log_std[column] = ZERO
        entropies = entropy * num_rows
    metrics[POLICY_LOSS], metrics[ENTROPY] = policy_loss / num_rows, entropies / num_rows
    metrics[KL], metrics[CLIPPED] = divergence / num_rows, num_clipped / num_rows


@compiled
def _critic_loss(value: Vector, target: Vector, old_value: Vector, settings: Array) -> float:
    """Replaces values (n,) by the weighted loss's derivatives; returns the loss."""
    clip, share = np.float32(settings[VALUE_CLIP]), np.float32(settings[VALUE_COEF] / value.size)
    loss = 0.0
    for row in range(value.size):
        term, slope = _value_term(value[row], target[row], old_value[row], clip)
        loss += term
        value[row] = slope * share
    return loss / value.size


@compiled
def gradient_steps(
    parameters: Vector, gradient: Vector, first: Vector, second: Vector, num_steps: int,
    actor: Table, critic: Table, activation: int, is_discrete: bool,
    x: Matrix, index: Indices, sample: Matrix, old_log_prob: Vector, old_value: Vector, advantage: Vector,
    target: Vector, permutations: NDArray[np.int64], batch_size: int, settings: Array,
    hidden: Vector, scratch: Vector, metrics: Array,
) -> int:  # fmt: skip
    """Epochs over a rollout: one for each row of `permutations` (E, N), in batches of `batch_size` (the last smaller).

    `parameters`, and Adam's moments `first` and `second` after `num_steps` steps, change in place. `metrics` (steps, 6)
    has a row for each gradient step. Returns Adam's number of steps.
    """
    num_rows, num_actions = x.shape[0], actor[-1, 1]
    batch_x = np.empty((batch_size, x.shape[1]), np.float32)
    batch_out, batch_value = np.empty((batch_size, num_actions), np.float32), np.empty((batch_size, 1), np.float32)
    batch_index, batch_sample = np.empty(batch_size, np.int64), np.empty((batch_size, sample.shape[1]), np.float32)
    columns = np.empty((4, batch_size), np.float32)
    d_log_std = gradient[gradient.size - (0 if is_discrete else num_actions) :]
    row_of_metrics = 0
    for epoch in range(permutations.shape[0]):
        for begin in range(0, num_rows, batch_size):
            size = min(batch_size, num_rows - begin)
            for row in range(size):
                source = permutations[epoch, begin + row]
                batch_x[row] = x[source]
                if is_discrete:
                    batch_index[row] = index[source]
                else:
                    batch_sample[row] = sample[source]
                columns[0, row], columns[1, row] = old_log_prob[source], advantage[source]
                columns[2, row], columns[3, row] = target[source], old_value[source]
            rows, out, value = batch_x[:size], batch_out[:size], batch_value[:size]
            step_metrics = metrics[row_of_metrics]
            forward(parameters, actor, activation, rows, hidden, out)
            _actor_loss(
                parameters, is_discrete, out, batch_index, batch_sample, columns[0], columns[1], settings, d_log_std,
                step_metrics,
            )  # fmt: skip
            backward(parameters, actor, activation, rows, hidden, out, gradient, scratch)
            forward(parameters, critic, activation, rows, hidden, value)
            step_metrics[VALUE_LOSS] = _critic_loss(value.reshape(size), columns[2], columns[3], settings)
            backward(parameters, critic, activation, rows, hidden, value, gradient, scratch)
            length = norm(gradient)
            step_metrics[GRAD_NORM] = length
            num_steps += 1
            shrink = min(1.0, settings[MAX_NORM] / (length + 1e-6))
            adam_step(
                parameters, gradient, first, second, num_steps, settings[LEARNING_RATE], BETA1, BETA2, EPSILON, shrink
            )
            row_of_metrics += 1
    return num_steps

"""PPO's learning as kernels: values of a rollout, and its gradient steps. `loomrl.algorithms.ppo.learner` is the same
in torch, and what these kernels are tested against.

N transitions, I features, A columns of the actor's output: logits of a discrete action, or the means of a Gaussian
whose log standard deviations are the last A parameters. Actor and critic are two networks in one vector of parameters.
Everything is done in blocks of at most BLOCK rows, whose activations stay in the processor's cache.
"""

import math

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import ONE, ZERO
from loomrl.algorithms.compiled.adam import adam_step, norm
from loomrl.algorithms.compiled.dense import OUTPUTS, Matrix, Table, Vector, backward, forward
from loomrl.algorithms.compiled.jit import compiled

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5
LOG_STD_LOW, LOG_STD_HIGH = -20.0, 2.0  # networks.LOG_STD_BOUNDS
BLOCK = 128  # rows

# What `gradient_steps` is told, in the order of its `settings`.
SETTINGS = (
    "learning_rate", "clip_epsilon", "value_clip_epsilon", "value_loss_coef", "entropy_coef", "max_grad_norm",
)  # fmt: skip
LEARNING_RATE, CLIP, VALUE_CLIP, VALUE_COEF, ENTROPY_COEF, MAX_NORM = range(len(SETTINGS))

# Columns of the metrics of a gradient step.
POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, GRAD_NORM = range(6)


@compiled
def evaluate(parameters: Vector, table: Table, activation: int, x: Matrix, hidden: Vector, out: Matrix) -> None:
    """One network's outputs (N, O) for any number of rows."""
    for first in range(0, x.shape[0], BLOCK):
        last = min(first + BLOCK, x.shape[0])
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
def log_probabilities(
    parameters: Vector, is_discrete: bool, out: Matrix, index: Indices, sample: Matrix, log_prob: Vector
) -> None:
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
def _value_term(
    value: np.float32, target: np.float32, old: np.float32, clip: np.float32
) -> tuple[np.float32, np.float32]:
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
def _discrete_loss(
    out: Matrix, index: Indices, old_log_prob: Vector, advantage: Vector, num_total: int, settings: Array,
    metrics: Array,
) -> None:  # fmt: skip
    """Replaces logits (n, A) by the loss's derivatives; adds to the metrics. The loss is a mean over `num_total`."""
    num_rows, num_actions = out.shape
    clip, share = np.float32(settings[CLIP]), np.float32(1.0 / num_total)
    entropy_share = np.float32(settings[ENTROPY_COEF] / num_total)
    for row in range(num_rows):
        _log_softmax(out[row])
        entropy = ZERO
        for column in range(num_actions):
            entropy -= np.exp(out[row, column]) * out[row, column]
        d_log_prob = _transition(out[row, index[row]], old_log_prob[row], advantage[row], clip, num_total, metrics)
        for column in range(num_actions):
            log_p = out[row, column]
            p = np.exp(log_p)
            chosen = ONE if column == index[row] else ZERO
            out[row, column] = d_log_prob * share * (chosen - p) + entropy_share * p * (log_p + entropy)
        metrics[ENTROPY] += entropy / num_total


@compiled
def _gaussian_loss(
    parameters: Vector, out: Matrix, sample: Matrix, old_log_prob: Vector, advantage: Vector, num_total: int,
    settings: Array, d_log_std: Vector, metrics: Array,
) -> None:  # fmt: skip
    """Replaces means (n, A) by the loss's derivatives; adds to the metrics and to `d_log_std` (A,)."""
    num_rows, num_actions = out.shape
    clip, share = np.float32(settings[CLIP]), np.float32(1.0 / num_total)
    logs = log_std(parameters, num_actions)
    precision = np.exp(-logs)
    constant = np.float32(HALF_LOG_TAU * num_actions) + logs.sum()
    for row in range(num_rows):
        squares = ZERO
        for column in range(num_actions):
            out[row, column] = (sample[row, column] - out[row, column]) * precision[column]
            squares += out[row, column] * out[row, column]
        log_prob = np.float32(-0.5) * squares - constant
        slope = _transition(log_prob, old_log_prob[row], advantage[row], clip, num_total, metrics) * share
        for column in range(num_actions):
            scaled = out[row, column]
            out[row, column] = slope * scaled * precision[column]
            d_log_std[column] += slope * (scaled * scaled - ONE)
    entropy = constant + np.float32(0.5) * num_actions
    metrics[ENTROPY] += entropy * num_rows / num_total
    for column in range(num_actions):
        d_log_std[column] -= np.float32(settings[ENTROPY_COEF] * num_rows / num_total)


@compiled
def _transition(
    log_prob: np.float32, old_log_prob: np.float32, advantage: np.float32, clip: np.float32, num_total: int,
    metrics: Array,
) -> np.float32:  # fmt: skip
    """The derivative of one transition's loss by its log-probability, not yet divided by the number of them."""
    log_ratio = log_prob - old_log_prob
    ratio = np.exp(log_ratio)
    gain, slope = _surrogate(ratio, advantage, clip)
    metrics[POLICY_LOSS] -= gain / num_total
    metrics[KL] += (ratio - ONE - log_ratio) / num_total  # http://joschu.net/blog/kl-approx.html, estimator k3
    if abs(ratio - ONE) > clip:
        metrics[CLIPPED] += 1.0 / num_total
    return -slope * ratio


@compiled
def _critic_loss(
    value: Vector, target: Vector, old_value: Vector, num_total: int, settings: Array, metrics: Array
) -> None:
    """Replaces values (n,) by the weighted loss's derivatives; adds to the metrics."""
    clip, share = np.float32(settings[VALUE_CLIP]), np.float32(settings[VALUE_COEF] / num_total)
    for row in range(value.size):
        term, slope = _value_term(value[row], target[row], old_value[row], clip)
        metrics[VALUE_LOSS] += term / num_total
        value[row] = slope * share


@compiled
def _gather(source: Matrix, rows: Indices, out: Matrix) -> None:
    """Some rows of a matrix."""
    for place in range(rows.size):
        for column in range(source.shape[1]):
            out[place, column] = source[rows[place], column]


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
    has a row of zeros for each gradient step. Returns Adam's number of steps.
    """
    num_rows = x.shape[0]
    block_gradient = np.zeros_like(gradient)
    row_of_metrics = 0
    for epoch in range(permutations.shape[0]):
        for begin in range(0, num_rows, batch_size):
            end = min(begin + batch_size, num_rows)
            for at in range(begin, end, BLOCK):
                into = gradient if at == begin else block_gradient
                _block_gradient(
                    parameters, into, actor, critic, activation, is_discrete, x, index, sample, old_log_prob,
                    old_value, advantage, target, permutations[epoch, at : min(at + BLOCK, end)], end - begin,
                    settings, hidden, scratch, metrics[row_of_metrics],
                )  # fmt: skip
                if at != begin:
                    for position in range(gradient.size):
                        gradient[position] += block_gradient[position]
            length = norm(gradient)
            metrics[row_of_metrics, GRAD_NORM] = length
            num_steps += 1
            shrink = min(1.0, settings[MAX_NORM] / (length + 1e-6))
            adam_step(
                parameters, gradient, first, second, num_steps, settings[LEARNING_RATE], BETA1, BETA2, EPSILON, shrink
            )
            row_of_metrics += 1
    return num_steps


@compiled
def _block_gradient(
    parameters: Vector, gradient: Vector, actor: Table, critic: Table, activation: int, is_discrete: bool,
    x: Matrix, index: Indices, sample: Matrix, old_log_prob: Vector, old_value: Vector, advantage: Vector,
    target: Vector, rows: Indices, num_total: int, settings: Array, hidden: Vector, scratch: Vector, metrics: Array,
) -> None:  # fmt: skip
    """The part of a batch's gradient and metrics that some of its rows make up."""
    num_actions = actor[-1, OUTPUTS]
    features = np.empty((rows.size, x.shape[1]), np.float32)
    _gather(x, rows, features)
    out = np.empty((rows.size, num_actions), np.float32)
    forward(parameters, actor, activation, features, hidden, out)
    if is_discrete:
        _discrete_loss(out, index[rows], old_log_prob[rows], advantage[rows], num_total, settings, metrics)
    else:
        samples = np.empty_like(out)
        _gather(sample, rows, samples)
        d_log_std = gradient[gradient.size - num_actions :]
        d_log_std[:] = ZERO
        _gaussian_loss(
            parameters, out, samples, old_log_prob[rows], advantage[rows], num_total, settings, d_log_std, metrics
        )
        for column in range(num_actions):  # where it is out of bounds, the bound is what acted
            raw = parameters[parameters.size - num_actions + column]
            if raw < LOG_STD_LOW or raw > LOG_STD_HIGH:
                d_log_std[column] = ZERO
    backward(parameters, actor, activation, features, hidden, out, gradient, scratch)
    value = np.empty((rows.size, 1), np.float32)
    forward(parameters, critic, activation, features, hidden, value)
    _critic_loss(value.reshape(rows.size), target[rows], old_value[rows], num_total, settings, metrics)
    backward(parameters, critic, activation, features, hidden, value, gradient, scratch)

"""PPO's learning as kernels: values of a rollout, and its gradient steps. `loomrl.algorithms.ppo.learner` is the same
in torch, and what these kernels are tested against.

N transitions, I features, A columns of the actor's output: logits of a discrete action, or the means of a Gaussian
whose log standard deviations are the last A parameters. Actor and critic are two networks in one vector of parameters.
Everything is done in blocks of at most BLOCK rows, whose activations stay in the processor's cache.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import ONE, ZERO
from loomrl.algorithms.compiled.adam import adam_step, sum_of_squares
from loomrl.algorithms.compiled.barrier import wait_for_all
from loomrl.algorithms.compiled.dense import OUTPUTS, Matrix, Table, Vector, backward, forward
from loomrl.algorithms.compiled.jit import compiled, inlined
from loomrl.types import FloatArray

Indices = NDArray[np.int64]

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5
LOG_STD_LOW, LOG_STD_HIGH = -20.0, 2.0  # networks.LOG_STD_BOUNDS
BLOCK = 128  # rows

CRITIC, ACTOR = 0, 1  # the two networks, in the order of their parameters

# What `gradient_steps` is told, in the order of its `settings`.
SETTINGS = (
    "learning_rate", "clip_epsilon", "value_clip_epsilon", "value_loss_coef", "entropy_coef", "max_grad_norm",
)  # fmt: skip
LEARNING_RATE, CLIP, VALUE_CLIP, VALUE_COEF, ENTROPY_COEF, MAX_NORM = range(len(SETTINGS))

# Columns of the metrics of a gradient step.
POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, GRAD_NORM = range(6)


class PPONetworks(NamedTuple):
    """Vectors of all P parameters, and what lies where. The log standard deviations belong to the actor.

    `parameters`, `gradient`, and Adam's moments `first` and `second` are (P,); `critic` and `actor` are the tables of
    their layouts. `bounds` (3,) says where the critic's parameters begin, the actor's begin, and the actor's end.
    """

    parameters: Vector
    gradient: Vector
    first: Vector  # Adam's moments
    second: Vector
    critic: Table
    actor: Table
    bounds: Indices  # (3,): where the critic's parameters, then the actor's, begin and end
    activation: int
    is_discrete: bool


class RolloutRows(NamedTuple):
    """N transitions of a rollout. What an action space has no use for is empty.

    `x` (N, I) are the features, `choice` (N,) discrete actions, `sample` (N, A) Gaussian samples. `log_prob` (N,) is by
    the policy that acted, `value` (N,) of the critic before the update; `advantage` and `returns` are (N,).
    """

    x: Matrix  # (N, I) features
    choice: Indices  # (N,) discrete actions
    sample: Matrix  # (N, A) Gaussian samples
    log_prob: Vector  # (N,) of the policy that acted
    value: Vector  # (N,) of the critic before the update
    advantage: Vector  # (N,)
    returns: Vector  # (N,)


class PPOWorkspace(NamedTuple):
    """Arrays that gradient steps write to, one row for the critic and one for the actor: `hidden` and `scratch`, as
    `Layout` makes them; `gradient` (P,) of one block of rows; `squares` (2, 2) of the gradient's norm, of this step and
    the one before."""

    hidden: Matrix
    scratch: Matrix
    gradient: Vector  # (P,) of one block
    squares: Matrix  # (2, 2): of this step and the one before


@compiled
def evaluate(parameters: Vector, table: Table, activation: int, x: Matrix, hidden: Vector, out: Matrix) -> None:
    """Write one network's outputs (N, O) for inputs `x` (N, I), any number of rows, into `out`. `hidden` is room for
    BLOCK rows."""
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
    """Write the log-probabilities of actions into `log_prob` (N,), from the actor's outputs `out` (N, A), which are
    overwritten where actions are discrete. The actions are `index` (N,), else `sample` (N, A)."""
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
    value: np.float32, returns: np.float32, old: np.float32, clip: np.float32
) -> tuple[np.float32, np.float32]:
    """The squared error of one value and its derivative; with `clip` > 0 the worse of it and that of a value kept near
    the old one."""
    error = value - returns
    if clip > ZERO:
        move = value - old
        near_error = old + min(max(move, -clip), clip) - returns
        if near_error * near_error > error * error:
            slope = np.float32(2.0) * near_error if abs(move) <= clip else ZERO
            return near_error * near_error, slope
    return error * error, np.float32(2.0) * error


@inlined
def _discrete_loss(
    out: Matrix, index: Indices, old_log_prob: Vector, advantage: Vector, num_total: int, settings: FloatArray,
    metrics: FloatArray,
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


@inlined
def _gaussian_loss(
    parameters: Vector, out: Matrix, sample: Matrix, old_log_prob: Vector, advantage: Vector, num_total: int,
    settings: FloatArray, d_log_std: Vector, metrics: FloatArray,
) -> None:  # fmt: skip
    """Replaces means (n, A) by the loss's derivatives; writes `d_log_std` (A,) and adds to the metrics."""
    num_rows, num_actions = out.shape
    clip, share = np.float32(settings[CLIP]), np.float32(1.0 / num_total)
    logs = log_std(parameters, num_actions)
    precision = np.exp(-logs)
    constant = np.float32(HALF_LOG_TAU * num_actions)
    for column in range(num_actions):
        constant += logs[column]
        d_log_std[column] = ZERO
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
        raw = parameters[parameters.size - num_actions + column]
        if raw < LOG_STD_LOW or raw > LOG_STD_HIGH:  # the bound is what acted
            d_log_std[column] = ZERO


@compiled
def _transition(
    log_prob: np.float32, old_log_prob: np.float32, advantage: np.float32, clip: np.float32, num_total: int,
    metrics: FloatArray,
) -> np.float32:  # fmt: skip
    """The derivative of one transition's loss by its log-probability, not yet divided by the number of them."""
    log_ratio = log_prob - old_log_prob
    ratio = np.exp(log_ratio)
    gain, slope = _surrogate(ratio, advantage, clip)
    metrics[POLICY_LOSS] -= gain / num_total
    metrics[KL] += (ratio - ONE - log_ratio) / num_total  # http://joschu.net/blog/kl-approx.html, estimator k3
    if abs(ratio - ONE) > clip:
        metrics[CLIPPED] += 1.0 / num_total
    derivative: np.float32 = -slope * ratio
    return derivative


@inlined
def _critic_loss(
    value: Vector, returns: Vector, old_value: Vector, num_total: int, settings: FloatArray, metrics: FloatArray
) -> None:
    """Replaces values (n,) by the weighted loss's derivatives; adds to the metrics."""
    clip, share = np.float32(settings[VALUE_CLIP]), np.float32(settings[VALUE_COEF] / num_total)
    for row in range(value.size):
        term, slope = _value_term(value[row], returns[row], old_value[row], clip)
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
    thread: int, num_threads: int, counter: NDArray[np.int64], networks: PPONetworks, rows: RolloutRows, num_steps: int,
    permutations: NDArray[np.int64], batch_size: int, settings: FloatArray, work: PPOWorkspace, metrics: FloatArray,
) -> None:  # fmt: skip
    """Run epochs over a rollout: one for each row of `permutations` (E, N), which says in which order its transitions
    are taken, in batches of `batch_size` (the last smaller). A row that names some of the transitions only is a part of
    an epoch.

    Changes parameters and Adam's moments, which have seen `num_steps` steps, in place. `metrics` (steps, 6) must have a
    row of zeros for each gradient step, and is filled. Two threads may share the work: call it with thread 0, ...,
    num_threads - 1 at once and `counter` (1,) at zero. One has the critic, one the actor; they meet at each step for
    the gradient's norm. The sums are those of one thread, so the bits are.
    """
    num_rows, done = permutations.shape[1], 0
    for epoch in range(permutations.shape[0]):
        for begin in range(0, num_rows, batch_size):
            chosen = permutations[epoch, begin : min(begin + batch_size, num_rows)]
            squares = work.squares[done % 2]  # another thread may still read those of the step before
            for task in range(thread, 2, num_threads):
                first, last = networks.bounds[task], networks.bounds[task + 1]
                _batch_gradient(task, networks, rows, chosen, settings, work, metrics[done])
                squares[task] = sum_of_squares(networks.gradient[first:last])
            done += 1
            wait_for_all(counter, done, num_threads)
            length = math.sqrt(squares[CRITIC] + squares[ACTOR])
            shrink = min(1.0, settings[MAX_NORM] / (length + 1e-6))
            for task in range(thread, 2, num_threads):
                first, last = networks.bounds[task], networks.bounds[task + 1]
                adam_step(
                    networks.parameters[first:last], networks.gradient[first:last], networks.first[first:last],
                    networks.second[first:last], num_steps + done, settings[LEARNING_RATE], BETA1, BETA2, EPSILON,
                    shrink,
                )  # fmt: skip
            if thread == 0:
                metrics[done - 1, GRAD_NORM] = length


@compiled
def batch_gradient(
    networks: PPONetworks,
    rows: RolloutRows,
    chosen: Indices,
    settings: FloatArray,
    work: PPOWorkspace,
    metrics: FloatArray,
) -> None:
    """Write the loss's gradient over the chosen rows into `networks.gradient`, and add the step's metrics to `metrics`
    (6,), which must be zeros: for a caller that changes the gradient before `apply_gradient`."""
    for task in range(2):
        _batch_gradient(task, networks, rows, chosen, settings, work, metrics)


@compiled
def apply_gradient(networks: PPONetworks, num_steps: int, settings: FloatArray) -> float:
    """Clip the gradient and take Adam's step with it, in place, after `num_steps` others; returns the norm it had
    before.

    The arithmetic is that of `gradient_steps`.
    """
    bounds = networks.bounds
    squares = np.zeros(2, np.float32)
    for task in range(2):
        squares[task] = sum_of_squares(networks.gradient[bounds[task] : bounds[task + 1]])
    length = math.sqrt(squares[CRITIC] + squares[ACTOR])
    adam_step(
        networks.parameters, networks.gradient, networks.first, networks.second, num_steps + 1,
        settings[LEARNING_RATE], BETA1, BETA2, EPSILON, min(1.0, settings[MAX_NORM] / (length + 1e-6)),
    )  # fmt: skip
    return length


@inlined
def _batch_gradient(
    task: int,
    networks: PPONetworks,
    rows: RolloutRows,
    chosen: Indices,
    settings: FloatArray,
    work: PPOWorkspace,
    metrics: FloatArray,
) -> None:
    """One network's gradient over the chosen rows, block by block; adds to the metrics."""
    first, last = networks.bounds[task], networks.bounds[task + 1]
    for at in range(0, chosen.size, BLOCK):
        gradient = networks.gradient if at == 0 else work.gradient
        block = chosen[at : at + BLOCK]
        features = np.empty((block.size, rows.x.shape[1]), np.float32)
        _gather(rows.x, block, features)
        if task == ACTOR:
            _actor_gradient(networks, rows, features, block, chosen.size, settings, gradient, work, metrics)
        else:
            _critic_gradient(networks, rows, features, block, chosen.size, settings, gradient, work, metrics)
        if at > 0:
            for position in range(first, last):
                networks.gradient[position] += gradient[position]


@inlined
def _actor_gradient(
    networks: PPONetworks, rows: RolloutRows, features: Matrix, block: Indices, num_total: int, settings: FloatArray,
    gradient: Vector, work: PPOWorkspace, metrics: FloatArray,
) -> None:  # fmt: skip
    parameters, table, activation = networks.parameters, networks.actor, networks.activation
    num_actions, hidden, scratch = table[-1, OUTPUTS], work.hidden[ACTOR], work.scratch[ACTOR]
    old_log_prob, advantage = rows.log_prob[block], rows.advantage[block]
    out = np.empty((block.size, num_actions), np.float32)
    forward(parameters, table, activation, features, hidden, out)
    if networks.is_discrete:
        _discrete_loss(out, rows.choice[block], old_log_prob, advantage, num_total, settings, metrics)
    else:
        sample = np.empty_like(out)
        _gather(rows.sample, block, sample)
        d_log_std = gradient[gradient.size - num_actions :]
        _gaussian_loss(parameters, out, sample, old_log_prob, advantage, num_total, settings, d_log_std, metrics)
    backward(parameters, table, activation, features, hidden, out, gradient, scratch)


@inlined
def _critic_gradient(
    networks: PPONetworks, rows: RolloutRows, features: Matrix, block: Indices, num_total: int, settings: FloatArray,
    gradient: Vector, work: PPOWorkspace, metrics: FloatArray,
) -> None:  # fmt: skip
    parameters, table, activation = networks.parameters, networks.critic, networks.activation
    hidden, scratch = work.hidden[CRITIC], work.scratch[CRITIC]
    value = np.empty((block.size, 1), np.float32)
    forward(parameters, table, activation, features, hidden, value)
    _critic_loss(value.reshape(block.size), rows.returns[block], rows.value[block], num_total, settings, metrics)
    backward(parameters, table, activation, features, hidden, value, gradient, scratch)

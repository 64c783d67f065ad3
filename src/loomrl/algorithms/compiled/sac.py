"""Gradient steps of soft actor-critic on continuous actions. `loomrl.algorithms.sac.torch_engine` is the same with
autograd, and what these kernels are tested against.

A step is five phases of two tasks each: halves of the batch where the actor works, one critic each where the critics
do. One thread does both tasks, or two threads share them: the sums are the same, so the bits are.

Shapes are those of `sac_memory`.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.activations import ZERO, tanh32
from loomrl.algorithms.compiled.adam import adam_step
from loomrl.algorithms.compiled.barrier import wait_for_all
from loomrl.algorithms.compiled.dense import BIAS, OUTPUTS, WEIGHTS, Matrix, Table, Vector, backward, forward, transpose
from loomrl.algorithms.compiled.jit import compiled
from loomrl.algorithms.compiled.sac_actor import actor_gradient
from loomrl.algorithms.compiled.sac_memory import (
    CRITIC_LOSS,
    FIRST,
    IMAGINED,
    NEXT,
    Q_VALUE,
    SECOND,
    SEEN,
    SLOPE,
    TD_ERROR,
    TWO,
    VALUE,
    Batches,
    SACNetworks,
    SACWorkspace,
    Settings,
    bounded_log_std,
    copy_into,
    half_of,
)

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
HALF = np.float32(0.5)
LOG_TWO, HALF_LOG_TWO_PI = np.float32(math.log(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))


@compiled
def learn(
    thread: int, num_threads: int, counter: NDArray[Any], networks: SACNetworks, batches: Batches, work: SACWorkspace,
    settings: Settings,
) -> None:  # fmt: skip
    """Take G gradient steps on `batches`: changes `networks` in place, and adds each step's metrics to `work.sums`.
    Must be called with thread 0, ..., num_threads - 1 at once, one or two of them, and `counter` (1,) at zero."""
    meeting = 0
    for number in range(batches.obs.shape[0]):
        step = settings.first_step + number
        for task in range(thread, 2, num_threads):
            _imagine(task, number, networks, batches, work, settings)
        wait_for_all(counter, meeting + 1, num_threads)
        for task in range(thread, 2, num_threads):
            _evaluate(task, networks, work, settings)
        wait_for_all(counter, meeting + 2, num_threads)
        for task in range(thread, 2, num_threads):
            _critic_gradient(task, number, networks, batches, work, settings)
            _improve_critic(task, step, networks, work, settings)
        wait_for_all(counter, meeting + 3, num_threads)
        for task in range(thread, 2, num_threads):
            actor_gradient(task, number, networks, batches, work, settings)
        wait_for_all(counter, meeting + 4, num_threads)
        for task in range(thread, 2, num_threads):
            _add_halves(task, networks, work, settings)
            _improve_actor(task, step, networks, work, settings)
        wait_for_all(counter, meeting + 5, num_threads)
        meeting += 5


# --- a step in four parts, for learners that join gradients: the first of each pair gives one, the other follows it ---


@compiled
def critics_gradient(
    number: int, networks: SACNetworks, batches: Batches, work: SACWorkspace, settings: Settings
) -> None:
    """Write the gradient of both critics' losses on batch `number` into `work.critics_gradient`, one critic after the
    other."""
    for half in range(2):
        _imagine(half, number, networks, batches, work, settings)
    for critic in range(2):
        _evaluate(critic, networks, work, settings)
    for critic in range(2):
        _critic_gradient(critic, number, networks, batches, work, settings)


@compiled
def move_critics(step: int, networks: SACNetworks, work: SACWorkspace, settings: Settings) -> None:
    """Take one Adam step of both critics along `work.critics_gradient`, the `step`-th, and let their targets follow;
    then compute their values of the actions that the actor would take, for its gradient."""
    for critic in range(2):
        _improve_critic(critic, step, networks, work, settings)


@compiled
def actor_and_temperature_gradient(
    number: int, networks: SACNetworks, batches: Batches, work: SACWorkspace, settings: Settings
) -> None:
    """Write the actor's gradient on batch `number` into the first row of `work.actor_gradients`, and the temperature's
    into `networks.log_temperature[SLOPE]`."""
    for half in range(2):
        actor_gradient(half, number, networks, batches, work, settings)
    for half in range(2):
        _add_halves(half, networks, work, settings)


@compiled
def move_actor(step: int, networks: SACNetworks, work: SACWorkspace, settings: Settings) -> None:
    """Take one Adam step of the actor, the `step`-th, and one of the temperature where it is learnt."""
    for half in range(2):
        _improve_actor(half, step, networks, work, settings)


@compiled
def sample(
    actor: Vector, table: Table, features: Matrix, noise: Matrix, hidden: Vector, moments: Matrix, action: Matrix,
    settings: Settings,
) -> None:  # fmt: skip
    """Features (N, D) and noise (N, A) -> actions in [-1, 1], written into `action` (N, A). `hidden` and `moments` (N,
    2A) are room for the actor's activations and outputs."""
    forward(actor, table, settings.activation, features, hidden, moments)
    for row in range(action.shape[0]):
        for column in range(action.shape[1]):
            log_std = bounded_log_std(moments[row, action.shape[1] + column], settings)
            action[row, column] = tanh32(moments[row, column] + np.exp(log_std) * noise[row, column])


# --- phases -----------------------------------------------------------------------------------------------------


@compiled
def _imagine(
    half: int, number: int, networks: SACNetworks, batches: Batches, work: SACWorkspace, settings: Settings
) -> None:
    """Inputs for the critics: what was done, and what the actor would do in next_obs and in obs.

    The activations in obs, which come last, stay for the actor's gradient.
    """
    begin, end = half_of(half, batches.obs.shape[1])
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
            copy_into(obs[row], inputs[row], 0)
            work.log_prob[which, row] = _squash(moments[row], noise[row], inputs[row, num_features:], width, settings)


@compiled
def _critic_inputs(obs: Matrix, action: Matrix, begin: int, end: int, inputs: Matrix) -> None:
    for row in range(begin, end):
        copy_into(obs[row], inputs[row], 0)
        copy_into(action[row], inputs[row], obs.shape[1])


@compiled
def _squash(moments: Vector, noise: Vector, action: Vector, width: int, settings: Settings) -> np.float32:
    """Writes the action and returns its log-density; log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))."""
    total = ZERO
    for column in range(width):
        log_std = bounded_log_std(moments[width + column], settings)
        before = moments[column] + np.exp(log_std) * noise[column]
        action[column] = tanh32(before)
        twice = -TWO * before
        softplus = max(twice, ZERO) + np.log1p(np.exp(-abs(twice)))
        log_normal = -HALF * noise[column] * noise[column] - log_std - HALF_LOG_TWO_PI
        total += log_normal - TWO * (LOG_TWO - before - softplus)
    return total


@compiled
def _evaluate(critic: int, networks: SACNetworks, work: SACWorkspace, settings: Settings) -> None:
    """The target network's values of what the actor would do next."""
    forward(
        networks.targets, networks.critic_tables[critic], settings.activation, work.inputs[NEXT],
        work.critic_hidden[critic], work.values[NEXT, critic],
    )  # fmt: skip


@compiled
def _critic_gradient(
    critic: int, number: int, networks: SACNetworks, batches: Batches, work: SACWorkspace, settings: Settings
) -> None:
    """Of one critic's loss."""
    table, hidden = networks.critic_tables[critic], work.critic_hidden[critic]
    values, slopes = work.values[SEEN, critic], work.slopes[critic]
    forward(networks.critics, table, settings.activation, work.inputs[SEEN], hidden, values)
    num_rows = values.shape[0]
    temperature, share = np.exp(networks.log_temperature[VALUE]), np.float32(1.0 / num_rows)
    loss, total, distance = 0.0, 0.0, 0.0
    for row in range(num_rows):
        lower = min(work.values[NEXT, 0, row, 0], work.values[NEXT, 1, row, 0])
        soft_value = lower - temperature * work.log_prob[1, row]
        error = values[row, 0] - (batches.reward[number, row] + batches.keep[number, row] * soft_value)
        slopes[row, 0] = share * error
        loss += error * error
        distance += abs(error)
        total += values[row, 0]
    work.sums[critic, CRITIC_LOSS] += 0.5 * loss / num_rows
    work.sums[critic, Q_VALUE] += 0.5 * total / num_rows
    work.sums[critic, TD_ERROR] += 0.5 * distance / num_rows
    backward(
        networks.critics, table, settings.activation, work.inputs[SEEN], hidden, slopes, work.critics_gradient,
        work.critic_scratch[critic],
    )  # fmt: skip


@compiled
def _improve_critic(critic: int, step: int, networks: SACNetworks, work: SACWorkspace, settings: Settings) -> None:
    """One critic's step and its target's, then its opinion of what the actor imagines."""
    table, hidden = networks.critic_tables[critic], work.critic_hidden[critic]
    begin, end = table[0, WEIGHTS], table[-1, BIAS] + table[-1, OUTPUTS]
    adam_step(
        networks.critics[begin:end], work.critics_gradient[begin:end], networks.critics_first[begin:end],
        networks.critics_second[begin:end], step, settings.critic_learning_rate, BETA1, BETA2, EPSILON, 1.0,
    )  # fmt: skip
    _polyak_update(networks.targets[begin:end], networks.critics[begin:end], settings.tau)
    imagined = work.values[IMAGINED, critic]
    forward(networks.critics, table, settings.activation, work.inputs[IMAGINED], hidden, imagined)
    _turn(networks.critics, table, work.turned[critic])


@compiled
def _polyak_update(targets: Vector, critics: Vector, tau: np.float32) -> None:
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
def _add_halves(task: int, networks: SACNetworks, work: SACWorkspace, settings: Settings) -> None:
    """The gradient of half of the actor's parameters, over both halves of the batch; the second task also has the
    temperature's."""
    begin, end = half_of(task, networks.actor.size)
    gradient = work.actor_gradients[0][begin:end]
    other = work.actor_gradients[1][begin:end]
    for index in range(gradient.size):
        gradient[index] += other[index]
    if task == 1 and settings.learns_temperature:
        total = 0.0
        for row in range(work.log_prob.shape[1]):
            total -= work.log_prob[0, row]
        networks.log_temperature[SLOPE] = total / work.log_prob.shape[1] - settings.target_entropy


@compiled
def _improve_actor(task: int, step: int, networks: SACNetworks, work: SACWorkspace, settings: Settings) -> None:
    """Half of the actor's parameters; the second task also moves the temperature."""
    begin, end = half_of(task, networks.actor.size)
    adam_step(
        networks.actor[begin:end], work.actor_gradients[0][begin:end], networks.actor_first[begin:end],
        networks.actor_second[begin:end], step, settings.actor_learning_rate, BETA1, BETA2, EPSILON, 1.0,
    )  # fmt: skip
    if task == 1 and settings.learns_temperature:
        state = networks.log_temperature
        adam_step(
            state[VALUE:FIRST], state[SLOPE:], state[FIRST:SECOND], state[SECOND:SLOPE], step,
            settings.temperature_learning_rate, BETA1, BETA2, EPSILON, 1.0,
        )  # fmt: skip

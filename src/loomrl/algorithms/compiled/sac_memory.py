"""What the kernels of soft actor-critic share: what they are given, what they keep, small functions.

G gradient steps, N rows in each, D features, A actions, P parameters. Actions lie in [-1, 1].
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.dense import OUTPUTS, Matrix, Table, Vector
from loomrl.algorithms.compiled.jit import compiled

TWO = np.float32(2.0)
SEEN, NEXT, IMAGINED = 0, 1, 2  # whose inputs, and values, the critics' are
VALUE, FIRST, SECOND, SLOPE = 0, 1, 2, 3  # of the log temperature: itself, Adam's moments, its gradient
CRITIC_LOSS, Q_VALUE, ACTOR_LOSS, ENTROPY, TD_ERROR = range(5)  # columns of the sums


class SACNetworks(NamedTuple):
    """Parameters of actor, critics and targets, the temperature, and Adam's moments.

    `actor` and its moments `actor_first` and `actor_second` are (P,). `critics`, their moments and `targets` hold both
    critics, one after the other. `actor_table` (L, 4) and `critic_tables` (2, L, 4) are the tables of their layouts.
    `log_temperature` (4,) holds the value, Adam's two moments and the gradient.
    """

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
    """Transitions for G gradient steps, N in each.

    `obs` and `next_obs` are features (G, N, D), `action` (G, N, A) in [-1, 1], `reward` (G, N). `keep` (G, N) is the
    discount, 0 where the episode terminated. `noise` (G, 2, N, A) is standard normal, for the actions in `obs` and in
    `next_obs`.
    """

    obs: NDArray[np.float32]  # (G, N, D) features
    next_obs: NDArray[np.float32]  # (G, N, D)
    action: NDArray[np.float32]  # (G, N, A)
    reward: Matrix  # (G, N)
    keep: Matrix  # (G, N): discount, or 0 where the episode terminated
    noise: NDArray[np.float32]  # (G, 2, N, A): standard normal, for the actions in obs and in next_obs


class SACWorkspace(NamedTuple):
    """Arrays that a gradient step writes its intermediate results to; "half" is a half of a batch's rows.

    Attributes:
        inputs: (3, N, D + A) of the critics: of what was done, of the next states, and of what the actor would do now.
        values: (3, 2, N, 1) of each input by each critic.
        slopes: (2, N, 1) of the loss by the values.
        moments: (2, N, 2A), the actor's outputs for obs and next_obs.
        log_prob: (2, N) of the actions drawn there.
        d_moments: (N, 2A), derivatives of the actor's loss by its outputs.
        d_action: (N, A), of the lower critic's value by the action.
        chosen: (2, N), rows of a half that one critic judges.
        actor_hidden: (2, ...), a half's activations; `actor_scratch` belongs to it.
        actor_gradients: (2, P), a half's share.
        critic_hidden: (2, ...), a critic's activations; `critic_scratch` belongs to it.
        critics_gradient: of both critics, one after the other.
        turned: (2, ...), a critic's hidden weights, transposed.
        sums: (2, 5), metrics of each half, summed over the steps.
    """

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
    sums: NDArray[np.float64]  # (2, 5): metrics, summed over the steps


class Settings(NamedTuple):
    """Hyperparameters that stay the same within one call of `learn`: the number of the activation in `ACTIVATIONS`, the
    bounds of the log standard deviation, `tau` of Polyak averaging, the entropy (in nats) that the temperature steers
    towards, whether it is learnt, the learning rates, and Adam's number of the first step, from 1."""

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
def half_of(which: int, size: int) -> tuple[int, int]:
    """First row, and the row after the last, of the first (0) or second (1) half of `size` rows."""
    middle = size // 2
    return (0, middle) if which == 0 else (middle, size)


@compiled
def bounded_log_std(raw: np.float32, settings: Settings) -> np.float32:
    """The actor's log standard deviation, cut to its bounds."""
    return min(max(raw, settings.log_std_low), settings.log_std_high)


@compiled
def copy_into(source: Vector, target: Vector, at: int) -> None:
    """Copy `source` into the longer vector `target` from place `at` on. Element by element: a slice assignment would
    compile code that reports wrong shapes."""
    for index in range(source.size):
        target[at + index] = source[index]


@compiled
def hidden_widths(table: Table) -> tuple[int, int]:
    """A pair, from a layout's table: the width of the widest hidden layer, and that of all hidden layers together."""
    widest, total = 0, 0
    for layer in range(table.shape[0] - 1):
        widest = max(widest, table[layer, OUTPUTS])
        total += table[layer, OUTPUTS]
    return widest, total

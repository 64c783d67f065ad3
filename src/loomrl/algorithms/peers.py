"""What the learners of one policy do together, each with rollouts of its own.

Every method is a meeting: all learners call it, in the same order, and each waits there for the others.
`loomrl.training.distributed` has the learners of several processes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.base import State
from loomrl.types import FloatArray, Json

Vector = Any  # (P,) float32: a NumPy array, or a tensor


@dataclass(frozen=True)
class Moments:
    """Mean and variance, float64 arrays of one shape; each entry is over `count` values."""

    mean: FloatArray
    var: FloatArray
    count: float

    @classmethod
    def of(cls, rows: NDArray[Any]) -> "Moments":
        """Mean, variance and count over the rows of an array (N, ...): `mean` and `var` (...) float64, `count` N."""
        values = rows.astype(np.float64, copy=False)
        return cls(np.asarray(values.mean(0)), np.asarray(values.var(0)), float(len(rows)))


class LayerWeights(NamedTuple):
    """A layer's weights, where they lie in the vector of all parameters: `rows` x `columns` numbers from `start`."""

    start: int
    rows: int
    columns: int


class LearnerGroup:
    """All learners of a policy, as one of them sees them. Every method but the state's and the metrics' may be a
    meeting, in which each learner waits for the others. This class itself is a group of one learner: nothing is sent,
    every value stays as it is, and nothing can fail. In a group of several a meeting raises RuntimeError where another
    learner is lost or does not come in time.

    Vectors are float32 arrays or tensors and are changed in place. `rank` is this learner's number, from 0. Where
    `all_reduces_gradients` is true, `all_reduce_gradient` must be called before every gradient step; else learners take
    steps of their own and synchronise their parameters from time to time.
    """

    rank: int = 0  # this learner's, from 0
    num_learners: int = 1
    all_reduces_gradients: bool = False  # whether `all_reduce_gradient` must be called before every gradient step

    @property
    def steps_until_synchronisation(self) -> float:
        """How many gradient steps may be taken before `count_steps` must be called; infinite where it never must."""
        return math.inf

    def register_parameters(self, parameters: Vector, matrices: Sequence[LayerWeights]) -> None:
        """Register a parameter vector (P,) and the matrices that lie in it; called once for each optimiser. All
        learners' copies become equal to the first learner's, in place."""

    def all_reduce_gradient(self, gradient: Vector, number: int = 0) -> None:
        """Replace a gradient (P,) of a mean loss in place by the mean over all learners; their batches must be of one
        size.

        `number` says to which vector it belongs, counted from 0 in the order of `register_parameters`. In a group of
        several it waits for the other learners, and raises RuntimeError where one is lost or late.
        """

    def count_steps(self, num_steps: int) -> None:
        """Count gradient steps this learner has taken. Where that is due, all learners' parameters are synchronised in
        the same call."""

    def synchronise(self) -> None:
        """Make all learners' parameters equal now; does nothing where no step was taken since they were."""

    def all_reduce_moments(self, moments: Moments) -> Moments:
        """Mean, variance and count of all learners' values together; mean and variance keep their shape."""
        return moments

    def all_reduce_mean(self, values: FloatArray) -> FloatArray:
        """The mean of an array (K,) over all learners, (K,)."""
        return values

    def broadcast_from_first(self, compute: Callable[[], Json]) -> Json:
        """The result of `compute` on the first learner, sent to all; the others do not compute it."""
        return compute()

    def metrics(self) -> dict[str, float]:
        """What communication has cost this learner since the last call, by name, such as `bytes_sent`; empty for a
        learner alone."""
        return {}

    def state_dict(self) -> State:
        """The state of the communication, such as outer momentum: what neither policy nor algorithm holds."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`; called after the algorithm has loaded its own state."""


ALONE = LearnerGroup()

"""What the learners of one policy do together, each with rollouts of its own.

Every method is a meeting: all learners call it, in the same order, and each waits there for the others.
`SingleLearner` is a
learner without others; `loomrl.training.distributed` has those of several processes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.base import State
from loomrl.types import FloatArray, Json

Vector = Any  # (P,) float32: a NumPy array, or a tensor


@dataclass(frozen=True)
class Moments:
    """Mean and variance, float64 of any one shape, of `count` values each."""

    mean: FloatArray
    var: FloatArray
    count: float

    @classmethod
    def of(cls, rows: NDArray[Any]) -> "Moments":
        """Those of the columns of rows (N, ...)."""
        values = rows.astype(np.float64, copy=False)
        return cls(np.asarray(values.mean(0)), np.asarray(values.var(0)), float(len(rows)))


class LayerWeights(NamedTuple):
    """A layer's weights, where they lie in the vector of all parameters: `rows` x `columns` numbers from `start`."""

    start: int
    rows: int
    columns: int


class LearnerGroup(Protocol):
    """All learners of a policy, as one of them meets them. Vectors, arrays or tensors of float32, are changed in place.

    The learners either join every gradient, or take steps of their own and make their parameters one from time to time.
    """

    rank: int  # this learner's, from 0
    num_learners: int

    @property
    def joins_gradients(self) -> bool:
        """Whether `join_gradient` is to be called before every step."""

    @property
    def steps_alone(self) -> float:
        """How many gradient steps may be taken until `stepped` must be told."""

    def follow(self, parameters: Vector, matrices: Sequence[LayerWeights]) -> None:
        """Called by the algorithm once for each of its optimisers: the vector (P,) that it changes, and the matrices in
        it."""

    def join_gradient(self, gradient: Vector, number: int = 0) -> None:
        """Replace a gradient (P,) of a mean loss by that of all learners' batches together, which are of one size.
        `number` tells the vectors apart, in the order of `follow`."""

    def stepped(self, num_steps: int) -> None:
        """So many gradient steps were taken; the parameters become one where that is due."""

    def synchronise(self) -> None:
        """Make the parameters one now, if steps were taken since they last were."""

    def join_moments(self, moments: Moments) -> Moments:
        """Those of all learners' values together."""

    def mean(self, values: FloatArray) -> FloatArray:
        """The mean over the learners, (K,)."""

    def from_first(self, compute: Callable[[], Json]) -> Json:
        """What the first learner computes; the others do not."""

    def metrics(self) -> dict[str, float]:
        """What meeting has cost since this was last asked, on this learner."""

    def state_dict(self) -> State:
        """What continuing needs that is neither in the policy nor in the algorithm."""

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`, after the algorithm has."""


class SingleLearner:
    """The only learner."""

    rank, num_learners = 0, 1
    joins_gradients = False
    steps_alone = math.inf

    def follow(self, parameters: Vector, matrices: Sequence[LayerWeights]) -> None:
        """Nobody else has them."""

    def join_gradient(self, gradient: Vector, number: int = 0) -> None:
        """It is whole."""

    def stepped(self, num_steps: int) -> None:
        """Nobody waits for them."""

    def synchronise(self) -> None:
        """They are one."""

    def join_moments(self, moments: Moments) -> Moments:
        """They are of all values."""
        return moments

    def mean(self, values: FloatArray) -> FloatArray:
        """Of one."""
        return values

    def from_first(self, compute: Callable[[], Json]) -> Json:
        """It is the first."""
        return compute()

    def metrics(self) -> dict[str, float]:
        """It costs nothing."""
        return {}

    def state_dict(self) -> State:
        """Nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing."""


ALONE = SingleLearner()

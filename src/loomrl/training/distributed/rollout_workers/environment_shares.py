"""How a learner's environments are divided among those who step them, so that nothing that is learnt depends on it.

Whoever steps some of B environments draws the noise of all B and takes its own rows. Its observations are padded to a
batch in which every row is rounded as in the learner's own.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TILE = (
    16  # as `loomrl.algorithms.policies.policy.ROWS`: in batches of whole tiles a row's answer is the same in any batch
)


@dataclass(frozen=True)
class EnvironmentShare:
    """The environments of a learner that one worker steps: `num_envs` of all `whole`, from number `first` on."""

    first: int
    num_envs: int
    whole: int

    @property
    def rows(self) -> slice:
        """The positions of these environments among all of the learner's: `first` to `first + num_envs`."""
        return slice(self.first, self.first + self.num_envs)

    @property
    def batch_size(self) -> int:
        """The number of rows of the batch in which these environments' observations are evaluated, so that each is
        rounded as in the learner's own batch."""
        return self.whole if self.whole % TILE else -(-self.num_envs // TILE) * TILE

    @property
    def batch_rows(self) -> slice:
        """The positions of these environments' rows in that batch."""
        return self.rows if self.whole % TILE else slice(0, self.num_envs)

    def padded(self, values: NDArray[Any]) -> NDArray[Any]:
        """A batch (batch_size, ...) with these environments' values (n, ...) in their rows and zeros elsewhere."""
        batch = np.zeros((self.batch_size, *values.shape[1:]), values.dtype)
        batch[self.batch_rows] = values
        return batch


def divided(whole: int, speeds: Sequence[float]) -> list[EnvironmentShare]:
    """Shares of `whole` environments, one for each worker, such that all finish a step at about the same time.

    One environment goes to each worker; each next one goes to the worker that would finish it first. `speeds` are in
    environment steps per second.
    """
    numbers = [1] * len(speeds)
    times = [(2 / speed, index) for index, speed in enumerate(speeds)]
    heapq.heapify(times)
    for _ in range(whole - len(speeds)):
        _, index = times[0]
        numbers[index] += 1
        heapq.heapreplace(times, ((numbers[index] + 1) / speeds[index], index))
    firsts = np.cumsum([0, *numbers]).tolist()
    return [EnvironmentShare(first, number, whole) for first, number in zip(firsts, numbers, strict=False)]


class ShareOfNoise(np.random.Generator):
    """A generator of random numbers that draws for all of a learner's environments, and gives those of a share: (B,
    ...), or (T, B, ...) where a whole rollout's is drawn at once. Other draws than the three here raise
    `NotImplementedError`: they would not be divided."""

    def __init__(self, rng: np.random.Generator, share: EnvironmentShare) -> None:
        super().__init__(rng.bit_generator)
        self._share = share

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Normal noise, in the shape `size`, of the share's environments, cut from a draw for all of the learner's.

        Raises:
            NotImplementedError: for `out`, and for a size without an axis of environments.
        """
        if out is not None:
            raise NotImplementedError("ShareOfNoise.standard_normal: `out` has room for the share only")
        return self._own(super().standard_normal(self._whole(size), dtype), size)

    def standard_exponential(self, size: Any = None, dtype: Any = np.float64) -> Any:  # type: ignore[override]
        """Exponential noise, in the shape `size`, of the share's environments, cut from a draw for all of the
        learner's.

        Raises:
            NotImplementedError: for a size without an axis of environments.
        """
        return self._own(super().standard_exponential(self._whole(size), dtype), size)

    def logistic(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        """Logistic noise, in the shape `size`, of the share's environments, cut from a draw for all of the learner's.

        Raises:
            NotImplementedError: for a size without an axis of environments.
        """
        return self._own(super().logistic(loc, scale, self._whole(size)), size)

    def _whole(self, shape: Any) -> tuple[int, ...]:
        if not isinstance(shape, tuple):
            raise NotImplementedError(f"ShareOfNoise: a draw of size {shape} is of no environment")
        axis = _axis(shape)
        return *shape[:axis], self._share.whole, *shape[axis + 1 :]

    def _own(self, drawn: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        share, axis = self._share, _axis(shape)
        own = drawn[:, share.rows] if axis else drawn[share.rows]
        return np.ascontiguousarray(own) if shape[axis] == share.num_envs else share.padded(own)


def _refused(name: str) -> Callable[..., Any]:
    def draw(*arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"ShareOfNoise.{name}: rollout workers do not know how to divide this draw")

    return draw


for _name in vars(np.random.Generator).keys() - vars(ShareOfNoise).keys() - {"bit_generator"}:
    if not _name.startswith("_"):
        setattr(ShareOfNoise, _name, _refused(_name))


def _axis(shape: tuple[int, ...]) -> int:
    """The one of environments."""
    return 1 if len(shape) == 3 else 0

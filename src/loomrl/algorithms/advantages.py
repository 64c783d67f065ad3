"""What a trajectory was worth: advantages, and the scale of rewards. NumPy, float64, shapes (T, B)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.peers import ALONE, LearnerGroup, Moments
from loomrl.types import FloatArray


def generalized_advantages(
    reward: FloatArray,
    value: FloatArray,
    next_value: FloatArray,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
) -> FloatArray:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438, equation 16): arrays (T, B) -> advantages
    (T, B), float64.

    `next_value` is the value of the true successor, also where an episode ended: a truncated episode bootstraps from
    it, a terminated one does not, and neither lets the next episode's advantage flow back.
    """
    error = reward + gamma * next_value * ~terminated - value  # (T, B): the temporal-difference residuals
    keep = gamma * gae_lambda * ~(terminated | truncated)  # (T, B)
    advantage = np.empty_like(error)
    running = np.zeros(error.shape[1])
    for step in range(len(error) - 1, -1, -1):
        running = error[step] + keep[step] * running
        advantage[step] = running
    return advantage


def successor_values(
    value: FloatArray, ended: NDArray[np.bool_], last_or_ended_value: FloatArray
) -> FloatArray:  # all (T, B), the last argument (K,)
    """Values of the true successors (T, B), from as few evaluations as possible; `value` and `ended` are (T, B).

    Inside an episode the successor is the next row. `last_or_ended_value` (K,) holds the others: the values of the
    successors of those K steps that `needs_successor_value` marks, in the order of (T, B).
    """
    next_value = np.empty_like(value)
    next_value[:-1] = value[1:]
    next_value[needs_successor_value(ended)] = last_or_ended_value
    return next_value


def needs_successor_value(ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask (T, B) of the steps whose successor is not the next row of the trajectory: where `ended` (T, B) is true, and
    the whole last row."""
    needed = ended.copy()
    needed[-1] = True
    return needed


def normalized(advantage: FloatArray, peers: LearnerGroup = ALONE) -> FloatArray:
    """Advantages (T, B) with mean 0 and standard deviation 1 over all learners' rollouts together."""
    joined = peers.all_reduce_moments(Moments.of(advantage.ravel()))
    scaled: FloatArray = (advantage - joined.mean) / (np.sqrt(joined.var) + 1e-8)
    return scaled


def explained_variance(value: FloatArray, returns: FloatArray) -> float:
    """1 - Var(returns - value) / Var(returns): 1 is perfect, 0 no better than a constant; 0 for constant returns."""
    variance = float(np.var(returns))
    return 0.0 if variance == 0.0 else 1.0 - float(np.var(returns - value)) / variance


class RewardScaler:
    """Divides rewards by the running standard deviation of the discounted return, and clips the result at ±10. The
    statistics are those of all learners' rewards (`peers`).

    Engstrom et al., arXiv 2005.12729, section 3 ("reward scaling"). The mean is kept: removing it would change which
    episode length is best.
    """

    CLIP = 10.0

    def __init__(self, num_envs: int, gamma: float, peers: LearnerGroup = ALONE) -> None:
        self._gamma, self._peers = gamma, peers
        self._running = np.zeros(num_envs)  # discounted return so far, (B,)
        self._count, self._mean, self._var = 0.0, 0.0, 1.0

    def __call__(self, reward: FloatArray, ended: NDArray[np.bool_]) -> FloatArray:
        """Learn from rewards (T, B), then scale them."""
        discounted = self._discounted(reward, ended)
        joined = self._peers.all_reduce_moments(Moments.of(discounted.ravel()))
        self._merge(float(joined.mean), float(joined.var), int(joined.count))
        scaled: FloatArray = np.clip(reward / self._deviation, -self.CLIP, self.CLIP)
        return scaled

    @property
    def _deviation(self) -> float:
        return float(np.sqrt(self._var + 1e-8))

    def _discounted(self, reward: FloatArray, ended: NDArray[np.bool_]) -> FloatArray:
        """The discounted return so far at every step (T, B)."""
        returns = np.empty(reward.shape)
        for step in range(len(reward)):
            self._running = self._gamma * self._running + reward[step]
            returns[step] = self._running
            self._running = self._running * ~ended[step]
        return returns

    def restart(self) -> None:
        """Forget the returns under way, for environments that begin anew; the statistics stay."""
        self._running = np.zeros_like(self._running)

    def _merge(self, mean: float, var: float, size: int) -> None:
        count = self._count + size
        delta = mean - self._mean
        squares = self._var * self._count + var * size + delta**2 * self._count * size / count
        self._mean += delta * size / count
        self._var, self._count = squares / count, count

    def state_dict(self) -> dict[str, NDArray[Any] | float]:
        """The discounted returns under way (B,), and count, mean and variance of all of them so far."""
        return {"running": self._running.copy(), "count": self._count, "mean": self._mean, "var": self._var}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the running returns and their moments from a `state_dict()` of the same number of environments."""
        self._running = np.array(state["running"])
        self._count, self._mean, self._var = float(state["count"]), float(state["mean"]), float(state["var"])

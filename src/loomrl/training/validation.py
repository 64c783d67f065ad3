"""Greedy episodes on fixed seeds during training: which policy was best, and whether it still gets better."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.base import LearntPolicy
from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.collecting.episode_log import succeeded, summed
from loomrl.environment.vector.choose import Autoreset
from loomrl.training.config import ValidationConfig
from loomrl.types import Episode, FloatArray, Json

MakeEnvs = Callable[[int, Autoreset], VectorEnv[Any, Any, Any]]  # (num_envs, autoreset)
MAX_ENVS = 32
_LESS = 0.05  # of an excess of costs, that must be gone to count as progress


class Validation:
    """Plays validations, and remembers the policy with the best mean return (of equals, the latest).

    `rows` are the validations so far. `best` holds the arrays of the best policy, empty before the first; `best_step`,
    `best_return` and `best_excess` (of the mean cost over the algorithm's limit) are its figures.

    Progress is a mean more than `min_improvement` above the last mean that was progress. Where an algorithm has a limit
    on the mean cost of an episode, less of an excess over it is better than any return, and a twentieth less is
    progress.

    Every validation plays in environments that are as good as new, so its figures do not depend on the validations
    before it, and a resumed run has those of one that was not interrupted. Vectors that can `renew` themselves are kept
    for that, until `close`: of arrays and of MuJoCo's simulations, a reset with seeds leaves nothing; processes make
    their environments anew. Gymnasium's own vectors cannot, and what others' environments keep through a reset is not
    known: they are made anew.
    """

    def __init__(self, config: ValidationConfig, make_envs: MakeEnvs, reward_threshold: float | None = None) -> None:
        self.config = config
        self._reward_threshold = reward_threshold
        self._make_envs = make_envs
        self.rows: list[Json] = []
        self.best: dict[str, NDArray[Any]] = {}  # the policy's state
        self.best_step: int | None = None
        self.best_return = -np.inf
        self.best_excess = self._reference_excess = np.inf  # of the mean cost over the algorithm's limit
        self._reference = -np.inf
        self._without_progress = 0
        self._envs: VectorEnv[Any, Any, Any] | None = None  # kept from one validation to the next

    def due(self, step: int) -> bool:
        """Whether a multiple of `interval_env_steps` was reached since the last validation, or since step 0; `step`
        counts environment steps."""
        last = self.rows[-1]["step"] if self.rows else 0
        return bool(step // self.config.interval_env_steps > last // self.config.interval_env_steps)

    def play(self, policy: LearntPolicy, step: int, cost_limit: float | None = None) -> Json:
        """Play the episodes, and return the row for the curves, for `judge`; nothing is kept yet.

        The row holds `step`, `mean_return`, `min_return`, `max_return` and `mean_length` (in steps); `mean_cost` where
        episodes cost, `success_rate` (0 to 1) where it is known what a success is, `mean_objective` and `objectives`
        where the config asks for one, and `cost_excess` where there is a `cost_limit`: how far the mean cost is above
        it, at least 0.

        Raises:
            EnvironmentFault: when an environment breaks its API, or an episode does not end.
            LoomRLError: when an action is not finite.
            ConfigError: when no episode tells the `objective`.
        """
        returns, lengths, told = self._play(policy, whole=cost_limit is not None or self.config.objective is not None)
        row: Json = {
            "step": step,
            "mean_return": float(np.mean(returns)),
            "min_return": float(np.min(returns)),
            "max_return": float(np.max(returns)),
            "mean_length": float(np.mean(lengths)),
        }
        if successes := self._successes(returns, told):
            row["success_rate"] = float(np.mean(successes))
        costs = [cost for episode in told if (cost := episode.episode_cost) is not None]
        if costs:
            row["mean_cost"] = float(np.mean(costs))
        if (objective := self.config.objective) is not None:
            reached = summed(objective, told, "training.validation.objective")
            row |= {"objective": objective, "mean_objective": float(np.mean(reached)), "objectives": reached}
        if cost_limit is not None:
            row["cost_excess"] = max(0.0, row.get("mean_cost", 0.0) - cost_limit)
        return row

    def _play(
        self, policy: LearntPolicy, whole: bool
    ) -> tuple[Sequence[float] | FloatArray, Sequence[int] | NDArray[np.int64], Sequence[Episode]]:
        """Returns and lengths of the episodes, and the episodes themselves. Those are left out where the policy can
        `play` all of them in one call and nobody asks for `whole` ones."""
        config = self.config
        with self._environments() as envs:
            if not whole and (played := policy.play(envs, config.seeds)) is not None:
                returns, lengths = played
                return returns, lengths, ()
            episodes = run_episodes(envs, policy.act, config.seeds, np.random.default_rng(0))
        return [episode.episode_return for episode in episodes], [episode.length for episode in episodes], episodes

    def _successes(self, returns: Sequence[float] | FloatArray, told: Sequence[Episode]) -> list[bool]:
        """Of the episodes of which it is known. Those that a policy can `play` by itself tell nothing of it."""
        verdicts = [episode.success for episode in told] or [None] * len(returns)
        found = [
            succeeded(verdict, float(earned), self.config.success_return, self._reward_threshold)
            for verdict, earned in zip(verdicts, returns, strict=True)
        ]
        return [success for success in found if success is not None]

    @contextmanager
    def _environments(self) -> Iterator[VectorEnv[Any, Any, Any]]:
        """As good as new; afterwards kept, or closed where they would not be the next time."""
        if self._envs is None:
            self._envs = self._make_envs(min(self.config.num_episodes, MAX_ENVS), "disabled")
        else:
            self._envs.renew()  # type: ignore[attr-defined]  # else they had been closed
        try:
            yield self._envs
        finally:
            if not hasattr(self._envs, "renew"):
                self.close()

    def close(self) -> None:
        """Close the environments that are kept from one validation to the next."""
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()

    def judge(self, row: Json, policy: LearntPolicy) -> None:
        """Add the row that `play` gave, here or in an equal validation, to `rows`, and keep a copy of the policy's
        arrays if it is the best so far."""
        self.rows.append(row)
        mean = row["mean_return"]
        excess = row.get("cost_excess", 0.0)
        if (-excess, mean) >= (-self.best_excess, self.best_return):
            self.best_return, self.best_excess, self.best_step = mean, excess, row["step"]
            self.best = policy.arrays()
        less = excess < self._reference_excess * (1.0 - _LESS)
        more = excess <= self._reference_excess and mean > self._reference + self.config.min_improvement
        if less or more:
            self._reference, self._reference_excess, self._without_progress = mean, excess, 0
        else:
            self._without_progress += 1

    def stop_reason(self) -> str | None:
        """Why training should end after the last validation: `stop_at_return`, `stagnation`, or None to go on."""
        config = self.config
        if config.stop_at_return is not None and self._reached() >= config.stop_after_validations:
            return "stop_at_return"
        if config.patience is not None and self._without_progress >= config.patience:
            return "stagnation"
        return None

    def _reached(self) -> int:
        """How many validations in a row, up to the last one, reached `stop_at_return` within the limit on costs."""
        count = 0
        for row in reversed(self.rows):
            if row["mean_return"] < self.config.stop_at_return or row.get("cost_excess", 0.0) > 0.0:
                break
            count += 1
        return count

    def state_dict(self) -> Json:
        """Curves, best figures and counters, as JSON values; the best policy's arrays are in `best`."""
        return {
            "rows": self.rows.copy(),
            "best_step": self.best_step,
            "best_return": self.best_return if self.rows else None,
            "reference": self._reference if self.rows else None,
            "best_excess": self.best_excess if self.rows else None,
            "reference_excess": self._reference_excess if self.rows else None,
            "without_progress": self._without_progress,
        }

    def load_state_dict(self, state: Json, best: dict[str, NDArray[Any]]) -> None:
        """Restore curves and counters from `state_dict()`, and the best policy's arrays, `best`."""
        self.rows, self.best, self.best_step = list(state["rows"]), best, state["best_step"]
        self._without_progress = state["without_progress"]
        if self.rows:
            self.best_return, self._reference = state["best_return"], state["reference"]
            self.best_excess, self._reference_excess = state["best_excess"], state["reference_excess"]

"""Algorithms of third parties that do not derive from the base class, for one release as if they did."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.base import Algorithm, CollectedRollout, LearntPolicy, PlayedEpisodes, RolloutCollector, State
from loomrl.errors import ConfigError
from loomrl.types import Act, ActFunction, Trajectory

_REQUIRED = ("num_envs", "rollout_length", "policy", "act", "update", "state_dict", "load_state_dict")


def adopted(built: Any, name: str) -> Algorithm:
    """The algorithm itself where it derives from `Algorithm`, else one that hands everything on to it, with a
    DeprecationWarning.

    Raises:
        ConfigError: when it has not all that an algorithm needs, naming what is missing.
    """
    if isinstance(built, Algorithm):
        return built
    kind = f"{type(built).__module__}.{type(built).__qualname__}"
    if absent := [member for member in _REQUIRED if not hasattr(built, member)]:
        raise ConfigError(
            f"algorithm {name!r}: {kind} lacks {', '.join(absent)}; derive it from loomrl.algorithms.base.Algorithm"
        )
    warnings.warn(
        f"algorithm {name!r}: {kind} does not derive from loomrl.algorithms.base.Algorithm, which the next release "
        "asks for; derive it, and let its collector take `collect(num_steps, rng)`",
        DeprecationWarning,
        stacklevel=3,
    )
    return AdoptedAlgorithm(built)


class AdoptedAlgorithm(Algorithm):
    """Hands everything on to an algorithm that does not derive from the base class; what that one lacks is as in the
    base class."""

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self.num_envs, self.rollout_length = algorithm.num_envs, algorithm.rollout_length
        self.engine = getattr(algorithm, "engine", Algorithm.engine)
        self.device = getattr(algorithm, "device", Algorithm.device)
        policy = algorithm.policy
        self._stepped = None if hasattr(policy, "play") else SteppedPolicy(policy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)

    @property
    def cost_limit(self) -> float | None:
        limit: float | None = getattr(self._algorithm, "cost_limit", None)
        return limit

    @property
    def policy(self) -> LearntPolicy:
        policy: LearntPolicy = self._stepped or self._algorithm.policy
        return policy

    def act(self, obs: NDArray[Any], rng: np.random.Generator, **memory: Any) -> Act:
        chosen: Act = self._algorithm.act(obs, rng, **memory)
        return chosen

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        make = getattr(self._algorithm, "collector", None)
        if make is None:
            return super().collector(envs, seed, act)
        made: RolloutCollector = make(envs, seed)
        is_old = "act" in inspect.signature(made.collect).parameters
        return CollectorWithAct(made, act or self._algorithm.act) if is_old else made

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        metrics: dict[str, float] = self._algorithm.update(trajectory, rng)
        return metrics

    def with_log_prob(self, trajectory: Trajectory) -> Trajectory:
        found: Trajectory = self._algorithm.with_log_prob(trajectory)
        return found

    def state_dict(self) -> State:
        state: State = self._algorithm.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        self._algorithm.load_state_dict(state)

    def close(self) -> None:
        getattr(self._algorithm, "close", super().close)()


class SteppedPolicy:
    """A policy without `play`, whose episodes are stepped."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        actions: NDArray[Any] = self._policy(obs)
        return actions

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> PlayedEpisodes | None:  # noqa: ARG002
        """None: its episodes are stepped."""
        return None


class CollectorWithAct:
    """A collector of the older shape, `collect(act, num_steps, rng)`, with what acts."""

    def __init__(self, collector: Any, act: ActFunction) -> None:
        self._collector, self._act = collector, act

    @property
    def finished(self) -> list[tuple[float, int]]:
        """(return, length) of the episodes that ended since the list was last cleared."""
        found: list[tuple[float, int]] = self._collector.finished
        return found

    @property
    def is_resumable(self) -> bool:
        """Whether episodes go on from `state_dict()`; False where the collector does not say."""
        return getattr(self._collector, "is_resumable", False)

    def collect(self, num_steps: int, rng: np.random.Generator) -> CollectedRollout:
        """The next `num_steps` steps of every environment, with what acts."""
        rollout: CollectedRollout = self._collector.collect(self._act, num_steps, rng)
        return rollout

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The environments and their episodes so far: arrays (B, ...)."""
        state: dict[str, NDArray[Any]] = self._collector.state_dict()
        return state

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> int:
        """Go on from `state_dict()`; returns how many environments begin another episode instead."""
        return int(self._collector.load_state_dict(state))

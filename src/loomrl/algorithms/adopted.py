"""Algorithms of third parties that do not derive from the base class, for one release as if they did."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.base import Algorithm, CollectedRollout, LearntPolicy, PlayedEpisodes, RolloutCollector
from loomrl.errors import ConfigError
from loomrl.types import ActFunction

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


class HandingOn:
    """Hands every public member on that the subclass does not have itself."""

    def __init__(self, to: Any) -> None:
        self._to = to

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._to, name)


def _handed_on(name: str) -> Any:
    """A member that the base class has too, and that must be the other's all the same."""
    return property(lambda self: getattr(self._to, name))


class AdoptedAlgorithm(HandingOn, Algorithm):
    """Hands everything on to an algorithm that does not derive from the base class; what that one lacks is as in the
    base class."""

    def __init__(self, algorithm: Any) -> None:
        super().__init__(algorithm)
        self.num_envs, self.rollout_length = algorithm.num_envs, algorithm.rollout_length
        self.engine = getattr(algorithm, "engine", Algorithm.engine)
        self.device = getattr(algorithm, "device", Algorithm.device)
        policy = algorithm.policy
        self._stepped = None if hasattr(policy, "play") else SteppedPolicy(policy)

    act, update, with_log_prob = _handed_on("act"), _handed_on("update"), _handed_on("with_log_prob")
    state_dict, load_state_dict = _handed_on("state_dict"), _handed_on("load_state_dict")

    @property
    def cost_limit(self) -> float | None:
        limit: float | None = getattr(self._to, "cost_limit", None)
        return limit

    @property
    def policy(self) -> LearntPolicy:
        policy: LearntPolicy = self._stepped or self._to.policy
        return policy

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        make = getattr(self._to, "collector", None)
        if make is None:
            return super().collector(envs, seed, act)
        made: RolloutCollector = make(envs, seed)
        is_old = "act" in inspect.signature(made.collect).parameters
        with_act: Any = CollectorWithAct(made, act or self._to.act) if is_old else made
        return cast(RolloutCollector, with_act)

    def close(self) -> None:
        getattr(self._to, "close", super().close)()


class SteppedPolicy(HandingOn):
    """A policy without `play`, whose episodes are stepped."""

    def __call__(self, obs: NDArray[Any]) -> Any:
        return self._to(obs)

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> PlayedEpisodes | None:  # noqa: ARG002
        """None: its episodes are stepped."""
        return None


class CollectorWithAct(HandingOn):
    """A collector of the older shape, `collect(act, num_steps, rng)`, with what acts."""

    def __init__(self, collector: Any, act: ActFunction) -> None:
        super().__init__(collector)
        self._act = act

    @property
    def is_resumable(self) -> bool:
        """Whether episodes go on from `state_dict()`; False where the collector does not say."""
        return getattr(self._to, "is_resumable", False)

    def collect(self, num_steps: int, rng: np.random.Generator) -> CollectedRollout:
        """The next `num_steps` steps of every environment, with what acts."""
        rollout: CollectedRollout = self._to.collect(self._act, num_steps, rng)
        return rollout

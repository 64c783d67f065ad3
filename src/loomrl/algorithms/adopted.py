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
    """The algorithm that `build` returned, as an `Algorithm`: itself where it derives from that class, else an
    `AdoptedAlgorithm` around it, with a DeprecationWarning. `name` is the plug-in's, for messages.

    Raises:
        ConfigError: when it lacks a member that every algorithm needs, naming what is missing.
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
    """A wrapper: every public member that the subclass does not have itself is read from the object `to`. A name that
    begins with an underscore, or that the object does not have either, raises AttributeError."""

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
    """A wrapper around an algorithm that does not derive from the base class. Calls go to that algorithm, and raise
    what it raises; what it does not have is as in the base class."""

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
        """The wrapped algorithm's limit on the mean cost of an episode; None where it has none, and return alone
        decides."""
        limit: float | None = getattr(self._to, "cost_limit", None)
        return limit

    @property
    def policy(self) -> LearntPolicy:
        """The wrapped algorithm's policy as it is now; one without `play` comes as a `SteppedPolicy`."""
        policy: LearntPolicy = self._stepped or self._to.policy
        return policy

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        """The collector that the wrapped algorithm makes for `envs`, whose episodes begin from `seed`; the base
        class's, which asks `act` or the algorithm's own, where it makes none. `act` also reaches a collector of the
        older shape, `collect(act, num_steps, rng)`."""
        make = getattr(self._to, "collector", None)
        if make is None:
            return super().collector(envs, seed, act)
        made: RolloutCollector = make(envs, seed)
        is_old = "act" in inspect.signature(made.collect).parameters
        with_act: Any = CollectorWithAct(made, act or self._to.act) if is_old else made
        return cast(RolloutCollector, with_act)

    def close(self) -> None:
        """Close the wrapped algorithm; nothing happens where it has no `close`."""
        getattr(self._to, "close", super().close)()


class SteppedPolicy(HandingOn):
    """A wrapper around a policy without `play`: the caller steps its episodes."""

    def __call__(self, obs: NDArray[Any]) -> Any:
        return self._to(obs)

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> PlayedEpisodes | None:  # noqa: ARG002
        """Always None: the policy cannot play whole episodes by itself, so the caller steps the environments."""
        return None


class CollectorWithAct(HandingOn):
    """A wrapper around a collector of the older shape, `collect(act, num_steps, rng)`. It passes on `act`, the function
    that chooses the actions."""

    def __init__(self, collector: Any, act: ActFunction) -> None:
        super().__init__(collector)
        self._act = act

    @property
    def is_resumable(self) -> bool:
        """Whether episodes go on from `state_dict()`; False where the collector does not say."""
        return getattr(self._to, "is_resumable", False)

    def collect(self, num_steps: int, rng: np.random.Generator) -> CollectedRollout:
        """The rollout of the next `num_steps` steps in every environment, with actions that the `act` given to this
        wrapper chooses. Raises what the wrapped collector raises."""
        rollout: CollectedRollout = self._to.collect(self._act, num_steps, rng)
        return rollout

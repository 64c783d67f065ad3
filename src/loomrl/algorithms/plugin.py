"""A plug-in as LoomRL calls it: what its module offers, and a default for all that it may leave out."""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import gymnasium

from loomrl.algorithms.adopted import adopted
from loomrl.algorithms.base import ALONE, Algorithm, AlgorithmPlugin, TrainingContext, check_members
from loomrl.algorithms.members import describe_slip, misspelt
from loomrl.algorithms.peers import ALONE as NO_PEERS
from loomrl.algorithms.peers import LearnerGroup
from loomrl.errors import ConfigError
from loomrl.system.schema import Section

if TYPE_CHECKING:
    from loomrl.algorithms.policies.policy import TrainedPolicy

MEMBERS = frozenset({"NAME", "Config", "build", "Policy", "choose_engine", "for_backend", "ACTS_BY_POLICY"})
_CONTEXT, _PEERS = "context", "peers"  # what `build` may take besides, by these names
_FORMER_CONTEXT = "surroundings"  # until the next release
_BUILD = frozenset({"seed", "total_env_steps", _CONTEXT, _FORMER_CONTEXT, _PEERS})


@dataclass(frozen=True)
class LoadedPlugin:
    """An algorithm that was found. The fields have the names of the module's members.

    `NAME` is what configs ask for, `Config` the class of its parameters, `module` the plug-in itself. `Policy` is the
    class of its policies; None: `ActorCriticPolicy`. `ACTS_BY_POLICY` says that acting depends on nothing but the
    policy's arrays, so that others who have them can collect for it; the algorithm then has `with_log_prob`.
    `takes_peers` says that its `build` takes `peers`, so that several learners can learn one policy; `takes_context`
    that it takes a `TrainingContext`.
    """

    NAME: str
    Config: type[Section]
    module: Any
    Policy: "type[TrainedPolicy] | None"
    ACTS_BY_POLICY: bool
    takes_peers: bool
    takes_context: bool

    @classmethod
    def of(cls, plugin: AlgorithmPlugin, place: str) -> Self:
        """Read what a plug-in, a module or an object with NAME, Config and build, offers; optional members get their
        defaults. `place` says where it comes from, for messages.

        Raises:
            ConfigError: for a member, or an argument of `build`, that nearly has the name of a known one, naming both.
        """
        names = {name for name in dir(plugin) if not isinstance(getattr(plugin, name, None), ModuleType)}
        if (found := misspelt(names, MEMBERS)) is not None:
            raise ConfigError(f"{place}: {describe_slip(*found)}")
        arguments = set(inspect.signature(plugin.build).parameters)
        if (found := misspelt(arguments, _BUILD)) is not None:
            raise ConfigError(f"{place}: build takes {found[0]!r}, which nobody gives; did you mean {found[1]!r}?")
        return cls(
            NAME=plugin.NAME,
            Config=plugin.Config,
            module=plugin,
            Policy=getattr(plugin, "Policy", None),
            ACTS_BY_POLICY=getattr(plugin, "ACTS_BY_POLICY", False),
            takes_peers=_PEERS in arguments,
            takes_context=not arguments.isdisjoint({_CONTEXT, _FORMER_CONTEXT}),
        )

    def choose_engine(
        self, config: Any, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str:
        """The name of the engine on which `build` learns in these two spaces: "torch" where the plug-in has no choice.

        Raises:
            ConfigError: when the engine that is asked for cannot learn in these spaces.
        """
        return str(self.module.choose_engine(config, observation_space, action_space)) if self.has_engines else "torch"

    @property
    def has_engines(self) -> bool:
        """Whether the plug-in chooses between engines."""
        return hasattr(self.module, "choose_engine")

    def for_backend(self, config: Any, backend: str) -> Section:
        """The config, adapted to environments of the back-end `backend`; unchanged where the plug-in has no
        `for_backend`.

        Raises:
            ConfigError: for a back-end from which the algorithm does not learn; that is "device" where the plug-in has
                no `for_backend`.
        """
        adapted: Section = config
        if hasattr(self.module, "for_backend"):
            adapted = self.module.for_backend(config, backend)
        elif backend == "device":
            raise ConfigError(
                f"environment.backend: {backend} gives tensors, from which algorithm {self.NAME!r} does not learn; "
                'set it to "auto", or training.algorithm to ppo'
            )
        return adapted

    def build(
        self,
        config: Any,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        seed: int,
        total_env_steps: int,
        context: TrainingContext = ALONE,
        peers: LearnerGroup = NO_PEERS,
    ) -> Algorithm:
        """Make the algorithm for one pair of spaces. `context` and `peers` reach a plug-in whose `build` takes them;
        others are built without them.

        Raises:
            ConfigError: for spaces it cannot handle; for a member of the algorithm that is misspelt or missing.
        """
        build: Callable[..., Any] = self.module.build
        besides = accepted_arguments(build, context, peers)
        built = build(config, observation_space, action_space, seed=seed, total_env_steps=total_env_steps, **besides)
        check_members(type(built), instance=built)
        algorithm = adopted(built, self.NAME)
        self._require(algorithm)
        return algorithm

    def _require(self, algorithm: Algorithm) -> None:
        """What cannot be abstract."""
        if absent := [name for name in ("num_envs", "rollout_length") if not hasattr(algorithm, name)]:
            raise ConfigError(f"algorithm {self.NAME!r}: {type(algorithm).__name__} must set {' and '.join(absent)}")
        if self.ACTS_BY_POLICY and type(algorithm).with_log_prob is Algorithm.with_log_prob:
            raise ConfigError(
                f"algorithm {self.NAME!r} says ACTS_BY_POLICY, but {type(algorithm).__name__} has no with_log_prob"
            )


def accepted_arguments(build: Callable[..., Any], context: TrainingContext, peers: LearnerGroup) -> dict[str, Any]:
    """Those of the optional arguments `context` and `peers` that a plug-in's `build` takes, by name.

    For one release a `build` that takes the context under its former name, `surroundings`, is given it too, with a
    DeprecationWarning.
    """
    accepted = inspect.signature(build).parameters
    offered: dict[str, Any] = {_CONTEXT: context, _PEERS: peers}
    if _FORMER_CONTEXT in accepted:
        renamed = "`build` takes `surroundings`, which is `context` now; the old name ends with the next release"
        warnings.warn(f"{build.__module__}: {renamed}", DeprecationWarning, stacklevel=2)
        offered[_FORMER_CONTEXT] = context
    return {name: value for name, value in offered.items() if name in accepted}

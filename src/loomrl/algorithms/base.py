"""What an algorithm is. A plug-in is one module (or object) that offers `NAME`, `Config` and `build`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.members import describe_slip, misspelt
from loomrl.environment.collecting.collector import Collector
from loomrl.errors import ConfigError
from loomrl.system.schema import Section
from loomrl.types import Act, ActFunction, FloatArray, Trajectory

PlayedEpisodes = tuple[FloatArray, NDArray[np.int64]]  # returns and lengths, one of each for every seed
State = dict[str, NDArray[Any] | int | float | str]  # arrays go into safetensors, the rest into JSON


MOST_UNSAVED_SEGMENTS = 4  # a training that keeps an algorithm's files saves its state at least so often


@dataclass(frozen=True)
class TrainingContext:
    """What an algorithm may know of the training it is part of. The defaults are those of a training that offers
    nothing.

    `folder` is for files that the algorithm keeps on the disk in place of memory; None: there is no such folder. An
    algorithm that uses it makes it in `build`. It stays as long as the run's checkpoints. A state is saved after at
    most `MOST_UNSAVED_SEGMENTS` segments of `segment_env_steps` environment steps (rounded up to whole updates). Until
    then the files must hold what the newest saved state refers to, even if the process is killed.

    `frame_places` (k, n) is for environments whose observation stacks the last k frames (`environment.frame_stack`):
    row i holds the places of the n values of frame i in the flat observation, the oldest frame first. None: frames are
    not stacked.
    """

    folder: Path | None = None
    segment_env_steps: int = 1
    frame_places: NDArray[np.int64] | None = None


ALONE = TrainingContext()


def below(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries whose names begin with `prefix`, by the rest of their names; empty where there are none."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def settle_engine(asked: str, obstacle: str | None, num_threads: int | None = None) -> str:
    """The name of the engine that learns: "compiled", "torch" or "device".

    Args:
        asked: what the config asks for: one of these names, or "auto" for "compiled" where there is no obstacle, else
            "torch".
        obstacle: what keeps the policy from being compiled, as words for a message; None: nothing does.
        num_threads: how many threads the config asks for; None leaves it to the engine.

    Raises:
        ConfigError: for "compiled" where there is an obstacle, naming it; for `num_threads` above 1 on any engine but
            the compiled one.
    """
    if asked == "compiled" and obstacle is not None:
        raise ConfigError(f"training.parameters.engine: compiled cannot learn {obstacle}; set it to auto or torch")
    engine = asked if asked != "auto" else "compiled" if obstacle is None else "torch"
    if engine != "compiled" and num_threads is not None and num_threads > 1:
        raise ConfigError(
            f"training.parameters.num_threads: found {num_threads}, but only the compiled engine shares its work "
            f"between threads, and this policy learns on engine {engine}; leave num_threads out"
        )
    return engine


class LearntPolicy(Protocol):
    """What training needs of a policy: `TrainedPolicy` in torch, or a compiled engine's own. Observations of another
    shape than the space's raise ConfigError."""

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Observations (B, *obs) -> greedy actions (B, *action)."""

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Observations (B, *obs) -> greedy actions (B, *action), with values (B,) where the policy has them."""

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> PlayedEpisodes | None:
        """Play one greedy episode for each seed in one call: returns and lengths, in the order of the seeds. None where
        the policy cannot play in these environments: the caller then steps them itself.

        Raises:
            EnvironmentFault: for an observation or a reward that is not finite, or an episode that does not end.
            LoomRLError: when the policy's outputs are not finite.
        """

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of all that is learnt, by the names `load_policy` knows."""

    def load_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Overwrite the policy's arrays with copies of those that `arrays()` of an equal policy returned, by name."""

    def save(self, folder: Path) -> None:
        """Write the policy to `policy.safetensors` and `policy.json` in `folder`, which is made where it does not
        exist."""


class CollectedRollout(Protocol):
    """What a collector gives and its algorithm learns from: `loomrl.types.Trajectory`, or another kind."""

    @property
    def num_transitions(self) -> int:
        """Steps times environments: T x B."""

    def unusable_reward(self) -> tuple[int, float] | None:
        """The first environment with a reward that float32 cannot hold, and that reward; None where there is none."""


class RolloutCollector(Protocol):
    """Steps environments for an algorithm. What chooses the actions is settled when a collector is made; `collect` only
    asks for more steps. Episodes go on from one `collect` to the next."""

    @property
    def finished(self) -> list[tuple[float, int]]:
        """(return, length) of every episode that ended since the caller last cleared the list."""

    @property
    def is_resumable(self) -> bool:
        """Whether episodes go on from `state_dict()`. Where not, training ends all of them at a checkpoint, by the
        rollout's `cut()`, which `Trajectory` has."""

    def collect(self, num_steps: int, rng: np.random.Generator) -> CollectedRollout:
        """The rollout of the next `num_steps` steps in every environment; `rng` draws the noise of the actions.

        Raises:
            EnvironmentFault: when an environment breaks its API, or gives a value that is not finite.
            LoomRLError: when an action is not finite.
        """

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The environments and their episodes so far: arrays (B, ...)."""

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> int:
        """Go on from `state_dict()` of as many environments; returns how many begin another episode instead."""


class Algorithm(ABC):
    """Learns from trajectories. Acting for evaluation and serving is the business of its `policy`.

    A subclass sets `num_envs` and `rollout_length` (steps in each environment between two updates), writes the abstract
    members, and overrides those whose default does not fit. `engine` names what computes its updates, `device` where
    they run: "cpu", or the GPU's name. A subclass may have members of its own besides. One whose name nearly is that of
    a member which the subclass does not have raises `ConfigError`, with both names, as soon as the class is made.
    """

    num_envs: int
    rollout_length: int  # steps in each environment between two updates
    engine: str = "torch"  # what computes its updates
    device: str = "cpu"  # what it runs on: "cpu", or the GPU's name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_members(cls)

    @property
    def cost_limit(self) -> float | None:
        """The limit on the mean cost of an episode. Validation prefers policies within it, whatever their return. None:
        return alone decides."""
        return None

    @property
    @abstractmethod
    def policy(self) -> LearntPolicy:
        """The policy as it is now: the same object all along, changed by `update`."""

    @abstractmethod
    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Explore: sample actions (B, *action) for raw observations (B, *obs)."""

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        """A collector of this algorithm's rollouts in `envs`, whose episodes begin from `seed`.

        By default a `Collector`, which asks `act` in every step, or the algorithm's own `act` where it is None. A
        collector that acts in another way need not ask it.
        """
        return Collector(envs, seed, act or self.act)

    @abstractmethod
    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Learn from one trajectory, or from whatever rollout the algorithm's own collector gives. Returns metrics by
        name, as a rule means over the gradient steps; a figure that is not finite is a value like others, and the
        caller ends the training."""

    def with_log_prob(self, trajectory: Trajectory) -> Trajectory:
        """The same trajectory, with the log-probabilities of its actions by the policy as it is now, `log_prob` (T, B),
        in its extras: for learning from it after an update. Required where the plug-in says `ACTS_BY_POLICY`.

        Raises:
            NotImplementedError: where the algorithm has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no with_log_prob, which ACTS_BY_POLICY asks for")

    @abstractmethod
    def state_dict(self) -> State:
        """All state that a bit-identical continuation needs: arrays, numbers and texts by name."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm.

        Raises:
            ArtifactError: when files of its own do not hold what the state refers to; nothing has changed.
        """

    def close(self) -> None:
        """Close the files that the algorithm keeps. By default it has none."""
        return


MEMBERS = frozenset(name for name in (*vars(Algorithm), *Algorithm.__annotations__) if not name.startswith("_"))


def check_members(kind: type, *, instance: object | None = None) -> None:
    """Refuse a public member that nearly has the name of an algorithm's member which is not there.

    `kind` is the class; with `instance`, what that object holds itself counts too.

    Raises:
        ConfigError: naming the member and the nearest right one.
    """
    offered = {name for one in kind.__mro__ if one is not Algorithm for name in (*vars(one), *_annotations(one))}
    offered |= set(vars(instance)) if hasattr(instance, "__dict__") else set()
    if (found := misspelt(offered, MEMBERS)) is not None:
        raise ConfigError(f"{kind.__module__}.{kind.__qualname__}.{describe_slip(*found)}")


def _annotations(kind: type) -> dict[str, Any]:
    return dict(vars(kind).get("__annotations__", {}))


@runtime_checkable
class AlgorithmPlugin(Protocol):
    """What a plug-in, a module or an object, must offer: `NAME`, by which configs ask for the algorithm, `Config`, the
    class of its parameters, and `build`. `loomrl.algorithms.plugin.LoadedPlugin` lists what it may offer besides, with
    the defaults."""

    NAME: str
    Config: type[Section]

    def build(
        self,
        config: Any,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        seed: int,
        total_env_steps: int,
    ) -> Algorithm:
        """Make the algorithm for one pair of spaces, with first weights that follow from `seed`; `total_env_steps` is
        where its schedules end.

        Raises:
            ConfigError: for spaces the algorithm cannot handle.
        """

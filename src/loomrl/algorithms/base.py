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
    """What an algorithm may know of the training it is part of. The defaults are those of one that has none.

    `folder`, which whoever uses it makes in `build`, is there for files that stand beside the run's checkpoints, in
    place of memory. Whoever gives it keeps it for as long, and saves a state after at most `MOST_UNSAVED_SEGMENTS`
    segments of `segment_env_steps` (rounded up to whole updates). So long must the files hold what the newest saved
    state refers to, whenever the process is killed.

    `frame_places` (k, n) says, where an observation is the last k of an environment (`environment.frame_stack`), at
    which places of the flat observation the n values of each stand, the oldest first.
    """

    folder: Path | None = None
    segment_env_steps: int = 1
    frame_places: NDArray[np.int64] | None = None


ALONE = TrainingContext()


def below(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries whose names begin with a prefix, by what follows it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def settle_engine(asked: str, obstacle: str | None, num_threads: int | None = None) -> str:
    """`compiled` or `torch`, from what the config asks for (`auto`, too) and what keeps the policy from being compiled;
    `device`, where that is asked for. `num_threads` None is what the engine takes by itself.

    Raises:
        ConfigError: for `compiled` where there is such an obstacle, naming it; for `num_threads: 2` where it would
            change nothing, on any engine but the compiled one.
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
    """What training needs of a policy: `TrainedPolicy` in torch, or a compiled engine's own."""

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Observations (B, *obs) -> greedy actions (B, *action)."""

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Observations (B, *obs) -> greedy actions (B, *action), with values (B,) where the policy has them."""

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> PlayedEpisodes | None:
        """One greedy episode for each seed in one call: returns and lengths, in the order of the seeds. None where it
        cannot: the caller then steps the environments itself."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of all that is learnt, by the names `load_policy` knows."""

    def load_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Overwrite the policy's arrays with copies of those that `arrays()` returned, by name."""

    def save(self, folder: Path) -> None:
        """Write the policy to `policy.safetensors` and `policy.json` in `folder`, which exists."""


class CollectedRollout(Protocol):
    """What a collector gives and its algorithm learns from: `loomrl.types.Trajectory`, or another kind."""

    @property
    def num_transitions(self) -> int:
        """Steps times environments: T x B."""

    def unusable_reward(self) -> tuple[int, float] | None:
        """The first environment with a reward that float32 cannot hold, and that reward; None where there is none."""


class RolloutCollector(Protocol):
    """Steps environments for an algorithm. Who makes one names what acts; `collect` only asks for more.

    Episodes go on from one `collect` to the next.
    """

    @property
    def finished(self) -> list[tuple[float, int]]:
        """(return, length) of every episode that ended since the caller last cleared the list."""

    @property
    def is_resumable(self) -> bool:
        """Whether episodes go on from `state_dict()`. Where not, training ends all of them at a checkpoint, by the
        rollout's `cut()`, which `Trajectory` has."""

    def collect(self, num_steps: int, rng: np.random.Generator) -> CollectedRollout:
        """The next `num_steps` steps of every environment."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The environments and their episodes so far: arrays (B, ...)."""

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> int:
        """Go on from `state_dict()` of as many environments; returns how many begin another episode instead."""


class Algorithm(ABC):
    """Learns from trajectories. Acting for evaluation and serving is its `policy`'s business.

    A subclass sets `num_envs` and `rollout_length`, writes the abstract members, and overrides those whose default does
    not fit. It may have members of its own besides. One whose name nearly is that of a member which the subclass does
    not have raises `ConfigError`, with both names, as soon as the class is made.
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
        """What an episode may cost in the mean. Validation prefers policies within it, whatever their return; None:
        return alone decides."""
        return None

    @property
    @abstractmethod
    def policy(self) -> LearntPolicy:
        """The policy as it is now: the same object all along, changed by `update`."""

    @abstractmethod
    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Explore: sample actions for raw observations (B, *obs)."""

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        """What collects for it in `envs`, whose episodes begin from `seed`. By default a `Collector`, which asks `act`
        in every step, or the algorithm's own where it is None. One that acts in another way need not ask it."""
        return Collector(envs, seed, act or self.act)

    @abstractmethod
    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Learn from one trajectory, or whatever its own collector gives, and return metrics."""

    def with_log_prob(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with `log_prob` (T, B) of its actions by the policy as it is now, in its extras, for learning
        from it after an update. Required where the plug-in says `ACTS_BY_POLICY`.

        Raises:
            NotImplementedError: where the algorithm has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no with_log_prob, which ACTS_BY_POLICY asks for")

    @abstractmethod
    def state_dict(self) -> State:
        """Everything that continuing to the bit needs."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm.

        Raises:
            ArtifactError: when files of its own do not hold what the state refers to; nothing has changed.
        """

    def close(self) -> None:
        """Let go of its files. By default it has none."""
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
    """The three names that a plug-in, a module or an object, must offer. `loomrl.algorithms.plugin.LoadedPlugin` lists
    those it may offer besides, with their defaults."""

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
        """Make the algorithm for one pair of spaces; raises `ConfigError` for spaces it cannot handle."""

"""What an algorithm is. A plug-in is one module (or object) that offers `NAME`, `Config` and `build`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ConfigError
from loomrl.system.schema import Section
from loomrl.types import Act, Trajectory

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


def settle_engine(asked: str, obstacle: str | None) -> str:
    """`compiled` or `torch`, from what the config asks for (`auto`, too) and what keeps the policy from being compiled.

    Raises:
        ConfigError: for `compiled` where there is such an obstacle, naming it.
    """
    if asked == "compiled" and obstacle is not None:
        raise ConfigError(f"training.parameters.engine: compiled cannot learn {obstacle}; set it to auto or torch")
    return "torch" if asked == "torch" or obstacle is not None else "compiled"


def check_threads(engine: str, num_threads: int | None) -> None:
    """Refuse `num_threads: 2` where it would change nothing; None is what the engine takes by itself.

    Raises:
        ConfigError: naming the key, for any engine but the compiled one.
    """
    if engine != "compiled" and num_threads is not None and num_threads > 1:
        raise ConfigError(
            f"training.parameters.num_threads: found {num_threads}, but only the compiled engine shares its work "
            f"between threads, and this policy learns on engine {engine}; leave num_threads out"
        )


class LearntPolicy(Protocol):
    """What training needs of a policy: `TrainedPolicy` in torch, or a compiled engine's own."""

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Observations (B, *obs) -> greedy actions (B, *action)."""

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Observations (B, *obs) -> greedy actions (B, *action), with values (B,) where the policy has them."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of all that is learnt, by the names `load_policy` knows."""

    def load_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Overwrite the policy's arrays with copies of those that `arrays()` returned, by name."""

    def save(self, folder: Path) -> None:
        """Write the policy to `policy.safetensors` and `policy.json` in `folder`, which exists."""


class Algorithm(Protocol):
    """Learns from trajectories. Acting for evaluation and serving is its `policy`'s business.

    It may also offer `collector(envs, seed)`, a `loomrl.environment.collecting.collector.Collector` of its own,
    `engine`, the name of what computes its updates, `device`, the name of what it runs on, `close()`, which lets go of
    its files, `cost_limit`, what an episode may cost in the mean for validation to prefer a policy for its return, and
    its policy `play(envs, seeds)`: see `loomrl.algorithms.compiled.policy`. What its own collector gives may be another
    kind of trajectory, with `num_transitions` and `unusable_reward()` as `Trajectory` has them; and `cut()` where the
    collector is not resumable, so that training ends all episodes at a checkpoint.
    """

    num_envs: int
    rollout_length: int  # steps in each environment between two updates

    @property
    def policy(self) -> LearntPolicy:
        """The policy as it is now: the same object all along, changed by `update`."""

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Explore: sample actions for raw observations (B, *obs)."""

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Learn from one trajectory and return metrics."""

    def state_dict(self) -> State:
        """Everything that continuing to the bit needs."""

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm.

        Raises:
            ArtifactError: when files of its own do not hold what the state refers to; nothing has changed.
        """


@runtime_checkable
class AlgorithmPlugin(Protocol):
    """The three names a plug-in offers.

    It may also offer `choose_engine(config, observation_space, action_space)`, the engine that `build` takes, and
    `for_backend(config, backend)`, the config as it is for environments of a back-end, which must be there for those of
    the back-end "device". Its `build` may also take `context`, a `TrainingContext`, by that name. `ACTS_BY_POLICY`
    says that `act` depends on nothing but the policy's arrays, so that others who have them can collect for it; its
    algorithms then offer `with_log_prob(trajectory)`, which keeps what learning from it later needs.
    """

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

"""The trained policy: from raw observations to actions, with everything it needs inside.

Its files are `policy.safetensors` (weights and normaliser) and `policy.json` (what to build before loading them).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import safetensors.torch
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from loomrl.algorithms.architecture import ARCHITECTURE, WEIGHTS, PolicyArchitecture
from loomrl.algorithms.base import PlayedEpisodes
from loomrl.algorithms.networks.preprocessing import ObservationNormalizer, Preprocessor
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.policies.distributions import Distribution
from loomrl.environment.spaces import space_from_json, space_to_json
from loomrl.environment.wrappers.flat import FlatBox, is_one_array
from loomrl.errors import ConfigError
from loomrl.system.files import atomic_path
from loomrl.types import Act, Json

__all__ = ["ARCHITECTURE", "WEIGHTS", "PolicyArchitecture", "TrainedPolicy"]

ROWS = 16  # batches are padded to a multiple: see TrainedPolicy._padded


class TrainedPolicy(nn.Module, ABC):
    """What every policy shares: spaces, preprocessor, normaliser, greedy acting and files.

    A subclass adds its networks and `forward`, and names its `distribution_over` actions. `output_names` are the names
    that `forward` gives, in the order of the exported graph's outputs. `network_keys` are those of
    `PolicyArchitecture.network` that it is built by. `memory_size` is the number of columns of a recurrent policy's
    memory; 0: it has none. `normalizer` is None where observations are not normalised.

    Its constructor takes the architecture and, for fresh weights, a generator: `load_policy` builds it again from
    `policy.json` alone.
    """

    memory_size = 0  # columns of the memory that a recurrent policy's `forward` takes beside observations
    output_names: tuple[str, ...]  # names `forward` gives, in the order of the exported graph's outputs
    network_keys: frozenset[str] = frozenset()  # what the class is built by beside sizes and activation
    distribution: Distribution | None

    def __init__(self, architecture: PolicyArchitecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.observation_space = space_from_json(architecture.observation)
        self.action_space = space_from_json(architecture.action)
        self.preprocessor = Preprocessor(self.observation_space)
        normalized = architecture.normalize_observations and self.preprocessor.dense_dim > 0  # images are only scaled
        self.normalizer = ObservationNormalizer(self.preprocessor.dense_dim) if normalized else None
        self.distribution = self.distribution_over(self.action_space, architecture.network)

    @classmethod
    def for_spaces(
        cls,
        algorithm: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        hidden_sizes: Sequence[int],
        activation: str,
        normalize_observations: bool = False,
        generator: torch.Generator | None = None,
        **network: Any,
    ) -> Self:
        """A fresh policy for two spaces; structured observations become vectors of a `FlatBox`. `network` are values by
        the class's `network_keys`, as `policy.json` keeps them.

        Raises:
            ConfigError: for spaces it cannot handle.
            TypeError: for a key that is none of `network_keys`.
        """
        if unknown := sorted(network.keys() - cls.network_keys):
            raise TypeError(f"{cls.__name__}.for_spaces got unknown {', '.join(unknown)}")
        cls.distribution_over(action_space, network)  # names an unsupported space before it is written as JSON
        flat = observation_space if is_one_array(observation_space) else FlatBox(observation_space)
        architecture = PolicyArchitecture(
            algorithm=algorithm,
            observation=space_to_json(flat),
            action=space_to_json(action_space),
            hidden_sizes=list(hidden_sizes),
            activation=activation,
            normalize_observations=normalize_observations,
            network=network,
        )
        build: Callable[..., Self] = cls
        return build(architecture, generator)

    @classmethod
    def distribution_over(cls, space: gymnasium.Space[Any], network: Json) -> Distribution | None:  # noqa: ARG003
        """The distribution over the actions of a space; `network` is the architecture's `network`. None where a policy
        needs no such object.

        Raises:
            ConfigError: for a space that the policy cannot act in.
        """
        return None

    @property
    def is_discrete(self) -> bool:
        """Whether the action space is Discrete, so that an action is one index."""
        return isinstance(self.action_space, gymnasium.spaces.Discrete)

    @property
    def action_kind(self) -> str:
        """The manifest's word for what an action is: "discrete", "multi_discrete", "multi_binary", "continuous" (a
        clipped Gaussian) or "squashed"."""
        if self.distribution is not None:
            return self.distribution.kind
        return "discrete" if self.is_discrete else "continuous"

    def features(self, obs: Tensor) -> Tensor:
        """Raw observations (B, *obs) -> the networks' inputs (B, dim): preprocessed, and normalised where there is a
        normaliser."""
        features: Tensor = self.preprocessor(obs)
        return self.normalizer(features) if self.normalizer is not None else features

    def learn_statistics(self, obs: NDArray[Any], peers: LearnerGroup = ALONE) -> None:
        """Merge observations of a trajectory (T, B, *obs), and those of other learners, into the normaliser's
        statistics, where there is one."""
        if self.normalizer is not None:
            rows = torch.from_numpy(obs.reshape(-1, *obs.shape[2:]))
            self.normalizer.update(self.preprocessor(rows).numpy(), peers)

    @abstractmethod
    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Raw observations (B, *obs) -> greedy `action` (B, *action), `value` (B,) and the action's distribution:
        `logits` (B, n), or `mean` and `log_std` (B, dim). This is what export traces."""

    def greedy(self, obs: Tensor) -> Tensor:
        """Raw observations (B, *obs) -> greedy actions (B, *action): those of `forward`, without what else it says."""
        return self.forward(obs)["action"]

    def discrete_action(self, index: Tensor) -> Tensor:
        """Indices of logits (N,) -> actions (N,) of the action space, which may begin above 0."""
        assert isinstance(self.action_space, gymnasium.spaces.Discrete)
        start = int(self.action_space.start)
        return index + start if start else index

    # --- acting ---

    def __call__(self, obs: Any) -> Any:
        """NumPy observations (B, *obs) -> greedy actions (B, *action); a tensor goes to `forward`, as torch expects.

        Raises:
            ConfigError: when the observations do not have the space's shape.
        """
        if isinstance(obs, Tensor):
            return super().__call__(obs)
        obs = np.asarray(obs)
        with torch.no_grad():
            action = self.greedy(self._padded(obs))
        return self._row_answers(obs, {"action": action})["action"]

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:  # noqa: ARG002 - greedy: draws nothing
        """Observations (B, *obs) -> greedy actions (B, *action) with their values (B,); nothing is drawn from `rng`.

        Raises:
            ConfigError: when the observations do not have the space's shape.
        """
        answer = self._answer(np.asarray(obs))
        return Act(action=answer["action"], value=answer["value"])

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> PlayedEpisodes | None:  # noqa: ARG002
        """Always None: the policy cannot play whole episodes in one call, so the caller steps the environments. A
        subclass may play them: see `loomrl.algorithms.base.LearntPolicy.play`."""
        return None

    def _answer(self, obs: NDArray[Any], *padded: Tensor) -> dict[str, NDArray[Any]]:
        """What `forward` says of observations (B, *obs) and other inputs, which are padded already."""
        with torch.no_grad():
            answer = self.forward(self._padded(obs), *padded)
        return self._row_answers(obs, answer)

    def _padded(self, obs: NDArray[Any]) -> Tensor:
        """Observations (B, *obs), padded to whole tiles. So each row's answer is the same in any batch: matrix kernels
        round differently in a tile's last, partial rows and for a single row."""
        if obs.shape[1:] != self.observation_space.shape:
            raise ConfigError(
                f"observations of shape {obs.shape} reached a policy for batches of {self.observation_space.shape}"
            )
        padded = np.zeros((-(-len(obs) // ROWS) * ROWS, *obs.shape[1:]), obs.dtype)
        padded[: len(obs)] = obs
        return torch.from_numpy(padded)

    def _row_answers(self, obs: NDArray[Any], answer: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
        """The answers to the observations alone, without those to what was padded, in their dtypes."""
        return {name: value.numpy()[: len(obs)].astype(self._dtype(name), copy=False) for name, value in answer.items()}

    def _dtype(self, name: str) -> Any:
        return self.action_space.dtype if name == "action" else np.float32

    # --- state ---

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the weights and of the normaliser's statistics, by name."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.state_dict().items()}

    def load_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Overwrite weights and statistics with those that `arrays()` of an equal policy returned. Arrays of another
        policy raise torch's RuntimeError."""
        self.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})

    def save(self, folder: Path) -> None:
        """Write `policy.safetensors` and `policy.json` to `folder`, which is made where it does not exist. The same
        policy gives the same bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in sorted(self.state_dict().items())}
        with atomic_path(folder / WEIGHTS) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors))
        self.architecture.write(folder / ARCHITECTURE)

"""The trained policy: from raw observations to actions, with everything it needs inside.

Its files are `policy.safetensors` (weights and normaliser) and `policy.json` (what to build before loading them).
"""

import math
from pathlib import Path
from typing import Any, Literal, Self

import gymnasium
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from loomrl.algorithms.networks import CategoricalPolicyHead, GaussianPolicyHead, StateEncoder, ValueHead
from loomrl.algorithms.preprocessing import ObservationNormalizer, Preprocessor
from loomrl.environment.spaces import space_from_json, space_to_json
from loomrl.errors import ArtifactError, ConfigError
from loomrl.files import atomic_path
from loomrl.schema import Document
from loomrl.types import Act, Json

WEIGHTS = "policy.safetensors"
ARCHITECTURE = "policy.json"
ROWS = 16  # batches are padded to a multiple: see TrainedPolicy._evaluate


class PolicyArchitecture(Document):
    """`policy.json`: what the weights belong to. `observation` and `action` are spaces as JSON."""

    format_version: Literal[1] = 1
    algorithm: str
    observation: Json
    action: Json
    hidden_sizes: list[int]
    activation: str
    normalize_observations: bool


class TrainedPolicy(nn.Module):
    """Actor and critic with an encoder each, behind one preprocessor and normaliser.

    Acts greedily: the likeliest discrete action, or the mean of the Gaussian clipped to the action bounds.
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self, architecture: PolicyArchitecture, generator: torch.Generator | None = None, initial_log_std: float = 0.0
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.observation_space = space_from_json(architecture.observation)
        self.action_space = space_from_json(architecture.action)
        self.preprocessor = Preprocessor(self.observation_space)
        dim = self.preprocessor.dim
        self.normalizer = ObservationNormalizer(dim) if architecture.normalize_observations else None
        self.actor = StateEncoder(dim, architecture.hidden_sizes, architecture.activation, generator)
        self.head = self._head(self.actor.output_dim, generator, initial_log_std)
        self.critic = StateEncoder(dim, architecture.hidden_sizes, architecture.activation, generator)
        self.value_head = ValueHead(self.critic.output_dim, generator)

    @classmethod
    def for_spaces(
        cls,
        algorithm: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        hidden_sizes: tuple[int, ...],
        activation: str,
        normalize_observations: bool,
        generator: torch.Generator | None = None,
        initial_log_std: float = 0.0,
    ) -> Self:
        """A fresh policy; raises `ConfigError` for spaces it cannot handle."""
        Preprocessor(observation_space)  # names an unsupported space before it is written as JSON
        _demand_action_space(action_space)
        architecture = PolicyArchitecture(
            algorithm=algorithm,
            observation=space_to_json(observation_space),
            action=space_to_json(action_space),
            hidden_sizes=list(hidden_sizes),
            activation=activation,
            normalize_observations=normalize_observations,
        )
        return cls(architecture, generator, initial_log_std)

    def _head(
        self, width: int, generator: torch.Generator | None, initial_log_std: float
    ) -> CategoricalPolicyHead | GaussianPolicyHead:
        space = self.action_space
        _demand_action_space(space)
        if isinstance(space, gymnasium.spaces.Discrete):
            return CategoricalPolicyHead(width, int(space.n), generator)
        assert isinstance(space, gymnasium.spaces.Box)
        # As float32 and flat; derived from the space, so not saved.
        for name, bound in (("action_low", space.low), ("action_high", space.high)):
            self.register_buffer(name, torch.from_numpy(bound.astype(np.float32).ravel()), persistent=False)
        dim = math.prod(space.shape)
        return GaussianPolicyHead(width, dim, generator=generator, initial_log_std=initial_log_std)

    @property
    def is_discrete(self) -> bool:
        """Whether actions are indices rather than vectors."""
        return isinstance(self.head, CategoricalPolicyHead)

    # --- the network ---

    def features(self, obs: Tensor) -> Tensor:
        """Raw observations (B, *obs) -> what actor and critic take, (B, dim)."""
        features: Tensor = self.preprocessor(obs)
        return self.normalizer(features) if self.normalizer is not None else features

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Raw observations (B, *obs) -> `action` (B, *action), `value` (B,) and `logits` (B, n), or `mean` and
        `log_std` (B, dim)."""
        features = self.features(obs)
        value = self.value_head(self.critic(features))
        if isinstance(self.head, CategoricalPolicyHead):
            logits = self.head.logits(self.actor(features))
            return {"action": self.discrete_action(logits.argmax(-1)), "value": value, "logits": logits}
        mean, log_std = self.head.moments(self.actor(features))
        return {"action": self.bounded(mean), "value": value, "mean": mean, "log_std": log_std.expand_as(mean)}

    def discrete_action(self, index: Tensor) -> Tensor:
        """Index of a logit -> the space's action."""
        assert isinstance(self.action_space, gymnasium.spaces.Discrete)
        start = int(self.action_space.start)
        return index + start if start else index

    def bounded(self, sample: Tensor) -> Tensor:
        """A Gaussian sample (B, dim) -> an action within bounds (B, *action)."""
        action = torch.maximum(torch.minimum(sample, self.action_high), self.action_low)
        shape = self.action_space.shape
        return action if shape is None or len(shape) == 1 else action.reshape(-1, *shape)

    # --- acting ---

    def __call__(self, obs: Any) -> Any:
        """NumPy observations (B, *obs) -> greedy actions (B, *action); a tensor goes to `forward`, as torch expects.

        Raises:
            ConfigError: when the observations do not have the space's shape.
        """
        if isinstance(obs, Tensor):
            return super().__call__(obs)
        return self._evaluate(obs)["action"]

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:  # noqa: ARG002 - greedy: draws nothing
        """Greedy actions with their values."""
        answer = self._evaluate(obs)
        return Act(action=answer["action"], value=answer["value"])

    def _evaluate(self, obs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Each row's answer is the same in any batch: matrix kernels round differently in a tile's last, partial
        rows and for a single row, so the batch is padded to whole tiles."""
        obs = np.asarray(obs)
        if obs.shape[1:] != self.observation_space.shape:
            raise ConfigError(
                f"observations of shape {obs.shape} reached a policy for batches of {self.observation_space.shape}"
            )
        num_rows = len(obs)
        padded = np.zeros((-(-num_rows // ROWS) * ROWS, *obs.shape[1:]), obs.dtype)
        padded[:num_rows] = obs
        with torch.no_grad():
            answer = self.forward(torch.from_numpy(padded))
        return {name: value.numpy()[:num_rows].astype(self._dtype(name), copy=False) for name, value in answer.items()}

    def _dtype(self, name: str) -> Any:
        return self.action_space.dtype if name == "action" else np.float32

    # --- files ---

    def save(self, folder: Path) -> None:
        """Write `policy.safetensors` and `policy.json`, the same bytes for the same policy."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in sorted(self.state_dict().items())}
        with atomic_path(folder / WEIGHTS) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors))
        self.architecture.write(folder / ARCHITECTURE)


def load_policy(folder: Path) -> TrainedPolicy:
    """Read a policy that `TrainedPolicy.save` wrote.

    Raises:
        ArtifactError: naming the file that is missing, torn or does not fit.
    """
    policy = TrainedPolicy(PolicyArchitecture.read(folder / ARCHITECTURE), torch.Generator())
    path = folder / WEIGHTS
    try:
        policy.load_state_dict(safetensors.torch.load(path.read_bytes()))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ArtifactError(f"{path} does not hold this policy's weights: {error}; train it again") from error
    return policy.eval()


def _demand_action_space(space: gymnasium.Space[Any]) -> None:
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    continuous = isinstance(space, gymnasium.spaces.Box) and space.dtype is not None and space.dtype.kind == "f"
    if not discrete and not continuous:
        raise ConfigError(
            f"action space {space} is not supported; supported: Discrete and Box of floats; wrap the environment"
        )

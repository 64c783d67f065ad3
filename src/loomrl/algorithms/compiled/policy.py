"""`ActorCriticPolicy` for dense networks without torch: the same weights under the same names, kernels to act with."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import safetensors.numpy
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.architecture import ARCHITECTURE, WEIGHTS, PolicyArchitecture
from loomrl.algorithms.compiled.dense import Layout, Matrix, Vector
from loomrl.algorithms.compiled.names import ACTIVATIONS
from loomrl.algorithms.compiled.normalizer import Normalizer, normalize
from loomrl.algorithms.compiled.ppo import BLOCK, evaluate
from loomrl.environment.spaces import float32_bounds, space_from_json
from loomrl.errors import ConfigError
from loomrl.system.files import write_atomic
from loomrl.types import Act, FloatArray

Played = tuple[FloatArray, NDArray[np.int64]]


class CompiledPolicy:
    """A dense actor and critic without torch. Acts greedily, as its torch twin `ActorCriticPolicy` does to within
    rounding.

    All weights lie in the vector `parameters`: the `critic`'s, the `actor`'s (each a `Layout`) and, of a Gaussian, the
    log standard deviations (A,). `low` and `high` (A,) are the bounds of continuous actions, `start` is the first
    discrete one. `normalizer` is None where observations are not normalised.
    """

    def __init__(self, architecture: PolicyArchitecture, first: dict[str, NDArray[Any]]) -> None:
        """`first` are the weights to begin with, as `loomrl.algorithms.initial.dense_actor_critic` makes them."""
        self.architecture = architecture
        self.observation_space = space_from_json(architecture.observation)
        self.action_space = space_from_json(architecture.action)
        self.is_discrete = isinstance(self.action_space, gymnasium.spaces.Discrete)
        self.start = int(getattr(self.action_space, "start", 0))
        self.activation = ACTIVATIONS[architecture.activation]
        sizes, num_outputs = architecture.hidden_sizes, len(first[f"{self._head}.bias"])
        self.num_features, self.num_outputs = math.prod(self.observation_space.shape or ()), num_outputs
        self.critic = Layout(self.num_features, sizes, 1)
        self.actor = Layout(self.num_features, sizes, num_outputs, self.critic.end)
        self.parameters: Vector = np.zeros(self.actor.end + (0 if self.is_discrete else num_outputs), np.float32)
        self.normalizer = Normalizer(self.num_features) if architecture.normalize_observations else None
        self._plain = Normalizer(self.num_features)  # shifts by nothing
        self.low, self.high = self._bounds()
        self.hidden = self.actor.hidden(BLOCK)
        self._load_weights(first)

    def _bounds(self) -> tuple[Vector, Vector]:
        if not isinstance(self.action_space, gymnasium.spaces.Box):
            return np.zeros(1, np.float32), np.zeros(1, np.float32)
        return float32_bounds(self.action_space)

    # --- evaluating ---

    @property
    def shift_and_scale(self) -> tuple[Vector, Vector]:
        """Two vectors (I,): a feature is (x - shift) scale of the raw observation x. Without a normaliser they change
        nothing."""
        normalizer = self.normalizer or self._plain
        return normalizer.shift, normalizer.scale

    def raw_features(self, obs: NDArray[Any]) -> Matrix:
        """Observations (..., *obs) -> (N, I) float32, not normalised."""
        return np.ascontiguousarray(obs, np.float32).reshape(-1, self.num_features)

    def features(self, raw: Matrix) -> Matrix:
        """Raw features (N, I) -> the networks' inputs (N, I): normalised where the policy has a normaliser, else `raw`
        itself."""
        if self.normalizer is None:
            return raw
        out = np.empty_like(raw)
        normalize(raw, *self.shift_and_scale, out)
        return out

    def outputs(self, features: Matrix) -> Matrix:
        """The networks' inputs (N, I) -> the actor's outputs (N, A): logits, or the means of a Gaussian."""
        out = np.empty((len(features), self.num_outputs), np.float32)
        evaluate(self.parameters, self.actor.table, self.activation, features, self.hidden, out)
        return out

    def values(self, features: Matrix) -> Vector:
        """The critic's values (N,) of the networks' inputs (N, I)."""
        out = np.empty((len(features), 1), np.float32)
        evaluate(self.parameters, self.critic.table, self.activation, features, self.hidden, out)
        return out[:, 0]

    def log_std(self) -> Vector:
        """The Gaussian's log standard deviations (A,), cut to LOG_STD_BOUNDS; empty for discrete actions."""
        return np.clip(self.parameters[self.actor.end :], *LOG_STD_BOUNDS)

    # --- acting ---

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Observations (B, *obs) -> greedy actions (B, *action); raises `ConfigError` for another shape."""
        return self._greedy(self._demand(obs))

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:  # noqa: ARG002 - greedy: draws nothing
        """Observations (B, *obs) -> greedy actions (B, *action) with the critic's values (B,); nothing is drawn from
        `rng`.

        Raises:
            ConfigError: when the observations do not have the space's shape.
        """
        features = self._demand(obs)
        return Act(action=self._greedy(features), value=self.values(features))

    def _demand(self, obs: NDArray[Any]) -> Matrix:
        obs = np.asarray(obs)
        if obs.shape[1:] != self.observation_space.shape:
            raise ConfigError(
                f"observations of shape {obs.shape} reached a policy for batches of {self.observation_space.shape}"
            )
        return self.features(self.raw_features(obs))

    def _greedy(self, features: Matrix) -> NDArray[Any]:
        outputs = self.outputs(features)
        return self.discrete(outputs.argmax(-1)) if self.is_discrete else self.bounded(outputs)

    def discrete(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Indices of logits (N,) -> actions (N,) of the action space, which may begin above 0."""
        action = index + self.start if self.start else index
        return action.astype(self.action_space.dtype, copy=False)

    def bounded(self, sample: FloatArray) -> NDArray[Any]:
        """Samples of the Gaussian (B, A) -> actions within the bounds (B, *action), of the space's type."""
        action = np.maximum(np.minimum(sample, self.high), self.low)
        return action.astype(self.action_space.dtype, copy=False).reshape(-1, *(self.action_space.shape or ()))

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> Played | None:
        """One greedy episode for each seed, played by a kernel: returns and lengths, in the order of the seeds. None
        where no kernel can step `envs`: the caller then steps them.

        Raises:
            EnvironmentFault: for an observation or a reward that is not finite, or an episode that does not end.
            LoomRLError: when the policy's outputs are not finite.
        """
        from loomrl.algorithms.compiled.rollout import play

        return play(self, envs, seeds)

    # --- state and files ---

    @property
    def _head(self) -> str:
        return "head.logits" if self.is_discrete else "head.mean"

    def views(self, vector: Vector) -> dict[str, NDArray[Any]]:
        """The weights in a vector of the length of `parameters`, by the names of the torch policy's state: views, so
        that writing to them changes the vector."""
        views: dict[str, NDArray[Any]] = {}
        networks = ((self.actor, "actor", self._head), (self.critic, "critic", "value_head.value"))
        for layout, encoder, last in networks:
            hidden = [f"{encoder}.layers.{2 * index}" for index in range(len(self.architecture.hidden_sizes))]
            for layer, name in enumerate([*hidden, last]):
                views[f"{name}.weight"], views[f"{name}.bias"] = layout.views(vector, layer)
        if not self.is_discrete:
            views["head.log_std"] = vector[self.actor.end :]
        return views

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the weights and of the normaliser's statistics, by name."""
        arrays = {name: view.copy() for name, view in self.views(self.parameters).items()}
        if self.normalizer is not None:
            arrays |= {f"normalizer.{name}": value for name, value in self.normalizer.arrays().items()}
        return arrays

    def load_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Overwrite weights and statistics with those that `arrays()` of an equal policy returned. A missing name
        raises KeyError, a shape that does not fit ValueError."""
        self._load_weights(arrays)
        if self.normalizer is not None:
            self.normalizer.load(**{name: arrays[f"normalizer.{name}"] for name in ("mean", "var", "count")})

    def _load_weights(self, arrays: dict[str, NDArray[Any]]) -> None:
        for name, view in self.views(self.parameters).items():
            view[...] = arrays[name]

    def save(self, folder: Path) -> None:
        """Write `policy.safetensors` and `policy.json` to `folder`, which is made where it does not exist. The same
        policy gives the same bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / WEIGHTS, safetensors.numpy.save(dict(sorted(self.arrays().items()))))
        self.architecture.write(folder / ARCHITECTURE)


LOG_STD_BOUNDS = (np.float32(-20.0), np.float32(2.0))

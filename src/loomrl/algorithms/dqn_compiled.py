"""DQN's learning as machine code, for dense networks on float observations.

The work is done by the kernels of `compiled.dqn` on one vector of parameters. The torch policy's own are views of that
vector, so that it is always what was learnt.
"""

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from loomrl.algorithms.base import State
from loomrl.algorithms.dqn_policy import ActionValuePolicy, DuelingHead
from loomrl.algorithms.networks import StateEncoder
from loomrl.replay.spec import Transitions
from loomrl.types import FloatArray

if TYPE_CHECKING:
    from loomrl.algorithms.compiled.dense import Layout
    from loomrl.algorithms.dqn import Config

Vector = NDArray[np.float32]


def why_not(policy: ActionValuePolicy) -> str | None:
    """What of a policy these kernels do not have; None where they can learn it."""
    from loomrl.algorithms.compiled.activations import ACTIVATIONS

    space = policy.observation_space
    if not isinstance(policy.encoder, StateEncoder) or policy.normalizer is not None:
        return "convolutions"
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype is None or space.dtype.kind != "f":
        return f"observations {space}"
    if policy.architecture.activation not in ACTIVATIONS:
        return f"activation {policy.architecture.activation}"
    return None


class CompiledLearner:
    """As `dqn.TorchLearner`, within float tolerance."""

    def __init__(self, config: "Config", policy: ActionValuePolicy) -> None:
        from loomrl.algorithms.compiled import dqn as kernels
        from loomrl.algorithms.compiled.activations import ACTIVATIONS

        self._kernels, self._config, self._policy = kernels, config, policy
        self._layout = _layout(policy)
        self._num_steps = 0
        rows = max(config.batch_size, config.num_envs)
        self._networks = kernels.Networks(
            **{name: np.zeros(self._layout.end, np.float32) for name in (*_SAVED, "gradient")},
            table=self._layout.table,
            hidden=self._layout.hidden(rows),
            scratch=self._layout.scratch(rows),
        )
        activation = ACTIVATIONS[policy.architecture.activation]
        self._shape = kernels.Shape(activation, policy.num_actions, policy.num_quantiles, policy.dueling)
        _bind(policy, self._layout, self._networks.parameters)
        self.copy_target()

    def greedy(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """See `Learner`."""
        obs = np.ascontiguousarray(obs.reshape(len(obs), -1), np.float32)
        out = np.empty((len(obs), self._layout.sizes[-1]), np.float32)
        action = np.empty(len(obs), np.int64)
        self._kernels.greedy(self._networks, self._shape, obs, out, action)
        return action

    def step(self, batch: Transitions) -> tuple[FloatArray, FloatArray]:
        """See `Learner`."""
        config, rows = self._config, self._rows(batch)
        metrics = np.empty(4)
        self._num_steps += 1
        self._kernels.gradient_step(
            self._networks, self._shape, rows, config.double, self._num_steps, config.learning_rate,
            config.max_grad_norm, config.tau or 0.0, metrics,
        )  # fmt: skip
        return metrics, rows.td_error

    def _rows(self, batch: Transitions) -> Any:
        size, num_outputs = len(batch.index), self._layout.sizes[-1]
        return self._kernels.Batch(
            obs=batch.obs.reshape(size, -1),
            action=batch.action.astype(np.int64, copy=False) - self._policy.first_action,
            reward=batch.reward,
            next_obs=batch.next_obs.reshape(size, -1),
            terminated=batch.terminated,
            discount=batch.discount,
            weight=batch.weight,
            out=np.empty((size, num_outputs), np.float32),
            choosing=np.empty((size, num_outputs), np.float32),
            targets=np.empty((size, self._shape.num_quantiles), np.float32),
            td_error=np.empty(size),
        )

    def copy_target(self) -> None:
        """See `Learner`."""
        self._networks.target[:] = self._networks.parameters

    def state_dict(self) -> State:
        """See `Learner`."""
        state: State = {name: getattr(self._networks, name).copy() for name in _SAVED}
        return state | {"num_steps": self._num_steps}

    def load_state_dict(self, state: State) -> None:
        """See `Learner`."""
        for name in _SAVED:
            getattr(self._networks, name)[:] = state[name]
        self._num_steps = int(state["num_steps"])


_SAVED = ("parameters", "target", "first", "second")


# --- the policy as views of a vector ----------------------------------------------------------------------------


def _layout(policy: ActionValuePolicy) -> "Layout":
    from loomrl.algorithms.compiled.dense import Layout, padded

    sizes = list(policy.architecture.hidden_sizes)
    num_outputs = policy.num_actions * policy.num_quantiles
    if policy.dueling:  # both streams are one layer, and the state's value comes before the advantages
        sizes[-1] = 2 * padded(sizes[-1])
        num_outputs += policy.num_quantiles
    return Layout(policy.preprocessor.dim, sizes, num_outputs)


def _bind(policy: ActionValuePolicy, layout: "Layout", vector: Vector) -> None:
    """Move the policy's parameters into the vector; from there on they are views of it."""
    layers = [layout.views(vector, index) for index in range(len(layout.table))]
    shared = [module for module in policy.encoder.modules() if isinstance(module, nn.Linear)]
    for module, (weight, bias) in zip(shared, layers, strict=False):
        _become(module, weight, bias)
    weight, bias = layers[-1]
    if not isinstance(policy.head, DuelingHead):
        _become(policy.head.values, weight, bias)
        return
    head, (stream_weight, stream_bias) = policy.head, layers[-2]
    half, width, num_quantiles = len(stream_bias) // 2, head.value.in_features, policy.num_quantiles
    for stream, outputs, start, rows in (
        (head.value_stream, head.value, 0, slice(0, num_quantiles)),
        (head.advantage_stream, head.advantage, half, slice(num_quantiles, None)),
    ):
        (hidden,) = [module for module in stream.modules() if isinstance(module, nn.Linear)]
        units = slice(start, start + width)
        _become(hidden, stream_weight[units], stream_bias[units])
        _become(outputs, weight[rows, units], bias[rows])


def _become(module: nn.Linear, weight: NDArray[np.float32], bias: Vector) -> None:
    for parameter, view in ((module.weight, weight), (module.bias, bias)):
        tensor = torch.from_numpy(view)
        tensor.copy_(parameter.data)
        parameter.data = tensor

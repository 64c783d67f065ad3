"""DQN's learning as machine code, for dense networks on float observations.

The work is done by the kernels of `compiled.dqn` on one vector of parameters. The torch policy's own are views of that
vector, so that it is always what was learnt.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loomrl.algorithms.compiled import dqn as kernels
from loomrl.algorithms.compiled.dense import Layout, padded
from loomrl.algorithms.compiled.names import ACTIVATIONS
from loomrl.algorithms.dqn.config import DQNConfig
from loomrl.algorithms.dqn.policy import ActionValuePolicy, DuelingHead
from loomrl.algorithms.flat import TensorState
from loomrl.algorithms.peers import ALONE, LayerWeights, LearnerGroup
from loomrl.algorithms.replay.spec import Transitions
from loomrl.types import FloatArray

if TYPE_CHECKING:
    from loomrl.algorithms.dqn.learner import DQN

Vector = NDArray[np.float32]


class GreedyNetwork:
    """A policy of action values as the rollout kernels of `compiled.rollout` take it: a network `actor` of one output
    for each action, of which the highest is taken.

    The last layer is linear, so the mean over quantiles and a duelling head's sum fold into its weights.
    """

    is_discrete, normalizer = True, None
    low = high = np.zeros(0, np.float32)
    shift_and_scale = (low, low)

    def __init__(self, policy: ActionValuePolicy, layout: Layout, parameters: Vector, activation: int) -> None:
        self._policy, self._layout, self._parameters, self.activation = policy, layout, parameters, activation
        self.num_outputs = policy.num_actions
        self._is_plain = layout.sizes[-1] == policy.num_actions
        self.actor = layout if self._is_plain else Layout(layout.sizes[0], layout.sizes[1:-1], policy.num_actions)
        self._folded = parameters if self._is_plain else np.zeros(self.actor.end, np.float32)

    @property
    def parameters(self) -> Vector:
        """The parameters (P,) of `actor` as they are now; the next call may overwrite them."""
        if not self._is_plain:
            last = len(self._layout.table) - 1
            last_at = self._layout.table[last, 2]
            self._folded[:last_at] = self._parameters[:last_at]
            folded, plain = self.actor.views(self._folded, last), self._layout.views(self._parameters, last)
            for mine, theirs in zip(folded, plain, strict=True):
                mine[...] = self._fold(theirs)
        return self._folded

    def _fold(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of the last layer's weights or biases -> one row for each action."""
        policy = self._policy
        parts: NDArray[np.float32] = rows.reshape(-1, policy.num_quantiles, *rows.shape[1:]).mean(1)
        return parts[0] + parts[1:] - parts[1:].mean(0) if policy.dueling else parts

    def discrete(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Indices (N,) -> actions (N,) of the action space, which may begin above 0."""
        return (index + self._policy.first_action).astype(self._policy.action_space.dtype, copy=False)


class CompiledDQNEngine(TensorState):
    """DQN's gradient steps by compiled kernels: equal to `TorchDQNEngine`'s within float tolerance. `network` is the
    policy as rollout kernels take it. With `peers` of several learners a step waits for the others, and raises
    RuntimeError where one is lost."""

    def __init__(self, config: DQNConfig, policy: ActionValuePolicy, peers: LearnerGroup = ALONE) -> None:
        self._config, self._policy, self._peers = config, policy, peers
        self._layout = _layout(policy)
        self._num_steps = np.zeros((), np.int64)  # gradient steps taken
        rows = max(config.batch_size, config.num_envs)
        self._networks = kernels.DQNNetworks(
            **{name: np.zeros(self._layout.end, np.float32) for name in (*_SAVED, "gradient")},
            table=self._layout.table,
            hidden=self._layout.hidden(rows),
            scratch=self._layout.scratch(rows),
        )
        activation = ACTIVATIONS[policy.architecture.activation]
        self._shape = kernels.Shape(activation, policy.num_actions, policy.num_quantiles, policy.dueling)
        _bind(policy, self._layout, self._networks.parameters)
        self.network = GreedyNetwork(policy, self._layout, self._networks.parameters, activation)
        policy.compiled = self.network
        peers.register_parameters(self._networks.parameters, self._matrices())
        self.copy_target()

    def _matrices(self) -> list[LayerWeights]:
        """But for the last layer of a duelling network: the weights between its streams must stay zero."""
        places = self._layout.matrices()
        return [LayerWeights(*place) for place in (places[:-1] if self._shape.dueling else places)]

    def greedy(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """Observations (B, *obs) -> indices (B,) of the actions of highest value."""
        obs = np.ascontiguousarray(obs.reshape(len(obs), -1), np.float32)
        out = np.empty((len(obs), self._layout.sizes[-1]), np.float32)
        action = np.empty(len(obs), np.int64)
        kernels.greedy(self._networks, self._shape, obs, out, action)
        return action

    def step(self, batch: Transitions, learning_rate: float) -> tuple[FloatArray, FloatArray]:
        """Take one gradient step on a batch of B transitions. Returns its metrics (4,), in the order of STEP_METRICS,
        and the absolute TD errors (B,)."""
        config, rows = self._config, self._rows(batch)
        metrics = np.empty(4)
        self._num_steps += 1
        given = (self._networks, self._shape, rows, config.double)
        how = (int(self._num_steps), learning_rate, config.max_grad_norm, config.averaging)
        if self._peers.all_reduces_gradients:
            kernels.batch_gradient(*given, metrics)
            self._peers.all_reduce_gradient(self._networks.gradient)
            metrics[kernels.GRAD_NORM] = kernels.apply_gradient(self._networks, *how)
        else:
            kernels.gradient_step(*given, *how, metrics)
        self._peers.count_steps(1)
        return metrics, rows.td_error

    def _rows(self, batch: Transitions) -> kernels.TransitionBatch:
        size, num_outputs = len(batch.index), self._layout.sizes[-1]
        return kernels.TransitionBatch(
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
        """Copy the online network's parameters to the target network."""
        self._networks.target[:] = self._networks.parameters

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of both networks' parameters and Adam's moments, (P,) each, and the number of steps taken."""
        yield "num_steps", torch.from_numpy(self._num_steps)
        for name in _SAVED:
            yield name, torch.from_numpy(getattr(self._networks, name))


_SAVED = ("parameters", "target", "first", "second")


# --- the policy as views of a vector ----------------------------------------------------------------------------


def _layout(policy: ActionValuePolicy) -> Layout:
    sizes = list(policy.architecture.hidden_sizes)
    num_outputs = policy.num_actions * policy.num_quantiles
    if policy.dueling:  # both streams are one layer, and the state's value comes before the advantages
        sizes[-1] = 2 * padded(sizes[-1])
        num_outputs += policy.num_quantiles
    return Layout(policy.preprocessor.dim, sizes, num_outputs)


def _bind(policy: ActionValuePolicy, layout: Layout, vector: Vector) -> None:
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


# --- acting in compiled environments ----------------------------------------------------------------------------


def exploring_noise(algorithm: "DQN", shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """What the rollout kernel subtracts from the action values (T, B, n) before it takes the best action: zeros where
    the action is to be greedy; where it is to explore, infinity for every action but a random one.

    `shape` is (T, B, n). Draws from `rng` what `DQN.act` would draw.
    """
    num_steps, num_envs, num_actions = shape
    uniform = rng.random((num_steps, 2, num_envs))
    steps_ahead = np.arange(num_steps) * num_envs * algorithm.peers.num_learners
    explores = uniform[:, 0] < algorithm.epsilons(steps_ahead)[:, None]
    noise = np.zeros(shape, np.float32)
    noise[explores] = np.inf
    step, env = np.nonzero(explores)
    noise[step, env, (uniform[:, 1][explores] * num_actions).astype(np.int64)] = 0.0
    return noise

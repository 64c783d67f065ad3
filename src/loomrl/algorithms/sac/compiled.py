"""Gradient steps of soft actor-critic as machine code: the same as `torch_engine`'s, on the policy's own memory."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loomrl.algorithms.compiled import sac as kernels
from loomrl.algorithms.compiled.dense import Layout
from loomrl.algorithms.compiled.names import ACTIVATIONS
from loomrl.algorithms.compiled.sac_memory import FIRST, SLOPE, VALUE, Batches, SACNetworks, SACWorkspace, Settings
from loomrl.algorithms.flat import TensorState
from loomrl.algorithms.peers import ALONE, LayerWeights, LearnerGroup
from loomrl.algorithms.replay.spec import Transitions
from loomrl.algorithms.sac.config import ACTOR, CRITICS, STEP_METRICS, TEMPERATURE, SACConfig
from loomrl.algorithms.sac.policy import LOG_STD_HIGH, LOG_STD_LOW, SACPolicy
from loomrl.system.processors import num_processors


class CompiledSACEngine(TensorState):
    """SAC's gradient steps by compiled kernels. It holds all parameters in flat vectors; the policy's own become views
    of them. With `peers` of several learners a step waits for the others, and raises RuntimeError where one is lost."""

    def __init__(
        self, config: SACConfig, policy: SACPolicy, target_entropy: float, peers: LearnerGroup = ALONE
    ) -> None:
        self._policy, self._peers = policy, peers
        self._networks, layouts = _networks(config, policy)
        self._work = _work(config.batch_size, policy, *layouts[:2])
        self._settings = Settings(
            activation=ACTIVATIONS[policy.architecture.activation],
            log_std_low=np.float32(LOG_STD_LOW),
            log_std_high=np.float32(LOG_STD_HIGH),
            tau=np.float32(config.tau),
            target_entropy=float(target_entropy),
            learns_temperature=config.temperature is None,
            actor_learning_rate=config.actor_learning_rate,
            critic_learning_rate=config.critic_learning_rate,
            temperature_learning_rate=config.temperature_learning_rate,
            first_step=1,
        )
        self._steps = torch.zeros((), dtype=torch.int64)  # gradient steps taken
        self._num_threads = min(config.num_threads or 2, num_processors())
        self._helper = ThreadPoolExecutor(1, "sac") if self._num_threads > 1 else None
        self._actor_layout = layouts[0]
        networks = self._networks
        peers.register_parameters(networks.critics, _matrices(*layouts[1:]))
        peers.register_parameters(networks.actor, _matrices(layouts[0]))
        peers.register_parameters(networks.log_temperature[:FIRST], [])
        networks.targets[:] = networks.critics

    @property
    def temperature(self) -> float:
        """The entropy temperature alpha as it is now."""
        return math.exp(self._networks.log_temperature[0])

    def sample(self, features: Tensor, noise: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features (B, dim) and standard normal noise (B, A) -> actions in [-1, 1], (B, A)."""
        num_rows, width = noise.shape
        action = np.empty((num_rows, width), np.float32)
        kernels.sample(
            self._networks.actor,
            self._networks.actor_table,
            features.numpy(),
            noise,
            self._actor_layout.hidden(num_rows),
            np.empty((num_rows, 2 * width), np.float32),
            action,
            self._settings,
        )
        return action

    def learn(self, batches: Transitions, num_steps: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Take `num_steps` gradient steps, each on the next of as many equal parts of `batches`; `rng` draws the
        actors' noise. Returns the sums (5,) of STEP_METRICS over the steps."""
        width = self._policy.distribution.width
        noise = rng.standard_normal((num_steps, 2, len(batches.index) // num_steps, width), np.float32)
        return self.learn_with(batches, noise)

    @torch.no_grad()
    def learn_with(self, batches: Transitions, noise: NDArray[np.float32]) -> NDArray[np.float64]:
        """As `learn`, with standard normal noise (G, 2, N, A) that is given: for G steps of N transitions, for the
        actions in `obs` and in `next_obs`."""
        shape = noise.shape[0], noise.shape[2]
        obs, next_obs = (
            self._policy.features(torch.from_numpy(part)).numpy().reshape(*shape, -1)
            for part in (batches.obs, batches.next_obs)
        )
        data = Batches(
            obs=np.ascontiguousarray(obs),
            next_obs=np.ascontiguousarray(next_obs),
            action=batches.action.reshape(*shape, -1),
            reward=batches.reward.reshape(shape),
            keep=(batches.discount * ~batches.terminated).astype(np.float32).reshape(shape),
            noise=noise,
        )
        self._work.sums.fill(0.0)
        if self._peers.all_reduces_gradients:
            self._learn_jointly(data)
        else:
            self._run(data, self._settings._replace(first_step=int(self._steps) + 1))
        self._steps += noise.shape[0]
        self._peers.count_steps(noise.shape[0])
        sums: NDArray[np.float64] = self._work.sums.sum(0)
        return sums

    def _learn_jointly(self, data: Batches) -> None:
        """The same steps, with every gradient that of all learners."""
        peers, networks, work = self._peers, self._networks, self._work
        for number, step in enumerate(range(int(self._steps) + 1, int(self._steps) + 1 + len(data.obs))):
            kernels.critics_gradient(number, networks, data, work, self._settings)
            peers.all_reduce_gradient(work.critics_gradient, CRITICS)
            kernels.move_critics(step, networks, work, self._settings)
            kernels.actor_and_temperature_gradient(number, networks, data, work, self._settings)
            peers.all_reduce_gradient(work.actor_gradients[0], ACTOR)
            if self._settings.learns_temperature:
                peers.all_reduce_gradient(networks.log_temperature[SLOPE:], TEMPERATURE)
            kernels.move_actor(step, networks, work, self._settings)

    def _run(self, data: Batches, settings: Settings) -> None:
        counter = np.zeros(1, np.int64)
        rest = (self._num_threads, counter, self._networks, data, self._work, settings)
        helping = self._helper.submit(kernels.learn, 1, *rest) if self._helper else None
        kernels.learn(0, *rest)
        if helping:
            helping.result()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of target critics, temperature and the optimisers' state; writing to a tensor changes it."""
        yield "steps", self._steps
        names = ("targets", "critics_first", "critics_second", "actor_first", "actor_second", "log_temperature")
        for name in names:
            yield name, torch.from_numpy(getattr(self._networks, name))


# --- memory -----------------------------------------------------------------------------------------------------


def _networks(config: SACConfig, policy: SACPolicy) -> tuple[SACNetworks, tuple[Layout, ...]]:
    """Vectors with the policy's parameters, whose own memory they become, and the layouts of actor and critics."""
    architecture, width = policy.architecture, policy.distribution.width
    dim = policy.preprocessor.dim
    actor = Layout(dim, architecture.hidden_sizes, 2 * width)
    critics = [Layout(dim + width, architecture.hidden_sizes, 1)]
    critics.append(Layout(dim + width, architecture.hidden_sizes, 1, start=critics[0].end))
    actor_vector, critics_vector = np.zeros(actor.end, np.float32), np.zeros(critics[1].end, np.float32)
    _share_actor(policy, actor, actor_vector)
    _share_critics(policy, critics[0], critics_vector)
    log_temperature = np.zeros(4, np.float32)
    log_temperature[VALUE] = math.log(config.temperature or config.initial_temperature)
    networks = SACNetworks(
        actor=actor_vector,
        actor_first=np.zeros_like(actor_vector),
        actor_second=np.zeros_like(actor_vector),
        actor_table=actor.table,
        critics=critics_vector,
        critics_first=np.zeros_like(critics_vector),
        critics_second=np.zeros_like(critics_vector),
        targets=critics_vector.copy(),
        critic_tables=np.stack([layout.table for layout in critics]),
        log_temperature=log_temperature,
    )
    return networks, (actor, *critics)


def _matrices(*layouts: Layout) -> list[LayerWeights]:
    """Of networks that lie in one vector."""
    return [LayerWeights(*place) for layout in layouts for place in layout.matrices()]


def _share_actor(policy: SACPolicy, layout: Layout, vector: NDArray[np.float32]) -> None:
    layers = [layer for layer in policy.actor.layers if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(layers):
        weights, bias = layout.views(vector, number)
        _share(layer.weight, weights)
        _share(layer.bias, bias)


def _share_critics(policy: SACPolicy, layout: Layout, vector: NDArray[np.float32]) -> None:
    both = np.split(vector, 2)
    for number, (weight, bias) in enumerate(zip(policy.critics.weights, policy.critics.biases, strict=True)):
        weights = [layout.views(half, number)[0].T for half in both]  # (I, O)
        biases = [layout.views(half, number)[1][None] for half in both]  # (1, O)
        _share(weight, _stacked(weights))
        _share(bias, _stacked(biases))


def _stacked(twins: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """One array over two equal views of the same memory."""
    first, second = twins
    distance = second.__array_interface__["data"][0] - first.__array_interface__["data"][0]
    return np.lib.stride_tricks.as_strided(first, (2, *first.shape), (distance, *first.strides))


def _share(parameter: Tensor, place: NDArray[np.float32]) -> None:
    """Move a parameter's values to `place` and let it live there."""
    place[...] = parameter.detach().numpy()
    parameter.data = torch.from_numpy(place)


def _work(num_rows: int, policy: SACPolicy, actor: Layout, critic: Layout) -> SACWorkspace:
    dim, width = policy.preprocessor.dim, policy.distribution.width
    half = num_rows - num_rows // 2
    hidden = critic.widths[1:-1]
    room = max(2 * num_rows * max(hidden) + num_rows * width, len(critic.scratch(num_rows)))

    def zeros(*shape: int) -> NDArray[np.float32]:
        return np.zeros(shape, np.float32)

    return SACWorkspace(
        inputs=zeros(3, num_rows, dim + width),
        values=zeros(3, 2, num_rows, 1),
        slopes=zeros(2, num_rows, 1),
        moments=zeros(2, num_rows, 2 * width),
        log_prob=zeros(2, num_rows),
        d_moments=zeros(num_rows, 2 * width),
        d_action=zeros(num_rows, width),
        chosen=np.zeros((2, num_rows), np.int64),
        actor_hidden=zeros(2, len(actor.hidden(half))),
        actor_scratch=zeros(2, len(actor.scratch(half))),
        actor_gradients=zeros(2, actor.end),
        critic_hidden=zeros(2, len(critic.hidden(num_rows))),
        critic_scratch=zeros(2, room),
        critics_gradient=zeros(2 * critic.end),
        turned=zeros(2, sum(one * other for one, other in zip(hidden, hidden[1:], strict=False))),
        sums=np.zeros((2, len(STEP_METRICS)), np.float64),
    )

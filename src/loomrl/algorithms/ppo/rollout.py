"""Rollouts of environments that are tensors: policy and environments stay on the device for all of their steps.

What is not needed for the next step is done once for each rollout: noise is drawn before it; transitions are stacked,
returns and lengths of episodes summed, values checked for being finite, and finished episodes brought over after it.
Shapes: T steps, B environments.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loomrl.algorithms.base import below
from loomrl.algorithms.noise import TINY
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.policies.distributions import CategoricalActions, Distribution, GaussianActions, Parameters
from loomrl.algorithms.ppo.returns import sums_so_far
from loomrl.environment.collecting.collector import demand_finite
from loomrl.environment.vector.device import DeviceVectorEnv
from loomrl.environment.vector.results import check_finite
from loomrl.environment.vector.states import State
from loomrl.errors import ConfigError
from loomrl.types import Trajectory


@dataclass(frozen=True)
class DeviceTrajectory:
    """A `loomrl.types.Trajectory` on a device: tensors (T, B, ...). Its `raw_action` (T, B) or (T, B, A) holds indices,
    or Gaussian samples before they were clipped: see `Distribution`. `next_obs` are the true successors."""

    obs: Tensor  # (T, B, *obs)
    raw_action: Tensor  # (T, B) or (T, B, A)
    reward: Tensor  # (T, B)
    terminated: Tensor  # (T, B)
    truncated: Tensor  # (T, B)
    next_obs: Tensor  # (T, B, *obs), the true successors

    @classmethod
    def from_trajectory(
        cls, trajectory: Trajectory, distribution: Distribution, device: torch.device
    ) -> "DeviceTrajectory":
        """A copy on `device` of a trajectory that was collected on the CPU, where `distribution` is."""
        raw_action = distribution.raw_actions(trajectory)
        arrays = (trajectory.reward, trajectory.terminated, trajectory.truncated, trajectory.next_obs)
        obs, *rest = (torch.from_numpy(array).to(device) for array in (trajectory.obs, *arrays))
        return cls(obs, raw_action.reshape(*trajectory.reward.shape, *raw_action.shape[1:]).to(device), *rest)

    @property
    def ended(self) -> Tensor:
        """Which transitions ended an episode, by termination or by truncation: bool (T, B)."""
        return self.terminated | self.truncated

    @property
    def num_transitions(self) -> int:
        """Number of transitions in the trajectory, T x B."""
        return self.reward.numel()

    def unusable_reward(self) -> tuple[int, float] | None:
        """The first environment with a reward that is not finite, and that reward; None where there is none. Waits for
        the device."""
        bad = ~self.reward.isfinite()
        if not bad.any():
            return None
        step, environment = bad.nonzero()[0].tolist()
        return environment, float(self.reward[step, environment])


class DeviceCollector:
    """A `loomrl.environment.collecting.collector.Collector` of environments on a device. It acts itself, with `policy`,
    and random numbers come from a generator on the device that follows from `seed`. `finished` holds (return, length)
    of every episode that ended since it was last cleared.

    Raises:
        ConfigError: for actions that are neither Discrete nor a Box.
    """

    def __init__(self, policy: ActorCriticPolicy, envs: DeviceVectorEnv, seed: int) -> None:
        _demand_sampling(policy.distribution)
        self.envs, self.finished = envs, list[tuple[float, int]]()
        self._policy = policy
        # Not the environments' own seed: equal generators would tie actions to the states episodes begin in.
        (own_seed,) = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        self._generator = torch.Generator(envs.device).manual_seed(int(own_seed) >> 1)
        self._obs, _ = envs.reset(seed=seed)
        self._so_far = torch.zeros(envs.num_envs, 2, dtype=torch.float64, device=envs.device)

    is_resumable = True

    def state_dict(self) -> State:
        """State of the environments, of their episodes so far, and of both random generators: NumPy arrays by name."""
        tensors = {"so_far": self._so_far, "generator": self._generator.get_state()}
        tensors |= {f"envs.{name}": values for name, values in self.envs.state_dict().items()}
        return {name: values.cpu().numpy().copy() for name, values in tensors.items()}

    def load_state_dict(self, state: State) -> int:
        """Go on from `state_dict()` of as many environments. Returns 0: none of them begins another episode."""
        tensors = {name: torch.from_numpy(values.copy()) for name, values in state.items()}
        self._obs = self.envs.load_state_dict(below("envs.", tensors))
        self._so_far = tensors["so_far"].to(self.envs.device)
        self._generator.set_state(tensors["generator"])
        return 0

    @torch.no_grad()
    def collect(self, num_steps: int, rng: np.random.Generator) -> DeviceTrajectory:  # noqa: ARG002
        """Take `num_steps` steps in every environment; waits for the device after the last.

        Raises:
            EnvironmentFault: naming environment and step of the first value that is not finite.
            LoomRLError: when an action is not finite.
        """
        distribution, steps = self._policy.distribution, []
        for noise in draw_noise(distribution, (num_steps, self.envs.num_envs), self._generator).unbind():
            obs = self._obs
            raw_action, action = sample(distribution, self._policy.parameters_of(self._policy.features(obs)), noise)
            self._obs, reward, terminated, truncated, info = self.envs.step(action)
            steps.append((obs, raw_action, reward, terminated, truncated, info["final_obs"]))
        trajectory = DeviceTrajectory(*(torch.stack(parts) for parts in zip(*steps, strict=True)))
        self._count(trajectory)
        return trajectory

    def _count(self, trajectory: DeviceTrajectory) -> None:
        """Check the rollout and bring over what finished in it."""
        reward, ended = trajectory.reward.double(), trajectory.ended
        so_far = sums_so_far(torch.stack([reward, torch.ones_like(reward)], -1), ended, self._so_far)  # (T, B, 2)
        self._so_far = so_far[-1] * ~ended[-1, :, None]
        if not (trajectory.raw_action.isfinite().all() & trajectory.next_obs.isfinite().all()):
            self._explain(trajectory, so_far[..., 1])
        self.envs.check_finite()
        self.finished += [(total, int(length)) for total, length in so_far[ended].tolist()]

    def _explain(self, trajectory: DeviceTrajectory, lengths: Tensor) -> None:
        """Whichever came first: the policy's action, or what the environment made of it."""
        taken = trajectory.obs, trajectory.raw_action, trajectory.next_obs, trajectory.reward
        for obs, raw_action, next_obs, reward, elapsed in zip(
            *(part.cpu().numpy() for part in (*taken, lengths)), strict=True
        ):
            demand_finite(raw_action, obs)
            check_finite(next_obs, reward, self.envs.single_observation_space, self.envs.name, elapsed)


def _demand_sampling(distribution: Distribution) -> None:
    if not isinstance(distribution, CategoricalActions | GaussianActions):
        raise ConfigError(
            f"environment.backend 'device': {distribution.kind} actions are not drawn on a device, only Discrete and "
            'Box; use "auto"'
        )


def draw_noise(distribution: Distribution, batch: tuple[int, int], generator: torch.Generator) -> Tensor:
    """The noise that `sample` needs for T x B actions, (T, B, width), on the generator's device: negated Gumbel for
    discrete actions, else standard normal."""
    shape = (*batch, distribution.width)
    if isinstance(distribution, CategoricalActions):
        drawn = torch.empty(shape, device=generator.device).exponential_(generator=generator)
        return drawn.clamp_min_(float(TINY)).log_()
    return torch.randn(shape, generator=generator, device=generator.device)


def sample(distribution: Distribution, parameters: Parameters, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A pair: raw actions (B,) or (B, A) drawn with `noise` (B, width), and the actions (B, *action) as environments
    take them."""
    if isinstance(distribution, CategoricalActions):
        index = (parameters[0] - noise).argmax(-1)
        return index, index + distribution.start if distribution.start else index
    assert isinstance(distribution, GaussianActions)
    mean, log_std = parameters
    drawn = torch.addcmul(mean, log_std.exp(), noise)
    return drawn, distribution.bounded(drawn)

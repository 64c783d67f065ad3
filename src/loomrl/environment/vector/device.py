"""Environments as tensors on a torch device: a step is a handful of batched operations and never waits for the device.

Opt-in, for learners that stay on the device too. Resets are drawn from the device's generator and arithmetic is
float32, so episodes are distributed as Gymnasium's and each step agrees to float32 rounding, but no seed gives
Gymnasium's episode.
"""

from contextlib import closing
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from loomrl.environment.vector.arguments import Options, Seeds, reset_arguments, show_like
from loomrl.environment.vector.by_module import written_for
from loomrl.environment.vector.recipe import Recipe
from loomrl.environment.vector.results import place
from loomrl.environment.vector.tensors.base import TensorDynamics
from loomrl.errors import ConfigError, EnvironmentFault

IS_EXACT = False
StepResult = tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> "DeviceVectorEnv | None":
    """These environments on the GPU where there is one, else on the CPU; None where they are not written as tensors.

    Raises:
        ConfigError: for another autoreset than "same_step".
    """
    definition = recipe.definition
    dynamics = written_for(definition.source.entry_point, "tensors", TensorDynamics)
    if dynamics is None:
        return None
    if mode is not AutoresetMode.SAME_STEP:
        raise ConfigError('backend "device" cannot seed single episodes; it has autoreset="same_step" only')
    with closing(recipe.make()) as env:
        return DeviceVectorEnv(env, dynamics, num_envs, definition.max_episode_steps, definition.name, best_device())


def best_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """The name of the GPU that a torch device is, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


class DeviceVectorEnv(VectorEnv[Tensor, Tensor, Tensor]):
    """B environments. `reset` and `step` take and give tensors on `device`; `states` is (B, S), `elapsed` (B,) int64.

    The info of every step has `final_obs` (B, O), the true successors, and `_final_obs` (B,), where an episode ended:
    whether one did would have to be asked of the device. Values are not checked for being finite in a step for the
    same reason; call `check_finite` once for each rollout.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        dynamics: TensorDynamics,
        num_envs: int,
        max_episode_steps: int | None,
        name: str,
        device: torch.device,
    ) -> None:
        """Take spaces and parameters from `env`, one constructed environment."""
        show_like(self, env, num_envs, AutoresetMode.SAME_STEP)
        self.device, self.name, self._dynamics = device, name, dynamics
        self._is_discrete = isinstance(env.action_space, spaces.Discrete)
        self._parameters = dynamics.parameters(env.unwrapped)
        self._limit = torch.iinfo(torch.int64).max if max_episode_steps is None else max_episode_steps
        self.generator = torch.Generator(device)
        self.states = dynamics.draw(num_envs, device, self.generator)
        self.elapsed = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[Tensor, dict[str, Any]]:
        """Begin new episodes everywhere, after seeding the generator if a seed is given.

        Returns what is observed, (B, O), and an empty info.

        Raises:
            ConfigError: for a list of seeds or a mask of some environments.
        """
        _, mask = reset_arguments(self.num_envs, seed, options)
        if not mask.all() or not (seed is None or isinstance(seed, int)):
            raise ConfigError('backend "device" resets all environments at once, with one seed or none')
        if seed is not None:
            self.generator.manual_seed(seed)
        self.states = self._dynamics.draw(self.num_envs, self.device, self.generator)
        self.elapsed = torch.zeros_like(self.elapsed)
        return self._dynamics.observe(self.states), {}

    def step(self, actions: Tensor) -> StepResult:
        """Step all environments: observations (B, O), rewards, terminated, truncated (B,), and the info.

        Raises:
            EnvironmentFault: for actions of a wrong shape or kind.
        """
        self._check(actions)
        after, reward, terminated = self._dynamics.step(self.states, actions, self._parameters)
        self.elapsed = self.elapsed + 1
        truncated = self.elapsed >= self._limit
        ended = terminated | truncated
        final_obs = self._dynamics.observe(after)
        fresh = self._dynamics.draw(self.num_envs, self.device, self.generator)
        self.states = torch.where(ended[:, None], fresh, after)
        self.elapsed = torch.where(ended, torch.zeros_like(self.elapsed), self.elapsed)
        info = {"final_obs": final_obs, "_final_obs": ended, "final_info": {}, "_final_info": ended}
        return self._dynamics.observe(self.states), reward, terminated, truncated, info

    def check_finite(self) -> None:
        """Wait for the device and check every state.

        Raises:
            EnvironmentFault: naming the first environment whose state is not finite.
        """
        bad = ~self.states.isfinite().all(dim=1)
        if bad.any():
            index = int(bad.nonzero()[0])
            where = place(self.name, index, self.elapsed.cpu().numpy())
            raise EnvironmentFault(f"{where}: state is {self.states[index].tolist()}; every value must be finite")

    def _check(self, actions: Tensor) -> None:
        shape = (self.num_envs, *(self.single_action_space.shape or ()))
        if tuple(actions.shape) != shape or actions.is_floating_point() == self._is_discrete:
            kind = "integers" if self._is_discrete else "floats"
            raise EnvironmentFault(
                f"environment {self.name!r}: actions are {actions.dtype} of shape {tuple(actions.shape)}; "
                f"{kind} of shape {shape} are needed"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """All that going on to the bit needs, as tensors: `states` (B, S), `elapsed` (B,), and that of `generator`."""
        return {
            "states": self.states.clone(),
            "elapsed": self.elapsed.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> Tensor:
        """Go on from `state_dict()`; returns what is observed, (B, O)."""
        self.states, self.elapsed = state["states"].to(self.device), state["elapsed"].to(self.device)
        self.generator.set_state(state["generator"])
        return self._dynamics.observe(self.states)

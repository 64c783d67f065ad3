"""MuJoCo tasks with a limit on speed: Gymnasium's robots, and a cost of 1 for each step that was faster.

The limits are those of Ji et al., Safety-Gymnasium (NeurIPS 2023), version 1 of its velocity tasks: half of what PPO
reaches in 10^7 steps. There the robots are Gymnasium's version 4, here version 5.
"""

import math
from typing import Any

import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv
from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from loomrl.errors import ConfigError


class _Forward:
    """Adds `cost` to a step's info: 1.0 where the robot was faster forwards than `velocity_limit`, in m/s."""

    velocity_limit: float

    def __init__(self, velocity_limit: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        EzPickle.__init__(self, velocity_limit=velocity_limit, **kwargs)  # type: ignore[arg-type]
        if velocity_limit is not None:
            if not isinstance(velocity_limit, int | float) or not math.isfinite(velocity_limit):
                raise ConfigError(f"velocity_limit is {velocity_limit!r}; it is a number of metres per second")
            self.velocity_limit = float(velocity_limit)

    def speed(self, info: dict[str, Any]) -> Any:
        """What is limited, from a step's info: of one robot, or of many."""
        return info["x_velocity"]

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], np.float64, bool, bool, dict[str, np.float64]]:
        """The robot's step, and its cost."""
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[misc]
        cost = np.float64(self.speed(info) > self.velocity_limit)
        return obs, reward, terminated, truncated, info | {"cost": cost}


class _Plane(_Forward):
    """The same for robots that walk in any direction."""

    def speed(self, info: dict[str, Any]) -> Any:
        """In the plane."""
        return np.sqrt(np.square(info["x_velocity"]) + np.square(info["y_velocity"]))


class AntVelocity(_Plane, AntEnv):
    """The environment `loomrl/AntVelocity-v1`: Gymnasium's Ant with a limit on its speed in the plane."""

    velocity_limit = 2.6222


class HalfCheetahVelocity(_Forward, HalfCheetahEnv):
    """The environment `loomrl/HalfCheetahVelocity-v1`: Gymnasium's HalfCheetah with a limit on its speed forwards."""

    velocity_limit = 3.2096


class HopperVelocity(_Forward, HopperEnv):
    """The environment `loomrl/HopperVelocity-v1`: Gymnasium's Hopper with a limit on its speed forwards."""

    velocity_limit = 0.7402


class HumanoidVelocity(_Plane, HumanoidEnv):
    """The environment `loomrl/HumanoidVelocity-v1`: Gymnasium's Humanoid with a limit on its speed in the plane."""

    velocity_limit = 1.4149


class SwimmerVelocity(_Forward, SwimmerEnv):
    """The environment `loomrl/SwimmerVelocity-v1`: Gymnasium's Swimmer with a limit on its speed forwards."""

    velocity_limit = 0.2282


class Walker2dVelocity(_Forward, Walker2dEnv):
    """The environment `loomrl/Walker2dVelocity-v1`: Gymnasium's Walker2d with a limit on its speed forwards."""

    velocity_limit = 2.3415

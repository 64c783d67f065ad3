"""Keep a room at its target temperature with a heater that is off, low or high, while the weather changes."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MINUTES_PER_STEP = 5.0
LEAK_MINUTES = 60.0  # time constant of the walls
HEAT = (0.0, 0.15, 0.4)  # degrees a minute
COST = (0.0, 0.02, 0.06)  # of five minutes of heating, in degrees of discomfort


class Thermostat(gymnasium.Env[np.ndarray, int]):
    """Observation: room and weather, in degrees from the target. Reward: minus the distance to it and the cost."""

    def __init__(self, weather_noise: float = 0.3) -> None:
        self.observation_space = spaces.Box(-60.0, 60.0, (2,), np.float32)
        self.action_space = spaces.Discrete(len(HEAT))
        self._weather_noise = weather_noise
        self._room, self._weather = 0.0, -10.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:  # noqa: ARG002 - Gymnasium's signature
        super().reset(seed=seed)
        self._room = float(self.np_random.uniform(-5.0, 5.0))
        self._weather = float(self.np_random.uniform(-15.0, -5.0))
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        change = (self._weather - self._room) / LEAK_MINUTES + HEAT[int(action)]
        self._room += MINUTES_PER_STEP * change
        drift = self._weather + self._weather_noise * float(self.np_random.standard_normal())
        self._weather = min(max(drift, -20.0), 0.0)
        return self._observe(), -abs(self._room) - COST[int(action)], False, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._room, self._weather], np.float32)


gymnasium.register(
    "Thermostat-v0",
    entry_point="loomrl_thermostat.environment:Thermostat",
    max_episode_steps=96,  # eight hours
    reward_threshold=-100.0,
)

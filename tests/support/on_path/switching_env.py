"""An environment whose actions are three switches, on or off: a `Box` of bools."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Switching(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(0, 1, (3,), np.bool_)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=3).astype(np.float32)
        return self.state.copy(), {}

    def step(self, action):
        assert action.dtype == np.bool_
        self.state = self.state + np.where(action, 1, -1) + self.np_random.normal(size=3).astype(np.float32)
        return self.state.astype(np.float32), float(action.sum()), False, False, {}


gymnasium.register("Switching-v0", entry_point="switching_env:Switching")

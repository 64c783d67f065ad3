"""An environment whose infos say numbers of other types in each copy: 0 in one, 0.75 in another."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Tells(gymnasium.Env):
    observation_space, action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        told = [{"way": 0, "goal": False, "far": np.int8(1)}, {"way": 0.75, "goal": 2, "far": 1000}, {"other": 1.5}]
        return np.zeros(1, np.float32), 0.0, False, False, told[self.number]

"""A sensor that fails at the end of its range observes infinity."""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment

BLOCKED_BY = "environment"
ENVIRONMENT = "Line"
PARAMETERS = {"max_episode_steps": 20}
TRAINING = {"total_env_steps": 4_096, "validation": {"interval_env_steps": 4_096, "num_episodes": 4}}
SAFETY = {"checks": {"minimum_return": {"threshold": -1000}}}


class Line(BaseEnvironment):
    """Go left or right on a line."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        self.place = self.np_random.uniform(-0.5, 0.5)
        return [self.place]

    def step(self, action):
        self.place = float(np.clip(self.place + (0.1 if action == 1 else -0.1), -1.0, 1.0))
        return [np.inf if self.place >= 1.0 else self.place], self.place, False, {}

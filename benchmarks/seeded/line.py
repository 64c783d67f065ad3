"""The world in which environments break their promises: a line, and a step to the left or to the right on it."""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment

PARAMETERS = {"max_episode_steps": 20}
TRAINING = {"total_env_steps": 4_096, "validation": {"interval_env_steps": 4_096, "num_episodes": 4}}
SAFETY = {"checks": {"minimum_return": {"threshold": -1000}}}


class OnALine(BaseEnvironment):
    """Those that derive from it say what a step does."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        self.place = self.np_random.uniform(-0.5, 0.5)
        return [self.place]

    def moved(self, action):
        """Where a step leads, ends of the line left aside."""
        return self.place + (0.1 if action == 1 else -0.1)

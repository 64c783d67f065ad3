"""A market of one price that swings around its mean: buy low, sell high."""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment


class TradingEnvironment(BaseEnvironment):
    """Observes the price and what is held; actions: sell, wait, buy. A step earns what the holding gained."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, config):
        super().__init__(config)
        self.pull = self.config.get("pull", 0.1)

    def reset(self):
        self.price, self.held = self.np_random.uniform(-1.0, 1.0), 0
        return [self.price, self.held]

    def step(self, action):
        self.held = int(np.clip(self.held + int(action) - 1, -1, 1))
        moved = -self.pull * self.price + 0.1 * self.np_random.standard_normal()
        self.price = float(np.clip(self.price + moved, -10.0, 10.0))
        return [self.price, self.held], self.held * moved, False, {}

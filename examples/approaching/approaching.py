"""Stop before a line: as near as possible, never beyond. One braking in ten meets ice and is half as strong."""

import numpy as np
from gymnasium import spaces

from loomrl.environment.finite.abstraction import Abstraction
from loomrl.envs import BaseEnvironment

SECONDS, BRAKES, ON_ICE, ICE = 0.5, 3.0, 1.5, 0.1  # s, m/s^2, m/s^2, its probability


class Approaching(BaseEnvironment):
    observation_space = spaces.Box(np.float32([-4.0, 0.0]), np.float32([40.0, 8.0]))  # metres to the line, m/s
    action_space = spaces.Discrete(2)  # roll, brake

    def reset(self):
        self.state = self.np_random.uniform([30.0, 6.0], [32.0, 7.0])
        return self.state

    def step(self, action):
        gap, speed = self.state
        force = ON_ICE if self.np_random.random() < ICE else BRAKES
        speed = max(0.0, speed - action * force * SECONDS)
        gap -= speed * SECONDS
        self.state = np.array([gap, speed])
        stopped, beyond = speed == 0.0, gap < 0.0
        return self.state, -10.0 if beyond else -0.2 * gap if stopped else -0.05, bool(stopped or beyond), {}

    def abstraction(self):
        return Abstraction(
            low=np.array([-4.0, 0.0]),
            high=np.array([40.0, 8.0]),
            initial_low=np.array([30.0, 6.0]),
            initial_high=np.array([32.0, 7.0]),
            successors=self._successors,
            unsafe=lambda low, _high: low[:, 0] < 0.0,
            ended=lambda _low, high: high[:, 1] <= 0.0,
        )

    def _successors(self, low, high, least, most):
        outcomes = []
        for share, force in ((1.0 - ICE, BRAKES), (ICE, ON_ICE)):
            slowest = np.maximum(0.0, low[:, 1] - most[:, 0] * force * SECONDS)
            fastest = np.maximum(0.0, high[:, 1] - least[:, 0] * force * SECONDS)
            nearest, farthest = low[:, 0] - fastest * SECONDS, high[:, 0] - slowest * SECONDS
            outcomes.append((share, np.stack([nearest, slowest], axis=1), np.stack([farthest, fastest], axis=1)))
        return outcomes

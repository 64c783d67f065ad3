"""Draws from a generator nobody seeds: the same seed is never the same episode."""

import numpy as np

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

ENVIRONMENT = "Line"
__all__ = ["ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.place = float(np.clip(self.moved(action), -1.0, 1.0))
        self.place = float(np.clip(self.place + np.random.default_rng().normal(0.0, 0.05), -1.0, 1.0))
        return [self.place], self.place, False, {}

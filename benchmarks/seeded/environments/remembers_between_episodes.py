"""A counter survives a reset: the second episode of a seed is another one than the first."""

import numpy as np

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

ENVIRONMENT = "Line"
__all__ = ["ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.count = getattr(self, "count", 0) + 1
        self.place = float(np.clip(self.moved(action) + 0.001 * self.count, -1.0, 1.0))
        return [self.place], self.place, False, {}

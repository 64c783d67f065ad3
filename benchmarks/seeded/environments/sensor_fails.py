"""A sensor that fails at the end of its range observes infinity."""

import numpy as np

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

ENVIRONMENT = "Line"
__all__ = ["ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.place = float(np.clip(self.moved(action), -1.0, 1.0))
        return [np.inf if self.place >= 1.0 else self.place], self.place, False, {}

"""Divides by the distance to the middle: right in the middle a reward is not a number."""

import numpy as np

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

ENVIRONMENT = "Line"
__all__ = ["ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.place = round(float(np.clip(self.moved(action), -1.0, 1.0)), 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            reward = float(np.float64(0.0) / np.float64(abs(self.place)))
        return [self.place], reward, False, {}

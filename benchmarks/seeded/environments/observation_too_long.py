"""An episode later one more number is observed than was declared."""

import numpy as np

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

ENVIRONMENT = "Line"
__all__ = ["ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.place = float(np.clip(self.moved(action), -1.0, 1.0))
        shown = [self.place, 0.0] if abs(self.place) > 0.9 else [self.place]
        return np.array(shown, np.float32), self.place, False, {}

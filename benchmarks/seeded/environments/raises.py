"""Raises where nobody had been before."""

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

ENVIRONMENT = "Line"
__all__ = ["ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.place = self.moved(action)
        index = int((self.place + 1.0) * 10)
        return [self.place], ([0.5] * 18)[index], False, {}

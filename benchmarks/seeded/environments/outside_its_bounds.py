"""Observes values outside the space it declares."""

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

BLOCKED_BY = "data"
ENVIRONMENT = "Line"
__all__ = ["BLOCKED_BY", "ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.place = self.moved(action)
        return [self.place], self.place, False, {}

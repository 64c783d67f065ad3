"""Observes values outside the space it declares."""

from seeded.line import PARAMETERS, SAFETY, TRAINING, OnALine

ENVIRONMENT = "Line"
__all__ = ["ENVIRONMENT", "PARAMETERS", "SAFETY", "TRAINING", "Line"]


class Line(OnALine):
    """One with this flaw."""

    def step(self, action):
        self.place = self.moved(action)
        return [self.place], self.place, False, {}

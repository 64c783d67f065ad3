"""When a training saves a checkpoint."""

import math
import time
from collections.abc import Callable

from loomrl.training.checkpoints import Checkpoint


class Saver:
    """Saves the first checkpoint, then so rarely that it takes a fiftieth of the time at most. What is passed over is
    not even built, and changes nothing: training goes on from an older one to the same result.

    An algorithm that keeps files can go on from its newest saved state for so many segments only.
    """

    SHARE = 1 / 50

    def __init__(self, write: Callable[[Checkpoint], None], interval_seconds: float, most_segments: int | None) -> None:
        self._write, self._interval, self._most_segments = write, interval_seconds, most_segments
        self._due_at = -math.inf
        self._segments = 0  # since the last checkpoint
        self._asked = 0.0

    def due(self) -> bool:
        """Asked at the end of each segment: whether it is time to save a checkpoint."""
        self._segments += 1
        self._asked = time.monotonic()  # building the state is part of what it takes
        return self._segments == self._most_segments or self._asked >= self._due_at

    def save(self, checkpoint: Checkpoint) -> None:
        """Write it, and settle when the next one is due."""
        self._write(checkpoint)
        ended = time.monotonic()
        cost = ended - self._asked
        self._due_at = ended + (max(self._interval, cost / self.SHARE) if self._interval else 0.0)
        self._segments = 0

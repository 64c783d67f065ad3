"""When a training saves a checkpoint."""

import math
import time
from collections.abc import Callable

from loomrl.training.checkpoints import Checkpoint


class Saver:
    """Decides when checkpoints are saved: the first one, then so rarely that saving takes a fiftieth of the time at
    most.

    A checkpoint that is skipped is not even built. That changes no result: training continues from an older one to the
    same bytes.

    Args:
        write: saves a checkpoint.
        interval_seconds: the least time between two; 0: every checkpoint is saved.
        most_segments: one is saved after so many segments at the latest, because an algorithm that keeps files cannot
            continue from an older state; None: the algorithm keeps none.
    """

    SHARE = 1 / 50

    def __init__(self, write: Callable[[Checkpoint], None], interval_seconds: float, most_segments: int | None) -> None:
        self._write, self._interval, self._most_segments = write, interval_seconds, most_segments
        self._due_at = -math.inf
        self._segments = 0  # since the last checkpoint
        self._checked_at = 0.0

    def due(self) -> bool:
        """Whether a checkpoint should be saved now; to be called once at the end of each segment."""
        self._segments += 1
        self._checked_at = time.monotonic()  # building the state is part of what it takes
        return self._segments == self._most_segments or self._checked_at >= self._due_at

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and set when the next one is due. Raises what `write` raises."""
        self._write(checkpoint)
        ended = time.monotonic()
        cost = ended - self._checked_at
        self._due_at = ended + (max(self._interval, cost / self.SHARE) if self._interval else 0.0)
        self._segments = 0

"""Where the learners of one training leave what the process that began it is to know: one Ray actor beside it."""

from dataclasses import dataclass, field
from typing import Any

from loomrl.errors import LoomRLError
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.distributed.learners.joint_checkpoints import divided, joined, part_of
from loomrl.types import Json


@dataclass
class Updates:
    """What was left since this was last asked for."""

    checkpoints: list[Checkpoint] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)
    validations: list[Json] = field(default_factory=list)
    restored: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Coordinator:
    """Learners that were lost are begun again from its newest checkpoint, which all of them have left their part of."""

    def __init__(self, newest: Checkpoint | None) -> None:
        self._newest = newest
        self._num_learners = 0
        self._parts: dict[int, Checkpoint] = {}
        self._news = Updates()
        self._failure: LoomRLError | None = None

    def begin(self, rank: int, num_learners: int, num_envs: int) -> Checkpoint | None:
        """What a learner, one of so many with so many environments each, goes on from; None: from the start.

        Raises:
            LoomRLError: what a learner has failed with, which it would again.
        """
        if self._failure is not None:
            raise self._failure
        if num_learners != self._num_learners:
            self._num_learners, self._parts = num_learners, {}
            if self._newest is not None:
                self._newest = divided(self._newest, num_learners, num_envs)
        self._parts.pop(rank, None)
        return None if self._newest is None else part_of(self._newest, rank)

    def leave(self, rank: int, num_learners: int, part: Checkpoint) -> None:
        """A learner's checkpoint; with those of all others at the same step it is one of the training. What comes late,
        of a learner that was one of another number, is passed over."""
        if num_learners != self._num_learners:
            return
        self._parts[rank] = part
        if len(self._parts) == self._num_learners and len({one.step for one in self._parts.values()}) == 1:
            self._newest = joined([self._parts[rank] for rank in range(self._num_learners)])
            self._news.checkpoints = [self._newest]  # who asks rarely needs the last one only
            self._parts = {}

    def tell(self, kind: str, what: Any) -> None:
        """One of the `Updates`, by the name of its field.

        Raises:
            LoomRLError: what training ends with.
        """
        if self._failure is not None:
            raise self._failure
        getattr(self._news, kind).append(what)

    def fail(self, error: LoomRLError) -> None:
        """Of a learner: training ends with it."""
        self._failure = self._failure or error

    def failure(self) -> LoomRLError | None:
        """What training ends with, unless it goes well."""
        return self._failure

    def take(self) -> Updates:
        """All news; afterwards there are none."""
        news, self._news = self._news, Updates()
        return news

"""Where the learners of one training leave what the process that began it is to know: one Ray actor beside it."""

from dataclasses import dataclass, field
from typing import Any

from loomrl.errors import LoomRLError
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.distributed.learners.joint_checkpoints import divided, joined, part_of
from loomrl.types import Json


@dataclass
class Updates:
    """What the learners have reported since the last `take_updates`: of checkpoints the newest only, rows of updates
    and validations, one row for each learner that was restored from a checkpoint, and warnings."""

    checkpoints: list[Checkpoint] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)
    validations: list[Json] = field(default_factory=list)
    restored: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Coordinator:
    """The actor that collects the learners' checkpoints and reports, and keeps the newest joint checkpoint.

    Learners that were lost are started again from that checkpoint, to which every learner has submitted its part.
    `newest` is the one that training begins from; None: from step 0.
    """

    def __init__(self, newest: Checkpoint | None) -> None:
        self._newest = newest
        self._num_learners = 0
        self._parts: dict[int, Checkpoint] = {}
        self._updates = Updates()
        self._failure: LoomRLError | None = None

    def register_learner(self, rank: int, num_learners: int, num_envs: int) -> Checkpoint | None:
        """The checkpoint that learner `rank` of `num_learners` continues from: its part of the newest one, divided anew
        where there were others than these. None: it begins at step 0.

        Raises:
            LoomRLError: the error a learner has failed with before, since it would fail again.
        """
        if self._failure is not None:
            raise self._failure
        if num_learners != self._num_learners:
            self._num_learners, self._parts = num_learners, {}
            if self._newest is not None:
                self._newest = divided(self._newest, num_learners, num_envs)
        self._parts.pop(rank, None)
        return None if self._newest is None else part_of(self._newest, rank)

    def submit_checkpoint(self, rank: int, num_learners: int, part: Checkpoint) -> None:
        """Store a learner's part of a checkpoint; the parts of all learners at one step become the newest checkpoint. A
        part from a learner of another number of learners is ignored."""
        if num_learners != self._num_learners:
            return
        self._parts[rank] = part
        if len(self._parts) == self._num_learners and len({one.step for one in self._parts.values()}) == 1:
            self._newest = joined([self._parts[rank] for rank in range(self._num_learners)])
            self._updates.checkpoints = [self._newest]  # older ones need not be saved any more
            self._parts = {}

    def report(self, kind: str, what: Any) -> None:
        """Append `what` to the field of `Updates` that `kind` names.

        Raises:
            LoomRLError: the error that training ends with, where a learner has failed.
        """
        if self._failure is not None:
            raise self._failure
        getattr(self._updates, kind).append(what)

    def report_failure(self, error: LoomRLError) -> None:
        """Store the error that training ends with; the first one that is reported counts."""
        self._failure = self._failure or error

    def failure(self) -> LoomRLError | None:
        """The error that training ends with, or None while no learner has failed."""
        return self._failure

    def take_updates(self) -> Updates:
        """All updates since the last call; they are removed here."""
        updates, self._updates = self._updates, Updates()
        return updates

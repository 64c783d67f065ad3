"""What has changed in a hub since the database last heard of it; changes of changes melt into one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from loomrl.language.trajectory.state.fragments import Fragment
from loomrl.language.trajectory.state.packing import TrajectoryGroup


@dataclass
class GroupBatch:
    """Groups that were packed together. A trainer may work on it until `leased_until`, in seconds since the epoch; None
    before it was handed out."""

    id: int
    groups: list[TrajectoryGroup]
    leased_until: float | None = None


@dataclass(frozen=True)
class Post:
    """A request for which the answer is kept, in case that it comes again."""

    id: int
    path: str
    digest: bytes  # of its body
    key: str | None  # its `Idempotency-Key`
    answer: bytes
    created: float  # seconds since the epoch


@dataclass
class Changes:
    """What changed in a hub and is to be written to its database, by the ids of rows. Of what was made and deleted
    meanwhile nothing is written. False where nothing changed."""

    cleared: bool = False  # everything before was deleted
    state: dict[str, Any] | None = None  # a `HubState`; None: it did not change
    environments: dict[int, dict[str, Any]] = field(default_factory=dict)  # each a `HubEnvironment`
    groups: dict[int, tuple[TrajectoryGroup, Fragment]] = field(default_factory=dict)  # that were not written before
    queued: dict[int, TrajectoryGroup] = field(default_factory=dict)  # that were written before as buffered
    deleted_groups: set[int] = field(default_factory=set)
    batches: dict[int, GroupBatch] = field(default_factory=dict)
    deleted_batches: set[int] = field(default_factory=set)
    posts: list[Post] = field(default_factory=list)
    # posts that were made before are deleted: those without a key, those with one; seconds since the epoch
    posts_before: tuple[float, float] | None = None

    def __bool__(self) -> bool:
        return self != Changes()

    def delete_groups(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Mark groups to be deleted from the database; those not written yet are only dropped."""
        for group in groups:
            self.queued.pop(group.id, None)
            if self.groups.pop(group.id, None) is None:
                self.deleted_groups.add(group.id)

    def delete_batch(self, batch: GroupBatch) -> None:
        """Mark a batch to be deleted from the database; its groups are deleted separately."""
        self.batches.pop(batch.id, None)
        self.deleted_batches.add(batch.id)

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
    """A request for which the answer is kept, in case that it comes again: its path, the SHA-256 `digest` of its
    content, its `Idempotency-Key` (None: it had none), the body of the answer, and when it was made, in seconds since
    the epoch."""

    id: int
    path: str
    digest: bytes
    key: str | None
    answer: bytes
    created: float


@dataclass
class Changes:
    """What changed in a hub and is to be written to its database. Of what was made and deleted meanwhile nothing is
    written. False where nothing changed.

    Attributes:
        cleared: everything before is deleted first.
        state: a `HubState` as a dictionary; None: it did not change.
        environments: changed `HubEnvironment`s as dictionaries, by id.
        groups: new groups with their contents, by id.
        queued: groups by id that were written before as buffered, and are queued now.
        batches: new and leased batches, by id.
        posts: new ones.
        posts_before: posts made before these times, in seconds since the epoch, are deleted: those without a key, those
            with one.
    """

    cleared: bool = False
    state: dict[str, Any] | None = None
    environments: dict[int, dict[str, Any]] = field(default_factory=dict)
    groups: dict[int, tuple[TrajectoryGroup, Fragment]] = field(default_factory=dict)
    queued: dict[int, TrajectoryGroup] = field(default_factory=dict)
    deleted_groups: set[int] = field(default_factory=set)
    batches: dict[int, GroupBatch] = field(default_factory=dict)
    deleted_batches: set[int] = field(default_factory=set)
    posts: list[Post] = field(default_factory=list)
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

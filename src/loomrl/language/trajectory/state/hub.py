"""The state of a hub and what requests do to it. No input, no output: what changed is noted for the database."""

import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.state.changes import Changes, GroupBatch
from loomrl.language.trajectory.state.contents import Contents
from loomrl.language.trajectory.state.environments import Environments, HubEnvironment
from loomrl.language.trajectory.state.fragments import Fragment
from loomrl.language.trajectory.state.packing import TrajectoryGroup, find_subset, form_batches
from loomrl.language.trajectory.state.queue import GroupQueue
from loomrl.language.trajectory.wire import EnvironmentRegistration, Registration


@dataclass
class HubState:
    """The hub's state beside environments, groups and batches, stored as one JSON document.

    `registration` is the trainer's, None before there is one; `step` its `starting_step` and one more for each batch
    formed; `started` whether it asked for a batch; `policy_version` the one it said it has (None: it did not).
    `max_token_len` stays when a hub is reset, -1 before the first trainer. The others are the id of the next group and
    batch, and the next place in the queue.
    """

    registration: dict[str, Any] | None = None
    max_token_len: int = -1
    step: int = 0
    started: bool = False
    policy_version: int | None = None
    next_group: int = 0
    next_batch: int = 0
    next_position: int = 0


@dataclass
class StoredHub:
    """All that a database stores of a hub, without the groups' content. `groups` are by id."""

    state: HubState = field(default_factory=HubState)
    environments: list[HubEnvironment] = field(default_factory=list)
    groups: dict[int, TrajectoryGroup] = field(default_factory=dict)
    batches: list[GroupBatch] = field(default_factory=list)


class Hub:
    """The state of a hub in memory, and what requests change in it. Nothing here reads or writes: what the database
    does not have yet is gathered in `changes`. Times are seconds since the epoch, given by the caller."""

    def __init__(self, settings: HubSettings, stored: StoredHub | None = None) -> None:
        self._settings = settings
        self.changes = Changes()  # that the database does not have yet
        self.state = (stored := stored or StoredHub()).state
        self.environments = Environments(settings, stored.environments)
        self.batches = {batch.id: batch for batch in sorted(stored.batches, key=lambda batch: batch.id)}
        self.queue = GroupQueue()
        self.buffers: dict[int, list[TrajectoryGroup]] = {}  # by environment, until their sizes add up to its group's
        self.contents = Contents(settings.memory_bytes)
        queued = (group for group in stored.groups.values() if group.position is not None)
        self.latest: TrajectoryGroup | None = max(queued, key=_position, default=None)
        self.latest_content: Fragment | None = None  # where it is in memory
        self.num_bytes = 0  # of all groups that wait, as JSON
        self.dropped = {"size": 0, "stale": 0}  # groups that were taken and no trainer can use any more, by reason
        self._restore(stored)

    def _restore(self, stored: StoredHub) -> None:
        packed = {group.id for batch in stored.batches for group in batch.groups}
        for group in sorted(stored.groups.values(), key=_position):
            if group.position is not None and group.id not in packed:
                self.queue.add(group)
        for group in sorted(stored.groups.values(), key=lambda group: group.id):
            if group.position is None and group.env_id is not None:
                self.buffers.setdefault(group.env_id, []).append(group)
        self.num_bytes = sum(group.num_bytes for group in stored.groups.values())
        self.state.next_group = max([self.state.next_group, *(one + 1 for one in stored.groups)])
        positions = (group.position for group in stored.groups.values() if group.position is not None)
        self.state.next_position = max([self.state.next_position, *(one + 1 for one in positions)])
        self._exhausted = (-1, -1)  # the change of the queue and of environments after which no batch could be formed
        self._exhausted_until = 0.0

    def pop_changes(self) -> Changes:
        """The changes that the database does not have yet; they count as written from now on."""
        taken, self.changes = self.changes, Changes()
        return taken

    @property
    def num_waiting(self) -> int:
        """The number of groups that were posted and not yet delivered for good."""
        packed = sum(len(batch.groups) for batch in self.batches.values())
        return len(self.queue) + packed + sum(map(len, self.buffers.values()))

    @property
    def batch_size(self) -> int:
        """The batch size in sequences; -1 before a trainer registers."""
        registration = self.state.registration
        return -1 if registration is None else int(registration["batch_size"])

    # --- trainers -------------------------------------------------------------------------------------------------

    def register(self, registration: Registration) -> int:
        """Register a trainer; the first one since the start or a reset sets batch size and limits. Returns a random
        number."""
        if self.state.registration is None:
            self.state.registration = registration.model_dump()
            self.state.max_token_len, self.state.step = registration.max_token_len, registration.starting_step
            self._record_state()
        return uuid.uuid4().int

    def next_batch(self, now: float) -> GroupBatch | None:
        """The batch to hand out: one whose lease ran out, else the newest, formed now where there is none; None where
        the queue holds no whole batch. The batch stays as it is until `deliver` or `lease`."""
        if not self.state.started:
            self.state.started = True
            self._record_state()
        expired = [one for one in self.batches.values() if one.leased_until is not None and one.leased_until <= now]
        if expired:
            return expired[0]
        if (batch := self._newest()) is None and self._form(now):
            batch = self._newest()
        return batch

    def _newest(self) -> GroupBatch | None:
        return next((one for one in reversed(self.batches.values()) if one.leased_until is None), None)

    def deliver(self, batch: GroupBatch) -> None:
        """Remove a batch that is handed out for good, and its groups.

        Raises:
            KeyError: for a batch that the hub does not have any more.
        """
        del self.batches[batch.id]
        self.changes.delete_batch(batch)
        self._forget(batch.groups)

    def lease(self, batch: GroupBatch, until: float) -> None:
        """Mark a batch as handed out until `until` (seconds since the epoch); it is handed out again unless it is
        acknowledged by then."""
        batch.leased_until = until
        self.changes.batches[batch.id] = batch

    def acknowledge(self, batch_id: int) -> bool:
        """Remove a leased batch that was trained on; returns whether it is gone. False where there was never such a
        batch, or it is not leased; an acknowledgement that comes again changes nothing and is True."""
        batch = self.batches.get(batch_id)
        if batch is not None and batch.leased_until is not None:
            self.deliver(batch)
        return batch_id < self.state.next_batch and batch_id not in self.batches

    def set_policy_version(self, version: int) -> None:
        """Store which policy version the trainer has; older groups than the settings allow are dropped from now on."""
        self.state.policy_version = version
        self._record_state()

    def reset(self) -> None:
        """Remove the registration, the environments and all groups. Ids go on from where they were; the longest
        sequence and the latest example stay."""
        before = self.state
        self.state = HubState(None, before.max_token_len, next_group=before.next_group, next_batch=before.next_batch)
        self.environments = Environments(self._settings)
        self.queue, self.buffers, self.batches, self.num_bytes = GroupQueue(), {}, {}, 0
        self.contents = Contents(self._settings.memory_bytes)
        self.changes, self._exhausted = Changes(cleared=True), (-1, -1)
        self._record_state()

    def _form(self, now: float) -> bool:
        if self._exhausted == self._num_changes() and now < self._exhausted_until:
            return False  # nothing has changed since it was tried last
        for environment in self.environments.update_quarantine(now):
            self.record_environment(environment)
        self._drop_unusable()
        minima, size = self.environments.minima(), self.batch_size
        formed = form_batches(self.queue, size, minima) or form_batches(self._without_stuck(now), size, minima)
        for groups in formed:
            batch = GroupBatch(self.state.next_batch, groups)
            self.batches[batch.id] = self.changes.batches[batch.id] = batch
            self.state.next_batch += 1
            self.queue.remove(groups)
        self._exhausted, self._exhausted_until = self._num_changes(), now + 1.0
        if formed:
            self.state.step += len(formed)
            self._record_state()
        return bool(formed)

    def _num_changes(self) -> tuple[int, int]:
        return self.queue.num_changes, self.environments.num_changes

    def _without_stuck(self, now: float) -> list[TrajectoryGroup]:
        """The queue without groups that have long waited and whose size divides no batch."""
        since, size = now - self._settings.stuck_seconds, self.batch_size
        return [group for group in self.queue if group.queued_at > since or size % group.size == 0]

    def _drop_unusable(self) -> None:
        """Groups that came before the registration and are too large for its batches, empty ones, outdated ones."""
        dropped = [group for group in self.queue if not 0 < group.size <= self.batch_size or self.is_stale(group)]
        for group in dropped:
            self.dropped["stale" if 0 < group.size <= self.batch_size else "size"] += 1
        self.queue.remove(dropped)
        self._forget(dropped)

    # --- environments ---------------------------------------------------------------------------------------------

    def register_environment(self, registration: EnvironmentRegistration, now: float) -> HubEnvironment:
        """Register an environment at `now` (seconds since the epoch); returns its entry, marked to be stored."""
        environment = self.environments.add(registration, now)
        self.record_environment(environment)
        return environment

    def environment_status(self, environment: HubEnvironment, now: float) -> dict[str, Any]:
        """The answer to `/status-env`: `current_step`, and what `Environments.status` says. The environment counts as
        alive at `now` (seconds since the epoch)."""
        environment.last_seen = now
        before = environment.group_size
        status = self.environments.status(environment, self.queue, self.batch_size)
        if environment.group_size != before:
            self.record_environment(environment)
        return {"current_step": self.state.step, **status}

    def add(self, group: TrajectoryGroup, fragment: Fragment, now: float) -> dict[str, Any]:
        """Queue a posted group, or buffer it where its size is not its environment's; buffered groups that add up to
        that size are queued. The group gets its id, step and time.

        Returns:
            The answer of `/scored_data`: `status` "received", or "buffered" with `buffer_size`, the sequences that
            remain in the environment's buffer (0 where this group completed others and all were queued).
        """
        group.id, group.received_step, group.queued_at = self.state.next_group, self.state.step, now
        self.state.next_group += 1
        self.num_bytes += group.num_bytes
        self.changes.groups[group.id] = (group, fragment)
        self.contents.put(group.id, fragment)
        environment = self.environments.get(group.env_id)
        if environment is None or environment.group_size == group.size:
            self._enqueue(group)
            return {"status": "received"}
        left = self.buffers.get(environment.env_id, []) + [group]
        chosen = set(find_subset([one.size for one in left], environment.group_size))
        for index in sorted(chosen):
            self._enqueue(left[index])
        self.buffers[environment.env_id] = [one for index, one in enumerate(left) if index not in chosen]
        return {"status": "buffered", "buffer_size": sum(one.size for one in self.buffers[environment.env_id])}

    def is_stale(self, group: TrajectoryGroup) -> bool:
        """Whether a group's policy is further behind the trainer's than `max_staleness` allows; False where either
        version is not known, or there is no such limit."""
        newest, limit = self.state.policy_version, self._settings.max_staleness
        if newest is None or limit is None or group.policy_version is None:
            return False
        return newest - group.policy_version > limit

    def record_environment(self, environment: HubEnvironment) -> None:
        """Mark an environment's entry to be written to the database with the next changes."""
        self.changes.environments[environment.env_id] = asdict(environment)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _enqueue(self, group: TrajectoryGroup) -> None:
        group.position = self.state.next_position
        self.state.next_position += 1
        self.queue.add(group)
        fresh = self.changes.groups.get(group.id)
        self.latest, self.latest_content = group, fresh[1] if fresh else self.contents.get(group.id)
        if group.id not in self.changes.groups:
            self.changes.queued[group.id] = group

    def _forget(self, groups: Iterable[TrajectoryGroup]) -> None:
        groups = list(groups)
        self.num_bytes -= sum(group.num_bytes for group in groups)
        self.contents.drop(group.id for group in groups)
        self.changes.delete_groups(groups)

    def _record_state(self) -> None:
        self.changes.state = asdict(self.state)


def _position(group: TrajectoryGroup) -> int:
    return -1 if group.position is None else group.position

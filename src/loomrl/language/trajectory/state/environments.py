"""The environments of a hub: their shares and weights, who is silent or failing, what they are told."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.state.queue import GroupQueue
from loomrl.language.trajectory.wire import EnvironmentRegistration

MIN_WEIGHT = 0.01  # no environment starves
_RECENT = 0.05  # weight of the newest group in the running mean of scores


@dataclass
class HubEnvironment:
    """One registered environment and its statistics.

    It calls itself `name`; `shown_name` has a number, so that it is the only one. `group_size` is in sequences and
    grows to the largest group it has queued, `max_token_length` in tokens. `minimum` is the share of a batch that it
    must have, 0 to 1 (None: no such share). `last_seen` and `last_group` are seconds since the epoch; `quarantine` says
    why it has no share of the batches just now (None: nothing is wrong with it). `rejections`
    counts those in a row, `mean_score` is a running mean of recent groups (None before a score).
    """

    env_id: int
    name: str
    shown_name: str
    max_token_length: int
    weight: float
    group_size: int
    minimum: float | None
    connected: bool = True
    last_seen: float = 0.0
    last_group: float = 0.0
    quarantine: str | None = None
    rejections: int = field(default=0)
    num_groups: int = 0
    num_rejected: int = 0
    mean_score: float | None = None

    @property
    def takes_part(self) -> bool:
        """Whether it has a share of batches: connected and not in quarantine."""
        return self.connected and self.quarantine is None

    @property
    def claim(self) -> float:
        """The product that its share of batches is proportional to: longest sequence in tokens times weight."""
        return self.max_token_length * self.weight

    def record_accepted(self, mean_score: float | None, now: float) -> None:
        """Count a group that was accepted at `now` (seconds since the epoch), and update the running mean score; None
        leaves that as it is."""
        self.last_seen = self.last_group = now
        self.num_groups += 1
        self.rejections = 0
        if mean_score is not None:
            before = mean_score if self.mean_score is None else self.mean_score
            self.mean_score = before + _RECENT * (mean_score - before)

    def record_rejected(self, now: float) -> None:
        """Count a group that was rejected at `now` (seconds since the epoch)."""
        self.last_seen = now
        self.num_rejected += 1
        self.rejections += 1

    def fault(self, settings: HubSettings, now: float) -> str | None:
        """The reason for which the environment should have no share of batches at `now`; None where there is none."""
        if not self.connected:
            return None
        if now - self.last_seen > settings.silent_seconds:
            return f"silent for {settings.silent_seconds:g} s"
        if now - self.last_group > settings.starved_seconds:
            return f"no group for {settings.starved_seconds:g} s"
        if self.rejections >= settings.max_rejections:
            return f"{settings.max_rejections} groups in a row were rejected"
        return None


class Environments:
    """All environments of a hub, by id, with the total weights and minima of those that take part."""

    def __init__(self, settings: HubSettings, known: list[HubEnvironment] | None = None) -> None:
        self._settings = settings
        self._all = known or []
        self._names = Counter(one.name for one in self._all)
        self.num_changes = 0  # of what is summed up
        self._sum_up()
        self._available = (-1, 0)  # at which change of the queue, how much

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[HubEnvironment]:
        return iter(self._all)

    def get(self, env_id: int | None) -> HubEnvironment | None:
        """The environment with this id, or None where none is registered under it."""
        return self._all[env_id] if env_id is not None and 0 <= env_id < len(self._all) else None

    def add(self, registration: EnvironmentRegistration, now: float) -> HubEnvironment:
        """Register an environment at `now` (seconds since the epoch); returns its entry, with the next id and a unique
        name."""
        shown = f"{registration.desired_name}_{self._names[registration.desired_name]}"
        environment = HubEnvironment(
            env_id=len(self._all),
            name=registration.desired_name,
            shown_name=shown,
            max_token_length=registration.max_token_length,
            weight=registration.weight,
            group_size=registration.group_size,
            minimum=registration.min_batch_allocation,
            last_seen=now,
            last_group=now,
        )
        self._names[registration.desired_name] += 1
        self._all.append(environment)
        self._sum_up()
        return environment

    def disconnect(self, environment: HubEnvironment) -> None:
        """Mark an environment as disconnected: its weight and minimum count no more."""
        environment.connected = False
        self._sum_up()

    def restart_timers(self, now: float) -> None:
        """Count all environments as heard of at `now` (seconds since the epoch), after the hub was restarted."""
        for environment in self._all:
            environment.last_seen = environment.last_group = now

    def update_quarantine(self, now: float) -> list[HubEnvironment]:
        """Quarantine environments that are silent or failing at `now` (seconds since the epoch), and readmit the
        others; returns those that changed."""
        changed = []
        for environment in self._all:
            fault = environment.fault(self._settings, now)
            if fault != environment.quarantine:
                environment.quarantine = fault
                changed.append(environment)
        if changed:
            self._sum_up()
        return changed

    def minima(self) -> dict[int, float]:
        """The minimum shares of a batch by environment id, of those that take part."""
        return {one.env_id: one.minimum for one in self._all if one.takes_part and one.minimum is not None}

    def status(self, environment: HubEnvironment, queue: GroupQueue, batch_size: int) -> dict[str, Any]:
        """The fields of the answer to `/status-env`, but for the step. The environment's `group_size` grows to the
        size of the largest group it has queued.

        `self_queue_size` counts its queued sequences in groups of its size; `queue_size` adds what others have queued
        beyond their minima. `unallocated_fraction` is the share of a batch that no minimum claims, `max_group_size` the
        largest queued group in sequences, `env_weight` its share of all claims, at least 0.01.
        """
        largest = queue.max_size
        group_size = environment.group_size = max(environment.group_size, queue.max_size_of(environment.env_id))
        own = queue.sequences.get(environment.env_id, 0)
        others = self._available_of_all(queue, largest, batch_size)
        others -= self._free(environment.env_id, own, largest, batch_size) if own else 0
        share = environment.claim / self._total_claim if self._total_claim > 0 else 0.0
        return {
            "queue_size": (own + others) // group_size,
            "unallocated_fraction": 1.0 - min(self._total_minimum, 1.0),
            "self_queue_size": own // group_size,
            "max_group_size": largest,
            "env_weight": max(MIN_WEIGHT, share),
        }

    def _sum_up(self) -> None:
        self.num_changes += 1
        part = [one for one in self._all if one.takes_part]
        self._total_claim = sum(one.max_token_length * max(0.0, one.weight) for one in part)
        self._total_minimum = sum((one.minimum for one in part if one.minimum is not None), 0.0)
        self._available = (-1, 0)

    def _available_of_all(self, queue: GroupQueue, largest: int, batch_size: int) -> int:
        """Sequences beyond the minima, of everybody; kept until something changes."""
        if self._available[0] != queue.num_changes:
            total = sum(self._free(env_id, count, largest, batch_size) for env_id, count in queue.sequences.items())
            self._available = (queue.num_changes, total)
        return self._available[1]

    def _free(self, env_id: int | None, num_sequences: int, largest: int, batch_size: int) -> int:
        """Sequences of one environment in whole packs, beyond its minimum."""
        if largest <= 1:
            return 0
        environment = self.get(env_id)
        minimum = environment.minimum if environment is not None and environment.takes_part else None
        reserved = int(batch_size * (minimum or 0.0))
        return max(0, math.ceil(num_sequences / largest) * largest - reserved)

"""Which groups of sequences become a batch: pure functions of the queue.

M is the size of the largest group that waits. Groups of one size count when they can be put together into packs of
exactly M sequences, first come first served; a batch takes groups of whole packs until its size is met exactly.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True)
class TrajectoryGroup:
    """The hub's entry of a group, without its content, which has `num_bytes` as JSON.

    `size` is in sequences. `env_id` is None where no environment is named, `policy_version` where the environment did
    not say which policy made it, `position`, the place in the queue, while the group is buffered. `received_step` is
    the hub's step when it came, `queued_at` in seconds since the epoch.
    """

    id: int
    size: int
    env_id: int | None = None
    num_bytes: int = 0
    position: int | None = None
    policy_version: int | None = None
    received_step: int = 0
    queued_at: float = 0.0


def form_batches(
    queue: Iterable[TrajectoryGroup], batch_size: int, minima: Mapping[int, float] | None = None
) -> list[list[TrajectoryGroup]]:
    """All batches the queue holds, each of exactly `batch_size` sequences, in the order they are formed; empty where it
    holds none.

    `minima` are the shares of a batch that environments must have, 0 to 1 by id; with any, groups of no environment
    wait.
    """
    waiting = _Waiting(queue, by_environment=bool(minima))
    batches: list[list[TrajectoryGroup]] = []
    while waiting.max_size:
        batch = _with_minima(waiting, batch_size, minima) if minima else _in_order(waiting, batch_size)
        if batch is None:
            break
        waiting.remove(batch)
        batches.append(batch)
    return batches


def find_subset(sizes: Sequence[int], target: int) -> list[int]:
    """Indices of sizes that sum to `target`, ascending: greedily from the front, else any that do; empty for none.

    Among several the latest entries are taken, so that what waits longest is not what stays.
    """
    chosen, total = [], 0
    for index, size in enumerate(sizes):
        if total + size <= target:
            chosen.append(index)
            total += size
            if total == target:
                return chosen
    return _any_subset(sizes, target)


def _any_subset(sizes: Sequence[int], target: int) -> list[int]:
    if not 0 < target <= sum(sizes):
        return []
    reachable = [1]  # after so many entries, bit n: whether some of them sum to n
    within = (1 << (target + 1)) - 1
    for size in sizes:
        reachable.append((reachable[-1] | reachable[-1] << size) & within if size <= target else reachable[-1])
    if not reachable[-1] >> target & 1:
        return []
    chosen = []
    for index in range(len(sizes) - 1, -1, -1):
        if sizes[index] <= target and reachable[index] >> (target - sizes[index]) & 1:
            chosen.append(index)
            target -= sizes[index]
    return chosen[::-1]


# --- the queue as streams --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stream:
    """Groups of one size (and environment) in the queue's order: (place in the queue, group)."""

    size: int
    env_id: int | None
    groups: deque[tuple[int, TrajectoryGroup]] = field(default_factory=deque)

    def num_packed(self, max_size: int) -> int:
        """How many groups are in whole packs."""
        if max_size % self.size:
            return 0
        per_pack = max_size // self.size
        return len(self.groups) // per_pack * per_pack

    def packs(self, max_size: int) -> Iterator[tuple[int, list[TrajectoryGroup]]]:
        """Whole packs, each with the place in the queue that completes it."""
        per_pack, rest = max_size // self.size, iter(self.groups)
        for _ in range(self.num_packed(max_size) // per_pack):
            pack = list(islice(rest, per_pack))
            yield pack[-1][0], [group for _, group in pack]


class _Waiting:
    """What waits, as streams. Every batch takes the head of some streams, so that forming one costs its own size."""

    def __init__(self, queue: Iterable[TrajectoryGroup], by_environment: bool) -> None:
        self._by_environment = by_environment
        self._streams: dict[Hashable, _Stream] = {}
        for place, group in enumerate(queue):
            if group.size > 0:  # an empty group is in no pack
                stream = self._streams.setdefault(self._key(group), _Stream(group.size, group.env_id))
                stream.groups.append((place, group))

    def _key(self, group: TrajectoryGroup) -> Hashable:
        return (group.env_id, group.size) if self._by_environment else group.size

    @property
    def max_size(self) -> int:
        """The size of the largest group that waits, in sequences; 0 when none waits."""
        return max((stream.size for stream in self.streams()), default=0)

    def streams(self) -> Iterator[_Stream]:
        """The streams that hold a group."""
        return (stream for stream in self._streams.values() if stream.groups)

    def remove(self, batch: Iterable[TrajectoryGroup]) -> None:
        """Take a batch out: of every stream it has the first groups."""
        for group in batch:
            self._streams[self._key(group)].groups.popleft()


def _in_order(waiting: _Waiting, batch_size: int) -> list[TrajectoryGroup] | None:
    """Packs as they are completed, whichever environments their groups are of."""
    max_size, total = waiting.max_size, 0
    batch: list[TrajectoryGroup] = []
    for _, pack in heapq.merge(*(stream.packs(max_size) for stream in waiting.streams()), key=_place):
        for group in pack:
            batch.append(group)
            total += group.size
            if total >= batch_size:
                return batch if total == batch_size else None
    return None


def _with_minima(waiting: _Waiting, batch_size: int, minima: Mapping[int, float]) -> list[TrajectoryGroup] | None:
    """First what every environment must have, then whatever fits, in the queue's order."""
    max_size = waiting.max_size
    streams: dict[int, list[_Stream]] = {}  # with whole packs, by environment
    for stream in waiting.streams():
        if stream.env_id is not None and stream.num_packed(max_size):
            streams.setdefault(stream.env_id, []).append(stream)
    needed = {env_id: int(batch_size * share) for env_id, share in minima.items() if int(batch_size * share) > 0}
    if not needed.keys() <= streams.keys():
        return None
    if (total_needed := sum(needed.values())) > batch_size:
        scale = batch_size / total_needed
        smallest = {env_id: min(stream.size for stream in streams[env_id]) for env_id in needed}
        needed = {env_id: max(smallest[env_id], int(need * scale)) for env_id, need in needed.items()}
    batch, room = _meet_minima(streams, needed, max_size, batch_size)
    batch += _fill([stream for each in streams.values() for stream in each], batch, max_size, room)
    return batch if sum(group.size for group in batch) == batch_size else None


def _meet_minima(
    streams: Mapping[int, list[_Stream]], needed: Mapping[int, int], max_size: int, room: int
) -> tuple[list[TrajectoryGroup], int]:
    """What meets the minima, and how many sequences still fit."""
    batch: list[TrajectoryGroup] = []
    for env_id, need in needed.items():
        missing = need
        for _, pack in heapq.merge(*(stream.packs(max_size) for stream in streams[env_id]), key=_place):
            for group in pack:
                if missing > 0 and group.size <= room:
                    batch.append(group)
                    missing -= group.size
                    room -= group.size
            if missing <= 0 or not room:
                break
    return batch, room


def _fill(
    streams: Iterable[_Stream], taken: Sequence[TrajectoryGroup], max_size: int, room: int
) -> Iterator[TrajectoryGroup]:
    """Packed groups that fit, in the queue's order, after those that are taken."""
    num_taken: dict[tuple[int | None, int], int] = {}
    for group in taken:
        key = (group.env_id, group.size)
        num_taken[key] = num_taken.get(key, 0) + 1
    left = (
        islice(stream.groups, num_taken.get((stream.env_id, stream.size), 0), stream.num_packed(max_size))
        for stream in streams
        if stream.size <= room
    )
    for _, group in heapq.merge(*left, key=_place):
        if group.size <= room:
            room -= group.size
            yield group
        if not room:
            return


def _place(entry: tuple[int, object]) -> int:
    return entry[0]

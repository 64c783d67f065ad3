"""The groups that wait to be packed, with the sums that status requests ask for ten times a second."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from loomrl.language.trajectory.state.packing import TrajectoryGroup


class GroupQueue:
    """Groups that wait to be packed, iterated in the order they came. It knows its sequences by environment and by size
    without looking through it."""

    def __init__(self) -> None:
        self._groups: dict[int, TrajectoryGroup] = {}  # by id, in the order they were queued
        self._of_size: Counter[int] = Counter()  # groups
        self._sizes: defaultdict[int | None, Counter[int]] = defaultdict(Counter)  # groups, by environment and size
        self.sequences: Counter[int | None] = Counter()  # by environment; None: of no environment
        self.num_changes = 0  # how many groups were added or removed so far

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[TrajectoryGroup]:
        return iter(self._groups.values())

    def add(self, group: TrajectoryGroup) -> None:
        """Append a group to the queue and to the sums by environment and size."""
        self._groups[group.id] = group
        self._of_size[group.size] += 1
        self._sizes[group.env_id][group.size] += 1
        self.sequences[group.env_id] += group.size
        self.num_changes += 1

    def remove(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Remove groups from the queue and from the sums by environment and size.

        Raises:
            KeyError: for a group that is not queued; those before it are removed.
        """
        for group in groups:
            del self._groups[group.id]
            _take_one(self._of_size, group.size)
            _take_one(self._sizes[group.env_id], group.size)
            self.sequences[group.env_id] -= group.size
            if not self._sizes[group.env_id]:
                del self._sizes[group.env_id], self.sequences[group.env_id]
            self.num_changes += 1

    @property
    def max_size(self) -> int:
        """The size of the largest queued group, in sequences; 1 where the queue is empty."""
        return max(self._of_size, default=1) or 1

    def max_size_of(self, env_id: int) -> int:
        """The size of an environment's largest queued group, in sequences; 0 where it has none."""
        return max(self._sizes.get(env_id, ()), default=0)

    def num_groups_of(self, env_id: int) -> int:
        """The number of an environment's groups that are queued."""
        return sum(self._sizes.get(env_id, Counter()).values())


def _take_one(counts: Counter[int], size: int) -> None:
    counts[size] -= 1
    if not counts[size]:
        del counts[size]

"""The content of waiting groups that is held in memory: as much as is allowed, the rest is read when it is needed."""

from collections.abc import Iterable

from loomrl.language.trajectory.state.fragments import Fragment


class Contents:
    """Compressed contents of groups by their ids, `num_bytes` in all and at most `max_bytes`. The first to come stay:
    they are the first to go to a trainer."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[int, Fragment] = {}
        self.num_bytes = 0

    def put(self, group_id: int, fragment: Fragment) -> None:
        """Hold a group's content in memory if there is room; else it is not held."""
        if self.num_bytes + len(fragment.deflated) <= self._max_bytes:
            self._held[group_id] = fragment
            self.num_bytes += len(fragment.deflated)

    def get(self, group_id: int) -> Fragment | None:
        """A group's content; None where it is not held, but in the database alone."""
        return self._held.get(group_id)

    def drop(self, group_ids: Iterable[int]) -> None:
        """Remove the content of these groups from memory; ids that are not held are ignored."""
        for group_id in group_ids:
            if (fragment := self._held.pop(group_id, None)) is not None:
                self.num_bytes -= len(fragment.deflated)

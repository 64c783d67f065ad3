"""The few whole observations that the ring of frames cannot give back: a ring with ascending keys that grows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay.storage import Storage


class SideStore:
    """A ring of keys (F,) and observations (F, s), entry i at place i % F. Which entries are alive is said by the
    counters of the rows. F is `room`."""

    def __init__(self, name: str, room: int, entry_bytes: int, storage: Storage) -> None:
        self._name, self._entry_bytes, self._storage = name, entry_bytes, storage
        self._open(room)

    def _open(self, room: int) -> None:
        values = self._storage.array(f"{self._name}s", (room, self._entry_bytes), np.uint8)
        keys = self._storage.array(f"{self._name}_keys", (room,), np.int64)
        self.room = room  # last, as all three belong together: there may be no room
        self.keys: NDArray[np.int64] = keys
        self.values: NDArray[np.uint8] = values

    def grow(self, begin: int, end: int) -> None:
        """Double the room and move entries `begin` to `end` (exclusive) to their new places. Only the new half is
        written, so that the old one stays valid until the room is noted.

        Raises:
            ArtifactError: when the storage has no room; the entries stay as they were.
        """
        room = self.room
        self._open(2 * room)
        entries = np.arange(begin, end)
        moved = entries[entries % (2 * room) >= room]
        self.keys[moved % (2 * room)] = self.keys[moved % room]
        self.values[moved % (2 * room)] = self.values[moved % room]

    def first_alive(self, begin: int, end: int, oldest_key: int, stop_key: int) -> int:
        """The number of the first entry, from `begin` to `end`, from which on all keys lie in [oldest_key, stop_key);
        `end` where there is none."""
        keys = self.keys[np.arange(begin, end) % self.room]
        dead = np.flatnonzero((keys < oldest_key) | (keys >= stop_key))
        return begin + int(dead[-1]) + 1 if len(dead) else begin

    def entries(self, begin: int, end: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Copies of the keys (n,) and observations (n, s) of entries `begin` to `end` (exclusive)."""
        position = np.arange(begin, end) % self.room
        return self.keys[position], self.values[position]

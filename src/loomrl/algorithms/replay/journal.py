"""What a storage that keeps its arrays must know to tell whether a saved state is still whole in them."""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay.spec import ReplaySpec, State
from loomrl.algorithms.replay.storage import Storage
from loomrl.errors import ArtifactError, ConfigError

LAYOUT, GENERATION, BEGUN, FINAL_ROOM, START_ROOM, SIZE = 0, 1, 2, 3, 4, 5


class ReplayJournal:
    """A few numbers that a storage keeps beside a buffer's arrays: their layout, how far writing has ever begun, and in
    which run.

    `BEGUN` is raised before rows are written: rows that a killed process left half-written lie beyond every saved
    state. A run that does not restore a state begins a new generation when it first writes, which ends the states of
    the one before.

    Raises:
        ConfigError: when the storage holds a buffer of another layout.
    """

    def __init__(self, spec: ReplaySpec, num_slots: int, storage: Storage) -> None:
        self._storage = storage
        self._spare = storage.spare_rows(spec.num_rows)
        self._numbers: NDArray[np.int64] = storage.array("journal", (SIZE,), np.int64)
        layout = zlib.crc32(repr((spec.num_envs, num_slots, _arrays(spec))).encode())
        found = int(self._numbers[LAYOUT])
        if self._numbers[GENERATION] and found != layout:
            raise ConfigError(
                "the replay folder holds a buffer of another capacity, spare fraction, shape or type; "
                "name another folder, or delete what is in it"
            )
        self._numbers[LAYOUT] = layout
        self._live = False
        self._saved = 0  # rows of the newest saved state
        self._overrun = False  # whether that state is known to be lost

    def rooms(self, defaults: tuple[int, int]) -> tuple[int, int]:
        """For how many entries the two side stores have room, as it was noted last: that of `finals`, then of `starts`.
        `defaults` where nothing was noted."""
        final, start = self._numbers[FINAL_ROOM : START_ROOM + 1].tolist()
        return (final or defaults[0], start or defaults[1])

    def note_rooms(self, rooms: tuple[int, int]) -> None:
        """Write down for how many entries the two side stores have room, once they have grown."""
        self._numbers[FINAL_ROOM : START_ROOM + 1] = rooms

    def begin(self, stop: int) -> None:
        """Note that rows up to `stop` (exclusive) are about to be written; to be called before they are. Where that
        ends the newest saved state, the storage is flushed first."""
        if not self._live:
            self._numbers[BEGUN] = 0
            self._numbers[GENERATION] += 1
            self._live = True
        if stop > self._numbers[BEGUN]:
            self._numbers[BEGUN] = stop
        if not self._overrun and stop - self._saved > self._spare:
            self._overrun = True
            self._storage.flush()  # the disk must not learn of the new rows before it learns that the state is lost

    def save(self, written: int) -> int:
        """Note that a state is being saved after `written` rows; returns the generation, which belongs into the
        state."""
        self._saved, self._overrun = written, False
        return int(self._numbers[GENERATION])

    def restore(self, written: int, state: State) -> int:
        """Continue where a state was saved, after `written` rows; returns how many rows were ever begun, which may be
        more.

        Raises:
            ArtifactError: when the state's rows are not, or no longer, in the arrays; nothing has changed.
        """
        begun, generation = int(self._numbers[BEGUN]), int(self._numbers[GENERATION])
        if state.get("generation") != generation or written > begun:
            raise ArtifactError(
                "the replay folder does not hold the rows of this checkpoint: it was emptied, replaced, or another "
                "run wrote to it; restore the folder as it was, or train from the start"
            )
        if begun - written > self._spare:
            raise ArtifactError(
                f"{begun - written} steps were written to the replay folder after this checkpoint, {self._spare} "
                "are spared for it; train from a later checkpoint; raise spare_fraction or save more often"
            )
        self._saved, self._overrun, self._live = written, False, True
        return begun


def _arrays(spec: ReplaySpec) -> list[Any]:
    order = b"" if spec.byte_order is None else spec.byte_order.tobytes()
    return [spec.obs_bytes, spec.action_bytes, spec.frame_stack, str(np.dtype(spec.obs_dtype)), zlib.crc32(order)]

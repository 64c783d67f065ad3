"""What the workers of one port agree on, in memory they share: who is champion, and that something changed.

Mapped memory. Its first word, the revision, grows whenever something must be in force at all workers at once: people's
orders, a quarantine, another champion. Who answers a request looks at that one word, and catches up where it moved.

A champion is changed by all workers together. Each votes for the version that it would take and has loaded; the last
one to vote for it makes it the champion of all. So no client is decided for by an older version after a newer one,
whichever workers it meets; and what one worker refuses, none takes.
"""

import fcntl
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from loomrl.errors import ArtifactError

# Words. Of votes there is one for each worker, 0 for one that is not there; behind them are as many numbers of
# connections, and as many moments at which a worker's event loop last turned (0: not yet). How often another champion
# was made stands behind all else, where a worker of the version before, which may be there still, does not look: what
# it does counts as an order.
_REVISION, _CHAMPION, _VOTES = 0, 1, 2
_MAX_VERSION_BYTES = 4_096  # a version may be a folder's path; there is room for two
_WORD = 8


class Agreement:
    """What the workers of one port map into their memory to agree: a revision, the champion and how often there was
    another, and each one's vote, connections and last sign of life. Safe to use from several processes and threads;
    what a process that was killed held is free again.

    Raises:
        ArtifactError: when there is no room for it.
    """

    def __init__(self, path: Path, num_workers: int) -> None:
        """Join in; in an empty file there is no champion and no vote."""
        size = (_VOTES + 3 * num_workers) * _WORD
        self._num_workers = num_workers
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        end = size + 2 * _MAX_VERSION_BYTES
        reserve_all(self._handle, path, end + _WORD)
        mapped = memoryview(mmap.mmap(self._handle, end + _WORD))
        self._words, self._elections = mapped[:size].cast("Q"), mapped[end:].cast("Q")
        self._texts = mapped[size : size + _MAX_VERSION_BYTES], mapped[size + _MAX_VERSION_BYTES : end]
        self._lock = threading.Lock()

    @property
    def revision(self) -> int:
        """A number that grows with every change; 70 ns, for it is read for every request."""
        return self._words[_REVISION]

    @property
    def champion(self) -> str:
        """The version that decides at all workers; empty where there is none."""
        with self._exclusive():
            return self._champion()

    def changes(self) -> tuple[int, int]:
        """The revision, and how much of it is something else than another champion: orders, and a quarantine. At a
        moment at which there is another champion it may be one too many, never one too few.
        """
        num_elections = self._elections[0]  # first: the revision grows before
        revision = self.revision
        return revision, revision - num_elections

    def announce(self) -> None:
        """Let the revision grow, because a file changed: whoever answers from now on has it in force first."""
        with self._exclusive():
            self._words[_REVISION] += 1

    def vote(self, index: int, version: str | None, held: Container[str]) -> str:
        """Vote for a champion (empty: none should be), or with None for the one there is; returns the one there is.

        `held` are the versions the worker has loaded. Without the champion among them it has no vote, and must not
        answer.
        """
        with self._exclusive():
            champion = self._champion()
            if champion and champion not in held:
                self._words[_VOTES + index] = 0
                return champion
            wanted = champion if version is None else version
            self._words[_VOTES + index] = _mark(wanted)
            if wanted != champion and set(self._votes()) - {0} == {_mark(wanted)}:
                self._put(wanted)
                return wanted
            return champion

    def has_vote(self, index: int) -> bool:
        """Whether a worker is in step: the champion cannot change without it."""
        return self._words[_VOTES + index] != 0

    def has_most(self, index: int, num_connections: int) -> bool:
        """Note how many connections a worker has; returns whether a worker that is in step has fewer."""
        begin = _VOTES + self._num_workers
        self._words[begin + index] = num_connections
        numbers = self._words[begin : begin + self._num_workers]
        there = [number for number, vote in zip(numbers, self._votes(), strict=True) if vote]
        return num_connections > min(there, default=num_connections)

    def beat(self, index: int) -> None:
        """Record that this worker's event loop turns, now."""
        self._words[_VOTES + 2 * self._num_workers + index] = time.monotonic_ns()

    def silent_seconds(self, index: int) -> float:
        """For how long a worker's event loop has not turned; 0 for one that has not begun."""
        beat = self._words[_VOTES + 2 * self._num_workers + index]
        return (time.monotonic_ns() - beat) / 1e9 if beat else 0.0

    def withdraw(self, index: int) -> None:
        """Take back the vote of a worker that has ended, so that the others do not wait for it. Waits for nobody, who
        may hang with the lock.
        """
        self._words[_VOTES + index] = self._words[_VOTES + 2 * self._num_workers + index] = 0

    def hindering(self) -> list[int]:
        """The indices of workers that still want the present champion where another one wants the next. Waits for
        nobody.
        """
        present, votes = _mark(self._champion()), self._votes()
        if set(votes) <= {0, present}:
            return []
        return [index for index, vote in enumerate(votes) if vote == present]

    def _votes(self) -> list[int]:
        return self._words[_VOTES : _VOTES + self._num_workers].tolist()

    def _champion(self) -> str:
        num_bytes, place = divmod(self._words[_CHAMPION], 2)
        return bytes(self._texts[place][:num_bytes]).decode()

    def _put(self, version: str) -> None:
        """Write beside the present champion, then change one word: who is killed in between has changed nothing."""
        text, place = version.encode(), 1 - self._words[_CHAMPION] % 2
        self._texts[place][: len(text)] = text
        self._words[_CHAMPION] = 2 * len(text) + place
        self._words[_REVISION] += 1
        self._elections[0] += 1

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._lock, locked(self._handle):
            yield


@contextmanager
def locked(handle: int) -> Iterator[None]:
    """Hold a file's lock against other processes; within one, its caller sees to it that one thread does at a time."""
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def reserve_all(handle: int, path: Path, num_bytes: int) -> None:
    """Give a file that is to be mapped all its room: who writes to a mapped page without any is killed.

    Raises:
        ArtifactError: where there is none.
    """
    try:
        os.posix_fallocate(handle, 0, num_bytes)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be made: {error.strerror}; free some space or memory") from error


def _mark(version: str) -> int:
    """A version in a word that is not 0."""
    return int.from_bytes(hashlib.blake2b(version.encode(), digest_size=8).digest(), "big") or 1

"""Which tokens ask for decisions themselves: such a one may not report on what another asked for.

Several workers keep that together, in a file to which each adds the tokens that ask at it: whatever worker a sender
meets, what it asked for at another counts.
"""

import os
from collections.abc import Iterable
from pathlib import Path


class AskingTokens:
    """The names of tokens that ask for decisions; with a `path`, of all processes that open it.

    Raises OSError, when made, where the file cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._names: set[str] = set()
        self._told: set[str] = set()  # to the others
        self._handle = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._num_read = 0  # bytes

    def add(self, names: Iterable[str]) -> None:
        """Note these names, for every process that shares the file.

        Where the disk is full they are known here alone, until the next time they are added: a decision does not wait.
        """
        if untold := set(names) - self._told:
            self._names |= untold
            if self._handle is None or self._write_names(self._handle, untold):
                self._told |= untold

    def __contains__(self, name: object) -> bool:
        """Whether a token asked for decisions, here or at another worker."""
        if name not in self._names and self._handle is not None:
            self._read(self._handle)
        return name in self._names

    def _write_names(self, handle: int, names: Iterable[str]) -> bool:
        lines = "".join(f"\n{name}\n" for name in names).encode()  # the first line feed ends what was cut
        try:
            return os.write(handle, lines) == len(lines)
        except OSError:
            return False

    def _read(self, handle: int) -> None:
        """What others added since."""
        if (size := os.fstat(handle).st_size) > self._num_read:
            whole, end, _ = os.pread(handle, size - self._num_read, self._num_read).rpartition(b"\n")
            self._num_read += len(whole) + len(end)
            self._names.update(whole.decode(errors="replace").split("\n"))

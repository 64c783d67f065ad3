"""Reading a chain while its server writes it: what was appended since, whole lines only.

Hashes are not checked here: `loomrl audit verify` does that.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from loomrl.serving.segments import PLAIN, segments, segments_after

_CHUNK_BYTES = 256 * 1024


class GrowingLines:
    """The lines of one chain over its segments, as they come. Half a line is left until it is whole, or cut.

    `segment` (a file's stem) and `offset` (bytes) say how far it was read: always the end of a line.
    """

    def __init__(self, folder: Path, segment: str = "", offset: int = 0) -> None:
        """Go on behind what was read; where that segment is gone, with the oldest after it."""
        self._folder, self._handle = folder, -1
        self.segment, self.offset = segment, 0
        if (path := folder / f"{segment}{PLAIN}").is_file():
            self._open(path, offset)

    @property
    def backlog_bytes(self) -> int:
        """How much is written and not read."""
        rest = os.fstat(self._handle).st_size - self.offset if self._handle >= 0 else 0
        return rest + sum(path.stat().st_size for path in self._later())

    def read(self) -> Iterator[bytes]:
        """All lines that came since, each counted as read when it is given."""
        while True:
            later = self._later()  # looked up first: nothing is appended to a segment once there is a later one
            if self._handle >= 0:
                yield from self._rest()
            if not later:
                return
            self._open(later[0], 0)

    def close(self) -> None:
        """Give the segment back."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _later(self) -> list[Path]:
        """Segments behind the one that is read; compacted ones are long behind all who follow."""
        return [path for path in segments(self._folder) if path.suffix == PLAIN and path.stem > self.segment]

    def _open(self, path: Path, offset: int) -> None:
        self.close()
        self.segment, self.offset, self._handle = path.stem, offset, os.open(path, os.O_RDONLY)

    def _rest(self) -> Iterator[bytes]:
        """The whole lines from here to the end of the segment."""
        size = _CHUNK_BYTES
        while data := os.pread(self._handle, size, self.offset):
            whole = data[: data.rfind(b"\n") + 1]
            if not whole and len(data) < size:
                return  # it is being written, or a crash cut it
            size = _CHUNK_BYTES if whole else 4 * size  # a record of a large batch
            for line in whole.splitlines(keepends=True):
                self.offset += len(line)
                yield line


class ChainFollower:
    """The records of one chain above a sequence, as they come."""

    def __init__(self, folder: Path, after: int) -> None:
        begun = segments_after(folder, after)[:1]
        self._lines = GrowingLines(folder, begun[0].stem if begun else "")
        self._pass_over(after)

    @property
    def backlog_bytes(self) -> int:
        """How much is written and not read."""
        return self._lines.backlog_bytes

    def read(self) -> list[dict[str, Any]]:
        """The next records, about 256 KiB of them; none when there are no more yet."""
        found, size = [], 0
        for line in self._lines.read():
            found.append(orjson.loads(line))
            size += len(line)
            if size >= _CHUNK_BYTES:
                break
        return found

    def close(self) -> None:
        """Give the segment back."""
        self._lines.close()

    def _pass_over(self, sequence: int) -> None:
        """Go on to the first record above a sequence."""
        for line in self._lines.read():
            if orjson.loads(line)["sequence"] > sequence:
                self._lines.offset -= len(line)
                return

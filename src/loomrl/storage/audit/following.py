"""Reading a chain while its server writes it: what was appended since, whole lines only.

Hashes are not checked here: `loomrl audit verify` does that.
"""

import os
from pathlib import Path

import orjson

from loomrl.storage.audit.segments import PLAIN, segments_after
from loomrl.types import Json

_CHUNK_BYTES = 64 * 1024


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
        """How many bytes of the chain are written and not read yet."""
        rest = os.fstat(self._handle).st_size - self.offset if self._handle >= 0 else 0
        return rest + sum(path.stat().st_size for path in self._later())

    def read(self) -> list[bytes]:
        """The next lines, some 64 KiB of them, which count as read; none when there are no more yet."""
        if found := self._rest():
            return found
        while later := self._later():  # nothing more is appended to this segment now
            if found := self._rest():
                return found
            self._open(later[0], 0)
        return self._rest()

    def close(self) -> None:
        """Close the segment's file, if one is open; it may be called more than once."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _later(self) -> list[Path]:
        """Segments behind the one that is read; compacted ones are long behind all who follow."""
        names = (
            sorted(name for name in os.listdir(self._folder) if name.endswith(PLAIN)) if self._folder.is_dir() else ()
        )
        return [self._folder / name for name in names if name.removesuffix(PLAIN) > self.segment]

    def _open(self, path: Path, offset: int) -> None:
        self.close()
        self.segment, self.offset, self._handle = path.stem, offset, os.open(path, os.O_RDONLY)

    def _rest(self) -> list[bytes]:
        """The next whole lines of the segment."""
        size = _CHUNK_BYTES
        while self._handle >= 0 and (data := os.pread(self._handle, size, self.offset)):
            whole = data[: data.rfind(b"\n") + 1]
            if whole or len(data) < size:  # else it is being written, or a crash cut it
                self.offset += len(whole)
                return whole.splitlines(keepends=True)
            size *= 4  # a record of a large batch
        return []


class ChainFollower:
    """The records of one chain above a sequence, as they come."""

    def __init__(self, folder: Path, after: int) -> None:
        begun = segments_after(folder, after)[:1]
        self._lines = GrowingLines(folder, begun[0].stem if begun else "")
        self._pass_over(after)

    @property
    def backlog_bytes(self) -> int:
        """How many bytes of the chain are written and not read yet."""
        return self._lines.backlog_bytes

    def read(self) -> list[Json]:
        """The next records, about 64 KiB of them; none when there are no more yet."""
        return [orjson.loads(line) for line in self._lines.read()]

    def close(self) -> None:
        """Close the segment's file, if one is open; it may be called more than once."""
        self._lines.close()

    def _pass_over(self, sequence: int) -> None:
        """Go on to the first record above a sequence."""
        while lines := self._lines.read():
            for number, line in enumerate(lines):
                if orjson.loads(line)["sequence"] > sequence:
                    self._lines.offset -= sum(map(len, lines[number:]))
                    return

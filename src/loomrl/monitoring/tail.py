"""What is appended to an audit chain, as it is appended."""

import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from loomrl.schema import Document
from loomrl.serving.records import DECISIONS, rows
from loomrl.serving.sealing import opened
from loomrl.serving.segments import PLAIN, segments
from loomrl.types import Json

_BYTES = 2**20  # read at once


class Position(Document):
    """How far a chain was read."""

    segment: str = ""  # the file's stem; empty before the first
    offset: int = 0  # bytes


class Tail:
    """Follows one chain over its segments. Hashes are not checked here: `loomrl audit verify` does that."""

    def __init__(self, folder: Path, position: Position) -> None:
        """Go on at a position; where its segment is gone, with the oldest after it."""
        self._folder, self._segment, self._offset = folder, position.segment, position.offset
        self._handle = -1

    @property
    def position(self) -> Position:
        """How far it has read: always the end of a record."""
        return Position(segment=self._segment, offset=self._offset)

    def read(self, kinds: tuple[str, ...]) -> Iterator[Json]:
        """The whole records of these kinds that came since the last call; of several decisions each is one."""
        marks = tuple(b'{"kind":"%b"' % kind.encode() for kind in kinds)
        while self._handle >= 0 or self._open_next():
            for line in self._lines():
                self._offset += len(line)
                if line.startswith(marks):
                    entry = opened(orjson.loads(line))
                    yield from rows(entry) if entry["kind"] == DECISIONS else (entry,)
            if not self._open_next():
                return

    def close(self) -> None:
        """Give the file back."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _lines(self) -> Iterator[bytes]:
        """The whole lines from here to the end of the segment."""
        size = _BYTES
        while data := os.pread(self._handle, size, self._offset):
            whole = data[: data.rfind(b"\n") + 1]
            if not whole and len(data) < size:
                return  # it is being written, or a crash cut it
            size = _BYTES if whole else 2 * size
            yield from whole.splitlines(keepends=True)

    def _open_next(self) -> bool:
        """Go on with the next segment, if there is one."""
        plain = [path for path in segments(self._folder) if path.suffix == PLAIN]  # compacted ones are long behind
        later = [path for path in plain if path.stem > self._segment or self._is_here(path)]
        if not later:
            return False
        path = later[0]
        self._offset = self._offset if self._is_here(path) else 0
        self.close()
        self._handle, self._segment = os.open(path, os.O_RDONLY), path.stem
        return True

    def _is_here(self, path: Path) -> bool:
        """Whether a segment is the one to go on with, not read since the start."""
        return self._handle < 0 and path.stem == self._segment

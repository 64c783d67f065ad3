"""What is appended to an audit chain, as it is appended."""

from collections.abc import Iterator
from pathlib import Path

import orjson

from loomrl.schema import Document
from loomrl.serving.following import GrowingLines
from loomrl.serving.records import DECISIONS, rows
from loomrl.serving.sealing import opened
from loomrl.types import Json


class Position(Document):
    """How far a chain was read."""

    segment: str = ""  # the file's stem; empty before the first
    offset: int = 0  # bytes


class Tail:
    """The records of one chain over its segments, from a position on."""

    def __init__(self, folder: Path, position: Position) -> None:
        """Go on at a position; where its segment is gone, with the oldest after it."""
        self._lines = GrowingLines(folder, position.segment, position.offset)

    @property
    def position(self) -> Position:
        """How far it has read: always the end of a record."""
        return Position(segment=self._lines.segment, offset=self._lines.offset)

    def read(self, kinds: tuple[str, ...]) -> Iterator[Json]:
        """The whole records of these kinds that came since the last call; of several decisions each is one."""
        marks = tuple(b'{"kind":"%b"' % kind.encode() for kind in kinds)
        for line in self._lines.read():
            if line.startswith(marks):
                entry = opened(orjson.loads(line))
                yield from rows(entry) if entry["kind"] == DECISIONS else (entry,)

    def close(self) -> None:
        """Give the file back."""
        self._lines.close()

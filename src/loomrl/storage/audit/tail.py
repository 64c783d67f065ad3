"""What is appended to an audit chain, as it is appended."""

from pathlib import Path

import orjson

from loomrl.storage.audit.following import GrowingLines
from loomrl.storage.audit.sealing import opened
from loomrl.system.schema import Document
from loomrl.types import Json


class ChainPosition(Document):
    """How far a chain was read: a segment and an offset in it."""

    segment: str = ""  # the file's stem; empty before the first
    offset: int = 0  # bytes


class Tail:
    """The records of one chain over its segments, from a position on."""

    def __init__(self, folder: Path, position: ChainPosition) -> None:
        """Go on at a position; where its segment is gone, with the oldest after it."""
        self._lines = GrowingLines(folder, position.segment, position.offset)

    @property
    def position(self) -> ChainPosition:
        """How far it has read: always the end of a record."""
        return ChainPosition(segment=self._lines.segment, offset=self._lines.offset)

    def read(self, kinds: tuple[str, ...]) -> list[Json]:
        """The next whole records of these kinds, some 64 KiB of the chain; none where nothing is left.

        What is sealed in them is opened. Records of other kinds are passed over.
        """
        marks = tuple(b'{"kind":"%b"' % kind.encode() for kind in kinds)
        while lines := self._lines.read():
            if found := [opened(orjson.loads(line)) for line in lines if line.startswith(marks)]:
                return found
        return []

    def close(self) -> None:
        """Close the segment's file, if one is open; it may be called more than once."""
        self._lines.close()

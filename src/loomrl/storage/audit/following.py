"""Reading a chain while its server writes it: what was appended since, whole lines only.

Hashes are not checked here: `loomrl audit verify` does that.
"""

import os
from pathlib import Path

from loomrl.storage.audit.sealing import opened
from loomrl.storage.audit.segments import PLAIN, parse_record, segments_after
from loomrl.system.schema import Document
from loomrl.types import Json

_CHUNK_BYTES = 64 * 1024


class ChainPosition(Document):
    """How far a chain was read: a segment and an offset in it."""

    segment: str = ""  # the file's stem; empty before the first
    offset: int = 0  # bytes


class GrowingLines:
    """The lines of one chain over its segments, as they come. Half a line is left until it is whole, or cut. A folder,
    or a segment, that is not there yet holds no lines. Every method raises `OSError` when a file cannot be read.

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

    def read_lines(self) -> list[bytes]:
        """The next lines, each with its line break, some 64 KiB of them, which count as read.

        Empty only where there are no more yet: it may be asked again later.
        """
        if found := self._rest():
            return found
        while later := self._later():  # nothing more is appended to this segment now
            if found := self._rest():
                return found
            self._open(later[0], 0)
        return self._rest()

    def close(self) -> None:
        """Close the segment's file, if one is open; nothing may be read afterwards. It may be called more than once."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _parsed(self, line: bytes) -> Json:
        return parse_record(line, self._folder / f"{self.segment}{PLAIN}")

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


class ChainFollower(GrowingLines):
    """The records of one chain above the sequence `after`, as they come. Hashes are not checked, and what is sealed
    stays sealed. A line that is no record raises `ArtifactError`."""

    def __init__(self, folder: Path, after: int) -> None:
        begun = segments_after(folder, after)[:1]
        super().__init__(folder, begun[0].stem if begun else "")
        self._pass_over(after)

    def read(self) -> list[Json]:
        """The next records of any kind, about 64 KiB of them, which count as read; empty when there are no more yet.

        Raises:
            ArtifactError: when a line is no record; the lines read with it are passed over.
        """
        return [self._parsed(line) for line in self.read_lines()]

    def _pass_over(self, sequence: int) -> None:
        """Go on to the first record above a sequence."""
        while lines := self.read_lines():
            for number, line in enumerate(lines):
                if self._parsed(line)["sequence"] > sequence:
                    self.offset -= sum(map(len, lines[number:]))
                    return


class Tail(GrowingLines):
    """The records of one chain over its segments, from a position on; where its segment is gone, from the oldest after
    it. Hashes are not checked."""

    def __init__(self, folder: Path, position: ChainPosition) -> None:
        super().__init__(folder, position.segment, position.offset)

    @property
    def position(self) -> ChainPosition:
        """How far it has read: always the end of a record."""
        return ChainPosition(segment=self.segment, offset=self.offset)

    def read(self, kinds: tuple[str, ...]) -> list[Json]:
        """The next whole records of these kinds, out of some 64 KiB of the chain, which count as read.

        Records of other kinds are passed over, however many: empty means that nothing is left for now. What is sealed
            is opened where its key is here, and else stays sealed.

        Raises:
            ArtifactError: when what is sealed was changed, or a line is no record; the records read with it are passed
                over.
            ConfigError: when the configured keys cannot be read.
        """
        marks = tuple(b'{"kind":"%b"' % kind.encode() for kind in kinds)
        while lines := self.read_lines():
            if found := [opened(self._parsed(line)) for line in lines if line.startswith(marks)]:
                return found
        return []

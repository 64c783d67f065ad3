"""Reading a chain while its server writes it: what was appended since, whole lines only."""

import os
from pathlib import Path
from typing import Any

import orjson

_CHUNK_BYTES = 256 * 1024


class ChainFollower:
    """The records of one chain above a sequence, as they come. Half a record is left until it is whole, or cut."""

    def __init__(self, folder: Path, after: int) -> None:
        self._folder = folder
        self._segment, self._handle, self._offset = "", -1, 0
        begun = [path for path in self._later() if _begins_at_most(path, after + 1)]
        if begun:
            self._open(begun[-1])
            self._pass_over(after)

    @property
    def backlog_bytes(self) -> int:
        """How much is written and not read."""
        rest = os.fstat(self._handle).st_size - self._offset if self._handle >= 0 else 0
        return rest + sum(path.stat().st_size for path in self._later())

    def read(self) -> list[dict[str, Any]]:
        """The next records, about 256 KiB of them; none when there are no more yet."""
        later = self._later()  # looked up first: nothing is appended to a segment once there is a later one
        lines = self._lines()
        if not lines and later:
            self._open(later[0])
            lines = self._lines()
        return [orjson.loads(line) for line in lines]

    def close(self) -> None:
        """Give the segment back."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _later(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("[0-9]*.jsonl") if path.stem > self._segment)

    def _open(self, path: Path) -> None:
        self.close()
        self._segment, self._handle, self._offset = path.stem, os.open(path, os.O_RDONLY), 0

    def _pass_over(self, sequence: int) -> None:
        """Go on to the first record above a sequence."""
        while lines := self._lines():
            rest = [len(line) + 1 for line in lines if orjson.loads(line)["sequence"] > sequence]
            if rest:
                self._offset -= sum(rest)
                return

    def _lines(self) -> list[bytes]:
        if self._handle < 0:
            return []
        size, end = _CHUNK_BYTES, 0
        while not end:
            data = os.pread(self._handle, size, self._offset)
            end = data.rfind(b"\n") + 1
            if len(data) < size:
                break
            size *= 4  # a record of a large batch
        self._offset += end
        return data[:end].split(b"\n")[:-1]


def _begins_at_most(path: Path, sequence: int) -> bool:
    with path.open("rb") as file:
        line = file.readline()
    return line.endswith(b"\n") and int(orjson.loads(line)["sequence"]) <= sequence

"""How far a shadow has come: what its process and the server both see, and what outlives either's end."""

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from loomrl.storage.audit.log import ChainHead
from loomrl.system.files import closed_with
from loomrl.types import FloatArray

MAX_TEXT = 300  # characters of an error; a state must fit into one page of memory
_MOST_COMPARED = 12  # challengers whose agreement is known
_FRAME = struct.Struct("<II")  # length and CRC-32 of what follows
_PAGE_BYTES = 4096


def shadow_folder(folder: Path) -> Path:
    """The folder of the shadow's chain, beside that of the acting server's chain."""
    return folder.with_name(f"{folder.name}-shadow")


@dataclass
class Compared:
    """How often a challenger agreed with whoever acted, in how many decisions, and the sums of both versions' values:
    the challenger's own and the acting one's.
    """

    num_decisions: int = 0
    num_agreed: int = 0
    value: float = 0.0
    acting_value: float = 0.0


@dataclass
class ShadowState:
    """How far a shadow's process has come, and what it counted. Sequences are those of the acting server's chain;
    counts go on over restarts of the process.

    Decisions are counted once for each challenger: `num_mirrored` that it took too, `num_dropped` that it never saw,
    and `num_errors` that it failed on; ends of the process and records that were lost are errors, too.
    """

    settled: int  # the last record that needs no more looking at
    until: int = -1  # the last record in hand
    waiting: list[int] = field(default_factory=list)  # challengers that have not answered what is in hand, by number
    loading: bool = False  # the process starts, or takes a challenger in
    num_asked: int = 0  # how often a challenger was asked for an answer: grows while the shadow works
    num_mirrored: int = 0
    num_dropped: int = 0
    num_errors: int = 0
    compared: dict[str, Compared] = field(default_factory=dict)  # by the challenger's number, the newest of them
    last_error: str | None = None
    head: dict[str, Any] | None = None  # of the shadow's own chain, as far as it is synced

    def compare(self, number: int, num_agreed: int, values: FloatArray, acting_values: FloatArray) -> None:
        """Count decisions of a challenger beside those that were taken, with what both versions expected, (N,)."""
        found = self.compared.setdefault(str(number), Compared())
        found.num_decisions += len(values)
        found.num_agreed += num_agreed
        found.value += float(values.sum(dtype=np.float64))
        found.acting_value += float(acting_values.sum(dtype=np.float64))
        if len(self.compared) > _MOST_COMPARED:
            del self.compared[next(iter(self.compared))]

    def own_head(self) -> ChainHead | None:
        """The last synced record of the shadow's own chain; None before the first."""
        return None if self.head is None else ChainHead(**self.head)


class StatePage:
    """One page of shared memory. The shadow's process writes it; while there is none, the server does."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        closed_with(self, handle)

    @classmethod
    def create(cls, state: ShadowState) -> Self:
        """A new page, which lives as long as a process has it open."""
        page = cls(os.memfd_create("loomrl-shadow"))
        page.write(state)
        return page

    def write(self, state: ShadowState) -> None:
        """Replace the state, in one call: a process that is killed leaves the old one or the new one.

        Raises:
            ValueError: for a state that does not fit into one page of memory, 4096 bytes.
        """
        data = orjson.dumps(state)
        if len(data) + _FRAME.size > _PAGE_BYTES:
            raise ValueError(f"a shadow's state has {len(data)} bytes; it must fit into one page of memory")
        os.pwrite(self.handle, _FRAME.pack(len(data), zlib.crc32(data)) + data, 0)

    def read(self) -> ShadowState:
        """The state as it was last written. A copy that was made in the middle of a write is made again."""
        while True:
            page = os.pread(self.handle, _PAGE_BYTES, 0)
            length, checksum = _FRAME.unpack_from(page)
            data = page[_FRAME.size : _FRAME.size + length]
            if zlib.crc32(data) == checksum:
                document = orjson.loads(data)
                document["compared"] = {number: Compared(**one) for number, one in document["compared"].items()}
                return ShadowState(**document)

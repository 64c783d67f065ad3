"""How long something has left, by a clock that nobody sets: seconds since the machine was started.

What is left is kept with the machine's boot. A process that starts under the same boot knows it to the microsecond,
whatever the wall clock shows; after a reboot it goes on from what was kept last.
"""

import time
from functools import cache
from pathlib import Path
from typing import Self

from loomrl.system.schema import Document

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Countdown(Document):
    """So many seconds were left at a moment of one boot."""

    boot: str  # the machine's, as the kernel names it
    at: float  # seconds since then
    left: float  # seconds

    @classmethod
    def of(cls, seconds: float) -> Self:
        """A countdown of this many seconds that begins now."""
        return cls(boot=_boot(), at=_now(), left=seconds)

    @property
    def seconds_left(self) -> float:
        """What is left now; below zero once it is over. Of another boot: what was left when it was kept."""
        passed = _now() - self.at
        return self.left - passed if self.boot == _boot() and passed >= 0 else self.left


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps


@cache
def _boot() -> str:
    return _BOOT.read_text().strip()

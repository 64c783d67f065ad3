"""A wall clock that jumps, for a process of its own: a small library preloaded into it, see `jumping_clock.c`."""

import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_NANOSECONDS = 1_000_000_000


class JumpingClock:
    """`environment` is for the process whose clock it is; `jump(-3600)` sets it back an hour, also while that runs."""

    def __init__(self, folder: Path, name: str = "clock") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._offset, library = folder / f"{name}.offset", folder / f"{name}.so"
        self.jump(0.0)
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE)], check=True)
        self.environment = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(self._offset)}

    def jump(self, seconds: float) -> None:
        """Show so many seconds more than the system's clock does, from now on."""
        with self._offset.open("r+b" if self._offset.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("<q", round(seconds * _NANOSECONDS)))

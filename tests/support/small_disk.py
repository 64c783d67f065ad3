"""A file system that is really full: tmpfs of a few pages. Mounting takes root; without it such a test is skipped."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """What is mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no byte."""
        with self._ballast.open("ab", buffering=0) as file:
            while _fits(file.write, bytes(4096)):
                pass

    def fill_names(self) -> None:
        """Leave room for bytes, but for no other file."""
        self._ballast.mkdir()
        for number in range(1_000_000):
            if not _fits((self._ballast / str(number)).touch):
                return

    def turn_read_only(self) -> None:
        """For good."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)

    def make_room(self) -> None:
        """Take away what filled it."""
        if self._ballast.is_dir():
            for path in self._ballast.iterdir():
                path.unlink()
            self._ballast.rmdir()
        else:
            self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, num_bytes: int = 256 * 1024, num_files: int = 64) -> Iterator[SmallDisk]:
    """Mounted as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={num_bytes},nr_inodes={num_files}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip() if done else 'it takes root'}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fits(write, *arguments: object) -> bool:
    try:
        write(*arguments)
    except OSError:
        return False
    return True

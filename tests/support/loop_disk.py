"""A disk of its own, ext4 in a file, that can hang or fail. That takes root; without it such a test is skipped."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class LoopDisk:
    """What is mounted at `folder`."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self._device = folder, Path(device)

    def hang(self) -> None:
        """Keep whoever writes waiting."""
        subprocess.run(["fsfreeze", "--freeze", str(self.folder)], check=True)

    def go_on(self) -> None:
        """Write what was waited for."""
        subprocess.run(["fsfreeze", "--unfreeze", str(self.folder)], check=False, capture_output=True)

    def fail(self) -> None:
        """Find an error, and be read-only from now on."""
        Path(f"/sys/fs/ext4/{self._device.name}/trigger_fs_error").write_text("1")


@contextmanager
def loop_disk(folder: Path, num_bytes: int = 64 * 2**20) -> Iterator[LoopDisk]:
    """Mounted as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder.with_suffix(".img")
    image.touch()
    os.truncate(image, num_bytes)
    _done("mkfs.ext4", "-q", "-F", str(image))
    device = _done("losetup", "--find", "--show", str(image))
    try:
        _done("mount", "-o", "errors=remount-ro", device, str(folder))
        disk = LoopDisk(folder, device)
        try:
            yield disk
        finally:
            disk.go_on()
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def _done(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        pytest.skip(f"no disk can be made here: {done.stderr.strip() if done else 'it takes root'}")
    return done.stdout.strip()

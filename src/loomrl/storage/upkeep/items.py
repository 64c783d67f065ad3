"""One thing that may be removed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loomrl.types import Json


@dataclass(frozen=True)
class Garbage:
    """A file or folder nothing needs, and why."""

    kind: str  # such as "checkpoints" or "audit segment"
    path: str
    num_bytes: int  # with all files below a folder
    reason: str  # why nothing needs it
    before_removal: Callable[[], None] | None = None  # called before it goes; where that raises, it must stay

    @classmethod
    def of(cls, kind: str, path: Path, reason: str, before_removal: Callable[[], None] | None = None) -> "Garbage":
        """A path that may be removed, with its size in bytes as measured now."""
        return cls(kind, str(path), size_of(path), reason, before_removal)

    def to_json(self) -> Json:
        """Kind, path, size in bytes and reason, as `loomrl gc --json` prints them."""
        return {"kind": self.kind, "path": self.path, "num_bytes": self.num_bytes, "reason": self.reason}


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; raises `OSError` where there is none."""
    if not path.is_dir():
        return path.lstat().st_size
    return sum(one.lstat().st_size for one in path.rglob("*") if one.is_file())

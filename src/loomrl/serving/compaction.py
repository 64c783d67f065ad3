"""Closed segments become Parquet: a fraction of the bytes, and columns to query.

`python -m loomrl.serving.compaction FOLDER` is what a server runs beside itself, at the lowest priority.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock

from loomrl.errors import LoomRLError
from loomrl.serving.compacted import write_compacted
from loomrl.serving.segments import PLAIN, segments

_READ_SECONDS = 600.0  # who follows the log while it is written has read a closed segment by then


def compact(folder: Path, min_age_seconds: float = 0.0) -> list[Path]:
    """Write a chain's closed segments of this age as Parquet and remove their plain files; returns the new files.

    The last segment stays: it carries the head, and may be written to.

    Raises:
        ArtifactError: naming what cannot be read; that segment, and those after it, stay as they are.
    """
    with uncompacted([folder]):
        closed = [path for path in segments(folder)[:-1] if path.suffix == PLAIN]
        latest = time.time() - min_age_seconds
        return [_compact(path) for path in closed if path.stat().st_mtime <= latest]


@contextmanager
def uncompacted(folders: Iterable[Path]) -> Iterator[None]:
    """Keep segments in the form they have: for who compacts, and for who copies them."""
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(FileLock(folder / "compaction.lock"))
        yield


def _compact(plain: Path) -> Path:
    compacted = write_compacted(plain)
    shutil.copystat(plain, compacted)  # how old its decisions are is told by the file's time
    plain.unlink()
    return compacted


def main(arguments: list[str]) -> int:
    """Compact one chain, giving way to everything else on the machine."""
    os.nice(19)
    (folder,) = arguments
    try:
        compact(Path(folder), _READ_SECONDS)
    except LoomRLError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Closed segments become Parquet: a fraction of the bytes, and columns to query.

`python -m loomrl.storage.audit.compaction FOLDER` is what a server runs beside itself, at the lowest priority.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock

from loomrl.errors import ArtifactError, LoomRLError
from loomrl.storage.audit.anchors import state
from loomrl.storage.audit.compacted import COMPACT, different_column, write_compacted
from loomrl.storage.audit.heads import anchors
from loomrl.storage.audit.segments import PLAIN, segments
from loomrl.storage.audit.verification import COMPACTED
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.files import sha256_file

_READ_SECONDS = 600.0  # who follows the log while it is written has read a closed segment by then


def compact(folder: Path, min_age_seconds: float = 0.0) -> list[Path]:
    """Write a chain's closed segments of this age as Parquet and remove their plain files; returns the new files.

    The last segment stays: it carries the head, and may be written to.

    Each file's digest is stated in LoomDB before the plain one goes.

    Raises:
        ArtifactError: naming what cannot be read; that segment, and those after it, stay as they are.
        ServiceError: when LoomDB cannot be reached; a Parquet file may then lie beside its plain one, which counts.
        ConfigError: when pyarrow is not installed.
    """
    with uncompacted([folder]), LoomDB.open() as db:
        closed = [path for path in segments(folder)[:-1] if path.suffix == PLAIN]
        latest = time.time() - min_age_seconds
        done = [_compact(path, db) for path in closed if path.stat().st_mtime <= latest]
        _adopt(folder, db)
        return done


@contextmanager
def uncompacted(folders: Iterable[Path]) -> Iterator[None]:
    """Nobody else compacts segments of these chains in the block: for who does, and for who copies them.

    Whoever compacts one now is waited for, however long it takes.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(FileLock(folder / "compaction.lock"))
        yield


def _compact(plain: Path, db: LoomDB) -> Path:
    compacted = write_compacted(plain)
    shutil.copystat(plain, compacted)  # how old its decisions are is told by the file's time
    _state_file(compacted, db)
    plain.unlink()
    return compacted


def _state_file(compacted: Path, db: LoomDB) -> None:
    server = f"{compacted.parent.parent.name}/{compacted.parent.name}"
    state(db, "compacted", server, segment=compacted.stem, digest=sha256_file(compacted))


def _adopt(folder: Path, db: LoomDB) -> None:
    """State the files of segments that were compacted before files were stated, if they say what their lines say."""
    stated = {one.segment for one in anchors(db, f"{folder.parent.name}/{folder.name}") if one.kind == COMPACTED}
    for path in segments(folder):
        if path.suffix == COMPACT and path.stem not in stated:
            if (column := different_column(path)) is not None:
                raise ArtifactError(f"{path}: {column}; see `loomrl audit verify`")
            _state_file(path, db)


def main(arguments: list[str]) -> int:
    """Compact the chain in the folder that is the one argument, giving way to all else on the machine.

    Returns the exit code: 0, or that of the error, whose message goes to stderr.
    """
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

"""Snapshots kept under LOOMRL_HOME: one folder per digest, never written again."""

from pathlib import Path

from loomrl.environment.snapshots.fingerprint import FILE
from loomrl.environment.snapshots.snapshot import DOCUMENT, load_snapshot
from loomrl.environment.sources.source import ARCHIVE
from loomrl.errors import ConfigError
from loomrl.system.files import write_atomic
from loomrl.system.home import home, inside
from loomrl.types import EnvironmentSnapshot

# The document comes last: where it is, the snapshot is whole.
_FILES = (ARCHIVE, FILE, DOCUMENT)


def snapshots_home() -> Path:
    """The folder with one folder per kept snapshot, which may not be there yet.

    Raises:
        ArtifactError: when the home cannot be made or written to.
    """
    return home() / "snapshots"


def store_snapshot(folder: Path) -> Path:
    """Keep a copy of a snapshot under its digest and record it in LoomDB; does nothing where it is kept already.

    Returns the folder of the copy.

    Raises:
        ArtifactError: when the snapshot, or the copy kept earlier, was changed, or the copy cannot be written.
        ServiceError: when LoomDB cannot be reached; the copy is kept then, and the next call records it.
    """
    from loomrl.storage.loomdb.database import LoomDB

    snapshot = load_snapshot(folder)
    kept = inside("snapshots", snapshot.digest)
    if (kept / DOCUMENT).is_file():
        load_snapshot(kept)
    else:
        copy_snapshot(folder, kept)
    with LoomDB.open() as database:
        database.record_snapshot(snapshot)
    return kept


def copy_snapshot(folder: Path, destination: Path) -> EnvironmentSnapshot:
    """Copy a snapshot's files to `destination`, over what is there, and check them before and after.

    Returns the copy's document, which equals the snapshot's.

    Raises:
        ArtifactError: when the snapshot was changed, or the copy cannot be written or differs. What was written stays;
            the document comes last.
    """
    load_snapshot(folder)
    for name in _FILES:
        write_atomic(destination / name, (folder / name).read_bytes())
    return load_snapshot(destination)


def find_snapshot(reference: str) -> Path:
    """The folder of a snapshot: a path that holds one, or a digest (at least its first 6 digits) of a kept one.

    Raises:
        ConfigError: when there is none, or more than one.
    """
    if (Path(reference) / DOCUMENT).is_file():
        return Path(reference)
    kept = [path.parent for path in sorted(snapshots_home().glob(f"*/{DOCUMENT}"))]
    found = [folder for folder in kept if len(reference) >= 6 and folder.name.startswith(reference)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} kept snapshots begin with" if found else "no folder with a snapshot and no kept snapshot is"
    known = ", ".join(folder.name[:12] for folder in (found or kept[:5])) or "none"
    raise ConfigError(f"{what} {reference!r}; kept: {known}; see `loomrl env list`")

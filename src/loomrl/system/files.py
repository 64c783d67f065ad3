"""Files that are whole or absent: atomic writes, canonical JSON, SHA-256 manifests."""

import hashlib
import json
import os
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loomrl.errors import ArtifactError

SUMS = "SHA256SUMS"


def canonical_json(value: Any) -> bytes:
    """A value as canonical JSON in UTF-8: sorted keys, no insignificant whitespace, a final newline.

    Raises:
        ValueError: for NaN and infinity.
        TypeError: for a value that JSON cannot hold.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.encode() + b"\n"


def sha256(data: bytes) -> str:
    """The SHA-256 digest of the data: 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """The SHA-256 digest of a file's bytes: 64 lower-case hex digits.

    Raises:
        ArtifactError: when the file is missing or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def atomic_path(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """A temporary path beside `path`, for its owner alone. When the block ends well, it is synced and renamed to
    `path`, with `mode`; when the block raises, it is removed, and `path` stays as it was.

    Raises:
        ArtifactError: when it cannot be made, written or renamed; also for an `OSError` of the block.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror}; check the folder's permissions") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror}; nothing there was changed") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write bytes to `path`, all of them or none; its folder is made.

    Raises:
        ArtifactError: when it cannot be written; a former file stays.
    """
    with atomic_path(path, mode) as temporary:
        temporary.write_bytes(data)


def tighten(path: Path) -> None:
    """Take from others what they may do with a file or folder, where it is this user's; else nothing.

    A folder that belongs to everybody, such as /tmp, stays as it is.
    """
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_uid == os.geteuid() and found.st_mode & 0o077 and not found.st_mode & stat.S_ISVTX:
        with suppress(OSError):  # some file systems know no modes
            path.chmod(stat.S_IMODE(found.st_mode) & ~0o077)


def private_database(path: Path) -> None:
    """Make the file of a SQLite database, for SQLite would let others read it; tighten one that is there.

    What SQLite puts beside it gets the modes of the file itself. A file that is there is not opened: with the first of
    its descriptors that is closed a process loses its locks on it, those of its other connections too, and the database
    may be damaged (sqlite.org/howtocorrupt.html, section 2.2).

    Raises:
        OSError: when its folder cannot be made. What is wrong with the file SQLite says.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for one in (path, *(path.with_name(f"{path.name}{ending}") for ending in ("-wal", "-shm", "-journal"))):
        tighten(one)


def sync_folder(folder: Path) -> None:
    """Have the disk take the names in a folder, such as that of a file that was renamed there.

    Raises:
        OSError: when there is no such folder, or the disk fails.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def closed_with(owner: object, handle: int) -> Callable[[], object]:
    """Have a file descriptor closed when nothing refers to its owner any more. What comes back closes it at once, and
    does nothing when called again."""
    closing = weakref.finalize(owner, os.close, handle)
    closing.atexit = False  # threads may use it to the last; the system closes it then
    return closing


def write_json(path: Path, value: Any) -> None:
    """Write a value to a file as canonical JSON; a reader sees the former file or the new one, never a part.

    Raises:
        ArtifactError: when it cannot be written.
        ValueError, TypeError: for a value that JSON cannot hold.
    """
    write_atomic(path, canonical_json(value))


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        ArtifactError: when the file is missing, cannot be read or is no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing; run the stage that writes it") from error
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{path} cannot be read as JSON: {error}") from error


def files_below(folder: Path) -> list[Path]:
    """The paths of all regular files below a folder, sorted by relative POSIX path, without files named `SHA256SUMS`.

    Empty where there is no such folder.
    """
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != SUMS]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def sums(folder: Path) -> dict[str, str]:
    """Relative POSIX path -> SHA-256 of every file below a folder, without `SHA256SUMS`.

    Raises:
        ArtifactError: when a file cannot be read.
    """
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files_below(folder)}


def digest_folder(folder: Path) -> str:
    """One SHA-256, 64 hex digits, over the names and contents of all files below a folder, without `SHA256SUMS`.

    Raises:
        ArtifactError: when a file cannot be read.
    """
    return sha256(canonical_json(sums(folder)))


def write_sums(folder: Path, of: Path | None = None) -> None:
    """Write `SHA256SUMS` into a folder, in the format `sha256sum --check` reads: the digests of all its files, or of
    those of the folder `of`, which it is a copy of.

    Raises:
        ArtifactError: when a file cannot be read, or this one not written.
    """
    lines = [f"{digest}  {name}\n" for name, digest in sums(of or folder).items()]
    write_atomic(folder / SUMS, "".join(lines).encode())


def recorded_sums(folder: Path) -> dict[str, str]:
    """What `SHA256SUMS` says: relative POSIX path -> SHA-256.

    Raises:
        ArtifactError: when it cannot be read.
    """
    manifest = folder / SUMS
    try:
        lines = manifest.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{manifest} cannot be read as a manifest: {error}; run the stage that writes it"
        ) from error
    recorded = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        recorded[name] = digest
    return recorded


def changed_file(folder: Path, joined: Mapping[str, str] | None = None) -> str | None:
    """The first file that is missing, added or changed against `SHA256SUMS`, as "NAME (missing)"; None when whole.

    `joined` holds the digests of files that may have joined, or taken another's place, since the manifest was written.

    Raises:
        ArtifactError: when the manifest, or a file, cannot be read.
    """
    recorded, present = recorded_sums(folder), sums(folder)
    recorded |= {name: digest for name, digest in (joined or {}).items() if present.get(name) == digest}
    for name in sorted(recorded.keys() | present.keys()):
        if recorded.get(name) != present.get(name):
            what = "missing" if name not in present else "not in the manifest" if name not in recorded else "changed"
            return f"{name} ({what})"
    return None


def verify_sums(folder: Path) -> None:
    """Compare a folder with its manifest.

    Raises:
        ArtifactError: naming the first file that is missing, added or changed, or what cannot be read.
    """
    manifest = folder / SUMS
    if not manifest.is_file():
        raise ArtifactError(f"{manifest} is missing; run the stage that writes {folder.name}")
    if changed := changed_file(folder):
        name, _, what = changed.rpartition(" (")
        raise ArtifactError(
            f"{folder / name} is {what[:-1]} (SHA-256 differs from {manifest}); "
            "restore it with `dvc checkout` or run the stage again"
        )

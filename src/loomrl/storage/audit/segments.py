"""The files of a chain and their lines: segments of JSON lines, the closed ones perhaps compacted to Parquet.

Every reader of the log takes its lines from here, byte for byte as they were written, whichever file holds them.
"""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from loomrl.errors import ArtifactError
from loomrl.storage.audit.chain import GENESIS, BrokenRecord, unseal
from loomrl.storage.audit.compacted import COMPACT, compacted_lines, compacted_lines_backwards
from loomrl.storage.audit.reserve import reserved_text

PLAIN = ".jsonl"
RESERVE = "reserve"  # the file of a chain's lines that the disk has no room for yet, see `loomrl.storage.audit.reserve`
_BLOCK = 1 << 20  # bytes read at once from a file's end


def segments(folder: Path) -> list[Path]:
    """The files of a chain's segments, oldest first, empty where there are none; of one that is there in both forms,
    plain and compacted, the plain file."""
    found = {path.stem: path for suffix in (COMPACT, PLAIN) for path in folder.glob(f"[0-9]*{suffix}")}
    return [found[stem] for stem in sorted(filter(is_segment, found), key=int)]


def is_segment(stem: str) -> bool:
    """Whether a file's stem is that of a segment: six digits or more, above zero, no longer than file names are."""
    return len(stem) <= 255 and stem.isascii() and stem.isdigit() and stem == f"{int(stem):06d}" and int(stem) > 0


def lines(path: Path) -> Iterator[bytes]:
    """A segment's lines, oldest first, one in memory at a time; only the last may lack its line break.

    A segment that was compacted since it was listed is read from its new file.

    Raises:
        ArtifactError: when a compacted segment cannot be read.
        ConfigError: for a compacted segment where pyarrow is not installed.
        OSError: when the file is gone or cannot be read.
    """
    path = _where_it_is(path)
    if path.suffix == COMPACT:
        yield from compacted_lines(path)
        return
    with path.open("rb") as file:
        yield from file


def complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of `lines(path)`, without a last one that is being written, or that a crash cut; raises as that
    does."""
    return (line for line in lines(path) if line.endswith(b"\n"))


def waiting_lines(folder: Path) -> list[bytes]:
    """A chain's lines that wait in its reserve for room on the disk, oldest first; empty where none do.

    Those whose sequence is above the last segment's follow it; others stand in the log already.

    Raises:
        OSError: when the reserve cannot be read.
    """
    return reserved_text(folder / RESERVE).splitlines(keepends=True)


def waiting_records(folder: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """The lines of `waiting_lines`, each with its record, whose hash is checked.

    Raises:
        ArtifactError: naming the line that was changed.
        OSError: when the reserve cannot be read.
    """
    return list(_with_records(waiting_lines(folder), folder / RESERVE))


def lines_backwards(path: Path) -> Iterator[bytes]:
    """A segment's lines, newest first; the first may lack its line break. No more of the file is read than is asked
    for.

    Raises:
        ArtifactError: when a compacted segment cannot be read.
        ConfigError: for a compacted segment where pyarrow is not installed.
        OSError: when the file is gone or cannot be read.
    """
    path = _where_it_is(path)
    if path.suffix == COMPACT:
        yield from compacted_lines_backwards(path)
        return
    with path.open("rb") as file:
        end, rest = file.seek(0, io.SEEK_END), b""
        while end:
            start = max(0, end - _BLOCK)
            file.seek(start)
            found = io.BytesIO(file.read(end - start) + rest).readlines()
            rest = found.pop(0) if start else b""
            yield from reversed(found)
            end = start


def first_sequence(path: Path) -> int | None:
    """The sequence of a segment's first record; None where none is whole yet. Its hash is not checked.

    Raises:
        ArtifactError: when that line is no record, or a compacted segment cannot be read.
    """
    line = next(complete_lines(path), None)
    return None if line is None else int(parse_record(line, path, 1)["sequence"])


def parse_record(line: bytes, path: Path, number: int | None = None) -> dict[str, Any]:
    """The record in a line of a file, the `number`-th from 1 on where that is known. Its hash is not checked.

    Raises:
        ArtifactError: when it is no JSON object with a kind and a sequence.
    """
    try:
        found: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or type(found.get("sequence")) is not int or type(found.get("kind")) is not str:
        raise damaged(path, number)
    return found


def damaged(path: Path, number: int | None = None) -> ArtifactError:
    """The error for a line that is no record."""
    return ArtifactError(f"{path}{'' if number is None else f':{number}'} is damaged; see `loomrl audit verify`")


def segments_after(folder: Path, sequence: int) -> list[Path]:
    """A chain's segments that may hold records above a sequence, oldest first; raises as `first_sequence` does."""
    paths = segments(folder)
    for index in reversed(range(len(paths))):
        first = first_sequence(paths[index])
        if first is not None and first <= sequence + 1:
            return paths[index:]
    return paths


def checked_records(*paths: Path) -> Iterator[dict[str, Any]]:
    """The records of one segment, or of several of a chain, oldest first, each held against its own hash, and against
    that of the record before it; segments between them that were removed on record are passed over.

    Raises:
        ArtifactError: naming the line that was changed; records before it are given. Also for a compacted segment that
            cannot be read.
    """
    before: dict[str, Any] | None = None
    for path in paths:
        for number, (_, record) in enumerate(_with_records(complete_lines(path), path), start=1):
            if before is not None and (number > 1 or record["sequence"] <= before["sequence"] + 1):
                _require_next(record, before, path, number)
            before = record
            yield record


def _require_next(record: dict[str, Any], before: dict[str, Any], path: Path, number: int) -> None:
    if (record["sequence"], record["previous_hash"]) != (before["sequence"] + 1, before["hash"]):
        raise ArtifactError(
            f"{path}:{number}: record {record['sequence']} does not follow record {before['sequence']}: deleted, "
            "reordered, inserted or rewritten; see `loomrl audit verify`"
        )


def _with_records(found: Iterable[bytes], path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of a file, each with its record, which is held against its hash."""
    for number, line in enumerate(found, start=1):
        try:
            record = unseal(line)
        except BrokenRecord as error:
            raise ArtifactError(f"{path}:{number}: {error}; see `loomrl audit verify`") from error
        yield line, record


def newest_records(folder: Path, num_bytes: int) -> Iterator[dict[str, Any]]:
    """The last records of a chain, oldest first: as few as take `num_bytes` of it or more, or all. Their hashes are
    checked.

    Raises:
        ArtifactError: naming the line that was changed, or for a compacted segment that cannot be read.
    """
    found = []
    for line in _backwards(folder):
        found.append(line)
        num_bytes -= len(line)
        if num_bytes <= 0:
            break
    while found:
        yield _checked(found.pop(), folder)


def last_record(folder: Path) -> tuple[int, str]:
    """(Sequence, hash) of the last record in a chain's segments; (-1, 64 zeros) for an empty chain.

    Raises:
        ArtifactError: when it was changed, or a compacted segment cannot be read.
    """
    line = next(_backwards(folder), None)
    if line is None:
        return -1, GENESIS
    last = _checked(line, folder)
    return int(last["sequence"]), str(last["hash"])


def holds(folder: Path, sequence: int, digest: str) -> bool:
    """Whether a chain's segments have a record of this sequence with this hash. Every chain has that of an empty one,
    -1.

    Raises:
        ArtifactError: when a record behind it was changed, or a compacted segment cannot be read.
    """
    if sequence < 0:
        return True
    at_or_before = (one for line in _backwards(folder) if (one := _checked(line, folder))["sequence"] <= sequence)
    found = next(at_or_before, None)
    return found is not None and (found["sequence"], found["hash"]) == (sequence, digest)


def _backwards(folder: Path) -> Iterator[bytes]:
    return (line for path in reversed(segments(folder)) for line in lines_backwards(path))


def _where_it_is(path: Path) -> Path:
    return path if path.exists() else path.with_suffix(COMPACT)


def _checked(line: bytes, folder: Path) -> dict[str, Any]:
    """The record of a line that no crash of ours can have left so: a changed one is never gone on from, nor cut."""
    try:
        return unseal(line)
    except BrokenRecord as error:
        raise ArtifactError(
            f"{_place(line, folder)}: {error}: the audit log was edited or damaged, and stays as it is. "
            "`loomrl audit verify` says where; to serve meanwhile, begin another chain: `loomrl serve --server NAME`"
        ) from error


def _place(line: bytes, folder: Path) -> str:
    """FILE:LINE of a line. Looked for from the start: only who reads on to it from there can count."""
    numbered = ((path, number, found) for path in segments(folder) for number, found in enumerate(lines(path), start=1))
    return next(f"{path}:{number}" for path, number, found in numbered if found == line)

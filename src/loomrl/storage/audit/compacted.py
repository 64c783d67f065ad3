"""A compacted segment: a Parquet file of typed columns for queries, and of the exact lines.

A row is a record, or one decision of a record of several; `line` holds the record's bytes as they were written, in its
first row. So the chain is verified, and every record read, as from the plain file. Needs pyarrow
(`pip install loomrl[audit]`), and imports it where it is used: a server that reads none does not load it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from loomrl.errors import ArtifactError, ConfigError
from loomrl.storage.audit.records import expand
from loomrl.system.files import atomic_path

if TYPE_CHECKING:
    import pyarrow

COMPACT = ".parquet"
_LINES = 4_096  # in a row group
_TEXTS = ("kind", "decision_id", "request_id", "agent_id", "episode_id", "policy", "version", "route")
_NUMBERS = ("value", "propensity", "reward", "seconds")
_FLAGS = ("exploration_flag", "terminated", "truncated", "limited")
_AS_JSON = ("override", "shield")
_REPETITIVE = ("kind", "agent_id", "episode_id", "policy", "version", "route", *_AS_JSON)


def write_compacted(plain: Path) -> Path:
    """Write a plain segment as Parquet beside it, and read it back; returns the new file.

    Raises:
        ArtifactError: naming the line that cannot be read, or the file that did not come back as it was; no Parquet
            file is left then, and the plain one as it is.
        ConfigError: when pyarrow is not installed.
    """
    pyarrow, parquet = _pyarrow()
    target, schema = plain.with_suffix(COMPACT), _schema(pyarrow)
    options = {"compression": "zstd", "use_dictionary": list(_REPETITIVE)}
    with atomic_path(target) as temporary:
        with plain.open("rb") as file, parquet.ParquetWriter(temporary, schema, **options) as writer:
            written = 0
            while batch := list(islice(file, _LINES)):
                rows = [row for number, line in enumerate(batch, written + 1) for row in _rows(line, plain, number)]
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                written += len(batch)
        with plain.open("rb") as file:
            if _digest(compacted_lines(temporary)) != _digest(file):
                raise ArtifactError(f"{plain} did not come back from Parquet as it was; it stays as it is")
    return target


def compacted_lines(path: Path) -> Iterator[bytes]:
    """The lines of a compacted segment, oldest first, as they were written.

    Raises:
        ArtifactError: when the file cannot be read or was damaged.
        ConfigError: when pyarrow is not installed.
    """
    return _read(path, lambda file: map(_lines_in, file.iter_batches(_LINES, columns=["line"])))


def compacted_lines_backwards(path: Path) -> Iterator[bytes]:
    """The lines of a compacted segment, newest first, as they were written.

    Raises:
        ArtifactError: when the file cannot be read or was damaged.
        ConfigError: when pyarrow is not installed.
    """
    return _read(path, _groups_backwards)


def different_column(path: Path) -> str | None:
    """Where a compacted segment first says something else than its lines, as `row N: WHAT`; None for nowhere.

    Raises:
        ArtifactError: when the file cannot be read, or one of its lines was damaged.
        ConfigError: when pyarrow is not installed.
    """
    pyarrow, _ = _pyarrow()
    schema, pending = _schema(pyarrow), list[dict[str, Any]]()
    count = 0
    for row in _read(path, lambda file: (batch.to_pylist() for batch in file.iter_batches(_LINES))):
        if row.get("line") is not None:
            if pending:
                return f"row {count}: decisions of the line before are missing"
            pending = list(_rows(row["line"], path, count + 1))
        if not pending:
            return f"row {count}: belongs to no line"
        (expected,) = pyarrow.Table.from_pylist([pending.pop(0)], schema).to_pylist()
        if different := [name for name in schema.names if expected[name] != row.get(name)]:
            return f"row {count}: column {different[0]!r} does not say what the line says"
        count += 1
    return f"row {count}: decisions are missing" if pending else None


def _groups_backwards(file: Any) -> Iterator[list[bytes]]:
    for index in reversed(range(file.num_row_groups)):
        yield _lines_in(file.read_row_group(index, columns=["line"]))[::-1]


def _read(path: Path, parts: Callable[[Any], Iterable[list[Any]]]) -> Iterator[Any]:
    _, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            for part in parts(file):
                yield from part
    except Exception as error:  # whatever damaged bytes do in there
        raise ArtifactError(f"{path} cannot be read: {error}; restore it from a backup") from error


def _lines_in(batch: Any) -> list[bytes]:
    found = [line for line in batch.column("line").to_pylist() if line is not None]
    if not all(isinstance(line, bytes) for line in found):
        raise ValueError("its lines are no bytes")
    return found


def _rows(line: bytes, path: Path, number: int) -> list[dict[str, Any]]:
    try:
        rows = [_row(entry) for entry in expand(orjson.loads(line))]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path}:{number} is damaged: {error}; the segment stays as it is, see `loomrl audit verify`"
        ) from error
    rows[0]["line"] = line
    return rows


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    """A record's columns. Observations stay in the line: they are large, and may be sealed there."""
    row = {name: entry.get(name) for name in (*_TEXTS, *_NUMBERS, *_FLAGS, "sequence", "row")}
    row |= {name: orjson.dumps(entry[name]).decode() for name in _AS_JSON if entry.get(name) is not None}
    if entry.get("action") is not None:
        row["action"] = np.ravel(entry["action"]).tolist()
    return row | {"timestamp": datetime.fromisoformat(entry["timestamp"])}


def _schema(pyarrow: ModuleType) -> "pyarrow.Schema":
    fields = {"sequence": pyarrow.int64(), "row": pyarrow.int32(), "timestamp": pyarrow.timestamp("us", "UTC")}
    fields |= {name: pyarrow.string() for name in (*_TEXTS, *_AS_JSON)}
    fields |= {name: pyarrow.float64() for name in _NUMBERS} | {name: pyarrow.bool_() for name in _FLAGS}
    return pyarrow.schema(fields | {"action": pyarrow.list_(pyarrow.float64()), "line": pyarrow.binary()})


def _digest(found: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for line in found:
        digest.update(line)
    return digest.hexdigest()


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("compacted segments need pyarrow: pip install 'loomrl[audit]'") from error
    return pyarrow, parquet

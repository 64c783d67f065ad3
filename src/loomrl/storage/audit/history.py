"""Reading audit logs: lines, single decisions, export with rewards joined, and verification."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from loomrl.errors import ConfigError
from loomrl.storage.audit.columns import count_of
from loomrl.storage.audit.log import audit_folder
from loomrl.storage.audit.records import DECISION, DECISIONS, SEVERAL, expand, record_of
from loomrl.storage.audit.segments import (
    complete_lines,
    damaged,
    parse_record,
    segments,
    segments_after,
    waiting_records,
)
from loomrl.system.files import write_atomic
from loomrl.system.home import home

DECISION_MARKS = tuple(b'{"kind":"%b"' % kind.encode() for kind in (DECISION, DECISIONS))


def chains(policy: str | None = None) -> list[Path]:
    """The folders of all chains under this home, of one policy if given, sorted; empty where there are none."""
    roots = [audit_folder(policy)] if policy else sorted((home() / "audit").glob("*"))
    return sorted(folder for root in roots for folder in root.glob("*") if os.path.isdir(folder))


def read_lines(folder: Path, after: int, limit: int, kinds: Sequence[str]) -> list[bytes]:
    """Lines of records of these kinds whose sequence is above `after`, oldest first: `limit`, or the rest of a record.

    Records of several decisions, or shadows, are given one by one, and what is sealed is opened. Hashes are not
    checked.

    Raises:
        ArtifactError: when a line, a compacted segment or what is sealed is damaged.
        ConfigError: for a compacted segment where pyarrow is not installed.
    """
    named = (*kinds, *(SEVERAL[kind] for kind in kinds if kind in SEVERAL))
    marks = tuple(b'{"kind":"%b"' % kind.encode() for kind in named)
    found: list[bytes] = []
    for line, path, number in _lines_of(segments_after(folder, after)):
        if not line.startswith(marks):
            continue
        entry = parse_record(line, path, number)
        if entry["sequence"] > after:
            with _damage_named(path, number):
                found += [orjson.dumps(one) + b"\n" for one in expand(entry)]
            if len(found) >= limit:
                break
    return found


def records(policy: str | None = None) -> Iterator[dict[str, Any]]:
    """All records of all chains, of one policy if given, chain by chain, oldest first; of several decisions each is
    one.

    What is sealed is opened where its key is here. Hashes are not checked.

    Raises:
        ArtifactError: when a line, a compacted segment or what is sealed is damaged.
        ConfigError: for a compacted segment where pyarrow is not installed.
    """
    for folder in chains(policy):
        last = -1
        for path in segments(folder):
            for number, line in enumerate(complete_lines(path), start=1):
                found = parse_record(line, path, number)
                last = found["sequence"]
                with _damage_named(path, number):
                    several = list(expand(found))
                yield from several
        for _, found in waiting_records(folder):
            if found["sequence"] > last:
                yield from expand(found)


def count_decisions(policy: str | None = None) -> int:
    """How many decisions stand in the segments of all chains, of one policy if given; nothing sealed is opened.

    Raises:
        ArtifactError: when a line of a decision is damaged, or a compacted segment cannot be read.
        ConfigError: for a compacted segment where pyarrow is not installed.
    """
    count = 0
    for line, path, number in _lines(policy):
        if line.startswith(DECISION_MARKS):
            with _damage_named(path, number):
                count += count_of(parse_record(line, path, number))
    return count


def _lines(policy: str | None = None) -> Iterator[tuple[bytes, Path, int]]:
    """All whole lines of all chains, each with its file and its number there."""
    return _lines_of(path for folder in chains(policy) for path in segments(folder))


@contextmanager
def _damage_named(path: Path, number: int) -> Iterator[None]:
    """What a record of several lacks in the block is damage of that line."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, number) from error


def _lines_of(paths: Iterable[Path]) -> Iterator[tuple[bytes, Path, int]]:
    for path in paths:
        yield from ((line, path, number) for number, line in enumerate(complete_lines(path), start=1))


def find_decision(decision_id: str) -> dict[str, Any] | None:
    """One decision's audit record, opened where its key is here; None when no log here has it.

    Raises:
        ArtifactError: when a line, a compacted segment or what is sealed is damaged.
        ConfigError: for a compacted segment where pyarrow is not installed.
    """
    mark = b'"decision_id":' + orjson.dumps(record_of(decision_id))
    for line, path, number in _lines():
        if mark in line and line.startswith(DECISION_MARKS):
            with _damage_named(path, number):
                found = {entry["decision_id"]: entry for entry in expand(parse_record(line, path, number))}
            return found.get(decision_id)
    return None


def require_decision(decision_id: str) -> dict[str, Any]:
    """One decision's audit record.

    Raises:
        ConfigError: when no log here has it.
        ArtifactError: when a line, a compacted segment or what is sealed is damaged.
    """
    if found := find_decision(decision_id):
        return found
    raise ConfigError(f"no decision {decision_id!r} under {home() / 'audit'}; `loomrl audit show` lists the latest")


def join(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The decisions among records that `expand` gave, each with what later records say of it, in their order.

    `reward`, `terminated` and `truncated` are those of its feedback, None without any. `challengers` holds the action
    that each challenger would have taken, by version. Records of other kinds are left out.
    """
    decisions: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["kind"] == "decision":
            later: dict[str, Any] = {"terminated": None, "truncated": None, "challengers": {}}
            decisions[entry["decision_id"]] = {**entry, **later}
        elif entry["kind"] == "feedback" and entry["decision_id"] in decisions:
            joined = {key: entry[key] for key in ("reward", "terminated", "truncated")}
            decisions[entry["decision_id"]].update(joined)
        elif entry["kind"] == "shadow" and entry["decision_id"] in decisions:
            decisions[entry["decision_id"]]["challengers"][entry["version"]] = entry["action"]
    return list(decisions.values())


def write_table(path: Path, decisions: Sequence[dict[str, Any]]) -> None:
    """Write decisions as `.jsonl`, `.json` or `.csv`, atomically; lists become JSON text in a CSV.

    Raises:
        ConfigError: for another suffix.
        ArtifactError: when the file cannot be written; a former one stays.
    """
    if path.suffix == ".jsonl":
        data = b"".join(orjson.dumps(entry) + b"\n" for entry in decisions)
    elif path.suffix == ".json":
        data = orjson.dumps(decisions)
    elif path.suffix == ".csv":
        data = _csv(decisions)
    else:
        raise ConfigError(f"{path}: unknown suffix {path.suffix!r}; use .jsonl, .json or .csv")
    write_atomic(path, data)


def _csv(decisions: Sequence[dict[str, Any]]) -> bytes:
    columns = list(dict.fromkeys(key for entry in decisions for key in entry))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    for entry in decisions:
        nested = {key: orjson.dumps(value).decode() for key, value in entry.items() if isinstance(value, list | dict)}
        writer.writerow({**entry, **nested})
    return text.getvalue().encode()

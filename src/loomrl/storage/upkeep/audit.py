"""Closed segments of audit logs that nothing refers to.

A chain stays verifiable when whole segments leave at its beginning and LoomDB has a signed statement of their removal
(see `loomrl.storage.audit.verification`). So only the oldest segments of a chain go, only of a chain that verifies, and
their removal is stated first. A segment is referred to while it holds a decision of a version in the registry, or what
one would have decided as a challenger; with `audit_days`, only while that version holds an alias or the segment is
younger.
"""

import getpass
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from loomrl.storage.audit.anchors import read_statements, state
from loomrl.storage.audit.history import chains
from loomrl.storage.audit.records import SEVERAL
from loomrl.storage.audit.segments import lines, parse_record, segments
from loomrl.storage.audit.verification import Anchor, verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import Registry
from loomrl.storage.upkeep.items import Garbage

AUDIT_SEGMENT = "audit segment"
UNREFERENCED = "closed, and no decision in it is of a version still kept"


def audit_garbage(registry: Registry, audit_days: int | None) -> Iterator[Garbage]:
    """The segments of audit logs that may go, oldest first within each chain; of a chain that is damaged none.

    `audit_days`: segments that are older may go unless they hold decisions of a version that has an alias; None: only
    those that hold decisions of no registered version.

    Raises:
        ServiceError: when LoomDB or MLflow cannot be reached.
        ConfigError: for a compacted segment where pyarrow is not installed.
    """
    folders = chains()
    if not folders:
        return
    with LoomDB.open() as db:
        known = read_statements(db).by_chain
    for folder in folders:
        yield from _of_chain(folder, registry, known.get(f"{folder.parent.name}/{folder.name}", []), audit_days)


def _of_chain(folder: Path, registry: Registry, anchors: list[Anchor], audit_days: int | None) -> Iterator[Garbage]:
    server = f"{folder.parent.name}/{folder.name}"
    closed = segments(folder)[:-1]  # the last one carries the head: the next server goes on from there
    if not closed or not verify_chain(folder, anchors).intact:
        return
    for path in closed:
        ends = _unreferenced(path, folder.parent.name, registry, audit_days)
        if ends is None:
            return  # what follows must stay too: a chain has no holes
        rule = UNREFERENCED if audit_days is None else f"{UNREFERENCED}, or they are older than {audit_days} days"
        keep_end = partial(_state_removal, server, path.stem, *ends, rule)
        yield Garbage.of(AUDIT_SEGMENT, path, UNREFERENCED, keep_end)


def _unreferenced(
    path: Path, policy: str, registry: Registry, audit_days: int | None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first and the last record of a segment nothing refers to; None where something does."""
    records = [parse_record(line, path, number) for number, line in enumerate(lines(path), 1)]
    decided = (entry.get("shared", entry) for entry in records if entry["kind"] in (*SEVERAL, *SEVERAL.values()))
    deciding = {str(entry["version"]) for entry in decided if entry.get("version")}
    kept = {version.version for version in registry.versions(policy)}
    if audit_days is not None and path.stat().st_mtime <= time.time() - audit_days * 86_400:
        kept = set(registry.aliases(policy).values())
    return (records[0], records[-1]) if records and not deciding & kept else None


def _state_removal(server: str, segment: str, first: dict[str, Any], last: dict[str, Any], rule: str) -> None:
    """Put on record what leaves. LoomDB is opened again: garbage is found and removed at different times."""
    ends = {"first_sequence": first["sequence"], "sequence": last["sequence"], "digest": last["hash"]}
    who = {"by": f"loomrl gc, {getpass.getuser()}", "reason": rule}
    with LoomDB.open() as db:
        state(db, "removal", server, first_segment=segment, segment=segment, **ends, **who)

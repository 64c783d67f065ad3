"""Closed segments of audit logs that nothing refers to.

A chain stays verifiable when whole segments leave at its beginning and the last record that left is anchored in
LoomDB (see `loomrl.serving.verification`). So only the oldest segments of a chain go, only of a chain that verifies,
and their end is anchored first. A segment is referred to while it holds a decision of a version in the registry, or
what one would have decided as a challenger; with `audit_days`, only while that version holds an alias or the segment is
younger.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from loomrl.loomdb.database import LoomDB
from loomrl.registry import Registry
from loomrl.serving.audit import Head
from loomrl.serving.heads import anchor, anchors
from loomrl.serving.history import chains
from loomrl.serving.records import SEVERAL
from loomrl.serving.segments import lines, segments
from loomrl.serving.verification import verify_chain
from loomrl.upkeep.items import Garbage

AUDIT_SEGMENT = "audit segment"


def audit_garbage(registry: Registry, audit_days: int | None) -> Iterator[Garbage]:
    """The segments that may go, oldest first within each chain."""
    folders = chains()
    if not folders:
        return
    with LoomDB.open() as db:
        for folder in folders:
            yield from _of_chain(folder, registry, db, audit_days)


def _of_chain(folder: Path, registry: Registry, db: LoomDB, audit_days: int | None) -> Iterator[Garbage]:
    server = f"{folder.parent.name}/{folder.name}"
    closed = segments(folder)[:-1]  # the last one carries the head: the next server goes on from there
    if not closed or not verify_chain(folder, anchors(db, server)).intact:
        return
    for path in closed:
        last = _last_unreferenced(path, folder.parent.name, registry, audit_days)
        if last is None:
            return  # what follows must stay too: a chain has no holes
        keep_end = partial(_anchor, Head(server, path.stem, last["sequence"], last["hash"]))
        yield Garbage.of(AUDIT_SEGMENT, path, "closed, and no decision in it is of a version still kept", keep_end)


def _last_unreferenced(path: Path, policy: str, registry: Registry, audit_days: int | None) -> dict[str, Any] | None:
    """The last record of a segment nothing refers to; None where something does."""
    records = [orjson.loads(line) for line in lines(path)]
    decided = (entry.get("shared", entry) for entry in records if entry["kind"] in (*SEVERAL, *SEVERAL.values()))
    deciding = {str(entry["version"]) for entry in decided if entry.get("version")}
    kept = {version.version for version in registry.versions(policy)}
    if audit_days is not None and path.stat().st_mtime <= time.time() - audit_days * 86_400:
        kept = set(registry.aliases(policy).values())
    return records[-1] if records and not deciding & kept else None


def _anchor(head: Head) -> None:
    """Keep the head of what leaves. Opened again: garbage is found and removed at different times."""
    with LoomDB.open() as db:
        anchor(db, head)
        place = {"server": head.server, "segment": head.segment, "sequence": head.sequence}
        db.record_event("audit segment removed", place)

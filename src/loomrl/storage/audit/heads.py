"""Heads of audit chains, as LoomDB's statements keep them."""

import logging
from itertools import chain
from pathlib import Path

from loomrl.errors import ArtifactError, ServiceError
from loomrl.storage.audit.anchors import AnchorStatement, read_statements, state
from loomrl.storage.audit.log import ChainHead
from loomrl.storage.audit.segments import complete_lines, lines_backwards, parse_record, segments, waiting_records
from loomrl.storage.audit.verification import Anchor
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.home import inside
from loomrl.types import Json

log = logging.getLogger(__name__)


def anchor(db: LoomDB, head: ChainHead, known: ChainHead | None = None) -> str | None:
    """State a chain's head in LoomDB, and how the chain begins where that is new; nothing where LoomDB has that head.

    Returns why the statement is not signed, None where it is, or where nothing was stated.

    `known` is the head that this process stated last. Without it, the log is searched for what was stated before.

    Raises:
        ServiceError: when LoomDB cannot be reached, or its head is not in the log: that was rewritten, or cut. The new
            head is not stated then.
        ArtifactError: when a line of the log, or a compacted segment, is damaged.
    """
    newest = newest_head(db, head.server)
    if newest == head:
        return None
    folder = inside("audit", *head.server.split("/"))
    if known is None:
        _adopt_legacy(db)
    if newest is not None and newest != known:
        _require_part_of(folder, newest)
    return _state(db, folder, head)


def _state(db: LoomDB, folder: Path, head: ChainHead) -> str | None:
    if db.newest_audit_anchor(head.server, "chain") is None and (first := _first_record(folder)) is not None:
        segment, record = first
        state(db, "chain", head.server, segment=segment, sequence=record["sequence"], digest=record["hash"])
    return state(db, "head", head.server, segment=head.segment, sequence=head.sequence, digest=head.digest)[1]


def _adopt_legacy(db: LoomDB) -> None:
    """State the chains of earlier versions that lie here: LoomDB knows only their heads, and not which host has them,
    so that they could vanish unseen."""
    for known in db.audit_chains():
        folder = inside("audit", *known.server.split("/"))
        if known.host is None and folder.is_dir():
            head = ChainHead(known.server, known.segment, known.sequence, known.digest)
            try:
                _require_part_of(folder, head)
            except (ArtifactError, ServiceError) as error:
                log.error("%s", error)  # not vouched for
            else:
                _state(db, folder, head)


def anchors(db: LoomDB, server: str) -> list[Anchor]:
    """What a chain, `POLICY/CHAIN`, is held against, each with what is wrong with its signature; empty for none.

    Raises:
        ServiceError: when LoomDB cannot be reached, or a row in it was changed by hand so that it is no statement.
        ArtifactError, ConfigError: when the trusted keys cannot be read.
    """
    return read_statements(db).by_chain.get(server, [])


def newest_head(db: LoomDB, server: str) -> ChainHead | None:
    """The newest head that LoomDB holds of a chain, `POLICY/CHAIN`; None where there is none.

    Raises:
        ServiceError: when LoomDB cannot be reached, or a row in it was changed by hand.
        ValueError: when the statement of it was changed by hand so that it cannot be read.
    """
    found = db.newest_audit_anchor(server, "head")
    if found is None:
        legacy = db.audit_heads(server)
        return ChainHead(server, legacy[-1].segment, legacy[-1].sequence, legacy[-1].digest) if legacy else None
    told = AnchorStatement.model_validate_json(found.payload)
    return ChainHead(server, told.segment or "", -1 if told.sequence is None else told.sequence, told.digest or "")


def _first_record(folder: Path) -> tuple[str, Json] | None:
    """The segment and the record that a chain begins with."""
    for path in segments(folder):
        for line in complete_lines(path):
            return path.stem, parse_record(line, path, 1)
    return None


def _require_part_of(folder: Path, head: ChainHead) -> None:
    """Refuse to go on from a log that does not hold the record that LoomDB knows."""
    waiting = [record for _, record in reversed(waiting_records(folder))]
    logged = (parse_record(line, path) for path in reversed(segments(folder)) for line in lines_backwards(path))
    for record in chain(waiting, logged):
        if record["sequence"] <= head.sequence:
            if (record["sequence"], record["hash"]) == (head.sequence, head.digest):
                return
            break
    raise ServiceError(
        f"audit log of {head.server!r}: LoomDB knows record {head.sequence} of segment {head.segment} with the hash "
        f"{head.digest}, which is not in {folder}: the log was rewritten or cut; see `loomrl audit verify`"
    )

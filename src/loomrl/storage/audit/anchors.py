"""What LoomDB states about audit chains: which there are, how they begin and end, what was removed from them and why.

Statements form one list for the whole database. Each is numbered, names the digest of the one before it, and is signed
where this installation has a key. So none can be changed, deleted or moved to another chain unseen. That the end of the
list is missing is shown by the chains, whose `anchored` records name statements, and by an exported anchor
(`loomrl.storage.audit.exported_anchor`).
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.storage.audit import legacy_heads
from loomrl.storage.audit.chain import GENESIS
from loomrl.storage.audit.verification import Anchor, found_digest
from loomrl.storage.loomdb.database import DamagedRow, LoomDB
from loomrl.storage.loomdb.records import AuditAnchor
from loomrl.system.files import canonical_json, sha256
from loomrl.system.schema import Document
from loomrl.system.security.signing import sign_envelope, signature_fault, trusted_keys

STATEMENT_TYPE = "application/vnd.loomrl.audit-anchor+json"
_PAGE = 10_000  # statements read at once
_SPAN = ("first_segment", "segment", "first_sequence", "sequence")
_NEEDS = {
    "chain": ("segment", "sequence", "digest"),
    "head": ("segment", "sequence", "digest"),
    "removal": (*_SPAN, "digest"),
    "compacted": ("segment", "digest"),
}

Kind = Literal["chain", "head", "removal", "compacted", "accepted", "adopted"]


class AnchorStatement(Document):
    """One statement about an audit chain, or about all of them, as LoomDB keeps it in JSON. What its kind does not need
    is None and is not written.

    `chain`: how a chain begins, `digest` is its first record's hash. `head`: its last record. `removal`: records
    `first_sequence` to `sequence`, in the segments `first_segment` to `segment`, were removed; `digest` is the last
    one's hash. `compacted`: `digest` is the SHA-256 of the segment's Parquet file. `accepted`: a person knows of
    `findings`. `adopted`: `digest` covers what LoomDB held before there were statements.
    """

    number: int
    previous: str  # digest of the statement before; of the first: zeros
    kind: Kind
    server: str  # "POLICY/CHAIN"; empty for what concerns all chains
    host: str
    time: str  # ISO 8601, UTC
    segment: str | None = None
    sequence: int | None = None
    digest: str | None = None
    first_segment: str | None = None
    first_sequence: int | None = None
    by: str | None = None  # who did it
    reason: str | None = None  # why, or by which rule
    findings: list[str] | None = None
    num_heads: int | None = None
    num_removals: int | None = None


@dataclass
class AnchorStatements:
    """All statements of a LoomDB, checked against each other; `findings` say what is wrong with them."""

    newest: AuditAnchor | None = None
    num_signed: int = 0
    findings: list[str] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)  # by the statement's number; empty: it cannot be read
    by_chain: dict[str, list[Anchor]] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)  # by the chain: where it lies
    vouched: set[str] = field(default_factory=set)  # chains whose host is signed by a trusted key
    accepted: dict[str, str] = field(default_factory=dict)  # finding -> who accepted it, when and why

    @property
    def num(self) -> int:
        """How many statements there are, those included that contradict another."""
        return len(self.digests)


def state(db: LoomDB, kind: Kind, server: str, **fields: Any) -> tuple[AuditAnchor, str | None]:
    """Append a statement of this kind about a chain, `POLICY/CHAIN`, or about all chains where `server` is empty.

    It is signed where a key can be had. `fields` are those of `AnchorStatement` that the kind needs. Returns (the
    statement, why it is not signed), the latter None where it is.

    Raises:
        ServiceError: when LoomDB cannot be reached; nothing is stated then.
    """
    if kind != "adopted" and db.newest_audit_anchor() is None:
        _adopt(db)
    unsigned: list[str] = []

    def build(number: int, previous: str) -> AuditAnchor:
        unsigned.clear()
        written = AnchorStatement(
            number=number, previous=previous, kind=kind, server=server, host=socket.gethostname(), time=_now(), **fields
        )
        payload = canonical_json(written.model_dump(mode="json", exclude_none=True))
        try:
            signature = sign_envelope(payload, STATEMENT_TYPE).signatures[0]
        except (ConfigError, OSError) as error:
            unsigned.append(str(error))
            signature = None
        text, sig = payload.decode(), None if signature is None else signature.sig
        return AuditAnchor(
            number=number,
            server=server,
            kind=kind,
            payload=text,
            digest=_digest(text, sig),
            signature=sig,
            keyid=None if signature is None else signature.keyid,
        )

    return db.append_audit_anchor(build), next(iter(unsigned), None)


def read_statements(db: LoomDB, demand_readable: bool = True) -> AnchorStatements:
    """All statements; what contradicts another, or its signature, is a finding that names it.

    Without `demand_readable`, so is each row that was changed by hand and each file that holds no trusted key.

    Raises:
        ServiceError: when LoomDB cannot be reached, or a row in it was changed by hand so that it is no statement.
        ArtifactError, ConfigError: when the trusted keys cannot be read.
    """
    found, damaged, unread = AnchorStatements(), list[DamagedRow](), list[str]()
    legacy = legacy_heads.read(db, None if demand_readable else damaged)
    trusted = trusted_keys(None if demand_readable else unread)
    found.findings += [f"what a trusted key signed cannot be told: {error}" for error in unread]
    found.findings += [f"{row}{found_digest(row.digest)}" for row in damaged] + legacy.findings
    num_adopted = 0  # removals of earlier versions that a signed statement covers
    for anchor in _rows(db, demand_readable):
        statement = _checked(found, anchor)
        if statement is None or isinstance(anchor, DamagedRow):
            continue
        fault = signature_fault(STATEMENT_TYPE, anchor.payload.encode(), anchor.signature, anchor.keyid, trusted)
        found.num_signed += anchor.signature is not None
        if statement.kind == "adopted":
            if _is_adopted(found, statement, legacy, fault) and anchor.signature is not None:
                num_adopted = statement.num_removals or 0
        elif statement.kind == "accepted":
            _accept(found, statement, anchor, fault)
        else:
            _add(found, statement, anchor, fault)
    for server, anchors in legacy_heads.anchors(legacy, trusted, num_adopted).items():
        found.by_chain[server] = [*anchors, *found.by_chain.get(server, [])]
    return found


def _rows(db: LoomDB, demand_readable: bool) -> Iterator[AuditAnchor | DamagedRow]:
    after = 0
    while True:
        damaged: list[DamagedRow] = []
        page = db.audit_anchors(after, _PAGE, None if demand_readable else damaged)
        rows: dict[int, AuditAnchor | DamagedRow] = {anchor.number: anchor for anchor in page}
        rows |= {row.number: row for row in damaged}
        for after in sorted(rows):
            yield rows[after]
        if not rows:
            return


def _checked(found: AnchorStatements, anchor: AuditAnchor | DamagedRow) -> AnchorStatement | None:
    """A statement that says what its row says; held against the one before it."""
    name = f"statement {anchor.number} of LoomDB"
    if isinstance(anchor, AuditAnchor):
        name += f", {anchor.kind} of {anchor.server or 'all chains'}"
    expected = next(reversed(found.digests), 0) + 1
    if anchor.number != expected:
        found.findings.append(f"{_missing(expected, anchor.number - 1)} missing, before {name}")
    before = found.digests.get(expected - 1, GENESIS)
    if isinstance(anchor, DamagedRow):
        found.digests[anchor.number] = ""
        found.findings.append(f"{anchor}{found_digest(anchor.digest)}")
        return None
    found.newest, found.digests[anchor.number] = anchor, anchor.digest

    def find(what: str, before: str = "") -> None:
        found.findings.append(f"{name}: {what}{found_digest(_row_digest(anchor, before))}")

    try:
        statement = AnchorStatement.model_validate_json(anchor.payload)
    except ValidationError:
        find("cannot be read: it was changed")
        return None
    if anchor.digest != _digest(anchor.payload, anchor.signature):
        find("is not what was written: it was changed")
        return None
    said = (statement.number, statement.server, statement.kind)
    if said != (anchor.number, anchor.server, anchor.kind):
        find(f"was written as {said[2]} of {said[1] or 'all chains'}, number {said[0]}")
        return None
    if anchor.number == expected and before not in ("", statement.previous):
        find("does not follow the statement before it: one of them was replaced", before)
    if lacking := [key for key in _NEEDS.get(statement.kind, ()) if getattr(statement, key) is None]:
        find(f"does not say {', '.join(lacking)}: no server states that")
        return None
    return statement


def _add(found: AnchorStatements, statement: AnchorStatement, row: AuditAnchor, fault: str | None) -> None:
    told, signed = statement.model_dump(exclude_none=True), row.signature is not None
    names = ("segment", "sequence", "digest", "first_segment", "first_sequence", "by", "reason", "time", "kind")
    place = {name: told[name] for name in names if name in told}
    anchor = Anchor(**place, signed=signed, fault=fault, statement=row.digest)
    found.by_chain.setdefault(statement.server, []).append(anchor)
    if (is_vouched := signed and fault is None) or statement.server not in found.vouched:
        found.hosts[statement.server] = statement.host  # else whoever can write LoomDB could say that it lies elsewhere
    if is_vouched:
        found.vouched.add(statement.server)


def _accept(found: AnchorStatements, statement: AnchorStatement, anchor: AuditAnchor, fault: str | None) -> None:
    """Only what is signed by a trusted key can turn a finding into a note."""
    if anchor.signature is None or fault is not None:
        found.findings.append(
            f"statement {anchor.number} of LoomDB accepts findings and is not signed by a trusted key"
            f"{found_digest(anchor.digest)}"
        )
        return
    why = f"accepted by {statement.by} at {statement.time}: {statement.reason}"
    found.accepted |= dict.fromkeys(statement.findings or [], why)


def _adopt(db: LoomDB) -> None:
    """The first statement covers what LoomDB held before, so that it cannot vanish any more."""
    legacy = legacy_heads.read(db)
    if legacy.is_empty:
        return
    sizes = {"num_heads": len(legacy.heads), "num_removals": len(legacy.removals)}
    state(db, "adopted", "", digest=legacy.digest(**sizes), **sizes)


def _is_adopted(
    found: AnchorStatements, statement: AnchorStatement, legacy: legacy_heads.LegacyHeads, fault: str | None
) -> bool:
    """Whether it holds; a finding where what was adopted is not there any more."""
    sizes = {"num_heads": statement.num_heads or 0, "num_removals": statement.num_removals or 0}
    digest = legacy.digest(**sizes)
    if fault is not None or digest != statement.digest:
        why = fault or "they are others now"
        found.findings.append(
            f"the {sizes['num_heads']} heads and {sizes['num_removals']} removals that statement {statement.number} of "
            f"LoomDB adopted from an earlier version cannot be relied on: {why}{found_digest(digest)}"
        )
        return False
    return True


def _row_digest(row: AuditAnchor, before: str = "") -> str:
    """SHA-256 of what a row holds, and of the digest of the statement before it where that was held against it."""
    return sha256(canonical_json([before, row.model_dump(mode="json")]))


def _digest(payload: str, signature: str | None) -> str:
    return sha256(f"{payload}\n{signature or ''}".encode())


def _missing(first: int, last: int) -> str:
    return f"statement {first} of LoomDB is" if first == last else f"statements {first} to {last} of LoomDB are"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

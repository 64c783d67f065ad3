"""Verifying all audit chains: those that are there against those that LoomDB knows, and LoomDB against them."""

import errno
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from loomrl.errors import ArtifactError, ServiceError
from loomrl.storage.audit.anchors import AnchorStatements, read_statements
from loomrl.storage.audit.exported_anchor import ExportedAnchor
from loomrl.storage.audit.history import chains
from loomrl.storage.audit.hosts import audit_roots
from loomrl.storage.audit.segments import holds, last_record
from loomrl.storage.audit.verification import (
    Anchor,
    ChainReport,
    found_digest,
    missing_chain,
    unreadable,
    verify_chain,
    without_digest,
)
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.files import sha256
from loomrl.system.home import shares_loomdb
from loomrl.system.plain import on_one_line

LOOMDB = "LoomDB"  # as findings name its statements
_BEFORE_DIGESTS = "by a version that did not keep what was found there: look at it, and accept it again"
_UNPLACED = (
    "LoomDB does not say on which host it was written, for that was an earlier version: start a server of this version "
    "there, which states it"
)


@dataclass
class AuditReport:
    """What verifying an installation's audit logs found. A finding is something wrong; a note is not."""

    num_statements: int = 0
    num_signed_statements: int = 0
    newest_statement: str | None = None  # digest
    findings: list[str] = field(default_factory=list)  # about LoomDB's statements
    notes: list[str] = field(default_factory=list)
    elsewhere: dict[str, str] = field(default_factory=dict)  # chain that lies on another host -> the host
    chains: list[ChainReport] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether verification found nothing wrong, in LoomDB's statements and in every chain."""
        return not self.findings and all(report.intact for report in self.chains)

    def all_findings(self) -> list[str]:
        """All findings, each with the name of its chain in front."""
        return [
            *(f"{LOOMDB}: {finding}" for finding in self.findings),
            *(f"{report.server}: {finding}" for report in self.chains for finding in report.findings),
        ]


def verify_here(
    policy: str | None = None,
    demand_signed: bool = False,
    everywhere: bool = False,
    exported: ExportedAnchor | None = None,
) -> AuditReport:
    """`verify_all` against the LoomDB of this installation. Where that cannot be opened or read, a finding says so, and
    every chain here is verified without it.

    Raises:
        ConfigError: as `verify_all` does, and when `LOOMRL_DATABASE_URL` is no URL.
    """
    try:
        with LoomDB.open() as db:
            return verify_all(db, policy, demand_signed, everywhere, exported)
    except (ArtifactError, ServiceError) as error:
        unread = f"{error}; where it is damaged, restore it from a backup. The chains were verified without it"
        return _verified(AnchorStatements(findings=[unread]), None, policy, demand_signed, everywhere, exported)


def verify_all(
    db: LoomDB,
    policy: str | None = None,
    demand_signed: bool = False,
    everywhere: bool = False,
    exported: ExportedAnchor | None = None,
) -> AuditReport:
    """Check every chain here, and that every chain LoomDB knows is here, or on the other host that wrote it.

    `everywhere` demands the chains of all hosts, under this home or in the folders of `LOOMRL_AUDIT_FOLDERS`.
    `exported` is held against LoomDB and the chains too. `demand_signed` makes a finding of what is not signed. What a
    person has accepted on record is a note and no finding.

    Raises:
        ServiceError: when LoomDB cannot be reached, or lacks a table.
        ConfigError: when `LOOMRL_AUDIT_FOLDERS` names a folder that is not there, or pyarrow is not installed for a
            compacted segment.
    """
    return _verified(read_statements(db, demand_readable=False), db, policy, demand_signed, everywhere, exported)


def _verified(
    statements: AnchorStatements,
    db: LoomDB | None,
    policy: str | None,
    demand_signed: bool,
    everywhere: bool,
    exported: ExportedAnchor | None,
) -> AuditReport:
    report = AuditReport(
        num_statements=statements.num,
        num_signed_statements=statements.num_signed,
        newest_statement=None if statements.newest is None else statements.newest.digest,
        findings=statements.findings,
    )
    known = dict(statements.by_chain)
    if exported is not None:
        report.findings += exported.contradictions(statements) if db is not None else []
        for server, anchors in exported.anchors().items():
            known[server] = [*known.get(server, []), *anchors]
    report.findings += _unreadable(everywhere)
    copies: dict[str, list[Path]] = {}
    for folder in _folders(policy, everywhere):
        copies.setdefault(f"{folder.parent.name}/{folder.name}", []).append(folder)
    for server, folders in copies.items():
        anchors = known.get(server, [])
        found = verify_chain(folders[0], anchors, demand_signed)
        if db is not None:
            _check_known(found, statements, demand_signed, db)
        report.chains += [found, *(_verified_copy(folder, folders[0], anchors) for folder in folders[1:])]
    for server in sorted(known.keys() - copies.keys()):
        host = statements.hosts.get(server, "")
        if policy not in (None, server.partition("/")[0]):
            continue
        if not everywhere and shares_loomdb() and host not in ("", socket.gethostname()):
            report.elsewhere[on_one_line(server)] = host
        else:
            report.chains.append(missing_chain(server, known[server]))
            if not host and shares_loomdb():
                report.chains[-1].notes.append(_UNPLACED)
    for chain in report.chains:  # what files are called, and rows say, may be any bytes
        chain.server, chain.findings = on_one_line(chain.server), [*map(on_one_line, chain.findings)]
        chain.notes = [*map(on_one_line, chain.notes)]
    report.findings = [*map(on_one_line, report.findings)]
    _accept(report, statements)
    return report


def _folders(policy: str | None, everywhere: bool) -> list[Path]:
    """Those of this host first, so that of two copies its own counts."""
    others = audit_roots()[1:] if everywhere else []
    pattern = f"{policy or '*'}/*"
    return [*chains(policy), *(one for root in others for one in sorted(root.glob(pattern)) if os.path.isdir(one))]


def _unreadable(everywhere: bool) -> list[str]:
    """The folders above those of chains that this user may not read: chains in them look as if they were missing."""
    roots = audit_roots() if everywhere else audit_roots()[:1]
    above = [folder for root in roots for folder in (root, *root.glob("*")) if os.path.isdir(folder)]
    return [
        unreadable(folder, os.strerror(errno.EACCES)) for folder in above if not os.access(folder, os.R_OK | os.X_OK)
    ]


def _verified_copy(folder: Path, original: Path, anchors: list[Anchor]) -> ChainReport:
    """A further copy of a chain. It may end earlier, and holds the same up to there: whichever goes further is read."""
    found = verify_chain(folder, anchors, may_end_early=True)
    try:
        shorter, longer = sorted((folder, original), key=lambda copy: last_record(copy)[0])
        if not holds(longer, *last_record(shorter)):
            found.findings.append(f"is another chain than {original}: one of them was rewritten, or two hosts write it")
    except (ArtifactError, OSError) as error:
        found.findings.append(str(error))
    found.server = f"{found.server} in {folder.parent.parent}"
    return found


def _check_known(report: ChainReport, statements: AnchorStatements, demand_signed: bool, db: LoomDB) -> None:
    """A chain and LoomDB must know each other. A server may have stated more since LoomDB was read, and named that."""
    if report.server not in statements.by_chain and report.num_records:
        unknown = "LoomDB knows nothing of this chain: it is not anchored yet, or was put here, or LoomDB is another"
        (report.findings if demand_signed else report.notes).append(unknown)
    digests = statements.digests
    if report.statements and max(report.statements) > max(digests, default=0):
        digests = digests | {one.number: one.digest for one in db.audit_anchors(max(digests, default=0), damaged=[])}
    for number, digest in report.statements.items():
        if (there := digests.get(number, "")) != digest:
            report.findings.append(
                f"its records name statement {number} of LoomDB, which is missing there or another: LoomDB was rolled "
                f"back or rewritten{found_digest(sha256(there.encode()))}"
            )


def _accept(report: AuditReport, statements: AnchorStatements) -> None:
    """What a person has accepted on record is a note."""
    report.findings, notes = _parted(LOOMDB, report.findings, statements)
    report.notes += notes
    for chain in report.chains:
        chain.findings, notes = _parted(chain.server, chain.findings, statements)
        chain.notes += notes


def _parted(name: str, findings: list[str], statements: AnchorStatements) -> tuple[list[str], list[str]]:
    rest, notes = [], []
    for finding in findings:
        if (why := statements.accepted.get(f"{name}: {finding}")) is not None:
            notes.append(f"{finding} ({why})")
        elif (why := statements.accepted.get(f"{name}: {without_digest(finding)}")) is not None:
            notes.append(f"{finding} ({why}; {_BEFORE_DIGESTS})")
        else:
            rest.append(finding)
    return rest, notes

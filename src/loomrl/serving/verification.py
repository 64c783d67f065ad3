"""Verifying audit chains: edited, deleted, reordered, truncated records are found and named.

The chain shows every change inside it; that its end is missing shows only against the heads anchored in LoomDB.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.serving.chain import GENESIS, BrokenRecord, unseal
from loomrl.serving.segments import lines, segments


@dataclass(frozen=True)
class Anchor:
    """A head that was recorded elsewhere."""

    sequence: int
    digest: str
    signed: bool = False
    fault: str | None = None  # what is wrong with its signature


@dataclass
class ChainReport:
    """What verifying one chain found. No findings: the chain is whole."""

    server: str  # "POLICY/SERVER"
    num_records: int = 0
    num_segments: int = 0
    num_anchors: int = 0
    num_signed: int = 0  # of the anchors
    first_sequence: int | None = None
    head_sequence: int = -1
    head_digest: str = GENESIS
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify_chain(folder: Path, anchors: Iterable[Anchor] = (), demand_signed: bool = False) -> ChainReport:
    """Check every record's own hash, its link to the one before it, and the anchored heads, signed ones or not."""
    report, heads = ChainReport(server=f"{folder.parent.name}/{folder.name}"), list(anchors)
    wanted = {anchor.sequence: anchor.digest for anchor in heads}
    report.num_anchors, report.num_signed = len(wanted), sum(anchor.signed for anchor in heads)
    found: dict[int, str] = {}
    for path in segments(folder):
        report.num_segments += 1
        try:
            for number, line in enumerate(lines(path), start=1):
                _follow(report, f"{path.name}:{number}", line, wanted, found)
        except ArtifactError as error:
            report.findings.append(str(error))
    for path in sorted(folder.glob("*.torn")):
        report.notes.append(f"{path.name}: {path.stat().st_size} bytes that a crash left half-written, cut on restart")
    _check_start(report, wanted)
    _check_anchors(report, wanted, found)
    _check_signatures(report, heads, demand_signed)
    return report


def _follow(report: ChainReport, place: str, line: bytes, wanted: dict[int, str], found: dict[int, str]) -> None:
    try:
        record = unseal(line)
    except BrokenRecord as error:
        report.findings.append(f"{place}: {error}: edited or torn")
        return
    sequence, digest = int(record["sequence"]), str(record["hash"])
    if report.first_sequence is None:
        report.first_sequence = sequence
        if sequence == 0 and record["previous_hash"] != GENESIS:
            report.findings.append(f"{place}: the first record names a former one")
    elif sequence != report.head_sequence + 1 or record["previous_hash"] != report.head_digest:
        report.findings.append(
            f"{place}: record {sequence} does not follow record {report.head_sequence}: deleted, reordered or inserted"
        )
    report.num_records += 1
    report.head_sequence, report.head_digest = sequence, digest
    if sequence in wanted:
        found[sequence] = digest


def _check_start(report: ChainReport, wanted: dict[int, str]) -> None:
    """Old segments may have been removed on purpose; the record before the first one kept must then be anchored."""
    first = report.first_sequence
    if not first:
        return
    if first - 1 in wanted:
        report.notes.append(f"records 0 to {first - 1} are no longer kept; their last one is anchored")
    else:
        report.findings.append(f"records 0 to {first - 1} are missing and no head of theirs is anchored")


def _check_anchors(report: ChainReport, wanted: dict[int, str], found: dict[int, str]) -> None:
    for sequence, digest in sorted(wanted.items()):
        if sequence > report.head_sequence:
            report.findings.append(
                f"record {sequence} was anchored but the log ends at {report.head_sequence}: truncated"
            )
        elif sequence in found and found[sequence] != digest:
            report.findings.append(f"record {sequence} is not the one that was anchored: the log was rewritten")


def _check_signatures(report: ChainReport, heads: list[Anchor], demanded: bool) -> None:
    for head in heads:
        if head.fault is not None:
            report.findings.append(f"the anchored head {head.sequence} cannot be relied on: {head.fault}")
        elif demanded and not head.signed:
            report.findings.append(f"the anchored head {head.sequence} is not signed")

"""Verifying audit chains: edited, deleted, reordered, truncated records are found and named.

The chain shows every change inside it. What is missing at its beginning and its end shows against what LoomDB states
of it (`loomrl.serving.anchors`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loomrl.errors import ArtifactError
from loomrl.files import sha256_file
from loomrl.serving.chain import GENESIS, BrokenRecord, unseal
from loomrl.serving.compacted import COMPACT, different_column
from loomrl.serving.segments import (
    PLAIN,
    RESERVE,
    lines,
    segments,
    segments_opened,
    sequence_of,
    waiting_lines,
)

HEAD, CHAIN, REMOVAL, COMPACTED = "head", "chain", "removal", "compacted"


@dataclass(frozen=True)
class Anchor:
    """What was stated elsewhere: by default, that a chain had a record of this sequence and hash (`head`, `chain`).

    A `removal` says that records from `first_sequence` on, up to this one, left in the segments `first_segment` to
    `segment`. `compacted` says that a segment's Parquet file has this SHA-256.
    """

    sequence: int = -1
    digest: str = ""
    signed: bool = False
    fault: str | None = None  # what is wrong with its signature
    kind: str = HEAD
    segment: str = ""
    first_segment: str = ""
    first_sequence: int = 0
    by: str = ""
    reason: str = ""
    time: str = ""

    @property
    def named(self) -> str:
        """How findings name it."""
        if self.kind == HEAD:
            return f"the anchored head {self.sequence}"
        if self.kind == CHAIN:
            return f"the anchored beginning, record {self.sequence},"
        if self.kind == REMOVAL:
            return f"the removal of records {self.first_sequence} to {self.sequence}"
        return f"the anchored file of segment {self.segment}"


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
    statements: dict[int, str] = field(default_factory=dict)  # of LoomDB that its records name: number -> digest

    @property
    def intact(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify_chain(folder: Path, anchors: Iterable[Anchor] = (), demand_signed: bool = False) -> ChainReport:
    """Check every record's hash, its link to the one before it, every file, and what was anchored, signed or not."""
    return _Verification(folder, list(anchors), demand_signed).run()


def missing_chain(server: str, anchors: list[Anchor]) -> ChainReport:
    """The report of a chain whose folder is not there."""
    heads = [anchor for anchor in anchors if anchor.kind == HEAD]
    report = ChainReport(server, num_anchors=len({head.sequence for head in heads}))
    report.num_signed = sum(head.signed for head in heads)
    last = max((anchor.sequence for anchor in anchors if anchor.kind in (HEAD, CHAIN)), default=-1)
    names = _span(sorted({anchor.segment for anchor in anchors if anchor.segment}))
    report.findings.append(f"the whole chain is missing: {names}, records 0 to {last} were anchored")
    return report


class _Verification:
    """One run over one chain."""

    def __init__(self, folder: Path, anchors: list[Anchor], demand_signed: bool) -> None:
        self.folder, self.anchors, self.demand_signed = folder, anchors, demand_signed
        self.report = ChainReport(server=f"{folder.parent.name}/{folder.name}")
        self.heads = [anchor for anchor in anchors if anchor.kind == HEAD]
        self.wanted: dict[int, list[Anchor]] = {}
        for anchor in (one for one in anchors if one.kind in (HEAD, CHAIN)):
            self.wanted.setdefault(anchor.sequence, []).append(anchor)
        self.removals = {anchor.first_sequence: anchor for anchor in anchors if anchor.kind == REMOVAL}
        self.files = {anchor.segment: anchor.digest for anchor in anchors if anchor.kind == COMPACTED}

    def run(self) -> ChainReport:
        report, found = self.report, segments(self.folder)
        report.num_segments = len(found)
        report.num_anchors = len({head.sequence for head in self.heads})
        report.num_signed = sum(head.signed for head in self.heads)
        foreign = [path for path in found if not path.stem.isdigit()]
        report.findings += [f"{path.name} is no segment of a server: it was put here" for path in foreign]
        found = [path for path in found if path not in foreign]
        waiting = waiting_lines(self.folder)
        self._check_names({int(stem) for stem in (*(path.stem for path in found), *segments_opened(waiting))})
        for path in found:
            self._check_file(path)
            try:
                for number, line in enumerate(lines(path), start=1):
                    self._follow(path.stem, f"{path.name}:{number}", line)
            except (ArtifactError, OSError) as error:
                report.findings.append(str(error))
        self._follow_waiting(waiting, found[-1].stem if found else "")
        for path in sorted(self.folder.glob("*.torn")):
            size = path.stat().st_size
            report.notes.append(f"{path.name}: {size} bytes that a crash left half-written, cut on restart")
        self._check_end()
        self._check_signatures()
        return report

    def _follow_waiting(self, waiting: list[bytes], segment: str) -> None:
        """Records of orders for which the disk had no room yet lie in the chain's reserve, and follow its last one."""
        last = self.report.head_sequence
        for number, line in enumerate(waiting, start=1):
            segment = next(iter(segments_opened([line])), segment)
            if sequence_of(line) > last:  # else a crash came between its writing to the log and its removal here
                self._follow(segment, f"{RESERVE}:{number}", line)
        if self.report.head_sequence > last:
            waits = f"records {last + 1} to {self.report.head_sequence} wait in {RESERVE} for room on the disk"
            self.report.notes.append(waits)

    def _check_names(self, there: set[int]) -> None:
        """Segments are numbered from 1 on; those that are not there must have been removed on record."""
        last = max([*there, *(int(anchor.segment) for anchor in self.heads if anchor.segment.isdigit())], default=0)
        removed = {
            number for one in self.removals.values() for number in range(int(one.first_segment), int(one.segment) + 1)
        }
        if missing := sorted(set(range(1, last + 1)) - there - removed):
            names = _span([f"{number:06d}" for number in missing])
            self.report.findings.append(f"{names} missing, and no removal is on record")

    def _check_file(self, path: Path) -> None:
        """A compacted segment is the file that was anchored; its columns say what its lines say."""
        compacted = path.with_suffix(COMPACT)
        if not compacted.is_file():
            return
        if (expected := self.files.get(path.stem)) is not None:
            if sha256_file(compacted) != expected:
                self.report.findings.append(f"{compacted.name}: is not the file that was anchored: edited or damaged")
        elif path.suffix != PLAIN:  # else a crash left both forms; the plain one is read
            try:
                column = different_column(compacted)
            except (ArtifactError, OSError) as error:
                column = str(error)
            if column is not None:
                self.report.findings.append(f"{compacted.name}: {column}: edited or damaged")
            self.report.notes.append(
                f"{compacted.name}: not anchored as a file; its columns were held against its lines"
            )

    def _follow(self, segment: str, place: str, line: bytes) -> None:
        report = self.report
        try:
            record = unseal(line)
            sequence, digest, kind = int(record["sequence"]), str(record["hash"]), record["kind"]
            if kind == "anchored":
                report.statements[int(record["number"])] = str(record["digest"])
        except (BrokenRecord, LookupError, TypeError, ValueError) as error:
            why = error if isinstance(error, BrokenRecord) else "not a record of a server"
            report.findings.append(f"{place}: {why}: edited or torn")
            return
        self._check_place(segment, place, record)
        if sequence != report.head_sequence + 1 or record["previous_hash"] != report.head_digest:
            self._explain_gap(place, sequence, str(record["previous_hash"]))
        if report.first_sequence is None:
            report.first_sequence = sequence
        report.num_records += 1
        report.head_sequence, report.head_digest = sequence, digest
        for anchor in (one for one in self.wanted.get(sequence, ()) if one.digest != digest):
            report.findings.append(
                f"{place}: record {sequence} is not the one that was anchored{_when(anchor)}: the log was rewritten"
            )

    def _check_place(self, segment: str, place: str, record: dict[str, Any]) -> None:
        """What opens a segment names it and its chain."""
        if record["kind"] != "open" or "segment" not in record or "server" not in record:
            return
        if record["server"] != self.report.server:
            self.report.findings.append(f"{place}: was written as chain {record['server']}: it was put here")
        if record["segment"] != segment:
            self.report.findings.append(f"{place}: was written as segment {record['segment']}: it was renamed")

    def _explain_gap(self, place: str, sequence: int, previous: str) -> None:
        """Records that are not there were removed on record, or it is a finding."""
        report = self.report
        first, start, digest = report.head_sequence + 1, report.head_sequence + 1, report.head_digest
        while start < sequence and start in self.removals and self.removals[start].sequence < sequence:
            removal = self.removals[start]
            start, digest = removal.sequence + 1, removal.digest
        if start == sequence and digest == previous:
            self._note_removals(first, sequence)
        elif sequence > first:
            held = sorted({one.segment for one in self.heads if one.segment and first <= one.sequence < sequence})
            of = f" (of {_span(held)})" if held else ""
            report.findings.append(
                f"{place}: records {first} to {sequence - 1}{of} are missing and no removal is on record; record "
                f"{sequence} does not follow record {report.head_sequence}: deleted, reordered or inserted"
            )
        else:
            report.findings.append(
                f"{place}: record {sequence} does not follow record {report.head_sequence}: deleted, reordered or "
                "inserted"
            )

    def _note_removals(self, start: int, stop: int) -> None:
        while start < stop:
            removal = self.removals[start]
            who = f" by {removal.by}" if removal.by else ""
            why = f": {removal.reason}" if removal.reason else ""
            self.report.notes.append(
                f"records {start} to {removal.sequence} are no longer kept: removed{_when(removal)}{who}{why}"
            )
            start = removal.sequence + 1

    def _check_end(self) -> None:
        report, end = self.report, self.report.head_sequence
        if beyond := [anchor for sequence in self.wanted if sequence > end for anchor in self.wanted[sequence]]:
            last = max(beyond, key=lambda anchor: anchor.sequence)
            names = _span(sorted({anchor.segment for anchor in beyond if anchor.segment}))
            report.findings.append(
                f"record {last.sequence}{f' of {names}' if names else ''} was anchored{_when(last)} but the log ends "
                f"at {end}: records {end + 1} to {last.sequence} are missing: truncated"
            )

    def _check_signatures(self) -> None:
        for anchor in self.anchors:
            if anchor.fault is not None:
                self.report.findings.append(f"{anchor.named} cannot be relied on: {anchor.fault}")
            elif self.demand_signed and not anchor.signed:
                self.report.findings.append(f"{anchor.named} is not signed")


def _span(stems: list[str]) -> str:
    if not stems:
        return ""
    return f"segment {stems[0]}" if len(stems) == 1 else f"segments {stems[0]} to {stems[-1]}"


def _when(anchor: Anchor) -> str:
    return f" at {anchor.time}" if anchor.time else ""

"""Verifying audit chains: edited, deleted, reordered, truncated records are found and named.

The chain shows every change inside it. What is missing at its beginning and its end, or lies in another segment, shows
against what LoomDB states of it (`loomrl.storage.audit.anchors`); what was forged behind the last anchored head does
not. A finding about something that is there ends with the first 16 hex digits of its SHA-256 digest: a person who
accepts it accepts what was found, not whatever may stand in that place later.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from loomrl.errors import ArtifactError
from loomrl.storage.audit.chain import GENESIS, BrokenRecord, unseal
from loomrl.storage.audit.compacted import COMPACT, compacted_lines, different_column
from loomrl.storage.audit.reserve import damage
from loomrl.storage.audit.segments import PLAIN, RESERVE, is_segment, lines, segments, waiting_lines
from loomrl.system.files import sha256, sha256_file

_FOUND = re.compile(r" \(found: [0-9a-f]{16}\)$")
HEAD, CHAIN, REMOVAL, COMPACTED = "head", "chain", "removal", "compacted"


@dataclass(frozen=True)
class Anchor:
    """What was stated elsewhere about a chain, which its files are held against. By default, `head`, as with `chain`:
    that it had a record of this sequence and hash, `digest`.

    A `removal` says that records from `first_sequence` on, up to this one, left in the segments `first_segment` to
    `segment`. `compacted` says that a segment's Parquet file has this SHA-256.
    """

    sequence: int = -1
    digest: str = ""
    signed: bool = False
    fault: str | None = None  # what is wrong with its signature; None for a good one, and for none
    kind: str = HEAD
    segment: str = ""
    first_segment: str = ""
    first_sequence: int = 0
    by: str = ""  # who removed it
    reason: str = ""
    time: str = ""  # ISO 8601, UTC; empty where it was not kept
    statement: str = ""  # digest of the statement of LoomDB that says so; empty where there were none yet

    @property
    def fits(self) -> bool:
        """Whether a removal names segments, and records, of which the first does not come after the last."""
        named = is_segment(self.first_segment) and is_segment(self.segment)
        return named and int(self.first_segment) <= int(self.segment) and 0 <= self.first_sequence <= self.sequence

    @property
    def named(self) -> str:
        """What findings call this anchor, such as `the anchored head 17`."""
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
        """Whether verification found nothing wrong in this chain."""
        return not self.findings


def verify_chain(
    folder: Path, anchors: Iterable[Anchor] = (), demand_signed: bool = False, may_end_early: bool = False
) -> ChainReport:
    """Check every record's hash, its link to the one before it, every file, and what was anchored, signed or not.

    What is wrong, or cannot be read, is a sentence in the report's `findings`. `demand_signed` makes one of each anchor
    that is not signed. A copy that `may_end_early` need not have what was anchored after its end.

    Raises:
        ConfigError: for a compacted segment where pyarrow is not installed.
    """
    return _Verification(folder, list(anchors), demand_signed, may_end_early).run()


def missing_chain(server: str, anchors: list[Anchor]) -> ChainReport:
    """The report of a chain, `POLICY/CHAIN`, that was anchored and whose folder is not there: one finding says so."""
    heads = [anchor for anchor in anchors if anchor.kind == HEAD]
    report = ChainReport(server, num_anchors=len({head.sequence for head in heads}))
    report.num_signed = sum(head.signed for head in heads)
    last = max((anchor.sequence for anchor in anchors if anchor.kind in (HEAD, CHAIN)), default=-1)
    names = _span(sorted({anchor.segment for anchor in anchors if anchor.segment}))
    report.findings.append(f"the whole chain is missing: {names}, records 0 to {last} were anchored")
    return report


class _Verification:
    """One run over one chain."""

    def __init__(self, folder: Path, anchors: list[Anchor], demand_signed: bool, may_end_early: bool) -> None:
        self.folder, self.anchors = folder, anchors
        self.demand_signed, self.may_end_early = demand_signed, may_end_early
        self.report = ChainReport(server=f"{folder.parent.name}/{folder.name}")
        self.heads = [anchor for anchor in anchors if anchor.kind == HEAD]
        self.wanted: dict[int, list[Anchor]] = {}
        for anchor in (one for one in anchors if one.kind in (HEAD, CHAIN)):
            self.wanted.setdefault(anchor.sequence, []).append(anchor)
        self.met: set[int] = set()  # those of which a record was read, wherever it lies
        removals = [anchor for anchor in anchors if anchor.kind == REMOVAL]
        self.removals = {anchor.first_sequence: anchor for anchor in removals if anchor.fits}
        unfit = [anchor for anchor in removals if not anchor.fits]
        self.report.findings += [f"{one.named} cannot be relied on: it names no segments and records" for one in unfit]
        self.waiting: dict[int, str] = {}  # sequences of lines in the reserve -> the hash that the log has there
        self.vouched = {one.sequence: one.digest for one in (*self.removals.values(), *self.heads)}  # what was there
        self.repaired: list[
            tuple[str, dict[str, Any]]
        ] = []  # what was cut after a crash: place of the record, and that
        self.files = {anchor.segment: anchor.digest for anchor in anchors if anchor.kind == COMPACTED}

    def run(self) -> ChainReport:
        report = self.report
        report.num_anchors = len({head.sequence for head in self.heads})
        report.num_signed = sum(head.signed for head in self.heads)
        try:
            found = self._segments()
        except OSError as error:
            report.findings.append(unreadable(self.folder, error.strerror))
            return report
        report.num_segments = len(found)
        waiting = self._waiting()
        opened = [record["segment"] for _, record in waiting if record and is_segment(str(record.get("segment")))]
        self._check_names({int(stem) for stem in (*(path.stem for path in found), *opened)})
        self.waiting = {record["sequence"]: "" for _, record in waiting if record}
        segment = ""  # the last one that holds anything
        for path in found:
            with self._unread_found():
                self._check_file(path)
            with self._unread_found():
                for number, line in enumerate(lines(path), start=1):
                    segment, place = path.stem, f"{path.name}:{number}"
                    record = self._record(place, line)
                    if number == 1 and record is not None and record["kind"] != "open":
                        what = f"{place}: is not the record that opens a segment: others were moved, or it was deleted"
                        report.findings.append(f"{what}{found_digest(record['hash'])}")
                    self._follow(segment, place, record)
                if path.stem != segment:
                    report.notes.append(f"{path.name}: is empty: there was no room for a line, or it was put here")
        self._follow_waiting(waiting, segment)
        self._check_torn()
        for path in sorted(self.folder.glob("*.torn")):
            size = path.lstat().st_size
            report.notes.append(f"{path.name}: {size} bytes that a crash left half-written, cut on restart")
        self._check_end()
        self._check_signatures()
        return report

    @contextmanager
    def _unread_found(self) -> Iterator[None]:
        """A file that cannot be read is a finding, and the rest is verified."""
        try:
            yield
        except (ArtifactError, OSError) as error:
            self.report.findings.append(str(error))

    def _segments(self) -> list[Path]:
        """The segments; what only looks like one, or is no file, is found."""
        for path in sorted(self.folder.iterdir()):
            if path.suffix not in (PLAIN, COMPACT):
                continue
            if not is_segment(path.stem):
                self.report.findings.append(f"{path.name} is no segment of a server: it was put here")
            elif not path.is_file():
                self.report.findings.append(f"{path.name} is no file: it was put here")
        return [path for path in segments(self.folder) if path.is_file()]

    def _waiting(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Place and record of each line in the reserve; None for a damaged one, which is found."""
        reserve = self.folder / RESERVE
        try:
            if (why := damage(reserve)) is not None:
                self.report.findings.append(f"{RESERVE} {why}: records of orders may be missing")
            found = enumerate(waiting_lines(self.folder), start=1)
        except OSError as error:
            self.report.findings.append(f"{RESERVE} cannot be read: {error.strerror}")
            return []
        return [(f"{RESERVE}:{number}", self._record(f"{RESERVE}:{number}", line)) for number, line in found]

    def _follow_waiting(self, waiting: list[tuple[str, dict[str, Any] | None]], segment: str) -> None:
        """Records of orders for which the disk had no room yet lie in the chain's reserve, and follow its last one."""
        last = self.report.head_sequence
        for place, record in waiting:
            if record is None:
                continue
            sequence = record["sequence"]
            if record["kind"] == "open" and is_segment(opened := str(record.get("segment"))):
                segment = opened
            if sequence > last:
                self._follow(segment, place, record)
            elif self.waiting[sequence] not in ("", record["hash"]):  # else a crash kept it from being removed here
                self.report.findings.append(
                    f"{place}: is not the record {sequence} of the log: it was put here{found_digest(record['hash'])}"
                )
        self._vouch_waiting([one for one in waiting if one[1] is not None and one[1]["sequence"] <= last])
        if self.report.head_sequence > last:
            waits = f"records {last + 1} to {self.report.head_sequence} wait in {RESERVE} for room on the disk"
            self.report.notes.append(waits)

    def _vouch_waiting(self, waiting: list[tuple[str, dict[str, Any] | None]]) -> None:
        """Of lines that the log no longer shows, what follows must say that they were there."""
        for place, record in reversed(waiting):
            assert record is not None, "it was selected"
            sequence, digest = record["sequence"], record["hash"]
            if self.waiting[sequence] == "" and self.vouched.get(sequence) != digest:
                self.report.findings.append(
                    f"{place}: record {sequence} is not in the log, and nothing says that it was: it was put here"
                    f"{found_digest(digest)}"
                )
            elif self.waiting[sequence] in ("", digest):
                self.vouched[sequence - 1] = record["previous_hash"]

    def _check_torn(self) -> None:
        """What was cut after a crash is kept, as the record says that opens the next segment."""
        for place, repaired in self.repaired:
            name = str(repaired["kept"])
            try:
                data = (self.folder / Path(name).name).read_bytes()
            except FileNotFoundError:
                if not self.may_end_early:
                    self.report.findings.append(f"{place}: names {name}, which a crash left: it is missing")
                continue
            except OSError as error:
                self.report.findings.append(f"{name} cannot be read: {error.strerror}")
                continue
            digest = sha256(data)
            if len(data) != repaired.get("num_bytes") or repaired.get("digest", digest) != digest:
                self.report.findings.append(
                    f"{name}: is not what was cut, as {place} says: edited or damaged{found_digest(digest)}"
                )

    def _check_names(self, there: set[int]) -> None:
        """Segments are numbered from 1 on; those that are not there must have been removed on record."""
        heads = [] if self.may_end_early else self.heads
        last = max([*there, *(int(head.segment) for head in heads if is_segment(head.segment))], default=0)
        removed = [(int(one.first_segment), int(one.segment)) for one in self.removals.values()]
        missing, expected = [], 1
        for first, end in sorted([*((number, number) for number in there), *removed, (last + 1, last + 1)]):
            if first > expected:
                missing.append(_span([f"{expected:06d}", f"{first - 1:06d}"][: first - expected]))
            expected = max(expected, end + 1)
        if missing:
            self.report.findings.append(f"{', '.join(missing)} missing, and no removal is on record")

    def _check_file(self, path: Path) -> None:
        """A compacted segment is the file that was anchored; its columns say what its lines say, and those are the
        plain file's, where a crash left both: that one is read, but queries may read the other."""
        compacted = path.with_suffix(COMPACT)
        if not compacted.is_file():
            return
        if (expected := self.files.get(path.stem)) is not None:
            if (digest := sha256_file(compacted)) != expected:
                what = f"{compacted.name}: is not the file that was anchored: edited or damaged"
                self.report.findings.append(f"{what}{found_digest(digest)}")
            return
        try:
            differs = different_column(compacted)
            if differs is None and path.suffix == PLAIN and _differ(lines(path), compacted_lines(compacted)):
                differs = f"does not hold the lines of {path.name}"
        except (ArtifactError, OSError) as error:
            differs = str(error)
        if differs is not None:
            digest = sha256_file(compacted)
            self.report.findings.append(
                f"{compacted.name}: {differs}: put here, edited or damaged{found_digest(digest)}"
            )
        self.report.notes.append(f"{compacted.name}: not anchored as a file; its columns were held against its lines")

    def _record(self, place: str, line: bytes) -> dict[str, Any] | None:
        """The record of a line; None where it is damaged, which is found."""
        try:
            return unseal(line)
        except BrokenRecord as error:
            self.report.findings.append(f"{place}: {error}: edited or torn{found_digest(sha256(line))}")
            return None

    def _follow(self, segment: str, place: str, record: dict[str, Any] | None) -> None:
        report = self.report
        if record is None:
            return
        sequence, digest = record["sequence"], record["hash"]
        if record["kind"] == "anchored":
            report.statements[record["number"]] = record["digest"]
        if sequence in self.waiting:
            self.waiting[sequence] = digest
        if sequence - 1 in self.waiting:
            self.vouched[sequence - 1] = record["previous_hash"]
        if record["kind"] == "open" and isinstance(repaired := record.get("repaired"), dict) and repaired.get("kept"):
            self.repaired.append((place, repaired))
        self._check_place(segment, place, record)
        if sequence != report.head_sequence + 1 or record["previous_hash"] != report.head_digest:
            self._explain_gap(place, record)
        if report.first_sequence is None:
            report.first_sequence = sequence
        report.num_records += 1
        report.head_sequence, report.head_digest = sequence, digest
        for anchor in self.wanted.get(sequence, ()):
            if anchor.digest != digest:
                report.findings.append(
                    f"{place}: record {sequence} is not the one that was anchored{_when(anchor)}: the log was rewritten"
                    f"{found_digest(digest)}"
                )
                continue
            self.met.add(sequence)
            if anchor.segment and _order(anchor.segment) < _order(segment):
                # the reverse moves what opens a segment too; and earlier versions named one with no room for a line yet
                report.findings.append(
                    f"{place}: record {sequence} was anchored{_when(anchor)} in segment {anchor.segment}: it was moved"
                    f"{found_digest(digest)}"
                )

    def _check_place(self, segment: str, place: str, record: dict[str, Any]) -> None:
        """What opens a segment names it and its chain."""
        if record["kind"] != "open" or "segment" not in record or "server" not in record:
            return
        if record["server"] != self.report.server:
            self.report.findings.append(f"{place}: was written as chain {record['server']}: it was put here")
        if record["segment"] != segment:
            self.report.findings.append(f"{place}: was written as segment {record['segment']}: it was renamed")

    def _explain_gap(self, place: str, record: dict[str, Any]) -> None:
        """Records that are not there were removed on record, or it is a finding."""
        report, sequence, previous = self.report, record["sequence"], record["previous_hash"]
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
                f"{found_digest(record['hash'])}"
            )
        else:
            report.findings.append(
                f"{place}: record {sequence} does not follow record {report.head_sequence}: deleted, reordered or "
                f"inserted{found_digest(record['hash'])}"
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
        if self.may_end_early:
            return
        gone = [sequence for sequence in self.wanted if sequence > end and sequence not in self.met]
        if beyond := [anchor for sequence in gone for anchor in self.wanted[sequence]]:
            last = max(beyond, key=lambda anchor: anchor.sequence)
            names = _span(sorted({anchor.segment for anchor in beyond if anchor.segment}))
            report.findings.append(
                f"record {last.sequence}{f' of {names}' if names else ''} was anchored{_when(last)} but the log ends "
                f"at {end}: records {end + 1} to {last.sequence} are missing: truncated"
            )

    def _check_signatures(self) -> None:
        for anchor in self.anchors:
            if anchor.fault is not None:
                what = f"{anchor.named} cannot be relied on: {anchor.fault}"
            elif self.demand_signed and not anchor.signed:
                what = f"{anchor.named} is not signed"
            else:
                continue
            self.report.findings.append(f"{what}{found_digest(anchor.statement) if anchor.statement else ''}")


def unreadable(folder: Path, why: str | None) -> str:
    """The finding for a folder that this user may not read."""
    return f"{folder} cannot be read: {why}; verify as a user who may read it"


def found_digest(digest: str) -> str:
    """The end of a finding about something that is there: which, by its SHA-256 digest."""
    return f" (found: {digest[:16]})"


def without_digest(finding: str) -> str:
    """A finding as earlier versions worded it, who did not say what was found in the place."""
    return _FOUND.sub("", finding)


def _differ(one: Iterable[bytes], other: Iterable[bytes]) -> bool:
    return any(first != second for first, second in zip_longest(one, other))


def _span(stems: list[str]) -> str:
    if not stems:
        return ""
    return f"segment {stems[0]}" if len(stems) == 1 else f"segments {stems[0]} to {stems[-1]}"


def _order(stem: str) -> tuple[int, str]:
    """What segments are ordered by."""
    return len(stem), stem


def _when(anchor: Anchor) -> str:
    return f" at {anchor.time}" if anchor.time else ""

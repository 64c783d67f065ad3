"""The end of LoomDB's statements and the heads of all chains in one signed file, to be kept where nobody who can write
this installation's files and databases can write.

It is what shows that everything was rolled back together: chains, and LoomDB with them.
"""

import socket
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from loomrl.errors import ArtifactError, ConfigError
from loomrl.storage.audit.anchors import AnchorStatements
from loomrl.storage.audit.verification import Anchor, found_digest
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.files import sha256
from loomrl.system.schema import Document
from loomrl.system.security.signing import Envelope, sign_envelope, verify_envelope

EXPORTED_TYPE = "application/vnd.loomrl.exported-audit-anchor+json"


class ExportedHead(Document):
    """The newest anchored head of one chain, as it was exported: its last record's segment, sequence and hash."""

    server: str  # "POLICY/CHAIN"
    segment: str
    sequence: int
    digest: str


class ExportedAnchor(Document):
    """The anchored heads of all chains that LoomDB held at one time."""

    schema_version: int = 1
    time: str  # ISO 8601, UTC
    host: str
    number: int  # of the newest statement
    digest: str
    heads: list[ExportedHead]

    def contradictions(self, statements: AnchorStatements) -> list[str]:
        """What is wrong with LoomDB's statements, held against this: one sentence, or none where they hold what it
        names."""
        if (there := statements.digests.get(self.number, "")) == self.digest:
            return []
        return [
            f"statement {self.number}, exported at {self.time}, is missing or another: LoomDB was rolled back or "
            f"rewritten{found_digest(sha256(there.encode()))}"
        ]

    def anchors(self) -> dict[str, list[Anchor]]:
        """For each chain, `POLICY/CHAIN`, its head to verify it against; all count as signed, for the file is."""
        return {
            head.server: [Anchor(head.sequence, head.digest, True, segment=head.segment, time=self.time)]
            for head in self.heads
        }


def export_anchor(db: LoomDB, path: Path) -> ExportedAnchor:
    """Sign what LoomDB holds now and write it to `path`, in place of a file there; returns what was written.

    Raises:
        ConfigError: when LoomDB holds no statement yet, or this installation has no key to sign with.
        ServiceError: when LoomDB cannot be reached.
        ArtifactError: when the file cannot be written.
    """
    newest = db.newest_audit_anchor()
    if newest is None:
        raise ConfigError("LoomDB holds no statement about audit logs yet; `loomrl serve` anchors them")
    places = [chain.model_dump(include={"server", "segment", "sequence", "digest"}) for chain in db.audit_chains()]
    heads = [ExportedHead(**place) for place in places]
    time = datetime.now(UTC).isoformat(timespec="seconds")
    made = ExportedAnchor(time=time, host=socket.gethostname(), number=newest.number, digest=newest.digest, heads=heads)
    sign_envelope(made.to_bytes(), EXPORTED_TYPE).write(path)
    return made


def read_exported(path: Path) -> ExportedAnchor:
    """The anchor in a file that `export_anchor` wrote, its signature verified.

    Raises:
        ArtifactError: when the file cannot be read, no trusted key signed exactly this, or another version wrote it.
    """
    payload = verify_envelope(Envelope.read(path), EXPORTED_TYPE)
    try:
        return ExportedAnchor.model_validate_json(payload)
    except ValidationError as error:
        raise ArtifactError(f"{path}: written by another version of LoomRL: {error.errors()[0]['msg']}") from error

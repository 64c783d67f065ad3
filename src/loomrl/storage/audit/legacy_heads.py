"""Heads and removals of audit chains as LoomDB kept them before there were statements
(`loomrl.storage.audit.anchors`).
"""

from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from loomrl.storage.audit.segments import is_segment
from loomrl.storage.audit.verification import Anchor, found_digest
from loomrl.storage.loomdb.database import DamagedRow, LoomDB
from loomrl.storage.loomdb.records import AuditHead
from loomrl.system.files import canonical_json, sha256
from loomrl.system.security.signing import signature_fault
from loomrl.types import Json

HEAD_TYPE = "application/vnd.loomrl.audit-head+json"
REMOVED = "audit segment removed"  # the kind of LoomDB's event


@dataclass(frozen=True)
class LegacyHeads:
    """The heads and removals that LoomDB holds in the old form, oldest first; `findings` say what cannot be read."""

    heads: list[AuditHead]
    removals: list[Json]  # server, segment and last sequence of a segment that `loomrl gc` removed
    findings: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether LoomDB holds neither a head nor a removal in the old form."""
        return not self.heads and not self.removals

    def digest(self, num_heads: int, num_removals: int) -> str:
        """SHA-256, 64 hex digits, over the first `num_heads` heads and `num_removals` removals."""
        heads = [[*_place(head).values(), head.signature, head.keyid] for head in self.heads[:num_heads]]
        return sha256(canonical_json([heads, self.removals[:num_removals]]))


def read(db: LoomDB, damaged: list[DamagedRow] | None = None) -> LegacyHeads:
    """All heads and removals that LoomDB holds in the old form; a removal that cannot be read is a finding.

    Where `damaged` is given, rows that were changed by hand are put into it, and left out.

    Raises:
        ServiceError: when LoomDB cannot be reached, or a row in it was changed by hand.
    """
    removals = [event.data for event in db.events(REMOVED, damaged)]
    strange = [removal for removal in removals if not _is_removal(removal)]
    findings = [
        f"an event of a removed segment cannot be read, it was changed: {one!r:.200}"
        f"{found_digest(sha256(repr(one).encode()))}"
        for one in strange
    ]
    return LegacyHeads(db.audit_heads(damaged=damaged), [one for one in removals if one not in strange], findings)


def anchors(legacy: LegacyHeads, trusted: dict[str, Ed25519PublicKey], num_adopted: int) -> dict[str, list[Anchor]]:
    """What each chain, `POLICY/CHAIN`, is held against, by the heads and removals of the old form.

    A head counts as signed where it has a signature; `fault` says what is wrong with it. Of the removals the first
    `num_adopted`, which a signed statement covers, count as signed.
    """
    found: dict[str, list[Anchor]] = {}
    digests = {(head.server, head.sequence): head.digest for head in legacy.heads}
    for head in legacy.heads:
        signed = head.signature is not None
        fault = signature_fault(HEAD_TYPE, canonical_json(_place(head)), head.signature, head.keyid, trusted)
        one = Anchor(head.sequence, head.digest, signed, fault, segment=head.segment)
        found.setdefault(head.server, []).append(one)
    ends: dict[str, int] = {}
    numbered = enumerate(legacy.removals)
    for number, told in sorted(numbered, key=lambda one: int(one[1]["sequence"])):
        server, segment, last = told["server"], told["segment"], int(told["sequence"])
        first, ends[server] = ends.get(server, -1) + 1, last
        if first <= last:
            place = {"segment": segment, "first_segment": segment, "first_sequence": first}
            removal = Anchor(
                last, digests.get((server, last), ""), number < num_adopted, kind="removal", by="loomrl gc", **place
            )
            found.setdefault(server, []).append(removal)
    return found


def _is_removal(told: Any) -> bool:
    if not isinstance(told, dict) or type(told.get("sequence")) is not int:
        return False
    try:
        canonical_json(told)
    except ValueError:
        return False
    return isinstance(told.get("server"), str) and is_segment(str(told.get("segment")))


def _place(head: AuditHead) -> Json:
    return {"server": head.server, "segment": head.segment, "sequence": head.sequence, "digest": head.digest}

"""Heads and removals of audit chains as LoomDB kept them before there were statements (`loomrl.serving.anchors`)."""

import base64
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from loomrl.errors import ArtifactError
from loomrl.files import canonical_json, sha256
from loomrl.loomdb.database import LoomDB
from loomrl.loomdb.records import AuditHead
from loomrl.serving.verification import Anchor
from loomrl.signing import Envelope, Signature, verify_envelope
from loomrl.types import Json

HEAD_TYPE = "application/vnd.loomrl.audit-head+json"
REMOVED = "audit segment removed"  # the kind of LoomDB's event


@dataclass(frozen=True)
class LegacyHeads:
    """What LoomDB holds in the old form, oldest first."""

    heads: list[AuditHead]
    removals: list[Json]  # server, segment and last sequence of a segment that `loomrl gc` removed

    @property
    def is_empty(self) -> bool:
        """Whether there is none."""
        return not self.heads and not self.removals

    def digest(self, num_heads: int, num_removals: int) -> str:
        """SHA-256 over the first so many."""
        heads = [[*_place(head).values(), head.signature, head.keyid] for head in self.heads[:num_heads]]
        return sha256(canonical_json([heads, self.removals[:num_removals]]))


def read(db: LoomDB) -> LegacyHeads:
    """Everything in the old form."""
    return LegacyHeads(db.audit_heads(), [event.data for event in db.events(REMOVED)])


def anchors(legacy: LegacyHeads, trusted: dict[str, Ed25519PublicKey], adopted: bool) -> dict[str, list[Anchor]]:
    """By chain. A removal counts as signed when a statement has adopted it."""
    found: dict[str, list[Anchor]] = {}
    digests = {(head.server, head.sequence): head.digest for head in legacy.heads}
    for head in legacy.heads:
        signed = head.signature is not None
        one = Anchor(head.sequence, head.digest, signed, _fault(head, trusted), segment=head.segment)
        found.setdefault(head.server, []).append(one)
    ends: dict[str, int] = {}
    for told in sorted(legacy.removals, key=lambda told: int(told["sequence"])):
        server, segment, last = told["server"], told["segment"], int(told["sequence"])
        first, ends[server] = ends.get(server, -1) + 1, last
        if first <= last:
            place = {"segment": segment, "first_segment": segment, "first_sequence": first}
            removal = Anchor(last, digests.get((server, last), ""), adopted, kind="removal", by="gc", **place)
            found.setdefault(server, []).append(removal)
    return found


def _fault(head: AuditHead, trusted: dict[str, Ed25519PublicKey]) -> str | None:
    """Why a head's signature says nothing; None for a good one, and for none."""
    if head.signature is None or head.keyid is None:
        return None
    signed = Envelope(
        payloadType=HEAD_TYPE,
        payload=base64.b64encode(canonical_json(_place(head))).decode(),
        signatures=[Signature(keyid=head.keyid, sig=head.signature)],
    )
    try:
        verify_envelope(signed, HEAD_TYPE, trusted)
    except ArtifactError as error:
        return str(error)
    return None


def _place(head: AuditHead) -> Json:
    return {"server": head.server, "segment": head.segment, "sequence": head.sequence, "digest": head.digest}

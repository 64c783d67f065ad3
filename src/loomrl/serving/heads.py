"""Heads of audit chains as LoomDB keeps them: signed where this installation has a key, and checked when read.

A signature says that whoever holds the key saw the chain end so. Who rewrites a log, and its heads with it, would have
to sign the new ones.
"""

import base64

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from loomrl.errors import ArtifactError, ConfigError
from loomrl.files import canonical_json
from loomrl.loomdb.database import LoomDB
from loomrl.loomdb.records import AuditHead
from loomrl.serving.audit import Head
from loomrl.serving.verification import Anchor
from loomrl.signing import Envelope, Signature, sign_envelope, trusted_keys, verify_envelope

HEAD_TYPE = "application/vnd.loomrl.audit-head+json"


def anchor(db: LoomDB, head: Head) -> str | None:
    """Keep a head, signed where a key can be had; returns why it is not signed, if it is not.

    Raises:
        ServiceError: when LoomDB cannot be reached, or keeps another head for this place: the log was rewritten.
    """
    try:
        signature, unsigned = sign_envelope(_payload(head), HEAD_TYPE).signatures[0], None
    except (ConfigError, OSError) as error:
        signature, unsigned = None, str(error)
    signed = {} if signature is None else {"signature": signature.sig, "keyid": signature.keyid}
    db.anchor_audit_head(head.server, head.segment, head.sequence, head.digest, **signed)
    return unsigned


def anchors(db: LoomDB, server: str) -> list[Anchor]:
    """What a chain is held against: its heads, and what is wrong with their signatures."""
    trusted = trusted_keys()
    return [
        Anchor(head.sequence, head.digest, head.signature is not None, _fault(head, trusted))
        for head in db.audit_heads(server)
    ]


def _fault(head: AuditHead, trusted: dict[str, Ed25519PublicKey]) -> str | None:
    """Why a head's signature says nothing; None for a good one, and for none."""
    if head.signature is None or head.keyid is None:
        return None
    signed = Envelope(
        payloadType=HEAD_TYPE,
        payload=base64.b64encode(_payload(Head(head.server, head.segment, head.sequence, head.digest))).decode(),
        signatures=[Signature(keyid=head.keyid, sig=head.signature)],
    )
    try:
        verify_envelope(signed, HEAD_TYPE, trusted)
    except ArtifactError as error:
        return str(error)
    return None


def _payload(head: Head) -> bytes:
    return canonical_json(vars(head))

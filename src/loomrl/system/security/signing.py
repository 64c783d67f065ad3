"""Signed envelopes: DSSE (github.com/secure-systems-lab/dsse, protocol v1.0.0) with Ed25519 keys."""

import base64

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field

from loomrl.errors import ArtifactError
from loomrl.system.home import home
from loomrl.system.schema import Document
from loomrl.system.security.signing_keys import ED25519, key_id, private_key, trusted


class Signature(Document):
    """One signature; `keyid` is the SHA-256 of the raw public key and only a hint, as DSSE demands."""

    keyid: str
    sig: str  # base64


class Envelope(Document):
    """A DSSE envelope. Field names are those of the DSSE JSON format."""

    payloadType: str  # the DSSE field's own name
    payload: str  # base64
    signatures: list[Signature] = Field(min_length=1)


def sign_envelope(payload: bytes, payload_type: str) -> Envelope:
    """An envelope of bytes and their type, signed with this installation's key, which is made on first use.

    Raises:
        ConfigError: when `LOOMRL_SIGNING_KEY` names no Ed25519 private key.
    """
    key = signing_key()
    signature = key.sign(pre_authentication_encoding(payload_type, payload))
    return Envelope(
        payloadType=payload_type,
        payload=base64.b64encode(payload).decode(),
        signatures=[Signature(keyid=key_id(key.public_key()), sig=base64.b64encode(signature).decode())],
    )


def verify_envelope(envelope: Envelope, payload_type: str, trusted: dict[str, Ed25519PublicKey] | None = None) -> bytes:
    """The payload of an envelope, if a trusted key signed exactly it and its type.

    `trusted` holds public keys by their ids; None: those that this installation trusts.

    Raises:
        ArtifactError: when the type is another, no trusted key signed, or a byte was changed.
        ConfigError: when `LOOMRL_TRUSTED_KEYS` names no folder.
    """
    if envelope.payloadType != payload_type:
        raise ArtifactError(f"the envelope holds {envelope.payloadType!r}, expected {payload_type!r}")
    payload = _decode(envelope.payload, "payload")
    keys = trusted_keys() if trusted is None else trusted
    message = pre_authentication_encoding(envelope.payloadType, payload)
    known = [signature for signature in envelope.signatures if signature.keyid in keys]
    if not known:
        named = ", ".join(signature.keyid[:16] for signature in envelope.signatures)
        raise ArtifactError(
            f"the envelope is signed by {named}, which is not among the {len(keys)} trusted keys; if that key is "
            f"yours, put its public half into {home() / 'keys'}/"
        )
    for signature in known:
        try:
            keys[signature.keyid].verify(_decode(signature.sig, "signature"), message)
        except InvalidSignature:
            continue
        return payload
    raise ArtifactError(
        "the envelope's signature does not match its payload: it was changed after it was signed; "
        "run the life cycle again to sign a new one"
    )


def signature_fault(
    payload_type: str, payload: bytes, sig: str | None, keyid: str | None, trusted: dict[str, Ed25519PublicKey]
) -> str | None:
    """Why a signature (`sig`, base64, by the key `keyid`) that is kept beside what it covers says nothing, as a
    sentence.

    None for a good one, and where there is none: where both are None.
    """
    if sig is None and keyid is None:
        return None
    if sig is None or keyid is None:
        return "its signature is not whole: it was changed"
    signature = Signature(keyid=keyid, sig=sig)
    envelope = Envelope(payloadType=payload_type, payload=base64.b64encode(payload).decode(), signatures=[signature])
    try:
        verify_envelope(envelope, payload_type, trusted)
    except ArtifactError as error:
        return str(error)
    return None


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """DSSE's PAE: `DSSEv1 LEN(type) type LEN(payload) payload`, lengths in ASCII decimal bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def signing_key() -> Ed25519PrivateKey:
    """The Ed25519 private key of this installation, made on first use.

    Raises:
        ConfigError: when the file that should hold it does not.
    """
    key = private_key(ED25519)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def trusted_keys(unread: list[str] | None = None) -> dict[str, Ed25519PublicKey]:
    """Key id -> public key, of every Ed25519 key `*.pub.pem` in the trusted folders.

    Where `unread` is given, why a file there holds no public key is put into it, and the file is left out.

    Raises:
        ArtifactError: for a file there that holds no public key of a kind that signs here.
        ConfigError: when `LOOMRL_TRUSTED_KEYS` names no folder.
    """
    keys = {identity: one.key for identity, one in trusted(ED25519, unread).items()}
    return {identity: key for identity, key in keys.items() if isinstance(key, Ed25519PublicKey)}


def _decode(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ArtifactError(f"the envelope's {what} is not base64: {error}") from error

"""Signed envelopes: DSSE (github.com/secure-systems-lab/dsse, protocol v1.0.0) with Ed25519 keys.

The key is made on first use under `LOOMRL_HOME/keys`, readable by its owner only, or read from the PEM file that
`LOOMRL_SIGNING_KEY` names. Every public key under `LOOMRL_HOME/keys` is trusted, so an older key's envelopes stay
verifiable after the key was changed.
"""

import base64
import binascii
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from filelock import FileLock
from pydantic import Field

from loomrl.errors import ArtifactError, ConfigError
from loomrl.files import sha256, sync_folder, write_atomic
from loomrl.home import home
from loomrl.schema import Document

KEY_VARIABLE = "LOOMRL_SIGNING_KEY"


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
    """Sign bytes with this installation's key.

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
    """The payload, if a trusted key signed exactly it and its type.

    Raises:
        ArtifactError: when the type is another, no trusted key signed, or a byte was changed.
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


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """DSSE's PAE: `DSSEv1 LEN(type) type LEN(payload) payload`, lengths in ASCII decimal bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def key_id(key: Ed25519PublicKey) -> str:
    """SHA-256 of the 32 raw bytes of a public key."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return sha256(raw)


def signing_key() -> Ed25519PrivateKey:
    """The private key of this installation, made on first use.

    Raises:
        ConfigError: when the file that should hold it does not.
    """
    if configured := os.environ.get(KEY_VARIABLE):
        key = _read_private(Path(configured).expanduser())
        _publish(key.public_key())
        return key
    folder = _keys_folder()
    path = folder / "signing.pem"
    with FileLock(folder / "signing.lock", timeout=60):
        if not path.exists():
            _create_private(path)
        key = _read_private(path)
        _publish(key.public_key())
    return key


def trusted_keys() -> dict[str, Ed25519PublicKey]:
    """Key id -> public key, of every `*.pub.pem` under `LOOMRL_HOME/keys`."""
    keys = [_read_public(path) for path in sorted(_keys_folder().glob("*.pub.pem"))]
    return {key_id(key): key for key in keys}


def _keys_folder() -> Path:
    folder = home() / "keys"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _create_private(path: Path) -> None:
    """Write a new key: never readable by others, whole or absent."""
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)  # left by a process killed here before
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def _publish(key: Ed25519PublicKey) -> None:
    path = _keys_folder() / f"{key_id(key)[:16]}.pub.pem"
    if not path.exists():
        pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        write_atomic(path, pem)


def _read_private(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} holds no usable private key: {error}; restore it from a backup, or point {KEY_VARIABLE} to an "
            "unencrypted Ed25519 key (`openssl genpkey -algorithm ed25519`)"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds a {type(key).__name__}; {KEY_VARIABLE} must be an Ed25519 key")
    return key


def _read_public(path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ArtifactError(f"{path} holds no public key: {error}; restore it from a backup or remove it") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ArtifactError(f"{path} holds a {type(key).__name__}; only Ed25519 keys are trusted")
    return key


def _decode(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ArtifactError(f"the envelope's {what} is not base64: {error}") from error

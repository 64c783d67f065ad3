"""Envelopes that were changed, retyped or signed by a stranger are refused."""

import base64
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.security import signing
from loomrl.system.security.signing_keys import ED25519

TYPE = "application/vnd.loomrl.test+json"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path))
    monkeypatch.delenv(ED25519.variable, raising=False)


def test_pre_authentication_encoding_is_that_of_the_dsse_specification() -> None:
    # The example of the DSSE protocol document, and the byte (not character) lengths it demands.
    assert (
        signing.pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert signing.pre_authentication_encoding("é", "ü".encode()) == "DSSEv1 2 é 2 ü".encode()


def test_a_signed_payload_comes_back() -> None:
    envelope = signing.sign_envelope(b"payload", TYPE)
    assert signing.verify_envelope(envelope, TYPE) == b"payload"


def test_the_key_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    first = signing.key_id(signing.signing_key().public_key())
    assert signing.key_id(signing.signing_key().public_key()) == first
    assert (tmp_path / "keys" / "signing.pem").stat().st_mode & 0o777 == 0o600


def test_a_changed_payload_is_refused() -> None:
    envelope = signing.sign_envelope(b"payload", TYPE)
    forged = envelope.model_copy(update={"payload": base64.b64encode(b"Payload").decode()})
    with pytest.raises(ArtifactError, match="changed after it was signed"):
        signing.verify_envelope(forged, TYPE)


def test_every_changed_byte_of_the_signature_is_refused() -> None:
    envelope = signing.sign_envelope(b"payload", TYPE)
    raw = base64.b64decode(envelope.signatures[0].sig)
    for position in range(len(raw)):
        flipped = bytes(byte ^ (position == place) for place, byte in enumerate(raw))
        signature = envelope.signatures[0].model_copy(update={"sig": base64.b64encode(flipped).decode()})
        with pytest.raises(ArtifactError):
            signing.verify_envelope(envelope.model_copy(update={"signatures": [signature]}), TYPE)


def test_another_type_is_refused_even_when_the_envelope_claims_it() -> None:
    envelope = signing.sign_envelope(b"payload", TYPE)
    with pytest.raises(ArtifactError, match="expected 'other'"):
        signing.verify_envelope(envelope, "other")
    with pytest.raises(ArtifactError, match="changed after it was signed"):
        signing.verify_envelope(envelope.model_copy(update={"payloadType": "other"}), "other")


def test_a_strangers_key_is_refused() -> None:
    envelope = signing.sign_envelope(b"payload", TYPE)
    stranger = Ed25519PrivateKey.generate().public_key()
    with pytest.raises(ArtifactError, match="not among the 1 trusted keys"):
        signing.verify_envelope(envelope, TYPE, trusted={signing.key_id(stranger): stranger})


def test_a_stranger_that_borrows_a_trusted_key_id_is_refused() -> None:
    key_id = signing.key_id(signing.signing_key().public_key())
    message = signing.pre_authentication_encoding(TYPE, b"payload")
    signature = base64.b64encode(Ed25519PrivateKey.generate().sign(message)).decode()
    envelope = signing.Envelope(
        payloadType=TYPE,
        payload=base64.b64encode(b"payload").decode(),
        signatures=[signing.Signature(keyid=key_id, sig=signature)],
    )
    with pytest.raises(ArtifactError, match="changed after it was signed"):
        signing.verify_envelope(envelope, TYPE)


def test_envelopes_of_an_older_key_stay_verifiable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = signing.sign_envelope(b"payload", TYPE)
    _write_key(tmp_path / "new.pem", Ed25519PrivateKey.generate())
    monkeypatch.setenv(ED25519.variable, str(tmp_path / "new.pem"))
    new = signing.sign_envelope(b"payload", TYPE)
    assert new.signatures[0].keyid != old.signatures[0].keyid
    assert signing.verify_envelope(old, TYPE) == signing.verify_envelope(new, TYPE) == b"payload"


@pytest.mark.parametrize("kind", ["missing", "garbage", "elliptic curve"])
def test_an_unusable_configured_key_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.pem"
    if kind == "garbage":
        path.write_text("not a key")
    elif kind == "elliptic curve":
        _write_key(path, generate_private_key(SECP256R1()))
    monkeypatch.setenv(ED25519.variable, str(path))
    with pytest.raises(ConfigError, match=r"bad\.pem"):
        signing.sign_envelope(b"payload", TYPE)


def test_a_killed_first_use_leaves_no_half_key(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    handle = os.open(folder / "signing.new", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(handle, b"-----BEGIN PRI")
    os.close(handle)
    assert signing.verify_envelope(signing.sign_envelope(b"x", TYPE), TYPE) == b"x"
    assert not (folder / "signing.new").exists()


def _write_key(path: Path, key: object) -> None:
    pem = key.private_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(pem)

"""The keys that sign, and those that are trusted: plain PEM files under `LOOMRL_HOME/keys`.

Safety cases and audit heads are signed with Ed25519 (`loomrl.system.security.signing`); a version's files with a NIST
elliptic curve, the kind that the `model-signing` library takes (`loomrl.storage.model_signature`). A private key is
made on first use, readable by its owner only, or read from the PEM file that its variable names. Every public key
`*.pub.pem` in the folder, and in the one that `LOOMRL_TRUSTED_KEYS` names, is trusted for what its kind signs: an older
key's signatures stay verifiable after the key was changed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.files import sha256, sync_folder, write_atomic
from loomrl.system.home import home
from loomrl.system.locks import hold_lock

PUBLIC_SUFFIX = ".pub.pem"
TRUSTED_VARIABLE = "LOOMRL_TRUSTED_KEYS"  # a folder that may be read-only, such as one that Kubernetes mounts
PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey
PublicKey = Ed25519PublicKey | EllipticCurvePublicKey
_CURVES = (SECP256R1, SECP384R1, SECP521R1)  # those of the Sigstore bundle format


@dataclass(frozen=True)
class KeyKind:
    """One kind of key: what it signs, which variable names another one, and in which file its own lies."""

    signs: str  # as messages say it
    algorithm: str
    variable: str  # of the environment
    file: str  # in `LOOMRL_HOME/keys`
    command: str  # makes such a key by hand
    generate: Callable[[], PrivateKey]


@dataclass(frozen=True)
class TrustedKey:
    """A public key, and the file it stands in."""

    key: PublicKey
    path: Path


ED25519 = KeyKind(
    signs="safety cases",
    algorithm="Ed25519",
    variable="LOOMRL_SIGNING_KEY",
    file="signing.pem",
    command="openssl genpkey -algorithm ed25519",
    generate=Ed25519PrivateKey.generate,
)
ELLIPTIC = KeyKind(
    signs="versions",
    algorithm="NIST P-256, P-384 or P-521",
    variable="LOOMRL_MODEL_SIGNING_KEY",
    file="models.pem",
    command="openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256",
    generate=lambda: generate_private_key(SECP256R1()),
)


def private_key(kind: KeyKind) -> PrivateKey:
    """This installation's key of a kind, made on first use; its public half becomes trusted.

    Raises:
        ConfigError: when the file that should hold it does not.
        ArtifactError: when LOOMRL_HOME, or a key there, cannot be written.
    """
    path = private_path(kind)
    key = _read_private(path, kind)
    _publish(key.public_key())
    return key


def private_path(kind: KeyKind) -> Path:
    """The PEM file of this installation's key of a kind: the one that its variable names, which need not be there, else
    that under `LOOMRL_HOME/keys`, where a fresh key is written if there is none.

    Raises:
        OSError: when the key cannot be written.
        ServiceError: when another process makes it for more than a minute.
    """
    if configured := os.environ.get(kind.variable):
        return Path(configured).expanduser()
    path = keys_folder() / kind.file
    with hold_lock(path.with_suffix(".lock"), 60):
        if not path.exists():
            _create_private(path, kind.generate())
    return path


def trusted(kind: KeyKind, unread: list[str] | None = None) -> dict[str, TrustedKey]:
    """Key id -> public key of a kind, of every `*.pub.pem` in the trusted folders.

    Where `unread` is given, why a file there holds no public key is put into it, and the file is left out.

    Raises:
        ArtifactError: for a file there that holds no public key of any kind that is trusted.
        ConfigError: when `LOOMRL_TRUSTED_KEYS` names no folder.
    """
    paths = [path for folder in trusted_folders() for path in sorted(folder.glob(f"*{PUBLIC_SUFFIX}"))]
    found: dict[Path, PublicKey] = {}
    for path in paths:
        try:
            found[path] = read_public(path)
        except ArtifactError as error:
            if unread is None:
                raise
            unread.append(str(error))
    return {key_id(key): TrustedKey(key, path) for path, key in found.items() if kind_of(key) is kind}


def trusted_folders() -> list[Path]:
    """Where trusted public keys lie: `LOOMRL_HOME/keys`, and the folder that `LOOMRL_TRUSTED_KEYS` names.

    Raises:
        ConfigError: when it names no folder.
    """
    configured = os.environ.get(TRUSTED_VARIABLE)
    if not configured:
        return [keys_folder()]
    folder = Path(configured).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{TRUSTED_VARIABLE}={configured} is no folder; name one with the signers' *{PUBLIC_SUFFIX}")
    return [keys_folder(), folder]


def trust(path: Path) -> str:
    """Put the public key in a PEM file among the trusted ones; returns its id, 64 hex digits. Trusting it twice changes
    nothing.

    Raises:
        ArtifactError: when the file holds no public key of a kind that signs here.
    """
    return _publish(read_public(path))


def key_id(key: PublicKey) -> str:
    """What signatures call a key, 64 hex digits: SHA-256 of an Ed25519 key's 32 raw bytes, of an elliptic one's PEM
    text."""
    if isinstance(key, Ed25519PublicKey):
        return sha256(key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))
    return sha256(_public_pem(key))


def kind_of(key: object) -> KeyKind | None:
    """The kind a public key is of; None for one that signs nothing here."""
    if isinstance(key, Ed25519PublicKey):
        return ED25519
    return ELLIPTIC if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, _CURVES) else None


def keys_folder() -> Path:
    """The folder `LOOMRL_HOME/keys`, made where it is missing, with access for its owner alone.

    Raises:
        ArtifactError: when LOOMRL_HOME cannot be made or written.
    """
    folder = home() / "keys"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def read_public(path: Path) -> PublicKey:
    """The public key in a PEM file.

    Raises:
        ArtifactError: when it is missing, holds none, or one of a kind that signs nothing here.
    """
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ArtifactError(f"{path} holds no public key: {error}; restore it from a backup or remove it") from error
    if isinstance(key, PublicKey) and kind_of(key) is not None:
        return key
    kinds = f"{ED25519.algorithm} for {ED25519.signs}, {ELLIPTIC.algorithm} for {ELLIPTIC.signs}"
    raise ArtifactError(f"{path} holds a {type(key).__name__} of a kind that signs nothing here: {kinds}; remove it")


def _create_private(path: Path, key: PrivateKey) -> None:
    """Write a new key: never readable by others, whole or absent."""
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)  # left by a process killed here before
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def _publish(key: PublicKey) -> str:
    identity = key_id(key)
    path = keys_folder() / f"{identity[:16]}{PUBLIC_SUFFIX}"
    if not path.exists():
        write_atomic(path, _public_pem(key))
    return identity


def _public_pem(key: PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _read_private(path: Path, kind: KeyKind) -> PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} holds no usable private key: {error}; restore it from a backup, or point {kind.variable} to an "
            f"unencrypted key of {kind.algorithm} (`{kind.command}`)"
        ) from error
    if isinstance(key, PrivateKey) and kind_of(key.public_key()) is kind:
        return key
    raise ConfigError(
        f"{path} holds a {type(key).__name__}; {kind.variable} must name a key of {kind.algorithm} (`{kind.command}`)"
    )

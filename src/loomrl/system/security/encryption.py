"""Files of what was observed, encrypted where keys are configured: trajectories, episodes, checkpoints with replay.

AES-256-GCM in frames of 64 MiB, numbered and with the last one marked (Hoang et al., Online authenticated-encryption
and its nonce-reuse misuse-resistance, 2015: STREAM). Each file has a key of its own, derived from the configured one
and a MAC of the content: no nonce is ever used twice, and equal content under equal keys gives equal bytes, as DVC
needs. A reader without the key sees that much: which files are equal, and how long they are.

Keys are lines or comma-separated entries `ID:BASE64` of 32 bytes, in `LOOMRL_DATA_KEYS` or in the file that
`LOOMRL_DATA_KEYS_FILE` names. The first one encrypts, all decrypt: to rotate, put a new one in front and keep the rest.
"""

import base64
import binascii
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.files import atomic_path

KEYS, KEYS_FILE = "LOOMRL_DATA_KEYS", "LOOMRL_DATA_KEYS_FILE"
_MAGIC = b"LOOMRL-SEALED-1\n"
_FRAME, _TAG, _SALT = 64 << 20, 16, 32


@dataclass(frozen=True)
class Keyring:
    """Encryption keys, 32 bytes each, by id; `active` is the id of the one that encrypts, all decrypt."""

    keys: dict[str, bytes]
    active: str


def keyring() -> Keyring | None:
    """The configured keys; None where none are, and nothing is encrypted.

    Raises:
        ConfigError: for keys that cannot be read, naming the entry and never the key.
    """
    text, place = os.environ.get(KEYS, "").strip(), KEYS
    if not text and (path := os.environ.get(KEYS_FILE)):
        place = f"{KEYS_FILE}={path}"
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{place}: {error}; without its keys nothing may be written") from error
    entries = [entry.strip() for entry in text.replace(",", "\n").splitlines() if entry.strip()]
    if not entries and (text or place != KEYS):
        raise ConfigError(f"{place} holds no key; `loomrl keys new ID` makes one")
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(entries, start=1):
        name, key = _read_entry(entry, f"{place}, entry {number}")
        if name in keys:
            raise ConfigError(f"{place}: two keys have the id {name!r}")
        keys[name] = key
    return Keyring(keys, next(iter(keys))) if keys else None


def new_entry(name: str) -> str:
    """A fresh random key as the entry `ID:BASE64`, which `LOOMRL_DATA_KEYS` takes.

    Raises:
        ConfigError: for an id that is not of 1 to 64 ASCII characters.
    """
    entry = f"{name}:{base64.b64encode(AESGCM.generate_key(256)).decode()}"
    _read_entry(entry, f"id {name!r}")
    return entry


def write_private(path: Path, data: bytes) -> None:
    """Write bytes to `path`, all or none, encrypted where keys are configured; then no plain text touches the disk.

    Raises:
        ConfigError: when the configured keys cannot be read; nothing is written.
        ArtifactError: when the file cannot be written; a former one stays.
    """
    ring = keyring()
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for part in [data] if ring is None else _sealed(data, ring):
            file.write(part)


def is_encrypted(path: Path) -> bool:
    """Whether a file begins as encrypted ones do; raises `OSError` where it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def key_of(path: Path) -> str:
    """The id of the key that an encrypted file's header names; what it gives for another file means nothing.

    Raises:
        OSError: when the file cannot be read.
    """
    with path.open("rb") as file:
        return _key_name(file.read(len(_MAGIC) + 1 + 255))


def read_private(path: Path) -> bytes:
    """A file's bytes, decrypted where it is encrypted.

    Raises:
        ConfigError: when its key is not configured.
        ArtifactError: when it was changed.
        OSError: when it cannot be read.
    """
    data = path.read_bytes()
    return _opened(data, path) if data.startswith(_MAGIC) else data


def _read_entry(entry: str, place: str) -> tuple[str, bytes]:
    name, _, text = entry.partition(":")
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not name.isascii() or not 1 <= len(name) <= 64 or len(key) != 32:
        raise ConfigError(f"{place}: write ID:KEY, a key being 32 bytes in base64; `loomrl keys new ID` makes one")
    return name, key


def _sealed(data: bytes, ring: Keyring) -> Iterator[bytes]:
    """The header, then the frames."""
    key, name = ring.keys[ring.active], ring.active.encode()
    mac = hmac.HMAC(_derived(key, b"", b"loomrl salt"), hashes.SHA256())
    mac.update(data)
    salt = mac.finalize()
    header = _MAGIC + bytes([len(name)]) + name + salt
    cipher = AESGCM(_derived(key, salt, b"loomrl file"))
    yield header
    view, last = memoryview(data), max(len(data) - 1, 0) // _FRAME
    for number in range(last + 1):
        yield cipher.encrypt(_nonce(number, number == last), view[number * _FRAME : (number + 1) * _FRAME], header)


def _opened(data: bytes, path: Path) -> bytes:
    start, name = len(_MAGIC) + 1, _key_name(data)
    ring = keyring()
    if ring is None or name not in ring.keys:
        raise ConfigError(f"{path} is encrypted with the key {name!r}, which is not among {KEYS}; add it there")
    end = start + len(name) + _SALT
    header, body = data[:end], memoryview(data)[end:]
    cipher = AESGCM(_derived(ring.keys[name], data[end - _SALT : end], b"loomrl file"))
    size = _FRAME + _TAG
    last = max(len(body) - 1, 0) // size
    try:
        frames = [
            cipher.decrypt(_nonce(number, number == last), body[number * size : (number + 1) * size], header)
            for number in range(last + 1)
        ]
    except (InvalidTag, ValueError) as error:
        raise ArtifactError(f"{path} was changed, or {name!r} is another key now: it cannot be decrypted") from error
    return frames[0] if len(frames) == 1 else b"".join(frames)


def _key_name(data: bytes) -> str:
    start = len(_MAGIC) + 1
    return data[start : start + (data[len(_MAGIC)] if len(data) > len(_MAGIC) else 0)].decode("ascii", "replace")


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _derived(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt, purpose).derive(key)

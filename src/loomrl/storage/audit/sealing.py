"""Observations in the log, encrypted at rest where keys are configured (`loomrl.system.security.encryption`).

AES-256-GCM. Each segment has a key of its own, derived from the configured one and the segment's salt; the nonce counts
what was sealed under it, a record that could not be written included, so none is used twice. The salt and the record's
sequence are authenticated with it: what is sealed opens in its own place only. Everything a reader needs but the key
stands beside it, so the chain is verified without any key, and every other field is read.

A sealed record has no `observation_digest`, which would tell one of few observations; opened, it has one again.
"""

import base64
import os
import secrets
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from loomrl.errors import ArtifactError, ConfigError
from loomrl.storage.audit import arrays
from loomrl.system.files import sha256
from loomrl.system.security.encryption import KEYS, KEYS_FILE, Keyring, keyring

_SALT, _NONCE = 16, 12


class Sealer:
    """Encrypts what was observed in the decisions of one segment; `key_id` names the configured key it derives its own
    of."""

    def __init__(self, ring: Keyring) -> None:
        self.key_id, self._salt = ring.active, base64.b64encode(secrets.token_bytes(_SALT)).decode()
        self._cipher = _cipher(ring.keys[ring.active], self._salt)
        self._num_sealed = 0

    def seal(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A copy of a record, which has its `sequence`, with the observation encrypted; the record itself without one.

        A record of one decision loses its `observation_digest`.
        """
        columns = entry.get("columns")
        observed = entry.get("observation") if columns is None else columns.get("observation")
        if observed is None:
            return entry
        array = arrays.from_json(observed) if arrays.is_array(observed) else np.asarray(observed)
        sealed = self._sealed(array, entry["sequence"])
        if columns is None:
            return entry | {"observation": sealed, "observation_digest": None}
        rest = {name: values for name, values in columns.items() if name != "observation"}
        return entry | {"shared": entry["shared"] | {"observation": sealed}, "columns": rest}

    def _sealed(self, observed: np.ndarray[Any, Any], sequence: int) -> dict[str, Any]:
        nonce = self._num_sealed
        self._num_sealed += 1
        data = self._cipher.encrypt(nonce.to_bytes(_NONCE, "big"), observed.tobytes(), _place(self._salt, sequence))
        return {
            "sealed": base64.b64encode(data).decode(),
            "key": self.key_id,
            "salt": self._salt,
            "nonce": nonce,
            "dtype": observed.dtype.str,
            "shape": observed.shape,
        }


def opened(entry: dict[str, Any]) -> dict[str, Any]:
    """A record with what was observed in the clear, as it stands in a log that is not sealed.

    A record whose key is not here stays as it is.

    Raises:
        ArtifactError: when what is sealed was changed, or sealed for another place.
        ConfigError: when the configured keys cannot be read.
    """
    several = "columns" in entry
    sealed: Any = (entry["shared"] if several else entry).get("observation")
    key = _key(sealed["key"]) if is_sealed(sealed) else None
    if key is None:
        return entry
    plain = _opened(sealed, key, entry["sequence"])
    observed = np.frombuffer(plain, sealed["dtype"]).reshape(sealed["shape"])
    if not several:
        return entry | {"observation": arrays.numbers(observed[()]), "observation_digest": sha256(plain)}
    shared = {name: value for name, value in entry["shared"].items() if name != "observation"}
    return entry | {"shared": shared, "columns": entry["columns"] | {"observation": arrays.to_json(observed)}}


def is_sealed(observation: Any) -> bool:
    """Whether an observation is sealed; that of a record from `opened` only where no key here opens it."""
    return isinstance(observation, dict)


def require_opened(entry: dict[str, Any]) -> None:
    """Refuse a decision whose observation cannot be read.

    Raises:
        ConfigError: when it is sealed, naming the key that opens it.
    """
    if is_sealed(entry["observation"]):
        raise ConfigError(
            f"what decision {entry['decision_id']} observed is sealed with the key {entry['observation']['key']!r}, "
            f"which is not among {KEYS}; add it there"
        )


def _opened(sealed: dict[str, Any], key: bytes, sequence: int) -> bytes:
    nonce, data = sealed["nonce"].to_bytes(_NONCE, "big"), base64.b64decode(sealed["sealed"])
    try:
        return _cipher(key, sealed["salt"]).decrypt(nonce, data, _place(sealed["salt"], sequence))
    except InvalidTag as error:
        raise ArtifactError(
            f"what record {sequence} observed cannot be opened: it was changed, or {sealed['key']!r} is another key now"
        ) from error


def _place(salt: str, sequence: int) -> bytes:
    return b"%b/%d" % (salt.encode(), sequence)


@lru_cache(maxsize=64)
def _cipher(key: bytes, salt: str) -> AESGCM:
    return AESGCM(HKDF(hashes.SHA256(), 32, base64.b64decode(salt), b"loomrl audit").derive(key))


def _key(key_id: str) -> bytes | None:
    ring = _keyring(os.environ.get(KEYS), os.environ.get(KEYS_FILE))
    return None if ring is None else ring.keys.get(key_id)


@lru_cache(maxsize=4)
def _keyring(keys: str | None, path: str | None) -> Keyring | None:  # noqa: ARG001 - what the cache goes by
    """The configured keys, read once for the same settings: every record asks for them."""
    return keyring()

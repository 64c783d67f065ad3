"""The signature of a version's files: `model.sig`, a Sigstore bundle that the `model-signing` library makes and checks.

It covers every file of the folder but itself and `SHA256SUMS` (whose digest the registry holds), offline, with a plain
elliptic key (`loomrl.system.security.signing_keys`). Among what is signed is `manifest.json`, which names the
policy: files that were signed as another policy's do not pass as this one's. `model_signing verify key FOLDER
--signature FOLDER/model.sig --ignore-paths FOLDER/SHA256SUMS --public_key KEY` checks the same without LoomRL.
"""

import json
from pathlib import Path
from typing import Any

from loomrl.errors import ArtifactError
from loomrl.system.files import SUMS, files_below, sha256_file
from loomrl.system.security.signing_keys import ELLIPTIC, key_id, private_key, private_path, trusted, trusted_folders
from loomrl.types import TORCH_FILES, PolicyManifest, TorchFormat

SIGNATURE = "model.sig"
_MANIFEST = "manifest.json"
_KINDS = (".onnx", ".json", ".safetensors", ".parquet")  # plain data, read by parsers that run no code
_NAMES = (SIGNATURE, SUMS, "MLmodel")


def sign(folder: Path, policy: str) -> str:
    """Sign all files of a policy's folder with this installation's key; returns the key's id, 64 hex digits.

    The signature is the file `model.sig` in the folder.

    Raises:
        ArtifactError: when a file is of a kind that no version holds, the manifest names another policy, or a file that
            it lists is missing or another one.
        ConfigError: when `LOOMRL_MODEL_SIGNING_KEY` names no usable key.
    """
    from model_signing import signing

    _check_kinds(folder)
    _check_policy(folder, policy)
    _check_formats(folder)
    key, path = private_key(ELLIPTIC), private_path(ELLIPTIC)
    signer = signing.Config().use_elliptic_key_signer(private_key=path).set_hashing_config(_signed_files())
    signer.sign(folder, folder / SIGNATURE)
    return key_id(key.public_key())


def is_signed(folder: Path) -> bool:
    """Whether the folder holds a signature, `model.sig`, whatever it says."""
    return (folder / SIGNATURE).is_file()


def verify(folder: Path, policy: str) -> str:
    """Check that a trusted key signed exactly these files, as this policy's; returns the key's id, 64 hex digits.

    Raises:
        ArtifactError: when there is no signature, the key is a stranger's, a file was changed, added or lost since, one
            is of a kind that no version holds, or the files are another policy's.
        ConfigError: when `LOOMRL_TRUSTED_KEYS` names no folder.
    """
    from model_signing import verifying

    _check_kinds(folder)
    signer = _signer(folder)
    keys = trusted(ELLIPTIC)
    if signer not in keys:
        raise ArtifactError(
            f"{folder / SIGNATURE} is by the key {signer[:16]}, which is not among the {len(keys)} trusted keys in "
            f"{' and '.join(map(str, trusted_folders()))}; if that key is yours, `loomrl keys trust FILE` with its "
            "public half"
        )
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=keys[signer].path)
    try:
        verifier.set_hashing_config(_signed_files()).verify(folder, folder / SIGNATURE)
    except Exception as error:  # the library lets through whatever its parsers raise for a file that was tampered with
        raise ArtifactError(
            f"{folder}: its files are not those that {SIGNATURE} was made for: {str(error) or type(error).__name__}"
        ) from error
    _check_policy(folder, policy)
    return signer


def _signed_files() -> Any:
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE, SUMS], ignore_git_paths=False)


def _signer(folder: Path) -> str:
    """The id of the key that a signature says it is by."""
    path = folder / SIGNATURE
    try:
        return str(json.loads(path.read_text("utf-8"))["verificationMaterial"]["publicKey"]["hint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} cannot be read as a signature by a key: {error!r}") from error


def _check_kinds(folder: Path) -> None:
    """Refuse pickles, archives, libraries, scripts: what could run code when it is read. The policy in torch's formats
    may stand where the manifest lists it: no server reads it, and other programs read it when they choose to."""
    for path in files_below(folder):
        if path.suffix not in _KINDS and path.name not in _NAMES and not _is_listed(path, folder):
            raise ArtifactError(
                f"{path} is of a kind that no version holds ({', '.join(_KINDS)}); remove it and register again"
            )


def _is_listed(path: Path, folder: Path) -> bool:
    """Whether a file has the place of one of torch's formats, and the folder's manifest lists it as that."""
    return any(path == folder / TORCH_FILES[one] for one in _listed(folder))


def _listed(folder: Path) -> dict[TorchFormat, str]:
    """The formats of torch that a manifest lists under their own file's name, with its SHA-256."""
    stated = PolicyManifest.read(folder / _MANIFEST).formats
    found = {one: stated[one] for one in TORCH_FILES if one in stated}
    return {one: str(told.get("sha256")) for one, told in found.items() if told.get("file") == TORCH_FILES[one]}


def _check_formats(folder: Path) -> None:
    """What the manifest lists is there, and is what was compared with the network."""
    for one, digest in _listed(folder).items():
        path = folder / TORCH_FILES[one]
        if not path.is_file() or sha256_file(path) != digest:
            raise ArtifactError(f"{path} is not the file that {_MANIFEST} lists; run the export stage again")


def _check_policy(folder: Path, policy: str) -> None:
    named = PolicyManifest.read(folder / _MANIFEST).name
    if named != policy:
        raise ArtifactError(f"{folder / _MANIFEST} names the policy {named!r}: it does not pass as {policy!r}")

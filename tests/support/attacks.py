"""What an attacker, or a bad disk, may do to a registered version; each way is drawn from a seed.

Those on the store change files alone. Those on the registry also rewrite `SHA256SUMS` and the version's tags to fit, so
that nothing but the signature stands against them.
"""

import base64
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from model_signing import hashing, signing

from loomrl.serving.policy.model import GRAPH, MANIFEST
from loomrl.storage.model_signature import SIGNATURE
from loomrl.storage.registry import Registry, export_digest, local_source
from loomrl.storage.registry.files import DIGEST, SUMS_DIGEST
from loomrl.system.files import SUMS, sha256, sha256_file, write_sums
from tests.support.policies import discrete_folder

_NOT_SIGNED = (SIGNATURE, SUMS)


@dataclass(frozen=True)
class Loot:
    """What an attacker has: signed files of another version and of another policy, a key of his own."""

    version: Path
    policy: Path
    key: Path
    sentinel: Path  # appears where somebody unpickles what he left


class Payload:
    """Touches the sentinel when it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.sentinel,)


Change = Callable[[Path, Loot, np.random.Generator], object]


def _one_of(folder: Path, rng: np.random.Generator, without: tuple[str, ...] = ()) -> Path:
    paths = sorted(path for path in folder.iterdir() if path.name not in without)
    return paths[rng.integers(len(paths))]


def _flipped(data: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(data)))
    return data[:place] + bytes([data[place] ^ 1 << int(rng.integers(8))]) + data[place + 1 :]


def flip_any(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    path = _one_of(folder, rng)
    path.write_bytes(_flipped(path.read_bytes(), rng))


def flip_signed(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    path = _one_of(folder, rng, without=_NOT_SIGNED)
    path.write_bytes(_flipped(path.read_bytes(), rng))


def truncate(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    path = _one_of(folder, rng)
    data = path.read_bytes()
    path.write_bytes(data[: rng.integers(len(data))])


def add_data(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    suffix = (".json", ".onnx", ".safetensors", ".parquet")[rng.integers(4)]
    (folder / f"extra-{rng.integers(1_000)}{suffix}").write_bytes(rng.bytes(64))


def add_pickle(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    suffix = (".pkl", ".pt", ".npy", ".joblib", ".bin")[rng.integers(5)]
    (folder / f"weights{suffix}").write_bytes(pickle.dumps(Payload(loot.sentinel)))


def lose_any(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    _one_of(folder, rng).unlink()


def lose_descriptor(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    (folder / "MLmodel").unlink()


def pickle_for_graph(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    """A payload where the graph should be, and a manifest that names it."""
    (folder / GRAPH).write_bytes(pickle.dumps(Payload(loot.sentinel)))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"onnx_sha256": sha256_file(folder / GRAPH)}))


def other_version(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    _replace(folder, loot.version)


def other_policy(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    _replace(folder, loot.policy)


def replay_signature(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    shutil.copy2(loot.version / SIGNATURE, folder / SIGNATURE)


def sign_by_stranger(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    files = hashing.Config().set_ignored_paths(paths=[SIGNATURE, SUMS], ignore_git_paths=False)
    signer = signing.Config().use_elliptic_key_signer(private_key=loot.key).set_hashing_config(files)
    signer.sign(folder, folder / SIGNATURE)


def sign_under_our_name(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    ours = _bundle(folder)["verificationMaterial"]
    sign_by_stranger(folder, loot, rng)
    _write_bundle(folder, _bundle(folder) | {"verificationMaterial": ours})


def pickle_signed_by_stranger(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    pickle_for_graph(folder, loot, rng)
    sign_by_stranger(folder, loot, rng)


def flip_signature(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    """A bit of the signature itself: some of the text around it means nothing."""
    bundle = _bundle(folder)
    (signature,) = bundle["dsseEnvelope"]["signatures"]
    signature["sig"] = base64.b64encode(_flipped(base64.b64decode(signature["sig"]), rng)).decode()
    _write_bundle(folder, bundle)


def change_statement(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    """Another graph, and a statement that names it, under the signature of before."""
    shutil.copy2(loot.version / GRAPH, folder / GRAPH)
    bundle = _bundle(folder)
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    for resource in statement["predicate"]["resources"]:
        resource["digest"] = sha256_file(folder / resource["name"])
    digests = b"".join(bytes.fromhex(resource["digest"]) for resource in statement["predicate"]["resources"])
    statement["subject"][0]["digest"]["sha256"] = sha256(digests)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    _write_bundle(folder, bundle)


def unsign(folder: Path, loot: Loot, rng: np.random.Generator) -> None:
    (folder / SIGNATURE).unlink()


ON_STORE: dict[str, Change] = {
    "bit flip": flip_any,
    "truncated file": truncate,
    "extra file": add_data,
    "extra pickle": add_pickle,
    "lost file": lose_any,
    "pickle payload": pickle_for_graph,
    "another version's files": other_version,
    "another policy's files": other_policy,
    "no signature": unsign,
    "wrong key": sign_by_stranger,
}
ON_REGISTRY: dict[str, Change] = {
    "bit flip, registry rewritten": flip_signed,
    "extra file, registry rewritten": add_data,
    "extra pickle, registry rewritten": add_pickle,
    "lost file, registry rewritten": lose_descriptor,
    "pickle payload, registry rewritten": pickle_for_graph,
    "pickle payload, wrong key": pickle_signed_by_stranger,
    "wrong key, registry rewritten": sign_by_stranger,
    "wrong key under our id": sign_under_our_name,
    "replayed signature": replay_signature,
    "replayed policy": other_policy,
    "bit flip in the signature": flip_signature,
    "changed statement": change_statement,
    "no signature, registry rewritten": unsign,
}
ATTACKS = {**ON_STORE, **ON_REGISTRY}


class Target:
    """A registered version that is attacked and put right again."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        self.registry = registry
        self.loot = _loot(registry, folder)
        self.version = registry.register("cartpole", discrete_folder(folder / "target", value=99.0), "run-target")
        self._files = _files(self.version)
        self._whole = Path(shutil.copytree(self._files, folder / "whole"))

    def attack(self, name: str, rng: np.random.Generator) -> None:
        """Change the version as that attack does."""
        ATTACKS[name](self._files, self.loot, rng)
        if name in ON_REGISTRY:
            write_sums(self._files)
            self.registry.set_tag(self.version, SUMS_DIGEST, sha256_file(self._files / SUMS))
            self.registry.set_tag(self.version, DIGEST, export_digest(self._files))

    def restore(self) -> None:
        """Files and tags as they were registered."""
        _replace(self._files, self._whole)
        for tag in (SUMS_DIGEST, DIGEST):
            self.registry.set_tag(self.version, tag, self.version.tags[tag])


def _loot(registry: Registry, folder: Path) -> Loot:
    key = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "stranger.pem").write_bytes(key)
    return Loot(
        version=_files(registry.register("cartpole", discrete_folder(folder / "other", value=98.0), "run-other")),
        policy=_files(registry.register("hopper", discrete_folder(folder / "hopper", name="hopper"), "run-hopper")),
        key=folder / "stranger.pem",
        sentinel=folder / "unpickled",
    )


def _files(version: Any) -> Path:
    source = local_source(version)
    assert source is not None
    return source


def _replace(folder: Path, source: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(source, folder)


def _bundle(folder: Path) -> dict[str, Any]:
    return json.loads((folder / SIGNATURE).read_text())


def _write_bundle(folder: Path, bundle: dict[str, Any]) -> None:
    (folder / SIGNATURE).write_text(json.dumps(bundle))

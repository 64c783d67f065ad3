"""Immutable, content-addressed snapshots of environments.

A folder with three files:
    snapshot.json          spec, digests, dependency versions; its own `digest` covers all of it
    source.tar             the code, equal content giving equal bytes
    dynamics.safetensors   the seeded rollouts the fingerprint was taken of
Nothing in them names a path, a time or a machine, so the same environment gives the same bytes everywhere.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
from safetensors.numpy import save

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.construct import construct
from loomrl.environment.resolve import Definition, parameters, resolve
from loomrl.environment.snapshots.fingerprint import (
    FILE,
    TOLERANCE,
    Rollouts,
    arithmetic_digest,
    exact_digest,
    record_rollouts,
    toleranced_digest,
)
from loomrl.environment.snapshots.repeat import prove_repeatable
from loomrl.environment.sources.source import ARCHIVE, build_archive
from loomrl.environment.spaces import space_to_json
from loomrl.environment.wrappers.stacking import frame_space
from loomrl.errors import ArtifactError
from loomrl.system.files import canonical_json, sha256, sha256_file, write_atomic
from loomrl.types import DynamicsFingerprint, EnvironmentSnapshot, EnvironmentSpec

DOCUMENT = "snapshot.json"


def take_snapshot(config: EnvironmentConfig, project: Path, folder: Path) -> EnvironmentSnapshot:
    """Snapshot the environment a config names into `folder`.

    Raises:
        ConfigError: when the environment is unknown or cannot be imported, or its archive does not run on its own.
        EnvironmentFault: when it breaks the Gymnasium API, or an episode depends on more than its seed and actions.
        ServiceError: when LoomDB, where the environment may be registered, cannot be reached.
        ArtifactError: when a file cannot be written. Its document is written last: without it there is no snapshot.
    """
    definition = resolve(config, project)
    archive = build_archive(definition.source.locations)
    rollouts, spec = _observe(definition, config)
    prove_repeatable(definition, archive, rollouts)
    data = save(rollouts)
    content = {
        "spec": spec,
        "source_digest": sha256(archive),
        "source_root": definition.source.roots[0],
        "source_roots": definition.source.roots,
        "dependencies": definition_dependencies(definition),
        "dynamics": fingerprint(rollouts, sha256(data)),
    }
    unsigned = EnvironmentSnapshot(digest="", **content)
    snapshot = unsigned.model_copy(update={"digest": content_digest(unsigned)})
    write_atomic(folder / ARCHIVE, archive)
    write_atomic(folder / FILE, data)
    snapshot.write(folder / DOCUMENT)
    return snapshot


def _observe(definition: Definition, config: EnvironmentConfig) -> tuple[Rollouts, EnvironmentSpec]:
    with closing(construct(definition)) as env:
        rollouts = record_rollouts(env, config.fingerprint_episodes, config.fingerprint_steps)
        return rollouts, describe(definition, env)


def describe(definition: Definition, env: gymnasium.Env[Any, Any]) -> EnvironmentSpec:
    """The `EnvironmentSpec` of a constructed environment and its definition.

    Raises:
        ConfigError: for a kind of space whose elements have no fixed size.
    """
    frame = frame_space(env)
    return EnvironmentSpec(
        name=definition.name,
        version=definition.version,
        **parameters(definition),
        frame=None if frame is None else space_to_json(frame),
        observation=space_to_json(env.observation_space),
        action=space_to_json(env.action_space),
    )


def definition_dependencies(definition: Definition) -> dict[str, str]:
    """Versions of the distributions that a definition's code needs, by name."""
    from loomrl.environment.sources.dependencies import dependency_versions

    source = definition.source
    return dependency_versions(source.locations, source.entry_point.partition(":")[0])


def fingerprint(rollouts: Rollouts, file_digest: str) -> DynamicsFingerprint:
    """Digest rollouts; `file_digest` is the SHA-256 of the file they are kept in."""
    return DynamicsFingerprint(
        num_episodes=len(rollouts["length"]),
        num_steps=len(rollouts["reward"]),
        exact=exact_digest(rollouts),
        toleranced=toleranced_digest(rollouts),
        tolerance=TOLERANCE,
        arithmetic=arithmetic_digest(),
        rollouts=file_digest,
    )


def content_digest(snapshot: EnvironmentSnapshot) -> str:
    """SHA-256, in hex, over the canonical JSON of all fields but `digest`."""
    content = snapshot.to_json()
    del content["digest"]
    return sha256(canonical_json(content))


def load_snapshot(folder: Path) -> EnvironmentSnapshot:
    """Read a snapshot and check it whole, the source and the rollouts included.

    Raises:
        ArtifactError: naming the file that is missing or was changed.
    """
    path = folder / DOCUMENT
    snapshot = EnvironmentSnapshot.read(path)
    if content_digest(snapshot) != snapshot.digest or path.read_bytes() != snapshot.to_bytes():
        raise ArtifactError(f"{path} was changed after the snapshot was taken; {_FIX}")
    for name, recorded in ((ARCHIVE, snapshot.source_digest), (FILE, snapshot.dynamics.rollouts)):
        if sha256_file(folder / name) != recorded:
            raise ArtifactError(f"{folder / name} was changed after the snapshot was taken; {_FIX}")
    return snapshot


_FIX = "restore it with `loomrl env restore` or `dvc checkout`, or take the snapshot again"

"""What has changed since a snapshot was taken."""

import io
import tarfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.construct import construct
from loomrl.environment.make import restored_definition
from loomrl.environment.resolve import Definition, parameters, ranges_of, resolve, shield_of
from loomrl.environment.snapshots.fingerprint import (
    FILE,
    PREFIX_STEPS,
    Deviation,
    Rollouts,
    arithmetic_digest,
    beginnings,
    compare,
    exact_digest,
    first_difference,
    read_rollouts,
    replay_rollouts,
)
from loomrl.environment.snapshots.releases import kept_under, patched
from loomrl.environment.snapshots.snapshot import definition_dependencies, load_snapshot
from loomrl.environment.sources.source import ARCHIVE, build_archive
from loomrl.environment.spaces import space_to_json
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.system.files import sha256
from loomrl.system.schema import Document
from loomrl.types import EnvironmentSnapshot

ASPECTS = ("source", "parameters", "spaces", "dependencies", "dynamics")


class VerifyReport(Document):
    """One sentence for each change, under what changed; nothing changed where all five are empty.

    `largest_deviation` is that of the replayed rollouts, relative to 1 + the recorded magnitude; 0 means equal to the
    bit, None that they could not be compared; on another processor family it is that of the episodes' beginnings.
    Other patch releases of dependencies are no change where they are equal to the bit
    (`loomrl.environment.snapshots.releases`).
    `remarks` say what is not a change.
    """

    digest: str
    name: str
    version: str
    source: list[str]
    parameters: list[str]
    spaces: list[str]
    dependencies: list[str]
    dynamics: list[str]
    largest_deviation: float | None = None
    remarks: list[str]

    @property
    def changed(self) -> list[str]:
        """The names of the aspects in which the environment differs from the snapshot, in the order of `ASPECTS`."""
        return [aspect for aspect in ASPECTS if getattr(self, aspect)]

    @property
    def unchanged(self) -> bool:
        """Whether the environment differs from the snapshot in no aspect."""
        return not self.changed


def verify_snapshot(folder: Path, project: Path, config: EnvironmentConfig | None = None) -> VerifyReport:
    """Compare a snapshot with the environment as it is here and now.

    The environment is found as `config` says. Without one: a snapshot in `artifacts/POLICY/environment` belongs to
    `configs/POLICY.yaml`. What a config resolves to is what the environment stage would take now, so a registered
    version is LoomDB's immutable copy of it. Any other snapshot is looked up by its name and version, and by its entry
    point, and compared with the code where it is being worked on.

    The dynamics are those of the current source and the installed packages: the recorded actions are replayed and the
    outcomes compared: all to the bit where this machine computes with the same bits, else the first steps of each
    episode, within the tolerance. Code that this process imported earlier is what runs, whatever lies on disk now:
    verify in a fresh process, as the command does.

    Raises:
        ArtifactError: when the snapshot itself is missing or was changed. What is wrong with the environment is told in
            the report.
    """
    snapshot = load_snapshot(folder)
    found: dict[str, list[str]] = {aspect: [] for aspect in ASPECTS}
    remarks: list[str] = []
    try:
        config = config or _config_of(folder.resolve(), project.resolve())
        definition = _current(snapshot, project, config)
        remarks += _unregistered_changes(config, project, definition)
        found["source"] = _source_changes(folder, snapshot, definition)
        found["parameters"] = _parameter_changes(snapshot, definition)
    except ConfigError as error:
        found["source"] = [f"the current source cannot be loaded: {error}"]
        remarks.append("dynamics and dependencies were judged with the archived source")
        definition = restored_definition(folder)
    largest = _observe(snapshot, folder, definition, found, remarks)
    found["dependencies"] = _dependency_changes(snapshot, definition_dependencies(definition), largest, remarks)
    spec = snapshot.spec
    return VerifyReport(
        digest=snapshot.digest,
        name=spec.name,
        version=spec.version,
        largest_deviation=largest if largest is None or np.isfinite(largest) else None,
        remarks=remarks,
        **found,
    )


def _current(snapshot: EnvironmentSnapshot, project: Path, config: EnvironmentConfig | None) -> Definition:
    if config is not None:
        return resolve(config, project)
    spec = snapshot.spec
    # Parameters come from the registration; those a config overrode when the snapshot was taken show as changed.
    by_name = EnvironmentConfig(
        id=spec.name,
        version=spec.version,
        kwargs=spec.kwargs,
        frame_stack=spec.frame_stack,
        randomize=ranges_of(spec),
        shield=shield_of(spec),
    )
    try:
        return resolve(by_name, project, live=True)
    except ConfigError as unknown:
        own = {name: getattr(spec, name) for name in ("entry_point", "max_episode_steps", "reward_threshold")}
        try:
            return resolve(by_name.model_copy(update=own), project)
        except ConfigError as error:
            raise ConfigError(f"by its name: {unknown}; by its entry point: {error}") from error


def _unregistered_changes(config: EnvironmentConfig | None, project: Path, definition: Definition) -> list[str]:
    """A policy keeps running what was registered, also while its author works on the next version."""
    if config is None:
        return []
    try:
        live = resolve(config, project, live=True)
    except ConfigError as error:
        return [f"the code {config.id} was registered from cannot be loaded any more: {error}"]
    if build_archive(live.source.locations) == build_archive(definition.source.locations):
        return []
    return [f"the code of {config.id} has changed since it was registered; register it under a new version to use it"]


def _config_of(folder: Path, project: Path) -> EnvironmentConfig | None:
    from loomrl.runs.config import load_config

    path = project / "configs" / f"{folder.parent.name}.yaml"
    belongs = folder == project / "artifacts" / folder.parent.name / "environment"
    return load_config(path).environment if belongs and path.is_file() else None


def _source_changes(folder: Path, snapshot: EnvironmentSnapshot, definition: Definition) -> list[str]:
    current = build_archive(definition.source.locations)
    if sha256(current) == snapshot.source_digest:
        return []
    recorded = _contents((folder / ARCHIVE).read_bytes())
    present = _contents(current)
    words = {(True, False): "is gone", (False, True): "is new", (True, True): "was changed"}
    return [
        f"{name} {words[name in recorded, name in present]}"
        for name in sorted(recorded.keys() | present.keys())
        if recorded.get(name) != present.get(name)
    ]


def _contents(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = ((member.name, opened.extractfile(member)) for member in opened.getmembers())
        return {name: sha256(file.read()) for name, file in files if file is not None}


def _parameter_changes(snapshot: EnvironmentSnapshot, definition: Definition) -> list[str]:
    current = parameters(definition)
    return differences({key: getattr(snapshot.spec, key) for key in current}, current)


def differences(recorded: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """One sentence for each key whose value differs, or that one of the two lacks, sorted by key; empty for none."""
    sentences = []
    for key in sorted(recorded.keys() | current.keys()):
        before, after = recorded.get(key, "absent"), current.get(key, "absent")
        if before != after:
            sentences.append(f"{key} was {before}, is {after}")
    return sentences


def _dependency_changes(
    snapshot: EnvironmentSnapshot, current: dict[str, str], largest: float | None, remarks: list[str]
) -> list[str]:
    """Other patch releases are no change where the replayed dynamics are equal to the bit: that is a remark."""
    releases = patched(snapshot.dependencies, current)
    if releases and largest == 0.0:
        remarks.append(f"the snapshot stays valid under {kept_under(releases, snapshot)}")
        return []
    return differences(snapshot.dependencies, current)


def _observe(
    snapshot: EnvironmentSnapshot,
    folder: Path,
    definition: Definition,
    found: dict[str, list[str]],
    remarks: list[str],
) -> float | None:
    """Construct the environment, compare spaces and dynamics; returns the largest deviation."""
    try:
        env = construct(definition)
    except LoomRLError as error:
        found["dynamics"].append(f"the environment cannot be constructed: {error}")
        return None
    try:
        found["spaces"] = _space_changes(snapshot, env)
        if found["spaces"]:
            found["dynamics"].append("recorded actions cannot be replayed in other spaces")
            return None
        reference = read_rollouts(folder / FILE, snapshot.dynamics.rollouts)
        return _compare_dynamics(snapshot, env, reference, found["dynamics"], remarks)
    except EnvironmentFault as error:
        found["dynamics"].append(f"replaying the recorded actions failed: {error}")
        return None
    finally:
        env.close()


def _space_changes(snapshot: EnvironmentSnapshot, env: gymnasium.Env[Any, Any]) -> list[str]:
    recorded = {"observation": snapshot.spec.observation, "action": snapshot.spec.action}
    return differences(
        recorded, {"observation": space_to_json(env.observation_space), "action": space_to_json(env.action_space)}
    )


def _compare_dynamics(
    snapshot: EnvironmentSnapshot,
    env: gymnasium.Env[Any, Any],
    reference: Rollouts,
    changes: list[str],
    remarks: list[str],
) -> float:
    replayed = replay_rollouts(env, reference)
    if exact_digest(replayed) == snapshot.dynamics.exact:
        return 0.0
    if arithmetic_digest() == snapshot.dynamics.arithmetic:
        deviation = compare(reference, replayed)
        changes.append(_elsewhere(deviation, first_difference(reference, replayed)))
        return deviation.largest
    deviation = compare(beginnings(reference), beginnings(replayed))
    if deviation.largest > snapshot.dynamics.tolerance:
        changes.append(_elsewhere(deviation, first_difference(reference, replayed)))
    else:
        remarks.append(
            f"this processor family computes with other bits than the one that recorded: only the first {PREFIX_STEPS} "
            f"steps of each episode were compared; their largest relative deviation {deviation.largest:.3g} is within "
            f"the tolerance {snapshot.dynamics.tolerance:g}"
        )
    return deviation.largest


def _elsewhere(deviation: Deviation, first: tuple[str, int, int] | None) -> str:
    begins = "" if first is None else f"; the first that differs is {_place(*first)}"
    place = _place(deviation.key, deviation.episode, deviation.step)
    return f"the recorded actions lead elsewhere: largest relative deviation {deviation.largest:.3g} in {place}{begins}"


def _place(key: str, episode: int, step: int) -> str:
    return f"{key}, episode {episode}, step {step}"

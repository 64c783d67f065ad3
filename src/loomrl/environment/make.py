"""Environments from a snapshot's folder: what every stage after the first one runs."""

import functools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv
from pydantic import Field

from loomrl.environment.backends import TIMEOUT_SECONDS
from loomrl.environment.config import EpisodeBounds
from loomrl.environment.construct import construct
from loomrl.environment.resolve import Definition, ranges_of, shield_of
from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.sources.installed import require_same_files
from loomrl.environment.sources.roots import find_location
from loomrl.environment.sources.source import (
    ARCHIVE,
    EnvironmentSource,
    build_archive,
    extract_archive,
    load_archived,
    load_source,
)
from loomrl.environment.vector.choose import (
    Autoreset,
    can_seed_episodes,
    choose,
    constructed_like,
    installed,
    is_exact,
    load_backend,
    make_vector,
)
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError
from loomrl.system.files import sha256
from loomrl.system.home import inside
from loomrl.system.schema import Document
from loomrl.types import EnvironmentSnapshot

BACKEND = "backend.json"


class Stepping(Document):
    """How a snapshot's environment is stepped: beside the snapshot and no part of it, since it changes no number."""

    backend: str
    # How long a process may take for an answer.
    # Left out where it is the default, so that the record of most environments keeps its bytes.
    timeout_seconds: float = Field(
        default=TIMEOUT_SECONDS, gt=0, allow_inf_nan=False, exclude_if=lambda seconds: seconds == TIMEOUT_SECONDS
    )


def make_env(
    folder: Path, render_mode: str | None = None, bounds: EpisodeBounds | None = None
) -> gymnasium.Env[Any, Any]:
    """Make the environment of a snapshot: its archived source, or the importable one where that is equal.

    The result ends episodes at `spec.max_episode_steps` (truncated) and raises `EnvironmentFault` when the environment
    breaks the Gymnasium API or returns a value that is not finite.

    Raises:
        ArtifactError: when the snapshot was changed, a file of it is missing, or a dependency was edited since.
        ConfigError: when a package it needs is not installed, or it has no such render mode.
        EnvironmentFault: when its constructor fails.
    """
    return construct(replace(restored_definition(folder), bounds=bounds), render_mode)


def make_envs(
    folder: Path,
    num_envs: int,
    autoreset: Autoreset = "same_step",
    backend: str = "auto",
    bounds: EpisodeBounds | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Make a vector of `num_envs` environments of a snapshot.

    With `same_step` an episode's last step returns the next one's first observation, and the true last one in
    `info["final_obs"]`. With `disabled` the caller resets, with `options={"reset_mask": ...}`. `backend` says how they
    are stepped (`environment.backend`); whichever "auto" chooses, the numbers are those of `make_env`'s environments.
    `bounds` are training's.

    Raises:
        ArtifactError: when the snapshot was changed, a file of it is missing, or a dependency was edited since.
        ConfigError: when the back-end does not have the environment, or a package is not installed.
        EnvironmentFault: when the environment's constructor fails, or a process does not make it in time.
    """
    recorded = _recorded(folder)
    timeout_seconds = recorded.timeout_seconds if recorded else TIMEOUT_SECONDS
    definition = replace(restored_definition(folder), bounds=bounds)
    recipe = Recipe(definition, partial(make_env, folder, bounds=bounds), timeout_seconds)
    name = choose_backend(folder, bounds) if backend == "auto" else backend
    if autoreset == "disabled" and not can_seed_episodes(name):
        name = _choose(load_snapshot(folder).digest, folder)  # the proof is given once in a process
    return make_vector(recipe, num_envs, autoreset, name)


def choose_backend(folder: Path, bounds: EpisodeBounds | None = None) -> str:
    """The back-end that was settled when the snapshot was taken, else the fastest that is exact; then remembered.

    With `bounds`, one that keeps them and gives the same numbers.

    Raises:
        ArtifactError: when the snapshot was changed, or what was settled cannot be read.
        ConfigError: when there is none for `bounds`.
    """
    recorded = _recorded(folder)
    name = recorded.backend if recorded else _choose(load_snapshot(folder).digest, folder)
    return name if bounds is None else constructed_like(name)


def _recorded(folder: Path) -> Stepping | None:
    return Stepping.read(folder / BACKEND) if (folder / BACKEND).is_file() else None


def settle_backend(folder: Path, backend: str, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """Record beside a snapshot which back-end steps its environment from now on; "auto" chooses it here, once.

    It is no part of the snapshot's digest: exact ones give the same numbers, which is proved here anew. Nor is how
    long "processes" wait for an answer, which is recorded with that back-end, the only one that waits. Returns the
    back-end's name.

    Raises:
        ArtifactError: when the snapshot was changed, or the record cannot be written.
        ConfigError: when an exact back-end does not step this environment as it steps by itself, when there is none of
            that name, or it lacks a package. Nothing is recorded then.
    """
    definition = restored_definition(folder)
    with installed(backend):
        if backend == "auto":
            backend = choose(definition)
        elif load_backend(backend).IS_EXACT and not is_exact(backend, definition):
            raise ConfigError(f'environment.backend {backend!r} does not step {definition.name!r} exactly; use "auto"')
    waiting = {"timeout_seconds": timeout_seconds} if backend == "processes" else {}
    Stepping.model_validate({"backend": backend, **waiting}).write(folder / BACKEND)
    return backend


@functools.lru_cache(maxsize=64)
def _choose(digest: str, folder: Path) -> str:  # noqa: ARG001
    return choose(restored_definition(folder))


def restored_definition(folder: Path) -> Definition:
    """A snapshot as a definition that can be constructed: with its archived source, or an importable one that is equal.

    Raises:
        ArtifactError: when the snapshot was changed, a file of it is missing, its archive cannot be extracted, or a
            dependency of the recorded release has other files than when the snapshot was taken.
        ConfigError: when the entry point cannot be imported.
    """
    snapshot = load_snapshot(folder)
    require_same_files(snapshot.dependencies)
    spec = snapshot.spec
    roots = tuple(snapshot.source_roots)
    source = _current(spec.entry_point, roots, snapshot.source_digest) or archived_source(snapshot, folder)
    limits = (spec.max_episode_steps, spec.reward_threshold, spec.frame_stack)
    return Definition(spec.name, spec.version, source, dict(spec.kwargs), *limits, ranges_of(spec), shield_of(spec))


def archived_source(snapshot: EnvironmentSnapshot, folder: Path) -> EnvironmentSource:
    """Load the code that the archive in `folder` holds, apart from any other version of it in this process.

    It is extracted below the home, under the snapshot's digest.

    Raises:
        ArtifactError: when the archive is not the snapshot's, or cannot be extracted.
        ConfigError: when the entry point cannot be imported from it.
        OSError: when there is no archive.
    """
    archive = (folder / ARCHIVE).read_bytes()
    target = inside("snapshots", snapshot.digest, "source")
    extract_archive(archive, snapshot.source_digest, snapshot.source_roots, target)
    return load_archived(snapshot.spec.entry_point, target, snapshot.source_roots, snapshot.source_digest)


@functools.lru_cache(maxsize=64)
def _current(entry_point: str, roots: tuple[str, ...], source_digest: str) -> EnvironmentSource | None:
    """The importable source, if it is the one that was archived.

    The files decide, before anything of them is imported: other code, broken code too, never runs in the archive's
    place. Remembered, as an imported module is: what is on disk later is not what runs.
    """
    locations = {root: location for root in roots if (location := find_location(root)) is not None}
    if len(locations) < len(roots):
        return None  # not importable here: a user's folder, or a package that is gone; the archive has it
    try:
        unchanged = sha256(build_archive(locations)) == source_digest
    except ConfigError:
        return None  # more than an archive holds
    return load_source(entry_point) if unchanged else None

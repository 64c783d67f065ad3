"""From what a config names to a definition that can be constructed."""

import difflib
import functools
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.envs.registration import registry as gymnasium_registry

from loomrl.environment.config import EnvironmentConfig, EpisodeBounds, RangeConfig, ShieldConfig
from loomrl.environment.ids import current_id, is_retired
from loomrl.environment.sources.importer import find_module
from loomrl.environment.sources.roots import find_location
from loomrl.environment.sources.source import EnvironmentSource, load_source, run_archive
from loomrl.errors import ConfigError
from loomrl.system.files import canonical_json
from loomrl.system.plugins import ENVIRONMENTS, load_plugin, plugin_points
from loomrl.types import EnvironmentSpec

if TYPE_CHECKING:
    from loomrl.storage.loomdb.records import EnvironmentRecord


@dataclass(frozen=True)
class Definition:
    """An environment that can be constructed: its loaded source and its parameters, and the bounds of training's."""

    name: str
    version: str
    source: EnvironmentSource
    kwargs: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    frame_stack: int = 1
    randomize: Mapping[str, RangeConfig] = field(default_factory=dict)
    shield: ShieldConfig | None = None
    bounds: EpisodeBounds | None = None


def resolve(config: EnvironmentConfig, project: Path, live: bool = False) -> Definition:
    """Find the environment a config names: its entry point, else a Gymnasium id, else a registration in LoomDB.

    A name registered in LoomDB with its version is immutable, source included, so resolving one inside a DVC stage
    does not make the stage depend on anything that changes. Without `version` the newest is taken: pin one where
    a policy must stay reproducible. No registration can hide a Gymnasium id: `register_environment` refuses its name.
    An id whose version Gymnasium has retired becomes the current one, with a warning (`loomrl.environment.ids`), unless
    it was registered when that was not refused yet.

    With `live` the code of a registered environment is taken from where it was registered from, if it is still there,
    and not from LoomDB: what `verify` compares.

    Raises:
        ConfigError: when nothing has that name, naming near matches; when its code cannot be imported.
        ServiceError: when LoomDB, which is asked for names that Gymnasium does not have, cannot be reached.
        ArtifactError: when the source that LoomDB holds cannot be extracted.
    """
    if config.entry_point is not None:
        folder = project / config.path if config.path is not None else None
        found = Definition(config.id, config.version or "0", load_source(config.entry_point, folder))
    else:
        found = _by_name(config, live)
    return replace(
        found,
        kwargs=plain({**found.kwargs, **config.kwargs}, f"environment.kwargs of {found.name!r}"),
        max_episode_steps=config.max_episode_steps or found.max_episode_steps,
        reward_threshold=found.reward_threshold if config.reward_threshold is None else config.reward_threshold,
        frame_stack=config.frame_stack,
        randomize=config.randomize,
        shield=config.shield,
    )


def _by_name(config: EnvironmentConfig, live: bool) -> Definition:
    """What has the config's id: in Gymnasium, else in LoomDB, else in Gymnasium under its current version."""
    found = _from_gymnasium(config)
    if found is None:
        found = _from_loomdb(config, live)
    if found is None and (current := current_id(config.id)) != config.id:
        found = _from_gymnasium(config.model_copy(update={"id": current}))
    if found is None:
        raise ConfigError(_unknown(config))
    return found


def _from_gymnasium(config: EnvironmentConfig) -> Definition | None:
    spec = find_gymnasium_spec(config.id)
    if spec is None or is_retired(config.id):
        return None
    version = str(spec.version if spec.version is not None else 0)
    if config.version not in (None, version):
        raise ConfigError(
            f"environment.version {config.version!r}: {config.id!r} is a Gymnasium id of version {version}"
        )
    return Definition(
        config.id,
        version,
        load_source(_entry_point(spec)),
        dict(spec.kwargs),
        spec.max_episode_steps,
        None if spec.reward_threshold is None else float(spec.reward_threshold),
    )


def find_gymnasium_spec(environment_id: str) -> EnvSpec | None:
    """Gymnasium's own registration of an id, or None; `module:id` imports the module first.

    An id nobody registered yet may come from an installed package: the modules that entry points of the group
    `loomrl.environments` name register theirs when they are imported.

    Raises:
        ConfigError: when such a module cannot be imported.
    """
    module, _, name = environment_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError(f"environment.id {environment_id!r}: cannot import {module!r}: {cause}") from error
    if name not in gymnasium_registry:
        _import_plugins()
    return gymnasium_registry.get(name)


@functools.cache
def _import_plugins() -> None:
    for point in plugin_points(ENVIRONMENTS):
        load_plugin(point)


def _entry_point(spec: EnvSpec) -> str:
    if spec.additional_wrappers:
        raise ConfigError(f"environment.id {spec.id!r} brings wrappers of its own; name a class that applies them")
    if isinstance(spec.entry_point, str):
        return spec.entry_point
    name = getattr(spec.entry_point, "__qualname__", "")
    if spec.entry_point is None or not name or "<" in name:
        raise ConfigError(f"environment.id {spec.id!r} is registered with a callable that no name leads to")
    return f"{spec.entry_point.__module__}:{name}"


def _from_loomdb(config: EnvironmentConfig, live: bool) -> Definition | None:
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open() as database:
        record = database.find_environment(config.id, config.version)
        if record is None:
            return None
        archive = database.environment_source(record.name, record.version)
    source = _live_source(record) if live else None
    source = source or run_archive(record.entry_point, archive, record.source_digest, record.source_roots)
    parameters = (dict(record.kwargs), record.max_episode_steps, record.reward_threshold)
    return Definition(record.name, record.version, source, *parameters)


def _live_source(record: "EnvironmentRecord") -> EnvironmentSource | None:
    folder = None if record.path is None else Path(record.path)
    top = record.entry_point.partition(":")[0].partition(".")[0]
    if (find_location(top) if folder is None else find_module(folder, top)) is None:
        return None  # it is gone; LoomDB's copy is what there is
    return load_source(record.entry_point, folder)


def _unknown(config: EnvironmentConfig) -> str:
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open() as database:
        registered = [found.name for found in database.list_environments()]
    if config.id in registered:
        return f"environment.version {config.version!r} of {config.id!r} is not registered; see `loomrl env list`"
    near = difflib.get_close_matches(config.id, sorted({*registered, *gymnasium_registry}), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"environment.id {config.id!r} is neither a Gymnasium id nor registered in LoomDB; {hint}"
        "register your own with `loomrl env register`, or name its class in `environment.entry_point`"
    )


def plain(kwargs: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A constructor's arguments as they come back from a snapshot or from LoomDB: tuples are lists, keys are strings.

    Raises:
        ConfigError: naming `place`, when a value is not one of JSON's.
    """
    try:
        values: dict[str, Any] = json.loads(canonical_json(dict(kwargs)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place} must be JSON values: {error}") from error
    return values


def ranges_of(spec: EnvironmentSpec) -> dict[str, RangeConfig]:
    """The ranges that are drawn anew for each episode, read from a snapshot's `randomize`."""
    return {name: RangeConfig.model_validate(one) for name, one in spec.randomize.items()}


def shield_of(spec: EnvironmentSpec) -> ShieldConfig | None:
    """The shield's config that a snapshot recorded, or None where it has none."""
    return None if spec.shield is None else ShieldConfig.model_validate(spec.shield)


def parameters(definition: Definition) -> dict[str, Any]:
    """The settings of an environment, by name, as a snapshot records them, and `verify` compares them."""
    return {
        "entry_point": definition.source.entry_point,
        "kwargs": definition.kwargs,
        "max_episode_steps": definition.max_episode_steps,
        "reward_threshold": definition.reward_threshold,
        "frame_stack": definition.frame_stack,
        "randomize": {name: one.model_dump(mode="json") for name, one in definition.randomize.items()},
        "shield": None if definition.shield is None else definition.shield.model_dump(mode="json"),
    }

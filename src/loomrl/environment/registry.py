"""Registering environments in LoomDB, and taking a registration back."""

from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loomrl.environment.check import check_environment
from loomrl.environment.construct import construct_as_declared
from loomrl.environment.ids import is_reserved, successor
from loomrl.environment.resolve import Definition, find_gymnasium_spec, plain
from loomrl.environment.sources.source import build_archive, load_source
from loomrl.errors import ConfigError
from loomrl.system.files import sha256

if TYPE_CHECKING:
    from loomrl.storage.loomdb.database import LoomDB
    from loomrl.storage.loomdb.records import EnvironmentRecord


def register_environment(
    name: str,
    entry_point: str,
    version: str,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    kwargs: Mapping[str, Any] | None = None,
    path: str | Path | None = None,
    database: "LoomDB | None" = None,
) -> "EnvironmentRecord":
    """Register an environment in LoomDB, its source included, so that configs name it by `id: NAME`.

    It is made once and checked (`loomrl.environment.check`) first: a name is not taken by what does not work.

    Args:
        name: how configs call it.
        entry_point: `module:Class`, a `gymnasium.Env` such as a `BaseEnvironment`, or a function that makes one.
        version: any string; (name, version) is immutable. Equal content again is welcome, other content refused.
        max_episode_steps: where episodes are cut off (truncated); None leaves it to the environment.
        reward_threshold: the return from which an episode counts as a success.
        kwargs: JSON values for the constructor; a `BaseEnvironment` gets them as its `config`.
        path: the folder that holds the module, where it is not importable as it is.
        database: default: the LoomDB of this project.

    Raises:
        ConfigError: when the entry point cannot be imported, does not take `kwargs` or breaks the API, the name means
            something else already, a value is impossible, or the version is registered with other content.
        EnvironmentFault: when its constructor fails.
        ServiceError: when LoomDB cannot be reached. After any of these nothing is registered.
    """
    from loomrl.storage.loomdb.database import LoomDB
    from loomrl.storage.loomdb.models import now
    from loomrl.storage.loomdb.records import EnvironmentRecord

    _check(name, version, max_episode_steps)
    _check_entry_point(entry_point)
    parameters = plain(kwargs or {}, f"register_environment: {name!r}: kwargs")
    folder = None if path is None else Path(path).resolve()
    source = load_source(entry_point, folder)
    _require_conforming(Definition(name, str(version), source, parameters, max_episode_steps, reward_threshold))
    archive = build_archive(source.locations)
    record = EnvironmentRecord(
        name=name,
        version=str(version),
        entry_point=entry_point,
        kwargs=parameters,
        max_episode_steps=max_episode_steps,
        reward_threshold=reward_threshold,
        source_digest=sha256(archive),
        source_roots=source.roots,
        path=None if folder is None else str(folder),
        created=now(),
    )
    with LoomDB.open() if database is None else nullcontext(database) as opened:
        return opened.register_environment(record, archive)


def unregister_environment(name: str, version: str, database: "LoomDB | None" = None) -> "EnvironmentRecord":
    """Take back a registration that nothing uses; the name and version are free again. Returns what was registered.

    Raises:
        ConfigError: when it is not registered, or a snapshot of it is on record: policies were made from that.
        ServiceError: when LoomDB cannot be reached.
    """
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open() if database is None else nullcontext(database) as opened:
        return opened.unregister_environment(name, version)


def _require_conforming(definition: Definition) -> None:
    with closing(construct_as_declared(definition)) as env:
        errors = [finding for finding in check_environment(env) if finding.severity == "error"]
    if errors:
        listed = "; ".join(f"{finding.problem} {finding.fix}" for finding in errors)
        raise ConfigError(f"register_environment: {definition.name!r} is not registered, it does not conform: {listed}")


def _check(name: str, version: str, max_episode_steps: int | None) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"register_environment: `name` must be text, found {name!r}")
    if not name.strip() or not str(version).strip():
        raise ConfigError("register_environment: `name` and `version` must not be empty")
    if taken := _taken(name):
        raise ConfigError(f"register_environment: {name!r} is {taken}; choose another name")
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ConfigError(f"register_environment: max_episode_steps is {max_episode_steps}; it must be at least 1")


def _check_entry_point(entry_point: object) -> None:
    """Refuse what is no text, such as the class itself, and show how that is written where a name leads to it."""
    if isinstance(entry_point, str):
        return
    module, name = getattr(entry_point, "__module__", None), getattr(entry_point, "__qualname__", "<")
    here = f", here {module}:{name}" if module and "<" not in name else ""
    raise ConfigError(
        f"register_environment: entry_point is {entry_point!r}; write it as text, `module:Class`{here}: "
        "snapshots and other processes find it by that name"
    )


def _taken(name: str) -> str | None:
    """What a name means without any registration; None where it is free."""
    if find_gymnasium_spec(name) is not None:
        return "a Gymnasium id, usable as it is"
    if (current := successor(name)) is not None:
        return f"a Gymnasium id of old, which stands for {current}"
    return "a domain of LoomRL Gym" if is_reserved(name) else None

"""Ids that Gymnasium no longer has, and what took their place; and names that mean something else already."""

import re
import warnings
from collections.abc import Callable, Iterable

from gymnasium.envs.registration import EnvSpec, registry

_ID = re.compile(r"(?P<name>.+)-v(?P<version>\d+)")
_reserved: list[Callable[[], Iterable[str]]] = []
_MUJOCO_PY = re.compile(
    r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|Swimmer"
    r"|Walker2d)-v[0-3]"
)


def is_retired(environment_id: str) -> bool:
    """Whether an id is registered only to raise: it needed the package mujoco-py, which is no more."""
    return _MUJOCO_PY.fullmatch(environment_id) is not None


def current_id(environment_id: str) -> str:
    """The id's `successor`, with a warning, where there is one; else the id."""
    current = successor(environment_id)
    if current is None:
        return environment_id
    warnings.warn(f"environment {environment_id} is no longer part of Gymnasium; {current} is used", stacklevel=2)
    return current


def successor(environment_id: str) -> str | None:
    """The newest version of a Gymnasium environment whose version of this id is gone; None for other ids.

    `HalfCheetah-v2` is `HalfCheetah-v5` now. Versions differ in dynamics or rewards: figures do not carry over.
    """
    found = _ID.fullmatch(environment_id)
    if found is None or (environment_id in registry and not is_retired(environment_id)):
        return None
    versions = [spec.version or 0 for spec in registry.values() if spec.name == found["name"] and _is_gymnasiums(spec)]
    newest = max(versions, default=0)
    return f"{found['name']}-v{newest}" if newest > int(found["version"]) else None


def _is_gymnasiums(spec: EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.envs")


def reserve(names: Callable[[], Iterable[str]]) -> None:
    """Keep names from being registered, because they mean something else, as those of LoomRL Gym's domains do. They are
    asked for when a name is checked."""
    _reserved.append(names)


def is_reserved(name: str) -> bool:
    """Whether the name is one of those given to `reserve`."""
    return any(name in names() for names in _reserved)

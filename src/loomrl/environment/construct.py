"""Construct one environment from its definition."""

import inspect
import warnings
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import TimeLimit

from loomrl.environment.base import BaseEnvironment
from loomrl.environment.resolve import Definition
from loomrl.environment.sources.source import install_hint
from loomrl.environment.wrappers.bounded import Bounded
from loomrl.environment.wrappers.flat import as_one_array
from loomrl.environment.wrappers.guard import EnvironmentGuard
from loomrl.environment.wrappers.randomized import Randomized
from loomrl.environment.wrappers.shielded import Shielded, shield_for
from loomrl.environment.wrappers.stacking import FrameStack
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError


def construct(definition: Definition, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Make the environment, guarded, with its time limit and stacked frames; structured observations become one
    vector (`FlatBox`). Parameters that are drawn are so at each reset. Bounds are around all of that.

    Raises:
        ConfigError: for parameters or a render mode it does not take, a package it needs that is not installed, or
            observations of no fixed size.
        EnvironmentFault: when its constructor fails, or leaves out a space.
    """
    env = construct_as_declared(definition, render_mode)
    if definition.frame_stack > 1:
        env = FrameStack(env, definition.frame_stack)
    env = as_one_array(env)
    return env if definition.bounds is None else Bounded(env, definition.bounds, definition.name)


def spaces_of(definition: Definition) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Observation space and action space of the environment; raises what `construct` raises."""
    env = construct(definition)
    env.close()
    return env.observation_space, env.action_space


def construct_as_declared(definition: Definition, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """The environment, guarded and with its time limit, that observes what its author declared.

    Raises:
        ConfigError: for parameters or a render mode it does not take, or a package it needs that is not installed.
        EnvironmentFault: when its constructor fails, or leaves out a space.
    """
    env = _created(definition, render_mode)
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.Space):
            raise EnvironmentFault(f"environment {definition.name!r}: {name} is not a gymnasium.Space; declare it")
    guarded: gymnasium.Env[Any, Any] = EnvironmentGuard(env, definition.name)
    if definition.max_episode_steps is not None:
        guarded = TimeLimit(guarded, definition.max_episode_steps)
    return guarded if definition.shield is None else Shielded(guarded, shield_for(env, definition), definition.name)


def _created(definition: Definition, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    if not definition.randomize:
        return create_bare(definition, render_mode)

    def make(values: dict[str, Any]) -> gymnasium.Env[Any, Any]:
        return create_bare(replace(definition, kwargs={**definition.kwargs, **values}), render_mode)

    return Randomized(make, definition.randomize, definition.name)


def create_bare(definition: Definition, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """The environment that the entry point makes, without any wrapper.

    Raises:
        ConfigError: for parameters or a render mode it does not take, or a package it needs that is not installed.
        EnvironmentFault: when its constructor fails, or makes something else than a `gymnasium.Env`.
    """
    create = definition.source.create
    arguments = _arguments(definition, render_mode)
    try:
        inspect.signature(create).bind(**arguments)
    except TypeError as error:
        raise ConfigError(_wrong_arguments(definition, error)) from error
    try:
        with warnings.catch_warnings():
            # Gymnasium's advice to use a newer version of an id; the config names the one that is wanted.
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="gymnasium")
            env = create(**arguments)
    except LoomRLError:
        raise
    except (ImportError, DependencyNotInstalled) as error:
        raise ConfigError(f"environment {definition.name!r}: {error}; {install_hint(error)}") from error
    except Exception as error:
        raise EnvironmentFault(
            f"environment {definition.name!r}: the constructor raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise EnvironmentFault(f"environment {definition.name!r}: made a {type(env).__name__}, not a gymnasium.Env")
    if isinstance(env.unwrapped, BaseEnvironment) and render_mode is not None:
        env.unwrapped.render_mode = render_mode
    # Renderers read their limits here; Gymnasium's own `make` sets it too.
    env.unwrapped.spec = EnvSpec(_gymnasium_id(definition), max_episode_steps=definition.max_episode_steps)
    return env


def _arguments(definition: Definition, render_mode: str | None) -> dict[str, Any]:
    create = definition.source.create
    modes = getattr(create, "metadata", {}).get("render_modes", [])
    if render_mode is not None and isinstance(create, type) and render_mode not in modes:
        known = ", ".join(map(str, modes)) or "none"
        raise ConfigError(f"environment {definition.name!r} has no render mode {render_mode!r}; its modes: {known}")
    if _takes_config(create):
        return {"config": dict(definition.kwargs)}
    return dict(definition.kwargs) if render_mode is None else {**definition.kwargs, "render_mode": render_mode}


def _takes_config(create: object) -> bool:
    return isinstance(create, type) and issubclass(create, BaseEnvironment)


def _wrong_arguments(definition: Definition, error: TypeError) -> str:
    names = inspect.signature(definition.source.create).parameters
    if _takes_config(definition.source.create):
        return (
            f"environment {definition.name!r}: `__init__` of a BaseEnvironment must take `config`, the mapping of "
            f"environment.kwargs, and need nothing else; it takes: {', '.join(names) or 'nothing'}"
        )
    return f"environment.kwargs of {definition.name!r}: {error}; it takes: {', '.join(names) or 'nothing'}"


def _gymnasium_id(definition: Definition) -> str:
    allowed = "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in definition.name)
    return allowed if allowed.rpartition("-v")[2].isdigit() and "-v" in allowed else f"{allowed}-v0"

"""Which back-end steps an environment, and how to make it.

The choice follows a fixed order and a proof, not a stopwatch: the same snapshot leads to the same back-end on every
machine, whatever else that is doing. See `docs/adr/0010-vector-backends.md`.
"""

import importlib
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from loomrl.environment.backends import BackendName
from loomrl.environment.resolve import Definition
from loomrl.environment.vector.recipe import Backend, Recipe
from loomrl.errors import ConfigError

Autoreset = Literal["same_step", "resumable", "disabled"]

FASTEST_FIRST = ("batched", "mujoco", "serial")  # what "auto" chooses from; the others are for a config to ask for
CONSTRUCTED = ("serial", "processes")  # made by `construct`, hence with all its wrappers
NO_BOUNDS = "keeps no bounds, which training.boundaries and training.max_episode_cost ask for"
NUM_ENVS, NUM_STEPS, EPISODE_STEPS = 3, 250, 100  # of the proof: every environment meets the time limit twice
TOLERANCE = 2.0**-22  # relative and absolute: two float32 beside each other
_EXTRAS = {"batched": "train", "mujoco": "mujoco", "envpool": "envpool", "device": "train"}

log = logging.getLogger(__name__)


def choose(definition: Definition) -> str:
    """The first of FASTEST_FIRST that has the environment and steps it as Gymnasium does."""
    if _only_constructed(definition) is not None:
        return FASTEST_FIRST[-1]
    for name in FASTEST_FIRST[:-1]:
        try:
            if is_exact(name, definition):
                return name
        except ImportError as error:
            log.info("back-end %s is passed over: %s", name, error)
    return FASTEST_FIRST[-1]


def _only_constructed(definition: Definition) -> str | None:
    """What other back-ends lack for a definition that needs the wrappers of `construct`."""
    if definition.frame_stack > 1:
        return f"cannot stack frames, environment.frame_stack is {definition.frame_stack}"
    if definition.randomize:
        return "cannot draw parameters, which environment.randomize asks for"
    if definition.shield is not None:
        return "knows no shield, which environment.shield asks for"
    return NO_BOUNDS if definition.bounds is not None else None


def constructed_like(backend: str) -> str:
    """Of CONSTRUCTED the one that gives the numbers of a back-end, hence can take its place where wrappers are needed.

    Raises:
        ConfigError: for one with seeding of its own: its episodes would be others.
    """
    if backend in CONSTRUCTED:
        return backend
    if backend != "auto" and not can_seed_episodes(backend):
        raise _refused(backend, NO_BOUNDS)
    return FASTEST_FIRST[-1]


def _refused(backend: str, lacking: str) -> ConfigError:
    return ConfigError(f'environment.backend {backend!r} {lacking}; use "auto", or one of {", ".join(CONSTRUCTED)}')


def is_exact(name: str, definition: Definition) -> bool:
    """Whether a back-end has the environment and gives what single environments give, on seeded random episodes.

    Raises:
        ConfigError: when there is no back-end of that name.
        ImportError: when a package it needs is not installed.
        EnvironmentFault: when the environment breaks the Gymnasium API.
    """
    if name in CONSTRUCTED:
        return True  # they run the environments themselves
    backend = load_backend(name)
    recipe = Recipe(replace(definition, max_episode_steps=EPISODE_STEPS))
    envs = backend.create(recipe, NUM_ENVS, AutoresetMode.SAME_STEP) if backend.IS_EXACT else None
    if envs is None:
        return False
    with closing(envs), closing(make_serial(recipe)) as reference:
        reference.action_space.seed(0)
        if not _equal(envs.reset(seed=0)[0], reference.reset(seed=0)[0]):
            return False
        return all(_same_step(envs, reference) for _ in range(NUM_STEPS))


def make_serial(recipe: Recipe) -> VectorEnv[Any, Any, Any]:
    """The environments a back-end is compared with: NUM_ENVS of them, one after the other, with autoreset."""
    envs = load_backend("serial").create(recipe, NUM_ENVS, AutoresetMode.SAME_STEP)
    assert envs is not None
    return envs


def _same_step(envs: VectorEnv[Any, Any, Any], reference: VectorEnv[Any, Any, Any]) -> bool:
    actions = reference.action_space.sample()
    *found, found_info = envs.step(actions)
    *wanted, wanted_info = reference.step(actions)
    ended = wanted[2] | wanted[3]
    if ended.any():
        found.append(np.stack(list(found_info["final_obs"][ended])))
        wanted.append(np.stack(list(wanted_info["final_obs"][ended])))
    return all(_equal(one, other) for one, other in zip(found, wanted, strict=True))


def _equal(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    same_kind = found.shape == wanted.shape and found.dtype == wanted.dtype
    return same_kind and np.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def make_vector(recipe: Recipe, num_envs: int, autoreset: Autoreset, backend: str) -> VectorEnv[Any, Any, Any]:
    """Make environments with a named back-end; "auto" chooses one.

    Back-ends that are not exact cannot play an episode of a given seed: with `disabled` an exact one takes their place.
    With `resumable` episodes begin anew as with `same_step`, and the vector has `state_dict()` and `load_state_dict()`,
    but for those of others (`envpool`, `gymnasium`). Where environments are constructed, each of their episodes then
    has a seed of its own.

    Raises:
        ConfigError: when the back-end is unknown, lacks the environment or a package, or `num_envs` is below 1.
        EnvironmentFault: when the environment's constructor fails.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
    name = choose(recipe.definition) if backend == "auto" else backend
    lacking = _only_constructed(recipe.definition)
    if lacking is not None and name not in CONSTRUCTED:
        raise _refused(name, lacking)
    if autoreset == "disabled" and not can_seed_episodes(name):
        name = choose(recipe.definition)
    with installed(name):
        recipe = replace(recipe, is_resumable=autoreset == "resumable")
        mode = AutoresetMode.DISABLED if autoreset == "disabled" else AutoresetMode.SAME_STEP
        envs = load_backend(name).create(recipe, num_envs, mode)
    if envs is None:
        raise ConfigError(f'environment.backend {name!r} does not have {recipe.definition.name!r}; use "auto"')
    return envs


def can_seed_episodes(name: str) -> bool:
    """Whether a back-end can play the episode of a given seed.

    Raises:
        ConfigError: when it is unknown, or lacks a package.
    """
    with installed(name):
        return load_backend(name).IS_EXACT


@contextmanager
def installed(name: str) -> Iterator[None]:
    """A context that raises `ConfigError` for an `ImportError`: the back-end lacks a package, and how to get it."""
    try:
        yield
    except ImportError as error:
        fix = f"pip install 'loomrl[{_EXTRAS[name]}]'" if name in _EXTRAS else "install it"
        raise ConfigError(f"environment.backend {name!r}: {error}; {fix}") from error


def load_backend(name: str) -> Backend:
    """The module of a back-end.

    Raises:
        ConfigError: when there is none of that name.
        ImportError: when a package it needs is not installed.
    """
    names = [known for known in get_args(BackendName) if known != "auto"]
    if name not in names:
        raise ConfigError(f"environment.backend {name!r} is unknown; back-ends: auto, {', '.join(names)}")
    return cast(Backend, importlib.import_module(f"loomrl.environment.vector.{name}"))

"""The conformance suite: tells an environment's author what is wrong, in sentences.

Built on `gymnasium.utils.env_checker`, whose findings are passed on. What LoomRL needs beyond it is checked here:
values that are finite and inside their spaces, flags that are booleans, episodes that end, and that everything random
comes from the seed.
"""

import random
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env, data_equivalence

from loomrl.environment.layers import layers_of
from loomrl.environment.seeds import TRIAL_SEEDS
from loomrl.environment.spaces import space_to_json
from loomrl.environment.wrappers.guard import EnvironmentGuard, explain, is_valid
from loomrl.errors import ConfigError
from loomrl.system.schema import Document

_STEPS = 500
_SEEDS = TRIAL_SEEDS[:4]


class Finding(Document):
    """One thing that is wrong (`error`) or doubtful (`advice`), and how to mend it."""

    name: str  # of the check that found it
    severity: str  # "error" or "advice"
    problem: str
    fix: str


def check_environment(env: gymnasium.Env[Any, Any]) -> list[Finding]:
    """Find what is wrong with an environment; an empty list means it conforms.

    Takes some thousand steps in it. Errors come first. A `EnvironmentGuard` around it is looked through, for it would
    stop at the first fault. What the first `reset` and `step` raise is a finding; what later ones raise is raised here.
    """
    env = _without_guard(env)
    fundamental = list(_check_spaces(env)) or list(_check_runs(env))
    if any(finding.severity == "error" for finding in fundamental):
        return fundamental  # nothing else can be judged
    findings = fundamental
    try:
        for check in _CHECKS:
            findings.extend(check(env))
    except Exception as error:  # noqa: BLE001 - whatever an environment raises is a finding
        problem = f"a later reset or step raised {type(error).__name__}: {error}."
        findings.append(_error("later_step", problem, "Make episodes run to their end, whatever actions are taken."))
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _error(name: str, problem: str, fix: str) -> Finding:
    return Finding(name=name, severity="error", problem=problem, fix=fix)


def _advice(name: str, problem: str, fix: str) -> Finding:
    return Finding(name=name, severity="advice", problem=problem, fix=fix)


def _without_guard(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Time limits stay: they are part of what is checked."""
    if isinstance(env, EnvironmentGuard):
        return env.env
    if isinstance(env, gymnasium.wrappers.TimeLimit) and isinstance(env.env, EnvironmentGuard):
        return gymnasium.wrappers.TimeLimit(env.env.env, env._max_episode_steps)
    return env


def _check_spaces(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            problem = f"{name} is {space!r}, not a gymnasium.Space."
            yield _error("space_declared", problem, f"Set self.{name} in __init__, or on the class.")
            continue
        try:
            space_to_json(space)
        except ConfigError as error:
            yield _error("space_supported", f"{name}: {error}", "Declare a space of a supported kind.")


def _check_runs(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    """Reset and step at all, with results of the right form."""
    try:
        result: Any = env.reset(seed=0)
    except Exception as error:  # noqa: BLE001 - whatever an environment raises is a finding
        yield _error("reset", f"reset(seed=0) raised {type(error).__name__}: {error}.", "Make reset work with a seed.")
        return
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        problem = f"reset returned {result!r}, not (observation, info: dict)."
        yield _error("reset_result", problem, "Return two values; an empty dict will do for info.")
        return
    try:
        stepped: Any = env.step(env.action_space.sample())
    except Exception as error:  # noqa: BLE001 - as above
        problem = f"step raised {type(error).__name__} on a sample of the action space: {error}."
        yield _error("step", problem, "Make step accept every action the action space contains.")
        return
    if not (isinstance(stepped, tuple) and len(stepped) == 5 and isinstance(stepped[4], dict)):
        problem = f"step returned {stepped!r}, not (observation, reward, terminated, truncated, info: dict)."
        yield _error("step_result", problem, "Return five values; terminated and truncated replace the old done.")


def _steps(env: gymnasium.Env[Any, Any], seed: int) -> Iterator[tuple[Any, ...]]:
    """(action, observation, reward, terminated, truncated) of seeded random steps; episodes follow one another."""
    env.action_space.seed(0)  # the same actions for every seed
    observation, _ = env.reset(seed=seed)
    yield None, observation, 0.0, False, False
    while True:
        action = env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        yield action, observation, reward, terminated, truncated
        if terminated or truncated:
            observation, _ = env.reset()
            yield None, observation, 0.0, False, False


def _check_values(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    """Each kind of fault once, with the step it was first seen at."""
    seen: set[str] = set()
    for number, (_, observation, reward, terminated, truncated) in enumerate(islice(_steps(env, 0), _STEPS)):
        for finding in _value_findings(env.observation_space, observation, reward, terminated, truncated, number):
            if finding.name not in seen:
                seen.add(finding.name)
                yield finding


def _value_findings(
    space: spaces.Space[Any], observation: Any, reward: Any, terminated: Any, truncated: Any, number: int
) -> Iterator[Finding]:
    if not is_valid(observation, space):
        problem = f"At step {number}, {explain('observation', observation, space)}."
        yield _error("observation", problem, "Return what observation_space declares, or declare what is returned.")
    elif not space.contains(observation):
        problem = f"At step {number}, {explain('observation', observation, space)}: {observation!r}."
        yield _error("observation_bounds", problem, "Widen the bounds of observation_space, or clip what is returned.")
    if not isinstance(reward, int | float | np.floating | np.integer) or not np.isfinite(reward):
        problem = f"At step {number}, the reward is {reward!r} of type {type(reward).__name__}."
        yield _error("reward", problem, "Return one finite number; look for divisions by zero and overflows.")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            problem = f"At step {number}, {name} is {flag!r} of type {type(flag).__name__}, not a bool."
            yield _error(name, problem, f"Return bool({name}).")


def _record(env: gymnasium.Env[Any, Any], seed: int) -> list[tuple[Any, ...]]:
    return list(islice(_steps(env, seed), _STEPS))


def _check_determinism(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    generators = _global_generators()
    first = _record(env, 0)
    if _global_generators() != generators:
        problem = "The environment draws from the global random generators, which no seed of its own controls."
        yield _error("global_randomness", problem, "Use self.np_random in place of random.* and np.random.*.")
    for number, (before, after) in enumerate(zip(first, _record(env, 0), strict=True)):
        if not data_equivalence(before, after, exact=True):
            problem = f"Two runs with seed 0 and equal actions differ from step {number} on: {before!r} and {after!r}."
            fix = "Set every part of the state in reset, and draw every random number from self.np_random."
            yield _error("determinism", problem, fix)
            return


def _global_generators() -> tuple[Any, ...]:
    numpy_state = np.random.get_state(legacy=True)
    return random.getstate(), *(part.tobytes() if isinstance(part, np.ndarray) else part for part in numpy_state)


def _check_seeding(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    env.reset(seed=0)
    if env.unwrapped.np_random_seed != 0:
        problem = "reset(seed=0) leaves self.np_random as it was."
        yield _error("seeding", problem, "Call super().reset(seed=seed) at the beginning of reset.")
    runs = [list(islice(_steps(env, seed), 20)) for seed in _SEEDS]
    if all(data_equivalence(runs[0], run, exact=True) for run in runs):
        problem = f"Seeds {list(_SEEDS)} all give the same episode."
        yield _advice("seed_variety", problem, "If the start shall vary, draw it from self.np_random.")


def _check_episode_ends(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    if any(isinstance(layer, gymnasium.wrappers.TimeLimit) for layer in layers_of(env)):
        return
    if not any(step[3] or step[4] for step in islice(_steps(env, 0), 5_000)):
        problem = "No episode ended within 5000 random steps, and there is no time limit."
        yield _error("episode_end", problem, "Set max_episode_steps, in the config or when registering.")


def _check_gymnasium(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    """Gymnasium's own suite; its warnings are advice, its assertions errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
        except Exception as error:  # noqa: BLE001 - as above
            yield _error("gymnasium", f"gymnasium.utils.env_checker: {error}", "Do what Gymnasium's message says.")
    for message in dict.fromkeys(_plain(str(warning.message)) for warning in caught):
        if "infinity" in message:
            continue  # an observation without bounds is no fault: velocities have none
        yield _advice("gymnasium", message, "See https://gymnasium.farama.org/api/env.")


def _plain(message: str) -> str:
    return message.replace("\x1b[33m", "").replace("\x1b[0m", "").removeprefix("WARN: ").strip()


def _check_actions(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    """Whether LoomRL's own algorithms have a policy for the actions; those of others may."""
    space = env.action_space
    whole = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    if whole or (isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"):
        return
    fix = "Declare a Box of floats, Discrete, MultiDiscrete or MultiBinary, and take it apart in step."
    yield _advice("action_space", f"No algorithm of LoomRL's own acts in {space}.", fix)


_CHECKS: tuple[Callable[[gymnasium.Env[Any, Any]], Iterator[Finding]], ...] = (
    _check_actions,
    _check_values,
    _check_determinism,
    _check_seeding,
    _check_episode_ends,
    _check_gymnasium,
)

"""Declared limits on quantities of an episode, evaluated step by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.quantities import absent, absent_from, component, kind_of
from loomrl.errors import ConfigError
from loomrl.safety.config import EPISODE_QUANTITIES, ConstraintConfig
from loomrl.types import Episode

Floats = NDArray[np.float64]


def violations(constraint: ConstraintConfig, episode: Episode) -> NDArray[np.bool_]:
    """Which steps violate, (L,).

    An observation counts at the step that leads to it; the reset's observation counts at the first step. `return`,
    `episode_cost` and `length` are known when the episode ends: they count at the last step.

    Raises:
        ConfigError: when the episode has no such quantity; names those it has.
    """
    kind = kind_of(constraint.quantity)
    if kind in EPISODE_QUANTITIES:
        marks = np.zeros(episode.length, dtype=np.bool_)
        marks[-1] = bool(_outside(constraint, np.array([_total(constraint, episode)]))[0])
        return marks
    marks = _outside(constraint, quantity(constraint, episode))
    if kind == "observation":
        first = _component(constraint, episode.obs[:1])
        marks[0] |= _outside(constraint, first)[0]
    return marks


def violates(constraint: ConstraintConfig, episode: Episode) -> bool:
    """Whether any step of the episode violates the constraint.

    Raises:
        ConfigError: when the episode has no such quantity.
    """
    return bool(np.any(violations(constraint, episode)))


def limits_on_actions(constraints: Sequence[ConstraintConfig]) -> list[ConstraintConfig]:
    """The constraints that can be evaluated on an action before it is carried out."""
    return [constraint for constraint in constraints if kind_of(constraint.quantity) == "action"]


def would_violate(
    constraints: Sequence[ConstraintConfig], obs: NDArray[np.generic], action: NDArray[np.generic]
) -> NDArray[np.bool_]:
    """Which decisions would violate a limit on the action alone, (B,), from obs (B, *obs) and action (B, *action).

    Limits on anything else need the step's outcome, which a decision that is not carried out does not have: they never
    count here.

    Raises:
        ConfigError: for a limit on a component that actions do not have.
    """
    marks = np.zeros(len(obs), dtype=np.bool_)
    for constraint in limits_on_actions(constraints):
        marks |= _outside(constraint, _component(constraint, action))
    return marks


def quantity(constraint: ConstraintConfig, episode: Episode) -> Floats:
    """The quantity after each step, (L,); `return`, `episode_cost` and `length` are what they are so far. NaN where the
    info does not tell it.

    Raises:
        ConfigError: when the episode has no such quantity.
    """
    kind = kind_of(constraint.quantity)
    if kind == "observation":
        return _component(constraint, episode.next_obs)
    if kind == "action":
        return _component(constraint, episode.action)
    if kind == "reward":
        return np.asarray(episode.reward, dtype=np.float64)
    if kind == "return":
        return np.cumsum(episode.reward, dtype=np.float64)
    if kind == "length":
        return np.arange(1, episode.length + 1, dtype=np.float64)
    if kind in ("cost", "episode_cost"):
        cost = _cost(constraint, episode)
        return cost if kind == "cost" else np.cumsum(cost, dtype=np.float64)
    told = episode.info.get(constraint.quantity.removeprefix("info."), np.full(episode.length, np.nan))
    return np.asarray(told, dtype=np.float64)


def _total(constraint: ConstraintConfig, episode: Episode) -> float:
    """One of EPISODE_QUANTITIES at the end."""
    kind = kind_of(constraint.quantity)
    if kind == "episode_cost":
        return float(np.sum(_cost(constraint, episode)))
    return episode.episode_return if kind == "return" else float(episode.length)


def _cost(constraint: ConstraintConfig, episode: Episode) -> Floats:
    if episode.cost is None:
        raise ConfigError(
            f"safety.constraints: {constraint.name}: the environment told no cost in the episode of seed "
            f'{episode.seed}; what a step costs is info["cost"]'
        )
    return np.asarray(episode.cost, dtype=np.float64)


def check_against(constraints: Sequence[ConstraintConfig], observation_space: Any, action_space: Any) -> None:
    """Find limits on components these Gymnasium spaces do not have, before anything is trained.

    Keys of `info` are only known once an episode was played: `check_constraint` examines those.

    Raises:
        ConfigError: naming the config key, the index and the size.
    """
    for place, constraint in enumerate(constraints):
        if problem := absent_from(constraint.quantity, observation_space, action_space):
            raise ConfigError(f"safety.constraints.{place}.quantity: {constraint.name}: {problem}")


def check_constraint(constraint: ConstraintConfig, *episodes: Episode) -> None:
    """Raise `ConfigError` when the constraint cannot be evaluated on such episodes: for a number of the infos, when
    none of them tells it."""
    quantity(constraint, episodes[0])
    key = constraint.quantity.removeprefix("info.")
    if key != constraint.quantity and all(key not in episode.info for episode in episodes):
        present = ", ".join(f"info.{name}" for name in sorted(episodes[0].info)) or "none"
        raise ConfigError(
            f"safety.constraints: {constraint.name}: the environment's info has no numeric key {key!r} in the episode "
            f"of seed {episodes[0].seed}; its keys: {present}"
        )


def limits(constraint: ConstraintConfig) -> str:
    """The allowed values in words, such as `within [-2.4, 2.4]` or `at most 25`."""
    if constraint.low is None:
        return f"at most {exact(constraint.high)}"
    if constraint.high is None:
        return f"at least {exact(constraint.low)}"
    return f"within [{exact(constraint.low)}, {exact(constraint.high)}]"


def exact(value: float | None) -> str:
    """A number in as few figures as tell it from every other one."""
    assert value is not None
    return shown if float(shown := f"{value:g}") == value else repr(float(value))


def _component(constraint: ConstraintConfig, values: NDArray[np.generic]) -> Floats:
    """One component of (N, *shape) values, (N,)."""
    if problem := absent(constraint.quantity, int(np.prod(np.shape(values)[1:], dtype=np.int64))):
        raise ConfigError(f"safety.constraints: {constraint.name}: {problem}")
    return component(constraint.quantity, values)


def ends(constraint: ConstraintConfig) -> tuple[float, float]:
    """The least and the greatest allowed value, infinite where there is no such limit."""
    low = -np.inf if constraint.low is None else constraint.low
    return low, np.inf if constraint.high is None else constraint.high


def beyond(constraint: ConstraintConfig, values: Floats) -> Floats:
    """How far values (L,) lie outside the limit, (L,); a value within it is below 0, by how far inside it lies. NaN for
    NaN."""
    low, high = ends(constraint)
    return np.maximum(low - values, values - high)


def _outside(constraint: ConstraintConfig, values: Floats) -> NDArray[np.bool_]:
    """NaN is outside: a quantity that is not known cannot be said to respect a limit."""
    low, high = ends(constraint)
    return ~((values >= low) & (values <= high))

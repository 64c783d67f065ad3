"""Declared limits on quantities of an episode, evaluated step by step."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ConfigError
from loomrl.safety.config import ConstraintConfig
from loomrl.types import Episode

_COMPONENT = re.compile(r"^(observation|action)\[(\d+)\]$")

Floats = NDArray[np.float64]


def violations(constraint: ConstraintConfig, episode: Episode) -> NDArray[np.bool_]:
    """Which steps violate, (L,).

    An observation counts at the step that leads to it; the reset's observation counts at the first step. `return`
    and `length` are known when the episode ends: they count at the last step.

    Raises:
        ConfigError: when the episode has no such quantity; names those it has.
    """
    kind = quantity_kind(constraint)
    if kind in ("return", "length"):
        total = episode.episode_return if kind == "return" else float(episode.length)
        marks = np.zeros(episode.length, dtype=np.bool_)
        marks[-1] = bool(_outside(constraint, np.array([total]))[0])
        return marks
    marks = _outside(constraint, quantity(constraint, episode))
    if kind == "observation":
        first = _component(constraint, episode.obs[:1])
        marks[0] |= _outside(constraint, first)[0]
    return marks


def violates(constraint: ConstraintConfig, episode: Episode) -> bool:
    """Whether any step of the episode violates."""
    return bool(np.any(violations(constraint, episode)))


def would_violate(
    constraints: Sequence[ConstraintConfig], obs: NDArray[np.generic], action: NDArray[np.generic]
) -> NDArray[np.bool_]:
    """Which decisions would violate a limit on the action alone, (B,), from obs (B, *obs) and action (B, *action).

    Limits on anything else need the step's outcome, which a decision that is not carried out does not have: they
    never count here.
    """
    marks = np.zeros(len(obs), dtype=np.bool_)
    for constraint in constraints:
        if quantity_kind(constraint) == "action":
            marks |= _outside(constraint, _component(constraint, action))
    return marks


def quantity_kind(constraint: ConstraintConfig) -> str:
    """`observation`, `action`, `reward`, `return`, `length` or `info`."""
    return re.split(r"[\[.]", constraint.quantity, maxsplit=1)[0]


def quantity(constraint: ConstraintConfig, episode: Episode) -> Floats:
    """The quantity after each step, (L,); for `return` the return so far, for `length` the steps so far.

    Raises:
        ConfigError: when the episode has no such quantity.
    """
    kind = quantity_kind(constraint)
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
    return _info(constraint, episode)


def check_constraint(constraint: ConstraintConfig, episode: Episode) -> None:
    """Raise `ConfigError` when the constraint cannot be evaluated on such episodes."""
    kind = quantity_kind(constraint)
    if constraint.per == "step" and kind in ("return", "length"):
        raise ConfigError(
            f"safety.constraints: {constraint.name}: {kind} is known once per episode; set `per: episode`"
        )
    quantity(constraint, episode)


def limits(constraint: ConstraintConfig) -> str:
    """The allowed values in words, such as `within [-2.4, 2.4]` or `at most 25`."""
    if constraint.low is None:
        return f"at most {constraint.high:g}"
    if constraint.high is None:
        return f"at least {constraint.low:g}"
    return f"within [{constraint.low:g}, {constraint.high:g}]"


def _component(constraint: ConstraintConfig, values: NDArray[np.generic]) -> Floats:
    """One component of (N, *shape) values, (N,); `action` alone is the only component there is."""
    flat = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    match = _COMPONENT.match(constraint.quantity)
    index = int(match.group(2)) if match else 0
    if (match is None and flat.shape[1] != 1) or index >= flat.shape[1]:
        name = quantity_kind(constraint)
        allowed = f"{name}[0] ... {name}[{flat.shape[1] - 1}]"
        raise ConfigError(
            f"safety.constraints: {constraint.name}: found quantity {constraint.quantity!r}, but this environment has "
            f"{allowed}"
        )
    return flat[:, index]


def _info(constraint: ConstraintConfig, episode: Episode) -> Floats:
    key = constraint.quantity.removeprefix("info.")
    if key not in episode.info:
        present = ", ".join(f"info.{name}" for name in sorted(episode.info)) or "none"
        raise ConfigError(
            f"safety.constraints: {constraint.name}: the environment's info has no numeric key {key!r} in the episode "
            f"of seed {episode.seed}; its keys: {present}"
        )
    return np.asarray(episode.info[key], dtype=np.float64)


def _outside(constraint: ConstraintConfig, values: Floats) -> NDArray[np.bool_]:
    """NaN is outside: a quantity that is not known cannot be said to respect a limit."""
    low = -np.inf if constraint.low is None else constraint.low
    high = np.inf if constraint.high is None else constraint.high
    return ~((values >= low) & (values <= high))

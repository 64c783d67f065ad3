"""The challenger against the acting policy on the same observations: agreement, distance, values, violations, time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.config import ConstraintConfig
from loomrl.serving.decisions.choosing import Choices, choose
from loomrl.serving.policy.distance import action_distance, agrees
from loomrl.serving.policy.model import STATE_OUT, ServedPolicy
from loomrl.shadow.pairs import Pairs
from loomrl.statistics.clustered import clustered_mean, clustered_proportion, rate_over_units
from loomrl.types import FloatArray, Interval

_SEED = 20_261_120


@dataclass(frozen=True)
class ShadowComparison:
    """Everything that was measured. Agreement, distance and value difference are None without a champion, and where
    there are fewer than two units, which are agents where several were watched, else episodes.

    `num_errors` counts mirrored requests that the challenger failed on. `agreement`, and `chance_agreement`, what
    chance would give, are shares of the decisions; `action_distance` is a mean, in halves of the range of continuous
    actions; `value_difference` is challenger - champion. `would_be_violations` is None where no limit on actions is
    declared. `latency_seconds` has p50 and p99, with `challenger_` before them those of the challenger. `bitwise_equal`
    is None beside a champion and where nothing was served; else `num_unequal` served actions are not the artifact's
    own. `shortfall` says why there are fewer decisions than asked for.
    """

    has_champion: bool
    confidence: float
    num_decisions: int
    num_episodes: int
    num_units: int  # agents where several were watched, else episodes
    num_errors: int
    agreement: Interval | None
    chance_agreement: float
    action_distance: Interval | None
    value_difference: Interval | None  # challenger - champion
    would_be_violations: Interval | None
    latency_seconds: dict[str, float]
    bitwise_equal: bool | None
    num_unequal: int = 0
    shortfall: str = ""  # why there are fewer decisions than asked for


def compare(
    pairs: Pairs,
    policy: ServedPolicy,
    constraints: Sequence[ConstraintConfig],
    confidence: float,
    has_champion: bool,
    shortfall: str = "",
) -> ShadowComparison:
    """Measure; `policy` is the challenger's artifact, for its action space and for recomputing what was served.

    `shortfall` says why there are fewer decisions than asked for; it is passed on.

    Raises:
        ConfigError: for a limit on a component that actions do not have.
        ValueError: without a champion, when the artifact has no answer to an observation.
    """
    distance = action_distance(pairs.acted, pairs.mirrored, policy)
    unequal = None if has_champion or not pairs.num_decisions else num_unequal(pairs, policy)
    beside = has_champion and pairs.num_decisions > 0
    return ShadowComparison(
        has_champion=has_champion,
        confidence=confidence,
        num_decisions=pairs.num_decisions,
        num_episodes=pairs.num_episodes,
        num_units=len(np.unique(pairs.unit)),
        num_errors=pairs.num_errors,
        agreement=clustered_proportion(agrees(distance, policy), pairs.unit, confidence) if beside else None,
        chance_agreement=_by_chance(pairs, policy) if beside else 0.0,
        action_distance=clustered_mean(distance, pairs.unit, confidence) if beside else None,
        value_difference=clustered_mean(pairs.mirrored_value - pairs.acted_value, pairs.unit, confidence)
        if beside
        else None,
        would_be_violations=_violations(pairs, constraints, confidence),
        latency_seconds=_latency(pairs, has_champion),
        bitwise_equal=None if unequal is None else unequal == 0,
        num_unequal=unequal or 0,
        shortfall=shortfall,
    )


def num_unequal(pairs: Pairs, policy: ServedPolicy) -> int:
    """How many served actions differ, in any bit, from those the artifact itself decides for the same observations; 0
    without any decision.

    Raises:
        ValueError: when the artifact has no answer to an observation.
    """
    if not pairs.num_decisions:
        return 0
    own = _own_actions(pairs, policy)
    served = pairs.acted.astype(own.dtype)
    differ = (own != served).reshape(len(own), -1).any(axis=1)
    return int(differ.sum())


def _own_actions(pairs: Pairs, policy: ServedPolicy) -> NDArray[Any]:
    """What the artifact does after the same observations, (N, *action), its shield included."""
    if not policy.memory_size:
        return _choices(pairs, policy, np.arange(pairs.num_decisions)).action
    memory = np.zeros((pairs.num_decisions, policy.memory_size), np.float32)  # (episodes at most, M)
    own = np.empty_like(pairs.acted, dtype=policy.manifest.outputs["action"]["dtype"])
    for rows in _by_step(pairs.episode):
        choices = _choices(pairs, policy, rows, memory[pairs.episode[rows]])
        own[rows], memory[pairs.episode[rows]] = choices.action, choices.outputs[STATE_OUT]
    return own


def _choices(pairs: Pairs, policy: ServedPolicy, rows: NDArray[Any], memory: FloatArray | None = None) -> Choices:
    return choose(policy, pairs.observation[rows], [False] * len(rows), np.random.default_rng, memory)


def _by_step(episode: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The rows that are the first of their episodes, the second ones, and so on."""
    left = np.arange(len(episode))
    while len(left):
        _, first = np.unique(episode[left], return_index=True)
        yield left[first]
        left = np.delete(left, first)


def _by_chance(pairs: Pairs, policy: ServedPolicy) -> float:
    """How often they would agree if the challenger answered some other observation of the same traffic.

    For discrete actions this is the expected agreement of Cohen's kappa (1960), computed exactly; else by pairing
    each decision with the mirror of a random other one.
    """
    if policy.chooses:
        both = np.concatenate([pairs.acted, pairs.mirrored]).reshape(2 * pairs.num_decisions, -1)
        _, numbered = np.unique(both, axis=0, return_inverse=True)  # each distinct action by a number
        acted, mirrored = numbered.reshape(2, pairs.num_decisions)
        return float(sum(np.mean(acted == action) * np.mean(mirrored == action) for action in np.unique(numbered)))
    shuffled = np.random.default_rng(_SEED).permutation(pairs.num_decisions)
    return float(np.mean(agrees(action_distance(pairs.acted, pairs.mirrored[shuffled], policy), policy)))


def _violations(pairs: Pairs, constraints: Sequence[ConstraintConfig], confidence: float) -> Interval | None:
    """Share of decisions that would break a limit on actions, averaged over units; None where there is no such one."""
    from loomrl.safety.constraints import limits_on_actions, would_violate

    if not pairs.num_decisions or not limits_on_actions(constraints):
        return None
    marks = would_violate(constraints, pairs.observation, pairs.mirrored)
    _, unit = np.unique(pairs.unit, return_inverse=True)
    return rate_over_units(np.bincount(unit, weights=marks) / np.bincount(unit), confidence)


def _latency(pairs: Pairs, has_champion: bool) -> dict[str, float]:
    if not pairs.num_decisions:
        return {}
    p50, p99 = np.quantile(pairs.server_seconds, (0.5, 0.99))
    found = {"p50": float(p50), "p99": float(p99)}
    if has_champion:
        p50, p99 = np.quantile(pairs.challenger_seconds, (0.5, 0.99))
        found |= {"challenger_p50": float(p50), "challenger_p99": float(p99)}
    return found

"""How much more probable a policy makes each logged decision than it was: the importance ratios.

An estimate compares two policies that decide in the same way, both by their own choice or both sampled: the challenger,
and the champion, which explored when the log was written.

A propensity of 1 says that no other action was possible: nobody explored there, or a shield let nothing else happen.
Where a policy would do something else, the log ends for it: the episode counts up to that decision.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.log import CannotEstimate, LoggedEpisodes, require_complete
from loomrl.promotion.comparison.off_policy.target import (
    at_bounds,
    choice_index,
    choice_probabilities,
    choice_sizes,
    log_densities,
)
from loomrl.serving.policy.model import TEXT, ServedPolicy

Floats = NDArray[np.float64]
_ALIKE = 1e-3  # propensities, in units of their size; the log holds actions as float32
_ROUNDING = 1e-9  # of a probability that is 1
_FEW = 0.01  # of the decisions, whose propensity may be another one for want of digits


@dataclass(frozen=True)
class Ratios:
    """The ratios of every step, (S,) for each policy, and what a ratio can be at most, known beforehand; None where it
    is not."""

    challenger: Floats
    champion: Floats
    greatest_challenger: float | None
    greatest_champion: float


def importance_ratios(
    logged: LoggedEpisodes, champion: ServedPolicy, challenger: ServedPolicy, config: OffPolicyConfig
) -> tuple[LoggedEpisodes, Ratios]:
    """The log as far as it shows what both policies would do, and the ratios of its steps.

    Raises:
        CannotEstimate: when the log does not show what the challenger would do, with the reason and what to change.
        ConfigError: when a propensity is below the declared least one.
    """
    if not logged.explored:
        return logged, _without_exploration(logged, champion, challenger, config)
    if not challenger.chooses:
        return logged, _of_densities(logged, champion, challenger, config)
    return _of_choices(logged, champion, challenger, config)


def require_same_actions(champion: ServedPolicy, challenger: ServedPolicy) -> None:
    """Raises `CannotEstimate` where what one does is nothing the other could do."""
    if champion.kind == TEXT:
        raise CannotEstimate("texts are answered without exploration; compare the versions live (docs/comparing.md)")
    spaces = [policy.manifest.environment.action for policy in (champion, challenger)]
    if champion.kind != challenger.kind or spaces[0] != spaces[1]:
        raise CannotEstimate(
            f"the champion's actions are {champion.kind}, {spaces[0]}, the challenger's {challenger.kind}, {spaces[1]}"
        )


def _without_exploration(
    logged: LoggedEpisodes, champion: ServedPolicy, challenger: ServedPolicy, config: OffPolicyConfig
) -> Ratios:
    """Nothing was tried but the champion's choices: they say something only about a challenger that makes the same."""
    same = False
    if config.acting == "greedy" and challenger.chooses:
        chosen = choice_probabilities(challenger, logged.observation, greedy=True)
        same = bool(np.all(_at(chosen, choice_index(champion, logged.action)) == 1.0))
    if not same:
        raise CannotEstimate(
            f"version {champion.version} decided without exploration, every propensity is 1: the log does not show "
            'what other actions lead to; let agents send "explore": true with every decision of some episodes'
        )
    ones = np.ones(len(logged.reward))
    return Ratios(ones, ones, 1.0, 1.0)


def _of_choices(
    logged: LoggedEpisodes, champion: ServedPolicy, challenger: ServedPolicy, config: OffPolicyConfig
) -> tuple[LoggedEpisodes, Ratios]:
    greedy, index = config.acting == "greedy", choice_index(champion, logged.action)
    least = config.min_propensity
    if least is not None and logged.propensity.min() < least * (1.0 - _ALIKE):
        raise ConfigError(
            f"min_propensity is {least:g}, but the log has a propensity of {logged.propensity.min():g}; lower it"
        )
    own, other = (
        _at(choice_probabilities(policy, logged.observation, greedy), index) for policy in (champion, challenger)
    )
    logged, shown = _as_far_as_shown(logged, (logged.propensity < 1.0) | (np.minimum(own, other) > 1.0 - _ROUNDING))
    require_complete(int(np.sum(~logged.is_whole)), len(logged.lengths), config)
    own, other = own[shown], other[shown]
    ratios = other / logged.propensity
    greatest = None if least is None else 1.0 / (least * (1.0 - _ALIKE))
    if not greedy:
        _require_own(champion, own, logged.propensity)
        return logged, Ratios(ratios, np.ones_like(own), greatest, 1.0)
    num_choices = float(np.prod(choice_sizes(champion)))
    if np.any(own / logged.propensity > num_choices * (1.0 + _ALIKE)):
        raise CannotEstimate(
            f"version {champion.version} explored so that its own choice was less probable than by chance; explore "
            "with its own distribution, or with epsilon"
        )
    return logged, Ratios(ratios, own / logged.propensity, greatest, num_choices * (1.0 + _ALIKE))


def _as_far_as_shown(logged: LoggedEpisodes, shown: NDArray[np.bool_]) -> tuple[LoggedEpisodes, NDArray[np.bool_]]:
    """The episodes up to the first decision (S,) that does not show what policies would do, and which steps those are.

    What was certain is known before it happens, so to end there is no choice by what was drawn.
    """
    first = np.flatnonzero(logged.step == 0)
    lengths = np.minimum.reduceat(np.where(shown, np.repeat(logged.lengths, logged.lengths), logged.step), first)
    if np.any(lengths == 0):
        raise CannotEstimate(
            f"in {int(np.sum(lengths == 0))} episodes the first action was certain, and the challenger would take "
            "another: the log does not show what that leads to; explore from the first decision on"
        )
    return logged.until(lengths), logged.step < np.repeat(lengths, logged.lengths)


def _of_densities(
    logged: LoggedEpisodes, champion: ServedPolicy, challenger: ServedPolicy, config: OffPolicyConfig
) -> Ratios:
    if config.acting == "greedy":
        raise CannotEstimate(
            "one choice among a continuum has no density, so no logged action weighs anything for it; ask for "
            "`acting: sampled`, which takes the challenger to explore as the champion did"
        )
    own = log_densities(champion, logged.observation, logged.action)
    if champion.kind != "squashed":  # of a squashed action the log's density holds the slope of tanh
        inside = ~at_bounds(champion, logged.action).any(axis=(0, 2))  # of a clipped one, that before clipping
        _require_own(champion, np.exp(own[inside]), logged.propensity[inside])
    ratios = np.exp(log_densities(challenger, logged.observation, logged.action) - own)
    return Ratios(ratios, np.ones_like(own), None, 1.0)


def _require_own(champion: ServedPolicy, own: Floats, propensity: Floats) -> None:
    """The champion was sampled as its graph says: then, and only then, it is what the log itself shows."""
    others = np.abs(own - propensity) > _ALIKE * np.maximum(own, propensity)
    if np.mean(others) > _FEW:
        raise CannotEstimate(
            f"{int(others.sum())} of {len(others)} propensities are not those of version {champion.version}'s own "
            "distribution: it explored in another way; ask for `acting: greedy`"
        )


def _at(probabilities: Floats, index: NDArray[np.int64]) -> Floats:
    return np.asarray(probabilities[np.arange(len(index)), index])

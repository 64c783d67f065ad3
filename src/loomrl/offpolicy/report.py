"""What the champion's log says a challenger would earn: estimates, bounds where there are any, refusals with reasons.

Bounds are by betting (`loomrl.betting`). One from below needs only that no term is below a known least one, so the
weighted returns have one whatever the weights are. Self-normalised and doubly robust estimates weigh what is
negative, too: they have a bound only where the greatest weight is known beforehand, from `min_propensity`
(Karampatziakis, Mineiro and Ramdas, Off-policy confidence sequences, 2021). Fitted Q has none: it is as good as its
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loomrl.betting import lower_bound, ratio_lower_bound
from loomrl.monitoring.window import LiveEpisode
from loomrl.offpolicy import estimators, fitted_q
from loomrl.offpolicy.config import OffPolicyConfig
from loomrl.offpolicy.log import CannotEstimate, Logged, read_logged, reward_range
from loomrl.offpolicy.ratios import Ratios, demand_same_actions, importance_ratios
from loomrl.schema import Document
from loomrl.serving.model import ServedPolicy

Floats = NDArray[np.float64]
_MOST_WEIGHT = 1e9  # what is bounded by more is not bounded by anything that helps
_FITTED_STEPS = 20_000  # what fitted Q learns from at most: it passes over all of them for every step of an episode
_NEEDS_LEAST = "its greatest weight is not known: set min_propensity to the least that exploration gives any action"
_TOO_LONG = "episodes of so many steps may weigh too much"
_MODEL = "how wrong its model is, the log does not show"


class Estimate(Document):
    """One estimator's word on the challenger's mean return; either a value or why it is refused."""

    estimator: str
    value: float | None = None
    standard_error: float | None = None  # approximate, for reading; decisions rest on the bound
    low: float | None = None  # the mean return exceeds it with the report's confidence, each bound for itself
    no_bound: str = ""
    refused: str = ""


class Improvement(Document):
    """The challenger's mean return minus the champion's, had both acted in the same way; bounds one-sided."""

    value: float
    low: float | None
    high: float | None


class OffPolicyReport(Document):
    """Everything the champion's log says about a challenger; `refused` says why it says nothing."""

    policy: str
    champion_version: str
    challenger_version: str
    acting: str  # how both are taken to decide: "greedy" or "sampled"
    confidence: float
    num_episodes: int = 0
    num_decisions: int = 0
    left_out: dict[str, int] = Field(default_factory=dict)  # episodes, by reason
    logged_mean: float | None = None  # what these episodes earned, with the champion's exploration
    effective_sample_size: float | None = None  # of the episodes, for the challenger
    effective_decisions: float | None = None  # of single decisions
    mean_weight: float | None = None  # 1, give or take, where the log shows all the challenger would do
    assumptions: list[str] = Field(default_factory=list)
    estimates: list[Estimate] = Field(default_factory=list)
    improvement: Improvement | None = None
    refused: str = ""


def estimate(
    policy: str,
    episodes: Sequence[LiveEpisode],
    champion: ServedPolicy,
    challenger: ServedPolicy,
    config: OffPolicyConfig,
) -> OffPolicyReport:
    """All estimates from the episodes of the champion's version.

    Raises:
        ConfigError: when the log contradicts `reward_range` or `min_propensity`.
    """
    report = OffPolicyReport(
        policy=policy,
        champion_version=champion.version,
        challenger_version=challenger.version,
        acting=config.acting,
        confidence=config.confidence,
    )
    try:
        demand_same_actions(champion, challenger)
        logged, left_out = read_logged(episodes, champion.version, config.max_left_out_share)
    except CannotEstimate as reason:
        return report.model_copy(update={"refused": str(reason)})
    case = _Case(logged, champion, challenger, config, *reward_range(logged, config.reward_range))
    read = {
        "num_episodes": len(logged.lengths),
        "num_decisions": len(logged.reward),
        "left_out": left_out,
        "logged_mean": float(logged.reward.sum() / len(logged.lengths)),
        "assumptions": _assumptions(case),
    }
    return report.model_copy(update=read | _found(case))


@dataclass(frozen=True)
class _Case:
    """Everything an estimate needs. `low` and `high` are what a step can earn."""

    logged: Logged
    champion: ServedPolicy
    challenger: ServedPolicy
    config: OffPolicyConfig
    low: float
    high: float

    @cached_property
    def regression(self) -> fitted_q.Regression:
        return fitted_q.regression(self.logged, self.challenger, self.config)

    @cached_property
    def rewards(self) -> Floats:
        return self.logged.padded(self.logged.reward, 0.0)  # (N, T)

    @property
    def least_return(self) -> float:
        return self.low * float(self.rewards.shape[1])

    @property
    def spread(self) -> float:
        return self.high - self.low


def _assumptions(case: _Case) -> list[str]:
    """What no log can show, and bounds rest on."""
    found = ["episodes do not depend on each other, and those to come are like those in the log"]
    if case.config.reward_range is None:
        found.append(f"no reward is below {case.low:g} or above {case.high:g}: set reward_range where that is known")
    if case.low < 0.0:
        found.append(f"no episode is longer than the longest in the log, {case.rewards.shape[1]} steps")
    return found


def _found(case: _Case) -> dict[str, object]:
    """The fields of the report that the log decides."""
    try:
        ratios = importance_ratios(case.logged, case.champion, case.challenger, case.config)
    except CannotEstimate as reason:
        return {"refused": str(reason), "estimates": [_fitted(case, None, str(reason))]}
    with np.errstate(over="ignore"):
        weights = estimators.cumulative(case.logged.padded(ratios.challenger, 1.0))
    decisions = estimators.effective_sample_size(ratios.challenger)
    found: dict[str, object] = {"effective_decisions": decisions}
    fitted = _fitted(case, decisions, "")
    if not np.isfinite(weights).all():
        return found | {"refused": _too_long(case), "estimates": [fitted]}
    size = estimators.effective_sample_size(weights[:, -1])
    found |= {"effective_sample_size": size, "mean_weight": float(weights[:, -1].mean())}
    if size < case.config.min_effective_sample_size:
        return found | {"refused": _too_few(case, size), "estimates": [fitted]}
    estimates = [*_weighted(case, weights, ratios.greatest_challenger), fitted]
    return found | {"estimates": estimates, "improvement": _improvement(case, weights, ratios)}


def _too_few(case: _Case, size: float) -> str:
    return (
        f"{len(case.logged.lengths)} episodes are worth {size:.1f} of the challenger's own, fewer than "
        f"min_effective_sample_size = {case.config.min_effective_sample_size:g}: it decides too differently, or "
        "episodes are too long; let more episodes be explored, or compare the two live"
    )


def _too_long(case: _Case) -> str:
    return (
        f"the weights of episodes of up to {case.rewards.shape[1]} steps are beyond all numbers: champion and "
        "challenger decide too differently; compare the two live"
    )


def _weighted(case: _Case, weights: Floats, greatest: float | None) -> list[Estimate]:
    rewards, confidence = case.rewards, case.config.confidence
    shifted, least, whole = rewards - case.low, case.least_return, weights[:, -1]
    terms = estimators.importance_terms(weights, rewards)
    found = [
        Estimate(
            estimator="importance sampling",
            value=float(terms.mean()),
            standard_error=_error(terms),
            low=least + lower_bound(estimators.importance_terms(weights, shifted), confidence),
        )
    ]
    value = estimators.self_normalised(weights, rewards)
    residual = whole * (rewards.sum(axis=1) - value) / whole.mean()
    low, missing = None, _no_bound(greatest, rewards.shape[1])
    if greatest is not None and not missing:
        most = greatest ** rewards.shape[1]
        low = least + ratio_lower_bound(estimators.importance_terms(weights, shifted), whole, most, confidence)
    found.append(
        Estimate(estimator="self-normalised", value=value, standard_error=_error(residual), low=low, no_bound=missing)
    )
    if rewards.shape[1] > 1:
        found += _per_decision(case, weights)
    return [*found, _doubly_robust(case, weights, greatest)]


def _per_decision(case: _Case, weights: Floats) -> list[Estimate]:
    terms = estimators.per_decision_terms(weights, case.rewards)
    shifted = estimators.per_decision_terms(weights, case.rewards - case.low)
    return [
        Estimate(
            estimator="per decision",
            value=float(terms.mean()),
            standard_error=_error(terms),
            low=case.least_return + lower_bound(shifted, case.config.confidence),
        ),
        Estimate(
            estimator="per decision, self-normalised",
            value=estimators.per_decision_self_normalised(weights, case.rewards),
            no_bound="it is a sum of ratios, one for each step",
        ),
    ]


def _doubly_robust(case: _Case, weights: Floats, greatest: float | None) -> Estimate:
    """No term is below what the least rewards and the greatest weights can make of it: a surprise with k steps to go
    is at worst k times the spread of rewards."""
    expected, num_steps = fitted_q.forward(case.logged, case.regression, case.low, case.high), case.rewards.shape[1]
    q, v = (case.logged.padded(values, 0.0) for values in (expected.q, expected.v))
    terms = estimators.doubly_robust_terms(weights, case.rewards, q, v)
    low, missing = None, _no_bound(greatest, num_steps)
    if greatest is not None and not missing:
        step = np.arange(num_steps)
        least = case.least_return - case.spread * float(np.sum(greatest ** (step + 1.0) * (num_steps - step)))
        low = least + lower_bound(terms - least, case.config.confidence)
    return Estimate(
        estimator="doubly robust",
        value=float(terms.mean()),
        standard_error=_error(terms),
        low=low,
        no_bound=missing,
    )


def _no_bound(greatest: float | None, num_steps: int) -> str:
    """Why an estimate that needs the greatest weight has no bound; empty where it has one."""
    if greatest is None:
        return _NEEDS_LEAST
    return _TOO_LONG if num_steps * np.log(greatest) > np.log(_MOST_WEIGHT) else ""


def _fitted(case: _Case, effective_decisions: float | None, reason: str) -> Estimate:
    """It needs no weights, so it has a word also where one choice among a continuum has none; but it needs actions
    that are like those the challenger would take."""
    name, needed = "fitted Q", case.config.min_effective_sample_size
    if effective_decisions is None and (not case.logged.explored or case.challenger.chooses):
        return Estimate(estimator=name, refused=reason)
    if effective_decisions is not None and effective_decisions < needed:
        few = f"the decisions are worth {effective_decisions:.1f} of the challenger's own, fewer than {needed:g}"
        return Estimate(estimator=name, refused=few)
    newest = case.logged.newest(_FITTED_STEPS)
    try:
        model = fitted_q.regression(newest, case.challenger, case.config)
    except CannotEstimate as error:
        return Estimate(estimator=name, refused=str(error))
    value = fitted_q.value(newest, model, case.low, case.high)
    return Estimate(estimator=name, value=value, no_bound=_MODEL)


def _improvement(case: _Case, weights: Floats, ratios: Ratios) -> Improvement:
    """Episode by episode, so that what both would do alike takes no part in it; by decision, rewards shifted so that
    none is negative. Then a difference is at worst what the champion's greatest weights make of the greatest rewards.
    """
    champion = estimators.cumulative(case.logged.padded(ratios.champion, 1.0))
    terms = estimators.per_decision_terms(weights - champion, case.rewards - case.low)
    confidence, low, high = case.config.confidence, None, None
    if (worst := _most(case, ratios.greatest_champion)) is not None:
        low = lower_bound(terms + worst, confidence) - worst
    if (best := _most(case, ratios.greatest_challenger)) is not None:
        high = best - lower_bound(best - terms, confidence)
    value = float(estimators.per_decision_terms(weights - champion, case.rewards).mean())
    return Improvement(value=value, low=low, high=high)


def _most(case: _Case, greatest: float | None) -> float | None:
    """What the shifted rewards of an episode can sum to with these ratios; None where nothing sensible bounds it."""
    num_steps = case.rewards.shape[1]
    if greatest is None or _no_bound(greatest, num_steps):
        return None
    return case.spread * float(np.sum(greatest ** (np.arange(num_steps) + 1.0)))


def _error(terms: Floats) -> float:
    return float(terms.std(ddof=1) / np.sqrt(len(terms))) if len(terms) > 1 else float("inf")

"""What the champion's log says a challenger would earn: estimates, bounds where there are any, refusals with reasons.

Bounds are by betting (`loomrl.statistics.betting`). One from below needs only that no term is below a known least one,
so the weighted returns have one whatever the weights are. Self-normalised and doubly robust estimates weigh what is
negative, too: they have a bound only where the greatest weight is known beforehand, from `min_propensity`
(Karampatziakis, Mineiro and Ramdas, Off-policy confidence sequences, 2021). Fitted Q has none: it is as good as its
model.

Rewards that are not known count as the worst there can be: what an episode that has not ended would still earn, by the
weight it had come to, and every reward that did not come. Of right propensities the mean weight is 1, whatever the
agents are like; where the log contradicts that, nothing is estimated from it.

What is assigned at random is each decision, so the bounds hold for the agents that are in the log, however they differ.
That their mean is that of others too, needs agents as the units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.off_policy import estimators, fitted_q
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.log import CannotEstimate, LoggedEpisodes, read_logged, reward_range
from loomrl.promotion.comparison.off_policy.ratios import Ratios, importance_ratios, require_same_actions
from loomrl.promotion.comparison.off_policy.weights import contradicts_one
from loomrl.promotion.comparison.window import WindowEpisode
from loomrl.serving.policy.model import ServedPolicy
from loomrl.statistics.betting import lower_bound, ratio_lower_bound
from loomrl.system.schema import Document

Floats = NDArray[np.float64]
_MOST_WEIGHT = 1e9  # what is bounded by more is not bounded by anything that helps
_FITTED_STEPS = 20_000  # what fitted Q learns from at most: it passes over all of them for every step of an episode
_LEAST_P = 0.001  # by chance it is less in one of a thousand logs
_REDRAWS = 5_000
_NEEDS_LEAST = "its greatest weight is not known: set min_propensity to the least that exploration gives any action"
_TOO_LONG = "episodes of so many steps may weigh too much"
_MODEL = "how wrong its model is, the log does not show"
_STOPPED = (
    "agents' last episodes earn otherwise than their others: how many episodes an agent has depends on what came of "
    "them, or the world drifts; a mean of agents' means is then no sample's: set units: episodes"
)


class Estimate(Document):
    """One estimator's word on the challenger's mean return: a `value`, or None and in `refused` why.

    The mean return exceeds `low` with the report's confidence; None where `no_bound` says why. `standard_error` is
    approximate, for reading.
    """

    estimator: str
    value: float | None = None
    standard_error: float | None = None  # approximate, for reading; decisions rest on the bound
    low: float | None = None  # the mean return exceeds it with the report's confidence, each bound for itself
    no_bound: str = ""
    refused: str = ""


class Improvement(Document):
    """The challenger's mean return minus the champion's, had both acted in the same way.

    Bounds are one-sided, at the report's confidence; None where the greatest ratios are not known or too great.
    """

    value: float
    low: float | None
    high: float | None


class OffPolicyReport(Document):
    """Everything the champion's log says about a challenger; `refused` says why it says nothing, and is empty where it
    does.

    `acting` says how both are taken to decide, "greedy" or "sampled". `left_out` and `incomplete` count episodes by
    reason: those that were not used, and those that count as far as they are known. `logged_mean` is what the episodes
    earned with the champion's exploration. The effective sizes say how many of the challenger's own episodes, and
    decisions, the log is worth. Figures that were not computed are None.
    """

    policy: str
    champion_version: str
    challenger_version: str
    acting: str  # how both are taken to decide: "greedy" or "sampled"
    confidence: float
    num_episodes: int = 0
    num_decisions: int = 0
    num_agents: int = 0
    left_out: dict[str, int] = Field(default_factory=dict)  # episodes, by reason
    incomplete: dict[str, int] = Field(default_factory=dict)  # those that count as far as they are known
    logged_mean: float | None = None  # what these episodes earned, with the champion's exploration
    effective_sample_size: float | None = None  # of the episodes, for the challenger
    effective_decisions: float | None = None  # of single decisions
    mean_weight: float | None = None  # 1, give or take, where the log shows all the challenger would do
    assumptions: list[str] = Field(default_factory=list)
    estimates: list[Estimate] = Field(default_factory=list)
    improvement: Improvement | None = None
    refused: str = ""

    def without_claims(self, why: str) -> "OffPolicyReport":
        """The same without any estimate, and `why` as `refused`: where something is missing that could change each."""
        return self.model_copy(update={"estimates": [], "improvement": None, "refused": why})


def estimate(
    policy: str,
    episodes: Sequence[WindowEpisode],
    champion: ServedPolicy,
    challenger: ServedPolicy,
    config: OffPolicyConfig,
) -> OffPolicyReport:
    """All estimates from the episodes of the champion's version. Where the log allows none, the report says why in
    `refused`.

    Raises:
        ConfigError: when the log contradicts `reward_range`, `max_steps` or `min_propensity`.
    """
    report = OffPolicyReport(
        policy=policy,
        champion_version=champion.version,
        challenger_version=challenger.version,
        acting=config.acting,
        confidence=config.confidence,
    )
    try:
        require_same_actions(champion, challenger)
        logged, left_out, incomplete = read_logged(episodes, champion.version, config, challenger.chooses)
    except CannotEstimate as reason:
        return report.model_copy(update={"refused": str(reason)})
    case = _Case(logged, champion, challenger, config, *reward_range(logged, config.reward_range))
    _require_shorter(case)
    read = {
        "num_episodes": len(logged.lengths),
        "num_decisions": len(logged.reward),
        "num_agents": int(logged.agent.max()) + 1,
        "left_out": left_out,
        "incomplete": incomplete,
        "logged_mean": float(logged.reward.sum() / len(logged.lengths)),
        "assumptions": _assumptions(case),
    }
    return report.model_copy(update=read | _found(case))


@dataclass(frozen=True)
class _Case:
    """Everything an estimate needs. `low` and `high` are what a step can earn."""

    logged: LoggedEpisodes
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
        return self.logged.padded(self.logged.reward, 0.0)  # (N, T), 0 where none came

    @cached_property
    def shifted(self) -> Floats:
        """Above the least, (N, T): none is below 0, and 0 where none came."""
        return self.logged.padded((self.logged.reward - self.low) * self.logged.is_known, 0.0)

    @cached_property
    def lacking(self) -> Floats:
        """1 where a decision's reward did not come, (N, T)."""
        return self.logged.padded((~self.logged.is_known).astype(np.float64), 0.0)

    @cached_property
    def to_come(self) -> Floats:
        """How many steps may follow those of each episode, (N,)."""
        return np.where(self.logged.is_whole, 0, self.num_steps - self.logged.lengths).astype(np.float64)

    @property
    def num_steps(self) -> int:
        """Of the longest episode there can be."""
        return self.config.max_steps or int(self.logged.lengths.max())

    @property
    def least_return(self) -> float:
        return self.low * float(self.num_steps)

    def units(self, values: Floats) -> Floats:
        """Values of episodes (N,), or their means of each agent where agents are the units."""
        if self.config.units == "episodes":
            return values
        agent = self.logged.agent
        return np.asarray(np.bincount(agent, values) / np.bincount(agent))

    @property
    def spread(self) -> float:
        return self.high - self.low


def _assumptions(case: _Case) -> list[str]:
    """What no log can show, and bounds rest on."""
    num_agents = int(case.logged.agent.max()) + 1
    found = ["no episode depends on what was done in another, and those to come are like those in the log"]
    if case.config.units == "agents":
        found.append(f"the {num_agents} agents are a sample of all, and each counts once, with its mean")
        found.append("how many episodes an agent has does not depend on what came of them")
    else:
        who = f"the {num_agents} agents" if num_agents > 1 else "the only agent"
        found.append(
            f"bounds are about {who} in the log, with their episodes there; set units: agents to include others"
        )
    if num_incomplete := int(np.sum(~case.logged.is_whole)):
        found.append(
            f"values count {num_incomplete} episodes that were not seen whole as far as they were; bounds, the worst"
        )
    if case.config.reward_range is None:
        found.append(f"no reward is below {case.low:g} or above {case.high:g}: set reward_range where that is known")
    if case.config.max_steps is None and (case.low < 0.0 or case.to_come.any() or not case.logged.is_whole.all()):
        found.append(f"no episode is longer than the longest in the log, {case.num_steps} steps: set max_steps")
    return found


def _require_shorter(case: _Case) -> None:
    if case.num_steps < (longest := int(case.logged.lengths.max())):
        raise ConfigError(f"max_steps is {case.num_steps}, but the log has an episode of {longest}; raise it")


def _found(case: _Case) -> dict[str, object]:
    """The fields of the report that the log decides."""
    try:
        logged, ratios = importance_ratios(case.logged, case.champion, case.challenger, case.config)
    except CannotEstimate as reason:
        return {"refused": str(reason), "estimates": [_fitted(case, None, str(reason))]}
    case = replace(case, logged=logged)
    with np.errstate(over="ignore"):
        weights, own = (estimators.cumulative(logged.padded(of, 1.0)) for of in (ratios.challenger, ratios.champion))
    decisions = estimators.effective_sample_size(ratios.challenger)
    found: dict[str, object] = {"effective_decisions": decisions, "assumptions": _assumptions(case)}
    fitted = _fitted(case, decisions, "")
    if not np.isfinite(weights).all():
        return found | {"refused": _too_long(case), "estimates": [fitted]}
    whole = weights[:, -1]
    size = estimators.effective_sample_size(whole)
    found |= {"effective_sample_size": size, "mean_weight": float(whole.mean())}
    if size < case.config.min_effective_sample_size:
        return found | {"refused": _too_few(case, size), "estimates": [fitted]}
    for policy, of_it, greatest in (
        (case.champion, own[:, -1], ratios.greatest_champion),
        (case.challenger, whole, ratios.greatest_challenger),
    ):
        if contradicts_one(of_it, _greatest_weight(greatest, case.num_steps)):
            return found | {"refused": _contradicted(policy, of_it), "estimates": [fitted]}
    if case.config.units == "agents" and _p_last_is_any(case) < _LEAST_P:
        return found | {"refused": _STOPPED, "estimates": [fitted]}
    estimates = [*_weighted(case, weights, ratios.greatest_challenger), fitted]
    return found | {"estimates": estimates, "improvement": _improvement(case, weights, own, ratios)}


def _p_last_is_any(case: _Case) -> float:
    """The p-value, by drawing one episode of each agent anew, of the hypothesis that agents' last whole episodes earn
    what any of theirs do, as where nothing that came of them decides how many there are; 1 where all have as many."""
    whole = case.logged.is_whole
    agent, earned = case.logged.agent[whole], case.rewards.sum(axis=1)[whole]
    order = np.argsort(agent, kind="stable")  # episodes are in the order of time
    counts = np.unique(agent, return_counts=True)[1]
    if not len(counts) or counts.min() == counts.max():
        return 1.0
    ends = np.cumsum(counts)
    centred = earned[order] - np.repeat(np.add.reduceat(earned[order], ends - counts) / counts, counts)
    found = abs(float(centred[ends - 1].sum()))
    drawn = np.random.default_rng(0).random((_REDRAWS, len(counts)))
    sums = centred[ends - counts + (drawn * counts).astype(np.intp)].sum(axis=1)
    as_far = np.count_nonzero(np.abs(sums) >= found * (1.0 - 1e-9))
    return (1 + as_far) / (1 + _REDRAWS)


def _contradicted(policy: ServedPolicy, weights: Floats) -> str:
    return (
        f"version {policy.version}'s weights are {weights.mean():.3g} in the mean, which contradicts 1: the log's "
        "propensities are not those with which these episodes came about, as where it depends on what was drawn which "
        "episodes are logged; compare the two live"
    )


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
    rewards, confidence, units = case.rewards, case.config.confidence, case.units
    least, whole = case.least_return, weights[:, -1]
    terms, shifted = (estimators.importance_terms(weights, values) for values in (rewards, case.shifted))
    found = [_of_terms("importance sampling", units(terms), least + lower_bound(units(shifted), confidence))]
    value = estimators.self_normalised(weights, rewards)
    residual = whole * (rewards.sum(axis=1) - value) / whole.mean()
    low, missing = None, _no_bound(greatest, case.num_steps)
    if greatest is not None and not missing:
        low = least + ratio_lower_bound(units(shifted), units(whole), greatest**case.num_steps, confidence)
    found.append(
        Estimate(
            estimator="self-normalised", value=value, standard_error=_error(units(residual)), low=low, no_bound=missing
        )
    )
    if rewards.shape[1] > 1:
        found += _per_decision(case, weights)
    return [*found, _doubly_robust(case, weights, greatest)]


def _per_decision(case: _Case, weights: Floats) -> list[Estimate]:
    terms = case.units(estimators.per_decision_terms(weights, case.rewards))
    shifted = case.units(estimators.per_decision_terms(weights, case.shifted))
    return [
        _of_terms("per decision", terms, case.least_return + lower_bound(shifted, case.config.confidence)),
        Estimate(
            estimator="per decision, self-normalised",
            value=estimators.per_decision_self_normalised(weights, case.rewards),
            no_bound="it is a sum of ratios, one for each step",
        ),
    ]


def _doubly_robust(case: _Case, weights: Floats, greatest: float | None) -> Estimate:
    """No term is below what the least rewards and the greatest weights can make of it: a surprise with k steps to go
    is at worst k times the spread of rewards."""
    expected, num_steps = fitted_q.forward(case.logged, case.regression, case.low, case.high), case.num_steps
    q, v = (case.logged.padded(values, 0.0) for values in (expected.q, expected.v))
    terms = case.units(estimators.doubly_robust_terms(weights, case.rewards, q, v))
    low, missing = None, _no_bound(greatest, num_steps)
    if greatest is not None and not missing:
        not_known = estimators.per_decision_terms(weights, case.lacking) + weights[:, -1] * case.to_come
        worst = terms + case.low * case.units(not_known)
        step = np.arange(num_steps)
        least = case.least_return - case.spread * float(np.sum(greatest ** (step + 1.0) * (num_steps - step)))
        low = least + lower_bound(worst - least, case.config.confidence)
    return _of_terms("doubly robust", terms, low, missing)


def _greatest_weight(greatest: float | None, num_steps: int) -> float | None:
    """Of an episode; None where it is not known, or bounds nothing."""
    return None if greatest is None or _no_bound(greatest, num_steps) else greatest**num_steps


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


def _improvement(case: _Case, weights: Floats, own: Floats, ratios: Ratios) -> Improvement:
    """Episode by episode, so that what both would do alike takes no part in it; by decision, rewards shifted so that
    none is negative. Then a difference is at worst what the champion's greatest weights make of the greatest rewards.
    """
    more, confidence, low, high = weights - own, case.config.confidence, None, None
    terms = estimators.per_decision_terms(more, case.shifted)
    if (worst := _most(case, ratios.greatest_champion)) is not None:
        low = lower_bound(case.units(terms - _not_known(case, own - weights, own)) + worst, confidence) - worst
    if (best := _most(case, ratios.greatest_challenger)) is not None:
        high = best - lower_bound(best - case.units(terms + _not_known(case, more, weights)), confidence)
    value = float(case.units(estimators.per_decision_terms(more, case.rewards)).mean())
    return Improvement(value=value, low=low, high=high)


def _not_known(case: _Case, more: Floats, weights: Floats) -> Floats:
    """How much of a difference, (N,), rewards that are not known may make at most: those that did not come by how
    much `more` (N, T) they weigh for one policy, those to come by its weight."""
    steps = estimators.per_decision_terms(np.maximum(more, 0.0), case.lacking) + weights[:, -1] * case.to_come
    return np.asarray(case.spread * steps)


def _most(case: _Case, greatest: float | None) -> float | None:
    """What the shifted rewards of an episode can sum to with these ratios; None where nothing sensible bounds it."""
    if greatest is None or _no_bound(greatest, case.num_steps):
        return None
    return case.spread * float(np.sum(greatest ** (np.arange(case.num_steps) + 1.0)))


def _of_terms(name: str, terms: Floats, low: float | None, no_bound: str = "") -> Estimate:
    """The mean of terms, one for each unit."""
    value, error = float(terms.mean()), _error(terms)
    return Estimate(estimator=name, value=value, standard_error=error, low=low, no_bound=no_bound)


def _error(terms: Floats) -> float:
    return float(terms.std(ddof=1) / np.sqrt(len(terms))) if len(terms) > 1 else float("inf")

"""Reward and outcome do not depend on a protected feature: the same episodes with each of its values.

A feature is a parameter of the environment's constructor. Two questions are asked of each. Does the same step earn the
same, whoever it is about: r(s, a, z) = r(s, a, z')? And do episodes come out the same for each value, within a margin:
two one-sided tests (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987) on pairs with the same seed, each of
which takes a loss into account that is too rare to have been seen (`loomrl.statistics.intervals.paired_p_below`).
"""

import itertools
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from loomrl.environment.construct import construct
from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.certified.regions import Component, place_of, refusal
from loomrl.safety.check import REWARD_BIAS, CheckConfig, Context, Demand, Judgement, Scope
from loomrl.safety.probing.judging import FEWEST_PAIRS
from loomrl.safety.probing.worlds import are_alike, play_in, play_there, with_parameter
from loomrl.statistics.intervals import holm, largest_unseen, paired_p_below
from loomrl.statistics.spending import level
from loomrl.system.schema import Section, demand_distinct
from loomrl.types import Bound, Claim, ClaimLabel, Episode, LabelKind, Verdict

NAME = "reward_bias"
STAGE = REWARD_BIAS
LOCAL = False
_ENOUGH_COMPARED = 0.5  # of all steps
_REPLICATES = 2_000  # weighted means that are drawn at once; where few decide, more are


class FeatureConfig(Section):
    """A protected feature: the constructor's `parameter` and the `values` it may have.

    `observed_as` names components of the observation that show it: they may differ when steps are compared.
    `outcome_margin` is by how much mean returns may differ; without one only rewards are compared.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    parameter: str = Field(min_length=1)
    values: list[Any] = Field(min_length=2)
    observed_as: list[Component] = Field(default_factory=list)
    outcome_margin: float | None = Field(default=None, gt=0)


class RewardBiasConfig(CheckConfig):
    """Protected features that are examined, each on `num_episodes` seeds; none by default. A reward may differ by
    `reward_tolerance` for rounding."""

    features: list[FeatureConfig] = Field(default_factory=list)
    num_episodes: int = Field(default=128, ge=2)
    reward_tolerance: float = Field(default=1e-6, ge=0)

    @model_validator(mode="after")
    def _distinct(self) -> "RewardBiasConfig":
        demand_distinct(self.features, "features")
        for feature in self.features:
            for one, other in itertools.combinations(feature.values, 2):
                if one == other:
                    raise ValueError(
                        f"features: {feature.name}: values: {one!r} and {other!r} are equal; name values that differ"
                    )
        return self


Config = RewardBiasConfig  # as all plug-ins of this kind name it


def check_spaces(config: RewardBiasConfig, observation_space: Any, action_space: Any) -> None:  # noqa: ARG001 - a check's signature
    """Raises `ConfigError` for a component that is not observed, before anything is trained."""
    for feature in config.features:
        _hidden(feature, observation_space)


def examine(context: Context, config: RewardBiasConfig) -> list[Claim]:
    """For each feature a claim about rewards, and one about outcomes where there is a margin.

    Raises:
        ConfigError: for a component that is not observed.
        EnvironmentFault: when the environment breaks its API.
    """
    claims = []
    for feature in config.features:
        seeds = context.config.seeds[: config.num_episodes]
        worlds = [with_parameter(context.snapshot_folder, feature.parameter, value) for value in feature.values]
        played = [play_there(context, world, seeds, context.rng(NAME)) for world in worlds]
        claims.append(_reward_claim(context, config, feature, played))
        if feature.outcome_margin is not None:
            claims.append(_outcome_claim(context, feature, played, feature.outcome_margin))
    return claims


def scope(config: RewardBiasConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    if claim.id.endswith(".reward"):
        if not claim.num_samples:
            return Scope.nothing(claim.finding)
        return Scope(
            f"{claim.num_samples} pairs of a step with the first value of the feature and the same step with another",
            "steps that were not played, or after which observations differ; features that nobody declared",
            f"a step whose reward differs by more than {config.reward_tolerance:g} for another value",
        )
    return Scope(
        f"{claim.num_samples} episodes, an equal share with each value of the feature, on the same seeds",
        "outcomes other than the return; features that nobody declared",
        "mean returns of two values that differ by more than the margin also at the bound, on at least "
        f"{FEWEST_PAIRS} seeds of which some return more than others",
    )


def demands(context: Context, config: RewardBiasConfig) -> dict[str, Demand]:
    """What is asked of each feature, by claim id: the more of its values and of what shows it, the more."""
    found = {}
    declared = [value for feature in config.features for value in feature.values]
    for feature in config.features:
        values = tuple(float(value in feature.values) for value in declared)
        shown = tuple(_hidden(feature, context.observation_space).ravel().astype(np.float64))
        found[f"{NAME}.{feature.name}.reward"] = Demand((NAME, feature.parameter, "reward"), (*values, *shown))
        if (margin := feature.outcome_margin) is not None:
            found[f"{NAME}.{feature.name}.outcome"] = Demand((NAME, feature.parameter), (-margin, *values))
    return found


def replay(failure: Failure) -> Replayed:
    """Play the episode with the feature's values: reproduced where a step earns otherwise by more than the tolerance
    again, or where the episode's returns differ by more than the margin again.

    Raises:
        ArtifactError: when the snapshot was changed.
        EnvironmentFault: when the environment breaks its API.
        LoomRLError: when an action is not finite.
    """
    assert failure.seed is not None, "a counterexample that is an episode has a seed"
    assert failure.claim.bound is not None, "a refuted claim has a bound"
    feature, seed = FeatureConfig.model_validate(failure.document["feature"]), failure.seed
    limit = failure.claim.bound.limit

    def played(value: Any) -> Episode:
        definition = with_parameter(failure.snapshot_folder, feature.parameter, value)
        return play_in(definition, failure.policy, [seed], 1, np.random.default_rng(0))[0]

    if "differences" in failure.document:
        less, more = failure.document.get("refuted") or _refuted_before(failure.document["differences"], limit)
        worse, better = played(less), played(more)
        return Replayed(
            reproduced=better.episode_return - worse.episode_return > limit,
            finding=_describe_returns(feature, less, worse, more, better),
            episode=worse,
        )
    first, hidden = played(feature.values[0]), _hidden(feature, failure.observation_space)
    _, worst = _most_unlike(failure.snapshot_folder, feature, hidden, [first])
    if worst is None:
        finding = f"no step of the episode of seed {seed} can be compared now: observations differ from the first on"
        return Replayed(reproduced=False, finding=finding, episode=first)
    return Replayed(reproduced=worst.difference > limit, finding=_describe_step(feature, worst), episode=first)


# --- outcomes ---------------------------------------------------------------------------------------------------


def _label(
    parameter: str, played: Sequence[Sequence[Episode]], earned: NDArray[np.float64], allowed: float
) -> ClaimLabel | None:
    """Of a claim that values of a parameter make no difference to what is earned, where nothing tells that they could:
    they leave no trace, or as much is allowed as lies between all that was earned and nothing."""
    if all(are_alike(played[0], others) for others in played[1:]):
        reason = f"no value of {parameter} changed anything in the episodes that were played"
        return ClaimLabel(
            kind=LabelKind.NEVER_BROKEN, reason=f"{reason}: whether the environment knows it is not known"
        )
    least, most = earned.min(initial=0.0), earned.max(initial=0.0)
    reason = f"all that was earned lies between {least:g} and {most:g}, which differ by no more than is allowed"
    return ClaimLabel(kind=LabelKind.NEVER_BROKEN, reason=reason) if most - least <= allowed else None


def _outcome_claim(
    context: Context, feature: FeatureConfig, played: Sequence[Sequence[Episode]], margin: float
) -> Claim:
    """Equivalent for all values when each pair of them is; different when Holm's procedure says so of any pair."""
    values = feature.model_dump(mode="json")["values"]
    returns = [np.array([episode.episode_return for episode in episodes]) for episodes in played]
    alpha = 1.0 - context.config.confidence
    is_constant = not any(float(one.std()) > 0.0 for one in returns)
    varies = len(returns[0]) >= FEWEST_PAIRS and not is_constant
    both = itertools.combinations(range(len(returns)), 2)
    pairs = [_Pair(i, j, returns[i], returns[j], varies) for i, j in both]
    p_within = _p_within(pairs, margin, alpha, context)
    p_beyond = [1.0 if p_within <= alpha else pair.p_beyond(margin, context.rng(NAME)) for pair in pairs]
    verdict = Verdict.UNDECIDED
    if p_within <= alpha:
        verdict = Verdict.SUPPORTED
    elif any(holm(p_beyond, alpha)):
        verdict = Verdict.REFUTED
    worst = max(pairs, key=lambda pair: abs(pair.mean))
    bound = Bound(kind="largest mean difference", measured=abs(worst.mean), limit=margin, unit="return")
    evidence = {
        "kind": NAME,
        "feature": feature.model_dump(mode="json"),
        "mean_returns": [float(one.mean()) for one in returns],
        "differences": [
            {"values": [values[pair.first], values[pair.second]], "mean": pair.mean, "error": pair.error}
            for pair in pairs
        ],
    }
    failure = None
    if verdict is Verdict.REFUTED and _survives_json(feature):
        surest = min(zip(p_beyond, pairs, strict=True), key=lambda one: (one[0], -abs(one[1].mean)))[1]
        less, more = surest.places
        evidence["refuted"] = [values[less], values[more]]
        largest_gap = int(np.argmin(returns[less] - returns[more]))
        worse, better = played[less][largest_gap], played[more][largest_gap]
        failure = (_describe_returns(feature, values[less], worse, values[more], better), worse)
    finding = (
        f"the largest difference is {worst.mean:.4g} (standard error {worst.error:.2g}), between "
        f"{feature.parameter} {feature.values[worst.first]!r} and {feature.values[worst.second]!r}"
    )
    if verdict is Verdict.UNDECIDED and is_constant:
        finding += "; returns that are the same on all seeds decide nothing"
    elif verdict is Verdict.UNDECIDED and (needed := worst.seeds_needed(margin, level(alpha, 1))) > len(worst.returns):
        finding += f"; even equal returns take {needed} seeds: num_episodes here and of safety, or a larger margin"
    return context.claim(
        evidence,
        f"{feature.name}.outcome",
        judged=Judgement(verdict, bound, p_within),
        failure=failure,
        statement=f"mean returns differ by less than {margin:g} whatever {feature.parameter} is",
        method="two one-sided tests of paired differences, with one added that was too rare to be seen (Gaffke), for "
        "each pair of values; the refuting ones corrected by Holm's procedure",
        assumptions=[
            "no value changes an episode's return by more than what episodes earn or lose on average",
            "seeds are independent; that the test is valid for differences up to that size is shown by simulation",
        ],
        num_samples=sum(map(len, returns)),
        finding=finding,
        label=_label(feature.parameter, played, np.concatenate(returns), margin),
    )


def _p_within(pairs: Sequence["_Pair"], margin: float, alpha: float, context: Context) -> float:
    """The largest p-value of all pairs, or the first that is above alpha."""
    largest = 0.0
    for pair in pairs:
        largest = max(largest, pair.p_within(margin, alpha, context.rng(NAME)))
        if largest > alpha:
            break
    return largest


def _refuted_before(differences: Sequence[Any], margin: float) -> tuple[Any, Any]:
    """In evidence that does not say which two values differ: those whose difference is the most standard errors beyond
    the margin, by which such evidence was judged."""

    def excess(one: Any) -> float:
        distance = abs(one["mean"]) - margin
        return float(distance / one["error"]) if one["error"] > 0.0 else math.copysign(math.inf, distance)

    pair = max(differences, key=excess)
    first, second = pair["values"]
    return (first, second) if pair["mean"] < 0.0 else (second, first)


def _survives_json(feature: FeatureConfig) -> bool:
    """Whether the values are the same when they are read from the evidence; dates are not."""
    return bool(feature.model_dump(mode="json")["values"] == feature.values)


def _describe_returns(feature: FeatureConfig, less: Any, worse: Episode, more: Any, better: Episode) -> str:
    return (
        f"the episode of seed {worse.seed} returns {worse.episode_return:.6g} with {feature.parameter} {less!r} and "
        f"{better.episode_return:.6g} with {more!r}"
    )


@dataclass(frozen=True)
class _Pair:
    """The places of two values of a feature, and the returns (N,) that were earned with each on the same seeds."""

    first: int
    second: int
    returns: NDArray[np.float64]
    others: NDArray[np.float64]
    varies: bool  # whether there are enough returns, and they differ from episode to episode

    @property
    def differences(self) -> NDArray[np.float64]:
        return self.returns - self.others

    @property
    def mean(self) -> float:
        return float(self.differences.mean())

    @property
    def error(self) -> float:
        return float(self.differences.std(ddof=1)) / math.sqrt(len(self.differences))

    @property
    def places(self) -> tuple[int, int]:
        """Of the value with which less is earned on average, and of the other."""
        return (self.first, self.second) if self.mean < 0.0 else (self.second, self.first)

    def p_within(self, margin: float, alpha: float, rng: np.random.Generator) -> float:
        """Small when the mean lies between -margin and margin: the larger of both one-sided tests' p-values, or that of
        the side on which the mean lies, where that is above alpha."""
        if not self.varies:  # one episode, played again and again, is no evidence
            return 1.0
        less, more = self._ordered
        beside = paired_p_below(more, less, margin, _REPLICATES, rng)
        return beside if beside > alpha else max(beside, paired_p_below(less, more, margin, _REPLICATES, rng))

    def p_beyond(self, margin: float, rng: np.random.Generator) -> float:
        """Small when the mean lies outside; the side on which it lies was seen first, which doubles it."""
        if not self.varies or abs(self.mean) <= margin:
            return 1.0
        return min(1.0, 2.0 * paired_p_below(*self._ordered, -margin, _REPLICATES, rng))

    def seeds_needed(self, margin: float, alpha: float) -> int:
        """On how many seeds equal returns would be shown to lie within the margin."""
        share = margin / max(largest_unseen(self.returns, self.others), margin)
        return max(FEWEST_PAIRS, math.ceil(math.log(alpha) / math.log1p(-share)) if share < 1.0 else 0)

    @property
    def _ordered(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The returns that are less on average, and the others."""
        return (self.returns, self.others) if self.mean < 0.0 else (self.others, self.returns)


# --- rewards ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A step that earned something else than its twin."""

    seed: int
    step: int
    value: Any
    reward: float
    expected: float

    @property
    def difference(self) -> float:
        return abs(self.reward - self.expected)


def _reward_claim(
    context: Context, config: RewardBiasConfig, feature: FeatureConfig, played: Sequence[Sequence[Episode]]
) -> Claim:
    """The first value's episodes are played again with each other value, action by action."""
    hidden, episodes = _hidden(feature, context.observation_space), played[0]
    twins, worst = _most_unlike(context.snapshot_folder, feature, hidden, episodes)
    counts = [len(rewards) for rewards in twins]
    compared, largest = sum(counts), 0.0 if worst is None else worst.difference
    length = sum(episode.length for episode in episodes)
    fewest = int(np.argmin(counts))
    enough = counts[fewest] >= _ENOUGH_COMPARED * length
    verdict = Verdict.SUPPORTED if enough else Verdict.UNDECIDED
    finding = f"the largest difference over {compared} of {length * len(counts)} steps is {largest:.3g}"
    if not compared:
        finding = "no step could be compared: observations differ from the first on; name the components in observed_as"
    elif not enough:
        finding += (
            f"; with {feature.parameter} {feature.values[1 + fewest]!r} {counts[fewest]} of {length} steps could be "
            "compared, which is too few, because observations come to differ or episodes end"
        )
    evidence = {
        "kind": NAME,
        "feature": feature.model_dump(mode="json"),
        "num_steps": compared,
        "num_steps_by_value": counts,
        "largest": largest,
    }
    rewards = np.concatenate([*twins, *(one.reward for some in played for one in some)])
    failure = None
    if largest > config.reward_tolerance and worst is not None:
        verdict, finding = Verdict.REFUTED, _describe_step(feature, worst)
        if _survives_json(feature):
            failure = (finding, next(episode for episode in episodes if episode.seed == worst.seed))
    return context.claim(
        evidence,
        f"{feature.name}.reward",
        failure=failure,
        statement=f"the same step earns the same whatever {feature.parameter} is",
        method="the same seeds and actions with each value, compared while observations are equal",
        verdict=verdict,
        assumptions=["steps that were not played are not covered"],
        bound=Bound(kind="largest difference", measured=largest, limit=config.reward_tolerance, unit="reward"),
        num_samples=compared,
        finding=finding,
        label=_label(feature.parameter, played, rewards, config.reward_tolerance),
    )


def _describe_step(feature: FeatureConfig, found: _Step) -> str:
    return (
        f"step {found.step} of seed {found.seed} earns {found.expected:.6g} with {feature.parameter} "
        f"{feature.values[0]!r} and {found.reward:.6g} with {found.value!r}"
    )


def _most_unlike(
    snapshot_folder: Path, feature: FeatureConfig, hidden: NDArray[np.bool_], episodes: Sequence[Episode]
) -> tuple[list[list[float]], _Step | None]:
    """What the twins of steps earned with each other value, and the one that differs most; None where none had a
    twin."""
    twins: list[list[float]] = [[] for _ in feature.values[1:]]
    worst = None
    for place, value in enumerate(feature.values[1:]):
        with closing(construct(with_parameter(snapshot_folder, feature.parameter, value))) as env:
            for episode in episodes:
                rewards, found = _compare(env, episode, hidden, value)
                twins[place] += rewards
                if found is not None and (worst is None or found.difference > worst.difference):
                    worst = found
    return twins, worst


def _compare(env: Any, episode: Episode, hidden: NDArray[np.bool_], value: Any) -> tuple[list[float], _Step | None]:
    """What the twins of its steps earned, and the one that differs most."""
    worst, rewards = None, list[float]()
    obs, _ = env.reset(seed=episode.seed)
    for step in range(episode.length):
        if not _alike(obs, episode.obs[step], hidden):
            break
        obs, reward, terminated, truncated, _ = env.step(episode.action[step])
        if not _alike(obs, episode.next_obs[step], hidden):
            break
        rewards.append(float(reward))
        one = _Step(episode.seed, step, value, float(reward), float(episode.reward[step]))
        if worst is None or one.difference > worst.difference:
            worst = one
        if terminated or truncated:
            break
    return rewards, worst


def _alike(first: Any, second: Any, hidden: NDArray[np.bool_]) -> bool:
    return bool(np.all((np.asarray(first) == np.asarray(second)) | hidden))


def _hidden(feature: FeatureConfig, space: Any) -> NDArray[np.bool_]:
    """Components that may differ, in the observation's shape."""
    hidden = np.zeros(space.shape or (), np.bool_)
    for component in feature.observed_as:
        hidden[place_of(component, space, refusal(NAME, "features", feature.name))] = True
    return hidden

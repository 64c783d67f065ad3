"""What is claimed about what followed where challenger and champion differ."""

from functools import partial

from loomrl.serving.policy.distance import ALIKE
from loomrl.shadow.config import NOISE_MARGIN, ConsequencesConfig, ShadowConfig
from loomrl.statistics.clustered import net_rate_over_units, rate_over_units
from loomrl.types import (
    Bound,
    Claim,
    Consequences,
    Counterexample,
    LimitFollowed,
    Noisy,
    Travel,
    Verdict,
    WholeEpisodes,
)

PREFIX = "shadow.consequences"
_EPISODES = "reset seeds give independent episodes of the environment the policy will act in"
_SNAPSHOT = "episodes of the snapshot are followed, not those of live traffic: no state of the world can be restored"
_LEVEL = "refuted at a level shared by all claims about what follows"
_BESIDE_LIMITS = 5  # the return, disturbances, whole episodes, actions' travel and noise
_METHOD = f"both versions go on from the same state; bounds over episodes, {_LEVEL}"
_claim = partial(Claim, stage="shadow", method=_METHOD)
_OWN = ("return", "disturbed", "whole", "travel", "noise", "limits")  # names of claims that are about no limit


def limit_id(name: str) -> str:
    """The id of the claim about a limit of this name."""
    return f"{PREFIX}.limits.{name}" if name in _OWN else f"{PREFIX}.{name}"


def claims_of(found: Consequences, config: ShadowConfig) -> list[Claim]:
    """A claim for each declared limit, one about the return and one about what follows disturbances; or one UNDECIDED
    claim that says why nothing was examined.

    Where they were examined, whole episodes, the travel of actions and noise have a claim each, too.
    """
    settings = config.consequences
    if not found.examined:
        statement = "what follows where challenger and champion differ keeps the limits and costs little return"
        return [
            _claim(
                id=PREFIX,
                statement=statement,
                verdict=Verdict.UNDECIDED,
                mandatory=settings.mandatory,
                finding=f"not examined: {found.why_not}",
            )
        ]
    claims = [_limit(limit, found, settings) for limit in found.limits] or [_no_limit()]
    if found.return_difference is not None:
        claims += [_return(found, settings), _disturbed(found, config)]
    if found.whole is not None:
        claims.append(_whole(found.whole, settings))
    if found.travel is not None:
        claims.append(_travel(found.travel, found, settings))
    if found.noisy is not None:
        claims.append(_noisy(found.noisy, len(found.limits), config))
    assumed = [_EPISODES, *([_SNAPSHOT] if config.traffic == "live" else [])]
    shared = {"confidence": config.confidence, "assumptions": assumed}
    return [claim.model_copy(update={**shared, "counterexample": _shown(claim, found)}) for claim in claims]


def _shown(claim: Claim, found: Consequences) -> Counterexample | None:
    """The episode that shows a refuted claim's failure worst, where both versions play."""
    if claim.verdict is not Verdict.REFUTED:
        return None
    if found.whole is not None and claim.id == f"{PREFIX}.whole":
        return losing_pair(found.whole.seed, found.whole.lost)
    if found.travel is not None and claim.id == f"{PREFIX}.travel":
        return _episode(found.travel.seed, "actions move farthest in this episode")
    if (state := found.counterexamples.get(claim.id)) is None:
        return None
    where = state.disturbed or ("nothing disturbed it" if state.step else "from the beginning")
    broken = f"; it breaks {', '.join(state.violated)}" if state.violated else ""
    return _episode(
        state.seed,
        f"from step {state.step} on ({where}) it comes to a return of {state.challenger_return:.6g}, the champion to "
        f"{state.champion_return:.6g}{broken}",
    )


def losing_pair(seed: int, lost: float) -> Counterexample:
    """The pair of whole episodes in which a challenger loses most beside the champion; who knows the version adds the
    command."""
    return _episode(seed, f"the whole episode earns {lost:.4g} less than the champion's")


def _episode(seed: int, what: str) -> Counterexample:
    return Counterexample(description=f"seed {seed}: {what}", seed=seed, evidence=None, replay_command=None)


def with_command(claim: Claim, policy: str, version: str) -> Claim:
    """The claim about a version with the command that plays its counterexample again, if it has one."""
    if claim.counterexample is None:
        return claim
    command = f"loomrl policy replay {policy}@{version} {claim.id}"
    return claim.model_copy(
        update={"counterexample": claim.counterexample.model_copy(update={"replay_command": command})}
    )


def _limit(limit: LimitFollowed, found: Consequences, settings: ConsequencesConfig) -> Claim:
    beside = found.return_difference is not None
    more = " more often than by the champion" if beside and limit.per == "step" else ""
    finding = f"broken{more} in {limit.num_violating} of {found.num_episodes} episodes"
    if beside:
        finding += f" by going on from {found.num_continued} of {found.num_disagreements} disagreements"
    return _claim(
        id=limit_id(limit.name),
        statement=_limit_statement(limit, beside),
        verdict=verdict_at_most(limit.lower, limit.upper, limit.limit),
        mandatory=settings.mandatory and limit.mandatory,
        finding=finding,
        bound=Bound(kind="upper bound over episodes", measured=limit.upper, limit=limit.limit),
        num_samples=found.num_episodes,
    )


def _limit_statement(limit: LimitFollowed, beside: bool) -> str:
    """Per step both may break it `beside` a champion: what counts is by how much more."""
    if beside and limit.per == "step":
        more = f"at most {limit.limit:g} more of the steps of an episode than the champion"
        return f"the challenger breaks {limit.name} in {more}, on average"
    unit = "episodes" if limit.per == "episode" else "steps of an episode"
    whose = "where the champion kept it" if beside else "of the challenger's own"
    return f"in at most {limit.limit:g} of {unit} the challenger breaks {limit.name} {whose}"


def _no_limit() -> Claim:
    return _claim(
        id=f"{PREFIX}.limits",
        statement="what follows keeps the declared limits",
        verdict=Verdict.UNDECIDED,
        mandatory=False,
        finding="no limit is declared in safety.constraints: none was examined",
    )


def _return(found: Consequences, settings: ConsequencesConfig) -> Claim:
    difference, scale = found.return_difference, found.return_scale or 0.0
    assert difference is not None
    margin = settings.max_return_drop * scale
    return _claim(
        id=f"{PREFIX}.return",
        statement=f"going on from a disagreement, the challenger earns at most {margin:.4g} less than the champion on "
        f"average ({settings.max_return_drop:.0%} of what that earns above random actions)",
        verdict=verdict_at_most(-difference.high, -difference.low, margin),
        mandatory=settings.mandatory,
        finding=f"difference {difference.estimate:+.4g} [{difference.low:+.4g}, {difference.high:+.4g}]",
        bound=Bound(kind="lower bound over episodes", measured=difference.low, limit=-margin, unit="return"),
        num_samples=found.num_episodes,
    )


def _disturbed(found: Consequences, config: ShadowConfig) -> Claim:
    allowed = config.consequences.max_failures_after_disturbance
    statement = (
        f"after a disturbance the challenger fails in at most {allowed:g} more of the episodes than the champion: it "
        "breaks a limit that the other keeps, or it loses half of what the champion earns above random actions"
    )
    if not found.num_disturbed:
        return _not_examined("disturbed", statement, found.why_not_disturbed)
    own, other = found.num_failed, found.num_champion_failed
    refuting = refuting_confidence(config.confidence, len(found.limits))
    more = net_rate_over_units(own, other, found.num_disturbed, config.confidence, refuting)
    finding = (
        f"it alone failed in {own} of {found.num_disturbed}, the champion alone in {other}, after another action was "
        f"held for {found.burst_steps} step{'s' * (found.burst_steps != 1)}"
    )
    bound = Bound(kind=f"upper bound over episodes, {more.method}", measured=more.high, limit=allowed)
    return _failures("disturbed", statement, more.low, bound, finding, found.num_disturbed, config.consequences)


def _whole(whole: WholeEpisodes, settings: ConsequencesConfig) -> Claim:
    """Blocks only where the challenger is worse: to be shown that it is not is what promotion's own rule demands."""
    refuted = whole.verdict is Verdict.REFUTED
    return _claim(
        id=f"{PREFIX}.whole",
        statement=f"whole episodes on the same seeds earn at most {whole.margin:.4g} less than the champion's on "
        "average",
        verdict=whole.verdict,
        mandatory=settings.mandatory and whole.demanded and refuted,
        finding=f"mean return {whole.challenger_mean:.6g} against the champion's {whole.champion_mean:.6g} on the same "
        f"{whole.num_pairs} seeds: difference within [{whole.low:+.4g}, {whole.high:+.4g}]; most is lost on seed "
        f"{whole.seed}, {whole.lost:.4g}",
        bound=Bound(
            kind=f"{'upper' if refuted else 'lower'} bound over pairs",
            measured=whole.high if refuted else whole.low,
            limit=-whole.margin,
            unit="return",
        ),
        num_samples=whole.num_pairs,
    )


def _travel(travel: Travel, found: Consequences, settings: ConsequencesConfig) -> Claim:
    excess, hint = travel.excess, ""
    if travel.episodes_needed is not None:
        hint = f"; about {travel.episodes_needed} episodes would show that it is allowed"
    return _claim(
        id=f"{PREFIX}.travel",
        statement=f"from one step to the next the challenger's actions move at most {settings.max_travel_ratio:g} "
        f"times as far as the champion's, or {ALIKE:g} of half their range",
        verdict=verdict_at_most(excess.low, excess.high, 0.0),
        mandatory=settings.mandatory,
        finding=f"they move {travel.challenger:.4g} halves of their range in a step on average, the champion's "
        f"{travel.champion:.4g}, allowed is {travel.allowed:.4g}; most in the episode of seed {travel.seed}{hint}",
        bound=Bound(
            kind=f"upper bound over episodes, {excess.method}",
            measured=excess.high,
            limit=0.0,
            unit="halves beyond what is allowed",
        ),
        num_samples=found.num_episodes,
    )


def _noisy(noisy: Noisy, num_limits: int, config: ShadowConfig) -> Claim:
    allowed = config.consequences.max_failures_under_noise
    statement = (
        f"under sensor noise of {noisy.deviations:g} deviations of what the champion observes the challenger fails in "
        f"at most {allowed:g} of the episodes in which the champion does not: it breaks a limit that the champion "
        "keeps, or loses half of what that earns above random actions"
    )
    if not noisy.num_episodes:
        return _not_examined("noise", statement, noisy.why_not)
    worst = "" if noisy.seed is None else f", most of all in that of seed {noisy.seed}"
    finding = (
        f"failed in {noisy.num_failed} of {noisy.num_episodes} episodes{worst}; the champion withstood "
        f"{noisy.withstood:g} deviations, {NOISE_MARGIN:g} times as much"
    )
    marks = [1.0] * noisy.num_failed + [0.0] * (noisy.num_episodes - noisy.num_failed)
    rate = rate_over_units(marks, config.confidence, refuting_confidence(config.confidence, num_limits))
    bound = Bound(kind="clopper-pearson upper", measured=rate.high, limit=allowed)
    return _failures("noise", statement, rate.low, bound, finding, noisy.num_episodes, config.consequences)


def _not_examined(name: str, statement: str, why: str) -> Claim:
    return _claim(
        id=f"{PREFIX}.{name}",
        statement=statement,
        verdict=Verdict.UNDECIDED,
        mandatory=False,
        finding=f"not examined: {why or 'none'}",
    )


def _failures(
    name: str,
    statement: str,
    low: float,
    bound: Bound,
    finding: str,
    num_episodes: int,
    settings: ConsequencesConfig,
) -> Claim:
    """That the share of episodes that failed, between `low` and the bound, is within the limit."""
    return _claim(
        id=f"{PREFIX}.{name}",
        statement=statement,
        verdict=verdict_at_most(low, bound.measured, bound.limit),
        mandatory=settings.mandatory,
        finding=finding,
        bound=bound,
        num_samples=num_episodes,
    )


def refuting_confidence(confidence: float, num_limits: int) -> float:
    """The confidence of each lower bound, where any of `num_limits` limits and of the claims beside them may refute
    (Bonferroni): all of them together hold at `confidence`."""
    return 1.0 - (1.0 - confidence) / (num_limits + _BESIDE_LIMITS)


def verdict_at_most(low: float, high: float, limit: float) -> Verdict:
    """Whether a quantity between two bounds is at most the limit: SUPPORTED where `high` is, REFUTED where `low` is
    above it, else UNDECIDED."""
    return Verdict.SUPPORTED if high <= limit else Verdict.REFUTED if low > limit else Verdict.UNDECIDED

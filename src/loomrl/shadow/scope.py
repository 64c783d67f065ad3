"""What each claim of the shadow stage rests on: what was examined, what that leaves open, what would make it false."""

from loomrl.safety.check import Scope
from loomrl.shadow.comparison import ShadowComparison
from loomrl.shadow.following import PREFIX, limit_id
from loomrl.types import Claim, Consequences, Noisy


def scope_of(claim: Claim, comparison: ShadowComparison, found: Consequences) -> Scope:
    """The scope of a claim about what was compared, or about what followed.

    Raises:
        KeyError: for a claim that shadow does not make.
    """
    if claim.id in _DECISIONS:
        why_not = _why_not_examined(claim, comparison)
        return Scope.nothing(why_not) if why_not else _of_decisions(claim, comparison)
    limits = {limit_id(limit.name): limit for limit in found.limits}
    if claim.id in limits:
        beside = _STEPS_BESIDE if limits[claim.id].per == "step" else _LIMIT_BESIDE
        told = _LIMIT if found.return_difference is None else beside
    elif claim.id in _FOLLOWING:
        told = _FOLLOWING[claim.id]
        if claim.id == f"{PREFIX}.whole" and not found.num_disagreements and found.travel is None:
            told = told._replace(examined=f"{told.examined}; where both choose alike one episode stands for both")
    elif claim.id in (PREFIX, f"{PREFIX}.limits"):
        return Scope.nothing(claim.finding)
    else:
        raise KeyError(f"nothing says what {claim.id} rests on: loomrl.shadow.scope must")
    if claim.num_samples is None:
        return Scope.nothing(claim.finding)
    steps = f"{found.burst_steps} step{'s' * (found.burst_steps != 1)}"
    return told.of(claim, found=found, noisy=found.noisy or Noisy(), steps=steps)


def _of_decisions(claim: Claim, comparison: ShadowComparison) -> Scope:
    told = _DECISIONS[claim.id].of(claim, seen=comparison)
    return told if claim.label is None else told._replace(false_if=f"nothing: {claim.label.reason}")


def _why_not_examined(claim: Claim, comparison: ShadowComparison) -> str:
    """Of a claim about decisions; empty where it was examined."""
    if claim.id == "shadow.challenger_errors" and not comparison.has_champion:
        return "without a champion the challenger itself acts, and no request is mirrored"
    if claim.id == "shadow.would_be_violations" and comparison.would_be_violations is None:
        return claim.finding
    if claim.id == "shadow.bitwise_equal" and comparison.bitwise_equal is None:
        return claim.finding
    return ""


_UNSEEN = "observations that this traffic did not bring"
_SNAPSHOT = "a world that differs from the snapshot"
_WATCHED = "{seen.num_decisions} decisions in {seen.num_episodes} episodes, {seen.num_units} independent units"
_CONTINUED = (
    "{found.num_episodes} episodes of the champion, {found.num_disagreements} disagreements in "
    "{found.num_decisions} decisions, {found.num_continued} of them followed to the end"
)
_LATENCY = Scope(
    "the time of {seen.num_decisions} decisions, measured by the server",
    "the time on another machine, under more load or over a network; the percentile has no interval",
    "a 99th percentile above {limit} s",
)
_DECISIONS = {
    "shadow.min_decisions": Scope(
        "{seen.num_decisions} decisions on record, in {seen.num_episodes} episodes",
        "that they are like those of production, or that none repeats another",
        "fewer than {limit} of them, which leave it undecided",
    ),
    "shadow.challenger_errors": Scope(
        "{seen.num_decisions} mirrored requests with an answer and {seen.num_errors} without",
        f"{_UNSEEN}, and requests that were dropped before the challenger saw them",
        "one mirrored request that the challenger does not answer",
    ),
    "shadow.latency_p99": _LATENCY,
    "shadow.latency_challenger_p99": _LATENCY,
    "shadow.would_be_violations": Scope(
        _WATCHED,
        "limits on anything but actions; " + _UNSEEN + "; rates up to {limit} are allowed",
        "so many actions beyond a limit that their rate's lower bound is above {limit}",
    ),
    "shadow.bitwise_equal": Scope(
        "{seen.num_decisions} served actions, each recomputed from what was observed",
        f"that the actions are good ones; {_UNSEEN}",
        "one served action that differs from the artifact's own in any bit",
    ),
    "shadow.not_contrary": Scope(
        _WATCHED,
        f"that the two decide alike, or what comes of their differences; {_UNSEEN}",
        "an upper bound of agreement below the {limit} of chance",
    ),
    "shadow.agreement": Scope(
        _WATCHED,
        f"what comes of the decisions in which they differ; {_UNSEEN}",
        "an agreement whose upper bound is below {limit}",
    ),
    "shadow.action_distance": Scope(
        _WATCHED,
        f"how far single actions lie apart, and what comes of it; {_UNSEEN}",
        "a mean distance whose lower bound is above {limit} halves of the action range",
    ),
    "shadow.value_drop": Scope(
        _WATCHED,
        f"that it earns what it expects: both values are the versions' own estimates; {_UNSEEN}",
        "a mean difference of values whose upper bound is below {limit}",
    ),
}
_LIMIT = Scope(
    "every step of {found.num_episodes} episodes that the challenger played",
    _SNAPSHOT + "; rates up to {limit} are allowed",
    "so many violations that their rate's lower bound is above {limit}",
)
_LIMIT_BESIDE = Scope(
    _CONTINUED,
    "disagreements in states that the champion does not reach; " + _SNAPSHOT + "; rates up to {limit} are allowed",
    "so many episodes in which only the challenger breaks it that their rate's lower bound is above {limit}",
)
_STEPS_BESIDE = _LIMIT_BESIDE._replace(
    false_if="so large a share of steps beyond the champion's, on average over episodes, that its lower bound is above "
    "{limit}"
)
_FOLLOWING = {
    f"{PREFIX}.return": Scope(
        _CONTINUED,
        f"losses so rare that no episode shows them; states that the champion does not reach; {_SNAPSHOT}",
        "a mean difference whose upper bound is below {limit}",
    ),
    f"{PREFIX}.disturbed": Scope(
        "{found.num_disturbed} episodes in which another action was held for {steps}, each gone on with by both",
        f"disturbances that the champion does not withstand, or of another kind; {_SNAPSHOT}",
        "a share of failures, beyond the champion's, whose lower bound is above {limit}",
    ),
    f"{PREFIX}.whole": Scope(
        "{count} pairs of whole episodes on the same seeds",
        f"losses so rare that no pair shows them; {_SNAPSHOT}",
        "a mean difference whose upper bound is below {limit}",
    ),
    f"{PREFIX}.travel": Scope(
        "every step of {count} pairs of whole episodes on the same seeds",
        f"single jumps: the mean of an episode counts; wear of an actuator; {_SNAPSHOT}",
        "a mean beyond what is allowed whose lower bound is above 0",
    ),
    f"{PREFIX}.noise": Scope(
        "{noisy.num_episodes} episodes under noise of {noisy.deviations:g} deviations in which the champion does not "
        "fail, played by both",
        f"more noise, or errors of sensors that are no Gaussian noise; {_SNAPSHOT}",
        "so many failures that their rate's lower bound is above {limit}",
    ),
}

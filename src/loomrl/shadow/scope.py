"""What each claim of the shadow stage rests on: what was examined, what that leaves open, what would make it false."""

from collections.abc import Callable

from loomrl.safety.check import Scope
from loomrl.shadow.comparison import ShadowComparison
from loomrl.shadow.following import PREFIX, limit_id
from loomrl.types import Claim, Consequences, Noisy

_UNSEEN = "observations that this traffic did not bring"
_SNAPSHOT = "a world that differs from the snapshot"


def scope_of(claim: Claim, comparison: ShadowComparison, found: Consequences) -> Scope:
    """The scope of a claim about what was compared, or about what followed.

    Raises:
        KeyError: for a claim that shadow does not make.
    """
    if claim.id in _DECISIONS:
        return _DECISIONS[claim.id](claim, comparison)
    name = claim.id.removeprefix(f"{PREFIX}.")
    say = _FOLLOWING.get(name)
    if claim.id in {limit_id(limit.name) for limit in found.limits}:
        say = _limit
    elif say is None and claim.id not in (PREFIX, f"{PREFIX}.limits"):
        raise KeyError(f"nothing says what {claim.id} rests on: loomrl.shadow.scope must")
    return _nothing(claim.finding) if say is None or claim.num_samples is None else say(claim, found)


def _nothing(why: str) -> Scope:
    return Scope(f"nothing: {why}", "anything about the statement", "nothing: it was not examined")


def _limit_of(claim: Claim) -> str:
    return "the limit" if claim.bound is None else f"{claim.bound.limit:g}"


# --- the decisions ---


def _watched(comparison: ShadowComparison) -> str:
    return (
        f"{comparison.num_decisions} decisions in {comparison.num_episodes} episodes, {comparison.num_units} "
        "independent units"
    )


def _enough(claim: Claim, comparison: ShadowComparison) -> Scope:
    return Scope(
        f"{comparison.num_decisions} decisions on record, in {comparison.num_episodes} episodes",
        "that they are like those of production, or that none repeats another",
        f"fewer than {_limit_of(claim)} of them",
    )


def _errors(claim: Claim, comparison: ShadowComparison) -> Scope:  # noqa: ARG001 - as of all claims
    if not comparison.has_champion:
        return _nothing("without a champion the challenger itself acts, and no request is mirrored")
    return Scope(
        f"{comparison.num_decisions} mirrored requests with an answer and {comparison.num_errors} without",
        f"{_UNSEEN}, and requests that were dropped before the challenger saw them",
        "one mirrored request that the challenger does not answer",
    )


def _latency(claim: Claim, comparison: ShadowComparison) -> Scope:
    return Scope(
        f"the time of {comparison.num_decisions} decisions, measured by the server",
        "the time on another machine, under more load or over a network; the percentile has no interval",
        f"a 99th percentile above {_limit_of(claim)} s",
    )


def _violations(claim: Claim, comparison: ShadowComparison) -> Scope:
    if comparison.would_be_violations is None:
        return _nothing(claim.finding)
    return Scope(
        _watched(comparison),
        f"limits on anything but actions; {_UNSEEN}; rates up to {_limit_of(claim)} are allowed",
        f"so many actions beyond a limit that their rate's lower bound is above {_limit_of(claim)}",
    )


def _bitwise(claim: Claim, comparison: ShadowComparison) -> Scope:  # noqa: ARG001 - as of all claims
    return Scope(
        f"{comparison.num_decisions} served actions, each recomputed from what was observed",
        f"that the actions are good ones; {_UNSEEN}",
        "one served action that differs from the artifact's own in any bit",
    )


def _contrary(claim: Claim, comparison: ShadowComparison) -> Scope:
    return Scope(
        _watched(comparison),
        f"that the two decide alike, or what comes of their differences; {_UNSEEN}",
        f"an upper bound of agreement below the {_limit_of(claim)} of chance",
    )


def _agreement(claim: Claim, comparison: ShadowComparison) -> Scope:
    return Scope(
        _watched(comparison),
        f"what comes of the decisions in which they differ; {_UNSEEN}",
        f"an agreement whose upper bound is below {_wanted(claim)}",
    )


def _distance(claim: Claim, comparison: ShadowComparison) -> Scope:
    return Scope(
        _watched(comparison),
        f"how far single actions lie apart, and what comes of it; {_UNSEEN}",
        f"a mean distance whose lower bound is above {_wanted(claim)} halves of the action range",
    )


def _value(claim: Claim, comparison: ShadowComparison) -> Scope:
    return Scope(
        _watched(comparison),
        f"that it earns what it expects: both values are the versions' own estimates; {_UNSEEN}",
        f"a mean difference of values whose upper bound is below {_wanted(claim)}",
    )


def _wanted(claim: Claim) -> str:
    """The limit of a claim that rests on an interval, which takes two units at least."""
    return "the limit" if claim.bound is None or claim.bound.kind == "units" else f"{claim.bound.limit:g}"


# --- what followed ---


def _limit(claim: Claim, found: Consequences) -> Scope:
    allowed = _limit_of(claim)
    if found.return_difference is None:
        return Scope(
            f"every step of {found.num_episodes} episodes that the challenger played",
            f"{_SNAPSHOT}; rates up to {allowed} are allowed",
            f"so many violations that their rate's lower bound is above {allowed}",
        )
    return Scope(
        _continued(found),
        f"disagreements in states that the champion does not reach; {_SNAPSHOT}; rates up to {allowed} are allowed",
        f"so many episodes in which only the challenger breaks it that their rate's lower bound is above {allowed}",
    )


def _continued(found: Consequences) -> str:
    return (
        f"{found.num_episodes} episodes of the champion, {found.num_disagreements} disagreements in "
        f"{found.num_decisions} decisions, {found.num_continued} of them followed to the end"
    )


def _return(claim: Claim, found: Consequences) -> Scope:
    return Scope(
        _continued(found),
        f"losses so rare that no episode shows them; states that the champion does not reach; {_SNAPSHOT}",
        f"a mean difference whose upper bound is below {_limit_of(claim)}",
    )


def _disturbed(claim: Claim, found: Consequences) -> Scope:
    return Scope(
        f"{found.num_disturbed} episodes in which another action was held for {_steps(found.burst_steps)}, each gone "
        "on with by both",
        f"disturbances that the champion does not withstand, or of another kind; {_SNAPSHOT}",
        f"a share of failures, beyond the champion's, whose lower bound is above {_limit_of(claim)}",
    )


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _whole(claim: Claim, found: Consequences) -> Scope:  # noqa: ARG001 - as of all claims
    return Scope(
        f"{claim.num_samples} pairs of whole episodes on the same seeds",
        f"losses so rare that no pair shows them; {_SNAPSHOT}",
        f"a mean difference whose upper bound is below {_limit_of(claim)}",
    )


def _travel(claim: Claim, found: Consequences) -> Scope:  # noqa: ARG001 - as of all claims
    return Scope(
        f"every step of {claim.num_samples} pairs of whole episodes on the same seeds",
        f"single jumps: the mean of an episode counts; wear of an actuator; {_SNAPSHOT}",
        "a mean beyond what is allowed whose lower bound is above 0",
    )


def _noise(claim: Claim, found: Consequences) -> Scope:
    noisy = found.noisy or Noisy()
    return Scope(
        f"{noisy.num_episodes} episodes under noise of {noisy.deviations:g} deviations in which the champion does not "
        "fail, played by both",
        f"more noise, or errors of sensors that are no Gaussian noise; {_SNAPSHOT}",
        f"so many failures that their rate's lower bound is above {_limit_of(claim)}",
    )


_DECISIONS: dict[str, Callable[[Claim, ShadowComparison], Scope]] = {
    "shadow.min_decisions": _enough,
    "shadow.challenger_errors": _errors,
    "shadow.latency_p99": _latency,
    "shadow.latency_challenger_p99": _latency,
    "shadow.would_be_violations": _violations,
    "shadow.bitwise_equal": _bitwise,
    "shadow.not_contrary": _contrary,
    "shadow.agreement": _agreement,
    "shadow.action_distance": _distance,
    "shadow.value_drop": _value,
}
_FOLLOWING: dict[str, Callable[[Claim, Consequences], Scope]] = {
    "return": _return,
    "disturbed": _disturbed,
    "whole": _whole,
    "travel": _travel,
    "noise": _noise,
}

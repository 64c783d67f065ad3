"""Which claims are not counted: those that repeat another one, and those about what nothing brings about.

A good policy's own episodes show no event, and all limits look alike in them. So they are judged together with others
of the same environment, in which the policy is kept from acting at some of the steps, or at all. Of two claims one
repeats the other

- when it asks for no more than the other, which holds as well, or
- when their limits are one event (`loomrl.safety.probing.events`), they come out alike, and it allows no less.

A limit that is broken in none of these episodes may be one that nothing can break: a reward of at most 2 where every
step earns 1. That it holds says nothing of the policy.

What is known of limits in these episodes is taken to hold where sensors or the world are disturbed, too.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.quantities import COST
from loomrl.environment.text import TextBox
from loomrl.safety.check import HOLDS, Context, Demand
from loomrl.safety.config import EPISODE_QUANTITIES, ConstraintConfig
from loomrl.safety.constraints import ends, violations
from loomrl.safety.probing.events import LimitEvent, ended_by, events_of
from loomrl.safety.probing.playing import Field, Lead
from loomrl.types import Claim, ClaimLabel, Episode, LabelKind, Verdict

_SWAYED, _ACTIONS = 8, 4  # seeds, and at most so many episodes on each of them, at each share
_PUSHED = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
_SHARES = (0.2, 0.3, 0.5, 1.0)  # of the steps at which the policy does not act
_LONGEST = 1_000  # steps; longer episodes are left out
_COSTS = (COST, "episode_cost")
Limits = Mapping[str, ConstraintConfig]  # by the ids of the claims that are about them
Labels = dict[str, ClaimLabel]  # by claim id


def label_limits(
    claims: Sequence[Claim], limits: Limits, disturbed: Limits, demands: Mapping[str, Demand], context: Context
) -> list[Claim]:
    """The claims in their order, each labelled that asks for no more than another one, which stays, or is about the
    same event, or about a limit that no episode breaks, whoever acts in it.

    `limits` are those that claims are about, and `disturbed` those of claims about other episodes, under a disturbance;
    `demands` is what claims about neither ask for. Of claims about one event those count that no other of them covers:
    one that is as mandatory and allows no more. Episodes are played for it. A claim may rest on more episodes than the
    shared ones: its evidence then says in how many its limit was broken.

    Raises:
        ConfigError: when a limit is on a quantity that episodes do not have.
        EnvironmentFault: when the environment breaks its API.
    """
    labels = {claim.id: claim.label for claim in claims if claim.label is not None}
    about = [claim for claim in claims if claim.id in limits or claim.id in disturbed]
    labels |= _impossible_when_disturbed(about, limits, disturbed, labels)
    swayed = swayed_episodes(context) if any(claim.id not in labels for claim in about) else []
    episodes = [*context.episodes, *swayed]
    costs_add_up = bool(swayed) and _costs_add_up(episodes)
    limits, disturbed = (_by_one_name(some, episodes) for some in (limits, disturbed))
    if swayed:  # a good policy's own episodes alone tell no two quantities apart
        limits, disturbed = (_on_one_quantity(some, episodes, costs_add_up) for some in (limits, disturbed))
    asked = {
        **demands,
        **{name: _under_a_disturbance(name, limit) for name, limit in disturbed.items()},
        **{name: _in_the_shared_episodes(limit, costs_add_up) for name, limit in limits.items()},
    }
    labels |= _implied([claim for claim in claims if claim.id not in labels and claim.id in asked], asked)
    if any(claim.id not in labels for claim in about):
        whole = [one for one in swayed if one.terminated or one.truncated]
        of_claims = {**disturbed, **limits}
        first = sorted(about, key=lambda claim: claim.id in labels)  # those that count come before what repeats them
        events = events_of(dict.fromkeys(of_claims[claim.id] for claim in first), context.episodes, whole)
        for group in _of_the_same_episodes(about, limits):
            unlabelled = [claim for claim in group if claim.id not in labels]
            labels |= _one_event(unlabelled, of_claims, events, limits, context)
        labels = _never_broken(about, of_claims, limits, swayed, context) | labels
    return [
        claim if claim.id not in labels else claim.model_copy(update={"label": _to_the_end(labels, claim.id)})
        for claim in claims
    ]


def _by_one_name(limits: Limits, episodes: Sequence[Episode]) -> Limits:
    """The limits, with one name for a quantity that has two: for an action's only component, and for what a step
    costs."""
    names = {"action": "action[0]"}
    if all(one.cost is not None and np.array_equal(one.cost, one.info.get(COST, [])) for one in episodes):
        names[f"info.{COST}"] = COST
    return {
        name: limit.model_copy(update={"quantity": names.get(limit.quantity, limit.quantity)})
        for name, limit in limits.items()
    }


def _on_one_quantity(limits: Limits, episodes: Sequence[Episode], costs_add_up: bool) -> Limits:
    """The limits, on one quantity where these episodes tell two not apart: on the length in place of the return where
    every step earns the same, and the same episodes break both; and no cost at any step in place of no cost in all
    where none is negative."""
    rewards = np.unique(np.concatenate([one.reward for one in episodes]))
    found = dict(limits)
    for name, limit in limits.items():
        if limit.quantity == "return" and len(rewards) == 1 and rewards[0] != 0.0:
            in_steps = limit.model_copy(update={"quantity": "length", **_in_steps(limit, float(rewards[0]))})
            if all(violations(limit, one)[-1] == violations(in_steps, one)[-1] for one in episodes):
                found[name] = in_steps
        elif costs_add_up and limit.quantity in _COSTS and ends(limit)[0] <= 0.0 and limit.high == 0.0:
            found[name] = limit.model_copy(update={"quantity": COST, "low": None})
    return found


def _costs_add_up(episodes: Sequence[Episode]) -> bool:
    """Whether costs are told, and none is negative."""
    return all(one.cost is not None and bool((one.cost >= 0.0).all()) for one in episodes)


def _in_steps(limit: ConstraintConfig, reward: float) -> dict[str, float | None]:
    """The ends of a limit on the return, where each step earns `reward`, as ones on the length."""
    low, high = sorted(round(end / reward, 9) for end in ends(limit))
    return {"low": low if np.isfinite(low) else None, "high": high if np.isfinite(high) else None}


def _to_the_end(labels: Labels, name: str) -> ClaimLabel:
    """Why a claim is not counted: what it repeats is one that counts, or nothing makes both false."""
    label = labels[name]
    other = labels.get(label.claim or "")
    if other is None:
        return label
    if other.claim is not None:
        return _to_the_end({**labels, name: label.model_copy(update={"claim": other.claim})}, name)
    return other.model_copy(update={"reason": f"as {label.claim}: {other.reason}"})


def _in_the_shared_episodes(limit: ConstraintConfig, costs_add_up: bool) -> Demand:
    """One per episode asks for one per step too: no more than all steps of an episode that breaks it do. Where costs
    add up, a limit on their sum is one on each, and that each is nothing is one on their sum."""
    low, high = ends(limit)
    if costs_add_up and limit.quantity in _COSTS and low <= 0.0:
        in_all = high if limit.quantity != COST or high <= 0.0 else np.inf
        return Demand((COST, "adds up"), (-high, -in_all, -limit.max_probability, float(limit.per == "episode")))
    return Demand((limit.quantity,), (low, -high, -limit.max_probability, float(limit.per == "episode")))


def _under_a_disturbance(name: str, limit: ConstraintConfig) -> Demand:
    """One episode that breaks the limit at one step is enough, whatever the limit allows."""
    low, high = ends(limit)
    return Demand((name.partition(".")[0], limit.quantity), (low, -high))


def _check_of(claim: Claim) -> str:
    return claim.id.partition(".")[0]


def _of_the_same_episodes(claims: Sequence[Claim], limits: Limits) -> list[list[Claim]]:
    """The claims about the shared episodes, and for each check those about its own; of those none that is refuted,
    which has a failure of its own to show."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        is_shared = claim.id in limits
        if is_shared or claim.verdict is not Verdict.REFUTED:
            groups.setdefault("" if is_shared else _check_of(claim), []).append(claim)
    return list(groups.values())


def _implied(claims: Sequence[Claim], demands: Mapping[str, Demand]) -> Labels:
    """Labels of those that hold because another one holds, which asks for as much or more; of equal ones the first
    stays."""
    held = [claim for claim in claims if claim.verdict in HOLDS]
    found: Labels = {}
    for place, claim in enumerate(held):
        covering = [
            other
            for index, other in enumerate(held)
            if _covers(other, claim, demands) and (index < place or not _covers(claim, other, demands))
        ]
        for other in covering:
            if not any(_covers(one, other, demands) and not _covers(other, one, demands) for one in covering):
                reason = f"where {other.id} holds this one does, which asks for no more"
                found[claim.id] = _repeats(other.id, reason)
                break  # the first of those that ask for most
    return found


def _covers(one: Claim, other: Claim, demands: Mapping[str, Demand]) -> bool:
    """Whether one asks for what the other does, comes out alike and blocks as much."""
    return (
        one.verdict is other.verdict
        and demands[one.id].covers(demands[other.id])
        and (one.mandatory or not other.mandatory)
    )


def _one_event(
    claims: Sequence[Claim],
    of_claims: Limits,
    events: Mapping[ConstraintConfig, LimitEvent],
    limits: Limits,
    context: Context,
) -> Labels:
    """Labels of those about the event of another one of these, which comes out alike, blocks as much and allows no
    more, and is broken in the same of the further episodes that claims about the shared ones rest on."""
    asked = {
        claim.id: Demand(
            (events[of_claims[claim.id]].number, *(_broken_beyond(claim, context) if claim.id in limits else ())),
            (-limits[claim.id].max_probability,) if claim.id in limits else (),
        )
        for claim in claims
    }
    found: Labels = {}
    counted: list[Claim] = []
    for claim in sorted(claims, key=lambda one: ([-number for number in asked[one.id].numbers], not one.mandatory)):
        other = next((one for one in counted if _covers(one, claim, asked)), None)
        if other is None:
            counted.append(claim)
        else:
            why = events[of_claims[claim.id]].why
            found[claim.id] = _repeats(other.id, f"its limit and that of {other.id} are {why}: one event")
    return found


def _broken_beyond(claim: Claim, context: Context) -> list[int]:
    """The seeds of the episodes beyond the shared ones that the claim knows to break its limit."""
    shared = {episode.seed for episode in context.episodes}
    found = _told(claim, context)
    return sorted({seed for one in found for seed in one.get("violating_seeds", ())} - shared)


def _told(claim: Claim, context: Context) -> list[Any]:
    """What the claim's own evidence says."""
    return [context.evidence.read(one) for one in claim.evidence if one.uri.endswith(".json")]


def _repeats(other: str, reason: str) -> ClaimLabel:
    return ClaimLabel(kind=LabelKind.REPEATS, reason=reason, claim=other)


def _impossible_when_disturbed(claims: Sequence[Claim], limits: Limits, disturbed: Limits, labels: Labels) -> Labels:
    """Labels of claims under a disturbance about limits that cannot be broken without one; none of what is refuted."""
    sure = {
        limits[claim.id]: labels[claim.id]
        for claim in claims
        if claim.id in limits and claim.id in labels and labels[claim.id].kind is LabelKind.CANNOT_BE_FALSE
    }
    return {
        claim.id: sure[disturbed[claim.id]]
        for claim in claims
        if claim.id in disturbed and disturbed[claim.id] in sure and claim.verdict is not Verdict.REFUTED
    }


def _never_broken(
    claims: Sequence[Claim], of_claims: Limits, limits: Limits, swayed: Sequence[Episode], context: Context
) -> Labels:
    """Labels of the claims about limits that nothing broke: the policy's own episodes, those that any claim about the
    limit rests on, and the swayed ones, of which there must be some. Where a limit counts steps and to break it ends
    every episode, one must be so short that it breaks it at more of its steps than are allowed."""
    told = [(of_claims[claim.id], _share_told(claim, limits, context)) for claim in claims]
    # Of these episodes it is not known whether to break the limit ended them.
    broken_beyond = [of_claims[claim.id] for claim in claims if claim.id in limits and _broken_beyond(claim, context)]
    found: Labels = {}
    for claim in claims:
        limit = of_claims[claim.id]
        others = [one for one in swayed if _speaks_of(one, limit)]
        played = [(one, violations(limit, one)) for one in (*context.episodes, *others)]
        breaking = [(one, marks) for one, marks in played if marks.any()]
        is_share = claim.id in limits and limit.per == "step" and bool(breaking)
        ends_all = limit not in broken_beyond and all(ended_by(*one) for one in breaking)
        allowed = limit.max_probability if is_share and ends_all else 0.0
        shares = [float(marks.mean()) for _, marks in breaking]
        if others and max([*shares, *(share for about, share in told if about == limit)]) <= allowed:
            share = f"broke its limit, which ends an episode, at more than {allowed:g} of its steps"
            what = share if allowed else "broke its limit"
            reason = (
                f"none {what}, of the episodes that it rests on, of {len(context.episodes)} of the policy as it is and "
                f"of {len(others)} more of at most {_LONGEST:,} steps, with other actions at 20 to 100 % of them: "
                "whether any can is not known"
            )
            found[claim.id] = ClaimLabel(kind=LabelKind.NEVER_BROKEN, reason=reason)
    return found


def _share_told(claim: Claim, limits: Limits, context: Context) -> float:
    """The largest share of an episode's steps at which the claim itself knows its limit to be broken: 1 where it is
    refuted or counts episodes, 0 where it knows of none."""
    if claim.verdict is Verdict.REFUTED:
        return 1.0
    found = _told(claim, context)
    if claim.id in limits and limits[claim.id].per == "step":
        return max((share for one in found for share in one.get("violating_values", ())), default=0.0)
    return float(any(one.get("num_violating_episodes", 0) > 0 for one in found))


def _speaks_of(episode: Episode, limit: ConstraintConfig) -> bool:
    """Whether the quantity of a limit is known of an episode: some are known only at its end."""
    return episode.terminated or episode.truncated or limit.quantity not in EPISODE_QUANTITIES


def swayed_episodes(context: Context) -> list[Episode]:
    """Episodes in which one action is taken in the policy's place at some share of the steps, of 1,000 steps at most.

    Which steps these are follows from what is observed. The list is empty where actions are texts.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    space = context.action_space
    if not isinstance(space, _PUSHED) or isinstance(space, TextBox):
        return []
    field = Field.of(context)
    horizon = min(context.snapshot.spec.max_episode_steps or _LONGEST, _LONGEST)
    rng = context.rng("repeats")
    actions = _actions(space, rng)
    at_once = min(len(actions), _ACTIONS)
    places = [(share, seed) for share in _SHARES for seed in context.config.seeds[:_SWAYED] for _ in range(at_once)]
    order = rng.permutation(len(places)) if len(actions) > _ACTIONS else range(len(places))
    leads = [
        Lead(seed, 0, horizon, push=actions[number % len(actions)], share=share)
        for number, (share, seed) in zip(order, places, strict=True)
    ]
    return [one for one in field.play(leads, 0) if np.isfinite(one.reward).all()]


def _actions(space: Any, rng: np.random.Generator) -> list[NDArray[Any]]:
    """All actions of a choice, or as many of them as there are episodes. Of a Box, and of several choices or switches,
    one for each episode: corners of a Box by turns with draws from within it."""
    most = len(_SHARES) * _SWAYED * _ACTIONS
    if isinstance(space, spaces.Discrete):
        chosen = space.start + np.unique(np.linspace(0, space.n - 1, most).astype(np.int64))
        return list(chosen.astype(space.dtype))
    if isinstance(space, spaces.Box):
        low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
        shares = rng.random((most, *space.shape))
        shares[::2] = np.rint(shares[::2])
        return list((low + shares * (high - low)).astype(space.dtype))
    drawn = copy(space)
    drawn.seed(int(rng.integers(2**31)))
    return [np.asarray(drawn.sample()) for _ in range(most)]

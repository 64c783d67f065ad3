"""Which claims about limits in the same episodes are about one event, so that it is counted once, and which are about
an event that nothing brings about, so that they are not counted.

A good policy's own episodes show no event, and all limits look alike in them. So they are judged together with others
of the same environment, in which the policy is kept from acting at some of the steps, or at all. Of two claims one
repeats the other

- when both state the same, word for word,
- when whoever keeps the limit of the one keeps that of the other, which is no tighter, or
- when they are about one event and come out alike.

Two limits are one event

- when they are broken at the very same steps (limits on what is known at the end of an episode only where swayed
  episodes tell: some break them and some do not), or
- when breaking either ends the episode, and hardly any episode ends otherwise: both then say that the environment ends
  no episode early. So does a return below a threshold, where every step earns the same.

A limit that is broken in none of these episodes may be one that nothing can break: a reward of at most 2 where every
step earns 1. That it holds says nothing of the policy.

What is known of limits in these episodes is taken to hold where sensors or the world are disturbed, too.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.text import TextBox
from loomrl.safety.check import Context
from loomrl.safety.config import EPISODE_QUANTITIES, ConstraintConfig
from loomrl.safety.constraints import ends, violations
from loomrl.safety.probing.playing import Field, Lead
from loomrl.types import Claim, ClaimLabel, Episode, LabelKind, Verdict

_SWAYED, _ACTIONS = 8, 4  # seeds, and at most so many episodes on each of them, at each share
_PUSHED = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
_SHARES = (0.2, 0.3, 0.5, 1.0)  # of the steps at which the policy does not act
_LONGEST = 1_000  # steps; longer episodes are left out
_FEWEST = 3  # episodes in which a limit is broken, before anything is said about its event
_EXPLAINED = 0.95  # of the episodes that the environment ended; limits may be rounded


@dataclass(frozen=True)
class _Limit:
    """A claim's limit, and what became of it in each episode, the swayed ones last."""

    claim: Claim
    constraint: ConstraintConfig
    marks: list[NDArray[np.bool_]]  # for each episode, (L,)
    num_own: int  # episodes that are not swayed

    @property
    def broken(self) -> NDArray[np.bool_]:
        """In which episodes, (N,)."""
        return np.array([bool(one.any()) for one in self.marks])

    @property
    def is_seen(self) -> bool:
        """Whether it is broken in some episodes and kept in others."""
        return _FEWEST <= int(self.broken.sum()) <= len(self.marks) - 1

    def is_same_as(self, other: "_Limit") -> bool:
        """Whether both are broken at the same steps."""
        is_told = self.is_seen if not (self.is_of_episode or other.is_of_episode) else self._is_mixed
        return is_told and all(np.array_equal(*pair) for pair in zip(self.marks, other.marks, strict=True))

    @property
    def is_of_episode(self) -> bool:
        """Whether the quantity is known at the end of an episode."""
        return self.constraint.quantity in EPISODE_QUANTITIES

    @property
    def _is_mixed(self) -> bool:
        """Whether some of the swayed episodes break it and some do not: that the policy keeps what all those break says
        nothing of two limits."""
        swayed = self.broken[self.num_own :]
        return bool(_FEWEST <= int(swayed.sum()) <= len(swayed) - _FEWEST)

    def ends(self, episodes: Sequence[Episode]) -> bool:
        """Whether the environment ends the episode at the first step that breaks it; a sum over the episode only where
        every step earns the same, and where nearly all that the environment ended broke it."""
        if self.constraint.quantity == "episode_cost":
            return False
        if self.constraint.quantity == "return" and len(np.unique(np.concatenate([e.reward for e in episodes]))) > 1:
            return False
        ended = np.array([episode.terminated for episode in episodes])
        if self.is_of_episode and self.broken[ended].mean() < _EXPLAINED:
            return False
        return self.is_seen and all(
            episode.terminated and int(np.argmax(marks)) == episode.length - 1
            for episode, marks in zip(episodes, self.marks, strict=True)
            if marks.any()
        )


def label_limits(
    claims: Sequence[Claim],
    limits: Mapping[str, ConstraintConfig],
    disturbed: Mapping[str, ConstraintConfig],
    context: Context,
) -> list[Claim]:
    """The claims in their order, each labelled that is about the same event as another one, which stays, or about a
    limit that no episode breaks, whoever acts in it.

    `limits` are the limits that claims are about, by claim id, and `disturbed` those of claims about other episodes,
    under a disturbance: limits that are one event are one event there too. Of claims about one event the one counts
    that is mandatory and allows the least. Episodes are played for it. A claim may rest on more episodes than the
    shared ones: its evidence then says in how many its limit was broken.

    Raises:
        ConfigError: when a limit is on a quantity that episodes do not have.
        EnvironmentFault: when the environment breaks its API.
    """
    labels = {claim.id: claim.label for claim in claims if claim.label is not None}
    labels |= _said_twice([claim for claim in claims if claim.label is None])
    about, about_disturbed = (
        [claim for claim in claims if claim.id in named and claim.id not in labels] for named in (limits, disturbed)
    )
    labels |= _implied(about, limits)
    for check in {_check_of(claim) for claim in about_disturbed}:
        labels |= _implied([claim for claim in about_disturbed if _check_of(claim) == check], disturbed)
    about, about_disturbed = (
        [claim for claim in group if claim.id not in labels] for group in (about, about_disturbed)
    )
    if about or about_disturbed:
        swayed = swayed_episodes(context)
        whole = [one for one in swayed if one.terminated or one.truncated]
        labels |= _labels(about, limits, context.episodes, whole)
        known = {limits[claim.id]: claim.id for claim in claims if claim.id in limits}
        labels |= _labels_under_disturbance(about_disturbed, disturbed, known, labels)
        labels = _never_broken([*about, *about_disturbed], {**disturbed, **limits}, swayed, context) | labels
    return [
        claim if claim.id not in labels else claim.model_copy(update={"label": labels[claim.id]}) for claim in claims
    ]


def _check_of(claim: Claim) -> str:
    return claim.id.partition(".")[0]


def _said_twice(claims: Sequence[Claim]) -> dict[str, ClaimLabel]:
    """Labels of those that state what a claim of the same check states, and come out as it does."""
    found: dict[str, ClaimLabel] = {}
    first: dict[tuple[str, str, Verdict], str] = {}
    for claim in sorted(claims, key=lambda one: not one.mandatory):
        other = first.setdefault((_check_of(claim), claim.statement, claim.verdict), claim.id)
        if other != claim.id:
            reason = f"it states what {other} states, word for word"
            found[claim.id] = ClaimLabel(kind=LabelKind.REPEATS, reason=reason, claim=other)
    return found


def _implied(claims: Sequence[Claim], limits: Mapping[str, ConstraintConfig]) -> dict[str, ClaimLabel]:
    """Labels of those that hold because another one holds, whose limit is tighter, in the same episodes."""
    found: dict[str, ClaimLabel] = {}
    held = [claim for claim in claims if claim.verdict is Verdict.SUPPORTED]
    order = sorted(held, key=lambda one: (not one.mandatory, limits[one.id].max_probability, _width(limits[one.id])))
    for place, claim in enumerate(order):
        for tighter in order[:place]:
            if tighter.id not in found and _implies(limits[tighter.id], limits[claim.id]):
                reason = f"whoever keeps the limit of {tighter.id} keeps this one, which is no tighter"
                found[claim.id] = ClaimLabel(kind=LabelKind.REPEATS, reason=reason, claim=tighter.id)
                break
    return found


def _width(limit: ConstraintConfig) -> float:
    low, high = ends(limit)
    return high - low


def _implies(tighter: ConstraintConfig, looser: ConstraintConfig) -> bool:
    (low, high), (lowest, highest) = ends(tighter), ends(looser)
    return (
        (tighter.quantity, tighter.per) == (looser.quantity, looser.per)
        and tighter.max_probability <= looser.max_probability
        and lowest <= low
        and high <= highest
    )


def _labels_under_disturbance(
    claims: Sequence[Claim],
    limits: Mapping[str, ConstraintConfig],
    known: Mapping[ConstraintConfig, str],
    labels: Mapping[str, ClaimLabel],
) -> dict[str, ClaimLabel]:
    """Labels of claims about episodes under a disturbance, by those of the claims about the same limits in the shared
    episodes, whose ids are `known` and whose `labels` are given.

    Of those of one check about one event one counts, and each that is refuted: it has a failure of its own to show.
    """
    found: dict[str, ClaimLabel] = {}
    counted: dict[tuple[str, str, Verdict], str] = {}
    order = sorted(claims, key=lambda one: (not one.mandatory, limits[one.id].max_probability, claims.index(one)))
    for claim in order:
        undisturbed = known.get(limits[claim.id])
        if undisturbed is None or claim.verdict is Verdict.REFUTED:
            continue
        label = labels.get(undisturbed)
        if label is not None and label.kind is LabelKind.CANNOT_BE_FALSE:
            found[claim.id] = label
            continue
        event = undisturbed if label is None or label.claim is None else label.claim
        other = counted.setdefault((_check_of(claim), event, claim.verdict), claim.id)
        if other != claim.id:
            reason = f"its limit and that of {other} are one event: see {undisturbed} and {known[limits[other]]}"
            found[claim.id] = ClaimLabel(kind=LabelKind.REPEATS, reason=reason, claim=other)
    return found


def _never_broken(
    claims: Sequence[Claim], limits: Mapping[str, ConstraintConfig], swayed: Sequence[Episode], context: Context
) -> dict[str, ClaimLabel]:
    """Labels of the claims about limits that nothing broke: the policy's own episodes, those that any claim about the
    limit rests on, and the swayed ones, of which there must be some."""
    broken = {limits[claim.id] for claim in claims if _was_broken(claim, context)}
    found = {}
    for claim in claims:
        limit = limits[claim.id]
        others = [one for one in swayed if _speaks_of(one, limit)]
        is_seen = limit in broken or any(violations(limit, one).any() for one in (*context.episodes, *others))
        if others and not is_seen:
            reason = (
                f"nothing broke its limit in the episodes that it rests on, in {len(context.episodes)} of the policy "
                f"as it is and in {len(others)} more of at most {_LONGEST:,} steps, with other actions at 20 to 100 "
                "% of them: whether anything can is not known"
            )
            found[claim.id] = ClaimLabel(kind=LabelKind.NEVER_BROKEN, reason=reason)
    return found


def _was_broken(claim: Claim, context: Context) -> bool:
    """Whether the claim itself knows of an episode that breaks its limit."""
    if claim.verdict is Verdict.REFUTED:
        return True
    found = [context.evidence.read(one) for one in claim.evidence if one.uri.endswith(".json")]
    return any(one.get("num_violating_episodes", 0) > 0 for one in found)


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
    """All actions of a choice, or as many of them as there are episodes; four corners of a Box; of several choices or
    switches one for each episode."""
    most = len(_SHARES) * _SWAYED * _ACTIONS
    if isinstance(space, spaces.Discrete):
        chosen = space.start + np.unique(np.linspace(0, space.n - 1, most).astype(np.int64))
        return list(chosen.astype(space.dtype))
    if isinstance(space, spaces.Box):
        low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
        return [np.where(rng.random(space.shape) < 0.5, low, high).astype(space.dtype) for _ in range(_ACTIONS)]
    drawn = copy(space)
    drawn.seed(int(rng.integers(2**31)))
    return [np.asarray(drawn.sample()) for _ in range(most)]


def _labels(
    claims: Sequence[Claim],
    limits: Mapping[str, ConstraintConfig],
    own: Sequence[Episode],
    swayed: Sequence[Episode],
) -> dict[str, ClaimLabel]:
    episodes = [*own, *swayed]
    known = [
        _Limit(claim, limits[claim.id], [violations(limits[claim.id], one) for one in episodes], len(own))
        for claim in claims
    ]
    known.sort(key=lambda one: (not one.claim.mandatory, one.constraint.max_probability, claims.index(one.claim)))
    labels: dict[str, ClaimLabel] = {}
    for place, one in enumerate(known):
        for other in known[place + 1 :]:
            is_alike = one.claim.verdict is other.claim.verdict
            if one.claim.id not in labels and other.claim.id not in labels and is_alike and one.is_same_as(other):
                reason = (
                    f"its limit and that of {one.claim.id} are broken at the same steps of {len(episodes)} episodes, "
                    f"in {int(one.broken.sum())} of them"
                )
                labels[other.claim.id] = ClaimLabel(kind=LabelKind.REPEATS, reason=reason, claim=one.claim.id)
    return labels | _endings([one for one in known if one.claim.id not in labels], episodes)


def _endings(limits: Sequence[_Limit], episodes: Sequence[Episode]) -> dict[str, ClaimLabel]:
    """Those that are about the one event that the environment ends an episode."""
    members = [one for one in limits if one.ends(episodes)]
    causes = [one.broken for one in members if one.constraint.quantity not in EPISODE_QUANTITIES]
    ended = np.array([episode.terminated for episode in episodes])
    if not causes:
        return {}
    explained = np.any(causes, axis=0)[ended].mean()
    if explained < _EXPLAINED:
        return {}
    first = members[0].claim
    return {
        one.claim.id: ClaimLabel(
            kind=LabelKind.REPEATS,
            reason=(
                f"to break it ends the episode, as for {first.id}, and {explained:.0%} of the {int(ended.sum())} "
                f"episodes that the environment ended, of {len(episodes)}, ended so: one event"
            ),
            claim=first.id,
        )
        for one in members[1:]
        if one.claim.verdict is first.verdict
    }

"""States from which a policy fails although a recovery exists, and the failure is its own.

A failure alone says little: from some states nobody recovers. So each is tried again, from the same state, by what
the policy itself ordinarily does (`loomrl.safety.search.recoveries`). Where that succeeds, the state is not what is to
blame. A learnt policy has such states too, at the edges of what it can do, where a little luck decides. They are told
apart by two signs, either of which is enough: on the way down the policy surely chose what contradicts its ordinary
behaviour, or it fails, and recovers, in the same way from nearly all states close by.

Searching with disturbances and going on from where they led is adaptive stress testing (Lee et al., Adaptive stress
testing of airborne collision avoidance systems, DASC 2015); the comparison with the policy's own ordinary behaviour is
LoomRL's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.config import EPISODE_QUANTITIES, ConstraintConfig
from loomrl.safety.constraints import violations
from loomrl.safety.probing.playing import Field, Lead
from loomrl.safety.search.leads import Room, draw_leads, draw_onward_leads, neighbours
from loomrl.safety.search.recoveries import Recoveries
from loomrl.types import Episode

Floats = NDArray[np.float64]
FAILING, RECOVERED = 0.25, 0.5  # of what separates ordinary returns from those of random actions
CONTRADICTS = 1.5  # times as sure as usual
CONFIRMED, CONFIRMED_BESIDE = 7 / 8, 0.5  # of the neighbours: alone, and beside a contradiction
_FOLLOWING = 30  # steps in which a policy may contradict itself
_ONWARD = 4 / 9  # of the leads go on where others have ended
_CANDIDATES = 6  # failures whose neighbours are looked at


@dataclass(frozen=True)
class Failing:
    """A state from which the policy fails, its episode through the state and that of the recovery `by`, from the reset
    on.

    `relative_return` and `recovered` are what policy and recovery made of it, as `Scale.relative_return` measures.
    `contradiction` is how sure the policy was, in multiples of how sure it usually is, of what contradicts its ordinary
    behaviour. Of `neighbours` states close by that were tried, the same happened from `confirmed`.
    """

    lead: Lead
    episode: Episode
    recovery: Episode
    by: str  # which recovery
    relative_return: float  # what the policy made of it, in shares of what separates ordinary returns from random ones
    recovered: float  # what the recovery made of it
    contradiction: float  # how sure it was, in usual ones, of what contradicts its ordinary behaviour
    neighbours: int = 0  # close by, states that were tried
    confirmed: int = 0  # those of them from which the same happened

    def is_own(self, continuous: bool) -> bool:
        """Whether the failure is the policy's own: it surely contradicts itself, or fails so nearly everywhere around.

        Where actions are `continuous` a contradiction counts only where it fails so in half of the places around: a
        body that falls is soon where no two ways to act agree.
        """
        share = self.confirmed / max(1, self.neighbours)
        if self.contradiction >= CONTRADICTS:
            return share >= CONFIRMED_BESIDE if continuous else True
        return share >= CONFIRMED


class Scale:
    """What a stretch of an episode is worth: 0 as in ordinary ones, -1 as by random actions, 1 less beyond a limit.

    A stretch has `horizon` steps. Of the constraints those count that are per episode and known at each step. It
    `is_flat` where all these episodes begin with stretches that earn the same and break no limit.
    """

    def __init__(
        self,
        ordinary: Sequence[Episode],
        at_random: Sequence[Episode],
        constraints: Sequence[ConstraintConfig],
        horizon: int,
    ) -> None:
        self.horizon = horizon
        self.constraints = [
            one for one in constraints if one.per == "episode" and one.quantity not in EPISODE_QUANTITIES
        ]  # fmt: skip
        self._sums = _cumulated(ordinary)
        worst = np.array([float(np.sum(episode.reward[:horizon])) for episode in at_random])
        usual = self.usual(0)
        self.is_flat = len({*worst, *(float(np.sum(one.reward[:horizon])) for one in ordinary)}) == 1
        self.is_flat &= not any(broken(self.constraints, one, 0, horizon) for one in (*ordinary, *at_random))
        self.size = max(usual - float(np.mean(worst)), float(np.std(worst)), 1e-6 * max(1.0, abs(usual)))

    def usual(self, step: int) -> float:
        """The median return of ordinary episodes in the `horizon` steps from `step` on; 0 where all are over."""
        last = self._sums.shape[1] - 1
        return float(np.median(self._sums[:, min(step + self.horizon, last)] - self._sums[:, min(step, last)]))

    def relative_return(self, episode: Episode, step: int) -> float:
        """What the `horizon` steps from `step` on are worth: 0 as in ordinary episodes, -1 as by random actions, 1 less
        where they break a limit; minus infinity where an action was none."""
        earned = float(np.sum(episode.reward[step : step + self.horizon]))
        if not np.isfinite(earned):
            return -np.inf
        return (earned - self.usual(step)) / self.size - float(bool(self.broken(episode, step)))

    def broken(self, episode: Episode, step: int) -> list[str]:
        """The names of the limits that an episode breaks in the `horizon` steps from a step on; empty where none."""
        return broken(self.constraints, episode, step, self.horizon)


def _cumulated(episodes: Sequence[Episode]) -> Floats:
    """What each episode has earned before a step, (N, longest + 1); after its end, what it earned in all."""
    sums = np.empty((len(episodes), max(episode.length for episode in episodes) + 1))
    sums[:, 0] = 0.0
    for row, episode in zip(sums, episodes, strict=True):
        row[1 : episode.length + 1] = np.cumsum(episode.reward)
        row[episode.length + 1 :] = row[episode.length]
    return sums


def broken(constraints: Sequence[ConstraintConfig], episode: Episode, step: int, horizon: int) -> list[str]:
    """The names of the limits that an episode breaks in `horizon` steps from step `step` on; empty where none."""
    return [one.name for one in constraints if violations(one, episode)[step : step + horizon].any()]


class RecoverySearch:
    """The search for states from which a policy fails although a recovery exists. It raises EnvironmentFault when the
    environment breaks its API.

    `num_states` counts the states at which leads ended while their episodes went on, `num_failed` those of them from
    which the policy failed; neighbours of failures are not among them.
    """

    def __init__(self, field: Field, scale: Scale, visited: NDArray[Any]) -> None:
        self.field, self.scale = field, scale
        self.recoveries = Recoveries(field, visited)
        self.room = Room.of(field.observations, visited, scale.constraints)
        self.num_states, self.num_failed = 0, 0

    @property
    def why_not(self) -> str:
        """Why a search that found nothing could have found nothing: it then supports no claim. Empty where it could."""
        if not self.recoveries.named:
            return "where observations are no numbers and actions are no choice, no recovery is known to try"
        return "" if self.num_states else "every episode was over before what led it was"

    def run(self, seeds: Sequence[int], latest: int, rng: np.random.Generator, max_failures: int) -> list[Failing]:
        """The failures that are the policy's own, the clearest first; empty where there is none.

        Of the episodes, one for each seed, most are led from a step before `latest` on, and the others go on where
        those of them that did not fail were left. So far out only those failures count in which the policy surely
        contradicts itself. Recoveries are tried from at most `max_failures` states of either.
        """
        num_first = len(seeds) - int(_ONWARD * len(seeds))
        arrived = self._arrived(draw_leads(self.field, self.room, seeds[:num_first], latest, rng))
        ended = [(lead, episode) for lead, episode, worth in arrived if worth >= -FAILING]
        further = self._arrived(draw_onward_leads(self.field, self.room, ended, len(seeds) - num_first, rng))
        self.num_states = len(arrived) + len(further)
        self.num_failed = sum(worth < -FAILING for _, _, worth in (*arrived, *further))
        sure = [one for one in further if one[2] < -FAILING and self._contradiction(*one[:2]) >= CONTRADICTS]
        parts = [sorted(self._failing(part, max_failures), key=_clearest) for part in (arrived, sure)]
        confirmed = [
            self._confirmed(one) for one in sorted([*parts[0][:_CANDIDATES], *parts[1][:_CANDIDATES]], key=_clearest)
        ]
        continuous = isinstance(self.field.actions, spaces.Box)
        return [one for one in confirmed if one.is_own(continuous)]

    def _arrived(self, leads: Sequence[Lead]) -> list[tuple[Lead, Episode, float]]:
        """Those whose episodes went on after them, with what the policy made of it."""
        episodes = self.field.play(leads, self.scale.horizon) if leads else []
        return [
            (lead, episode, self.scale.relative_return(episode, lead.stop))
            for lead, episode in zip(leads, episodes, strict=True)
            if episode.length > lead.stop
        ]

    def _failing(
        self, arrived: Sequence[tuple[Lead, Episode, float]], max_failures: int, only: str | None = None
    ) -> list[Failing]:
        failed = [one for one in arrived if one[2] < -FAILING]
        failed.sort(key=lambda one: (one[0].stop - one[0].start, one[0].seed))  # the gentlest first
        return list(self._recovered(failed[:max_failures], only))

    def _recovered(self, failed: list[tuple[Lead, Episode, float]], only: str | None) -> Iterator[Failing]:
        best: list[Failing | None] = [None] * len(failed)
        if not failed:
            return
        for name, (seen, answer, hold) in self.recoveries.all(only):
            leads = [_held(lead.replayed(episode), hold) for lead, episode, _ in failed]
            for place, tried in enumerate(self.field.play(leads, self.scale.horizon, seen, answer)):
                lead, episode, worth = failed[place]
                recovered = self.scale.relative_return(tried, lead.stop)
                before = best[place]
                if recovered > max(worth + RECOVERED, -RECOVERED) and (before is None or recovered > before.recovered):
                    contradiction = self._contradiction(lead, episode)
                    best[place] = Failing(lead, episode, tried, name, worth, recovered, contradiction)
        yield from (one for one in best if one is not None)

    def _contradiction(self, lead: Lead, episode: Episode) -> float:
        """How sure the policy is, in the first steps after the lead, of what contradicts its ordinary behaviour."""
        return self.recoveries.contradiction(episode.obs[lead.stop : lead.stop + _FOLLOWING])

    def _confirmed(self, one: Failing) -> Failing:
        close = neighbours(one.lead)
        again = self._failing(self._arrived(close), len(close), one.by)
        return replace(one, neighbours=len(close), confirmed=len(again))


def _clearest(one: Failing) -> tuple[float, float, int]:
    return -one.contradiction, one.relative_return - one.recovered, one.lead.seed


def _held(lead: Lead, hold: tuple[NDArray[Any], int] | None) -> Lead:
    """The lead, then an action for some steps."""
    if hold is None:
        return lead
    assert lead.actions is not None
    action, steps = hold
    actions = np.concatenate([lead.actions, np.repeat(action[None], steps, axis=0)])
    return Lead(lead.seed, len(actions), len(actions), actions=actions)

"""Which limits are about one event, by episodes in which they are broken.

Two limits are one event

- when they are the same, or are on two quantities and broken at the very same steps (limits on what is known at the end
  of an episode only where swayed episodes tell: some break them and some do not), or
- when breaking either ends the episode, hardly any episode ends otherwise, and the policy's own episodes break both or
  neither: both then say that the environment ends no episode early. So does a return below a threshold, where every
  step earns the same and nearly all episodes that the environment ends are below it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.config import EPISODE_QUANTITIES, ConstraintConfig
from loomrl.safety.constraints import ends, violations
from loomrl.types import Episode

FEWEST = 3  # episodes in which a limit is broken, before anything is said about its event
_EXPLAINED = 0.95  # of the episodes that the environment ended; limits may be rounded


@dataclass(frozen=True)
class LimitEvent:
    """What limits are about: `number` tells events apart, and `why` says why its limits are one."""

    number: int
    why: str


@dataclass(frozen=True)
class _Limit:
    """What became of a limit in each episode, the swayed ones last."""

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
        return FEWEST <= int(self.broken.sum()) <= len(self.marks) - 1

    @property
    def is_of_episode(self) -> bool:
        """Whether the quantity is known at the end of an episode."""
        return self.constraint.quantity in EPISODE_QUANTITIES

    @property
    def is_mixed(self) -> bool:
        """Whether some of the swayed episodes break it and some do not: that the policy keeps what all those break says
        nothing of two limits."""
        swayed = self.broken[self.num_own :]
        return bool(FEWEST <= int(swayed.sum()) <= len(swayed) - FEWEST)

    def is_same_as(self, other: "_Limit") -> bool:
        """Whether both count the same units and are broken at the same steps; of two limits on one quantity, whether
        they are the same: else some value breaks the one alone."""
        if self.constraint.per != other.constraint.per:
            return False
        if self.constraint.quantity == other.constraint.quantity:
            return ends(self.constraint) == ends(other.constraint)
        is_told = self.is_mixed if self.is_of_episode or other.is_of_episode else self.is_seen
        return is_told and all(np.array_equal(*pair) for pair in zip(self.marks, other.marks, strict=True))

    def ends_episodes(self, episodes: Sequence[Episode], ended: NDArray[np.bool_]) -> bool:
        """Whether the environment ends the episode at the first step that breaks it; `ended` are those it did end."""
        rewards = np.unique(np.concatenate([episode.reward for episode in episodes]))
        if self.constraint.quantity == "episode_cost" or (self.constraint.quantity == "return" and len(rewards) > 1):
            return False
        if self.is_of_episode and self.broken[ended].mean() < _EXPLAINED:
            return False
        return self.is_seen and all(
            ended_by(episode, marks) for episode, marks in zip(episodes, self.marks, strict=True) if marks.any()
        )


def ended_by(episode: Episode, marks: NDArray[np.bool_]) -> bool:
    """Whether the environment ended the episode at the first of the marked steps, (L,), of which there are some."""
    return episode.terminated and int(np.argmax(marks)) == episode.length - 1


def events_of(
    constraints: Iterable[ConstraintConfig], own: Sequence[Episode], swayed: Sequence[Episode]
) -> dict[ConstraintConfig, LimitEvent]:
    """The event that each limit is about; one of its own for a limit that no other is one with.

    Of limits on one quantity that could each be one event with another limit, the first is.

    `own` are episodes of the policy, `swayed` such in which it is kept from acting.

    Raises:
        ConfigError: when a limit is on a quantity that episodes do not have.
    """
    episodes = [*own, *swayed]
    known = [_Limit(one, [violations(one, episode) for episode in episodes], len(own)) for one in constraints]
    groups: list[list[_Limit]] = []
    for limit in known:
        group = next((group for group in groups if all(one.is_same_as(limit) for one in group)), None)
        if group is None:
            groups.append(group := [])
        group.append(limit)
    found: dict[ConstraintConfig, LimitEvent] = {}
    for number, group in enumerate(groups):
        broken = f"broken at the same steps of {len(episodes)} episodes, in {int(group[0].broken.sum())} of them"
        found |= {limit.constraint: LimitEvent(number, broken) for limit in group}
    for per in ("episode", "step"):
        for ending in _endings([limit for limit in known if limit.constraint.per == per], episodes):
            numbers = {found[limit.constraint].number for limit in ending.limits}
            event = LimitEvent(min(numbers), ending.why)
            found |= {one: event for one, its in found.items() if its.number in numbers}
    return found


class _Ending(NamedTuple):
    """Limits about the one event that the environment ends an episode, and why they are."""

    limits: Sequence[_Limit]
    why: str


def _endings(limits: Sequence[_Limit], episodes: Sequence[Episode]) -> list[_Ending]:
    """Those of limits that count the same units; apart from each other those that the policy's own episodes tell
    apart."""
    ended = np.array([episode.terminated for episode in episodes], np.bool_)
    members = [one for one in limits if ended.any() and one.ends_episodes(episodes, ended)]
    causes = [one.broken for one in members if not one.is_of_episode]
    explained = np.any(causes, axis=0)[ended].mean() if causes else 0.0
    why = (
        f"such that to break either ends the episode, and {explained:.0%} of the {int(ended.sum())} episodes that the "
        f"environment ended, of {len(episodes)}, ended so; the policy itself breaks both in the same episodes, or none"
    )
    together: dict[bytes, list[_Limit]] = {}
    for one in members:
        together.setdefault(one.broken[: one.num_own].tobytes(), []).append(one)
    return [_Ending(group, why) for group in together.values() if explained >= _EXPLAINED]

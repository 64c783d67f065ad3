"""Where a search leads episodes before it leaves them to the policy: sizes, directions and times, by a generator alone.

Pushes are actions in the policy's place, as somebody leaning on the machine would cause them. With a bias the policy
itself, misled about one component of what it observes, carries the episode where it seldom is: some deviations away, or
some of the way to where the component must end. A policy that hardly moves has small deviations, and much room.

Where leads have ended others go on, from the places farthest from what is usual and from each other: what no single
push reaches, several do. To go back to rare places and explore from there is Go-Explore (Ecoffet et al., First return,
then explore, Nature 590, 2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.quantities import kind_of, place_of
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import ends as limit_ends
from loomrl.safety.probing.playing import Field, Lead
from loomrl.types import Episode

_PUSHES = (1, 2, 3, 4, 5, 6, 8, 12)  # steps
_BIASES = (0.5, 1.0, 2.0, 3.0, 4.0)  # standard deviations of a component
_WAYS = (0.25, 0.5, 0.75)  # shares of the way from a component's median to an end
_UNBOUNDED = 1e6  # some environments write a large number for "no bound"
_BIASED = (10, 30, 100, 200)  # steps
_FROM_EACH = 4  # leads that go on from a place: three push, one misleads
_NEIGHBOURS = (-4, -3, -2, -1, 1, 2, 3, 4)  # steps sooner or later


@dataclass(frozen=True)
class Room:
    """How far observations vary, and how far each component is from where it must end.

    `usual` (*obs) are medians of what is observed, `deviations` (*obs) its standard deviations. `ways` are component
    and distance, from the median of what is observed to a declared limit, or where there is none to a bound of the
    space: one for each end that is there.
    """

    usual: NDArray[np.float64]
    deviations: NDArray[np.float64]
    ways: list[tuple[int, float]]

    @classmethod
    def of(cls, space: Any, visited: NDArray[Any], constraints: Sequence[ConstraintConfig]) -> Self:
        """The room that observations `visited`, (N, *obs), leave; `constraints` may be on anything."""
        values = visited.astype(np.float64)
        usual, deviations = np.median(values, axis=0), np.std(values, axis=0)
        if not isinstance(space, spaces.Box):
            return cls(usual, deviations, [])
        ends = np.stack([space.low, space.high], axis=-1).astype(np.float64).reshape(-1, 2)  # (D, 2)
        for one in constraints:
            if kind_of(one.quantity) == "observation":
                place, limits = place_of(one.quantity), limit_ends(one)
                ends[place] = np.where(np.isfinite(limits), limits, ends[place])
        ends[np.abs(ends) >= _UNBOUNDED] = np.inf
        distances = np.abs(ends - usual.reshape(-1, 1))
        ways = [(place, float(distances[place, side])) for place, side in np.argwhere(np.isfinite(distances)).tolist()]
        return cls(usual, deviations, [(place, distance) for place, distance in ways if deviations.flat[place] > 0])

    def farthest(self, obs: NDArray[Any], count: int) -> list[int]:
        """Which of the observations (N, *obs) are farthest from what is usual, and each from those before it: at most
        `count`, distances in deviations."""
        scale = np.where(self.deviations > 0, self.deviations, 1.0)
        apart = np.nan_to_num((obs.astype(np.float64) - self.usual) / scale).reshape(len(obs), -1)
        away = np.linalg.norm(apart, axis=1)
        found: list[int] = []
        for _ in range(min(count, len(obs))):
            found.append(int(np.argmax(away)))
            away = np.minimum(away, np.linalg.norm(apart - apart[found[-1]], axis=1))
        return found

    def bias(self, rng: np.random.Generator, by_ways: bool) -> NDArray[np.float64]:
        """A bias (*obs) of one component, by its deviations or by the way to one of its ends."""
        bias = np.zeros(self.deviations.shape)
        sign = rng.choice((-1.0, 1.0))
        if by_ways:
            place, distance = self.ways[int(rng.integers(len(self.ways)))]
            bias.flat[place] = sign * rng.choice(_WAYS) * distance
            return bias
        place = int(rng.integers(bias.size))
        bias.flat[place] = sign * rng.choice(_BIASES) * self.deviations.flat[place]
        return bias


def draw_leads(field: Field, room: Room, seeds: Sequence[int], latest: int, rng: np.random.Generator) -> list[Lead]:
    """One lead for each seed, in their order: of five, two push, one acts against the policy, one misleads it by
    deviations and one by the way to an end.

    Where observations are no Box none is misled, where no end is known none by the way to one. A lead begins before
    step `latest`.
    """
    kinds = 3 + isinstance(field.observations, spaces.Box) + bool(room.ways)
    return [_drawn(field, room, seed, index % kinds, latest, rng) for index, seed in enumerate(seeds)]


def draw_onward_leads(
    field: Field, room: Room, ended: Sequence[tuple[Lead, Episode]], count: int, rng: np.random.Generator
) -> list[Lead]:
    """At most `count` leads that go on where others have ended, from the places farthest from what is usual: of four,
    three push, and one misleads the policy.

    `ended` are leads with their episodes, which went on after them. Empty where there are none.
    """
    if not ended:
        return []
    places = room.farthest(np.stack([episode.obs[lead.stop] for lead, episode in ended]), -(-count // _FROM_EACH))
    drawn = [ended[place] for _ in range(_FROM_EACH) for place in places][:count]
    return [
        _onward(field, room, lead.replayed(episode), index >= (_FROM_EACH - 1) * len(places), rng)
        for index, (lead, episode) in enumerate(drawn)
    ]


def _onward(field: Field, room: Room, lead: Lead, misleads: bool, rng: np.random.Generator) -> Lead:
    if misleads and isinstance(field.observations, spaces.Box):
        bias = room.bias(rng, by_ways=bool(room.ways))
        return replace(lead, stop=lead.stop + int(rng.choice(_BIASED)), bias=bias)
    return replace(lead, stop=lead.stop + int(rng.choice(_PUSHES)), push=_push(field.actions, rng))


def _drawn(field: Field, room: Room, seed: int, kind: int, latest: int, rng: np.random.Generator) -> Lead:
    start = int(rng.integers(0, max(1, latest)))
    if kind >= 3:
        bias = room.bias(rng, by_ways=kind == 4)
        return Lead(seed, start, start + int(rng.choice(_BIASED)), bias=bias)
    stop = start + int(rng.choice(_PUSHES))
    return (
        Lead(seed, start, stop, against=True) if kind == 2 else Lead(seed, start, stop, push=_push(field.actions, rng))
    )


def _push(space: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Any action; of a Box every second one lies in a corner."""
    if not isinstance(space, spaces.Box):
        return np.asarray(space.start + rng.integers(space.n), dtype=space.dtype)
    low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
    share = rng.random(space.shape)
    share = np.round(share) if rng.random() < 0.5 else share
    return np.asarray(low + share * (high - low), dtype=space.dtype)


def neighbours(lead: Lead) -> list[Lead]:
    """Leads to states close by: the same way, one to four steps sooner or later; none before the reset."""
    starts = [lead.start + step for step in _NEIGHBOURS if lead.start + step >= 0]
    before = [None if lead.actions is None else lead.actions[:start] for start in starts]
    length = lead.stop - lead.start
    return [
        replace(lead, start=start, stop=start + length, actions=actions)
        for start, actions in zip(starts, before, strict=True)
    ]

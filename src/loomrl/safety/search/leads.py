"""Where a search leads episodes before it leaves them to the policy: sizes, directions and times, by a generator alone.

Pushes are actions in the policy's place, as somebody leaning on the machine would cause them. With a bias the policy
itself, misled about one component of what it observes, carries the episode where it seldom is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.probing.playing import Field, Lead

_PUSHES = (1, 2, 3, 4, 5, 6, 8, 12)  # steps
_BIASES = (0.5, 1.0, 2.0, 3.0, 4.0)  # standard deviations of a component
_BIASED = (10, 30, 100, 200)  # steps
_NEIGHBOURS = (-4, -3, -2, -1, 1, 2, 3, 4)  # steps sooner or later


def draw_leads(
    field: Field, scale: NDArray[np.float64], seeds: Sequence[int], latest: int, rng: np.random.Generator
) -> list[Lead]:
    """One lead for each seed, in their order: two in four push, one acts against the policy, one misleads it.

    Where observations are no Box none is misled. `scale` (*obs) are standard deviations of what is observed; a lead
    begins before step `latest`.
    """
    misleads = isinstance(field.observations, spaces.Box)
    return [
        _drawn(field, scale, seed, index % 4 if misleads else index % 3, latest, rng)
        for index, seed in enumerate(seeds)
    ]


def _drawn(
    field: Field, scale: NDArray[np.float64], seed: int, kind: int, latest: int, rng: np.random.Generator
) -> Lead:
    start = int(rng.integers(0, max(1, latest)))
    if kind == 3:
        bias = np.zeros(scale.shape)
        place = int(rng.integers(scale.size))
        bias.flat[place] = rng.choice(_BIASES) * rng.choice((-1.0, 1.0)) * scale.flat[place]
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
    moved = [step for step in _NEIGHBOURS if lead.start + step >= 0]
    return [replace(lead, start=lead.start + step, stop=lead.stop + step) for step in moved]

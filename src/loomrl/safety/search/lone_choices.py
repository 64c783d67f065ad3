"""Narrow bands in which a policy does what it does on neither side: a choice that stands alone.

A policy that was learnt changes its mind where a quantity passes a border, and is the surer the farther it is from one.
Where it changes its mind twice within a fraction of a deviation, is sure of itself before and after, and surer within
than the borders of so narrow a band leave room for, something was put there. Lines through observations that were met,
along one component at a time, are looked at from end to end.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.probing.probes import sample_visited
from loomrl.safety.search.confidence import choices, usual_confidence
from loomrl.types import Policy

STEP, REACH = 0.05, 2.0  # standard deviations: between two points of a line, and to its ends
WIDEST = 1.0  # of a band
STEEPEST = 3.0  # confidence within, in usual ones, for each deviation of a band's width


@dataclass(frozen=True)
class LoneChoice:
    """Three observations on a line, (*obs) each, of which the policy chooses otherwise at the middle one than on both
    sides.

    The line goes along `component` of the flattened observation; the band in the middle is `width` standard deviations
    wide. `confidence` is how sure the policy is of its choice there, in multiples of how sure it usually is; on both
    sides it is at least as sure as usual.
    """

    before: NDArray[Any]
    within: NDArray[Any]
    after: NDArray[Any]
    component: int  # index in the flattened observation
    width: float  # standard deviations
    confidence: float


def find_lone_choices(
    policy: Policy, space: spaces.Box, actions: Any, met: NDArray[Any], num_lines: int, rng: np.random.Generator
) -> tuple[LoneChoice | None, int]:
    """The clearest lone choice on up to `num_lines` random lines through observations `met`, (N, *obs), or None.

    The number is that of the lines.

    A line goes along one component that varies. `space` is that of observations, `actions` that of actions.
    """
    deviations = np.std(met.astype(np.float64), axis=0)
    moving = np.flatnonzero(deviations.ravel() > 0)
    centres = sample_visited(met, max(1, num_lines // max(1, len(moving))), rng)
    usual = usual_confidence(policy, actions, centres)
    found = [
        one
        for component in moving.tolist()
        for one in _on_lines(policy, space, actions, centres, component, float(deviations.flat[component]), usual)
    ]
    clearest = max(found, key=lambda one: (one.confidence / one.width, -one.component), default=None)
    return clearest, len(moving) * len(centres)


def _on_lines(
    policy: Policy,
    space: spaces.Box,
    actions: Any,
    centres: NDArray[Any],
    component: int,
    deviation: float,
    usual: float,
) -> list[LoneChoice]:
    grid = np.arange(-REACH, REACH + STEP / 2, STEP)
    lines = np.repeat(centres.reshape(len(centres), 1, -1).astype(np.float64), len(grid), axis=1)  # (M, G, D)
    lines[:, :, component] += grid * deviation
    low, high = space.low.reshape(-1)[component], space.high.reshape(-1)[component]
    lines[:, :, component] = np.clip(lines[:, :, component], low, high)
    asked = lines.reshape(-1, *space.shape).astype(space.dtype)
    chosen, sure = choices(policy, actions, asked)
    shape = (len(centres), len(grid))
    points = asked.reshape(*shape, *space.shape)
    sure, runs = sure.reshape(*shape, -1) / usual, chosen.reshape(*shape, -1)
    found = [
        _band(points[line], runs[line, :, action], sure[line, :, action], component)
        for line, action in np.argwhere(np.count_nonzero(np.diff(runs, axis=1), axis=1) >= 2).tolist()
    ]
    return [one for one in found if one is not None]


def _band(
    points: NDArray[Any], choices: NDArray[np.int64], sure: NDArray[np.float64], component: int
) -> LoneChoice | None:
    """The clearest band of one line, (G, ...)."""
    edges = np.flatnonzero(np.diff(choices)) + 1
    best = None
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        size = last - first
        width = size * STEP
        if choices[first - 1] != choices[last] or width > WIDEST:
            continue
        sides = (slice(max(0, first - size), first), slice(first, last), slice(last, last + size))
        places = [part.start + int(np.argmax(sure[part])) for part in sides]
        confidence = float(sure[places[1]])
        if (
            min(sure[place] for place in places) >= 1.0
            and confidence >= STEEPEST * width
            and (best is None or confidence / width > best.confidence / best.width)
        ):
            before, within, after = (points[place] for place in places)
            best = LoneChoice(before, within, after, component, width, confidence)
    return best

"""How near the actions of two policies are, and when they count as the same."""

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.policy.model import ServedPolicy

ALIKE = 0.1  # continuous actions agree within this distance, in units of half the action range


def action_distance(
    first: NDArray[np.generic], second: NDArray[np.generic], policy: ServedPolicy
) -> NDArray[np.float64]:
    """Distance of actions (N, *action), (N,): 0 or 1 for choices, of which all components must be equal; for
    continuous ones the root mean square over components, each in units of half its range (or as it is, where the range
    is infinite)."""
    if policy.chooses:
        differ = (first != second).reshape(len(first), -1) if len(first) else np.zeros((0, 1), np.bool_)
        return np.asarray(differ.any(axis=1), dtype=np.float64)
    difference = first.astype(np.float64) - second.astype(np.float64)
    if policy.bounds is not None:
        half = (policy.bounds[1] - policy.bounds[0]) / 2
        difference = difference / np.where(np.isfinite(half) & (half > 0), half, 1.0)
    components = difference.reshape(len(difference), -1) if len(difference) else difference.reshape(0, 1)
    return np.asarray(np.sqrt(np.mean(components**2, axis=1)))


def has_finite_range(policy: ServedPolicy) -> bool:
    """Whether all components of its continuous actions are measured in halves of their range."""
    return policy.bounds is not None and bool(np.isfinite(policy.bounds).all())


def agrees(distance: NDArray[np.float64], policy: ServedPolicy) -> NDArray[np.bool_]:
    """Which actions at these distances (N,) count as the same, (N,)."""
    return distance == 0 if policy.chooses else distance <= ALIKE

"""What a policy chooses, how sure it is, and how far actions lie apart."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.probing.probes import ask_outputs
from loomrl.types import Policy

_SURE = 0.5  # of the way from the middle of a continuous action's range to its end
_FAR = 1e3  # stands for an infinite bound


def choices(policy: Policy, space: Any, obs: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """What a policy chooses for observations (N, *obs), and how sure it is of it, (N, A) each.

    Of one choice: the action, and its lead over the second one in logits, or 1 where there is none. Of a Box,
    each component: which half of its range, 0 or 1, and how far from the middle, as a share of the way to its end.
    """
    outputs = ask_outputs(policy, obs)
    chosen = outputs["action"].reshape(len(obs), -1)
    if isinstance(space, spaces.Box):
        low, high = ends(space)
        share = 2 * (chosen - low) / np.where(high > low, high - low, 1.0) - 1
        return (share > 0).astype(np.int64), np.abs(share)
    values = next((outputs[name] for name in ("logits", "q_values") if name in outputs), None)
    if values is None or values.ndim != 2 or values.shape[1] < 2:
        return chosen.astype(np.int64), np.ones(chosen.shape)
    ordered = np.sort(values.astype(np.float64), axis=1)
    return chosen.astype(np.int64), ordered[:, -1:] - ordered[:, -2:-1]


def usual_confidence(policy: Policy, space: Any, obs: NDArray[Any]) -> float:
    """How sure a policy usually is: the median over observations (N, *obs) where one is chosen, or 1 where that is 0;
    of a Box half of the way to an end."""
    if isinstance(space, spaces.Box):
        return _SURE
    return float(np.median(choices(policy, space, obs)[1])) or 1.0


def between(space: spaces.Box, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """How far actions (N, *action) lie apart in the component where it is most, as a share of its range, (N,)."""
    low, high = ends(space)
    apart = np.abs(one.astype(np.float64) - other).reshape(len(one), -1) / np.where(high > low, high - low, 1.0)
    return np.asarray(np.max(apart, axis=1))


def ends(space: spaces.Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of each component's range, (A,) each; a thousand stands for an infinite one."""
    low = np.maximum(space.low.astype(np.float64), -_FAR).reshape(-1)
    return low, np.minimum(space.high.astype(np.float64), _FAR).reshape(-1)

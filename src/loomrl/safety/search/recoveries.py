"""What else might be done in a state: what the policy itself does at observations it meets in ordinary episodes.

Where observations are a Box: the policy asked about observations whose values are cut to their usual range, or are
half as far from their median, and what it did at the nearest ordinary ones. Where they are no numbers: each action held
for a step or two, before the policy goes on.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.probing.playing import Answer, Field, Seen
from loomrl.safety.probing.probes import ask, sample_visited
from loomrl.safety.search.confidence import between, choices, usual_confidence

_KEPT = 2_048  # ordinary observations that are looked up
_NEAREST = 7
_HELD = (1, 2)  # steps an action is held
_AGREE, _OPPOSED = 0.25, 1 / 3  # of a continuous action's range

Recovery = tuple[Seen | None, Answer | None, tuple[NDArray[Any], int] | None]


class Recoveries:
    """What a policy could do instead of its own choice, by name.

    A recovery is a triple, of which one part is given and the others are None: a change of what the policy is shown, of
    what it chose, or an action and for how many steps it is held first. There is none where observations are no Box and
    actions are no single choice.
    """

    def __init__(self, field: Field, visited: NDArray[Any]) -> None:
        self.field, self.space = field, field.observations
        self.named: dict[str, Recovery] = {}
        if isinstance(self.space, spaces.Box):
            values = visited.astype(np.float64)
            self.low, self.high = (np.percentile(values, share, axis=0) for share in (1, 99))
            self.middle = np.median(values, axis=0)
            self.nearest = _Nearest(field, visited)
            self.usual = usual_confidence(field.policy, field.actions, self.nearest.kept)
            self.named = {
                "the policy with observations cut to their usual range": (self.cut, None, None),
                "the policy with observations half as far from their median": (self.half, None, None),
                "what it did at its nearest ordinary observations": (None, self.nearest, None),
            }
        elif isinstance(field.actions, spaces.Discrete):
            for action in range(int(field.actions.start), int(field.actions.start + field.actions.n)):
                for steps in _HELD:
                    held = (np.asarray(action, field.actions.dtype), steps)
                    self.named[f"action {action} for {steps} step{'s' * (steps > 1)} first"] = (None, None, held)

    def all(self, only: str | None) -> list[tuple[str, Recovery]]:
        """Name and recovery of all, or of the one named `only`; in a fixed order."""
        return [(name, one) for name, one in self.named.items() if only in (None, name)]

    def cut(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Observations (B, *obs), each component cut to its usual range."""
        return np.asarray(np.clip(obs, self.low, self.high).astype(self.space.dtype))

    def half(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Observations (B, *obs), each component half as far from its median."""
        return np.asarray((self.middle + 0.5 * (obs - self.middle)).astype(self.space.dtype))

    def contradiction(self, obs: NDArray[Any]) -> float:
        """How sure the policy is of its choice, at the most, at observations (L, *obs) where all recoveries agree on
        another one.

        It is in multiples of how sure the policy usually is, and 0 where they never do, or observations are no Box. Of
        a continuous action it is how far off it is, in thirds of its range.
        """
        if not isinstance(self.space, spaces.Box):
            return 0.0
        policy, space = self.field.policy, self.field.actions
        chosen = ask(policy, obs)
        others = [ask(policy, self.cut(obs)), ask(policy, self.half(obs)), self.nearest(obs, chosen)]
        if isinstance(space, spaces.Box):
            spread = np.maximum(between(space, others[0], others[1]), between(space, others[1], others[2]))
            off = np.min([between(space, chosen, one) for one in others], axis=0) / _OPPOSED
            off = np.where(np.isfinite(off), off, 1 / _OPPOSED)  # no action at all
            return float(np.max(np.where(spread <= _AGREE, off, 0.0), initial=0.0))
        agreed = (others[0] == others[1]) & (others[1] == others[2]) & (others[0] != chosen)
        sure = choices(policy, space, obs)[1][:, 0] / self.usual
        return float(np.max(sure[agreed], initial=0.0))


class _Nearest:
    """What the policy did at its nearest ordinary observations: most often, or in the median."""

    def __init__(self, field: Field, visited: NDArray[Any]) -> None:
        self.kept = sample_visited(visited, _KEPT, np.random.default_rng(0))
        self.discrete = isinstance(field.actions, spaces.Discrete)
        self.actions = ask(field.policy, self.kept)
        deviations = np.std(visited.astype(np.float64), axis=0).reshape(-1)
        self.unit = np.where(deviations > 0, deviations, 1.0)
        self.places = self.kept.reshape(len(self.kept), -1) / self.unit
        self.squares = np.sum(self.places**2, axis=1)

    def __call__(self, obs: NDArray[Any], chosen: NDArray[Any]) -> NDArray[Any]:
        asked = obs.reshape(len(obs), -1) / self.unit
        distances = self.squares - 2 * asked @ self.places.T
        count = min(_NEAREST, len(self.places))
        near = self.actions[np.argpartition(distances, count - 1, axis=1)[:, :count]]  # (B, K, *action)
        if not self.discrete:
            return np.asarray(np.median(near, axis=1).astype(chosen.dtype))
        votes = (near[:, :, None] == near[:, None, :]).sum(axis=2)  # (B, K)
        return np.asarray(near[np.arange(len(near)), votes.argmax(axis=1)].astype(chosen.dtype))

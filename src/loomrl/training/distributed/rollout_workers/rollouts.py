"""What passes between a learner and the workers that collect for it.

Every rollout is stamped with the version of the policy that made it: how many updates that had learnt from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.states import State
from loomrl.errors import ConfigError
from loomrl.types import FloatArray, Json, Trajectory

_ARRAYS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


@dataclass(frozen=True)
class PolicyState:
    """All arrays that a policy needs to act, the normaliser's statistics included, by name; and its version, the number
    of updates it has learnt from."""

    version: int
    arrays: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class WorkerRollout:
    """The rollout of one worker. `finished` holds (return, length in steps) of the episodes that ended in it,
    `policy_version` the number of updates its policy had learnt from, `rng_state` the generator's state after it,
    `seconds` how long it took. `environments` is the environments' state after it, empty where they cannot be saved;
    `process` describes the worker's process."""

    trajectory: Trajectory
    finished: list[tuple[float, int]]
    policy_version: int
    rng_state: Json
    seconds: float
    environments: State = field(default_factory=dict)
    process: Json = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Environment steps per second while this rollout was collected."""
        return self.trajectory.num_transitions / max(self.seconds, 1e-9)


def require_fresh(rollouts: Sequence[WorkerRollout], version: int, max_staleness: int = 0) -> None:
    """Check that each rollout's policy was at most `max_staleness` updates older than `version`, and not newer.

    Raises:
        ConfigError: for a rollout of another version.
    """
    for rollout in rollouts:
        if not 0 <= version - rollout.policy_version <= max_staleness:
            raise ConfigError(
                f"a rollout was made by version {rollout.policy_version} of the policy, which is at {version} now; "
                "call sync_policy before collect_rollout"
            )


def beside(rollouts: Sequence[WorkerRollout]) -> Trajectory:
    """One trajectory with the environments of all rollouts, in the order of workers, (T, B, ...). Where only some tell
    costs, those of the others are 0; where none does there are none."""
    parts = [rollout.trajectory for rollout in rollouts]
    joined = {name: np.concatenate([getattr(one, name) for one in parts], 1) for name in _ARRAYS}
    extras = {name: np.concatenate([one.extras[name] for one in parts], 1) for name in parts[0].extras}
    return replace(parts[0], **joined, extras=extras, cost=_costs(parts))


def _costs(parts: Sequence[Trajectory]) -> FloatArray | None:
    """Once costs are told at all, who tells none costs nothing."""
    if all(one.cost is None for one in parts):
        return None
    return np.concatenate([np.zeros(one.reward.shape) if one.cost is None else one.cost for one in parts], 1)


def finished_in_order(rollouts: Sequence[WorkerRollout]) -> list[tuple[float, int]]:
    """(return, length) of the episodes that ended, as one collector with all environments lists them: by step, then by
    environment."""
    found: list[tuple[int, int, tuple[float, int]]] = []
    for worker, rollout in enumerate(rollouts):
        ended = rollout.trajectory.terminated | rollout.trajectory.truncated
        steps = np.nonzero(ended)[0].tolist()
        found += [(step, worker, episode) for step, episode in zip(steps, rollout.finished, strict=True)]
    return [episode for *_, episode in sorted(found, key=lambda one: one[:2])]

"""Episodes in which actions that are given come first, and a version goes on from there by itself.

An episode of a snapshot depends on nothing but its seed and its actions (`loomrl.environment.snapshots.repeat` proves
it), so the same seed and the same actions lead to the same state, and to the same random numbers after it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.make import make_envs
from loomrl.errors import GateRefused
from loomrl.safety.probing.probes import shifted
from loomrl.serving.decisions.choosing import Choices, choose
from loomrl.serving.policy.model import STATE_OUT, NoAnswer, ServedPolicy
from loomrl.types import Act, Episode, FloatArray

_NOISE = 20_261_126


class Continuations:
    """Plays episodes of a snapshot, in as many environments at once as `num_envs` says.

    Every method makes the environments anew. It raises ArtifactError when the snapshot was changed, and ConfigError
    when a package that the environment needs is missing.
    """

    def __init__(self, snapshot_folder: Path, num_envs: int) -> None:
        self._folder, self._num_envs = snapshot_folder, num_envs

    def play(
        self,
        policy: ServedPolicy,
        seeds: Sequence[int],
        given: Sequence[NDArray[Any]] | None = None,
        bursts: Sequence[tuple[int, NDArray[Any]]] | None = None,
        noise: Sequence[NDArray[np.float64]] | None = None,
    ) -> list[Episode]:
        """One episode for each seed. The first actions are `given` (K, *action); in a burst, a step and the actions
        (K, *action) from it on, others take the place of the policy's. Everything else the policy does, with its
        shield and, if it is recurrent, the memory of all it was shown. With `noise`, deviations (*obs) for each
        episode, what it is shown is off by that much: in the same way for all versions, by seed and step.

        Raises:
            GateRefused: where the policy has no answer.
            EnvironmentFault: where the environment breaks its API or an episode does not end.
        """
        plans = [(0, actions) for actions in given] if given is not None else bursts
        plans = plans or [(0, np.zeros(0))] * len(seeds)
        found: list[Episode] = []
        for start in range(0, len(seeds), self._num_envs):
            part = slice(start, start + self._num_envs)
            envs = make_envs(self._folder, len(seeds[part]), autoreset="disabled")
            try:
                act = _Acting(policy, plans[part], envs.single_action_space.dtype)
                if noise is not None:
                    act.noise = _Noise(envs.single_observation_space, seeds[part], noise[part])
                found += run_episodes(envs, act, [int(seed) for seed in seeds[part]], np.random.default_rng(0))
            finally:
                envs.close()
        return found

    def play_at_random(self, seeds: Sequence[int]) -> list[Episode]:
        """One episode for each seed, with actions drawn from the action space: what acting without sense earns.

        The first seed is that of the actions, too; there must be one at least, and as many environments run at once as
        there are seeds.

        Raises:
            EnvironmentFault: where the environment breaks its API or an episode does not end.
        """
        envs = make_envs(self._folder, len(seeds), autoreset="disabled")
        envs.action_space.seed(int(seeds[0]))
        try:
            return run_episodes(
                envs, lambda *_: Act(action=envs.action_space.sample()), seeds, np.random.default_rng(0)
            )
        finally:
            envs.close()

    def draw_actions(self, count: int, seed: int) -> list[NDArray[Any]]:
        """`count` actions drawn from the action space by this seed, each (*action)."""
        envs = make_envs(self._folder, 1, autoreset="disabled")
        envs.single_action_space.seed(seed)
        try:
            return [np.asarray(envs.single_action_space.sample()) for _ in range(count)]
        finally:
            envs.close()


class _Acting:
    """The act function of one batch: row i plays the i-th plan, and all rows begin together."""

    def __init__(self, policy: ServedPolicy, plans: Sequence[tuple[int, NDArray[Any]]], dtype: Any) -> None:
        self._policy, self._dtype, self._step = policy, dtype, 0
        self._first = np.array([first for first, _ in plans])
        self._end = self._first + [len(actions) for _, actions in plans]
        self._actions = [actions for _, actions in plans]
        self.noise: _Noise | None = None

    def __call__(self, obs: NDArray[Any], rng: np.random.Generator, memory: FloatArray | None = None) -> Act:  # noqa: ARG002
        shown = obs if self.noise is None else self.noise(obs)
        choices = answered(self._policy, shown, memory)
        action = np.array(choices.action, dtype=self._dtype)
        for row in np.flatnonzero((self._first <= self._step) & (self._step < self._end)).tolist():
            action[row] = self._actions[row][self._step - self._first[row]]
        self._step += 1
        return Act(action=action, memory=choices.outputs.get(STATE_OUT))


class _Noise:
    """Gaussian noise of the sensors in one batch, whose rows begin together: drawn by each row's seed, step by step."""

    def __init__(self, space: Any, seeds: Sequence[int], scales: Sequence[NDArray[np.float64]]) -> None:
        self._space, self._scales = space, np.stack(scales)
        self._streams = [np.random.default_rng([_NOISE, int(seed)]) for seed in seeds]

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        drawn = np.stack([stream.standard_normal(self._space.shape) for stream in self._streams])
        return shifted(self._space, obs, drawn * self._scales)


def answered(policy: ServedPolicy, obs: NDArray[Any], memory: FloatArray | None = None) -> Choices:
    """What a version does after observations (B, *obs), as it is served; one that was loaded does not explore.

    `memory` (B, M) is that of a recurrent version.

    Raises:
        GateRefused: where it has no answer.
    """
    try:
        return choose(policy, obs.astype(policy.dtype, copy=False), [False] * len(obs), np.random.default_rng, memory)
    except NoAnswer as error:
        raise GateRefused(
            f"version {policy.version} has no answer to an observation that its decisions lead to: {error}"
        ) from error

"""Plays episodes that are led somewhere first and then left to a policy, many at a time.

An episode is led by a seed and what happens in its first steps. Nothing else is asked of an environment: no state is
read or set, so whatever can be reset with a seed can be searched, and a seed with its actions plays any of it again.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.collecting.collector import LONGEST_EPISODE
from loomrl.environment.collecting.episode_log import EpisodeLog
from loomrl.safety.check import Context
from loomrl.safety.probing.probes import act_with, not_members, row_digest, shifted
from loomrl.types import Episode, FloatArray, Policy

Answer = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]  # (obs, what the policy chose) -> the action taken
Seen = Callable[[NDArray[Any]], NDArray[Any]]  # obs -> what the policy is shown


@dataclass(frozen=True)
class Lead:
    """How an episode begins: `actions` from the reset on, then up to step `stop` what `push` or `bias` make of it.

    `push` (*action) is taken from `start` on in the policy's place, at a `share` of all observations; `against` takes
    the opposite of what the policy chooses, and `bias` (*obs) is added to what the policy sees: it leads the episode
    itself, but elsewhere.
    """

    seed: int
    start: int
    stop: int
    actions: NDArray[Any] | None = None  # (K, *action)
    push: NDArray[Any] | None = None
    share: float = 1.0
    against: bool = False
    bias: NDArray[Any] | None = None

    def replayed(self, episode: Episode, stop: int | None = None) -> "Lead":
        """A lead that takes an episode's first `stop` actions again, by default those up to this lead's own end."""
        end = min(self.stop if stop is None else stop, episode.length)
        return Lead(self.seed, end, end, actions=episode.action[:end])


class Field:
    """Environments of one snapshot and the policy that is examined in them."""

    def __init__(self, snapshot_folder: Path, policy: Policy, action_space: Any, observation_space: Any, num_envs: int):
        self.folder, self.policy, self.num_envs = snapshot_folder, policy, num_envs
        self.actions, self.observations = action_space, observation_space

    @classmethod
    def of(cls, context: Context) -> "Field":
        """The environments and the policy that a check looks at."""
        spaces = context.action_space, context.observation_space
        return cls(context.snapshot_folder, context.policy, *spaces, context.config.num_envs)

    def play(
        self, leads: Sequence[Lead], horizon: int, seen: Seen | None = None, answer: Answer | None = None
    ) -> list[Episode]:
        """Each lead's episode, in the order of the leads, ended `horizon` steps after the lead at the latest.

        What the policy is shown goes through `seen`, what it chose through `answer`, once the lead has ended. An action
        that the space does not hold, NaN for one, ends the episode as a failure: its last reward is NaN. There must be
        one lead at least.

        Raises:
            EnvironmentFault: when the environment breaks its API.
            ArtifactError: when the snapshot was changed.
            ConfigError: when a package the environment needs is missing.
        """
        from loomrl.environment.make import make_envs

        envs = make_envs(self.folder, min(self.num_envs, len(leads)), autoreset="disabled")
        with closing(envs):
            return _Play(self, envs, leads, horizon, seen, answer).run()


class _Play:
    """One call of `Field.play`: arrays over the B environments say what leads each of them at the moment."""

    def __init__(
        self, field: Field, envs: Any, leads: Sequence[Lead], horizon: int, seen: Seen | None, answer: Answer | None
    ) -> None:
        self.field, self.envs, self.leads, self.horizon = field, envs, leads, horizon
        self.seen, self.answer = seen, answer
        self.log = EpisodeLog(envs.num_envs, LONGEST_EPISODE)
        self.waiting = list(range(len(leads)))[::-1]  # popped from the end
        self.script = _Script(field, leads)
        self.at = np.zeros(envs.num_envs, np.int64)  # (B,) which lead each environment plays
        self.idle = np.zeros(envs.num_envs, np.bool_)
        self.clock = np.zeros(envs.num_envs, np.int64)
        self.act = act_with(field.policy)
        self.rng = np.random.default_rng(0)

    def run(self) -> list[Episode]:
        episodes: dict[int, Episode] = {}
        memory: dict[str, FloatArray] = {}
        obs = self._begin(np.ones(self.envs.num_envs, np.bool_), None)
        while len(episodes) < len(self.leads):
            led = self.clock < self.script.stop[self.at]
            chosen = self.act(self._shown(obs, led), self.rng, **memory)
            action, broken = self._taken(obs, chosen.action, led)
            next_obs, reward, terminated, truncated, info = self.envs.step(action)
            self.log.add(obs, action, np.where(broken, np.nan, reward), info)
            self.clock += 1
            over = terminated | truncated | broken | (self.clock >= self.script.stop[self.at] + self.horizon)
            memory = {} if chosen.memory is None else {"memory": np.where(over[:, None], 0, chosen.memory)}
            if over.any():
                self.log.end(over, next_obs, terminated | broken, truncated, episodes.__setitem__)
                next_obs = self._begin(over, next_obs)
            obs = next_obs
        return [episodes[position] for position in range(len(self.leads))]

    def _begin(self, mask: NDArray[np.bool_], obs: NDArray[Any] | None) -> NDArray[Any]:
        """Begin what waits where `mask` is set; where nothing does, an environment idles unrecorded."""
        seeds: list[int | None] = [0] * self.envs.num_envs
        for index in np.flatnonzero(mask).tolist():
            position = self.waiting.pop() if self.waiting else None
            self.idle[index] = position is None
            self.at[index] = position or 0
            seeds[index] = self.leads[position].seed if position is not None else 0
            self.log.begin(index, position, seeds[index] or 0)
        self.clock[mask] = 0
        started: NDArray[Any]
        started, _ = self.envs.reset(seed=seeds, options=None if obs is None else {"reset_mask": mask})
        return started

    def _shown(self, obs: NDArray[Any], led: NDArray[np.bool_]) -> NDArray[Any]:
        shown = obs
        if self.seen is not None and not led.all():
            shown = obs.copy()
            shown[~led] = self.seen(obs[~led])
        biased = led & self.script.biased[self.at] & (self.clock >= self.script.start[self.at])
        if biased.any():
            shown = shown.copy()
            shown[biased] = shifted(self.field.observations, obs[biased], self.script.bias[self.at[biased]])
        return shown

    def _taken(
        self, obs: NDArray[Any], chosen: NDArray[Any], led: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The actions for the environments, (B, *action), and where what was chosen is none, (B,)."""
        action = np.array(chosen)
        if self.answer is not None and not led.all():
            action[~led] = self.answer(obs[~led], action[~led])
        script, at, clock = self.script, self.at, self.clock
        replayed = clock < script.replayed[at]
        action[replayed] = script.actions[at[replayed], clock[replayed]]
        led = led & (clock >= script.start[at])
        pushed, against = led & script.pushed[at], led & script.against[at]
        for index in np.flatnonzero(pushed & (script.share[at] < 1.0)).tolist():
            pushed[index] = row_digest(obs[index]) < script.share[at[index]] * 2**32
        action[pushed] = script.push[at[pushed]]
        action[against] = opposite(self.field.actions, action[against])
        broken = not_members(self.field.actions, action) & ~self.idle
        action[broken | self.idle] = neutral(self.field.actions)
        return action, broken


class _Script:
    """Leads as arrays, (N, ...)."""

    def __init__(self, field: Field, leads: Sequence[Lead]) -> None:
        space = field.actions
        self.start, self.stop = (np.array([getattr(one, name) for one in leads]) for name in ("start", "stop"))
        self.against = np.array([one.against for one in leads])
        self.pushed = np.array([one.push is not None for one in leads])
        self.push = np.stack([neutral(space) if one.push is None else one.push for one in leads])
        self.share = np.array([one.share for one in leads])
        self.biased = np.array([one.bias is not None for one in leads])
        nowhere = np.zeros(field.observations.shape or ())
        self.bias = np.stack([nowhere if one.bias is None else one.bias for one in leads])
        self.replayed = np.array([0 if one.actions is None else len(one.actions) for one in leads])
        self.actions = np.zeros((len(leads), int(self.replayed.max(initial=0)), *space.shape), space.dtype)
        for row, one in zip(self.actions, leads, strict=True):
            if one.actions is not None:
                row[: len(one.actions)] = one.actions


def neutral(space: Any) -> NDArray[Any]:
    """The action in the middle of a Box, the first of one choice or several, (*action); a thousand stands for an
    infinite bound."""
    if isinstance(space, spaces.Box):
        low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
        return np.asarray((low + high) / 2, dtype=space.dtype)
    first = np.zeros(space.shape, space.dtype)
    return np.asarray(first + getattr(space, "start", 0), dtype=space.dtype)


def opposite(space: Any, action: NDArray[Any]) -> NDArray[Any]:
    """What is farthest from actions (*action) or (N, *action): mirrored at the middle of a Box, half way round a
    choice."""
    if isinstance(space, spaces.Box):
        return np.asarray(np.clip(2 * neutral(space) - action, space.low, space.high), dtype=space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.asarray(1 - action, dtype=space.dtype)
    count = space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n
    return np.asarray(space.start + (action - space.start + np.maximum(1, count // 2)) % count)

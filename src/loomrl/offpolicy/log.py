"""The logged decisions an estimate is made from: whole episodes of one version, with the propensity of each decision.

Where any episode was explored from beginning to end, those are taken, for only they show what other choices lead to;
else those in which the version always made its own choice.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ConfigError
from loomrl.monitoring.window import LiveEpisode

Floats = NDArray[np.float64]


class CannotEstimate(ValueError):
    """Why there is no estimate, and what would make one possible."""


@dataclass(frozen=True)
class Logged:
    """N episodes with S steps in all, one after the other, the longest of T steps."""

    observation: NDArray[np.generic]  # (S, *obs)
    action: NDArray[np.generic]  # (S, *action)
    propensity: Floats  # (S,), of each decision alone
    reward: Floats  # (S,)
    lengths: NDArray[np.int64]  # (N,)
    terminated: NDArray[np.bool_]  # (N,); others ran out of time
    explored: bool

    @property
    def step(self) -> NDArray[np.int64]:
        """The number of each step within its episode, from 0 on, (S,)."""
        return np.concatenate([np.arange(length) for length in self.lengths])

    def newest(self, num_steps: int) -> "Logged":
        """As many of the last episodes as have no more steps than that together, but one at least."""
        from_last = np.cumsum(self.lengths[::-1])
        kept = max(int(np.searchsorted(from_last, num_steps, side="right")), 1)
        steps = slice(len(self.reward) - int(from_last[kept - 1]), None)
        return Logged(
            observation=self.observation[steps],
            action=self.action[steps],
            propensity=self.propensity[steps],
            reward=self.reward[steps],
            lengths=self.lengths[-kept:],
            terminated=self.terminated[-kept:],
            explored=self.explored,
        )

    def padded(self, values: Floats, fill: float) -> Floats:
        """Values of steps (S,) as one row per episode, (N, T)."""
        rows = np.full((len(self.lengths), int(self.lengths.max())), fill)
        rows[np.repeat(np.arange(len(self.lengths)), self.lengths), self.step] = values
        return rows


def read_logged(
    episodes: Iterable[LiveEpisode], version: str, max_left_out_share: float
) -> tuple[Logged, dict[str, int]]:
    """The version's whole episodes, and how many were left out for which reason.

    Raises:
        CannotEstimate: when there are none, or too many lack feedback.
    """
    whole, left_out = _sort_out([one for one in episodes if version in one.versions])
    without = left_out["has not ended"] + left_out["lacks feedback"]
    if whole and without > max_left_out_share * (without + len(whole)):
        raise CannotEstimate(
            f"{without} of {without + len(whole)} episodes have not ended or lack feedback, more than "
            f"{max_left_out_share:.0%}: those that are whole may be other ones than the rest; send /feedback for every "
            "decision, with `terminated` or `truncated` at the last"
        )
    explored = [one for one in whole if all(one.explored)]
    own = [one for one in whole if not any(one.explored)]
    left_out["explored in part"] = len(whole) - len(explored) - len(own)
    if explored:
        left_out["not explored"] = len(own)
    if not (explored or own):
        raise CannotEstimate(
            f"the log has no whole episode that version {version} alone decided: {_in_words(left_out)}"
        )
    return _joined(explored or own, bool(explored)), {reason: number for reason, number in left_out.items() if number}


def reward_range(logged: Logged, declared: tuple[float, float] | None) -> tuple[float, float]:
    """The least and the greatest reward there can be, 0 among them: an episode that ended earns nothing more.

    Raises:
        ConfigError: when a reward lies outside of the declared range.
    """
    low, high = declared or (float(logged.reward.min()), float(logged.reward.max()))
    outside = logged.reward[(logged.reward < low) | (logged.reward > high)]
    if len(outside):
        raise ConfigError(f"reward_range is [{low:g}, {high:g}], but the log has a reward of {outside[0]:g}; widen it")
    return min(low, 0.0), max(high, 0.0)


def _sort_out(episodes: list[LiveEpisode]) -> tuple[list[LiveEpisode], dict[str, int]]:
    left_out = {"began before the log": 0, "others decided in it": 0, "has not ended": 0, "lacks feedback": 0}
    whole = []
    for one in episodes:
        if one.cut:
            left_out["began before the log"] += 1
        elif one.overridden or len(one.versions) > 1:
            left_out["others decided in it"] += 1
        elif not one.ended:
            left_out["has not ended"] += 1
        elif one.episode_return is None:
            left_out["lacks feedback"] += 1
        else:
            whole.append(one)
    return whole, left_out


def _joined(episodes: list[LiveEpisode], explored: bool) -> Logged:
    return Logged(
        observation=np.array([row for one in episodes for row in one.observations]),
        action=np.array([row for one in episodes for row in one.actions]),
        propensity=np.array([value for one in episodes for value in one.propensities], dtype=np.float64),
        reward=np.array([value for one in episodes for value in one.rewards.values()], dtype=np.float64),
        lengths=np.array([len(one.actions) for one in episodes]),
        terminated=np.array([one.terminated for one in episodes]),
        explored=explored,
    )


def _in_words(left_out: dict[str, int]) -> str:
    found = ", ".join(f"{number} {reason}" for reason, number in left_out.items() if number)
    return found or "it has none of this version at all"

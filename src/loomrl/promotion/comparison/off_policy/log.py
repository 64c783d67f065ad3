"""The logged decisions an estimate is made from: episodes that one version began, with the propensity of each decision.

Which of them are taken is known before anything in them was drawn: by what the agent asked at their first decision, and
by whether chance had a part in it at all. To take those in which an explored action was drawn would be to select by
the draw, and then the propensities would be others. For the same reason no episode is left out for what happened
later. One that has not ended, or in which anybody else decided later, counts as far as it is known; bounds take the
worst of what is not. Where a request got no answer the agent acted by itself, so what is known ends there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.window import WindowEpisode

Floats = NDArray[np.float64]


class CannotEstimate(ValueError):
    """Raised where a log allows no estimate: its text says why, and what would make one possible."""


@dataclass(frozen=True)
class LoggedEpisodes:
    """N episodes with S steps in all, one after the other, the longest of T steps.

    Of each step, (S, ...): observation, action, the `propensity` of its decision alone, the reward, 0 where none came,
    and whether one came. Of each episode, (N,): its length, whether it `terminated` (others ran out of time), whether
    it `is_whole` (what follows the steps of others is not known), and the number of its agent. `explored` says whether
    chance had a part in the first decisions.
    """

    observation: NDArray[np.generic]  # (S, *obs)
    action: NDArray[np.generic]  # (S, *action)
    propensity: Floats  # (S,), of each decision alone
    reward: Floats  # (S,), 0 where none came
    is_known: NDArray[np.bool_]  # (S,), whether a reward came
    lengths: NDArray[np.int64]  # (N,)
    terminated: NDArray[np.bool_]  # (N,); others ran out of time
    is_whole: NDArray[np.bool_]  # (N,); what follows the steps of others is not known
    agent: NDArray[np.int64]  # (N,), numbers of the agents
    explored: bool  # whether chance had a part in their first decisions

    @property
    def step(self) -> NDArray[np.int64]:
        """The number of each step within its episode, from 0 on, (S,)."""
        begins = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.reward)) - np.repeat(begins, self.lengths)

    def newest(self, num_steps: int) -> "LoggedEpisodes":
        """The last episodes, as many as have at most `num_steps` steps together, but one at least."""
        from_last = np.cumsum(self.lengths[::-1])
        kept = max(int(np.searchsorted(from_last, num_steps, side="right")), 1)
        steps = np.arange(len(self.reward)) >= len(self.reward) - int(from_last[kept - 1])
        last = slice(-kept, None)
        return replace(
            self._of_steps(steps, self.lengths[last]),
            terminated=self.terminated[last],
            is_whole=self.is_whole[last],
            agent=self.agent[last],
        )

    def until(self, lengths: NDArray[np.int64]) -> "LoggedEpisodes":
        """The same episodes cut to their first steps: as many of each as `lengths`, (N,), says, at least 1.

        An episode that is cut is neither whole nor terminated.
        """
        kept, shorter = self.step < np.repeat(lengths, self.lengths), lengths < self.lengths
        return replace(
            self._of_steps(kept, np.minimum(lengths, self.lengths)),
            terminated=self.terminated & ~shorter,
            is_whole=self.is_whole & ~shorter,
        )

    def _of_steps(self, kept: NDArray[np.bool_], lengths: NDArray[np.int64]) -> "LoggedEpisodes":
        names = ("observation", "action", "propensity", "reward", "is_known")
        values: dict[str, NDArray[np.generic]] = {name: getattr(self, name)[kept] for name in names}
        return replace(self, lengths=lengths, **values)  # type: ignore[arg-type]  # each is as it was

    def padded(self, values: Floats, fill: float) -> Floats:
        """Values of steps (S,) as one row per episode, (N, T); after an episode's end stands `fill`."""
        rows = np.full((len(self.lengths), int(self.lengths.max())), fill)
        rows[np.repeat(np.arange(len(self.lengths)), self.lengths), self.step] = values
        return rows


def read_logged(
    episodes: Sequence[WindowEpisode], version: str, config: OffPolicyConfig, chooses: bool = True
) -> tuple[LoggedEpisodes, dict[str, int], dict[str, int]]:
    """The version's episodes, and two counts by reason: of those that were left out, and of those whose end is not
    known.

    `chooses` says whether actions are choices; continuous ones are weighed by densities.

    Raises:
        CannotEstimate: when there are none, the ends of too many are not known, or a shield had the fallback act in
            place of actions that were drawn.
    """
    acted = [(one, _why_left_out(one, version)) for one in episodes if version in one.versions]
    began = [one for one, reason in acted if not reason]
    left_out = Counter(reason for _, reason in acted)
    chosen, explored, reason = _chosen(began, chooses, config.min_effective_sample_size)
    left_out[reason] += len(began) - len(chosen)
    parts = [_part_of(one, version, chooses) for one in chosen]
    incomplete = Counter(_why_incomplete(part, one) for part, one in zip(parts, chosen, strict=True))
    for found in (left_out, incomplete):
        del found[""]
    if sum(incomplete.values()) == len(parts):
        known = _in_words({**left_out, **incomplete})
        raise CannotEstimate(f"the log has no whole episode that version {version} alone decided: {known}")
    require_complete(sum(incomplete.values()), len(parts), config)
    if any(
        fallback and chance < 1.0
        for one in parts
        for fallback, chance in zip(one.fallbacks, one.propensities, strict=True)
    ):
        raise CannotEstimate(
            "a shield had the fallback act in place of actions that were drawn: how often it would for the challenger, "
            "the log does not show; compare the versions live (docs/comparing.md)"
        )
    numbers = {reason: number for reason, number in left_out.items() if number}
    return (
        _joined(parts, [part is one and part.ended for part, one in zip(parts, chosen, strict=True)], explored),
        numbers,
        dict(incomplete),
    )


def require_complete(num_incomplete: int, count: int, config: OffPolicyConfig) -> None:
    """Raises `CannotEstimate` where the ends of too many episodes, `num_incomplete` of `count`, are not known."""
    if num_incomplete > config.max_left_out_share * count:
        raise CannotEstimate(
            f"{num_incomplete} of {count} episodes have not ended, lack feedback, or went on without what the version "
            f"would do, more than {config.max_left_out_share:.0%}: what they earned is not known; send /feedback for "
            "every decision, with `terminated` or `truncated` at the last, and ask to explore from the first decision "
            "of an episode to the last, or set serving.exploration.share"
        )


def reward_range(logged: LoggedEpisodes, declared: tuple[float, float] | None) -> tuple[float, float]:
    """The least and the greatest reward there can be, 0 among them: an episode that ended earns nothing more.

    Raises:
        ConfigError: when a reward lies outside of the declared range.
    """
    rewards = logged.reward[logged.is_known]
    low, high = declared or (float(rewards.min()), float(rewards.max()))
    outside = rewards[(rewards < low) | (rewards > high)]
    if len(outside):
        raise ConfigError(f"reward_range is [{low:g}, {high:g}], but the log has a reward of {outside[0]:g}; widen it")
    return min(low, 0.0), max(high, 0.0)


def _why_left_out(one: WindowEpisode, version: str) -> str:
    if one.cut:
        return "began before the log"
    if one.deciders[0] != version:
        return "others decided in it first"
    return "its first request got no answer" if one.begins_unanswered else ""


def _chosen(began: list[WindowEpisode], chooses: bool, enough: float) -> tuple[list[WindowEpisode], bool, str]:
    """Those to estimate from, whether chance had a part in their first decision, and why others are left out.

    Where agents ask to explore in so many episodes, those alone: the server's own share may be thin. Of actions among
    a continuum only those can be weighed: the greedy one has no density.
    """
    asked = [one for one in began if one.asked[0]]
    drawn = asked if not chooses else [one for one in began if one.asked[0] or one.propensities[0] < 1.0]
    if len(asked) >= enough or (asked and not chooses):
        return asked, True, "not asked to explore"
    if drawn:
        return drawn, True, "not explored"
    return began, False, ""


def _part_of(one: WindowEpisode, version: str, chooses: bool) -> WindowEpisode:
    """Until anybody else decides or a request gets no answer, and where actions are weighed by densities, until the
    agent asks otherwise."""
    answered = one.before_unanswered()
    part = answered.part_of(version, one.asked[0]) if not chooses else answered.decided_by(version)
    assert part is not None, "it was chosen for its first decision"
    return part


def _why_incomplete(part: WindowEpisode, one: WindowEpisode) -> str:
    if part is not one:
        is_silent = len(part.actions) == len(one.before_unanswered().actions)
        return "a request got no answer" if is_silent else "others decided in it later"
    if not part.ended:
        return "has not ended"
    return "lacks feedback" if part.episode_return is None else ""


def _joined(episodes: list[WindowEpisode], is_whole: list[bool], explored: bool) -> LoggedEpisodes:
    agents = {name: number for number, name in enumerate(dict.fromkeys(one.agent_id for one in episodes))}
    rewards = [value for one in episodes for value in one.rewards.values()]
    return LoggedEpisodes(
        observation=np.array([row for one in episodes for row in one.observations]),
        action=np.array([row for one in episodes for row in one.actions]),
        propensity=np.array([value for one in episodes for value in one.propensities], dtype=np.float64),
        reward=np.array([value or 0.0 for value in rewards], dtype=np.float64),
        is_known=np.array([value is not None for value in rewards]),
        lengths=np.array([len(one.actions) for one in episodes]),
        terminated=np.array([one.terminated for one in episodes]),
        is_whole=np.array(is_whole),
        agent=np.array([agents[one.agent_id] for one in episodes]),
        explored=explored,
    )


def _in_words(left_out: dict[str, int]) -> str:
    found = ", ".join(f"{number} {reason}" for reason, number in left_out.items() if number)
    return found or "it has none of this version at all"

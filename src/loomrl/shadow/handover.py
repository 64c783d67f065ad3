"""One episode twice: as the champion plays it, and with the challenger in charge from a step on; when that fails."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import EnvironmentFault
from loomrl.safety.config import EPISODE_QUANTITIES, ConstraintConfig
from loomrl.safety.constraints import violations
from loomrl.types import Continuation, Episode

_MOST_NUMBERS = 32
_LOST = 0.5  # of what the champion earns above random actions: an episode that loses more has failed


@dataclass(frozen=True)
class Handover:
    """An episode of the champion and the same one with the challenger in charge from `step` on.

    Before the step another action may have been `held` for `held_steps` steps, and what both observe may be off by
    `noise` deviations. EnvironmentFault where the two are not equal up to the step.
    """

    champion: Episode
    challenger: Episode
    step: int  # number of steps that are equal in both
    weight: float = 1.0  # of what follows, for a mean over the episode's disagreements
    held: NDArray[Any] | None = None  # (*action)
    held_steps: int = 0
    noise: float = 0.0  # deviations of what the champion observes

    def __post_init__(self) -> None:
        if not np.array_equal(self.champion.obs[: self.step + 1], self.challenger.obs[: self.step + 1]):
            raise EnvironmentFault(
                f"the episode with seed {self.champion.seed} does not repeat: equal actions led to other observations "
                f"before step {self.step}; take the snapshot again, which says why"
            )

    @property
    def difference(self) -> float:
        """Return of the challenger's episode - the champion's."""
        return self.challenger.episode_return - self.champion.episode_return

    @property
    def disturbed(self) -> str:
        """How the episode was disturbed before the step, in words; empty where it was not."""
        if self.held is not None:
            first = self.step - self.held_steps
            return f"action {np.asarray(self.held).tolist()} held for {self.held_steps} steps from step {first} on"
        return f"noise of {self.noise:g} deviations on what is observed" if self.noise else ""

    @property
    def reversed(self) -> "Handover":
        """The same, as if the two had changed places."""
        return replace(self, champion=self.challenger, challenger=self.champion)

    def excess(self, limit: ConstraintConfig) -> float:
        """By how much more the challenger's episode breaks the limit than the champion's, from the step on; at least 0.

        It is 0 or 1 for `per: episode`, else a difference of shares of steps. What is known when an episode ends counts
        whenever that is.

        Raises:
            ConfigError: when the episodes have no such quantity.
        """
        champion, challenger = (broken(limit, one, self.step) for one in (self.champion, self.challenger))
        return max(0.0, challenger - champion)

    def shown(self, violated: list[str]) -> Continuation:
        """What a report keeps of it; `violated` names the limits that the challenger broke."""
        champion, challenger, step = self.champion, self.challenger, self.step
        return Continuation(
            seed=champion.seed,
            step=step,
            observation=np.asarray(champion.obs[step], np.float64).ravel()[:_MOST_NUMBERS].tolist(),
            champion_action=np.asarray(champion.action[step]).tolist(),
            challenger_action=np.asarray(challenger.action[step]).tolist(),
            champion_return=champion.episode_return,
            challenger_return=challenger.episode_return,
            violated=violated,
            disturbed=self.disturbed,
            held=None if self.held is None else np.asarray(self.held).tolist(),
            held_steps=self.held_steps,
            noise=self.noise,
            weight=self.weight,
        )


def fails(handover: Handover, limits: Sequence[ConstraintConfig], scale: float) -> bool:
    """Whether the challenger loses much of what the champion earns above random actions, `scale`, or breaks a limit
    that the champion kept."""
    broken_ones = (handover.excess(limit) for limit in of_whole_episodes(limits))
    return loses_much(handover.difference, scale) or any(broken_ones)


def failed_alone(
    handovers: Sequence[Handover], limits: Sequence[ConstraintConfig], scale: float
) -> tuple[list[Handover], list[Handover]]:
    """Those in which the challenger fails and the champion does not, and those in which it is the other way round."""
    marks = [[fails(one, limits, scale) for one in (each, each.reversed)] for each in handovers]
    both = list(zip(handovers, marks, strict=True))
    return (
        [one for one, (challenger, champion) in both if challenger and not champion],
        [one for one, (challenger, champion) in both if champion and not challenger],
    )


def loses_much(difference: float, scale: float) -> bool:
    """Whether a difference of returns is more than half of what the champion earns above random actions."""
    return scale > 0 and difference < -_LOST * scale


def of_whole_episodes(limits: Sequence[ConstraintConfig]) -> list[ConstraintConfig]:
    """The mandatory limits that an episode keeps or breaks as a whole."""
    return [limit for limit in limits if limit.per == "episode" and limit.mandatory]


def broken(limit: ConstraintConfig, episode: Episode, step: int) -> float:
    """How far an episode breaks a limit from a step on: 0 or 1 for `per: episode`, else the share of its steps.

    What is known when the episode ends counts whenever that is.

    Raises:
        ConfigError: when the episode has no such quantity.
    """
    marks = violations(limit, episode)
    if limit.quantity not in EPISODE_QUANTITIES:
        marks = marks[step:]
    if not len(marks):
        return 0.0
    return float(marks.any()) if limit.per == "episode" else float(marks.mean())

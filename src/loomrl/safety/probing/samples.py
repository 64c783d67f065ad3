"""What episodes showed of declared limits, what each way to count them says, and how many more decide it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import violations
from loomrl.statistics import intervals as statistics
from loomrl.statistics import sequential
from loomrl.statistics.spending import level
from loomrl.types import Episode, Verdict

_FEWEST_MORE = 16  # episodes in a round, so that few of them do not take many


@dataclass(frozen=True)
class EpisodeSample(ABC):
    """What episodes showed of a limit: one value in [0, 1] for each, 0 or 1 for `per: episode`, the share of violating
    steps for `per: step`. There must be one episode at least.

    `violating` are the episodes with a value above 0. `kind` and `method` name the bounds, `more_by` the setting that
    gives more episodes.
    """

    kind: ClassVar[str]  # of its bounds
    method: ClassVar[str]
    more_by: ClassVar[str]  # the setting that gives more episodes

    constraint: ConstraintConfig
    values: statistics.Floats  # (N,)
    violating: Sequence[Episode]  # those with a value above 0

    @classmethod
    def of(cls, constraint: ConstraintConfig, episodes: Sequence[Episode]) -> Self:
        """A sample of these episodes, by a constraint that is evaluated on each.

        Raises:
            ConfigError: when an episode has no such quantity.
        """
        shares = np.array([np.mean(violations(constraint, episode)) for episode in episodes])
        violating = [episode for episode, share in zip(episodes, shares, strict=True) if share > 0]
        return cls(constraint, (shares > 0).astype(np.float64) if constraint.per == "episode" else shares, violating)

    def followed_by(self, episodes: Sequence[Episode]) -> Self:
        """A new sample that also holds episodes which were played later.

        Raises:
            ConfigError: when an episode has no such quantity.
        """
        more = type(self).of(self.constraint, episodes)
        values = np.concatenate([self.values, more.values])
        return replace(self, values=values, violating=[*self.violating, *more.violating])

    @property
    def limit(self) -> float:
        """The most that the mean of the values may be: the constraint's `max_probability`."""
        return self.constraint.max_probability

    @abstractmethod
    def p_supporting(self) -> float:
        """The P-value, in [0, 1], of the hypothesis that the limit is broken; small values support the claim."""

    @abstractmethod
    def p_refuting(self) -> float:
        """The P-value, in [0, 1], of the hypothesis that the limit holds; small values refute the claim."""

    @abstractmethod
    def upper(self, confidence: float) -> float:
        """One-sided upper bound, in [0, 1], of the mean of the values at this confidence."""

    @abstractmethod
    def lower(self, confidence: float) -> float:
        """One-sided lower bound, in [0, 1], of the mean of the values at this confidence."""

    @abstractmethod
    def needed(self, confidence: float) -> int:
        """How many episodes in all would support the limit at this confidence, those to come without a violation."""


class Counted(EpisodeSample):
    """A number of episodes that was fixed before, each of which violates or does not: a binomial count."""

    kind = "clopper-pearson"
    method = "Clopper-Pearson bound over episodes"
    more_by = "safety.num_episodes"

    def p_supporting(self) -> float:
        """The P-value of the hypothesis that the limit is broken, by the binomial distribution; small values support
        the claim."""
        return statistics.binomial_p_below(len(self.violating), len(self.values), self.limit)

    def p_refuting(self) -> float:
        """The P-value of the hypothesis that the limit holds, by the binomial distribution; small values refute the
        claim."""
        return statistics.binomial_p_above(len(self.violating), len(self.values), self.limit)

    def upper(self, confidence: float) -> float:
        """Clopper and Pearson's one-sided upper bound of the probability that an episode violates, in [0, 1]."""
        return statistics.clopper_pearson_upper(len(self.violating), len(self.values), confidence)

    def lower(self, confidence: float) -> float:
        """Clopper and Pearson's one-sided lower bound of the probability that an episode violates, in [0, 1]."""
        return statistics.clopper_pearson_lower(len(self.violating), len(self.values), confidence)

    def needed(self, confidence: float) -> int:
        """How many episodes in all, with the violations there are, bring the upper bound down to the limit."""
        return statistics.trials_needed(len(self.violating), self.limit, confidence)


class Averaged(EpisodeSample):
    """A number of episodes that was fixed before, and the mean of what each contributes."""

    kind = "hoeffding"
    method = "Hoeffding relative-entropy bound over episodes"
    more_by = "safety.num_episodes"

    def p_supporting(self) -> float:
        """The P-value of the hypothesis that the limit is broken, by Hoeffding's bound; small values support the
        claim."""
        return statistics.bounded_mean_p_below(self.values, self.limit)

    def p_refuting(self) -> float:
        """The P-value of the hypothesis that the limit holds, by Hoeffding's bound; small values refute the claim."""
        return statistics.bounded_mean_p_above(self.values, self.limit)

    def upper(self, confidence: float) -> float:
        """Hoeffding's one-sided upper bound of the mean of the values, in [0, 1]."""
        return statistics.bounded_mean_upper(self.values, confidence)

    def lower(self, confidence: float) -> float:
        """Hoeffding's one-sided lower bound of the mean of the values, in [0, 1]."""
        return statistics.bounded_mean_lower(self.values, confidence)

    def needed(self, confidence: float) -> int:
        """How many episodes in all, those to come without a violation, bring the upper bound down to the limit."""
        return statistics.values_needed(self.values, self.limit, confidence)


class Watched(EpisodeSample):
    """Episodes that are looked at one after the other, until it is decided: bounds that hold whenever one stops."""

    kind = "betting"
    method = (
        "betting confidence sequence over episodes (Waudby-Smith and Ramdas 2024, section 4), valid whenever one "
        "stops playing,"
    )
    more_by = "safety.checks.statistical_limits.max_episodes"

    def p_supporting(self) -> float:
        """The P-value of the hypothesis that the limit is broken, by bets on one value after the other; small values
        support the claim."""
        return sequential.p_below(self.values, self.limit)

    def p_refuting(self) -> float:
        """The P-value of the hypothesis that the limit holds, by bets on one value after the other; small values refute
        the claim."""
        return sequential.p_above(self.values, self.limit)

    def upper(self, confidence: float) -> float:
        """The confidence sequence's one-sided upper bound of the mean of the values, in [0, 1]."""
        return sequential.upper_bound(self.values, confidence)

    def lower(self, confidence: float) -> float:
        """The confidence sequence's one-sided lower bound of the mean of the values, in [0, 1]."""
        return sequential.lower_bound(self.values, confidence)

    def needed(self, confidence: float) -> int:
        """How many episodes in all, those to come without a violation, bring the upper bound down to the limit; one
        more than there are at least."""
        return len(self.values) + sequential.zeros_needed(self.values, self.limit, confidence)


def judge(samples: Sequence[EpisodeSample], confidence: float) -> list[tuple[Verdict, float]]:
    """Each limit's verdict, and the confidence it must reach by itself at its step of Holm's procedure."""
    alpha = 1.0 - confidence
    supporting, refuting = [s.p_supporting() for s in samples], [s.p_refuting() for s in samples]
    levels_up = statistics.holm_confidence(supporting, confidence)
    levels_down = statistics.holm_confidence(refuting, confidence)
    supported, refuted = statistics.holm(supporting, alpha), statistics.holm(refuting, alpha)
    # Holm stops at the first constraint that fails: the others then wait for that one's level too.
    strictest = max((level for level, passed in zip(levels_up, supported, strict=True) if not passed), default=0.0)
    judged = []
    for index in range(len(samples)):
        if refuted[index]:
            judged.append((Verdict.REFUTED, levels_down[index]))
        elif supported[index]:
            judged.append((Verdict.SUPPORTED, levels_up[index]))
        else:
            judged.append((Verdict.UNDECIDED, strictest))
    return judged


def adjusted_p_values(samples: Sequence[EpisodeSample]) -> list[float]:
    """Of the hypotheses that the limits are broken, each adjusted by Holm's procedure over all."""
    return statistics.holm_adjusted([sample.p_supporting() for sample in samples])


def num_more(samples: Sequence[EpisodeSample], most: int | None, confidence: float) -> int:
    """How many episodes another round takes, 0 where all limits are decided or no more may be played, of `most` in all.

    They are as many as would decide it without a violation, and at most a quarter of those there are, or 16. A first
    attempt must pass: it may spend half of the error. The number does not depend on how many environments play.
    """
    if most is None:
        return 0
    judged = judge(samples, 1.0 - level(1.0 - confidence, 1))
    needed = [
        sample.needed(reached)
        for sample, (verdict, reached) in zip(samples, judged, strict=True)
        if verdict is Verdict.UNDECIDED
    ]
    played = len(samples[0].values)
    return max(0, min(max(needed, default=played), played + max(_FEWEST_MORE, played // 4), most) - played)

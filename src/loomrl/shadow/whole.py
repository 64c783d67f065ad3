"""Whole episodes of challenger and champion on the same seeds: which of them earns more, and how far actuators move.

On common seeds the differences of two versions spread less than their returns do, and the snapshot has as many episodes
as it takes: so where a number of pairs leaves it undecided whether the challenger is worse, twice as many are played.
Each look has a level of its own (`loomrl.statistics.spending`), so that looking again costs no more error.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.policy.distance import ALIKE, action_distance, has_finite_range
from loomrl.serving.policy.model import ServedPolicy
from loomrl.statistics.clustered import bounded_mean_over_units, mean_over_units, units_needed
from loomrl.statistics.paired_returns import ReturnComparison, compare_returns
from loomrl.statistics.spending import level
from loomrl.types import Episode, Travel, Verdict, WholeEpisodes

if TYPE_CHECKING:
    from loomrl.promotion.config import PromotionConfig

Floats = NDArray[np.float64]
_WIDTH = 2.0  # of an action's range, in halves of it
Play = Callable[[Sequence[int]], tuple[Floats, Floats]]  # seeds -> returns of the challenger and of the champion


def compare_pairs(
    challenger: Floats,
    champion: Floats,
    seeds: Sequence[int],
    more: Sequence[int],
    play: Play,
    config: "PromotionConfig",
    confidence: float,
) -> WholeEpisodes:
    """Compare paired returns (n,) on `seeds`, by the margin of `promotion`, at a level shared by all looks.

    Where it is undecided, `play` gives those on the next of `more`: as many again as there are. The result is UNDECIDED
    when `more` is used up. There are at least two pairs; what `play` raises is passed on.
    """
    seeds, look = list(seeds), 1
    while (found := _looked(challenger, champion, config, confidence, look)).verdict is Verdict.UNDECIDED and more:
        following, more = list(more[: len(seeds)]), more[len(seeds) :]
        others = play(following)
        challenger, champion = np.concatenate([challenger, others[0]]), np.concatenate([champion, others[1]])
        seeds, look = seeds + following, look + 1
    worst = int(np.argmin(challenger - champion))
    return WholeEpisodes(
        num_pairs=found.num_pairs,
        challenger_mean=found.challenger_mean,
        champion_mean=found.champion_mean,
        low=found.low,
        high=found.high,
        margin=found.margin,
        verdict=found.verdict,
        demanded=config.require_not_worse,
        seed=int(seeds[worst]),
        lost=float(champion[worst] - challenger[worst]),
    )


def _looked(
    challenger: Floats, champion: Floats, config: "PromotionConfig", confidence: float, look: int
) -> ReturnComparison:
    shared = 1.0 - level(1.0 - confidence, look)
    return compare_returns(challenger, champion, config.model_copy(update={"confidence": shared}))


def compare_travel(
    policy: ServedPolicy,
    challenger: Sequence[Episode],
    champion: Sequence[Episode],
    max_ratio: float,
    confidence: float,
    refuting: float,
) -> Travel | None:
    """How much farther than allowed the challenger's actions move in a step; None where they are choices.

    Allowed is `max_ratio` times as far as the champion's in the episode of the same seed, and always as far as two
    actions lie apart that count as the same. Episodes are on the same seeds in the same order, two at least. The upper
    bound of the excess holds at `confidence`, the lower one at `refuting`: by betting, since no action moves farther
    than its range is wide. Where a range is infinite, or an action lies outside it, they are those of a t interval at
    `refuting`.
    """
    if policy.chooses:
        return None
    moved, before = (np.array([travel(policy, one) for one in group]) for group in (challenger, champion))
    allowed = allowed_travel(before, max_ratio)
    excess, span = moved - allowed, (-max_ratio * _WIDTH, _WIDTH)
    if has_finite_range(policy) and span[0] <= excess.min() and excess.max() <= span[1]:
        bounds = bounded_mean_over_units(excess, span, confidence, refuting)
        needed = units_needed(excess, span, confidence) if bounds.estimate < 0.0 < bounds.high else None
    else:
        found = mean_over_units(excess, refuting)
        assert found is not None, "shadow plays two episodes at least"
        bounds, needed = found, None
    return Travel(
        challenger=float(moved.mean()),
        champion=float(before.mean()),
        excess=bounds,
        allowed=float(allowed.mean()),
        seed=challenger[int(np.argmax(excess))].seed,
        episodes_needed=needed,
    )


def allowed_travel(champion: Floats, max_ratio: float) -> Floats:
    """How far the challenger's actions may move, by how far the champion's do in the same episodes."""
    return np.maximum(max_ratio * champion, ALIKE)


def travel(policy: ServedPolicy, episode: Episode) -> float:
    """The mean distance of an action from the one before, in halves of their range; 0 in an episode of one step."""
    moved = action_distance(episode.action[1:], episode.action[:-1], policy)
    return float(moved.mean()) if len(moved) else 0.0

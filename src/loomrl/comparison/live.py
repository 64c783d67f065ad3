"""Two versions beside each other by their episodes in the audit log: return, cost, and how often limits are broken.

An episode counts for a version that alone decided in it. The level is divided among the quantities, so that two equal
versions are ever called different in any of them with a probability of at most 1 - confidence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loomrl.comparison.anytime import bounds, pair
from loomrl.comparison.config import ComparisonConfig
from loomrl.environment.quantities import kind_of
from loomrl.errors import ConfigError
from loomrl.monitoring.window import LiveEpisode
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import violations
from loomrl.schema import Document

Floats = NDArray[np.float64]
REWARD, COST = "reward", "cost"


class Difference(Document):
    """The challenger's mean minus the champion's, of one quantity; the means are of all their episodes."""

    quantity: str  # "reward", "cost" or "limits.NAME"
    better: Literal["higher", "lower"]
    least: float  # of the range that values are taken to lie in
    greatest: float
    num_champion: int
    num_challenger: int
    num_pairs: int
    num_clipped: int  # values outside of the range
    champion_mean: float | None
    challenger_mean: float | None
    low: float  # bounds of the difference, at every look
    high: float

    @property
    def finding(self) -> str:
        """`better`, `worse`, or `undecided` while 0 lies between the bounds."""
        if self.low <= 0.0 <= self.high:
            return "undecided"
        return "better" if (self.low > 0.0) == (self.better == "higher") else "worse"


class LiveComparison(Document):
    """What production showed of two versions."""

    champion_version: str
    challenger_version: str
    confidence: float
    explored: bool
    differences: list[Difference]
    not_compared: dict[str, str] = Field(default_factory=dict)  # quantity -> why

    def of(self, quantity: str) -> Difference | None:
        """The difference in one quantity, if it was compared."""
        return next((one for one in self.differences if one.quantity == quantity), None)


@dataclass(frozen=True)
class _Quantity:
    name: str
    better: Literal["higher", "lower"]
    span: tuple[float, float]
    of: Callable[[LiveEpisode], float | None]  # None where an episode does not tell it


def compare_live(
    episodes: Sequence[LiveEpisode],
    versions: tuple[str, str],
    constraints: Sequence[ConstraintConfig],
    config: ComparisonConfig,
    return_range: tuple[float, float],
    on: str | None = None,
) -> LiveComparison:
    """Compare champion and challenger, as named by `versions`, by all quantities or the one named by `on`.

    Raises:
        ConfigError: for a quantity there is not; names those there are.
    """
    champion, challenger = (_decided_by(version, episodes, config.explored) for version in versions)
    tells_cost = any(one.costs for one in (*champion, *challenger))
    quantities, missing = _quantities(constraints, config, return_range, tells_cost)
    if on is not None:
        quantities = [one for one in quantities if one.name == on]
        if not quantities:
            known = ", ".join([REWARD, COST, *(f"limits.{one.name}" for one in _shown(constraints))])
            raise ConfigError(f"{on!r} cannot be compared{': ' + missing[on] if on in missing else ''}; known: {known}")
    confidence = 1.0 - (1.0 - config.confidence) / len(quantities)
    return LiveComparison(
        champion_version=versions[0],
        challenger_version=versions[1],
        confidence=config.confidence,
        explored=config.explored,
        differences=[_difference(one, champion, challenger, config, confidence) for one in quantities],
        not_compared=missing if on is None else {},
    )


def _decided_by(version: str, episodes: Sequence[LiveEpisode], explored: bool) -> list[LiveEpisode]:
    parts = (one.part_of(version, explored) for one in episodes if not one.cut)
    return [part for part in parts if part is not None]


def _quantities(
    constraints: Sequence[ConstraintConfig],
    config: ComparisonConfig,
    return_range: tuple[float, float],
    tells_cost: bool,
) -> tuple[list[_Quantity], dict[str, str]]:
    """What is compared, and why something is not."""
    found = [_Quantity(REWARD, "higher", return_range, lambda one: one.episode_return)]
    missing = {}
    if not tells_cost:
        missing[COST] = "no feedback tells a `cost`"
    elif config.cost_range is None:
        missing[COST] = "set `cost_range` to the least and the greatest cost of an episode"
    else:
        found.append(_Quantity(COST, "lower", config.cost_range, lambda one: one.episode_cost))
    limits = _shown(constraints)
    found += [_Quantity(f"limits.{one.name}", "lower", (0.0, 1.0), partial(_broken, one)) for one in limits]
    for one in constraints:
        if one not in limits:
            missing[f"limits.{one.name}"] = f"decisions do not show {one.quantity}"
    return found, missing


def _shown(constraints: Sequence[ConstraintConfig]) -> list[ConstraintConfig]:
    return [one for one in constraints if kind_of(one.quantity) in ("observation", "action")]


def _broken(limit: ConstraintConfig, episode: LiveEpisode) -> float | None:
    """Whether the episode breaks the limit, or the share of its steps that do; of steps only when it was seen whole."""
    if limit.per == "step" and episode.can_end and not episode.ended:
        return None
    share = float(np.mean(violations(limit, episode.as_episode())))
    return float(share > 0.0) if limit.per == "episode" else share


def _difference(
    quantity: _Quantity,
    champion: Sequence[LiveEpisode],
    challenger: Sequence[LiveEpisode],
    config: ComparisonConfig,
    confidence: float,
) -> Difference:
    first, second = (_values(quantity, episodes) for episodes in (champion, challenger))
    least, greatest = quantity.span
    differences = pair(first.clip(least, greatest), second.clip(least, greatest), config.champion_episodes)
    low, high = bounds(differences, greatest - least, confidence)
    both = np.concatenate([first, second])
    return Difference(
        quantity=quantity.name,
        better=quantity.better,
        least=least,
        greatest=greatest,
        num_champion=len(first),
        num_challenger=len(second),
        num_pairs=len(differences),
        num_clipped=int(np.sum((both < least) | (both > greatest))),
        champion_mean=float(first.mean()) if len(first) else None,
        challenger_mean=float(second.mean()) if len(second) else None,
        low=low,
        high=high,
    )


def _values(quantity: _Quantity, episodes: Sequence[LiveEpisode]) -> Floats:
    return np.array([value for one in episodes if (value := quantity.of(one)) is not None], dtype=np.float64)

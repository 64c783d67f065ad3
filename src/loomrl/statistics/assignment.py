"""Always-valid comparison of two versions by units of assignment: agents that a split dealt to one or the other.

What is random is the assignment: each unit was dealt to the challenger with a probability that was known before.
Nothing is assumed about the values: units may differ, drift, arrive late and depend on what happened before. Of a unit
that is not finished only an interval is known; its worse end for the claim enters. Units stand in the order they were
enrolled, so that who finishes first does not matter. All may be computed again whenever anything becomes known.

`log_evidence` asks whether the versions differ, for values of any range. `mean_bounds` says by how much the means
differ, for values of a known range.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
_BLOCKS = (10, 10, 20)  # units in the first, the second and every later block
_SLOPES: Floats = np.array([1.0, 2.0, 4.0])  # logarithm of the odds from a block's middle rank to its highest
_STAKES: Floats = 0.9 / np.exp2(np.arange(14, dtype=np.float64))
_CENTERS: Floats = np.linspace(0.0, 1.0, 9)  # of the range: around the best of them values vary least
_NUM_PREFIXES = 12  # numbers of units at which bounds are looked at
_BISECTIONS = 32


def possible(shares: Mapping[str, float]) -> frozenset[str]:
    """The versions that can be dealt, by `shares`: version -> chance of being dealt to it."""
    return frozenset(version for version, share in shares.items() if share > 0.0)


def is_by_chance(shares: Mapping[str, float]) -> bool:
    """Whether more than one version can be dealt. While one decides for all, units are alike, whichever they are dealt
    later."""
    return max(shares.values()) < 1.0


@dataclass(frozen=True)
class Units:
    """N units in the order of their enrolment; each array is (N,).

    `low` and `high` are the least and the greatest that a unit's value can be; they are equal where it is final, and
    may be infinite for `log_evidence`.
    `probability` is that of the challenger, as the split had it when the unit was enrolled. Units with a probability of
    0 or 1 say nothing, and are left out.
    """

    is_challenger: Booleans
    probability: Floats
    low: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.low)

    def negated(self) -> "Units":
        """The same units with their values' signs changed: `low` becomes -`high`, and `high` -`low`."""
        return Units(self.is_challenger, self.probability, -self.high, -self.low)

    def only(self, chosen: Booleans) -> "Units":
        """The units that the mask `chosen`, (N,), marks, in their order."""
        return Units(self.is_challenger[chosen], self.probability[chosen], self.low[chosen], self.high[chosen])

    def assigned_at_random(self) -> "Units":
        """The units that could have been assigned to either version: with a probability above 0 and below 1."""
        return self.only((self.probability > 0.0) & (self.probability < 1.0))


# --- whether the versions differ ----------------------------------------------------------------------------------


def log_evidence(units: Units) -> tuple[float, float]:
    """Evidence that challengers' values tend to be greater, and that they tend to be smaller, as natural logarithms.

    Each is at least 0, and 0 while no block of units is whole. While no unit's value depends on its version, each ever
    reaches log(1 / alpha) with a probability of at most alpha.

    Units are compared by rank in blocks of 10 and 20 with one probability: given how many challengers a block has,
    every choice of them was equally likely, so that exp(slope * their ranks' sum) over its mean over all
    choices is an e-value (van Elteren's stratified rank test, made sequential as in Shafer, Testing by betting, 2021;
    exact under the sharp null, Rosenbaum, Observational Studies, 2002, section 2). The product over blocks is a
    martingale; what is returned is the most that it has ever been.
    """
    assigned = units.assigned_at_random()
    blocks = list(_blocks(assigned.probability))
    return _log_peak(assigned, blocks), _log_peak(assigned.negated(), blocks)


def _blocks(probability: Floats) -> Iterator[NDArray[np.intp]]:
    """The units of each whole block, (B,), in the order in which blocks became whole."""
    waiting: dict[float, list[int]] = {}
    num_whole: dict[float, int] = {}
    for unit, chance in enumerate(probability.tolist()):
        block = waiting.setdefault(chance, [])
        block.append(unit)
        number = num_whole.get(chance, 0)
        if len(block) == _BLOCKS[min(number, len(_BLOCKS) - 1)]:
            num_whole[chance] = number + 1
            yield np.array(waiting.pop(chance))


def _log_peak(units: Units, blocks: list[NDArray[np.intp]]) -> float:
    """The most evidence for greater values of challengers after any number of blocks."""
    gains = np.zeros((len(blocks), len(_SLOPES)))
    for size in set(map(len, blocks)):
        alike = [number for number, block in enumerate(blocks) if len(block) == size]
        gains[alike] = _log_gains(units, np.array([blocks[number] for number in alike]))
    wealth = np.logaddexp.reduce(np.cumsum(gains, axis=0) - math.log(len(_SLOPES)), axis=1)
    return float(wealth.max(initial=0.0))


def _log_gains(units: Units, rows: NDArray[np.intp]) -> Floats:
    """What each block (M, B) wins at each slope, (M, J), at the least."""
    chosen = units.is_challenger[rows]
    scores = _scores(np.where(chosen, units.low[rows], units.high[rows]), _tie(units, rows))
    odds = np.exp(scores[..., None] * _SLOPES)  # (M, B, J)
    size = rows.shape[1]
    sums = np.zeros((len(rows), size + 1, len(_SLOPES)))  # over all choices of k units, of their odds' product
    sums[:, 0] = 1.0
    for unit in range(size):
        sums[:, 1:] += sums[:, :-1] * odds[:, unit, None]
    counts = chosen.sum(axis=1)
    choices = np.array([math.comb(size, count) for count in range(size + 1)], dtype=np.float64)
    mean = sums[np.arange(len(rows)), counts] / choices[counts, None]
    return np.asarray((scores * chosen).sum(axis=1)[:, None] * _SLOPES - np.log(mean))


def _tie(units: Units, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """How units of equal value stand to each other: an unfinished one is beyond all others, on its worse side."""
    beyond = np.where(units.is_challenger[rows], -1, 1) * np.arange(1, rows.shape[1] + 1)
    return np.asarray(np.where(units.low[rows] == units.high[rows], 0, beyond))


def _scores(values: Floats, tie: NDArray[np.intp]) -> Floats:
    """Middle ranks within blocks (M, B), from -1 to 1 about 0."""
    one, other = values[:, :, None], values[:, None, :]  # infinite ones have no difference
    above = np.where(one == other, np.sign(tie[:, :, None] - tie[:, None, :]), np.where(one > other, 1.0, -1.0))
    return np.asarray(above.sum(axis=2) / values.shape[1])


# --- by how much the means differ -----------------------------------------------------------------------------------


class MeanBounds(NamedTuple):
    """Bounds of the mean, over the first `num_units` units, of (value with the challenger - value with the
    champion)."""

    low: float
    high: float
    num_units: int


def mean_bounds(units: Units, span: tuple[float, float], confidence: float) -> MeanBounds:
    """The narrowest bounds of the mean effect of being dealt to the challenger, for values within `span`, (least,
    greatest).

    Bounds are in the unit of the values. Without a unit that was assigned at random they are minus and plus the width
    of `span`, over 0 units.

    They hold for all numbers of units, at every look, together with a probability of at least `confidence`, also where
    effects differ between units or change in time. X = (Z / p - (1 - Z) / (1 - p)) (value - center) has the unit's
    effect as its mean, given all units before (Horvitz and Thompson, 1952); so the product of (1 + stake X) times
    exp(-stake * sum of effects) is never expected to grow, and Ville's inequality bounds that sum (Waudby-Smith and
    Ramdas, 2024; design-based as in Ham, Bojinov, Lindon and Tingley, 2022). Stakes and centers are mixed.
    """
    least, greatest = span
    assigned, width = units.assigned_at_random(), greatest - least
    scaled = replace(assigned, low=(assigned.low - least) / width, high=(assigned.high - least) / width)
    if not len(assigned):
        return MeanBounds(-width, width, 0)
    enough = math.log(2.0 / (1.0 - confidence))
    prefixes = np.unique(np.geomspace(1, len(assigned), _NUM_PREFIXES).astype(np.intp))
    low = _lower(scaled, prefixes, enough)
    high = -_lower(replace(scaled, low=1 - scaled.high, high=1 - scaled.low), prefixes, enough)
    best = int(np.argmin(high - low))
    return MeanBounds(float(low[best]) * width, float(high[best]) * width, int(prefixes[best]))


def _lower(units: Units, prefixes: NDArray[np.intp], enough: float) -> Floats:
    """Lower bounds of the mean effect over these numbers of units, (P,), for values in [0, 1]."""
    chance = units.probability
    sign = np.where(units.is_challenger, 1.0 / chance, -1.0 / (1.0 - chance))
    values = np.where(units.is_challenger, units.low, units.high)
    won = np.empty((len(prefixes), len(_CENTERS), len(_STAKES)))
    for place, center in enumerate(_CENTERS):
        deepest = np.maximum(center / chance, (1.0 - center) / (1.0 - chance))[:, None]  # below 0 X can be
        staked = np.where(deepest * _STAKES < 1.0, _STAKES * (sign * (values - center))[:, None], -1.0)
        with np.errstate(divide="ignore"):  # a stake that could lose everything is none
            won[:, place] = np.log1p(staked).cumsum(axis=0)[prefixes - 1]
    won -= math.log(len(_CENTERS) * len(_STAKES))
    low, high = np.full(len(prefixes), -1.0), np.ones(len(prefixes))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        wealth = (won - _STAKES * (middle * prefixes)[:, None, None]).reshape(len(prefixes), -1)
        most = wealth.max(axis=1)  # many times faster than np.logaddexp.reduce
        excluded = most + np.log(np.exp(wealth - most[:, None]).sum(axis=1)) >= enough
        low, high = np.where(excluded, middle, low), np.where(excluded, high, middle)
    return low

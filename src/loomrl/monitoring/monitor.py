"""One monitor: a sequential test of one quantity, what refutes it, and how it went."""

from dataclasses import dataclass, field
from functools import lru_cache
from operator import mul

from loomrl.monitoring.watch import REWARD, VIOLATIONS, Level
from loomrl.schema import Document
from loomrl.types import Json

_STAKES = tuple(0.9 / 2.0**power for power in range(6))  # how much of a fortune is staked
_GENERATION = 64  # values after which bets begin anew beside those that run
_NEWEST = 2  # generations that are kept beside the first
_TRACE = 128  # points that are kept to draw how a monitor went


@dataclass(frozen=True, slots=True)
class Generation:
    """Bets that began together: their fortunes, one per stake."""

    begun: int  # the number of its first value
    wealth: tuple[float, ...]

    @classmethod
    def at(cls, begun: int) -> "Generation":
        """With what there is to stake at the value of this number."""
        number = (begun - 1) // _GENERATION + 1
        return cls(begun, (1.0 / (number * (number + 1.0) * len(_STAKES)),) * len(_STAKES))

    def times(self, gains: tuple[float, ...]) -> "Generation":
        """With its bets on one value, or on several at once, paid out."""
        return Generation(self.begun, tuple(map(mul, self.wealth, gains)))


@dataclass(slots=True)
class MeanTest:
    """Evidence against "given what came before, every value's mean is at most `limit`", for values in [0, 1].

    The bets of `loomrl.sequential.LimitTest` in scalars, and with them values that are known late: one that has
    counted as 0 may become 1 (`correct`). Generation g = 0, 1, ... begins with 1 / ((g + 1) (g + 2)) of what there is
    to stake, so that what changes late is still seen; it gains from a correction only where it has bet on that value.
    The e-value's expectation never passes 1 while the claim is true, so it ever reaches 1 / alpha with a probability
    of at most alpha.

    Nearly all values are 0, and each only makes the evidence smaller: they are counted, and paid out together once
    something else comes or somebody looks.
    """

    limit: float
    count: int = 0
    num_withdrawn: int = 0
    total: float = 0.0
    unpaid: int = 0  # zeros that came last and are not in the fortunes
    generations: list[Generation] = field(default_factory=list)  # the first and the newest

    def add(self, value: float) -> int:
        """Bet on one value; returns its number."""
        if value == 0.0:
            return self.add_zeros(1)
        self._pay()
        if self.count % _GENERATION == 0:
            self.generations = _kept([*self.generations, Generation.at(self.count + 1)])
        self.count += 1
        self.total += value
        self._multiply(_gains(value, self.limit), self.count)
        return self.count

    def add_zeros(self, count: int) -> int:
        """Bet on so many values, all 0; returns the number of the last."""
        self.count += count
        self.unpaid += count
        return self.count

    def correct(self, number: int) -> None:
        """The value of this number, counted as 0, has become 1."""
        self._pay()
        self.total += 1.0
        self._multiply(_late_gains(self.limit), number)

    def withdraw(self, number: int) -> None:
        """There is no value of this number, which counted as 0: the bets on it are returned."""
        self._pay()
        self.num_withdrawn += 1
        self._multiply(_returns(self.limit), number)

    def paid(self) -> list[Generation]:
        """The generations with all bets paid out."""
        if not self.unpaid:
            return self.generations
        first = self.count - self.unpaid + 1  # of the zeros
        begun = range(first + -(first - 1) % _GENERATION, self.count + 1, _GENERATION)  # of generations among them
        new = [Generation.at(number) for number in (*begun[:1], *begun[1:][-_NEWEST:])]
        return [
            one.times(_zero_gains(self.limit, self.count + 1 - max(first, one.begun)))
            for one in _kept([*self.generations, *new])
        ]

    @property
    def e_value(self) -> float:
        """The evidence; 1 before the first value."""
        num_generations = -(-self.count // _GENERATION)
        return sum(sum(one.wealth) for one in self.paid()) + 1.0 / (num_generations + 1.0)

    @property
    def num_values(self) -> int:
        """How many there are, those that count as 0 so far among them."""
        return self.count - self.num_withdrawn

    @property
    def mean(self) -> float:
        """Of all values; 0 where there are none."""
        return self.total / max(self.num_values, 1)

    def _pay(self) -> None:
        self.generations, self.unpaid = self.paid(), 0

    def _multiply(self, gains: tuple[float, ...], number: int) -> None:
        """Pay out the bets on the value of this number."""
        self.generations = [one.times(gains) if one.begun <= number else one for one in self.generations]


def _kept(generations: list[Generation]) -> list[Generation]:
    """The first and the newest."""
    return generations[:1] + generations[1:][-_NEWEST:]


@lru_cache(maxsize=256)
def _gains(value: float, limit: float) -> tuple[float, ...]:
    """What 1 becomes with one value, per stake: its expectation is at most 1 while the mean is at most `limit`."""
    return tuple(1.0 + stake * (value / limit - 1.0) for stake in _STAKES)


@lru_cache(maxsize=1024)
def _zero_gains(limit: float, count: int) -> tuple[float, ...]:
    """What 1 becomes with so many values, all 0, per stake."""
    return tuple(gain**count for gain in _gains(0.0, limit))


@lru_cache(maxsize=64)
def _late_gains(limit: float) -> tuple[float, ...]:
    """What remained of 1 after a value of 0 becomes this much more when the value turns out to be 1."""
    return tuple(one / zero for one, zero in zip(_gains(1.0, limit), _gains(0.0, limit), strict=True))


@lru_cache(maxsize=64)
def _returns(limit: float) -> tuple[float, ...]:
    """What remained of 1 after a value of 0 becomes this much more when that value is withdrawn."""
    return tuple(1.0 / zero for zero in _gains(0.0, limit))


@dataclass(slots=True)
class Monitor:
    """A test, what refutes it, and how it went."""

    test: MeanTest
    threshold: float
    trace: list[tuple[int, float]] = field(default_factory=list)  # (number of values, e-value)
    stride: int = 1  # values between points of the trace

    @classmethod
    def at(cls, level: Level) -> "Monitor":
        """One that has seen nothing."""
        return cls(MeanTest(level.limit), level.threshold)

    def add(self, value: float) -> int:
        """Take one value; returns its number."""
        number = self.test.add(value)
        if number % self.stride == 0:
            self._draw()
        return number

    def add_zeros(self, count: int) -> None:
        """Take so many values, all 0."""
        while (left := self.stride - self.test.count % self.stride) <= count:
            self.test.add_zeros(left)
            self._draw()
            count -= left
        self.test.add_zeros(count)

    def correct(self, number: int) -> None:
        """The value of this number, counted as 0, has become 1."""
        self.test.correct(number)

    def withdraw(self, number: int) -> None:
        """There is no value of this number, which counted as 0."""
        self.test.withdraw(number)

    @property
    def refutes(self) -> bool:
        """Whether the evidence suffices now."""
        return self.test.e_value >= self.threshold

    def describe(self) -> Json:
        """For whoever looks: how far it is from its threshold, and how it came there."""
        test = self.test
        return {
            "limit": test.limit,
            "mean": test.mean,
            "num_values": test.num_values,
            "e_value": test.e_value,
            "threshold": self.threshold,
            "trace": [*self.trace, (test.count, test.e_value)],
        }

    def _draw(self) -> None:
        self.trace.append((self.test.count, self.test.e_value))
        if len(self.trace) == _TRACE:
            self.trace, self.stride = self.trace[1::2], 2 * self.stride


class Trigger(Document):
    """A monitor that refuted its version."""

    version: str
    monitor: str
    e_value: float
    threshold: float
    mean: float  # of its values
    limit: float  # that their mean may have
    num_values: int
    num_decisions: int  # the version's own, until then
    control: str | None = None  # whose rewards it was held against

    @property
    def violates(self) -> bool:
        """Whether a declared limit is broken: then it must not go on, whether or not another can."""
        return self.monitor.startswith(VIOLATIONS)

    @property
    def reason(self) -> str:
        """For a person."""
        if self.monitor == REWARD:
            than = "the stated reference" if self.control is None else f"version {self.control}"
            found = f"{2 * self.mean - 1:.1%} of the range below {than} in {self.num_values} pairs"
            allowed = f"{2 * self.limit - 1:.1%}"
        else:
            found, allowed = f"{self.mean:.1%} of {self.num_values} decisions", f"{self.limit:.1%}"
        return f"{self.monitor}: {found}, {allowed} allowed (e-value {self.e_value:.3g} of {self.threshold:.3g})"

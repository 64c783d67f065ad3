"""Decisions are rate-limited: one bucket per agent, one per token that is shown, and one for all of them.

Agents name themselves, so whoever has one token may come under any number of names; what a token was given to, it
cannot choose.
"""

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loomrl.errors import ConfigError

_MAX_AGENTS = 100_000  # buckets kept; the longest unused one goes first


@dataclass(slots=True)
class TokenBucket:
    """Tokens come in at a rate, up to `burst`, and what is done takes some out. The caller takes them from `tokens`."""

    rate: float  # tokens per second
    burst: float  # the most that are saved up
    filled: float  # time.monotonic() seconds
    tokens: float
    reported: float = float("-inf")  # time.monotonic() seconds, of the last refusal that was put on record

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> "TokenBucket":
        """A new bucket that holds `burst` tokens at time `now` (`time.monotonic()` seconds) and refills at `rate` a
        second."""
        return cls(rate, burst, now, burst)

    def fill(self, now: float) -> float:
        """Add what came since; returns how many tokens there are."""
        tokens = self.tokens + (now - self.filled) * self.rate  # in every decision three times: no `min`, which is slow
        self.tokens = tokens = tokens if tokens < self.burst else self.burst
        self.filled = now
        return tokens

    def wait_seconds(self, count: int) -> float:
        """Seconds until the bucket holds `count` tokens; infinite where that is more than it ever holds."""
        return math.inf if count > self.burst else (count - self.tokens) / self.rate


class TokenBuckets:
    """Buckets of one kind by their names. Of more than `most` the longest unused one is given up."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        self._rate, self._burst, self._most = rate, burst, most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def named(self, name: str, now: float) -> TokenBucket:
        """The bucket of this name; a new one is full at time `now` (`time.monotonic()` seconds)."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket.full(self._rate, self._burst, now)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(name)
        return bucket


@dataclass(frozen=True)
class Shown:
    """All who show the token of one holder, in place of an agent's id."""

    holder: str

    def __str__(self) -> str:
        return f"the token of {self.holder!r}"


Who = str | Shown | None  # an agent by its id, all with one token, or all agents together


@dataclass(frozen=True)
class RateRefusal:
    """A refusal by the rate limiter: who sent too many requests, which limit was exceeded, and when to come again."""

    who: Who
    rate: float  # how often it may ask, per second
    burst: float
    retry_after_seconds: float  # infinite for more at once than the burst
    num_unreported: int  # refusals since the last reported one; 0 when this one need not be reported


class RateLimiter:
    """`rate` tokens a second and agent, at most `burst` saved up; `token_rate` for all who show one token, and
    `total_rate` for all agents together.

    `burst` None is as many as `rate`; `token_rate` and `total_rate` None are no such limit.

    Raises:
        ConfigError: for a rate that is not above 0.
    """

    def __init__(
        self, rate: float, burst: float | None = None, total_rate: float | None = None, token_rate: float | None = None
    ) -> None:
        for name, value in (("--rate", rate), ("--total-rate", total_rate), ("--token-rate", token_rate)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} {value:g}: decisions per second, a number above 0")
        self.rate, self.total_rate, self.token_rate = rate, total_rate, token_rate
        self.burst = max(1.0, burst if burst is not None else rate)
        self._total = (
            None if total_rate is None else TokenBucket.full(total_rate, max(1.0, total_rate), time.monotonic())
        )
        self._unreported: dict[Who, int] = {}  # refusals
        self._lock = threading.Lock()  # of the line above; the buckets belong to one thread
        self._buckets = TokenBuckets(rate, self.burst, _MAX_AGENTS)
        self._wide: dict[str, list[tuple[TokenBucket, Who]]] = {}  # by holder

    def take(self, agents: Sequence[str], holder: str = "") -> RateRefusal | None:
        """Take one token for each entry, and return None; or take none at all and return who must wait, and how long.

        `holder` is whose token was shown, empty for nobody's.
        """
        now, total = time.monotonic(), len(agents)
        wanted = {agents[0]: total} if agents and agents.count(agents[0]) == total else Counter(agents)
        found: list[tuple[TokenBucket, Who, int]] = []
        for one, count in wanted.items():
            found.append((self._buckets.named(one, now), one, count))
        for bucket, who in self._wide_buckets(holder, now):
            found.append((bucket, who, total))
        for bucket, who, count in found:
            if bucket.fill(now) < count:
                return self._refuse(bucket, who, count)
        for bucket, _, count in found:
            bucket.tokens -= count
        return None

    def _wide_buckets(self, holder: str, now: float) -> list[tuple[TokenBucket, Who]]:
        """Those that many agents share."""
        found = self._wide.get(holder)
        if found is None:
            found = self._wide[holder] = []
            if holder and self.token_rate is not None:
                full = TokenBucket.full(self.token_rate, max(1.0, self.token_rate), now)
                found.append((full, Shown(holder)))
            if self._total is not None:
                found.append((self._total, None))
        return found

    def _refuse(self, bucket: TokenBucket, who: Who, count: int) -> RateRefusal:
        """Refusals are reported at most once a second and agent: a flood must not fill the audit log."""
        unreported, now = 0, time.monotonic()
        with self._lock:
            self._unreported[who] = self._unreported.get(who, 0) + 1
            if now - bucket.reported >= 1.0:
                unreported, bucket.reported = self._unreported.pop(who), now
        return RateRefusal(who, bucket.rate, bucket.burst, bucket.wait_seconds(count), unreported)

    def flush(self) -> dict[Who, int]:
        """The refusals that were not reported yet, of those who ask no more: who -> how many. They count as reported;
        from any thread.
        """
        with self._lock:
            unreported, self._unreported = self._unreported, {}
        return unreported

    def put_back(self, refusals: Mapping[Who, int]) -> None:
        """Keep for the next report what could not be recorded."""
        with self._lock:
            for who, count in refusals.items():
                self._unreported[who] = self._unreported.get(who, 0) + count

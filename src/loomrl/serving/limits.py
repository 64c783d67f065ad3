"""Decisions are rate-limited: one token bucket per agent, and one for all of them."""

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loomrl.errors import ConfigError

_MAX_AGENTS = 100_000  # buckets kept; the longest unused one goes first


@dataclass(slots=True)
class _Bucket:
    rate: float  # tokens per second
    burst: float  # the most that are saved up
    filled: float  # time.monotonic() seconds
    tokens: float
    reported: float = float("-inf")

    def fill(self, now: float) -> None:
        self.tokens = min(self.burst, self.tokens + (now - self.filled) * self.rate)
        self.filled = now

    def wait_seconds(self, count: int) -> float:
        return math.inf if count > self.burst else (count - self.tokens) / self.rate


@dataclass(frozen=True)
class Refusal:
    """An agent asked too fast; `agent_id` None: all agents together did."""

    agent_id: str | None
    rate: float  # how often it may ask, per second
    burst: float
    retry_after_seconds: float  # infinite for more at once than the burst
    num_unreported: int  # refusals since the last reported one; 0 when this one need not be reported


class RateLimiter:
    """`rate` tokens a second and agent, at most `burst` saved up; `total_rate` for all agents together."""

    def __init__(self, rate: float, burst: float | None = None, total_rate: float | None = None) -> None:
        for name, value in (("--rate", rate), ("--total-rate", total_rate)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} {value:g}: decisions per second, a number above 0")
        self.rate, self.total_rate = rate, total_rate
        self.burst = max(1.0, burst if burst is not None else rate)
        self._total = None if total_rate is None else _full(total_rate, max(1.0, total_rate), time.monotonic())
        self._unreported: dict[str | None, int] = {}  # refusals by agent
        self._lock = threading.Lock()  # of the line above; the buckets belong to one thread
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, agents: Sequence[str]) -> Refusal | None:
        """Take one token for each entry, or none at all and say which agent must wait."""
        now = time.monotonic()
        is_one = bool(agents) and agents.count(agents[0]) == len(agents)
        wanted = {agents[0]: len(agents)} if is_one else Counter(agents)
        buckets = [(self._filled(agent, now), agent, count) for agent, count in wanted.items()]
        for bucket, agent, count in buckets:
            if bucket.tokens < count:
                return self._refuse(bucket, agent, count)
        if self._total is not None:
            self._total.fill(now)
            if self._total.tokens < len(agents):
                return self._refuse(self._total, None, len(agents))
            self._total.tokens -= len(agents)
        for bucket, _, count in buckets:
            bucket.tokens -= count
        return None

    def _filled(self, agent: str, now: float) -> _Bucket:
        bucket = self._buckets.get(agent)
        if bucket is None:
            bucket = self._buckets[agent] = _full(self.rate, self.burst, now)
            if len(self._buckets) > _MAX_AGENTS:
                self._buckets.popitem(last=False)
        else:
            bucket.fill(now)
            self._buckets.move_to_end(agent)
        return bucket

    def _refuse(self, bucket: _Bucket, agent: str | None, count: int) -> Refusal:
        """Refusals are reported at most once a second and agent: a flood must not fill the audit log."""
        unreported = 0
        with self._lock:
            self._unreported[agent] = self._unreported.get(agent, 0) + 1
            if bucket.filled - bucket.reported >= 1.0:
                unreported, bucket.reported = self._unreported.pop(agent), bucket.filled
        return Refusal(agent, bucket.rate, bucket.burst, bucket.wait_seconds(count), unreported)

    def flush(self) -> dict[str | None, int]:
        """Refusals by agent that were not reported yet, of agents that ask no more; from any thread."""
        with self._lock:
            unreported, self._unreported = self._unreported, {}
        return unreported

    def put_back(self, refusals: Mapping[str | None, int]) -> None:
        """Keep for the next report what could not be recorded."""
        with self._lock:
            for agent, count in refusals.items():
                self._unreported[agent] = self._unreported.get(agent, 0) + count


def _full(rate: float, burst: float, now: float) -> _Bucket:
    return _Bucket(rate, burst, now, tokens=burst)

"""Decisions are rate-limited: one token bucket per agent."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

_MAX_AGENTS = 100_000  # buckets kept; the longest unused one goes first


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float  # time.monotonic() seconds
    reported: float = float("-inf")


@dataclass(frozen=True)
class Refusal:
    """An agent asked too fast."""

    agent_id: str
    retry_after_seconds: float
    num_unreported: int  # refusals since the last reported one; 0 when this one need not be reported


class RateLimiter:
    """`rate` tokens a second and agent, at most `burst` saved up."""

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self.rate = rate
        self.burst = max(1.0, burst if burst is not None else rate)
        self._unreported: dict[str, int] = {}  # refusals by agent
        self._lock = threading.Lock()  # of the line above; the buckets belong to one thread
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, agents: Iterable[str]) -> Refusal | None:
        """Take one token for each entry, or none at all and say which agent must wait."""
        now = time.monotonic()
        wanted: dict[str, int] = {}
        for agent in agents:
            wanted[agent] = wanted.get(agent, 0) + 1
        buckets = [(self._filled(agent, now), agent, count) for agent, count in wanted.items()]
        for bucket, agent, count in buckets:
            if bucket.tokens < count:
                return self._refuse(bucket, agent, count, now)
        for bucket, _, count in buckets:
            bucket.tokens -= count
        return None

    def _filled(self, agent: str, now: float) -> _Bucket:
        bucket = self._buckets.get(agent)
        if bucket is None:
            bucket = self._buckets[agent] = _Bucket(self.burst, now)
            if len(self._buckets) > _MAX_AGENTS:
                self._buckets.popitem(last=False)
        else:
            bucket.tokens = min(self.burst, bucket.tokens + (now - bucket.filled) * self.rate)
            bucket.filled = now
            self._buckets.move_to_end(agent)
        return bucket

    def _refuse(self, bucket: _Bucket, agent: str, count: int, now: float) -> Refusal:
        """Refusals are reported at most once a second and agent: a flood must not fill the audit log."""
        unreported = 0
        with self._lock:
            self._unreported[agent] = self._unreported.get(agent, 0) + 1
            if now - bucket.reported >= 1.0:
                unreported, bucket.reported = self._unreported.pop(agent), now
        return Refusal(agent, (min(count, self.burst) - bucket.tokens) / self.rate, unreported)

    def flush(self) -> list[Refusal]:
        """What was not reported yet, for agents that ask no more; from any thread."""
        with self._lock:
            unreported, self._unreported = self._unreported, {}
        return [Refusal(agent, 0.0, count) for agent, count in unreported.items()]

    def put_back(self, refusals: Iterable[Refusal]) -> None:
        """Keep for the next report what could not be recorded."""
        with self._lock:
            for refusal in refusals:
                before = self._unreported.get(refusal.agent_id, 0)
                self._unreported[refusal.agent_id] = before + refusal.num_unreported

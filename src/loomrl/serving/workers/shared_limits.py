"""The rate limit of several workers: they share the buckets of all agents, so that the limits hold for them together.

A mapped table. What it keeps of a bucket is the time at which it will be full: in between tokens come at the rate, so
that says all. `time.monotonic` is the same clock in all processes of a host.
"""

import hashlib
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from loomrl.serving.decisions.limits import RateLimiter, RateRefusal, Who
from loomrl.serving.workers.agreement import locked, reserve_all

_TOTAL = struct.Struct("=d")  # at the beginning: of the bucket of all agents
_SLOTS = 8  # of a row; an agent has its bucket in one of the slots of one row
_ROW = struct.Struct(f"={_SLOTS}Q{_SLOTS}d")  # hashed agents, 0 for a free slot; times
_NUM_ROWS = 2**15
_LIMITS_BYTES = (1 + _NUM_ROWS) * _ROW.size


class SharedRateLimiter(RateLimiter):
    """A `RateLimiter` over all processes that map the same memory.

    Of more than eight agents in one row, a quarter of a million in all, the bucket that is full first is given up.

    Raises:
        ArtifactError: when there is no room for it.
        ConfigError: for a rate that is not above 0.
    """

    def __init__(
        self,
        path: Path,
        rate: float,
        burst: float | None = None,
        total_rate: float | None = None,
        token_rate: float | None = None,
    ) -> None:
        super().__init__(rate, burst, total_rate, token_rate)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        reserve_all(self._handle, path, _LIMITS_BYTES)
        self._table = mmap.mmap(self._handle, _LIMITS_BYTES)

    def take(self, agents: Sequence[str], holder: str = "") -> RateRefusal | None:
        """Take one token for each entry, and return None; or take none at all and return who must wait, and how long.

        `holder` is whose token was shown, empty for nobody's.
        """
        wanted, count = Counter(agents), len(agents)
        with locked(self._handle):  # between processes; within one, a single thread takes tokens
            now = time.monotonic()
            for agent, one in wanted.items():
                tokens = self.burst - max(0.0, self._full_at(agent) - now) * self.rate
                if tokens < one:
                    return self._refuse_agent(agent, one, tokens, now)
            wide = self._wide_buckets(holder, now)
            for bucket, who in wide:
                bucket.tokens = bucket.burst - max(0.0, self._wide_full_at(who) - now) * bucket.rate
                if bucket.tokens < count:
                    return self._refuse(bucket, who, count)
            for bucket, who in wide:
                self._charge_wide(who, count / bucket.rate, now)
            for agent, one in wanted.items():
                self._charge(agent, one / self.rate, now)
        return None

    def _refuse_agent(self, agent: str, count: int, tokens: float, now: float) -> RateRefusal:
        bucket = self._buckets.named(agent, now)  # of this process: it knows when a refusal was reported last
        bucket.tokens = tokens
        return self._refuse(bucket, agent, count)

    def _wide_full_at(self, who: Who) -> float:
        if who is None:
            (full_at,) = _TOTAL.unpack_from(self._table)
            return float(full_at)
        return self._full_at(_key_of(who))

    def _charge_wide(self, who: Who, seconds: float, now: float) -> None:
        if who is None:
            _TOTAL.pack_into(self._table, 0, max(self._wide_full_at(who), now) + seconds)
        else:
            self._charge(_key_of(who), seconds, now)

    def _full_at(self, agent: str) -> float:
        key, offset = _place(agent)
        row = _ROW.unpack_from(self._table, offset)
        keys = row[:_SLOTS]
        return row[_SLOTS + keys.index(key)] if key in keys else 0.0

    def _charge(self, agent: str, seconds: float, now: float) -> None:
        """Have a bucket full so much later."""
        key, offset = _place(agent)
        row = list(_ROW.unpack_from(self._table, offset))
        keys, times = row[:_SLOTS], row[_SLOTS:]
        if key in keys:
            slot = keys.index(key)
        else:
            slot = times.index(min(times))  # free ones have 0
            keys[slot], times[slot] = key, 0.0
        times[slot] = max(times[slot], now) + seconds
        _ROW.pack_into(self._table, offset, *keys, *times)


def _key_of(who: Who) -> str:
    return f"\0{who}"  # no agent's id has such a character


def _place(agent: str) -> tuple[int, int]:
    """An agent's key, and where its row begins."""
    key = int.from_bytes(hashlib.blake2b(agent.encode(), digest_size=8).digest(), "big") or 1
    return key, (1 + key % _NUM_ROWS) * _ROW.size

"""The rate limit."""

import math
import time

from loomrl.serving.limits import RateLimiter


def test_a_burst_passes_then_the_rate_holds() -> None:
    limiter = RateLimiter(rate=50.0, burst=3)
    assert all(limiter.take(["a"]) is None for _ in range(3))
    refusal = limiter.take(["a"])
    assert refusal is not None
    assert 0 < refusal.retry_after_seconds <= 1 / 50
    time.sleep(refusal.retry_after_seconds + 0.001)
    assert limiter.take(["a"]) is None


def test_agents_do_not_share() -> None:
    limiter = RateLimiter(rate=1.0, burst=1)
    assert limiter.take(["a"]) is None
    assert limiter.take(["b"]) is None
    assert limiter.take(["a"]) is not None


def test_a_batch_takes_all_tokens_or_none() -> None:
    limiter = RateLimiter(rate=0.001, burst=2)
    assert limiter.take(["a", "b", "b", "b"]) is not None
    assert limiter.take(["a", "a", "b", "b"]) is None


def test_a_flood_is_reported_once_a_second() -> None:
    limiter = RateLimiter(rate=0.001, burst=1)
    limiter.take(["a"])
    refusals = [limiter.take(["a"]) for _ in range(100)]
    assert sum(refusal.num_unreported > 0 for refusal in refusals if refusal) == 1


def test_no_refusal_goes_unreported() -> None:
    limiter = RateLimiter(rate=0.001, burst=1)
    limiter.take(["a", "b"])
    refusals = [limiter.take([agent]) for agent in "aaaabb"]
    reported = sum(refusal.num_unreported for refusal in refusals if refusal)
    rest = limiter.flush()
    assert rest == {"a": 3, "b": 1}
    assert reported + 4 == 6
    assert limiter.flush() == {}
    limiter.put_back(rest)
    limiter.take(["a"])
    assert limiter.flush() == {"a": 4, "b": 1}


def test_all_agents_together_have_a_limit_too() -> None:
    limiter = RateLimiter(rate=0.001, burst=1, total_rate=3.0)
    assert limiter.take(["a", "b", "c"]) is None
    refusal = limiter.take(["d"])
    assert refusal is not None
    assert (refusal.agent_id, refusal.rate) == (None, 3.0)
    assert limiter.take(["e", "f", "g", "h"]).retry_after_seconds == math.inf
    time.sleep(refusal.retry_after_seconds + 0.001)
    assert limiter.take(["d"]) is None  # the refusal took no token of its own

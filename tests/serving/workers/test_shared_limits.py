"""The rate limit of several processes together."""

import math
import multiprocessing
import time
from pathlib import Path

import pytest

from loomrl.serving.decisions.limits import RateLimiter
from loomrl.serving.workers import shared_limits
from loomrl.serving.workers.shared_limits import SharedRateLimiter


def test_processes_share_what_an_agent_has(tmp_path: Path) -> None:
    one, other = (SharedRateLimiter(tmp_path / "limits", rate=0.001, burst=3) for _ in range(2))
    assert [limiter.take(["a"]) for limiter in (one, other, one)] == [None] * 3
    refusal = other.take(["a"])
    assert refusal is not None
    assert (refusal.who, refusal.num_unreported) == ("a", 1)
    assert 990 < refusal.retry_after_seconds <= 1_000
    assert other.take(["b", "b", "b"]) is None


def _take(path: Path, num_taken: "multiprocessing.Value") -> None:
    limiter = SharedRateLimiter(path, rate=0.001, burst=500, total_rate=1e9)
    for _ in range(500):
        if limiter.take(["a"]) is None:
            with num_taken.get_lock():
                num_taken.value += 1


def test_no_token_is_given_twice(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    num_taken = context.Value("i", 0)
    takers = [context.Process(target=_take, args=(tmp_path / "limits", num_taken)) for _ in range(2)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert num_taken.value == 500


def test_a_batch_takes_all_tokens_or_none(tmp_path: Path) -> None:
    limiter = SharedRateLimiter(tmp_path / "limits", rate=0.001, burst=2, total_rate=3.0)
    assert limiter.take(["a", "b", "b", "b"]).who == "b"
    assert limiter.take(["a", "a", "b", "b", "c"]).who is None  # more than all agents together may
    assert limiter.take(["a", "a", "b"]) is None
    assert limiter.take(["c", "d", "e", "f"]).retry_after_seconds == math.inf


def test_tokens_come_back_at_the_rate(tmp_path: Path) -> None:
    limiter = SharedRateLimiter(tmp_path / "limits", rate=20.0, burst=1)
    assert limiter.take(["a"]) is None
    refusal = limiter.take(["a"])
    if refusal is not None:
        time.sleep(refusal.retry_after_seconds + 0.001)
    assert limiter.take(["a"]) is None


@pytest.mark.parametrize("limiter", [RateLimiter, SharedRateLimiter])
def test_one_says_what_the_other_says(limiter: type[RateLimiter], tmp_path: Path) -> None:
    arguments = [tmp_path / "limits"] if limiter is SharedRateLimiter else []
    made = limiter(*arguments, rate=0.5, burst=2)
    assert [made.take([agent]) is None for agent in "aabab"] == [True, True, True, False, True]


def test_many_agents_have_buckets_of_their_own(tmp_path: Path) -> None:
    limiter = SharedRateLimiter(tmp_path / "limits", rate=0.001, burst=1)
    agents = [f"agent-{number}" for number in range(5_000)]
    assert all(limiter.take([agent]) is None for agent in agents)
    assert all(limiter.take([agent]) is not None for agent in agents)


def test_without_room_the_bucket_that_is_full_first_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "_NUM_ROWS", 1)  # of eight slots
    limiter = SharedRateLimiter(tmp_path / "limits", rate=0.001, burst=2)
    assert [limiter.take([agent]) for agent in "aabbccddeeffgghhi"] == [None] * 17
    assert limiter.take(["h"]) is not None
    assert limiter.take(["a"]) is None  # its bucket had to go

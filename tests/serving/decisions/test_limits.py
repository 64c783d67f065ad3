"""The rate limit."""

import math
import time
from pathlib import Path

import pytest

from loomrl.serving.decisions.limits import RateLimiter, Shown
from loomrl.serving.settings import ServerSettings
from loomrl.serving.workers.shared_limits import SharedRateLimiter
from loomrl.storage.audit.segments import newest_records
from tests.support.inside import Inside
from tests.support.policies import OBSERVATIONS, discrete_folder


def test_a_burst_passes_then_the_rate_holds() -> None:
    limiter = RateLimiter(rate=50.0, burst=3)
    assert all(limiter.take(["a"]) is None for _ in range(3))
    refusal = limiter.take(["a"])
    assert refusal is not None
    assert 0 < refusal.retry_after_seconds <= 1 / 50
    time.sleep(refusal.retry_after_seconds + 0.001)
    assert limiter.take(["a"]) is None


def test_no_more_than_the_burst_passes_at_once_however_long_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limiter = RateLimiter(rate=1.0, burst=10)
    assert limiter.take(["a"]) is None
    now += 100.0
    assert sum(limiter.take(["a"]) is None for _ in range(30)) == 10


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
    assert (refusal.who, refusal.rate) == (None, 3.0)
    assert limiter.take(["e", "f", "g", "h"]).retry_after_seconds == math.inf
    time.sleep(refusal.retry_after_seconds + 0.001)
    assert limiter.take(["d"]) is None  # the refusal took no token of its own


@pytest.mark.parametrize("kind", [RateLimiter, SharedRateLimiter])
def test_names_that_one_token_takes_share_a_bucket(kind: type[RateLimiter], tmp_path: Path) -> None:
    where = [tmp_path / "limits"] if kind is SharedRateLimiter else []
    limiter = kind(*where, rate=0.001, burst=2, total_rate=1e9, token_rate=3.0)
    assert limiter.take(["a", "b"], "ada") is None
    assert limiter.take(["c"], "ada") is None
    refusal = limiter.take(["d", "e"], "ada")
    assert refusal is not None
    assert (refusal.who, refusal.rate) == (Shown("ada"), 3.0)
    assert limiter.take(["f", "g", "h"], "bob") is None  # another token
    assert limiter.take(["d", "e"]) is None  # none; and the refusal took nothing of these agents' own
    assert limiter.take(["i", "j", "k", "l"], "eve").retry_after_seconds == math.inf


def test_workers_share_what_a_token_has(tmp_path: Path) -> None:
    one, other = (SharedRateLimiter(tmp_path / "limits", 0.001, 9, token_rate=0.001) for _ in range(2))
    assert one.take(["a"], "ada") is None
    assert other.take(["b"], "ada").who == Shown("ada")


def test_there_is_a_limit_where_nobody_set_one() -> None:
    rate, _, total_rate, token_rate = ServerSettings("p").rates()
    assert rate <= token_rate < total_rate < math.inf
    assert ServerSettings("p", rate=1e9).rates() == (1e9, None, 1e9, 1e9)
    assert ServerSettings("p", total_rate=5.0, token_rate=2.0).rates() == (1_000.0, None, 5.0, 2.0)
    assert ServerSettings("p", token_rate=1e6).rates()[2] == 1e6


def test_one_token_under_many_names_is_refused_and_on_record(
    loomrl_home: Path, tmp_path: Path, tokens: dict[str, str]
) -> None:
    folders = {"champion": discrete_folder(tmp_path / "champion")}
    with Inside(ServerSettings("cartpole", folders=folders, token_rate=3.0)) as server:
        asked = [
            server.ask("POST", "/decide", {"agent_id": name, "observation": OBSERVATIONS[0].tolist()}, tokens["decide"])
            for name in "abcdefghijklmnopqrst"
        ]
        assert {answer.status_code for answer in asked} == {200, 429}
        refused = next(answer for answer in asked if answer.status_code == 429)
        assert "the token of 'decide-holder' may ask 3 times a second" in refused.json()["error"]
        assert server.ask("GET", "/status", token=tokens["observe"]).json()["rate_per_token"] == 3.0
        found = [entry for entry in newest_records(server.context.audit.folder, 10**6) if entry["kind"] == "limited"]
    assert {(entry["agent_id"], entry["holder"]) for entry in found} == {(None, "decide-holder")}

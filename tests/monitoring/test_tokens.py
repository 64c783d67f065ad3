"""Agents of one token that may speak for any are one's word: alone they take no version out, and they are named."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from benchmarks.calibration.topics.monitors import decided, watch
from loomrl.monitoring.sharing import Shared
from loomrl.monitoring.stream import STATE, Stream
from loomrl.monitoring.tokens import ENOUGH_ASKED

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [f"odd-{number}" for number in range(200)]  # as many as one token likes
FLEET = [f"cart-{number}" for number in range(20)]


class Traffic:
    """Decisions of one version, under several tokens."""

    def __init__(self, **settings: Any) -> None:
        known = watch(**settings)
        self.stream = Stream(lambda version: known)
        self.seconds = 0.0

    def asks(self, agents: list[str], token: str | None, breaks: bool, **named: Any) -> list[Any]:
        """Each agent asks once; the triggers that come of it."""
        self.seconds += 1.0
        flags = np.zeros((len(agents), 4), bool)
        flags[:, 0] = breaks
        told = {} if token is None else {"by_token": token}
        entry = decided(BEGUN + timedelta(seconds=self.seconds), "1", agents, flags, **told, **named)
        return self.stream.take([entry])

    @property
    def evidence(self) -> Any:
        (one,) = self.stream.gathered()
        return one


@pytest.fixture
def traffic() -> Traffic:
    """A fleet that has been asking for a while under a token of its own, without fault."""
    found = Traffic()
    for _ in range(20):
        assert found.asks(FLEET, "fleet", breaks=False) == []
    return found


def test_one_token_under_many_names_takes_no_version_out_and_is_named(traffic: Traffic) -> None:
    for _ in range(5):
        assert traffic.asks(NAMES, "stranger", breaks=True) == []
    (found,) = traffic.stream.suspicions
    assert (found.token, found.num_agents, found.monitor) == ("stranger", len(NAMES), "violations.push")
    assert found.e_value > 1e6 > 10 > found.e_value_beside
    assert "look at who holds that token" in traffic.stream.describe()["1"]["suspicion"]["reason"]


def test_without_tokens_that_differ_the_same_takes_it_out() -> None:
    for token in (None, "fleet"):
        one = Traffic()
        for _ in range(20):
            one.asks(FLEET, token, breaks=False)
        (found,) = one.asks(NAMES, token, breaks=True)
        assert ("all of the token 'fleet'" in found.reason) == (token == "fleet")


def test_a_fault_that_others_see_too_takes_it_out(traffic: Traffic) -> None:
    assert traffic.asks(NAMES, "stranger", breaks=True) == []
    (found,) = [trigger for _ in range(5) for trigger in traffic.asks(FLEET, "fleet", breaks=True)]
    told = {one["token"]: (one["num_agents"], one["num_showing"]) for one in found.tokens}
    assert told == {"fleet": (20, 20), "stranger": (200, 200)}
    assert traffic.stream.suspicions == []


def test_agents_whose_tokens_are_bound_to_them_bear_it_out_as_well() -> None:
    found = Traffic()
    for _ in range(20):
        found.asks(FLEET, None, breaks=False)
    assert found.asks(NAMES, "stranger", breaks=True) == []
    assert [trigger for _ in range(5) for trigger in found.asks(FLEET, None, breaks=True)] != []


def test_one_agent_that_says_the_same_suffices_to_bear_it_out() -> None:
    found = Traffic()
    for _ in range(ENOUGH_ASKED):
        found.asks(["cart-1"], None, breaks=False)
    assert found.asks(NAMES, "stranger", breaks=True) == []
    triggers = [trigger for _ in range(200) for trigger in found.asks(["cart-1"], None, breaks=True)]
    assert len(triggers) == 1


def test_others_who_asked_too_little_to_have_seen_it_need_not_bear_it_out() -> None:
    found = Traffic()
    found.asks(FLEET[: ENOUGH_ASKED - 1], "fleet", breaks=False)
    assert found.asks(NAMES, "stranger", breaks=True) != []


def test_others_who_asked_long_ago_neither(traffic: Traffic) -> None:
    for _ in range(3):
        traffic.seconds += 600.0
        traffic.asks(["odd-0"], "stranger", breaks=False)
    assert traffic.asks(NAMES, "stranger", breaks=True) != []


def test_what_is_said_in_the_name_of_another_tokens_agent_counts_for_nothing(traffic: Traffic) -> None:
    for _ in range(50):
        assert traffic.asks(FLEET, "stranger", breaks=True) == []
    assert traffic.evidence.monitors["violations.push"].life == {}
    assert traffic.evidence.num_decisions == 20 * len(FLEET)


def test_nor_does_feedback_on_what_was_said_so(traffic: Traffic) -> None:
    traffic.asks(["cart-1"], "stranger", breaks=False, experiment="x", shares={"1": 0.5, "2": 0.5})
    traffic.asks(["cart-1"], "fleet", breaks=False, experiment="x", shares={"1": 0.5, "2": 0.5})
    fields = {
        "kind": "feedback",
        "timestamp": BEGUN.isoformat(),
        "agent_id": "cart-1",
        "episode_id": None,
        "version": "1",
    }
    ended = {"terminated": True, "truncated": False}
    strange, own = (f"{(BEGUN + timedelta(seconds=traffic.seconds - ago)).timestamp()}.0" for ago in (1.0, 0.0))
    traffic.stream.take([fields | ended | {"decision_id": strange, "reward": -1e9, "by_token": "stranger"}])
    traffic.stream.take([fields | ended | {"decision_id": own, "reward": -1e9, "by_token": "stranger"}])
    traffic.stream.take([fields | ended | {"decision_id": own, "reward": 5.0, "by_token": "rewards"}])
    assert traffic.evidence.arm.agents["cart-1"].total == 5.0


def test_a_token_that_is_bound_comes_before_one_that_took_its_name(traffic: Traffic) -> None:
    traffic.asks(["door"], "stranger", breaks=True)
    assert traffic.evidence.token_of("door") == "stranger"
    traffic.asks(["door"], None, breaks=False)
    assert traffic.evidence.token_of("door") == ""
    assert "door" not in traffic.evidence.monitors["violations.push"].life


def test_agents_go_on_under_a_token_that_replaced_theirs(traffic: Traffic) -> None:
    for _ in range(3):
        traffic.seconds += 600.0
        traffic.asks(FLEET, "fleet-2027", breaks=False)
    assert set(traffic.evidence.by_token.values()) == {"fleet-2027"}
    assert [trigger for _ in range(5) for trigger in traffic.asks(FLEET, "fleet-2027", breaks=True)] != []


def test_a_restart_changes_nothing(traffic: Traffic) -> None:
    for _ in range(5):
        traffic.asks(NAMES, "stranger", breaks=True)
        kept = STATE.dump_python(traffic.stream.state(), mode="json")
        known = watch()
        traffic.stream = Stream(lambda version, known=known: known, STATE.validate_python(kept))
    assert [one.token for one in traffic.stream.suspicions] == ["stranger"]
    assert [trigger for _ in range(5) for trigger in traffic.asks(FLEET, "fleet", breaks=True)] != []


def test_servers_that_share_what_they_know_judge_alike() -> None:
    known = watch()
    streams = [Stream(lambda version: known, is_shared=True) for _ in range(2)]
    traffics = [Traffic(), Traffic()]
    for one, stream in zip(traffics, streams, strict=True):
        one.stream = stream
    triggers: list[Any] = []
    for number in range(30):
        for place, one in enumerate(traffics):
            triggers += one.asks(FLEET[place::2], "fleet", breaks=number >= 20)
            triggers += one.asks(NAMES[place::2], "stranger", breaks=True) if number >= 10 else []
        rows = [one.evidence for one in traffics]
        for place, one in enumerate(rows):
            one.homes |= dict.fromkeys(one.unnamed.keys() - one.homes.keys(), 2 * number + place)
            one.window_homes |= dict.fromkeys(one.requests.window.keys() - one.window_homes.keys(), 2 * number + place)
        for place, stream in enumerate(streams, 1):
            triggers += stream.hear(Shared(place, {"1": rows}, {}))
        if number == 15:
            assert [one.token for stream in streams for one in stream.suspicions] == ["stranger"] * 2
        if number < 20:
            assert triggers == []
    assert {one.version for one in triggers} == {"1"}

"""Agents of one token that may speak for any are one's word: alone they take no version out, and they are named."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.calibration.topics.monitors import decided, watch
from loomrl.serving.guardian.sharing import Shared
from loomrl.serving.guardian.stream import STATE, Stream
from loomrl.serving.guardian.tokens import LEAST_REQUESTS, MOST_IN_SLOT, SteadyCounts, token_of
from loomrl.system.http.tokens import TOKENS_FILE, add, configured
from loomrl.types import Json

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [f"odd-{number}" for number in range(200)]  # as many as one token likes
FLEET = [f"cart-{number}" for number in range(20)]


class Traffic:
    """Decisions of one version, under several tokens."""

    def __init__(self, **settings: Any) -> None:
        known = watch(**settings)
        self.stream = Stream(lambda version: known)
        self.seconds = 0.0

    def asks(
        self, agents: list[str], token: str | None, breaks: bool, unlike: bool = False, version: str = "1", **named: Any
    ) -> list[Any]:
        """Each agent asks once; the triggers that come of it."""
        self.seconds += 1.0
        flags = np.zeros((len(agents), 4), bool)
        flags[:, 0], flags[:, 2] = breaks, unlike
        told = {} if token is None else {"by_token": token}
        entry = decided(BEGUN + timedelta(seconds=self.seconds), version, agents, flags, **told, **named)
        return self.stream.process([entry])

    @property
    def evidence(self) -> Any:
        (one,) = self.stream.evidence_to_share()
        return one


@pytest.fixture
def traffic() -> Traffic:
    """A fleet that has been asking for a while under a token of its own, without fault."""
    found = Traffic()
    for _ in range(100):
        assert found.asks(FLEET, "fleet", breaks=False) == []
    return found


def test_one_token_under_many_names_takes_no_version_out_and_is_named(traffic: Traffic) -> None:
    for _ in range(5):
        assert traffic.asks(NAMES, "stranger", breaks=True) == []
    (found,) = traffic.stream.suspicions
    assert (found.token, found.num_agents, found.monitor) == ("stranger", len(NAMES), "violations.push")
    assert found.e_value > 1e6 > 10 > found.e_value_of_others
    (told,) = traffic.stream.describe()["1"]["suspicions"]
    assert "look at who holds that token" in told["reason"]


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
    assert found.stream.suspicions != []
    assert [trigger for _ in range(5) for trigger in found.asks(FLEET, None, breaks=True)] != []


def test_one_broken_agent_beside_it_takes_no_version_out() -> None:
    found = Traffic()
    for _ in range(3 * LEAST_REQUESTS):
        found.asks(["cart-1", "cart-2"], None, breaks=False)
    assert found.asks(NAMES, "stranger", breaks=True) == []
    for _ in range(60):
        assert found.asks(["cart-1"], None, breaks=True) == []


def test_others_who_ask_for_less_need_not_show_it() -> None:
    found = Traffic()
    for _ in range(9):
        found.asks(FLEET, "fleet", breaks=False)
    assert found.asks(NAMES, "another", breaks=True) == []
    found.seconds += 10.0
    assert found.asks(NAMES, "another", breaks=True) != []


def test_a_burst_is_not_heard_over_others_who_were_there_before() -> None:
    """However many requests it has: 15 from each of 20 carts were enough to have met the fault."""
    found = Traffic()
    for _ in range(15):
        found.asks(FLEET, "fleet", breaks=False)
    for _ in range(10):
        assert found.asks(NAMES, "stranger", breaks=True) == []
        found.seconds -= 0.9
    assert [one.token for one in found.stream.suspicions] == ["stranger"]


def test_agents_with_tokens_of_their_own_count_each_however_many_ask_at_once() -> None:
    found = Traffic()
    for _ in range(30):
        found.asks(FLEET, None, breaks=False)
    for _ in range(5):
        assert found.asks(NAMES, "stranger", breaks=True) == []
        found.seconds += 10.0
    assert [one.token for one in found.stream.suspicions] == ["stranger"]


def test_a_clock_that_goes_back_counts_no_burst_anew() -> None:
    counts = SteadyCounts()
    for seconds in ("09", "10", "09", "10", "00"):
        counts.enter_window("2026-01-01T00:0")
        counts.add_at({"stranger": MOST_IN_SLOT}, f"2026-01-01T00:00:{seconds}Z")
    assert counts.under("stranger") == 2 * MOST_IN_SLOT


def test_others_who_ask_for_little_keep_no_fleet_from_being_heard() -> None:
    """Some clean requests under another token would else keep a version that breaks its limits in service."""
    found = Traffic()
    for _ in range(3 * LEAST_REQUESTS):
        found.asks(["odd-0"], "stranger", breaks=False)
    for _ in range(20):
        found.asks(FLEET, "fleet", breaks=False)
    assert [trigger for _ in range(40) for trigger in found.asks(FLEET, "fleet", breaks=True)] != []


def test_others_who_asked_for_another_version_alone_cannot_have_seen_it() -> None:
    found = Traffic()
    for _ in range(50):
        found.asks(FLEET, "doors", breaks=False, version="2")
    assert [trigger for _ in range(5) for trigger in found.asks(FLEET, "fleet", breaks=True)] != []


def test_others_who_asked_days_ago_neither(traffic: Traffic) -> None:
    traffic.seconds += 4 * 86_400.0
    assert traffic.asks(NAMES, "stranger", breaks=True) != []


def test_a_token_that_is_the_only_one_left_is_believed(traffic: Traffic) -> None:
    assert traffic.asks(NAMES, "fleet-2027", breaks=True) == []
    traffic.seconds += 3_600.0
    assert [trigger for _ in range(3) for trigger in traffic.asks(NAMES, "fleet-2027", breaks=True)] != []


def test_a_suspicion_outlives_the_others_silence(traffic: Traffic) -> None:
    assert traffic.asks(NAMES, "stranger", breaks=True) == []
    for _ in range(3):
        traffic.seconds += 600.0
        assert traffic.asks(["odd-0"], "stranger", breaks=True) == []


def test_every_monitor_that_one_token_convinced_is_told(traffic: Traffic) -> None:
    assert traffic.asks(NAMES, "stranger", breaks=True, unlike=True) == []
    assert {one.monitor for one in traffic.stream.suspicions} == {"violations.push", "out_of_distribution"}


def test_the_name_of_another_tokens_agent_is_another_unit(traffic: Traffic) -> None:
    for _ in range(50):
        assert traffic.asks(FLEET, "stranger", breaks=True) == []
    (found,) = traffic.stream.suspicions
    assert (found.token, found.num_agents) == ("stranger", len(FLEET))
    odd = traffic.stream.describe()["1"]["monitors"]["violations.push"]["odd_agents"]
    assert {one["token"] for one in odd} == {"stranger"}
    assert {one["agent_id"] for one in odd} <= set(FLEET)


def test_who_takes_their_names_first_silences_nobody() -> None:
    found = Traffic()
    found.asks(FLEET, "stranger", breaks=False)
    triggers = []
    for _ in range(30):
        triggers += found.asks(FLEET, "fleet", breaks=True)
    assert triggers != []


def test_feedback_counts_for_who_asked_and_none_from_others_who_ask(traffic: Traffic) -> None:
    split = {"experiment": "x", "shares": {"1": 0.5, "2": 0.5}}
    traffic.asks(["cart-1"], "stranger", breaks=False, **split)
    traffic.asks(["cart-1"], "fleet", breaks=False, **split)
    told: Json = {"kind": "feedback", "timestamp": BEGUN.isoformat(), "agent_id": "cart-1", "episode_id": None}
    strangers, own = (f"{(BEGUN + timedelta(seconds=traffic.seconds - ago)).timestamp()}.0" for ago in (1, 0))
    told |= {"version": "1", "terminated": True, "truncated": False, "decision_id": own, "by_token": "fleet"}
    of_stranger = {"decision_id": strangers, "by_token": "stranger", "told_by_token": "stranger"}
    traffic.stream.process([told | {"reward": -1e9} | of_stranger])
    traffic.stream.process([told | {"reward": -1e9, "told_by_token": "stranger"}])
    traffic.stream.process([told | {"reward": 5.0, "told_by_token": "rewards"}])
    agents = traffic.evidence.arm.agents
    assert {token_of(unit): one.total for unit, one in agents.items()} == {"stranger": -1e9, "fleet": 5.0}


def test_agents_go_on_under_a_token_that_replaced_theirs(traffic: Traffic) -> None:
    for _ in range(3):
        traffic.seconds += 600.0
        for _ in range(5):
            traffic.asks(FLEET, "fleet-2027", breaks=False)
    assert [trigger for _ in range(5) for trigger in traffic.asks(FLEET, "fleet-2027", breaks=True)] != []


def test_a_token_for_names_that_begin_alike_is_one_word_and_one_for_named_agents_is_not(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    for name, agents in (("any", []), ("pattern", ["cart-1", "odd-*"]), ("named", ["cart-1", "cart-2"])):
        add(path, name, ["decide"], agents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKENS_FILE, str(path))
        assert [one.shared_name for one in configured().holders] == ["any", "pattern", None]


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
            is_fleets = place == 0  # each token asks one server
            if is_fleets:
                triggers += [trigger for _ in range(10) for trigger in one.asks(FLEET, "fleet", breaks=number >= 20)]
            elif number >= 10:
                triggers += one.asks(NAMES[:50], "stranger", breaks=True)
        rows = [evidence for one in traffics for evidence in one.stream.evidence_to_share()]
        for place, one in enumerate(rows):
            one.homes |= dict.fromkeys(one.unnamed.keys() - one.homes.keys(), 2 * number + place)
            one.window_homes |= dict.fromkeys(one.requests.window.keys() - one.window_homes.keys(), 2 * number + place)
        for place, stream in enumerate(streams, 1):
            triggers += stream.merge(Shared(place, {"1": rows}, {}))
        if number == 15:
            assert [one.token for stream in streams for one in stream.suspicions] == ["stranger"] * 2
        if number < 20:
            assert triggers == []
    assert {one.version for one in triggers} == {"1"}

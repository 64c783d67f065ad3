"""What is gathered about one version: counts by window, experiments, and what is left without one token's agents."""

import pytest

from loomrl.serving.guardian.evidence import Counts, LiveEpisode, VersionEvidence
from loomrl.serving.guardian.monitor import Monitor
from loomrl.serving.guardian.tokens import unit_of

FIRST, LATER, MUCH_LATER = "2026-01-01T00:05:01Z", "2026-01-01T00:12:30Z", "2026-01-01T01:00:00Z"


def test_counts_are_told_in_all_and_in_the_window() -> None:
    counts = Counts()
    assert [counts.count("a"), counts.count("a", 2), counts.count("b")] == [(1, 1), (3, 3), (1, 1)]
    counts.begin_window()
    assert counts.count("a") == (4, 1)
    assert [counts.of(agent) for agent in ("a", "b", "c")] == [(3, 1), (1, 0), (0, 0)]
    counts.begin_window()
    assert [counts.of(agent) for agent in ("a", "b")] == [(4, 0), (1, 0)]


def test_an_episode_is_whole_once_it_has_ended_and_every_reward_came() -> None:
    episode = LiveEpisode("a", "1", cut=False, num_decisions=2, num_rewards=1)
    assert (episode.key, episode.is_whole) == (("a", "1"), False)
    episode.ended = True
    assert not episode.is_whole
    episode.num_rewards = 2
    assert episode.is_whole
    episode.ended = False
    assert not episode.is_whole


def test_a_window_begins_anew_what_is_counted_in_it_and_a_clock_that_goes_back_begins_none() -> None:
    evidence = VersionEvidence("2", monitors={"reward": Monitor(0.1, 20.0, 1)})
    evidence.enter_window(FIRST)
    assert (evidence.begun, evidence.window, evidence.num_windows_before) == ("2026-01-01T00:0", "2026-01-01T00:0", 0)
    evidence.requests.count("a", 3)
    evidence.episodes.count("a")
    evidence.monitors["reward"].window["a"] = [1.0]
    evidence.window_homes["a"] = 7
    evidence.requests_by_token.add({"t": 5})
    evidence.enter_window("2026-01-01T00:09:59Z")  # the same
    assert (evidence.requests.of("a"), evidence.window_homes) == ((0, 3), {"a": 7})
    evidence.enter_window(LATER)
    assert (evidence.requests.of("a"), evidence.episodes.of("a")) == ((3, 0), (1, 0))
    assert (evidence.monitors["reward"].window, evidence.window_homes) == ({}, {})
    evidence.requests.count("a")
    evidence.enter_window(FIRST)
    assert (evidence.window, evidence.requests.of("a")) == ("2026-01-01T00:1", (3, 1))
    assert (evidence.begun, evidence.num_windows_before) == ("2026-01-01T00:0", 1)
    assert evidence.requests_by_token.under("t") == 5  # those of the window before count too
    evidence.enter_window(MUCH_LATER)
    assert (evidence.num_windows_before, evidence.requests_by_token.under("t")) == (6, 0)


def test_an_experiment_begins_an_arm_and_the_same_one_goes_on_with_it() -> None:
    evidence = VersionEvidence("2")
    evidence.enter_experiment("one", is_champion=False)
    arm = evidence.arm
    assert arm is not None
    arm.enrol("a", FIRST, {"2": 0.5})
    evidence.enter_experiment("one", is_champion=False)
    assert evidence.arm is arm
    evidence.enter_experiment("one", is_champion=True)  # it became champion
    assert evidence.arm is not None
    assert (evidence.arm.number, evidence.arm.agents) == (2, {})
    evidence.enter_experiment(None, is_champion=True)
    assert (evidence.arm, evidence.num_experiments) == (None, 2)


@pytest.mark.parametrize("token", ["t", "u"])
def test_without_a_token_is_without_all_that_its_agents_showed(token: str) -> None:
    units = [unit_of("a", "t"), unit_of("b", "t"), unit_of("a", "u"), "c"]
    evidence = VersionEvidence("2", unnamed=dict.fromkeys(units, True), monitors={"reward": Monitor(0.1, 20.0, 1)})
    evidence.enter_experiment("one", is_champion=False)
    assert evidence.arm is not None
    for number, unit in enumerate(units):
        evidence.requests.count(unit)
        evidence.episodes.count(unit)
        evidence.arm.enrol(unit, FIRST, {"2": 0.5})
        evidence.monitors["reward"].life[unit] = [float(number)]
    assert evidence.num_agents_by_token() == {"t": 2, "u": 1}  # who has no token speaks for itself
    rest = evidence.without(token)
    assert rest.arm is not None
    left = {unit for unit in units if not unit.endswith(token)}
    kept = (rest.unnamed, rest.requests.window, rest.episodes.window, rest.arm.agents, rest.monitors["reward"].life)
    assert [found.keys() for found in kept] == [left] * 5
    assert len(evidence.unnamed) == len(evidence.arm.agents) == 4  # and nothing is taken from the evidence itself


def test_what_is_described_before_a_monitor_has_looked() -> None:
    evidence = VersionEvidence("2", num_decisions=3, unnamed={"a": True, "b": False})
    described = evidence.describe()
    assert (described["num_decisions"], described["num_agents"]) == (3, 2)
    assert (described["trigger"], described["suspicions"], described["monitors"]) == (None, [], {})

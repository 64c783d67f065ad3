"""Agents are assigned, so agents are counted: what ran side by side in one experiment, finished or not."""

from collections.abc import Callable

import numpy as np
import pytest

from loomrl.promotion.comparison.agents import trial_of
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.live import Difference, Known, LiveComparison, compare_live
from loomrl.promotion.comparison.window import Assignment, WindowEpisode
from tests.support.side_by_side import BEGIN, at, by_arms, dealt, lived

RANGE = (0.0, 10.0)


def compared(episodes: list[WindowEpisode], known: Known | None = None, **config: object) -> LiveComparison:
    settings = ComparisonConfig.model_validate(config)
    return compare_live(episodes, ("1", "2"), [], settings, RANGE, known=known)


def difference(episodes: list[WindowEpisode], known: Known | None = None, **config: object) -> Difference:
    return compared(episodes, known, **config).differences[0]


def fleet(
    rng: np.random.Generator, number: int, value: Callable[[int, str], float], num_episodes: int = 8
) -> list[WindowEpisode]:
    """Agents that come one after the other, with as many episodes each, a little noise in each."""
    found = []
    for agent, version in enumerate(dealt(rng, number)):
        runs = [(agent + 200.0 * n, 50.0, value(agent, version) + 0.1 * rng.normal()) for n in range(num_episodes)]
        found += lived(f"agent {agent}", version, runs)
    return found


@pytest.mark.parametrize("number", [8, 12, 40])
def test_equal_versions_are_not_called_different_where_one_agent_is_broken(number: int) -> None:
    rng = np.random.default_rng(number)
    found = [difference(fleet(rng, number, lambda agent, _: 0.0 if agent == 3 else 8.0)).finding for _ in range(40)]
    assert sum(one != "undecided" for one in found) <= 4  # at 5 % more are seen once in 200 times


def test_equal_versions_are_not_called_different_where_agents_differ_and_drift() -> None:
    rng, found = np.random.default_rng(1), []
    for _ in range(40):
        own = rng.uniform(0.0, 8.0, 60)
        found.append(difference(fleet(rng, 60, lambda agent, _, own=own: own[agent] + agent / 30.0)).finding)
    assert sum(one != "undecided" for one in found) <= 4


@pytest.mark.parametrize("number", [8, 24])
def test_many_episodes_of_a_few_agents_that_differ_are_no_more_than_those_agents(number: int) -> None:
    rng, found = np.random.default_rng(number), []
    for _ in range(20):
        own = rng.uniform(2.0, 8.0, number)
        own[3] = 0.0  # broken
        found.append(difference(fleet(rng, number, lambda agent, _, own=own: own[agent], num_episodes=60)).finding)
    assert sum(one != "undecided" for one in found) <= 3


def test_rewards_that_never_come_count_as_the_least_once_an_episode_is_given_up() -> None:
    """Each decision costs 2, or 10 where a crash takes its feedback with it."""
    rng, episodes = np.random.default_rng(6), list[WindowEpisode]()
    for number, version in enumerate(dealt(rng, 200)):
        (one,) = lived(f"agent {number}", version, [(number, 1e9, -2.0)], now=500.0)
        one.rewards = {"0": None if version == "2" and number % 2 else -2.0}
        episodes.append(one)
    known = Known(now=BEGIN.timestamp() + 10_000.0)
    settings = {"longest_episode_seconds": 10.0, "reward_range": (-10.0, 0.0)}
    assert difference(episodes, known, **settings).finding == "worse"


def test_costs_that_never_come_count_as_the_greatest_once_an_episode_is_given_up() -> None:
    """Each decision costs 2; a crash takes the feedback with it."""
    rng, episodes = np.random.default_rng(6), list[WindowEpisode]()
    for number, version in enumerate(dealt(rng, 200)):
        (one,) = lived(f"agent {number}", version, [(number, 1e9, -2.0)], now=500.0)
        is_lost = version == "2" and number % 2
        one.rewards, one.costs = (
            {"0": -2.0, "1": None if is_lost else -2.0},
            {"0": 2.0} | ({} if is_lost else {"1": 2.0}),
        )
        episodes.append(one)
    config = ComparisonConfig(longest_episode_seconds=10.0, reward_range=(-10.0, 0.0), cost_range=(0.0, 20.0))
    known = Known(now=BEGIN.timestamp() + 10_000.0)
    found = compare_live(episodes, ("1", "2"), [], config, (-20.0, 0.0), known=known).differences
    assert [(one.quantity, one.finding) for one in found] == [("reward", "worse"), ("cost", "worse")]


def test_a_difference_between_agents_is_found_and_more_of_their_episodes_find_smaller_ones() -> None:
    rng = np.random.default_rng(2)

    def noisy(num_episodes: int) -> list[str]:
        return [
            difference(
                fleet(rng, 100, lambda _, version: 4.0 + rng.normal() + 0.6 * (version == "2"), num_episodes)
            ).finding
            for _ in range(10)
        ]

    few, many = noisy(1), noisy(16)
    assert set(few) | set(many) <= {"undecided", "better"}
    assert many.count("better") >= 9 > few.count("better")


def test_what_the_champion_did_before_the_experiment_does_not_count() -> None:
    rng = np.random.default_rng(3)
    before = [one for agent in range(60) for one in lived(f"agent {agent}", "1", [(-900.0, 50.0, 9.9)])]
    for one in before:
        one.assignments = {}
    alike = fleet(rng, 60, lambda *_: 3.0)
    assert difference(before + alike) == difference(alike)
    assert difference(before).num_champion == 0


def test_an_episode_that_ran_when_the_experiment_began_leaves_its_agent_unknown_until_the_next() -> None:
    rng = np.random.default_rng(4)
    episodes = fleet(rng, 30, lambda *_: 3.0, num_episodes=1)
    for one in episodes:
        one.began = at(-5.0)
    found = difference(episodes)
    assert (found.num_unfinished, found.finding) == (30, "undecided")
    assert (found.low, found.high) == (-10.0, 10.0)


def test_a_challenger_whose_long_episodes_still_run_is_never_called_worse_and_found_better_when_they_end() -> None:
    """It earns with time: its first to end are its worst."""
    rng, longest = np.random.default_rng(5), 60.0
    for _ in range(5):
        lives = []
        for agent, version in enumerate(dealt(rng, 100)):
            length = float(min(rng.exponential(4.0 if version == "1" else 20.0), longest))
            lives.append((f"agent {agent}", version, [(0.3 * agent, length, length / 6.0)]))
        for now in (5.0, 15.0, 30.0, 45.0):
            running = [one for life in lives for one in lived(*life, now=now)]
            assert difference(running).finding != "worse"
        ended = [one for life in lives for one in lived(*life, now=30.0 + 2 * longest)]
        assert difference(ended).finding == "better"


def test_a_challenger_of_which_only_failures_have_ended_yet_is_not_called_worse() -> None:
    """A quarter of its episodes fail at once; the others take a minute, and earn five times as much as the
    champion's."""
    rng, lives = np.random.default_rng(6), []
    for agent, version in enumerate(dealt(rng, 120)):
        length, total = (2.0, 2.0) if version == "1" else (1.0, 0.0) if rng.random() < 0.25 else (60.0, 10.0)
        lives.append((f"agent {agent}", version, [(0.1 * agent, length, total)]))
    running, ended = (
        difference([one for life in lives for one in lived(*life, now=now)], reward_range=(0.0, 10.0))
        for now in (15.0, 80.0)
    )
    assert running.finding == "undecided"
    assert running.num_unfinished > 30
    assert (ended.num_unfinished, ended.finding) == (0, "better")


def test_agents_that_vanished_count_as_the_worst_and_the_rest_still_decides() -> None:
    rng = np.random.default_rng(6)
    episodes = []
    for agent, version in enumerate(dealt(rng, 200)):
        gone = agent % 20 == 7
        run = (agent, 50.0, 9.0 if version == "2" else 2.0)
        episodes += lived(f"agent {agent}", version, [run], now=agent + 40.0 if gone else 1e9)
    found = difference(episodes)
    assert (found.num_unfinished, found.finding) == (10, "better")
    least, greatest = found.low, found.high
    given_up = difference(episodes, Known(now=1e11), longest_episode_seconds=50.0)
    assert (given_up.num_unfinished, given_up.finding) == (0, "better")
    assert least < given_up.low < given_up.high < greatest


def test_an_episode_that_was_given_up_keeps_the_value_it_had_then() -> None:
    """Else each look at episodes that never end would compare other values, and all looks together call equal ones
    different in more streams than stated."""
    rng, episodes = np.random.default_rng(10), []
    for agent, version in enumerate(dealt(rng, 40)):
        (one,) = lived(f"agent {agent}", version, [(agent, 1e9, 0.0)], now=1e6)
        one.rewards = {"before": rng.uniform(0.0, 10.0), "after": 100.0 * (version == "2")}
        one.told_at = {"before": at(agent + 1.0), "after": at(agent + 101.0)}
        one.decided_at, one.observations = [at(agent), at(agent + 100.0)], [[0.0], [0.0]]
        episodes.append(one)
    begin = BEGIN.timestamp()
    found = [difference(episodes, Known(now=begin + now), longest_episode_seconds=40.0) for now in (130.0, 1e5)]
    assert found[0] == found[1]
    assert (found[0].num_unfinished, found[0].num_clipped, found[0].finding) == (0, 0, "undecided")


def test_an_answer_comes_within_twice_the_longest_episode_after_the_last_start() -> None:
    """Half of the challenger's agents go on for ever, though no episode is longer than 60 s."""
    rng, longest, episodes = np.random.default_rng(11), 60.0, []
    for agent, version in enumerate(dealt(rng, 100)):
        length = 1e9 if version == "2" and agent % 2 else 50.0
        (one,) = lived(f"agent {agent}", version, [(0.3 * agent, length, 0.0)], now=1e6)
        one.rewards = {"first": 9.0 if version == "2" else 2.0}
        one.told_at = {"first": at(0.3 * agent + 1.0)}
        episodes.append(one)
    begun = BEGIN.timestamp()
    early, answered = (
        difference(episodes, Known(now=begun + now), longest_episode_seconds=longest)
        for now in (29.0, 29.7 + 2 * longest + 0.1)
    )
    assert early.num_unfinished > 20
    assert early.finding == "undecided"
    assert (answered.num_unfinished, answered.finding) == (0, "better")


def test_the_range_of_a_reward_narrows_what_an_episode_can_become() -> None:
    rng = np.random.default_rng(7)
    running = [
        one for agent in range(40) for one in lived(f"agent {agent}", dealt(rng, 1)[0], [(0.0, 80.0, 8.0)], 40.0)
    ]
    known = Known(now=0.0, max_episode_steps=3)
    assert difference(running, known).num_unfinished == 40
    narrow = difference(running, known, reward_range=(-0.001, 0.001), confidence=0.9)
    wide = difference(running, known, confidence=0.9)
    assert narrow.high - narrow.low < wide.high - wide.low


def test_an_agent_counts_for_the_version_it_was_dealt_whatever_decided_later() -> None:
    rng = np.random.default_rng(8)
    alike = fleet(rng, 40, lambda *_: 3.0)
    before = difference(alike)
    for number, one in enumerate(alike):
        one.deciders = [(None, "1", "2")[number % 3]]
    assert difference(alike) == before


def test_shares_may_change_while_agents_come() -> None:
    rng, found = np.random.default_rng(9), []
    for _ in range(40):
        episodes = []
        for agent in range(80):
            share = 0.4 if agent < 40 else 0.1
            (version,) = dealt(rng, 1, share)
            episodes += lived(f"agent {agent}", version, [(agent, 50.0, agent / 10 + rng.normal())], share=share)
        found.append(difference(episodes).finding)
    assert sum(one != "undecided" for one in found) <= 4


def test_experiments_add_up_and_are_named() -> None:
    rng = np.random.default_rng(10)
    episodes = []
    for number, experiment in enumerate(("first", "second", "third")):
        for agent, version in enumerate(dealt(rng, 40)):
            runs = [(1_000.0 * number + agent, 5.0, 3.0 + rng.normal() + (version == "2"))]
            episodes += lived(f"agent {agent}", version, runs, experiment=experiment)
    found = compared(episodes)
    assert found.experiments == ["first", "second", "third"]
    assert sum(trial_of(episodes, "1", "2", False).counts()) == 120
    assert found.differences[0].finding == "better"


def test_agents_of_a_third_version_are_left_out() -> None:
    rng = np.random.default_rng(11)
    two = fleet(rng, 30, lambda *_: 3.0, num_episodes=1)
    third = lived("another", "1", [(0.0, 5.0, 1.0)])
    third[0].assignments = by_arms(Assignment("e", "3", {"1": 0.4, "2": 0.4, "3": 0.2}, third[0].began))
    assert sum(trial_of(two + third, "1", "2", False).counts()) == 30


def test_old_records_that_leave_three_shares_open_are_not_compared() -> None:
    rng = np.random.default_rng(12)
    episodes = fleet(rng, 30, lambda *_: 3.0, num_episodes=1)
    for number, one in enumerate(episodes):
        (known,) = one.assignments.values()
        version = "3" if number == 5 else known.version
        one.assignments = by_arms(Assignment("e", version, {version: 1 / 3}, known.time, is_partial=True))
    assert "no experiment dealt agents to both 1 and 2" in str(compared(episodes).refused)
    for one in episodes:
        if [known.version for known in one.assignments.values()] == ["3"]:
            one.assignments = {}
    assert compared(episodes).refused is None


def test_too_few_agents_say_so() -> None:
    rng = np.random.default_rng(13)
    while len({*(few := dealt(rng, 6))}) < 2:
        continue
    episodes = [one for n, version in enumerate(few) for one in lived(f"agent {n}", version, [(n, 5.0, 3.0)])]
    assert "6 agents were dealt to the two versions; below 20" in str(compared(episodes).refused)


def test_nothing_is_claimed_where_a_log_is_missing() -> None:
    rng = np.random.default_rng(14)
    found = compared(fleet(rng, 200, lambda _, version: 9.0 if version == "2" else 1.0, num_episodes=1))
    assert found.differences[0].finding == "better"
    silent = found.without_claims("the log of robot-7 is not here")
    (one,) = silent.differences
    assert (one.finding, one.low, one.high, silent.refused) == (
        "undecided",
        -10.0,
        10.0,
        "the log of robot-7 is not here",
    )

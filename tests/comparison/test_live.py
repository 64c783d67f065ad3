"""What two versions did, side by side: returns, costs and limits from the audit log."""

from typing import Any

import pytest
from live import decide, play, reward
from simulated_logs import episode

from loomrl.comparison.config import ComparisonConfig
from loomrl.comparison.live import LiveComparison, compare_live
from loomrl.errors import ConfigError
from loomrl.monitoring.window import LiveEpisode, read_window
from loomrl.safety.config import ConstraintConfig
from loomrl.serving.audit import AuditLog

POLE = ConstraintConfig(name="pole", quantity="observation[2]", low=-0.2, high=0.2)
UNSEEN = ConstraintConfig(name="unseen", quantity="reward", low=0.0)


def played(version: str, number: int, total: float = 1.0, angle: float = 0.0, **changes: Any) -> list[LiveEpisode]:
    step = ([0.0, 0.0, angle, 0.0], 1, 1.0, total)
    return [episode([step], version, **{"explored": [False], **changes}) for _ in range(number)]


def compared(episodes: list[LiveEpisode], on: str | None = None, **config: Any) -> LiveComparison:
    settings = ComparisonConfig.model_validate(config)
    return compare_live(episodes, ("1", "2"), [POLE, UNSEEN], settings, (0.0, 10.0), on)


def test_a_better_version_is_found_and_a_worse_one(loomrl_home: object) -> None:
    log = AuditLog("cartpole")
    for number in range(120):
        play(log, f"first {number}", [0.0] * 3)
        play(log, f"second {number}", [0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0], version="2")
    found = compared(read_window("cartpole", {}, []).episodes)
    returns, limit = found.differences
    assert (returns.quantity, returns.champion_mean, returns.challenger_mean, returns.finding) == (
        "reward", 3.0, 7.0, "better",
    )  # fmt: skip
    assert 0.0 < returns.low < 4.0 < returns.high
    assert (limit.quantity, limit.champion_mean, limit.challenger_mean, limit.finding) == (
        "limits.pole", 0.0, 1.0, "worse",
    )  # fmt: skip
    assert found.not_compared["limits.unseen"] == "decisions do not show reward"


def test_costs_are_told_by_feedback_and_lie_in_a_range(loomrl_home: object) -> None:
    log = AuditLog("cartpole")
    for number in range(100):
        for version, cost in (("1", 5.0), ("2", 1.0)):
            decision = decide(log, version, str(number), [0.0] * 4, version)
            reward(log, decision, version, str(number), 1.0, ended=True, cost=cost)
    episodes = read_window("cartpole", {}, []).episodes
    assert "set `cost_range`" in compared(episodes).not_compared["cost"]
    cost = compared(episodes, on="cost", cost_range=(0.0, 8.0)).of("cost")
    assert cost is not None
    assert (cost.champion_mean, cost.challenger_mean, cost.finding) == (5.0, 1.0, "better")


def test_only_what_a_version_alone_decided_counts() -> None:
    others = played("2", 50, deciders=[None]) + played("2", 50, explored=[True]) + played("3", 50)
    found = compared(played("1", 30) + played("2", 20) + others).of("reward")
    assert found is not None
    assert (found.num_champion, found.num_challenger, found.num_pairs) == (30, 20, 20)
    explored = compared(played("1", 30) + others, explored=True).of("reward")
    assert explored is not None
    assert (explored.num_champion, explored.num_challenger) == (0, 50)
    assert (explored.low, explored.high, explored.finding) == (-10.0, 10.0, "undecided")


def test_values_outside_of_the_range_count_as_its_end_and_are_counted() -> None:
    found = compared(played("1", 10, total=4.0) + played("2", 10, total=90.0)).of("reward")
    assert found is not None
    assert (found.num_clipped, found.challenger_mean) == (10, 90.0)
    assert found.high <= 10.0


def test_the_level_is_divided_among_what_is_compared() -> None:
    episodes = played("1", 100, total=3.0) + played("2", 100, total=7.0)
    both, one = (compared(episodes, on=on).of("reward") for on in (None, "reward"))
    assert both is not None
    assert one is not None
    assert both.low < one.low


def test_more_traffic_of_the_champion_counts_as_its_mean() -> None:
    episodes = played("1", 90, total=3.0) + played("2", 10, total=7.0)
    assert [compared(episodes, champion_episodes=each).differences[0].num_pairs for each in (1, 9, 10)] == [10, 10, 9]


def test_unknown_quantities_are_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'speed' cannot be compared; known: reward, cost, limits.pole"):
        compared(played("1", 1), on="speed")
    with pytest.raises(ConfigError, match="'cost' cannot be compared: no feedback tells a `cost`"):
        compared(played("1", 1), on="cost")


def test_a_range_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="return_range .* must go from the least to the greatest"):
        ComparisonConfig(return_range=(1.0, 1.0))

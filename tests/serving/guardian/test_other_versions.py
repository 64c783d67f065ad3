"""The reward monitor where versions come and go amid an experiment, and agents earn otherwise when they are new."""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from loomrl.serving.guardian.stream import STATE, Stream
from tests.serving.guardian.test_stream import watch

Earned = Callable[[str, int], float]  # by whom it was decided, and how often the agent decided before
BOTH = {"1": 0.5, "2": 0.5}


def wears(_version: str, age: int) -> float:
    return 9.0 - 0.5 * age


def learns(_version: str, age: int) -> float:
    return 1.0 + 0.5 * age


class Fleet:
    """Agents that a split deals to a challenger, or to the champion; each decision stands for itself."""

    def __init__(self, num_agents: int) -> None:
        self.stream, self.count = Stream(lambda _: watch(reward_range=[-5.0, 15.0], max_reward_loss=0.01)), 0
        self.rng, self.ages = np.random.default_rng(1), Counter[int]()
        self.is_dealt, self.skill = self.rng.random(num_agents) < 0.5, self.rng.normal(size=num_agents)

    def decide(self, shares: Mapping[str, float], versions: tuple[str, str], earned: Earned, num_agents: int) -> None:
        """One decision of each of the first agents, in any order, by champion or challenger."""
        for agent in self.rng.permutation(num_agents).tolist():
            self.count += 1
            version = versions[int(self.is_dealt[agent])]
            names = {
                "version": version,
                "agent_id": f"agent-{agent}",
                "episode_id": None,
                "decision_id": str(self.count),
                "timestamp": f"2026-01-01T00:{self.count // 60:02}:{self.count % 60:02}.000000Z",
                "role": "champion" if version == versions[0] else "split",
                "experiment": "x",
                "shares": dict(shares),
            }
            shown = {"observation": [0.0, 0.0], "action": 0, "seconds": 5e-5}
            told = {"override": None, "exploration_flag": False, "shield": None}
            ended = {
                "terminated": True,
                "truncated": False,
                "reward": earned(version, self.ages[agent]) + self.skill[agent],
            }
            self.ages[agent] += 1
            self.stream.process([names | shown | told | {"kind": "decision"}, names | ended | {"kind": "feedback"}])

    def restart(self) -> None:
        """Begin anew with what was saved."""
        state = STATE.validate_python(STATE.dump_python(self.stream.state(), mode="json"))
        self.stream = Stream(lambda _: watch(reward_range=[-5.0, 15.0], max_reward_loss=0.01), state)

    def e_value(self, version: str) -> float:
        """Of the monitor of a version's reward, that was held against a champion's."""
        found = self.stream.describe()[version]
        assert found["control"] is not None
        return float(found["monitors"]["reward"]["e_value"])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_challenger_that_takes_anothers_place_is_not_judged_by_agents_that_were_dealt_the_other(
    is_restarted: bool,
) -> None:
    """Those are worn; the champion's that come at the same time are new."""
    fleet = Fleet(120)
    for _ in range(8):
        fleet.decide({"1": 0.5, "3": 0.5}, ("1", "3"), wears, 80)
    if is_restarted:
        fleet.restart()
    for _ in range(4):
        fleet.decide(BOTH, ("1", "2"), wears, 120)
    assert fleet.e_value("2") < 20.0
    assert fleet.stream.refuted == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_new_champion_is_not_held_against_a_challenger_with_agents_that_were_the_former_ones(
    is_restarted: bool,
) -> None:
    """Those have learnt; the challenger's that come at the same time are new."""
    fleet = Fleet(120)
    for _ in range(8):
        fleet.decide(BOTH, ("1", "2"), learns, 80)
    if is_restarted:
        fleet.restart()
    for _ in range(4):
        fleet.decide({"3": 0.5, "2": 0.5}, ("3", "2"), learns, 120)
    assert fleet.stream.describe()["2"]["control"] == "3"
    assert fleet.e_value("2") < 20.0
    assert fleet.stream.refuted == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_version_whose_monitors_begin_anew_is_not_judged_by_agents_that_it_had(is_restarted: bool) -> None:
    """It was in quarantine."""
    fleet = Fleet(120)
    for _ in range(8):
        fleet.decide(BOTH, ("1", "2"), wears, 80)
    fleet.stream.forget("2")
    if is_restarted:
        fleet.restart()
    for _ in range(4):
        fleet.decide(BOTH, ("1", "2"), wears, 120)
    assert fleet.e_value("2") < 20.0
    assert fleet.stream.refuted == []


def test_a_worse_version_is_taken_out_though_another_decided_for_all_before_it_was_loaded() -> None:
    fleet = Fleet(80)
    fleet.decide({"1": 1.0}, ("1", "1"), wears, 80)
    for _ in range(4):
        fleet.decide(BOTH, ("1", "2"), lambda version, _: 9.0 if version == "1" else 1.0, 80)
    assert fleet.stream.refuted == ["2"]


def test_a_worse_challenger_that_takes_anothers_place_is_taken_out() -> None:
    """The agents that are new since tell."""
    fleet = Fleet(200)
    fleet.decide({"1": 0.5, "3": 0.5}, ("1", "3"), wears, 80)
    for _ in range(4):
        fleet.decide(BOTH, ("1", "2"), lambda version, _: 9.0 if version == "1" else 1.0, 200)
    assert fleet.stream.refuted == ["2"]

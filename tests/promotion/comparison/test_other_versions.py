"""Who counts, and until when, where versions come and go amid an experiment, and where agents ask to explore."""

from collections.abc import Mapping

import numpy as np
import pytest

from loomrl.promotion.comparison.agents import AgentComparison, trial_of
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.live import Difference, compare_live
from loomrl.promotion.comparison.window import read_window
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.segments import segments
from tests.support.live import decide, reward
from tests.support.side_by_side import dealt

pytestmark = pytest.mark.usefixtures("loomrl_home")
BOTH = {"1": 0.5, "2": 0.5}


class Traffic:
    """Agents that a split dealt to "2" or to the rest; each has one episode after the other, of one decision."""

    def __init__(self, number: int, seed: int = 1) -> None:
        self.log, self.num_played = AuditLog("cartpole"), 0
        self.dealt = dict(zip(map(str, range(number)), dealt(np.random.default_rng(seed), number), strict=True))

    def play(
        self,
        shares: Mapping[str, float],
        returns: Mapping[str, float],
        others: Mapping[str, str] | None = None,
        exploring: frozenset[str] = frozenset(),
        experiment: str = "e",
    ) -> None:
        """One episode of each agent; for those that were dealt another version than "2" the one of `others` decides."""
        for agent, version in self.dealt.items():
            actor = (others or {}).get(version, version)
            told = {"experiment": experiment, "dealt": actor, "shares": dict(shares)}
            explored = agent in exploring
            decision = decide(
                self.log, agent, str(self.num_played), [0.0] * 4, actor, exploration_flag=explored,
                explore_requested=explored, **told,
            )  # fmt: skip
            reward(self.log, decision, agent, str(self.num_played), returns[actor], ended=True)
        self.num_played += 1


def trial(champion: str = "1", explored: bool = False) -> AgentComparison:
    return trial_of(read_window("cartpole", {}, []).episodes, champion, "2", explored)


def difference(champion: str = "1") -> Difference:
    episodes = read_window("cartpole", {}, []).episodes
    return compare_live(episodes, (champion, "2"), [], ComparisonConfig(), (0.0, 10.0)).differences[0]


@pytest.mark.parametrize(("total", "shares"), [(9.0, {"3": 0.5, "2": 0.5}), (0.0, {"1": 0.1, "2": 0.5, "3": 0.4})])
def test_what_a_version_that_came_later_does_is_not_laid_to_the_one_before(
    total: float, shares: dict[str, float]
) -> None:
    """A third version is the champion, or is given traffic: for agents that the first one was dealt."""
    traffic = Traffic(80)
    traffic.play(BOTH, {"1": 5.0, "2": 5.0})
    assert difference().finding == "undecided"
    for _ in range(16):
        traffic.play(shares, {"2": 5.0, "3": total}, {"1": "3"})
    assert difference().finding == "undecided"
    assert all(len(agent.episodes) == 1 for agent in trial().agents)
    assert trial("3").agents == [], "those who came before the third are no agents of its comparison"


def test_agents_that_come_when_the_third_version_is_there_are_compared_with_it() -> None:
    traffic, later = Traffic(30), Traffic(60, seed=2)
    later.dealt = {f"new {name}": version for name, version in later.dealt.items()}
    traffic.play(BOTH, {"1": 5.0, "2": 5.0})
    for one in (traffic, later):
        one.play({"3": 0.5, "2": 0.5}, {"2": 5.0, "3": 1.0}, {"1": "3"})
    assert sum(trial().counts()) == 30
    assert sum(trial("3").counts()) == 60
    assert difference("3").finding == "better"


def test_an_episode_in_which_another_version_comes_in_is_known_until_then() -> None:
    """Whoever decides: what follows for agents of either version is not of the same experiment."""
    log = AuditLog("cartpole")
    for agent, version in Traffic(40).dealt.items():
        told = {"experiment": "e", "dealt": version, "shares": BOTH}
        first = decide(log, agent, "one", [0.0] * 4, version, **told)
        reward(log, first, agent, "one", 1.0, ended=False)
        actor = "3" if version == "1" else "2"
        told = {"experiment": "e", "dealt": actor, "shares": {"3": 0.5, "2": 0.5}}
        second = decide(log, agent, "one", [0.0] * 4, actor, **told)
        reward(log, second, agent, "one", 8.0 if actor == "3" else 0.0, ended=True)
    found = difference()
    assert (found.num_unfinished, found.finding) == (40, "undecided")
    assert {len(one.actions) for agent in trial().agents for one in agent.episodes} == {1}


def test_a_version_that_leaves_changes_nothing() -> None:
    """A challenger that is taken out, or not loaded on one host, still has the agents that it was dealt."""
    traffic = Traffic(60)
    traffic.play(BOTH, {"1": 5.0, "2": 1.0})
    traffic.play({"1": 1.0}, {"1": 5.0}, {"2": "1"})
    assert [len(agent.episodes) for agent in trial().agents] == [2] * 60
    assert difference().finding == "worse"


def test_agents_that_one_version_decided_for_alone_are_dealt_when_the_other_is_loaded() -> None:
    traffic = Traffic(60)
    traffic.play({"1": 1.0}, {"1": 9.0}, {"2": "1"})
    traffic.play(BOTH, {"1": 2.0, "2": 6.0})
    found = difference()
    assert found.num_champion + found.num_challenger == 60
    assert (found.champion_mean, found.challenger_mean, found.finding) == (2.0, 6.0, "better")


def test_three_versions_are_compared_though_one_decided_before_the_others_were_loaded() -> None:
    traffic = Traffic(60)
    traffic.play({"1": 1.0}, {"1": 5.0}, {"2": "1"})
    extra = Traffic(10, seed=3)
    extra.dealt = {f"extra {number}": "3" for number in range(10)}
    shares = {"1": 0.4, "2": 0.4, "3": 0.2}
    for one in (traffic, extra):
        one.play(shares, {"1": 5.0, "2": 1.0, "3": 5.0})
    assert sum(trial().counts()) == 60
    assert difference().finding == "worse"


def test_agents_that_were_not_dealt_by_chance_do_not_count() -> None:
    """Five times as many get the better version, all of them, in another experiment."""
    traffic, later = Traffic(60), Traffic(300, seed=2)
    later.dealt = {f"later {name}": "2" for name in later.dealt}
    traffic.play(BOTH, {"1": 5.0, "2": 1.0})
    later.play({"1": 0.0, "2": 1.0}, {"2": 9.0}, experiment="all")
    found = difference()
    assert (found.num_champion + found.num_challenger, found.challenger_mean) == (60, 1.0)
    assert found.finding == "worse"


def test_agents_are_chosen_by_what_they_asked_first_and_not_by_what_they_asked_later() -> None:
    """All begin by asking to explore, or none does; of those that were dealt the second version half do otherwise."""
    rng = np.random.default_rng(4)
    for name in ("asks", "does not"):
        traffic = Traffic(60)
        traffic.dealt = {f"{agent} {name}": version for agent, version in traffic.dealt.items()}
        everybody = frozenset(traffic.dealt if name == "asks" else ())
        fickle = frozenset(agent for agent, version in traffic.dealt.items() if version == "2" and rng.random() < 0.5)
        traffic.play(BOTH, {"1": 5.0, "2": 5.0}, exploring=everybody)
        for _ in range(4):
            traffic.play(BOTH, {"1": 5.0, "2": 5.0}, exploring=everybody ^ fickle)
    for explored in (True, False):
        agents = trial(explored=explored).agents
        assert {agent.episodes[0].agent_id.endswith("asks") for agent in agents} == {explored}
        assert [len(agent.episodes) for agent in agents] == [5] * 60


@pytest.mark.parametrize("is_old", [False, True])
def test_an_agent_whose_first_request_got_no_answer_is_one_that_asks(is_old: bool) -> None:
    """A version that answers nothing to some of those that ask does not leave them out; earlier logs do not tell."""
    traffic = Traffic(60)
    silent = [agent for agent, version in traffic.dealt.items() if version == "2"][:12]
    names = {"policy": "cartpole", "version": "2", "episode_id": None, "experiment": "e", "shares": BOTH}
    for agent in silent:
        named = [agent, "0", "2"] if is_old else [agent, "0", "2", True]
        traffic.log.append([record("unanswered", **names, without_answer=[named]) | {"agent_id": agent}])
    for _ in range(2):
        traffic.play(BOTH, {"1": 5.0, "2": 5.0}, exploring=frozenset(traffic.dealt))
    assert len(trial(explored=True).agents) == (48 if is_old else 60)
    assert len(trial().agents) == (12 if is_old else 0)


def test_an_experiment_whose_beginning_was_removed_claims_nothing() -> None:
    """Agents that came back are not new; what began later stands whole in the log."""
    first, second = Traffic(60), Traffic(60, seed=2)
    first.log = AuditLog("cartpole", segment_bytes=20_000)
    second.log = first.log
    for _ in range(6):
        first.play(BOTH, {"1": 1.0, "2": 9.0})
    for earlier in segments(first.log.folder)[:2]:
        earlier.unlink()
    found = compare_live(read_window("cartpole", {}, []).episodes, ("1", "2"), [], ComparisonConfig(), (0.0, 10.0))
    assert (found.differences[0].finding, found.experiments) == ("undecided", [])
    assert "who was dealt first in e stood in segments of the log that were removed" in str(found.refused)
    assert str(found.refused).endswith("`loomrl plan split --version 2 --fraction 0.5 --experiment NAME`")
    second.play(BOTH, {"1": 1.0, "2": 9.0}, experiment="another")
    assert difference().finding == "better"
    assert len(trial().agents) == 60


@pytest.mark.parametrize("is_late", [False, True])
def test_an_agent_that_decides_before_its_last_feedback_comes_counts_all_the_same(is_late: bool) -> None:
    """What ends an episode is told after the next one began: it is dealt by its own first decision."""
    log = AuditLog("cartpole")
    told = {"experiment": "e", "dealt": "2", "shares": BOTH}

    def begin(explored: bool = False, **changes: object) -> str:
        asked = {"exploration_flag": explored, "explore_requested": explored}
        return decide(log, "a", None, [0.0] * 4, "2", **asked, **(told | changes))

    last, again = begin(), {"experiment": "again"}
    for begins in [begin] * 5 + [lambda: begin(True, **again), lambda: begin(False, **again)]:
        following = begins() if is_late else ""
        reward(log, last, "a", None, 1.0, ended=True)
        last = following or begins()
    (plain,), (exploring,) = trial().agents, trial(explored=True).agents
    assert (plain.assignment.experiment, [len(one.actions) for one in plain.episodes]) == ("e", [1] * 6)
    assert (exploring.assignment.experiment, [len(one.actions) for one in exploring.episodes]) == ("again", [1] * 2)
    assert [agent.asked for agent in (plain, exploring)] == [False, True]

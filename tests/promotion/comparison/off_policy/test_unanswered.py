"""Requests that got no answer: the agent acted by itself there, so an episode is known no further."""

from pathlib import Path
from typing import Any

import pytest

from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.log import read_logged
from loomrl.promotion.comparison.off_policy.report import OffPolicyReport, estimate
from loomrl.promotion.comparison.window import read_window
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from tests.support.faulty_policies import TRIGGER, faulty_folder
from tests.support.inside import Inside
from tests.support.live import decide, reward
from tests.support.policies import discrete_folder
from tests.support.simulated_logs import MOVES_ON

HALF = OffPolicyConfig(
    reward_range=(-0.5, 1.0), max_steps=3, min_effective_sample_size=5.0, min_propensity=0.2, max_left_out_share=0.6
)
SILENT = "a request got no answer"


def serve(champion: Path, num_episodes: int, every: int) -> str:
    """Episodes of two steps, worth 1; in `every` so many the agent meets what the champion has no answer to between
    them, and gets over it by itself. Returns the champion's version."""
    exploration = ExplorationConfig(kind="epsilon", epsilon=1.0, share=0.4)
    settings = ServerSettings("cartpole", folders={"champion": champion}, exploration=exploration, rate=1e9, seed=0)
    with Inside(settings) as server:

        def ask(number: int, observation: list[float]) -> Any:
            names = {"agent_id": f"agent {number % 8}", "episode_id": str(number)}
            return server.ask("POST", "/decide", names | {"observation": observation})

        def tell(decision: str, value: float, terminated: bool) -> None:
            told = {"decision_id": decision, "reward": value, "terminated": terminated, "truncated": False}
            server.ask("POST", "/feedback", told).raise_for_status()

        for number in range(num_episodes):
            first = ask(number, [0.0, 1.0, 1.0, 0.0]).json()
            tell(first["decision_id"], 0.0, terminated=False)
            if number % every == 0:
                assert ask(number, [TRIGGER + 10.0, 0.0, 1.0, 0.0]).status_code == 422
            tell(ask(number, [0.0, 0.0, 1.0, 1.0]).json()["decision_id"], 1.0, terminated=True)
    return str(first["version"])


def report_of(home: Path, num_episodes: int, every: int) -> OffPolicyReport:
    sound = discrete_folder(home / "sound", MOVES_ON)
    champion = faulty_folder(home / "faulty", sound, "nan")
    version = serve(champion, num_episodes, every)
    episodes = read_window("cartpole", {}, []).episodes
    challenger = ServedPolicy.load(sound, "challenger")
    return estimate("cartpole", episodes, ServedPolicy.load(champion, version), challenger, HALF)


def test_what_follows_a_request_without_an_answer_counts_as_the_worst(loomrl_home: Path, tmp_path: Path) -> None:
    """A challenger that answers there may have an accident, -0.5 and the end: a mean of 0.25."""
    report = report_of(tmp_path, num_episodes=80, every=2)
    assert (report.refused, report.incomplete) == ("", {SILENT: 40})
    assert max(one.low for one in report.estimates if one.low is not None) <= 0.25


def test_where_every_episode_has_one_nothing_is_estimated(loomrl_home: Path, tmp_path: Path) -> None:
    report = report_of(tmp_path, num_episodes=20, every=1)
    assert report.refused.startswith("the log has no whole episode"), report.refused
    assert report.refused.endswith(f": 20 {SILENT}"), report.refused


def unanswered(log: AuditLog, agent: str, episode: str | None, *without_answer: list[Any], **changes: Any) -> None:
    names = {"policy": "cartpole", "version": "1", "episode_id": episode, "agent_id": agent}
    if without_answer:
        changes["without_answer"] = list(without_answer)
    log.append([record("unanswered", **names, **changes)])


def decided(log: AuditLog, agent: str, episode: str | None, **changes: Any) -> str:
    told = {"action": 1, "exploration_flag": True, "propensity": 0.5}
    return decide(log, agent, episode, [0.0] * 4, **told | changes)


def logged() -> tuple[list[int], list[bool], dict[str, int], dict[str, int]]:
    """The lengths of the episodes that count, which are whole, and why others are not."""
    found, left_out, incomplete = read_logged(
        read_window("cartpole", {}, []).episodes, "1", OffPolicyConfig(max_left_out_share=0.9)
    )
    return found.lengths.tolist(), found.is_whole.tolist(), left_out, incomplete


@pytest.fixture
def log(loomrl_home: Path) -> AuditLog:
    """With one episode that is known whole, of one step."""
    log = AuditLog("cartpole")
    reward(log, decided(log, "whole", "1"), "whole", "1", 1.0, ended=True)
    return log


@pytest.mark.parametrize("is_old", [False, True])
def test_an_episode_ends_at_the_first_also_where_only_the_end_is_told_after_it(log: AuditLog, is_old: bool) -> None:
    """Logs of before name the first of those that got no answer."""
    for agent in ("a", "b"):
        last = decided(log, agent, "1")
        if agent == "a":
            reward(log, last, agent, "1", 1.0, ended=False)
        unanswered(log, agent, "1", *([] if is_old else [["other", "1", None, True], [agent, "1", None, True]]))
        if agent == "a":
            last = decided(log, agent, "1")
        reward(log, last, agent, "1", 1.0, ended=True)
    lengths, is_whole, left_out, incomplete = logged()
    assert (lengths, is_whole) == ([1, 1, 1], [True, False, False])
    assert (left_out, incomplete) == ({}, {SILENT: 2})


def test_an_episode_whose_first_request_got_no_answer_is_left_out(log: AuditLog) -> None:
    unanswered(log, "a", "1", ["a", "1", None, True])
    reward(log, decided(log, "a", "1"), "a", "1", 1.0, ended=True)
    assert logged() == ([1], [True], {"its first request got no answer": 1}, {})


@pytest.mark.parametrize("is_late", [False, True])
def test_one_that_may_have_been_of_either_episode_counts_in_both(log: AuditLog, is_late: bool) -> None:
    """Without ids: the end of the first is told behind the request, or behind the second's first decision."""
    first = decided(log, "a", None)
    unanswered(log, "a", None, ["a", None, None, True])
    second = decided(log, "a", None) if is_late else ""
    reward(log, first, "a", None, 1.0, ended=True)
    reward(log, second or decided(log, "a", None), "a", None, 1.0, ended=True)
    assert logged() == ([1, 1], [True, False], {"its first request got no answer": 1}, {SILENT: 1})


def test_one_of_the_next_episode_leaves_the_one_before_whole(log: AuditLog) -> None:
    reward(log, decided(log, "a", None), "a", None, 1.0, ended=True)
    unanswered(log, "a", None, ["a", None, None, True])
    reward(log, decided(log, "a", None), "a", None, 1.0, ended=True)
    reward(log, decided(log, "a", None), "a", None, 1.0, ended=True)
    assert logged() == ([1, 1, 1], [True] * 3, {"its first request got no answer": 1}, {})


@pytest.mark.usefixtures("loomrl_home")
def test_an_episode_that_the_fallback_ended_leaves_the_next_one_alone() -> None:
    """What the policy had no answer to, and what was decided instead, stand on record with one time."""
    log = AuditLog("cartpole")
    for number in range(4):
        first, last = (f"2026-01-01T00:00:0{2 * number + step}.000000Z" for step in (0, 1))
        made = decide(log, "a", None, [0.0] * 4, timestamp=first)
        reward(log, made, "a", None, 1.0, timestamp=first)
        told = {"timestamp": last, "experiment": None, "without_answer": [["a", None, None, False]]}
        names = {"decision_id": None, "episode_id": None, "policy": "cartpole", "version": "1"}
        log.append([record("unanswered", **names, error="") | told | {"agent_id": "a"}])
        made = decide(log, "a", None, [0.0] * 4, role="fallback", timestamp=last)
        reward(log, made, "a", None, 1.0, ended=True, timestamp=last)
    episodes = read_window("cartpole", {}, []).episodes
    assert [one.begins_unanswered for one in episodes] == [False] * 4

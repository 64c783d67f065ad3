"""What a look reads: every record once, put together to episodes, damage named."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loomrl.errors import ArtifactError
from loomrl.promotion.comparison.agents import trial_of
from loomrl.promotion.comparison.window import read_window, records_after
from loomrl.storage.audit.hosts import AUDIT_FOLDERS
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.segments import segments
from tests.support.live import decide, play, reward

pytestmark = pytest.mark.usefixtures("loomrl_home")


def test_each_record_is_read_once_over_segments_and_servers() -> None:
    logs = [AuditLog("cartpole", segment_bytes=2_000), AuditLog("cartpole")]
    seen, since, last = [], dict[str, int](), -1
    for look in range(3):
        for number in range(7):
            play(logs[number % 2], f"{look}-{number}", [0.0, 0.1 * number])
        window = read_window("cartpole", since, [])
        seen += [len(episode.observations) for episode in window.episodes]
        assert all(episode.episode_return == 2.0 for episode in window.episodes)
        since = window.until
        assert since[logs[0].server] > last
        last = since[logs[0].server]
    assert len(segments(logs[0].folder)) > 3
    assert seen == [2] * 21
    assert read_window("cartpole", since, []).episodes == []


def test_an_episode_over_two_looks_has_no_return_but_both_its_parts_count() -> None:
    log = AuditLog("cartpole")
    for _ in range(3):
        reward(log, decide(log, "a", "1", [0.0, 0.0, 0.0, 0.0]), "a", "1", 1.0, ended=False)
    first = read_window("cartpole", {}, [])
    assert first.open_episodes == [["a", "1"]]
    play(log, "1", [0.0, 0.3])
    play(log, "1", [0.0, 0.0, 0.0])  # the id once more: another episode
    second = read_window("cartpole", first.until, first.open_episodes)
    assert [len(window.episodes) for window in (first, second)] == [1, 2]
    assert [episode.episode_return for episode in second.episodes] == [None, 3.0]
    assert second.open_episodes == []


def test_feedback_on_an_earlier_decision_shows_that_an_episode_was_cut() -> None:
    log = AuditLog("cartpole")
    early = decide(log, "a", "1", [0.0] * 4)
    until = read_window("cartpole", {}, []).until
    reward(log, early, "a", "1", 2.0, ended=False)
    told = read_window("cartpole", until, [])
    assert ([one.rewards_before for one in told.only_told], told.episodes) == ([{early: 2.0}], [])
    late = decide(log, "a", "1", [0.0] * 4)
    for decision in (early, late):
        reward(log, decision, "a", "1", 1.0, ended=decision == late)
    (episode,) = read_window("cartpole", until, []).episodes
    assert (episode.episode_return, episode.rewards_before) == (None, {early: 1.0})
    assert len(episode.observations) == 1


@pytest.mark.parametrize("episode", [None, "the only one"])
def test_rewards_that_come_one_decision_late_are_of_the_episode_they_are_for(episode: str | None) -> None:
    """And over two looks: the last feedback of the first one's last episode comes in the second."""
    log, late = AuditLog("cartpole"), list[tuple[str, float, bool]]()
    for number in range(7):
        for step in range(1, 4):
            decision = decide(log, "a", episode, [float(number), 0.0, 0.0, 0.0])
            for before, value, ended in late:
                reward(log, before, "a", episode, value, ended=ended)
            late = [(decision, float(number), step == 3)]
        if number == 3:
            first = read_window("cartpole", {}, [])
    second = read_window("cartpole", first.until, first.open_episodes)
    assert [(one.episode_return, one.cut) for one in first.episodes] == [
        (0.0, False),
        (3.0, False),
        (6.0, False),
        (None, False),
    ]
    assert [one.rewards_before for one in second.only_told] == [{list(first.episodes[3].rewards)[-1]: 3.0}]
    assert second.only_told[0].ended
    assert [(one.episode_return, one.cut) for one in second.episodes] == [(12.0, False), (15.0, False), (None, False)]


def test_who_wrote_what_under_other_clocks_is_not_torn_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last decision of an episode is on another host, whose clock is behind: it seems to come before others."""
    logs = [AuditLog("cartpole")]
    with monkeypatch.context() as there:
        there.setenv("LOOMRL_HOME", str(tmp_path / "behind"))
        logs.append(AuditLog("cartpole", server="behind"))
    monkeypatch.setenv(AUDIT_FOLDERS, str(tmp_path / "behind" / "audit"))
    first = decide(logs[0], "a", "1", [0.0] * 4)
    last = decide(logs[1], "a", "1", [0.0] * 4)
    second = decide(logs[0], "a", "1", [0.0] * 4)
    for log, decision in ((logs[0], first), (logs[0], second), (logs[1], last)):
        reward(log, decision, "a", "1", 1.0, ended=decision == last)
    (episode,) = read_window("cartpole", {}, []).episodes
    assert (episode.episode_return, len(episode.actions)) == (3.0, 3)


@pytest.mark.parametrize("name", [None, "the only one"])
def test_workers_of_one_host_stand_by_one_clock(name: str | None) -> None:
    """Eight episodes of one step each, whose feedback comes two decisions late."""
    workers, waiting, returns = [AuditLog("cartpole"), AuditLog("cartpole")], list[str](), list[float | None]()
    for number in range(10):
        if number < 8:
            waiting.append(decide(workers[number % 2], "a", name, [0.0] * 4))
        if number >= 2:
            reward(workers[(number - 2) % 2], waiting[number - 2], "a", name, 1.0, ended=True)
    returns += [one.episode_return for one in read_window("cartpole", {}, []).episodes]
    assert returns == [1.0] * 8


def test_agents_of_one_request_come_at_one_time_also_in_logs_that_told_one_for_each_version() -> None:
    """They follow each other, and took equally long; who was dealt the second version came last in each request."""
    log, number = AuditLog("cartpole"), 0
    for _ in range(30):
        agents = [f"agent {number + place:03d}" for place in range(4)]
        number += 4
        seconds = 0.001 + number * 1e-6
        for version, dealt_it in (("1", agents[1::2]), ("2", agents[0::2])):
            for agent in dealt_it:
                told = {"experiment": "e", "dealt": version, "shares": {"1": 0.5, "2": 0.5}, "seconds": seconds}
                decide(log, agent, agent, [0.0] * 4, version=version, **told)
    episodes = read_window("cartpole", {}, []).episodes
    trial = trial_of(episodes, "1", "2", explored=False)
    assert [agent.assignment.version for agent in trial.agents] == ["2", "1"] * 60
    times = [agent.assignment.time for agent in trial.agents]
    assert [len(set(times[start : start + 4])) for start in range(0, 120, 4)] == [1] * 30
    assert len(set(times)) == 30


def test_an_episode_that_is_silent_for_a_while_is_known_when_it_goes_on() -> None:
    log = AuditLog("cartpole")
    decide(log, "a", "1", [0.0] * 4)
    window = read_window("cartpole", {}, [])
    play(log, "2", [0.0], agent="b")
    window = read_window("cartpole", window.until, window.open_episodes)
    assert window.open_episodes == [["a", "1"]]
    play(log, "1", [0.0])
    assert [one.cut for one in read_window("cartpole", window.until, window.open_episodes).episodes] == [True]


def test_a_request_without_an_answer_does_not_make_an_episode_a_new_one() -> None:
    log = AuditLog("cartpole")
    decide(log, "a", "1", [0.0] * 4)
    window = read_window("cartpole", {}, [])
    names = {"decision_id": None, "episode_id": "1", "policy": "cartpole", "version": "1"}
    log.append([record("unanswered", **names, agent_id="a", without_answer=[["a", "1", "1", False]])])
    play(log, "1", [0.0])
    assert [one.cut for one in read_window("cartpole", window.until, window.open_episodes).episodes] == [True]


def test_an_episode_begins_in_the_window_of_its_first_decision() -> None:
    """Requests before it that got no answer, with a split or without one, make it no part of an earlier one."""
    log = AuditLog("cartpole")
    names = {"decision_id": None, "episode_id": "1", "policy": "cartpole", "version": "1"}
    log.append([record("unanswered", **names, agent_id="a", without_answer=[["a", "1", None, False]])])
    window = read_window("cartpole", {}, [])
    assert (window.episodes, window.without_answer, window.open_episodes) == ([], [], [])
    play(log, "1", [0.0])
    (episode,) = read_window("cartpole", window.until, window.open_episodes).episodes
    assert (episode.cut, episode.episode_return) == (False, 1.0)


def test_what_others_decided_is_told_apart_and_simulated_agents_are_left_out() -> None:
    log = AuditLog("cartpole")
    play(log, "own", [0.0])
    play(log, "held", [0.0], override={"person": "grace"})
    play(log, "killed", [0.0], role="kill_switch")
    play(log, "dealt", [0.0], role="split")
    play(log, "curious", [0.0], exploration_flag=True)
    play(log, "other", [0.0], version="2")
    play(log, "simulated", [0.0], agent="shadow-1-0")
    episodes = read_window("cartpole", {}, []).episodes
    assert [episode.part_of("1") is episode for episode in episodes] == [True, False, False, True, False, False]
    assert [episode.part_of("1", asked=True) is episode for episode in episodes] == [False] * 4 + [True, False]


def test_a_draw_of_the_server_leaves_no_episode_out() -> None:
    """With a share of 0.01 nearly every long episode has an explored decision."""
    log = AuditLog("cartpole")
    for step in range(4):
        told = {"exploration_flag": step == 2, "asked_to_explore": False, "propensity": 0.005 if step == 2 else 0.995}
        reward(log, decide(log, "a", "1", [0.0] * 4, **told), "a", "1", 1.0, ended=step == 3)
    (episode,) = read_window("cartpole", {}, []).episodes
    assert episode.part_of("1") is episode
    assert (episode.episode_return, episode.explored, episode.asked) == (4.0, [False, False, True, False], [False] * 4)
    assert episode.part_of("1", asked=True) is None


@pytest.mark.parametrize(
    "others", [{"override": {"person": "grace"}}, {"role": "fallback"}, {"version": "2"}, {"exploration_flag": True}]
)
def test_an_episode_in_which_others_decide_later_is_one_that_has_not_ended(others: dict[str, Any]) -> None:
    log = AuditLog("cartpole")
    for step in range(4):
        told = others if step == 2 else {}
        reward(log, decide(log, "a", "1", [float(step)] * 4, **told), "a", "1", 1.0, ended=step == 3, cost=0.5)
    (episode,) = read_window("cartpole", {}, []).episodes
    part = episode.part_of("1")
    assert part is not None
    assert (part.ended, part.can_end, part.episode_return, part.episode_cost) == (False, True, None, None)
    assert (len(part.actions), list(part.rewards.values()), sum(part.costs.values())) == (2, [1.0, 1.0], 1.0)
    assert part.as_episode().obs[:, 0].tolist() == [0.0, 1.0]
    assert (episode.ended, len(episode.actions)) == (True, 4), "the episode itself is as it was"


def test_a_line_being_written_waits_and_a_changed_or_truncated_log_is_named() -> None:
    log = AuditLog("cartpole")
    play(log, "1", [0.0, 0.0])
    (path,) = segments(log.folder)
    whole = path.read_bytes()
    until = read_window("cartpole", {}, []).until
    path.write_bytes(whole + b'{"kind":"decision"')
    assert read_window("cartpole", {}, []).until == until
    path.write_bytes(whole.replace(b'"reward":1.0', b'"reward":9.0', 1))
    with pytest.raises(ArtifactError, match=r"000001\.jsonl:3: the hash is not that of the content"):
        read_window("cartpole", {}, [])
    path.write_bytes(whole[: whole[:-1].rindex(b"\n") + 1])
    with pytest.raises(ArtifactError, match=r"ends at record 3, but record 4 was read there before"):
        list(records_after(Path(log.folder), until[log.server]))


def test_an_episode_whose_beginning_may_have_been_removed_is_not_whole() -> None:
    """What a log keeps begins amid an episode of a, who decides every 20 minutes; b began long after it, and c soon."""
    log, waiting = AuditLog("cartpole", segment_bytes=1), list[tuple[str, str]]()
    begin = datetime.now(UTC)
    for agent, minute in (("a", -20), ("a", 0), ("a", 20), ("c", 25), ("a", 40), ("b", 50), ("c", 55), ("b", 60)):
        time = (begin + timedelta(minutes=minute)).isoformat()
        waiting.append((decide(log, agent, "1", [0.0] * 4, timestamp=time), agent))
    for earlier in segments(log.folder)[:3]:  # the first is empty
        earlier.unlink()
    for decision, agent in waiting[2:]:
        last = [one for one, name in waiting if name == agent][-1]
        reward(log, decision, agent, "1", 1.0, ended=decision == last)
    found = {one.agent_id: (one.cut, one.episode_return) for one in read_window("cartpole", {}, []).episodes}
    assert found == {"a": (True, None), "b": (False, 2.0), "c": (True, None)}

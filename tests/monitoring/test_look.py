"""One look after the other on a registered champion's real log: nothing judged twice, nothing skipped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.monitoring.gathered import RETURN, LimitTally, LookEvidence
from loomrl.monitoring.look import Look, last_look, looking
from loomrl.promotion.comparison.window import read_window
from loomrl.runs.config import PolicyConfig
from loomrl.serving.config import ExplorationConfig, ServingConfig
from loomrl.storage.audit.heads import anchor
from loomrl.storage.audit.hosts import AUDIT_FOLDERS
from loomrl.storage.audit.log import AuditLog, ChainHead
from loomrl.storage.loomdb.database import DamagedRow, LoomDB
from loomrl.storage.registry import Registry
from tests.support.champions import make_champion
from tests.support.live import decide, play, reward
from tests.support.policy_versions import config, register

POLE = {"name": "pole", "quantity": "observation[2]", "low": -0.2, "high": 0.2}


@pytest.fixture
def settings() -> PolicyConfig:
    document = config().model_dump(mode="json") | {"monitoring": {"min_episodes": 10}}
    return PolicyConfig.model_validate(document | {"safety": {"constraints": [POLE]}})


@pytest.fixture
def log(ready_home: Path, tmp_path: Path) -> AuditLog:
    register(tmp_path, "run-1")
    make_champion(Registry(), "1")
    return AuditLog("cartpole")


def look(settings: PolicyConfig) -> Look:
    with looking(settings) as found:
        pass
    assert last_look("cartpole") == found
    return found


def test_too_few_episodes_are_judged_with_those_to_come(log: AuditLog, settings: PolicyConfig) -> None:
    for number in range(6):
        play(log, str(number), [0.0])
    assert (look(settings).outcome, look(settings).num_episodes) == ("too_few", 6)
    for number in range(6, 12):
        play(log, str(number), [0.0])
    found = look(settings)
    assert (found.outcome, found.num_episodes, found.num_decisions) == ("healthy", 12, 12)
    assert look(settings).num_episodes == 0


def test_a_look_that_dies_is_repeated_and_a_degraded_champion_is_found(log: AuditLog, settings: PolicyConfig) -> None:
    for number in range(12):
        play(log, str(number), [0.0, 0.3 if number < 4 else 0.1])
    play(log, "held", [0.9], override={"person": "grace"})
    with pytest.raises(KeyboardInterrupt), looking(settings) as died:
        raise KeyboardInterrupt
    found = look(settings)
    assert found == died
    assert (found.outcome, found.version, found.num_left_out) == ("degraded", "1", 1)
    assert "limits.pole: 33.33% of episodes violate, in 12 episodes" in found.sentence
    assert look(settings).outcome == "too_few"  # those after it are judged by themselves


def test_a_champion_whose_server_explores_a_share_is_read_at_its_true_return(
    log: AuditLog, settings: PolicyConfig
) -> None:
    """The longer an episode, the more it earns, and the likelier an explored action was drawn in it: those without
    one are short."""
    shared = settings.model_copy(update={"serving": ServingConfig(exploration=ExplorationConfig(share=0.01))})
    rng, returns, num_unexplored = np.random.default_rng(5), [], 0
    for number in range(40):
        length, agent = int(rng.integers(1, 150)), f"agent {number % 20}"
        drawn = (rng.random(length) < 0.01).tolist()
        for step, explored in enumerate(drawn, start=1):
            told = {"exploration_flag": explored, "asked_to_explore": False, "propensity": 0.005 if explored else 0.995}
            decision = decide(log, agent, str(number), [0.0] * 4, **told)
            reward(log, decision, agent, str(number), 5.0, ended=step == length)
        returns.append(5.0 * length)
        num_unexplored += not any(drawn)
    found = look(shared)
    (claim,) = (claim for claim in found.claims if claim.id == "return")
    assert 5 < num_unexplored < 30
    assert (found.num_episodes, found.num_left_out) == (40, 0)
    assert f"a mean of {np.mean(returns):.4g} over 40 whole episodes of 20 agents" in claim.finding


def test_episodes_that_end_in_a_later_look_are_judged_whole(log: AuditLog, settings: PolicyConfig) -> None:
    """Each lies across two looks, and breaks the limit in its second half, if nobody takes it over."""
    outcomes, begun = [], ""
    for number in range(4):
        for agent in range(12):
            for ending, angles in ((begun, [0.0, 0.3]), (f"{number}", [0.0])):
                for step, angle in enumerate(angles if ending else [], start=1):
                    held = {"override": {"person": "grace"}} if (agent, number, ending, step) == (0, 2, "1", 1) else {}
                    decision = decide(log, f"agent {agent}", ending, [0.0, 0.0, angle, 0.0], **held)
                    reward(log, decision, f"agent {agent}", ending, 1.0, ended=step == 2)
        begun = f"{number}"
        found = look(settings)
        outcomes.append((found.outcome, found.num_episodes, found.num_left_out, len(found.gathered.open_episodes)))
    assert outcomes == [
        ("healthy", 12, 0, 12),
        ("degraded", 24, 0, 12),
        ("degraded", 23, 1, 12),
        ("degraded", 24, 0, 12),
    ]
    assert "limits.pole: 72.92% of episodes violate, in 48 episodes" in found.sentence  # 35 of those that have ended
    (returns,) = (claim for claim in found.claims if claim.id == "return")
    assert "a mean of 3 over 12 whole episodes of 12 agents" in returns.finding


@pytest.mark.parametrize("name", [None, "the only one"])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 7])
def test_wherever_looks_lie_late_feedback_makes_the_same_episodes(log: AuditLog, name: str | None, every: int) -> None:
    """Five agents, six episodes of three decisions each, whose rewards come one decision late."""
    gathered, since, still_open, late = LookEvidence(), dict[str, int](), list[list[str | None]](), dict[str, Any]()
    returns = list[float]()
    for place in range(18):
        for agent in map(str, range(5)):
            decision = decide(log, agent, name, [0.0] * 4)
            if agent in late:
                before, value, ended = late[agent]
                reward(log, before, agent, name, value, ended=ended)
            late[agent] = decision, 10.0 * (place // 3) + place % 3, place % 3 == 2
        if place % every == every - 1 or place == 17:
            window = read_window("cartpole", since, still_open)
            heard = gathered.against({RETURN: 0.5}).heard([*window.episodes, *window.only_told], [])
            tally, _ = LimitTally.at(0.5).updated((one.agent_id, 0, 0.0) for one in heard if one.places == {RETURN: 0})
            returns += [one.whole_return for one in heard if one.whole_return is not None]
            gathered = gathered.against({RETURN: 0.5}).after({RETURN: tally}, heard)
            since, still_open = window.until, window.open_episodes
    first = 1 if every == 1 and name is None else 0  # nothing tells in the first look that feedback will come
    assert sorted(returns) == sorted(30.0 * number + 3.0 for number in range(first, 5) for _ in range(5))


# Two episodes of one agent, decisions d1 to d3 and d4 to d6, a reward of 1 each; `f3!` is feedback that says: it ended.
INTERLEAVED = [
    "d1 f1 d2 f2 d3 f3! d4 f4 d5 f5 d6 f6!",
    "d1 f1 d2 f2 d3 d4 | f3! f4 | d5 f5 d6 f6!",
    "d1 f1 d2 f2 d3 d4 | f3! f4 d5 f5 d6 f6!",
    "d1 f1 d2 f2 d3 d4 | d5 f3! f4 | f5 d6 f6!",
    "d1 f1 d2 d3 d4 d5 d6 | f2 f3! f4 f5 f6!",
    "d1 f1 d2 d3 d4 d5 d6 | f6! f5 f4 f3! f2",
    "d1 f1 d2 d3 d4 d5 d6 | f6! | f3! | f2 f4 f5",
    "d1 f1 d2 d3 d4 f4 | f2 f3! d5 f5 d6 f6!",
    "d1 f1 d2 d3 d4 | f3! f4 | f2 d5 f5 d6 f6!",
    "d1 f1 d2 | d3 f2 | d4 | f4 d5 | f3! | d6 f5 | f6!",
    "d1 f1 | d2 d3 d4 d5 f5 d6 | f6! f4 | f2 | f3!",
]


# `p` is a decision that a person took: an episode in which there is one is not the version's.
OVERRIDDEN = [
    ("d1 f1 d2 f2! p3 f3! d4 f4!", [2.0, 1.0]),
    ("d1 f1 d2 | f2! p3 f3! d4 f4! | d5 f5!", [2.0, 1.0, 1.0]),
    ("d1 f1 d2 | p3 f2! f3 p4 f4! | d5 f5 d6 f6!", [2.0, 2.0]),
    ("d1 f1 d2 f2 p3 f3! | d4 f4 d5 f5! | d6 f6 d7 f7!", [2.0, 2.0]),
    ("d1 f1 d2 f2 p3 | f3! d4 f4 d5 f5! | d6 f6!", [2.0, 1.0]),
    ("d1 f1 d2 f2 | p3 f3 | d4 f4! d5 f5!", [1.0]),
    ("d1 f1 d2 f2 | p3 f3 d4 f4! | d5 f5 d6 f6!", [2.0]),
]


@pytest.mark.parametrize(("story", "returns"), OVERRIDDEN)
def test_what_a_person_decided_takes_no_other_episode_with_it(log: AuditLog, story: str, returns: list[float]) -> None:
    assert told([log], "the only one", story) == returns


@pytest.mark.parametrize("name", [None, "the only one"])
@pytest.mark.parametrize("num_servers", [1, 2])
@pytest.mark.parametrize("story", INTERLEAVED)
def test_looks_between_decisions_and_their_feedback_tear_no_episode(
    log: AuditLog, name: str | None, num_servers: int, story: str
) -> None:
    servers = [log, AuditLog("cartpole")][:num_servers]
    assert told(servers, name, story) == [3.0, 3.0]


@pytest.mark.parametrize(
    ("story", "returns"),
    [
        ("d1 d2 d3 d4 | f1 f2 f3! f4 d5 f5 d6 f6! d7 f7!", [1.0]),  # what is known of the second is only d5 and d6
        ("d1 d2 d3 d4 | f1 f2 f3! f4 | d5 f5 d6 f6! d7 f7!", [1.0]),
        ("d1 d2 d3 | f1 f2 f3! d4 f4! d5 f5!", [1.0]),  # d4 could have gone on with what was decided before
    ],
)
def test_what_began_before_anything_told_where_episodes_end_is_not_judged(
    log: AuditLog, story: str, returns: list[float]
) -> None:
    """Neither ids nor feedback in the first look: all of it is one there, and not waited for."""
    assert told([log], None, story) == returns


def told(servers: list[AuditLog], name: str | None, story: str) -> list[float]:
    """The returns that looks come to know of an agent's episodes."""
    gathered, since, still_open = LookEvidence(), dict[str, int](), list[list[str | None]]()
    decisions, returns = dict[str, str](), list[float]()
    for seen in story.split(" | "):
        for number, one in enumerate(seen.split()):
            server, decision = servers[number % len(servers)], one[1]
            if one[0] != "f":
                held = {"override": {"person": "grace"}} if one[0] == "p" else {}
                decisions[decision] = decide(server, "a", name, [0.0] * 4, **held)
            else:
                reward(server, decisions[decision], "a", name, 1.0, ended=one.endswith("!"))
        window, before = read_window("cartpole", since, still_open), gathered.against({RETURN: 0.5})
        own = [part for episode in window.episodes if (part := episode.part_of("1")) is not None]
        taken = [one.key for one in window.episodes[:1] if one.part_of("1") is None]
        heard = before.heard([*own, *window.only_told], [], taken)
        returns += [one.whole_return for one in heard if one.places and one.whole_return is not None]
        tally, _ = LimitTally.at(0.5).updated((one.agent_id, 0, 0.0) for one in heard if one.places == {RETURN: 0})
        for one in heard:
            one.places = {of: 1 for of in one.places if one.whole_return is None}
        gathered, since = before.after({RETURN: tally}, heard), window.until
        still_open = gathered.still_open(window, before)
    return returns


@pytest.mark.usefixtures("ready_home")
def test_without_a_champion_there_is_nothing_to_look_at(settings: PolicyConfig) -> None:
    with (
        pytest.raises(ConfigError, match=r"cartpole has no champion to look at yet; run `loomrl run"),
        looking(settings),
    ):
        pass


def test_an_event_that_is_no_look_is_named(settings: PolicyConfig, log: AuditLog) -> None:
    with LoomDB.open() as db:
        db.record_event("monitoring cartpole", {})
    with (
        pytest.raises(
            DamagedRow, match="'monitoring cartpole' of .* is no look.*policy: Field required; remove that row"
        ),
        looking(settings),
    ):
        raise AssertionError("there is nothing to go on from")


def test_a_champion_is_not_called_healthy_by_a_part_of_its_logs(
    settings: PolicyConfig, log: AuditLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host has anchored decisions of it, and its log is not here; then it is."""
    for number in range(12):
        play(log, str(number), [0.0])
    with monkeypatch.context() as there:
        there.setenv("LOOMRL_HOME", str(tmp_path / "robot-7"))
        other = AuditLog("cartpole", server="robot-7")
        for number in range(12):
            play(other, f"other-{number}", [0.0])
    with LoomDB.open() as db:
        anchor(db, other.head)
    found = look(settings)
    assert found.outcome == "incomplete"
    assert "the log cartpole/robot-7 of " in found.sentence
    assert "is not here: share or fetch" in found.sentence
    monkeypatch.setenv(AUDIT_FOLDERS, str(tmp_path / "robot-7" / "audit"))
    found = look(settings)
    assert (found.outcome, found.num_episodes, found.missing_logs) == ("healthy", 12, [])
    for number in range(12, 24):
        play(log, str(number), [0.0, 0.9])
    with LoomDB.open() as db:
        anchor(db, ChainHead(server="cartpole/robot-8", segment="000001", sequence=3, digest="0" * 64))
    assert (found := look(settings)).outcome == "degraded"
    assert found.missing_logs

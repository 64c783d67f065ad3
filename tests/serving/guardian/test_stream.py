"""Streams of decisions as the log has them: what counts, what triggers, how soon, and how seldom wrongly."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.serving.config import ServingConfig
from loomrl.serving.guardian.config import MonitorsConfig
from loomrl.serving.guardian.evidence import VersionEvidence
from loomrl.serving.guardian.monitor import Trigger
from loomrl.serving.guardian.sharing import Shared, merged_evidence
from loomrl.serving.guardian.stream import ALONE_AFTER, STATE, Stream
from loomrl.serving.guardian.trial import Arm, ChampionTrial
from loomrl.serving.guardian.version_monitors import VersionMonitors
from loomrl.serving.guardian.watch import Watch
from loomrl.serving.guardian.weigher import Beside
from loomrl.storage.audit.columns import Columns
from loomrl.storage.audit.records import decisions, rows
from loomrl.system.schema import Document
from loomrl.types import EnvironmentSpec, Json, PolicyManifest

LEAN = {"name": "lean", "quantity": "observation[0]", "low": -1.0, "high": 1.0, "per": "episode"}
PUSH = {"name": "push", "quantity": "action", "low": None, "high": 1.0, "per": "step"}
UNSEEN = {"name": "length", "quantity": "length", "low": 10.0, "high": None, "per": "episode"}
TIME = "2026-01-01T00:00:00.000000Z"
UNANSWERED = {"kind": "unanswered", "agent_id": "a", "episode_id": None, "version": "1", "timestamp": TIME}
SPLIT = [{"role": role, "experiment": "x", "shares": {"1": 0.5, "2": 0.5}} for role in ("champion", "split")]
OBSERVED = np.dtype(np.float32)
ALARM = {"mean": [0.0, 0.0], "precision": [[1.0, 0.0], [0.0, 1.0]], "threshold": 9.0, "alpha": 0.01}


def manifest(**changes: Any) -> PolicyManifest:
    constraints = [one | {"max_probability": 0.01, "mandatory": True} for one in (LEAN, PUSH, UNSEEN)]
    space = {"type": "Box", "shape": [2]}
    fields: Json = {
        **dict.fromkeys(("onnx_sha256", "policy_digest", "snapshot_digest", "case_sha256"), ""),
        "name": "cartpole",
        "environment": EnvironmentSpec(name="e", version="1", entry_point="a:B", observation=space, action=space),
        "algorithm": "ppo",
        "action_kind": "discrete",
        **dict.fromkeys(("inputs", "outputs"), {}),
        **dict.fromkeys(("probe_observations", "probe_actions"), []),
        "opset": 17,
        "out_of_distribution": ALARM,
        "constraints": constraints,
    }
    return PolicyManifest(**(fields | changes))


def watch(**settings: Any) -> Watch:
    return Watch.of(manifest(), OBSERVED, MonitorsConfig(**settings))


class Log:
    """Feeds a stream with records as a server would write them."""

    def __init__(self, is_shared: bool = False, **settings: Any) -> None:
        self.watch = watch(**settings)
        self.stream = Stream(lambda version: self.watch, is_shared=is_shared)
        self.count = 0

    def decide(self, version: str = "1", agent: str = "a", episode: str | None = None, **changes: Any) -> str:
        self.count += 1
        decision = {
            "kind": "decision",
            "agent_id": agent,
            "episode_id": episode,
            "version": version,
            "role": "champion",
            "experiment": None,
            "timestamp": TIME,
            "decision_id": str(self.count),
            "observation": [0.0, 0.0],
            "action": 0,
            "override": None,
            "exploration_flag": False,
            "shield": None,
            "seconds": 5e-5,
        }
        self.stream.process([decision | changes])
        return str(self.count)

    def reward(self, decision: str, value: float, version: str = "1", **changes: Any) -> None:
        feedback = {
            "kind": "feedback",
            "timestamp": TIME,
            "agent_id": "a",
            "episode_id": None,
            "version": version,
            "terminated": False,
        }
        self.stream.process([feedback | {"truncated": False, "decision_id": decision, "reward": value} | changes])

    def play(self, rewards: list[float], version: str = "1", episode: str = "e", agent: str = "a") -> None:
        for step, value in enumerate(rewards, start=1):
            names = {"version": version, "agent": agent, "episode": episode}
            ended = {"agent_id": agent, "episode_id": episode, "terminated": step == len(rewards)}
            self.reward(self.decide(**names), value, version, **ended)

    def monitor(self, name: str, version: str = "1") -> Json:
        found: Json = self.stream.describe()[version]["monitors"][name]
        return found

    def trigger(self, version: str = "1") -> Json | None:
        found: Json | None = self.stream.describe()[version]["trigger"]
        return found


# --- what counts ------------------------------------------------------------------------------------------------


def test_the_chance_of_a_false_alarm_is_shared_out_by_weight() -> None:
    levels = watch().levels
    assert sum(1 / level.threshold for level in levels.values()) == pytest.approx(0.05)
    assert levels["violations.lean"].threshold == pytest.approx(10 / 1.5 / 0.05)  # half of 3 of 10 parts
    assert levels["reward"].threshold == pytest.approx(10 / 3 / 0.05)
    assert "violations.length" not in levels  # decisions do not show it
    bare = Watch.of(manifest(constraints=[], out_of_distribution=None), OBSERVED, MonitorsConfig())
    assert sorted(bare.levels) == ["latency", "reward", "shield", "unanswered"]
    assert sum(1 / level.threshold for level in bare.levels.values()) == pytest.approx(0.05)
    off = watch(weights={"reward": 0.0}).levels
    assert "reward" not in off
    assert sum(1 / level.threshold for level in off.values()) == pytest.approx(0.05)


def test_a_request_without_an_answer_shows_nothing_else() -> None:
    log = Log()
    log.decide(episode="e")
    log.stream.process([UNANSWERED | {"episode_id": "e"}])
    assert (log.monitor("unanswered")["num_values"], log.monitor("unanswered")["mean"]) == (2, 0.5)
    assert log.monitor("shield")["mean"] == 0.0


def test_an_episode_breaks_a_limit_once_and_at_once() -> None:
    log = Log()
    for _ in range(50):
        log.decide(episode="kept")
    for step in range(50):
        log.decide(episode="broken", observation=[2.0 if step >= 7 else 0.0, 0.0])
        if step == 7:
            assert log.monitor("violations.lean")["mean"] == 0.5
    assert (log.monitor("violations.lean")["num_values"], log.monitor("violations.lean")["mean"]) == (2, 0.5)


@pytest.mark.parametrize("by_person", [False, True])
def test_a_state_that_others_left_behind_is_not_laid_to_who_takes_over(by_person: bool) -> None:
    """Once it was good again it is."""
    log, broken, good = Log(), {"observation": [2.0, 0.0]}, {"observation": [0.0, 0.0]}
    for number in range(50):
        names = {"episode": str(number), "agent": str(number)}
        log.decide(**names, **broken, **({"override": 1} if by_person else {"version": "0"}))
        for _ in range(3):
            log.decide(**names, **broken)
    assert log.monitor("violations.lean")["mean"] == log.monitor("out_of_distribution")["mean"] == 0.0
    for number in range(5):
        names = {"episode": str(number), "agent": str(number)}
        log.decide(**names, **good)
        log.decide(**names, **broken)
    found = log.monitor("violations.lean")
    assert (found["num_values"], found["mean"]) == (50, 0.1)


def test_what_a_version_led_to_is_laid_to_it_though_a_person_steps_in_at_once() -> None:
    log = Log()
    for number in range(40):
        names = {"episode": str(number), "agent": str(number)}
        for _ in range(3):
            log.decide(**names)
        log.decide(**names, observation=[2.0, 0.0], override=1)
        log.decide(**names)
    trigger = log.trigger()
    assert trigger is not None
    assert trigger["monitor"] == "violations.lean"


def test_returns_of_agents_whose_first_request_named_no_episode_are_held_against_the_reference() -> None:
    log = Log(reference=10.0, reward_range=(0.0, 10.0))
    for number in range(20):
        log.decide(agent=str(number))
        for _ in range(4):
            log.play([0.0, 0.0], agent=str(number))
    trigger = log.trigger()
    assert trigger is not None
    assert trigger["monitor"] == "reward"


@pytest.mark.parametrize("per", ["episode", "step"])
def test_the_next_version_is_not_taken_out_for_what_the_former_one_broke(per: str) -> None:
    """A lane that was left stays left until the episode ends; the second version never leaves it."""
    lane = {"name": "lane", "quantity": "observation[0]", "low": None, "high": 0.5, "per": per, "mandatory": True}
    told = manifest(constraints=[lane | {"max_probability": 0.05}], out_of_distribution=None)
    known, rng, taken = Watch.of(told, OBSERVED, MonitorsConfig()), np.random.default_rng(2), list[str]()
    log, steps, left = Log(), rng.integers(40, size=40), np.zeros(40, dtype=bool)
    log.stream, version, episodes = Stream(lambda _: known), "1", np.zeros(40, dtype=int)
    for _ in range(200):
        for agent in range(40):
            left[agent] &= steps[agent] > 0
            left[agent] |= version == "1" and rng.random() < 0.03
            names = {"agent": str(agent), "episode": str(episodes[agent])}
            made = log.decide(version, **names, observation=[float(left[agent]), 0.0])
            steps[agent] = (steps[agent] + 1) % 40
            ended = {"episode_id": names["episode"], "terminated": bool(steps[agent] == 0)}
            log.reward(made, 1.0, version, agent_id=str(agent), **ended)
            episodes[agent] += ended["terminated"]
        taken += [one for one in log.stream.refuted if one not in taken]
        version = "2" if taken else "1"
    assert taken == ["1"]


def test_each_quantity_has_its_monitor() -> None:
    log = Log()
    log.decide()
    log.decide(observation=[0.0, 3.1])
    log.decide(shield={"chosen": 1})
    log.decide(seconds=0.2)
    log.decide(observation=[None, 0.0])  # not finite: outside every limit
    log.stream.process([UNANSWERED])
    means = {name: log.monitor(name)["mean"] for name in log.stream.describe()["1"]["monitors"]}
    assert {name: mean for name, mean in means.items() if mean} == pytest.approx(
        dict.fromkeys(("out_of_distribution", "shield", "latency", "violations.lean", "unanswered"), 1 / 6)
        | {"reward": 0.5}
    )
    assert log.stream.describe()["1"]["num_decisions"] == 5


def test_a_large_request_may_take_longer_in_proportion() -> None:
    for num_together, seconds, mean in ((1, 0.2, 1.0), (8_192, 0.2, 0.0), (8_192, 3.3, 1.0)):
        log = Log()
        log.decide(seconds=seconds, num_together=num_together)
        assert log.monitor("latency")["mean"] == mean


@pytest.mark.parametrize("end", [0.1, 0.7])  # the nearest numbers in 32 bits lie above the one, and below the other
def test_a_number_at_a_limit_speaks_alike_alone_and_beside_others(end: float) -> None:
    at_limit = LEAN | {"high": end, "max_probability": 0.01}
    known = Watch.of(manifest(constraints=[at_limit]), OBSERVED, MonitorsConfig())
    observed = np.array([[end, 0.0], [end, 0.0]], OBSERVED)
    told: Json = {"version": "1", "shield": None, "seconds": 5e-5}
    columns = {"observation": observed, "action": np.array([0, 1])}
    alone = {"kind": "decision", "observation": [end, 0.0], "action": 0, **told}
    together = decisions({"count": 2, "dtypes": {"observation": OBSERVED.name}, **told}, columns)
    for entries in ([alone], [together], [alone, together]):
        found = known.signs(Columns(entries)).get("violations.lean", np.zeros(1, bool))
        assert set(found.tolist()) == {float(OBSERVED.type(end)) > end}


def test_what_the_shield_prevented_is_what_the_version_chose() -> None:
    log = Log()
    log.decide(shield={"chosen": 2, "by": "constraint push", "fallback": True})
    log.decide(shield={"chosen": 2, "by": "look-up", "fallback": False})
    means = {name: log.monitor(name)["mean"] for name in ("violations.push", "violations.lean", "shield")}
    assert means == {"violations.push": 0.5, "violations.lean": 0.0, "shield": 1.0}


def test_what_others_decided_says_nothing_about_the_version() -> None:
    log = Log(reference=1.0, reward_range=(0.0, 10.0))
    log.play([3.0])
    held = log.decide(action=2, override={"person": "grace"})
    curious = log.decide(action=2, exploration_flag=True)
    log.decide(agent="shadow-1", action=2)
    for decision in (held, curious):
        log.reward(decision, 9.0)
    assert (log.monitor("violations.push")["num_values"], log.monitor("violations.push")["mean"]) == (1, 0.0)
    assert log.stream.state().versions[0].monitors["reward"].total == pytest.approx(0.7)


def test_an_episode_that_a_swap_cut_has_no_return() -> None:
    log = Log(reference=1.0, reward_range=(0.0, 10.0))
    first = log.decide(episode="e")
    log.reward(first, 1.0, episode_id="e")
    last = log.decide(version="2", episode="e")
    log.reward(last, 1.0, "2", episode_id="e", terminated=True)
    log.play([5.0], "2", episode="whole")
    assert [one.monitors["reward"].total for one in log.stream.state().versions] == pytest.approx([0.0, 0.5])


def test_no_feedback_leaves_the_reward_undecided() -> None:
    log = Log()
    for number in range(300):
        log.decide(agent=str(number % 20), **SPLIT[0])
        log.decide("2", agent=str(20 + number % 20), **SPLIT[1])
    assert (log.monitor("reward", "2")["num_values"], log.monitor("reward", "2")["e_value"]) == (0, 1.0)
    assert log.trigger("1") is None
    assert log.trigger("2") is None


def test_a_stated_reference_is_the_control_of_the_first_version() -> None:
    log = Log(reference=8.0, reward_range=(0.0, 10.0))
    for number in range(400):
        agent = f"agent-{number % 8}"
        log.reward(log.decide(agent=agent), 2.0, agent_id=agent)
    trigger = log.trigger()
    assert trigger is not None
    assert trigger["reason"].startswith("reward: 60.0% of the range below the stated reference in ")


@pytest.mark.parametrize(("num_agents", "flushed"), [(40, 0), (6, 0), (6, 20), (40, 20)])
def test_rewards_that_come_many_at_once_count_where_they_were_earned(num_agents: int, flushed: int) -> None:
    """0.7 in the mean, where 0.5 is allowed. They are told after each ten minutes, or every twenty decisions."""
    log, rng = Log(reference=0.5, reward_range=(0.0, 1.0)), np.random.default_rng(1)
    waiting = dict[str, list[str]]()
    for second in range(0, 3000, 30):
        for agent in map(str, range(num_agents)):
            time = f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000000Z"
            decision, told = log.decide(agent=agent, timestamp=time), waiting.setdefault(agent, [])
            if len(told) >= flushed if flushed else second % 600 == 0:
                for one in told:
                    log.reward(one, float(rng.random() < 0.7), agent_id=agent, timestamp=time)
                told.clear()
            told.append(decision)
    assert log.trigger() is None
    assert log.monitor("reward")["e_value"] < 5.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"reference": 1.0}, "needs `reward_range"), ({"reward_range": [1.0, 1.0]}, "1.0 is not below 1.0")],
)
def test_impossible_settings_are_refused(settings: Json, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MonitorsConfig(**settings)
    with pytest.raises(ConfigError, match=rf"cartpole@3: its tag loomrl.serving: monitors: .*{message}"):
        ServingConfig.read_tag(Kept(monitors=settings).to_bytes().decode(), "cartpole@3")


class Kept(Document):
    monitors: Json


# --- many decisions in one record -------------------------------------------------------------------------------


def batches(rng: np.random.Generator, count: int, odd: float) -> Iterator[Json]:
    """What servers write under load: records of several decisions and feedback, of two versions. `odd`: how often
    something speaks against them."""
    for number in range(count):
        size, version = int(rng.integers(1, 40)), str(rng.integers(1, 3))
        kinds = rng.random((5, size))
        episode = f"e{number // 6}"
        columns = {
            "agent_id": [f"shadow-{row}" if rng.random() < 0.02 else f"a{row}" for row in range(size)],
            "episode_id": [episode if row % 3 else None for row in range(size)] if number % 3 else [None] * size,
            "observation": np.array(
                [[2.0 if one < 0.01 * odd else 0.0, 9.0 if one > 1 - 0.03 * odd else 0.0] for one in kinds[0]], OBSERVED
            ),
            "action": np.array([2 if one < 0.01 * odd else 0 for one in kinds[1]]),
            "q_value": kinds[4],
            "exploration_flag": [bool(number % 4 == 0 and one < 0.1) for one in kinds[2]],
            "shield": [{"chosen": 2, "by": "constraint push"} if one < 0.03 * odd else None for one in kinds[3]],
            "seconds": (0.2 if odd >= 1 and kinds[4][0] < 0.02 else 5e-5,) * size,
        }
        held = {"person": "grace"} if rng.random() < 0.05 else None
        told = {"count": size, "version": version, "role": "champion", "experiment": None, "override": held}
        yield decisions(told, columns) | {"decision_id": str(number), "timestamp": TIME}
        for row in rng.integers(size, size=3).tolist() if number % 2 else ():
            names = {"agent_id": columns["agent_id"][row], "episode_id": columns["episode_id"][row], "version": version}
            told = {"decision_id": f"{number}.{row}", "reward": float(rng.random()), "truncated": False}
            yield {"kind": "feedback", "timestamp": TIME, **names, **told, "terminated": bool(rng.random() < 0.3)}


def one_by_one(entry: Json) -> Iterator[Json]:
    yield from (one | {"timestamp": TIME} for one in rows(entry)) if entry["kind"] == "decisions" else (entry,)


def values(found: Any) -> list[Any]:
    """The leaves of nested JSON values, with their keys."""
    if isinstance(found, dict):
        return [leaf for name, value in found.items() for leaf in (name, *values(value))]
    return [leaf for value in found for leaf in values(value)] if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("seed", range(6))
def test_decisions_taken_together_are_worth_what_they_are_one_by_one(seed: int) -> None:
    """Whatever the evidence: nobody is taken out."""
    known = watch(spacing=3, weights={"shield": 0.0} if seed % 4 == 0 else {})
    known = replace(known, levels={name: replace(one, threshold=1e300) for name, one in known.levels.items()})
    together, alone = Stream(lambda version: known), Stream(lambda version: known)
    entries = list(batches(np.random.default_rng(seed), 150, odd=1.0 if seed % 2 == 0 else 0.1))
    for start in range(0, len(entries), 10):
        together.process(entries[start : start + 10])
        for entry in entries[start : start + 10]:
            for row in one_by_one(entry):
                alone.process([row])
    states = [STATE.dump_python(stream.state(), mode="json") for stream in (together, alone)]
    for evidence in (one for state in states for one in state["versions"]):
        evidence["num_seen"] = 0
        for monitor in evidence["monitors"].values():
            monitor |= {"trace": [], "stride": 1, "e_value": 1.0}  # when it was looked at
    assert states[0] == states[1]
    assert values(together.describe()) != []


# --- across restarts --------------------------------------------------------------------------------------------


def test_a_restart_at_any_record_changes_nothing() -> None:
    entries = list(records(np.random.default_rng(4), 200, Behaviour(), Behaviour(), named=True))
    known = watch()
    through, restarted = Stream(lambda version: known), Stream(lambda version: known)
    for number, entry in enumerate(entries):
        through.process([entry])
        if number % 7 == 0:
            kept = json.loads(json.dumps(STATE.dump_python(restarted.state(), mode="json")))
            restarted = Stream(lambda version: known, STATE.validate_python(kept))
        restarted.process([entry])
    assert restarted.state() == through.state()


def test_a_limit_that_was_changed_begins_anew() -> None:
    log = Log()
    for action in (0, 2, 0):
        log.decide(action=action, seconds=0.2)
    state = log.stream.state()
    other = watch(max_slow_rate=0.5)
    stream = Stream(lambda version: other, state)
    stream.process([UNANSWERED])
    monitors = stream.describe()["1"]["monitors"]
    assert (monitors["latency"]["mean"], monitors["violations.push"]["mean"]) == (0.0, 0.25)


# --- how soon, and how seldom wrongly -----------------------------------------------------------------------------

NUM_AGENTS = 80


@dataclass(frozen=True)
class Behaviour:
    """What a simulated version does: by default exactly what it may, where a monitor errs most."""

    breaks: float = 0.01  # of episodes, and of decisions
    success: float = 0.8  # of decisions: a reward of 1
    shielded: float = 0.2
    unknown: float = 0.1
    slow: float = 0.05


def records(rng: np.random.Generator, count: int, first: Behaviour, second: Behaviour, named: bool) -> Iterator[Json]:
    """Eighty agents, dealt to two versions by chance, in episodes of ten steps on average; rewards come at once."""
    left, number, breaks = [0] * NUM_AGENTS, [0] * NUM_AGENTS, [False] * NUM_AGENTS
    dealt, agents = rng.random(NUM_AGENTS) < 0.5, rng.integers(NUM_AGENTS, size=count)
    for decision, (agent, *draws) in enumerate(zip(agents.tolist(), *rng.random((6, count)), strict=True)):
        version, does = ("2", second) if dealt[agent] else ("1", first)
        if left[agent] == 0:
            left[agent], breaks[agent] = int(rng.geometric(0.1)), draws[0] < does.breaks
            number[agent] += 1
        left[agent] -= 1
        names = {
            "agent_id": str(agent),
            "episode_id": str(number[agent]) if named else None,
            "version": version,
            "decision_id": str(decision),
            "timestamp": TIME,
            **SPLIT[int(version) - 1],
        }
        leans = breaks[agent] if named else draws[0] < does.breaks
        yield names | {
            "kind": "decision",
            "observation": [2.0 if leans else 0.0, 9.0 if draws[1] < does.unknown else 0.0],
            "action": 2 if draws[2] < does.breaks else 0,
            "override": None,
            "exploration_flag": False,
            "shield": {"chosen": 1} if draws[3] < does.shielded else None,
            "seconds": 0.2 if draws[4] < does.slow else 5e-5,
        }
        ended = {"terminated": left[agent] == 0, "truncated": False}
        yield names | ended | {"kind": "feedback", "reward": float(draws[5] < does.success)}


def first_trigger(seed: int, count: int, second: Behaviour, named: bool) -> Trigger | None:
    known = watch()
    stream = Stream(lambda version: known)
    entries = list(records(np.random.default_rng(seed), count, Behaviour(), second, named))
    looks = (entries[start : start + 10] for start in range(0, len(entries), 10))
    return next((trigger for look in looks for trigger in stream.process(look)), None)


@pytest.mark.long
def test_two_equal_versions_are_left_alone_in_95_of_100_streams() -> None:
    alarms = [first_trigger(seed, 400, Behaviour(), named=seed % 2 == 0) for seed in range(40)]
    assert sum(alarm is not None for alarm in alarms) <= 2


@pytest.mark.parametrize(
    ("second", "monitor", "named", "most"),
    [
        (Behaviour(breaks=1.0), "violations.", True, 30),
        (Behaviour(breaks=1.0), "violations.", False, 10),
        (Behaviour(breaks=0.2), "violations.", False, 300),
        (Behaviour(success=0.1), "reward", False, 700),
        (Behaviour(shielded=0.8), "shield", False, 100),
        (Behaviour(unknown=0.8), "out_of_distribution", False, 50),
        (Behaviour(slow=0.5), "latency", False, 150),
    ],
)
def test_a_bad_version_is_found_soon(second: Behaviour, monitor: str, named: bool, most: int) -> None:
    found = [first_trigger(seed, 1_600, second, named) for seed in range(5)]
    right = [trigger for trigger in found if trigger and trigger.version == "2" and trigger.monitor.startswith(monitor)]
    assert len(right) >= 4
    assert statistics.median(trigger.num_decisions for trigger in right) <= most


# --- agents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_agents", [2, 3, 8, 40])
def test_one_broken_agent_takes_no_version_out_and_is_named(num_agents: int) -> None:
    log = Log()
    for number in range(40 * num_agents):
        agent = number % num_agents
        log.decide(agent=f"agent-{agent}", action=2 if agent == 1 else 0, observation=[0.0, 9.0 * (agent == 1)])
    assert log.trigger() is None
    for name in ("violations.push", "out_of_distribution"):
        assert log.monitor(name)["odd_agents"] == [{"agent_id": "agent-1", "mean": 1.0, "num_values": 40}]


@pytest.mark.parametrize(("num_agents", "most"), [(3, 60), (8, 10), (40, 10)])
def test_what_all_agents_show_is_the_version(num_agents: int, most: int) -> None:
    log = Log()
    for number in range(most):
        log.decide(agent=f"agent-{number % num_agents}", action=2)
    trigger = log.trigger()
    assert trigger is not None
    assert (trigger["monitor"], trigger["num_agents"]) == ("violations.push", min(num_agents, trigger["num_decisions"]))


def test_a_robot_alone_is_held_to_its_limits_once_it_is_known_to_be_alone() -> None:
    log = Log()
    for _ in range(ALONE_AFTER - 1):
        log.decide(action=2)
    assert log.trigger() is None
    log.decide(action=2)
    assert log.trigger() is not None
    for _ in range(40):
        log.decide("2", action=2)  # that is known by now
    assert log.trigger("2") is not None


def test_what_begins_late_is_seen_in_a_new_window() -> None:
    log = Log()
    for number in range(2_000):
        log.decide(agent=f"agent-{number % 20}")
    for number in range(200):
        log.decide(agent=f"agent-{number % 20}", action=2, timestamp="2026-01-01T05:00:00.000000Z")
    trigger = log.trigger()
    assert trigger is not None
    assert trigger["num_decisions"] <= 2_100


@pytest.mark.parametrize("broken", [0, 1])
def test_equal_versions_are_left_alone_where_agents_differ(broken: int) -> None:
    """Sixteen agents, each as good at its task as it is, whatever version it was dealt; one of them may be broken."""
    num_triggers = 0
    for seed in range(40):
        rng, known = np.random.default_rng(seed), watch()
        stream = Stream(lambda version, known=known: known)
        dealt, skill = rng.random(16) < 0.5, rng.uniform(0.2, 1.0, 16)
        skill[:broken] = 0.0
        entries: list[Json] = []
        for number, agent in enumerate(np.tile(np.arange(16), 20).tolist()):
            side = SPLIT[int(dealt[agent])]
            names = {"agent_id": str(agent), "episode_id": None, "decision_id": str(number), "timestamp": TIME, **side}
            names["version"] = "2" if dealt[agent] else "1"
            shown = {"observation": [0.0, 0.0], "action": 0, "seconds": 5e-5}
            told = {"override": None, "exploration_flag": False, "shield": None}
            entries.append(names | shown | told | {"kind": "decision"})
            ended = {"terminated": True, "truncated": False}
            entries.append(names | ended | {"kind": "feedback", "reward": float(rng.random() < skill[agent])})
        looks = (entries[start : start + 32] for start in range(0, len(entries), 32))
        num_triggers += any(list(stream.process(look)) for look in looks)
    assert num_triggers <= 2


def test_returns_are_compared_within_one_experiment_only() -> None:
    log = Log()
    for number in range(400):
        agent = f"agent-{number % 40}"
        log.reward(log.decide("1", agent=agent), 10.0, "1", agent_id=agent)
    for number in range(400):  # after it, and in easier times or not: who knows
        agent = f"agent-{number % 40}"
        log.reward(log.decide("2", agent=agent), 1.0, "2", agent_id=agent)
    found = log.monitor("reward", "2")
    assert (found["e_value"], log.trigger("2")) == (1.0, None)


def test_agents_of_one_request_are_enrolled_at_one_time_in_logs_of_before_too() -> None:
    """They hold a time for each version; the same `seconds`, one after the other, say that it was one request."""
    log = Log()
    for request in range(2):
        for role, version in enumerate("12"):
            for agent in "ab":
                time = f"2026-01-01T00:00:0{request}.00000{role}Z"
                name = f"{agent}{version}{request}"
                log.decide(version, name, **SPLIT[role], timestamp=time, seconds=0.001 + request / 1e6)
    found = {one.version: one.arm.agents for one in log.stream.state().versions if one.arm is not None}
    times = {name: one.time for agents in found.values() for name, one in agents.items()}
    assert times == {
        f"{agent}{version}{request}": f"2026-01-01T00:00:0{request}.000000Z"
        for agent in "ab"
        for version in "12"
        for request in range(2)
    }


# --- several servers ----------------------------------------------------------------------------------------------


def test_the_chance_of_a_false_alarm_is_shared_out_among_experiments() -> None:
    """The same evidence is worth less in a later one, and all that can ever come are worth one."""
    values = {}
    for number in (1, 2, 3):
        version, champion = (Arm(f"e{number}", is_champion, number) for is_champion in (False, True))
        for row in range(40):
            agent, arm = f"a{row}", (version, champion)[row % 2]
            arm.enrol(agent, f"2026-01-01T00:00:{row:02}Z", {"2": 0.5, "1": 0.5})
            arm.returned(agent, float(arm is champion), arm.begin_return(agent))
        values[number] = ChampionTrial("2", version, "1", champion, (0.0, 1.0)).evidence(0.0)
    assert values[1] > 20.0
    assert [values[number] / values[1] for number in (2, 3)] == pytest.approx([0.05 / 0.9, 0.1 / 6 / 0.9])
    evidence = VersionEvidence("2")
    for experiment in ("e1", None, "e2", "e1"):
        evidence.enter_experiment(experiment, is_champion=False)
    assert evidence.arm is not None
    assert evidence.arm.number == 3


def shared_by(logs: list[Log], homes: list[dict[str, int]]) -> Shared:
    """As `exchange` has it: each server's evidence, and where each agent was known first."""
    rows = []
    for log, known in zip(logs, homes, strict=True):
        (evidence,) = STATE.validate_python(STATE.dump_python(log.stream.state(), mode="json")).versions
        evidence.homes = evidence.window_homes = known
        rows.append(evidence)
    return Shared(1, {"1": rows}, {})


def test_what_two_servers_see_together_is_seen() -> None:
    """Two agents each are too few for either."""
    logs = [Log(is_shared=True), Log(is_shared=True)]
    homes: list[dict[str, int]] = [{}, {}]
    for number in range(4):
        log = logs[number % 2]
        log.decide(agent=f"agent-{number}", action=2)
        homes[number % 2][f"agent-{number}"] = number
    assert [log.trigger() for log in logs] == [None, None]
    found = logs[0].stream.merge(shared_by(logs, homes))
    assert [one.monitor for one in found] == ["violations.push"]
    assert logs[1].stream.merge(shared_by(logs, homes)) == found


def test_the_trigger_of_another_version_is_not_adopted() -> None:
    logs = [Log(is_shared=True), Log(is_shared=True)]
    for log in logs:
        log.decide(agent="agent-0", action=0)
    shared = shared_by(logs, [{"agent-0": 1}, {"agent-0": 2}])
    finding = {"monitor": "violations.push", "e_value": 1e9, "threshold": 50.0, "mean": 1.0, "limit": 0.01}
    counts = {"num_values": 500, "num_decisions": 500}
    shared.rows["1"][1].trigger = Trigger.model_validate({"version": "2", **finding, **counts})
    assert logs[0].stream.merge(shared) == []
    shared.rows["1"][1].trigger = found = Trigger.model_validate({"version": "1", **finding, **counts})
    assert logs[0].stream.merge(shared) == [found]


def test_a_server_without_monitors_takes_none_from_the_others() -> None:
    logs = [Log(is_shared=True), Log(is_shared=True)]
    for log in logs:
        log.decide(agent="agent-0", action=2)
    rows = shared_by(logs, [{"agent-0": 1}, {"agent-0": 2}]).rows["1"]
    monitors = rows[0].monitors
    rows[0].monitors = {}
    assert merged_evidence(rows).monitors.keys() == monitors.keys()


def test_judged_alone_a_version_is_refuted_by_what_this_server_saw() -> None:
    alone, shared, number = Log(), Log(is_shared=True), 0
    while not number or alone.trigger() is None:
        for log in (alone, shared):
            log.decide(agent=f"agent-{number}", action=2)
        number += 1
    assert shared.trigger() is None, "half is staked on what all know"
    shared.stream.judge_alone()
    shared.decide(agent=f"agent-{number}", action=2)
    assert shared.trigger() is not None


def test_an_agent_that_two_servers_see_counts_once() -> None:
    logs = [Log(is_shared=True), Log(is_shared=True)]
    for number in range(60):
        for log in logs:
            log.decide(agent=f"agent-{number % 2}", action=2 if number % 2 else 0)
    homes = [{"agent-0": 1, "agent-1": 1}, {"agent-0": 2, "agent-1": 2}]
    merged = merged_evidence(shared_by(logs, homes).rows["1"])
    alone = logs[0].stream.state().versions[0]
    assert (merged.unnamed, merged.requests) == (alone.unnamed, alone.requests)
    assert merged.monitors["violations.push"].life == alone.monitors["violations.push"].life
    assert [log.stream.merge(shared_by(logs, homes)) for log in logs] == [[], []]


def test_who_only_looks_takes_no_trigger_away() -> None:
    """One that `describe` came to was told to nobody: the version went on, and was watched no more."""
    log = Log(confidence=0.999999)
    for agent in range(6):
        log.decide(agent=f"agent-{agent}", action=2)
    (evidence,) = log.stream.evidence_to_share()
    assert evidence.trigger is None
    assert evidence.monitors["violations.push"].e_value > watch().levels["violations.push"].threshold
    monitors, beside = VersionMonitors(evidence, watch(), is_shared=False), Beside(is_alone=False, champion=None)
    assert monitors.describe(beside)["trigger"] is None
    assert monitors.look(beside) is not None

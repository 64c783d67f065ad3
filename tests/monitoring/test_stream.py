"""Streams of decisions as the log has them: what counts, what triggers, how soon, and how seldom wrongly."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.monitoring.config import MonitorsConfig
from loomrl.monitoring.monitor import Trigger
from loomrl.monitoring.stream import STATE, Stream
from loomrl.monitoring.watch import Watch
from loomrl.schema import Document
from loomrl.serving.columns import Columns
from loomrl.serving.config import ServingConfig
from loomrl.serving.records import decisions, rows
from loomrl.types import EnvironmentSpec, Json, PolicyManifest

LEAN = {"name": "lean", "quantity": "observation[0]", "low": -1.0, "high": 1.0, "per": "episode"}
PUSH = {"name": "push", "quantity": "action", "low": None, "high": 1.0, "per": "step"}
UNSEEN = {"name": "length", "quantity": "length", "low": 10.0, "high": None, "per": "episode"}
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

    def __init__(self, **settings: Any) -> None:
        self.watch = watch(**settings)
        self.stream = Stream(lambda version: self.watch)
        self.count = 0

    def decide(self, version: str = "1", agent: str = "a", episode: str | None = None, **changes: Any) -> str:
        self.count += 1
        decision = {
            "kind": "decision",
            "agent_id": agent,
            "episode_id": episode,
            "version": version,
            "decision_id": str(self.count),
            "observation": [0.0, 0.0],
            "action": 0,
            "override": None,
            "exploration_flag": False,
            "shield": None,
            "seconds": 5e-5,
        }
        self.stream.take([decision | changes])
        return str(self.count)

    def reward(self, decision: str, value: float, version: str = "1", **changes: Any) -> None:
        feedback = {"kind": "feedback", "agent_id": "a", "episode_id": None, "version": version, "terminated": False}
        self.stream.take([feedback | {"truncated": False, "decision_id": decision, "reward": value} | changes])

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


def test_of_each_20_decisions_of_an_episode_one_counts() -> None:
    log = Log()
    for step in range(45):
        log.decide(episode="e", action=2 if step < 20 else 0)
    assert (log.monitor("latency")["num_values"], log.monitor("violations.push")["num_values"]) == (3, 3)
    assert log.monitor("violations.push")["mean"] == pytest.approx(1 / 3)
    assert log.monitor("out_of_distribution")["num_values"] == 1  # one of each 100
    for _ in range(5):
        log.decide()
    assert log.monitor("latency")["num_values"] == 8


def test_each_decision_of_a_stretch_is_equally_likely_to_count() -> None:
    counted = np.zeros(10)
    for number in range(2_000):
        log = Log(spacing=10)
        for step in range(10):
            log.decide(episode=str(number), shield={"chosen": 1})
            if log.monitor("shield")["mean"] > 0:
                counted[step] += 1
                break
    assert counted.sum() == 2_000
    assert ((counted - 200) ** 2 / 200).sum() < 27.9  # chi-square, 9 degrees of freedom: 1 in 1,000


@pytest.mark.parametrize("longest", [5, 30, 250])
def test_the_mean_is_the_rate_over_all_decisions_however_long_episodes_are(longest: int) -> None:
    """The first two decisions of each episode ring, and a few others."""
    log, rng, rings = Log(max_out_of_distribution_rate=0.9), np.random.default_rng(longest), list[bool]()
    for episode in range(60_000 // longest):
        length = int(rng.integers(1, longest + 1))
        for step in range(length):
            rings.append(step < 2 or rng.random() < 0.05)
            decision = log.decide(episode=str(episode), observation=[0.0, 9.0 if rings[-1] else 0.0])
        log.reward(decision, 1.0, episode_id=str(episode), terminated=True)
    found = log.monitor("out_of_distribution")
    assert found["num_values"] == pytest.approx(len(rings) / 100, rel=0.2)
    assert found["mean"] == pytest.approx(np.mean(rings), abs=3 * np.sqrt(0.25 / found["num_values"]))


def test_a_request_without_an_answer_shows_nothing_else() -> None:
    log = Log(spacing=1)
    log.decide(episode="e")
    log.stream.take([{"kind": "unanswered", "agent_id": "a", "episode_id": "e", "version": "1"}])
    assert (log.monitor("unanswered")["num_values"], log.monitor("unanswered")["mean"]) == (2, 0.5)
    assert log.monitor("shield")["num_values"] == 1


def test_what_is_not_seen_of_an_episode_counts_as_good_until_it_is_over() -> None:
    log = Log(spacing=1_000)
    decision = log.decide(episode="e", shield={"chosen": 1})
    assert (log.monitor("shield")["num_values"], log.monitor("shield")["mean"]) == (1, 0.0)
    log.reward(decision, 1.0, episode_id="e", terminated=True)
    assert (log.monitor("shield")["num_values"], log.monitor("shield")["e_value"]) == (0, pytest.approx(1.0))


def test_an_episode_breaks_a_limit_once_and_at_once() -> None:
    log = Log()
    for _ in range(50):
        log.decide(episode="kept")
    for step in range(50):
        log.decide(episode="broken", observation=[2.0 if step >= 7 else 0.0, 0.0])
        if step == 7:
            assert log.monitor("violations.lean")["mean"] == 0.5
    assert (log.monitor("violations.lean")["num_values"], log.monitor("violations.lean")["mean"]) == (2, 0.5)


def test_each_quantity_has_its_monitor() -> None:
    log = Log()
    log.decide()
    log.decide(observation=[0.0, 3.1])
    log.decide(shield={"chosen": 1})
    log.decide(seconds=0.2)
    log.decide(observation=[None, 0.0])  # not finite: outside every limit
    log.stream.take([{"kind": "unanswered", "agent_id": "a", "episode_id": None, "version": "1"}])
    means = {name: log.monitor(name)["mean"] for name in log.stream.describe()["1"]["monitors"]}
    assert means["out_of_distribution"] == pytest.approx(1 / 5)
    assert (means["shield"], means["latency"], means["violations.lean"]) == (0.2, 0.2, 0.2)
    assert means["unanswered"] == pytest.approx(1 / 6)
    assert log.stream.describe()["1"]["num_decisions"] == 5


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
    log = Log(spacing=3)
    log.play([1.0] * 3)
    held = log.decide(action=2, override={"person": "grace"})
    curious = log.decide(action=2, exploration_flag=True)
    log.decide(agent="shadow-1", action=2)
    for decision in (held, curious):
        log.reward(decision, 9.0)
    assert (log.monitor("violations.push")["num_values"], log.monitor("violations.push")["mean"]) == (1, 0.0)
    assert log.stream.state().versions[0].rewards.own == [3.0]


def test_returns_count_in_the_order_of_their_beginnings() -> None:
    log = Log()
    long = [log.decide(agent="long", episode="e") for _ in range(3)]
    for number in range(9):
        log.play([float(number)], episode=str(number))
    own = log.stream.state().versions[0].rewards.own
    assert own == []
    for step, decision in enumerate(long, start=1):
        log.reward(decision, 50.0, agent_id="long", episode_id="e", terminated=step == 3)
    assert own == [150.0, *map(float, range(9))]
    log.decide(agent="gone", episode="e")  # never heard of again
    for number in range(12):
        log.play([100.0], episode=f"later-{number}")
    assert len(own) == 22


def test_an_episode_that_a_swap_cut_has_no_return() -> None:
    log = Log()
    first = log.decide(episode="e")
    log.reward(first, 1.0, episode_id="e")
    last = log.decide(version="2", episode="e")
    log.reward(last, 1.0, "2", episode_id="e", terminated=True)
    log.play([5.0], "2", episode="whole")
    assert [one.rewards.own for one in log.stream.state().versions] == [[], [5.0]]


def test_rewards_are_paired_with_the_control_each_once_and_clipped_to_what_pairs_showed() -> None:
    log = Log()
    for value in (0.0, 10.0, 4.0):
        log.reward(log.decide(), value)
    losses = []
    for value in (4.0, 0.0, 2.0, 1.0):
        log.reward(log.decide("2"), value, "2")
        found = log.monitor("reward", "2")
        losses.append(found["mean"] * found["num_values"])
    # 4 beside 4: no two have differed. 0 beside 10: nor before that. 2 beside 0, of 0 ... 10: better by a fifth.
    # 1: no control is left.
    assert losses == pytest.approx([0.0, 0.0, 0.4, 0.4])
    log.reward(log.decide(), 30.0)
    log.reward(log.decide("2"), 0.0, "2")
    assert log.monitor("reward", "2")["mean"] == pytest.approx((0.4 + 1.0) / 2)  # 30 is clipped to 10
    assert log.stream.describe()["2"]["control"] == "1"


def test_no_feedback_leaves_the_reward_undecided() -> None:
    log = Log()
    for _ in range(2_000):
        log.decide()
        log.decide("2")
    assert (log.monitor("reward", "2")["num_values"], log.monitor("reward", "2")["e_value"]) == (0, 1.0)
    assert log.trigger("1") is None
    assert log.trigger("2") is None


def test_a_stated_reference_is_the_control_of_the_first_version() -> None:
    log = Log(reference=8.0, reward_range=(0.0, 10.0))
    for _ in range(100):
        log.reward(log.decide(), 2.0)
    trigger = log.trigger()
    assert trigger is not None
    assert trigger["reason"].startswith("reward: 60.0% of the range below the stated reference in ")


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
            "exploration_flag": [bool(number % 4 == 0 and one < 0.1) for one in kinds[2]],
            "shield": [{"chosen": 2, "by": "constraint push"} if one < 0.03 * odd else None for one in kinds[3]],
            "seconds": (0.2 if odd >= 1 and kinds[4][0] < 0.02 else 5e-5,) * size,
        }
        held = {"person": "grace"} if rng.random() < 0.05 else None
        entry = decisions({"count": size, "version": version, "role": "champion", "override": held}, columns)
        yield entry | {"decision_id": str(number)}
        for row in rng.integers(size, size=3).tolist() if number % 2 else ():
            names = {"agent_id": columns["agent_id"][row], "episode_id": columns["episode_id"][row], "version": version}
            told = {"decision_id": f"{number}.{row}", "reward": float(rng.random()), "truncated": False}
            yield {"kind": "feedback", **names, **told, "terminated": bool(rng.random() < 0.3)}


def one_by_one(entry: Json) -> Iterator[Json]:
    yield from rows(entry) if entry["kind"] == "decisions" else (entry,)


def values(found: Any) -> list[Any]:
    """The leaves of nested JSON values, with their keys."""
    if isinstance(found, dict):
        return [leaf for name, value in found.items() for leaf in (name, *values(value))]
    return [leaf for value in found for leaf in values(value)] if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("seed", range(12))
def test_decisions_taken_together_are_worth_what_they_are_one_by_one(seed: int) -> None:
    known = watch(spacing=3, weights={"shield": 0.0} if seed % 4 == 0 else {})
    together, alone = Stream(lambda version: known), Stream(lambda version: known)
    is_odd, found, expected = seed % 2 == 0, [], []
    entries = list(batches(np.random.default_rng(seed), 150, odd=1.0 if is_odd else 0.1))
    for start in range(0, len(entries), 10):
        found += together.take(entries[start : start + 10])
        singles = [row for entry in entries[start : start + 10] for row in one_by_one(entry)]
        expected += [trigger for row in singles for trigger in alone.take([row])]
    assert bool(found) == is_odd
    assert values(together.describe()) == values_like(alone.describe())
    assert values([one.to_json() for one in found]) == values_like([one.to_json() for one in expected])
    for state in (together.state(), alone.state()):
        for evidence in state.versions:
            for monitor in evidence.monitors.values():
                monitor.test.add(1.0)  # everything is paid out
    states = [STATE.dump_python(stream.state(), mode="json") for stream in (together, alone)]
    assert values(states[0]) == values_like(states[1])


def values_like(expected: Any) -> list[Any]:
    return [pytest.approx(one, rel=1e-9) if isinstance(one, float) else one for one in values(expected)]


# --- across restarts --------------------------------------------------------------------------------------------


def test_a_restart_at_any_record_changes_nothing() -> None:
    entries = list(records(np.random.default_rng(4), 200, Behaviour(), Behaviour(), named=True))
    known = watch()
    through, restarted = Stream(lambda version: known), Stream(lambda version: known)
    for number, entry in enumerate(entries):
        through.take([entry])
        if number % 7 == 0:
            kept = json.loads(json.dumps(STATE.dump_python(restarted.state(), mode="json")))
            restarted = Stream(lambda version: known, STATE.validate_python(kept))
        restarted.take([entry])
    assert restarted.state() == through.state()


def test_a_limit_that_was_changed_begins_anew() -> None:
    log = Log()
    for action in (0, 2, 0):
        log.decide(action=action)
    state = log.stream.state()
    other = watch(max_slow_rate=0.5)
    stream = Stream(lambda version: other, state)
    stream.take([{"kind": "unanswered", "agent_id": "a", "episode_id": None, "version": "1"}])
    monitors = stream.describe()["1"]["monitors"]
    assert (monitors["latency"]["num_values"], monitors["violations.push"]["num_values"]) == (0, 3)


def test_what_an_open_episode_bet_on_a_limit_that_was_changed_is_void() -> None:
    log = Log()
    log.decide(episode="e")
    other = watch(max_slow_rate=0.5)
    stream = Stream(lambda version: other, log.stream.state())
    ended = {"kind": "feedback", "agent_id": "a", "episode_id": "e", "version": "1", "truncated": False}
    stream.take([ended | {"decision_id": "1", "reward": 1.0, "terminated": True}])
    monitors = stream.describe()["1"]["monitors"]
    assert (monitors["latency"]["num_values"], monitors["latency"]["e_value"]) == (0, 1.0)
    assert monitors["shield"]["num_values"] == 0


# --- how soon, and how seldom wrongly ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Behaviour:
    """What a simulated version does: by default exactly what it may, where a monitor errs most."""

    breaks: float = 0.01  # of episodes, and of decisions
    success: float = 0.8  # of decisions: a reward of 1
    shielded: float = 0.2
    unknown: float = 0.1
    slow: float = 0.05


def records(rng: np.random.Generator, count: int, first: Behaviour, second: Behaviour, named: bool) -> Iterator[Json]:
    """Eight agents, every other one with version 2 from the ninth decision on, in episodes of ten steps on average;
    rewards come at once."""
    left, number, breaks = [0] * 8, [0] * 8, [False] * 8
    for decision, (agent, *draws) in enumerate(zip(rng.integers(8, size=count), *rng.random((6, count)), strict=True)):
        version, does = ("2", second) if agent % 2 and decision >= 8 else ("1", first)
        if left[agent] == 0:
            left[agent], breaks[agent] = int(rng.geometric(0.1)), draws[0] < does.breaks
            number[agent] += 1
        left[agent] -= 1
        names = {
            "agent_id": str(agent),
            "episode_id": str(number[agent]) if named else None,
            "version": version,
            "decision_id": str(decision),
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
    entries = records(np.random.default_rng(seed), count, Behaviour(), second, named)
    return next((trigger for entry in entries for trigger in stream.take([entry])), None)


def test_two_equal_versions_are_left_alone_in_95_of_100_streams() -> None:
    """1,000 A/A splits, all monitors together, looked at after every record."""
    alarms = [first_trigger(seed, 400, Behaviour(), named=seed % 2 == 0) for seed in range(1_000)]
    assert sum(alarm is not None for alarm in alarms) <= 50


def test_a_good_version_is_left_alone_where_all_agents_begin_at_once_in_states_that_are_rare_later() -> None:
    """100 fleets of 20 agents, two episodes each; only the first five decisions of an episode ring."""
    alarms = [_fleet(seed, num_episodes=2, lengths=(60, 140)) for seed in range(100)]
    assert sum(alarm is not None for alarm in alarms) <= 5


def test_episodes_that_are_all_beginning_are_what_the_alarm_is_for() -> None:
    alarm = _fleet(1, num_episodes=40, lengths=(5, 9))
    assert alarm is not None
    assert alarm["monitor"] == "out_of_distribution"


def _fleet(seed: int, num_episodes: int, lengths: tuple[int, int]) -> Json | None:
    log, rng = Log(), np.random.default_rng(seed)
    for episode in map(str, rng.integers(1_000_000_000, size=num_episodes)):
        length = rng.integers(*lengths, size=20)
        for step in range(length.max()):
            for agent in np.flatnonzero(step < length):
                rings = {"observation": [0.0, 9.0 if step < 5 else 0.0]}
                decision = log.decide(agent=str(agent), episode=episode, **rings)
                if step == length[agent] - 1:
                    log.reward(decision, 1.0, agent_id=str(agent), episode_id=episode, terminated=True)
    return log.trigger()


@pytest.mark.parametrize(
    ("second", "monitor", "named"),
    [
        (Behaviour(breaks=1.0), "violations.", True),
        (Behaviour(breaks=0.2), "violations.", False),
        (Behaviour(success=0.3), "reward", False),
        (Behaviour(shielded=0.8), "shield", False),
        (Behaviour(unknown=0.8), "out_of_distribution", False),
        (Behaviour(slow=0.5), "latency", False),
    ],
)
def test_a_bad_version_is_found_within_100_of_its_decisions_in_the_median(
    second: Behaviour, monitor: str, named: bool
) -> None:
    found = [first_trigger(seed, 800, second, named) for seed in range(30)]
    right = [trigger for trigger in found if trigger and trigger.version == "2" and trigger.monitor.startswith(monitor)]
    assert len(right) >= 27
    assert statistics.median(trigger.num_decisions for trigger in right) <= 100

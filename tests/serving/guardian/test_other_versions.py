"""The reward monitor where versions come and go amid an experiment, and agents earn otherwise when they are new."""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from loomrl.serving.guardian import trial
from loomrl.serving.guardian.evidence import VersionEvidence
from loomrl.serving.guardian.sharing import Shared
from loomrl.serving.guardian.stream import STATE, Stream, StreamState
from loomrl.types import Json
from tests.serving.guardian.test_stream import watch

Earned = Callable[[str, int], float]  # by whom it was decided, and how often the agent decided before
BOTH = {"1": 0.5, "2": 0.5}


def wears(_version: str, age: int) -> float:
    return 9.0 - 0.5 * age


def learns(_version: str, age: int) -> float:
    return 1.0 + 0.5 * age


class Fleet:
    """Agents that a split deals to a challenger, or to the champion; each decision stands for itself."""

    def __init__(self, num_agents: int, num_servers: int = 1) -> None:
        self.streams = [self.new_stream(num_servers) for _ in range(num_servers)]
        self.count, self.rng, self.ages = 0, np.random.default_rng(1), Counter[int]()
        self.server = self.rng.integers(num_servers, size=num_agents)  # that each agent asks
        self.is_dealt, self.skill = self.rng.random(num_agents) < 0.5, self.rng.normal(size=num_agents)

    @staticmethod
    def new_stream(num_servers: int = 1, state: StreamState | None = None) -> Stream:
        known = watch(reward_range=[-5.0, 15.0], max_reward_loss=0.01)
        return Stream(lambda _: known, state, is_shared=num_servers > 1)

    @property
    def stream(self) -> Stream:
        return self.streams[0]

    def decide(
        self,
        shares: Mapping[str, float],
        versions: tuple[str, str],
        earned: Earned,
        num_agents: int,
        asks: float = 0.0,
        experiment: str | None = "x",
    ) -> None:
        """One decision of each of the first agents, in any order, by champion or challenger; then servers share."""
        for agent in self.rng.permutation(num_agents).tolist():
            self.count += 1
            minutes, seconds = divmod(self.count, 60)
            version = versions[int(self.is_dealt[agent])]
            names = {
                "version": version,
                "agent_id": f"agent-{agent}",
                "episode_id": None,
                "decision_id": str(self.count),
                "timestamp": f"2026-01-01T{minutes // 60:02}:{minutes % 60:02}:{seconds:02}.000000Z",
                "role": "champion" if version == versions[0] else "split",
                "experiment": experiment,
                "shares": dict(shares),
            }
            shown = {"observation": [0.0, 0.0], "action": 0, "seconds": 5e-5}
            told = {"override": None, "exploration_flag": bool(self.rng.random() < asks), "shield": None}
            ended = {
                "terminated": True,
                "truncated": False,
                "reward": earned(version, self.ages[agent]) + self.skill[agent],
            }
            self.ages[agent] += 1
            self.tell([names | shown | told | {"kind": "decision"}, names | ended | {"kind": "feedback"}], agent)
        if len(self.streams) > 1:
            self.share()

    def tell(self, records: list[Json], agent: int) -> None:
        self.streams[self.server[agent]].process(records)

    def share(self) -> None:
        """As the exchange does it."""
        rows: dict[str, list[VersionEvidence]] = {}
        for one in (one for stream in self.streams for one in stream.evidence_to_share()):
            for known, agents in ((one.homes, one.unnamed), (one.window_homes, one.requests.window)):
                known.update(dict.fromkeys(agents.keys() - known.keys(), self.count))
            rows.setdefault(one.version, []).append(one)
        for number, stream in enumerate(self.streams, 1):
            stream.merge(Shared(number, rows, {}))

    def restart(self) -> None:
        """Begin anew with what was saved."""
        state = STATE.validate_python(STATE.dump_python(self.stream.state(), mode="json"))
        self.streams = [self.new_stream(state=state)]

    def e_value(self, version: str) -> float:
        """Of the monitor of a version's reward, that was held against a champion's."""
        found = self.stream.describe()[version]
        assert found["control"] is not None
        return float(found["monitors"]["reward"]["e_value"])


def goes_on_fairly(fleet: Fleet, versions: tuple[str, str], earned: Earned, is_restarted: bool) -> None:
    """More agents come to those there were; nothing is laid to the second version, which is equal to the first."""
    if is_restarted:
        fleet.restart()
    for _ in range(4):
        fleet.decide(dict.fromkeys(versions, 0.5), versions, earned, 120)
    assert fleet.stream.describe()["2"]["control"] == versions[0]
    assert fleet.e_value("2") < 20.0
    assert fleet.stream.refuted == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_challenger_that_takes_anothers_place_is_not_judged_by_agents_that_were_dealt_the_other(
    is_restarted: bool,
) -> None:
    """Those are worn; the champion's that come at the same time are new."""
    fleet = Fleet(120)
    for _ in range(8):
        fleet.decide({"1": 0.5, "3": 0.5}, ("1", "3"), wears, 80)
    goes_on_fairly(fleet, ("1", "2"), wears, is_restarted)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_new_champion_is_not_held_against_a_challenger_with_agents_that_were_the_former_ones(
    is_restarted: bool,
) -> None:
    """Those have learnt; the challenger's that come at the same time are new."""
    fleet = Fleet(120)
    for _ in range(8):
        fleet.decide(BOTH, ("1", "2"), learns, 80)
    goes_on_fairly(fleet, ("3", "2"), learns, is_restarted)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_version_whose_monitors_begin_anew_is_not_judged_by_agents_that_it_had(is_restarted: bool) -> None:
    """It was in quarantine."""
    fleet = Fleet(120)
    for _ in range(8):
        fleet.decide(BOTH, ("1", "2"), wears, 80)
    fleet.stream.forget("2")
    goes_on_fairly(fleet, ("1", "2"), wears, is_restarted)


def test_nor_by_those_that_it_had_at_another_server() -> None:
    fleet = Fleet(240, num_servers=2)
    for _ in range(8):
        fleet.decide(BOTH, ("1", "2"), wears, 160)
    for stream in fleet.streams:
        stream.forget("2")
    for _ in range(4):
        fleet.decide(BOTH, ("1", "2"), wears, 240)
    assert [stream.refuted for stream in fleet.streams] == [[], []]


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


@pytest.mark.parametrize("between", [("3", "2"), ("1", "3")])
def test_what_a_third_version_left_behind_is_laid_to_none_of_the_two(between: tuple[str, str]) -> None:
    """It was the champion, or had the challenger's agents, for a while, and those earn more since, or less."""
    fleet = Fleet(120)
    for _ in range(2):
        fleet.decide(BOTH, ("1", "2"), lambda *_: 5.0, 120)
    for _ in range(2):
        fleet.decide(dict.fromkeys(between, 0.5), between, lambda *_: 5.0, 120)
    later = 9.0 if between[0] == "3" else 1.0
    met = {agent for agent, dealt in enumerate(fleet.is_dealt) if between[int(dealt)] == "3"}
    fleet.skill[list(met)] += later - 5.0
    for _ in range(20):
        fleet.decide(BOTH, ("1", "2"), lambda *_: 5.0, 120)
    assert fleet.e_value("2") < 20.0
    assert fleet.stream.refuted == []


def test_what_follows_after_a_third_version_came_in_does_not_count_though_it_is_unknown_here() -> None:
    """It decides at servers that do not share what they see, say. What was known before goes on counting."""
    fleet = Fleet(120)
    fleet.decide(BOTH, ("1", "2"), lambda version, _: 5.0 if version == "1" else 4.2, 120)
    before = fleet.e_value("2")
    assert before > 5.0
    for _ in range(16):
        fleet.decide({"1": 0.4, "2": 0.4, "3": 0.2}, ("1", "2"), lambda version, _: 9.0 if version == "1" else 1.0, 120)
    assert fleet.e_value("2") == pytest.approx(before)


def test_agents_count_where_an_experiment_dealt_them_whichever_server_they_asked_before() -> None:
    """Half of them asked another server, when the first version decided for all; they earn less."""
    fleet = Fleet(160, num_servers=2)
    fleet.skill -= 3.0 * fleet.server
    fleet.decide({"1": 1.0}, ("1", "1"), lambda *_: 5.0, 160, experiment=None)
    fleet.server[:] = 0
    for _ in range(6):
        fleet.decide(BOTH, ("1", "2"), lambda *_: 5.0, 160)
    assert [stream.refuted for stream in fleet.streams] == [[], []]


@pytest.mark.parametrize("is_random", [False, True])
def test_what_a_third_version_left_behind_at_another_server_is_laid_to_none_of_the_two(is_random: bool) -> None:
    """One server is away while the third decides, so that its agents ask the other one, and come back."""
    fleet = Fleet(160, num_servers=2)
    home = fleet.server.copy()

    def play(shares: Mapping[str, float], versions: tuple[str, str], rounds: int) -> None:
        for _ in range(rounds):
            if is_random:
                fleet.server = fleet.rng.integers(2, size=160)
            fleet.decide(shares, versions, lambda *_: 5.0, 160)

    play(BOTH, ("1", "2"), 2)
    fleet.server[:] = 1
    play({"3": 0.5, "2": 0.5}, ("3", "2"), 2)
    fleet.server = home
    fleet.skill[~fleet.is_dealt] += 4.0
    play(BOTH, ("1", "2"), 16)
    assert [stream.refuted for stream in fleet.streams] == [[], []]


def test_no_arm_of_an_experiment_goes_on_alone_when_another_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of one server earn more. Its champion's arm is full first, for it has nine agents of ten."""
    monkeypatch.setattr(trial, "_MOST_AGENTS", 150)
    fleet = Fleet(3500, num_servers=2)
    fleet.server = np.where(fleet.rng.random(3500) < 0.2, 1, 0)
    fleet.is_dealt = fleet.rng.random(3500) < 0.1
    fleet.skill += 3.0 * fleet.server
    fleet.decide({"1": 0.9, "2": 0.1}, ("1", "2"), lambda *_: 5.0, 3500)
    assert [stream.refuted for stream in fleet.streams] == [[], []]
    for stream in fleet.streams:
        arms = {one.version: len(one.arm.agents) for one in stream.state().versions if one.arm is not None}
        assert arms["1"] == 150
        assert arms["2"] < 40


def test_an_experiment_that_was_saved_by_an_earlier_version_ends_for_its_agents_too() -> None:
    """It did not say which versions all of them could be dealt to."""
    enrolled = {"old": trial.Enrolled("2026-01-01T00:00:00Z", BOTH)}
    arm = trial.Arm("e", True, agents=enrolled)
    arm.enrol("new", "2026-01-02T00:00:00Z", {"1": 0.4, "2": 0.3, "3": 0.3})
    arm.end_others(["old"], {"1", "2", "3"}, "2026-01-03T00:00:00Z")
    assert [one.until for one in arm.agents.values()] == ["2026-01-03T00:00:00Z", ""]


@pytest.mark.parametrize("share", [0.9, 1.0])
def test_a_share_that_goes_up_and_back_takes_no_equal_version_out(share: float) -> None:
    """Agents learn: those that come back have learnt more than those that stayed."""
    fleet = Fleet(160)
    chance, dealt = fleet.rng.random(160), fleet.is_dealt
    for part, rounds in ((0.5, 2), (share, 20), (0.5, 14)):
        dealt[:] = chance < part
        for _ in range(rounds):
            fleet.decide({"1": 1.0 - part, "2": part}, ("1", "2"), learns, 160)
    assert fleet.stream.refuted == []


def test_an_experiment_that_goes_on_after_a_pause_begins_anew() -> None:
    """While it paused the champion decided for all. Agents of before stand beside no new ones of one arm alone."""
    fleet = Fleet(160)
    fleet.decide(BOTH, ("1", "2"), lambda *_: 5.0, 80)
    fleet.decide({"1": 1.0}, ("1", "1"), lambda *_: 5.0, 80, experiment=None)
    fleet.decide(BOTH, ("1", "2"), lambda *_: 5.0, 160)
    arms = {one.version: one.arm for one in fleet.stream.state().versions if one.arm is not None}
    assert {version: arm.number for version, arm in arms.items()} == {"1": 2, "2": 2}
    known = {f"agent-{number}" for number in range(80)}
    before = fleet.stream.state().before["x"]
    assert before.keys() == known
    assert all(arm.agents.keys() & known <= before.keys() for arm in arms.values())
    assert min(one.time for arm in arms.values() for one in arm.agents.values()) > max(before.values())


class SwitchedFleet(Fleet):
    """For a while a constant action decides for all; records name the champion, as a server writes them."""

    role = ""

    def tell(self, records: list[Json], agent: int) -> None:
        changes = {"role": self.role, "override": {"id": "o", "person": "Ada"}} if self.role else {}
        super().tell([one | changes for one in records], agent)


@pytest.mark.parametrize("role", ["kill_switch", "override"])
def test_what_an_order_for_all_earns_is_laid_to_nobody(role: str) -> None:
    """Agents wear meanwhile."""
    fleet = SwitchedFleet(160)
    for role_now, rounds in (("", 2), (role, 14), ("", 14)):
        fleet.role = role_now
        for _ in range(rounds):
            fleet.decide(BOTH, ("1", "1") if role_now else ("1", "2"), wears, 160)
    assert fleet.stream.refuted == []


@pytest.mark.parametrize("asks", [0.0, 0.4])
def test_a_worse_version_is_taken_out_where_agents_ask_to_explore_now_and_then(asks: float) -> None:
    fleet = Fleet(200)
    for _ in range(6):
        fleet.decide(BOTH, ("1", "2"), lambda version, _: 9.0 if version == "1" else 1.0, 200, asks)
    assert fleet.stream.refuted == ["2"]


class SlowFleet(Fleet):
    """Good rewards come late, bad ones at once."""

    def __init__(self, num_agents: int) -> None:
        super().__init__(num_agents)
        self.late: list[tuple[Json, int]] = []

    def tell(self, records: list[Json], agent: int) -> None:
        decision, feedback = records
        super().tell([decision], agent)
        if feedback["reward"] < 8.0:
            super().tell([feedback], agent)
        else:
            self.late.append((feedback, agent))

    def tell_late(self) -> None:
        for feedback, agent in self.late:
            super().tell([feedback], agent)


def test_rewards_that_are_still_to_come_speak_against_nobody() -> None:
    """The second version mostly earns 12, and now and then nothing; the first always 5."""
    fleet = SlowFleet(120)
    fleet.skill /= 10.0
    for _ in range(12):
        fleet.decide(
            BOTH, ("1", "2"), lambda version, _: 5.0 if version == "1" else 12.0 * (fleet.rng.random() < 0.6), 120
        )
    assert fleet.stream.refuted == []
    fleet.tell_late()
    assert fleet.stream.refuted == []


def test_what_was_saved_before_this_was_known_is_read() -> None:
    fleet = Fleet(40)
    fleet.decide(BOTH, ("1", "2"), wears, 40)
    saved = STATE.dump_python(fleet.stream.state(), mode="json")
    for name in ("before", "places"):
        del saved[name]
    for one in saved["versions"]:
        del one["before"]
        one["open_episodes"] = [{"agent_id": "a", "episode_id": "b", "cut": False, "place": 3}]
        for enrolled in one["arm"]["agents"].values():
            del enrolled["asked"], enrolled["until"]
    fleet.streams = [fleet.new_stream(state=STATE.validate_python(saved))]
    fleet.decide(BOTH, ("1", "2"), wears, 40)
    assert fleet.stream.describe()["2"]["control"] == "1"
